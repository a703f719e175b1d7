//! The program `refrain`: a thin client of the library.
//!
//! One module per command ([`run`], [`chat`], [`inspect`], [`score`], [`bench`], [`history`], [`mod@prefixes`], [`mod@index`], [`mod@forget`],
//! [`profile`], [`pack`], [`graphs`], [`stream`], [`pruning`], [`train`], [`serve`], [`mcp`], [`pull`], [`mod@models`],
//! [`manual`]); [`first`] is the program without a command. The commands share the options
//! ([`args`]), the prompt ([`prompt`], [`context`], [`fit`], [`grammar`]), the notes of a server ([`notes`]), the sampling defaults ([`sampling`]),
//! their defaults ([`config`]), the key of the stores ([`key`]), loading ([`load`], [`setup`], [`learned`], models by name: [`hub`]), and the output ([`answer`], [`stats`], [`terminal`], [`progress`],
//! [`failure`]).

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "`terminal` owns the screen")]

mod answer;
mod args;
mod assist;
mod bench;
mod chat;
mod config;
mod context;
mod failure;
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
mod key;
mod learned;
mod load;
mod manual;
mod mcp;
mod models;
mod notes;
mod pack;
mod prefixes;
mod profile;
mod progress;
mod prompt;
mod pruning;
mod pull;
mod run;
mod sampling;
mod score;
mod serve;
mod setup;
mod stats;
mod stream;
mod terminal;
mod trace;
mod train;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;
use failure::{Exit, Failure};
use interrupt::Interrupt;
use refrain::internals::kernels::{MEMORY_MARGIN, has_room};

fn main() -> ExitCode {
    match run_program() {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

/// Memory that every command needs. With less, the process would end in the middle of an allocation.
const MEMORY_MIN: usize = 48 << 20;

/// Checks that the system gives memory, before the first command allocates some.
fn check_memory() -> Result<(), Failure> {
    if has_room(MEMORY_MIN) {
        return Ok(());
    }
    let needed = (MEMORY_MIN + MEMORY_MARGIN) >> 20;
    let problem = format!("the system gives this program less than {needed} MiB of memory");
    Err(Failure::new(Exit::Failed, format!("{problem} (raise the limit of its address space: `ulimit -v`)")))
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
        Command::Bench(args) => bench::bench(args),
        Command::Train(args) => train::train(args),
        Command::Profile(args) => profile::profile(args),
        Command::Pack(args) => pack::pack(args),
        Command::Graphs(args) => graphs::graphs(args),
        Command::Config => config::show(&args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
    }
}
