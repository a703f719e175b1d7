//! Text to tokens: the speed of a tokenizer, and what encoding a conversation costs as it grows.
//!
//! ```sh
//! cargo bench --bench text -- [MODEL.gguf | FOLDER]...
//! ```
//!
//! Without a model, the fixture's. For a folder, `tokenizer.json` is also run by the library `tokenizers`, in turns.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use refrain::internals::tokenizer::TokenizerParts;
use refrain::{ChatOptions, Message, Role, SpecialTokens, Tokenizer};
use refrain_containers::gguf::GgufFile;

const ROUNDS: usize = 15;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut models: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|arg| arg != "--bench").map(PathBuf::from).collect();
    if models.is_empty() {
        models.push(root.join("fixtures/target.gguf"));
    }
    let text = text(root);
    println!("| model | MB/s | `tokenizers` MB/s | turns | first encoding, µs | a turn later, µs |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for model in &models {
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tokenizer = open(model);
        let library = tokenizers::Tokenizer::from_file(model.join("tokenizer.json")).ok();
        let (mut own_s, mut library_s) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            black_box(tokenizer.encode(&text, SpecialTokens::AsText).expect("encodes"));
            own_s.push(start.elapsed().as_secs_f64());
            if let Some(library) = &library {
                let start = Instant::now();
                black_box(library.encode_fast(text.as_str(), false).expect("encodes"));
                library_s.push(start.elapsed().as_secs_f64());
            }
        }
        let speed = |seconds: &mut Vec<f64>| match median(seconds) {
            Some(seconds) => format!("{:.1}", text.len() as f64 / 1e6 / seconds),
            None => "–".to_owned(),
        };
        print!("| {name} | {} | {} |", speed(&mut own_s), speed(&mut library_s));
        if tokenizer.encode_chat(&turns(&text, 1), &ChatOptions::default(), true).is_err() {
            println!(" no chat template | | |");
            continue;
        }
        for (row, n_turns) in [2, 10, 50].into_iter().enumerate() {
            let all = turns(&text, n_turns + 1);
            let (mut first_s, mut again_s) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                // A tokenizer that knows nothing of the conversation.
                let tokenizer = open(model);
                for (messages, seconds) in [(&all[..n_turns], &mut first_s), (&all, &mut again_s)] {
                    let start = Instant::now();
                    black_box(
                        tokenizer.encode_chat(messages, &ChatOptions::default(), true).expect("encodes"),
                    );
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
            let [first, again] =
                [first_s, again_s].map(|mut s| 1e6 * median(&mut s).expect("there are rounds"));
            println!("{} {n_turns} | {first:.0} | {again:.0} |", if row == 0 { "" } else { "| | | |" });
        }
    }
}

fn open(model: &Path) -> Tokenizer {
    if model.is_dir() {
        let json = std::fs::read_to_string(model.join("tokenizer.json")).expect("there is a tokenizer");
        return Tokenizer::from_json(&json, "tokenizer.json").expect("it is valid");
    }
    Tokenizer::from_gguf(&GgufFile::open(model).expect("it is a GGUF file")).expect("it has a tokenizer")
}

/// The project's documents, about 300 kB.
fn text(root: &Path) -> String {
    let mut files = Vec::new();
    for folder in ["docs/use", "docs/embed", "docs/decisions"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the documents are there");
        files.extend(entries.map(|entry| entry.expect("can be listed").path()));
    }
    files.sort();
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "md"))
        .map(|file| std::fs::read_to_string(file).expect("can be read"))
        .collect()
}

/// Questions of about 100 characters and answers of about 600.
fn turns(text: &str, n: usize) -> Vec<Message> {
    let mut rest = text.chars();
    (0..n)
        .map(|i| match i % 2 {
            0 => Message::new(Role::User, rest.by_ref().take(100).collect::<String>()),
            _ => Message::new(Role::Assistant, rest.by_ref().take(600).collect::<String>()),
        })
        .collect()
}

fn median(seconds: &mut [f64]) -> Option<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}
