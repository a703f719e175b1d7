//! Compares and measures the engine on a target: natively, and as a module of WASI.
//!
//! ```text
//! refrain-wasm bits TARGET DRAFT       tokens and bits, a line of JSON for each answer
//! refrain-wasm speed TARGET [ISA]      times of loading and tokens per second on one thread, as JSON
//! ```

use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::device::IsaKind;
use refrain::{Drafting, Engine, EngineOptions, Event, GenerateOptions, Role, SessionOptions};
use refrain_wasm::bits;
use serde_json::json;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bits", target, draft] => print_bits(target, draft),
        ["speed", target] => print_speed(target, None),
        ["speed", target, isa] => print_speed(target, Some(isa)),
        _ => Err("usage: refrain-wasm bits TARGET DRAFT | speed TARGET [ISA]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_bits(target: &str, draft: &str) -> Result<(), Box<dyn Error>> {
    for line in bits::lines(fs::read(target)?, fs::read(draft)?)? {
        println!("{line}");
    }
    Ok(())
}

/// The best of five answers, because other programs only slow a run down.
fn print_speed(target: &str, isa: Option<&str>) -> Result<(), Box<dyn Error>> {
    let mut options = EngineOptions::default();
    options.n_threads = Some(1);
    if let Some(name) = isa {
        let found = IsaKind::ALL.iter().copied().find(|isa| isa.name() == name);
        options.isa = Some(found.ok_or("no such instruction set")?);
    }
    let start = Instant::now();
    let engine = Engine::load(&Checkpoint::open(target)?, options, |_, _| {})?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let mut measured = serde_json::Map::new();
    for (name, drafting) in [("plain", Drafting::Off), ("drafted", Drafting::Auto)] {
        let (mut prefill, mut decode) = (0.0f64, 0.0f64);
        for _ in 0..5 {
            let mut options = SessionOptions::default();
            (options.drafting, options.history) = (drafting, false);
            let mut session = engine.session(options)?;
            session.append_turn(Role::User, bits::message().repeat(3))?;
            let mut options = GenerateOptions::default();
            (options.max_tokens, options.ignore_eos) = (128, true);
            for event in session.generate(options)? {
                if let Event::Done(summary) = event? {
                    prefill = prefill.max(summary.stats.prefill_tokens_per_s());
                    decode = decode.max(summary.stats.decode_tokens_per_s());
                }
            }
        }
        measured.insert(
            name.to_owned(),
            json!({ "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode }),
        );
    }
    measured.insert("isa".to_owned(), engine.device().isa().name().into());
    measured.insert("load_ms".to_owned(), load_ms.into());
    println!("{}", serde_json::Value::Object(measured));
    Ok(())
}
