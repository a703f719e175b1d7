//! Model files of true shapes with random weights: the cost of a kernel depends on shapes and types, not on the
//! numbers.

mod blocks;
mod mix;
mod shape;
mod shapes;
mod write;

pub use mix::Mix;
pub use shape::Shape;
pub use write::write;
