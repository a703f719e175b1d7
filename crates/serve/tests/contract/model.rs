//! Writes the model that greets and calls tools into a file, for suites that need one: `cargo run --example contract-model FILE`.

#[path = "../support/bigram.rs"]
#[allow(dead_code, reason = "its texts are for tests")]
mod bigram;

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).expect("usage: contract-model FILE");
    std::fs::write(path, bigram::gguf(bigram::Calls::Text))
}
