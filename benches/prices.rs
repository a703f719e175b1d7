//! The step costs that loading measures in 300 ms, beside those of a long measurement on the same machine.
//!
//! ```sh
//! REFRAIN_PRICES_MODEL=model.gguf cargo bench --bench prices              # without a model: the fixture target
//! REFRAIN_PRICES_ISA=avx2 cargo bench --bench prices                      # another instruction set
//! ```
//!
//! Cells are costs relative to a step of one row behind an empty context, at load and long. The first lines have the
//! times of loading without and with the measurement, and the time of the long one.

use std::time::{Duration, Instant};

use refrain::checkpoint::Checkpoint;
use refrain::device::ProfileOptions;
use refrain::internals::kernels::IsaKind;
use refrain::{Engine, EngineOptions};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
    let path = std::env::var("REFRAIN_PRICES_MODEL").unwrap_or_else(|_| fixture.to_owned());
    let isa = std::env::var("REFRAIN_PRICES_ISA").ok();
    let isa = isa
        .map(|name| IsaKind::ALL.iter().copied().find(|isa| isa.name() == name).ok_or(name))
        .transpose()?;
    let checkpoint = Checkpoint::open(&path)?;
    let load = |measure_time: Option<Duration>| -> Result<(Engine, f64), Error> {
        let options = EngineOptions { isa, measure_time, ..EngineOptions::default() };
        let start = Instant::now();
        let engine = Engine::load(&checkpoint, options, |_, _| {})?;
        Ok((engine, start.elapsed().as_secs_f64() * 1e3))
    };
    let (_, without) = load(Some(Duration::ZERO))?;
    let (engine, with) = load(None)?;
    println!("{path}: {:?}", (engine.device().isa(), engine.device().n_threads()));
    println!("load {without:.0} ms without measuring, {with:.0} ms with");
    let options = ProfileOptions { prefill: vec![64], ..ProfileOptions::default() };
    let start = Instant::now();
    let profile = engine.device().measure_profile(&options, |_, _| {})?;
    println!("long measurement {:.1} s", start.elapsed().as_secs_f64());
    println!(
        "| context | {} |",
        [1, 2, 4, 8, 16, 32].map(|rows| format!("{rows} at load, long")).join(" | ")
    );
    println!("| --- {}|", "| ---: ".repeat(6));
    for context in [0, 1024, 4096] {
        let (quick, long) = (engine.costs_behind(context), profile.costs(context, 8));
        let (quick_one, long_one) =
            (engine.costs_behind(0).verify_us(1, 1), profile.costs(0, 8).verify_us(1, 1));
        let cells = [1, 2, 4, 8, 16, 32].map(|rows| {
            let (quick, long) = (quick.verify_us(rows, 1) / quick_one, long.verify_us(rows, 1) / long_one);
            format!("{quick:.2}, {long:.2}")
        });
        println!("| {context} | {} |", cells.join(" | "));
    }
    Ok(())
}
