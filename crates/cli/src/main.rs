//! The program `refrain`: a thin client of the library.
//!
//! One module per command ([`run`], [`chat`], [`mod@ask`], [`mod@summarize`], [`mod@reply`], [`mod@edit`], [`mod@ui`], [`inspect`], [`score`],
//! [`mod@index`], [`mod@store`], [`mod@forget`], [`measure`], [`pack`], [`graphs`], [`serve`], [`mcp`], [`pull`], [`mod@models`],
//! [`manual`]); [`first`] is the program without a command, with the models that it suggests ([`mod@suggested`]). The commands share the options
//! ([`args`]), the assistant that runs their jobs ([`assisted`], [`report`]), a server that has its store ([`handed`], on its side [`host`]), their texts ([`input`], [`context`]), the turns of a conversation ([`editor`], [`conversations`]) and grammars ([`grammar`]), the notes of a server ([`notes`]), the sampling defaults ([`sampling`]),
//! their defaults ([`config`]), the key of the stores ([`key`]), loading ([`load`], [`setup`], [`span`], [`learned`], [`prices`], models by name: [`hub`], those of other tools: [`elsewhere`], those in memory: [`ps`]), and the output ([`stats`], [`terminal`], [`progress`],
//! [`failure`]).

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "`terminal` owns the screen")]

mod args;
mod ask;
mod assisted;
mod chat;
mod config;
mod context;
mod conversations;
mod edit;
mod editor;
mod elsewhere;
mod embedder;
mod first;
mod forget;
mod grammar;
mod graphs;
mod handed;
mod host;
mod hub;
mod index;
mod input;
mod inspect;
mod interrupt;
mod learned;
mod manual;
mod mcp;
mod measure;
mod models;
mod notes;
mod pack;
mod prices;
mod ps;
mod pull;
mod reply;
mod report;
mod run;
mod sampling;
mod score;
mod serve;
mod setup;
mod span;
mod stats;
mod store;
mod suggested;
mod summarize;
mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Command, ConfigArgs, ConfigCommand, ModelCommand};
use failure::{Exit, Failure};
use interrupt::Interrupt;
use refrain_program::start;
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
    key::set_file(cli.key_file.clone());
    let interrupt = Interrupt::install()?;
    match &cli.command {
        Command::Run(args) => run::run(args, &interrupt),
        Command::Chat(args) => chat::chat(args, &interrupt),
        Command::Ask(args) => ask::ask(args, &interrupt),
        Command::Summarize(args) => summarize::summarize(args, &interrupt),
        Command::Reply(args) => reply::reply(args, &interrupt),
        Command::Edit(args) => edit::edit(args, &interrupt),
        Command::Ui(args) => ui::ui(args, &interrupt),
        Command::Serve(args) => serve::serve(args, &interrupt),
        Command::Mcp(args) => mcp::mcp(args, &interrupt),
        Command::Model(args) => model(&args.command, &interrupt),
        Command::Index(args) => index::index(args, &interrupt),
        Command::Store(args) => store::store(args),
        Command::Forget(args) => forget::forget(args, &interrupt),
        Command::Config(ConfigArgs { command }) => match command {
            None => config::show(&args),
            Some(ConfigCommand::Completions(args)) => manual::completions(args),
            Some(ConfigCommand::Man(args)) => manual::man(args),
        },
    }
}

fn model(command: &ModelCommand, interrupt: &Interrupt) -> Result<Exit, Failure> {
    match command {
        ModelCommand::Pull(args) => pull::pull(args, interrupt),
        ModelCommand::List(args) => models::list(args),
        ModelCommand::Suggest(args) => suggested::suggest(args),
        ModelCommand::Ps(args) => ps::ps(args),
        ModelCommand::Rm(args) => models::remove(args),
        ModelCommand::Inspect(args) => inspect::inspect(args),
        ModelCommand::Pack(args) => pack::pack(args),
        ModelCommand::Profile(args) => measure::profile(args),
        ModelCommand::Score(args) => score::score(args, interrupt),
        ModelCommand::Graphs(args) => graphs::graphs(args),
    }
}
