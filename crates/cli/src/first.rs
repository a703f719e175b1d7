//! `refrain` without a command, on a terminal, before there is a default model: a guided choice.
//!
//! What is shown is computed from the [suggestions](crate::suggested) and from this machine.

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use console::{Key, Term};
use refrain::checkpoint::Checkpoint;
use refrain::internals::engine::ReadRate;
use refrain::internals::stream::available_bytes;

use crate::args::{Cli, Command, ModelCommand, ModelCommandArgs};
use crate::config;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::models;
use crate::pull::download_with_progress;
use crate::suggested::{Suggestion, suggested_embedder, suggestions};
use crate::terminal::{AnswerStream, line_entered, note, visible, write_error};
use refrain_program::args::bytes_text;

/// Tokens a second from which on an answer is written as fast as most people read.
const FLUENT: f64 = 8.0;

/// Whether a person is there to choose, and there is nothing chosen yet.
///
/// # Errors
/// The file with defaults cannot be used.
pub(crate) fn is_wanted() -> Result<bool, Failure> {
    let is_person = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    Ok(is_person && config::default_of("chat", "model")?.is_none())
}

/// Shows the suggestions, downloads the chosen one and makes it the default model.
pub(crate) fn choose(interrupt: &Interrupt) -> Result<Exit, Failure> {
    let all = suggestions();
    let rate = ReadRate::measure().ok().flatten().map(|rate| rate.bytes_per_s);
    let free = available_bytes();
    let best = recommended(&all, rate, free);
    let mut out = AnswerStream::stdout();
    out.line(
        "Refrain runs a language model on this device, and none is chosen yet. These can be downloaded:",
    )?;
    out.line("")?;
    for (index, model) in all.iter().enumerate() {
        for line in described(index, model, rate, free, index == best).lines() {
            out.line(line)?;
        }
    }
    out.line("")?;
    let embedder = suggested_embedder();
    out.line(&format!(
        "Beside any of them, {} ({}; {}): `refrain model pull {}`",
        embedder.title,
        embedder.r#for,
        bytes_text(embedder.bytes),
        embedder.repo
    ))?;
    out.line("Sizes and speeds are approximate. Speeds are bounds from the rate at which this machine reads memory; drafts exceed them.")?;
    let question = format!(
        "A key from 1 to {} downloads a model, Enter number {}, any other key none: ",
        all.len(),
        best + 1
    );
    let Some(chosen) = read_choice(&question, all.len(), best)? else {
        note(
            "no model is chosen; `refrain --help` lists the commands, `refrain model pull OWNER/NAME` gets any model",
        );
        return Ok(Exit::Done);
    };
    let name = all[chosen].name();
    // As the command `pull`, with its defaults.
    let args: Vec<OsString> = ["refrain", "model", "pull", &name].map(OsString::from).into();
    let cli: Cli = config::parse(&args)?;
    models::set_folder(cli.models.clone());
    let Command::Model(ModelCommandArgs { command: ModelCommand::Pull(args) }) = &cli.command else {
        unreachable!("that is the command")
    };
    let Some(pulled) = download_with_progress(args, interrupt)? else { return Ok(Exit::Interrupted) };
    Checkpoint::open(&pulled.path)?;
    let file = config::remember_model(&pulled.name)?;
    out.line(&visible(&format!("{} is the default model from now on ({})", pulled.name, file.display())))?;
    out.line("`refrain chat` starts a conversation, `refrain --help` lists the commands")?;
    Ok(Exit::Done)
}

/// The largest model that is fluent and leaves memory free; else the smallest.
fn recommended(all: &[Suggestion], rate: Option<f64>, free: Option<u64>) -> usize {
    let fits = |model: &Suggestion| {
        rate.is_some_and(|rate| model.tokens_per_s(rate) >= FLUENT)
            && free.is_none_or(|free| model.memory_bytes() <= free / 4 * 3)
    };
    let by_size = |&index: &usize| all[index].bytes;
    let fitting = (0..all.len()).filter(|&index| fits(&all[index])).max_by_key(by_size);
    fitting.or_else(|| (0..all.len()).min_by_key(by_size)).unwrap_or(0)
}

fn described(
    index: usize,
    model: &Suggestion,
    rate: Option<f64>,
    free: Option<u64>,
    is_best: bool,
) -> String {
    let speed = match rate.map(|rate| model.tokens_per_s(rate)) {
        Some(speed) if speed >= 10.0 => format!("up to {speed:.0} tokens/s here"),
        Some(speed) => format!("up to {speed:.1} tokens/s here"),
        None => "speed unknown".to_owned(),
    };
    let memory = model.memory_bytes();
    let is_large = free.is_some_and(|free| memory > free);
    let room = if is_large { ", more than is free now" } else { "" };
    let mark = if is_best { " (suggested)" } else { "" };
    format!(
        "  {}  {}{mark}: {}\n     {} to download, {} of memory{room}, {speed}\n",
        index + 1,
        model.title,
        model.r#for,
        bytes_text(model.bytes),
        bytes_text(memory)
    )
}

/// The number of the chosen suggestion; `None` for none.
fn read_choice(question: &str, n: usize, best: usize) -> io::Result<Option<usize>> {
    write_error(question);
    let key = Term::stderr().read_key();
    write_error("\n");
    line_entered();
    Ok(match key? {
        Key::Enter => Some(best),
        Key::Char(key) => key
            .to_digit(10)
            .map(|digit| digit as usize)
            .filter(|digit| (1..=n).contains(digit))
            .map(|digit| digit - 1),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_fluent_model_that_fits_is_recommended() {
        let all = suggestions();
        let gb = 1_000_000_000;
        assert_eq!(recommended(&all, Some(1000e9), Some(64 * gb)), all.len() - 1);
        assert_eq!(recommended(&all, Some(1000e9), Some(gb)), 0, "memory");
        assert_eq!(recommended(&all, Some(10.0 * all[1].bytes as f64), Some(64 * gb)), 1, "speed");
        assert_eq!(recommended(&all, Some(1e9), Some(64 * gb)), 0, "none is fluent");
        assert_eq!(recommended(&all, None, None), 0, "nothing is known");
        let text = described(1, &all[1], Some(8.0 * all[1].bytes as f64), Some(gb), true);
        assert!(
            text.starts_with("  2  ")
                && text.contains("(suggested)")
                && text.contains("more than is free now"),
            "{text}"
        );
        assert!(
            text.contains("1.1 GB to download, 1.9 GB of memory") && text.contains("up to 8.0 tokens/s here"),
            "{text}"
        );
    }
}
