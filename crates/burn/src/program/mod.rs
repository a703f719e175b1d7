//! The program `refrain-train`: trains a predictor, a draft model or a draft head from a target's predictions on the user's text.

mod args;

use std::process::ExitCode;

use refrain::drafting::Predictor;
use refrain_program::failure::{Exit, Failure};
use refrain_program::progress::Progress;
use refrain_program::{load, print_line, start};

use crate::Error;
use crate::distill::draft::{self, DraftLoss, DraftRecipe};
use crate::distill::head::{self, HeadKind, HeadRecipe, HeadTarget};
use crate::distill::predictor::{self, PredictorRecipe};
use crate::distill::{Passage, Recorder, text};
use crate::model::ModelShape;
use args::{Cli, Command, DraftArgs, HeadArg, HeadArgs, LossArg, PredictorArgs, TextArgs};

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    start::run(|| {
        let cli: Cli = start::parse(std::env::args_os())?;
        cli.globals.set();
        match &cli.command {
            Command::Predictor(args) => train_predictor(args),
            Command::Draft(args) => train_draft(args),
            Command::Head(args) => train_head(args),
        }
    })
}

fn train_predictor(args: &PredictorArgs) -> Result<Exit, Failure> {
    let (recorder, passages) = read(&args.model, &args.text)?;
    let config = recorder.engine().config();
    let layer_idx = args.layer.unwrap_or(config.n_layers() / 2);
    if !(1..config.n_layers()).contains(&layer_idx) {
        let problem = format!("--layer {layer_idx} is outside 1..={}", config.n_layers() - 1);
        return Err(Failure::usage(problem, "choose a layer of the model"));
    }
    let record = recorder.record(&passages, Some(layer_idx), args.text.positions, recording())?;
    print_line!("{} positions of {} passages, before layer {layer_idx}", record.len(), passages.len());
    let recipe = PredictorRecipe {
        rank: args.rank as usize,
        steps: args.text.steps,
        shadow_pool: args.shadow_pool as usize,
        seed: args.text.seed,
        ..PredictorRecipe::default()
    };
    let losses = losses(recipe.steps, 10);
    let (parts, held_out) = predictor::train(&record, recorder.engine(), layer_idx, &recipe, losses)?;
    print_line!("held out: {held_out}");
    Predictor::new(parts)?.write(&args.out)?;
    print_line!("{}: use it with --pruning", args.out.display());
    Ok(Exit::Done)
}

fn train_draft(args: &DraftArgs) -> Result<Exit, Failure> {
    draft::check_out(&args.target, &args.out)?;
    let (recorder, passages) = read(&args.target, &args.text)?;
    let config = recorder.engine().config();
    let recipe = DraftRecipe {
        shape: ModelShape {
            hidden: args.hidden,
            layers: args.layers,
            heads: args.heads,
            kv_heads: args.kv_heads,
            intermediate: args.ffn,
            max_positions: config.context_len,
            ..ModelShape::draft(config.vocab_size)
        },
        loss: match args.loss {
            LossArg::Kl => DraftLoss::Kl,
            LossArg::Plain => DraftLoss::Plain,
        },
        steps: args.text.steps,
        passages: args.passages as usize,
        rate: 2e-3,
        seed: args.text.seed,
    };
    let record = recorder.record(&passages, None, args.text.positions, recording())?;
    let n_parameters = recipe.shape.parameters();
    print_line!("{} positions of {} passages; {n_parameters} parameters", record.len(), passages.len());
    let (model, held_out) = draft::distil(&passages, &record, &recipe, losses(recipe.steps, 20))?;
    print_line!("held out: {held_out}");
    draft::write(&model, &args.target, recorder.engine().tokenizer(), &args.out)?;
    print_line!("{}: use it with --draft", args.out.display());
    Ok(Exit::Done)
}

fn train_head(args: &HeadArgs) -> Result<Exit, Failure> {
    let kind = match (args.layout, args.vocabulary) {
        (HeadArg::Mtp, None) => HeadKind::Mtp,
        (HeadArg::Mtp, Some(_)) => {
            let problem = "--vocabulary is for --layout eagle3";
            return Err(Failure::usage(
                problem,
                "a head of --layout mtp drafts the model's whole vocabulary",
            ));
        }
        (HeadArg::Eagle3, n_tokens) => HeadKind::Eagle3 { n_tokens: n_tokens.unwrap_or(32_000) as usize },
    };
    head::check_out(kind, &args.target, &args.out)?;
    let target = HeadTarget::read(&load::checkpoint(Some(&args.target))?)?;
    let (recorder, passages) = read(&args.target, &args.text)?;
    let states = kind.reads(recorder.engine().config().n_layers());
    let record = recorder.record_states(&passages, states, args.text.positions, recording())?;
    print_line!("{} positions of {} passages", record.len(), passages.len());
    let recipe = HeadRecipe {
        kind,
        steps: args.text.steps,
        passages: args.passages as usize,
        rate: 2e-3,
        seed: args.text.seed,
    };
    let losses = losses(recipe.steps, 20);
    let (trained, held_out) = head::train(&target, &passages, &record, &recipe, losses)?;
    for (depth, held_out) in (1..).zip(held_out) {
        print_line!("held out, depth {depth}: {held_out}");
    }
    head::write(&trained, &target, &args.target, &args.out)?;
    let prefix = if kind == HeadKind::Mtp { "mtp:" } else { "" };
    print_line!("{0}: use it with --draft {prefix}{0}", args.out.display());
    Ok(Exit::Done)
}

/// The target, and the passages of the text.
fn read(model: &std::path::Path, args: &TextArgs) -> Result<(Recorder, Vec<Passage>), Failure> {
    let checkpoint = load::checkpoint(Some(model))?;
    let recorder = Recorder::open(&checkpoint, args.threads)?;
    let len_max = recorder.len_max(args.passage as usize);
    let passages = text::read(&args.text, recorder.engine().tokenizer(), len_max)?;
    Ok((recorder, passages))
}

/// Shows the progress of recording.
fn recording() -> impl FnMut(usize, usize) {
    let progress = Progress::steps("recording the target");
    move |done, total| progress.set(done as u64, total as u64)
}

/// Prints about `n_lines` losses of `n_steps` steps.
fn losses(n_steps: usize, n_lines: usize) -> impl FnMut(usize, f64) {
    move |step, loss| {
        if step.is_multiple_of((n_steps / n_lines).max(1)) {
            print_line!("step {step} of {n_steps}: loss {loss:.3}");
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Load(error) => error.into(),
            Error::Generate(error) => error.into(),
            Error::Usage(problem) => Self::usage(problem, "choose another"),
            Error::TooFewPositions { .. } | Error::TooFewPassages { .. } => {
                Self::input(error, "give more text with --text")
            }
            Error::Text { .. } | Error::TextTooLong { .. } | Error::Row { .. } | Error::Encode(_) => {
                Self::input(error, "texts are files in UTF-8; rows have `prompt` and `response`")
            }
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
