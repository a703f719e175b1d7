//! Prints the vectors of a file's lines by a sentence encoder, one JSON list per line, and on standard error the time of a line.
//!
//! ```sh
//! cargo run --release --example sentence_vectors -- all-MiniLM-L6-v2 TEXT.txt > vectors.jsonl
//! ```

use std::error::Error;
use std::time::Instant;

use refrain::CancelToken;
use refrain::embedding::{Encoder, EncoderOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, text] = args.as_slice() else {
        return Err("usage: sentence_vectors FOLDER TEXT".into());
    };
    let encoder = Encoder::open(folder, EncoderOptions::default())?;
    let text = std::fs::read_to_string(text)?;
    let lines: Vec<&str> = text.lines().collect();
    for together in [1, 32] {
        let start = Instant::now();
        let mut vectors = Vec::with_capacity(lines.len());
        for lines in lines.chunks(together) {
            vectors.extend(encoder.encode(lines, &CancelToken::new())?);
        }
        let ms = 1e3 * start.elapsed().as_secs_f64() / lines.len().max(1) as f64;
        eprintln!("{together} together: {ms:.1} ms a line");
        if together == 32 {
            for vector in vectors {
                let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
                println!("[{}]", numbers.join(","));
            }
        }
    }
    Ok(())
}
