//! The program `refrain`: a thin client of the library.
//!
//! One module per command ([`run`], [`chat`], [`inspect`], [`score`], [`bench`], [`history`], [`mod@index`],
//! [`profile`], [`pack`], [`graphs`], [`stream`], [`pruning`], [`train`]). The commands share the options
//! ([`args`]), the prompt ([`prompt`], [`context`], [`fit`], [`grammar`]), the sampling defaults ([`sampling`]),
//! loading ([`load`], [`setup`], [`learned`]), and the output ([`answer`], [`stats`], [`terminal`], [`progress`],
//! [`failure`]).

mod answer;
mod args;
mod bench;
mod chat;
mod context;
mod failure;
mod fit;
mod grammar;
mod graphs;
mod history;
mod index;
mod inspect;
mod interrupt;
mod learned;
mod load;
mod pack;
mod prefixes;
mod profile;
mod progress;
mod prompt;
mod pruning;
mod run;
mod sampling;
mod score;
mod setup;
mod stats;
mod stream;
mod terminal;
mod train;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::{Exit, Failure};
use interrupt::Interrupt;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    terminal::set_color(cli.color.choice());
    match dispatch(&cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

fn dispatch(command: &Command) -> Result<Exit, Failure> {
    let interrupt = Interrupt::install()?;
    match command {
        Command::Run(args) => run::run(args, &interrupt),
        Command::Chat(args) => chat::chat(args, &interrupt),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Score(args) => score::score(args, &interrupt),
        Command::History(args) => history::history(args),
        Command::Index(args) => index::index(args, &interrupt),
        Command::Bench(args) => bench::bench(args),
        Command::Train(args) => train::train(args),
        Command::Profile(args) => profile::profile(args),
        Command::Pack(args) => pack::pack(args),
        Command::Graphs(args) => graphs::graphs(args),
    }
}
