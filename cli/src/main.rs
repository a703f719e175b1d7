//! The program `refrain`.
fn main() {}
