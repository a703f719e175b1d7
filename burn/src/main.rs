//! The program `refrain-burn`: writes samples of the corpus, trains the tokenizer and the models, evaluates and exports.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use burn::module::Module;
use burn::tensor::Device;
use refrain_burn::batch::Source;
use refrain_burn::checkpoint::{self, State};
use refrain_burn::model::ModelShape;
use refrain_burn::train::{Recipe, Trainer};
use refrain_burn::{Error, evaluate, tokens, world};

const SEED: u64 = 20_261_121;

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("refrain-burn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn option<T: std::str::FromStr>(args: &[String], name: &str, default: T) -> Result<T, Error> {
    match args.iter().position(|arg| arg == name) {
        None => Ok(default),
        Some(at) => args
            .get(at + 1)
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| Error::Usage(format!("{name} needs a value"))),
    }
}

fn run(args: &[String]) -> Result<(), Error> {
    let runs: PathBuf = option(args, "--runs", PathBuf::from("burn/runs"))?;
    match args.first().map(String::as_str) {
        Some("corpus") => {
            for number in 0..option(args, "--count", 20_u64)? {
                println!("{}\n=====", world::document(SEED, number, world::Stage::Full).text());
            }
            Ok(())
        }
        Some("tokenizer") => {
            fs::create_dir_all(&runs)?;
            tokens::train(SEED)?.save(runs.join("tokenizer.json"), false)?;
            Ok(())
        }
        Some("train") => {
            let name = args.get(1).map_or("", String::as_str);
            let shape = match name {
                "target" => ModelShape::target(tokens::VOCABULARY),
                "draft" => ModelShape::draft(tokens::VOCABULARY),
                _ => return Err(Error::Usage("train what: target or draft?".into())),
            };
            let steps = option(args, "--steps", 5000)?;
            let recipe = Recipe {
                seed: SEED,
                steps,
                documents: option(args, "--documents", 10)?,
                easy_steps: option(args, "--easy-steps", 400)?,
                drill_steps: option(args, "--drill-steps", 2200)?,
                rate: option(args, "--rate", 1.2e-3)?,
                warmup: 100,
                decay: option(args, "--decay", steps / 5)?,
            };
            train(&runs, name, shape, recipe, option(args, "--every", 250)?)
        }
        _ => Err(Error::Usage("use corpus, tokenizer, train".into())),
    }
}

fn train(runs: &Path, name: &str, shape: ModelShape, recipe: Recipe, every: usize) -> Result<(), Error> {
    let tokenizer = tokens::load(&runs.join("tokenizer.json"))?;
    let run = runs.join(name);
    fs::create_dir_all(&run)?;
    let device = Device::flex();
    let (mut trainer, mut state) = match checkpoint::latest(&run)? {
        Some(folder) => checkpoint::load(&folder, &device)?,
        None => {
            let trainer = Trainer::new(&shape, recipe.seed, &device);
            (trainer, State { step: 0, tokens: 0, loss: 0.0, seconds: 0.0, recipe: recipe.clone(), shape })
        }
    };
    state.recipe = recipe;
    let recipe = state.recipe.clone();
    let source = Source {
        tokenizer: &tokenizer,
        seed: recipe.seed,
        documents: recipe.documents,
        easy_steps: recipe.easy_steps,
        drill_steps: recipe.drill_steps,
    };
    let mut shown = (Instant::now(), state.tokens);
    while state.step < recipe.steps {
        let started = Instant::now();
        let batches = source.step(state.step)?;
        let rate = recipe.rate_at(state.step);
        let loss = trainer.step(&batches, rate);
        if !loss.is_finite() {
            return Err(Error::Usage(format!("the loss is {loss} at step {}: the last saved state is intact", state.step)));
        }
        state.tokens +=
            batches.iter().flat_map(|batch| &batch.rows).map(|row| row.ids.len() as u64).sum::<u64>();
        state.loss = if state.step == 0 { loss } else { 0.98 * state.loss + 0.02 * loss };
        state.step += 1;
        state.seconds += started.elapsed().as_secs_f64();
        if state.step.is_multiple_of(10) {
            let speed = (state.tokens - shown.1) as f64 / shown.0.elapsed().as_secs_f64();
            let per_step = state.tokens as f64 / state.step as f64;
            let left = (recipe.steps - state.step) as f64 * per_step / speed / 60.0;
            println!(
                "step {}/{} loss {loss:.3} mean {:.3} rate {rate:.2e} {speed:.0} tok/s {:.2} M tokens, {left:.0} min left",
                state.step,
                recipe.steps,
                state.loss,
                state.tokens as f64 / 1e6,
            );
            shown = (Instant::now(), state.tokens);
        }
        if state.step.is_multiple_of(every) || state.step == recipe.steps {
            checkpoint::save(&run, &trainer, &state)?;
            let answers = evaluate::questions(&trainer.model.clone().valid(), &tokenizer, 40, &device)?;
            let right = answers.iter().filter(|answer| answer.is_right()).count();
            println!("step {} saved; {right} of {} answers right", state.step, answers.len());
            for answer in answers.iter().take(4) {
                println!(
                    "  Q {} | want {} | got {:?}",
                    answer.question.question, answer.question.fact, answer.answer
                );
            }
            shown = (Instant::now(), state.tokens);
        }
    }
    Ok(())
}
