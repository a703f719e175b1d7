//! Prints the final hidden states at positions of a text, one JSON list per line: what a model for embeddings gives, and what
//! `tools/screened-head` reads.
//!
//! ```sh
//! cargo run --release --example hidden_states -- MODEL.gguf TEXT.txt 64 > states.jsonl
//! ```

use std::error::Error;
use std::path::Path;

use refrain::{CancelToken, Engine, EngineOptions, SessionOptions, SpecialTokens};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, n_positions] = args.as_slice() else {
        return Err("usage: hidden_states MODEL TEXT POSITIONS".into());
    };
    let engine = Engine::open(Path::new(model), EngineOptions::default())?;
    let tokens = engine.tokenizer().encode(&std::fs::read_to_string(text)?, SpecialTokens::AsText)?;
    let tokens = &tokens[..tokens.len().min(engine.config().context_len)];
    let mut session = engine.session(SessionOptions::default())?;
    for part in tokens.chunks(tokens.len().div_ceil(n_positions.parse::<usize>()?.max(1)).max(1)) {
        session.append_tokens(part)?;
        let state = session.last_hidden_state(&CancelToken::new())?;
        let numbers: Vec<String> = state.iter().map(f32::to_string).collect();
        println!("[{}]", numbers.join(","));
    }
    Ok(())
}
