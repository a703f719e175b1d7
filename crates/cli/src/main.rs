//! The program `refrain`: a thin client of the library.
//!
//! One module per command ([`run`], [`chat`], [`inspect`], [`score`], [`history`], [`mod@prefixes`], [`mod@index`], [`mod@forget`],
//! [`measure`], [`pack`], [`graphs`], [`serve`], [`mcp`], [`pull`], [`mod@models`],
//! [`manual`]); [`first`] is the program without a command. The commands share the options
//! ([`args`]), the prompt ([`prompt`], [`context`], [`fit`], [`grammar`]), the notes of a server ([`notes`]), the sampling defaults ([`sampling`]),
//! their defaults ([`config`]), the key of the stores ([`key`]), loading ([`load`], [`setup`], [`learned`], models by name: [`hub`]), and the output ([`answer`], [`stats`], [`terminal`], [`progress`],
//! [`failure`]).

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "`terminal` owns the screen")]

mod answer;
mod args;
mod assist;
mod chat;
mod config;
mod context;
mod first;
mod fit;
mod forget;
mod grammar;
mod graphs;
mod history;
mod hub;
mod index;
mod inspect;
mod interrupt;
mod learned;
mod manual;
mod mcp;
mod measure;
mod models;
mod notes;
mod pack;
mod prefixes;

mod prompt;
mod pull;
mod run;
mod sampling;
mod score;
mod serve;
mod setup;
mod stats;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;
use failure::{Exit, Failure};
use interrupt::Interrupt;
use refrain_program::start::{self, check_memory};
use refrain_program::{failure, key, load, profile, progress, terminal};

fn main() -> ExitCode {
    start::run(run_program)
}

fn run_program() -> Result<Exit, Failure> {
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.len() == 1 && first::is_wanted()? {
        return first::choose(&Interrupt::install()?);
    }
    // Until the end of the program: a server loads its models again with the same options.
    let cli: &'static args::Cli = Box::leak(Box::new(config::parse(&args)?));
    terminal::set_color(cli.color.choice());
    models::set_folder(cli.models.clone());
    load::set_locate(models::located);
    load::set_pre_tokenizer(cli.pre_tokenizer.clone());
    check_memory()?;
    key::set_file(cli.key_file.clone());
    let interrupt = Interrupt::install()?;
    match &cli.command {
        Command::Ask(args) => assist::ask(args, &interrupt),
        Command::Summarize(args) => assist::summarize(args, &interrupt),
        Command::Reply(args) => assist::reply(args, &interrupt),
        Command::Edit(args) => assist::edit(args, &interrupt),
        Command::Ui(args) => assist::ui(args, &interrupt),
        Command::Forget(args) => forget::forget(args),
        Command::Run(args) => run::run(args, &interrupt),
        Command::Chat(args) => chat::chat(args, &interrupt),
        Command::Serve(args) => serve::serve(args, &interrupt),
        Command::Pull(args) => pull::pull(args, &interrupt),
        Command::Models(args) => models::models(args),
        Command::Mcp(args) => mcp::mcp(args, &interrupt),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Score(args) => score::score(args, &interrupt),
        Command::History(args) => history::history(args),
        Command::Prefixes(args) => prefixes::prefixes(args),
        Command::Index(args) => index::index(args, &interrupt),
        Command::Profile(args) => measure::profile(args),
        Command::Pack(args) => pack::pack(args),
        Command::Graphs(args) => graphs::graphs(args),
        Command::Config => config::show(&args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
    }
}
