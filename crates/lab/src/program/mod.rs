//! The program `refrain-bench`.

mod args;
mod graphs;
mod import;
mod pruning;
mod replay;
mod stream;
mod trace;

use std::process::ExitCode;

use refrain_program::start;

use args::{Cli, Command};

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    start::run(|| {
        let cli: Cli = start::parse(std::env::args_os())?;
        cli.globals.set();
        match &cli.command {
            Command::Replay(args) => replay::run(args),
            Command::Import(args) => import::run(args),
            Command::Floor(args) => replay::floor(args),
            Command::Trace(args) => trace::bench(args),
            Command::Ablate(args) => replay::ablate(args),
            Command::Tune(args) => replay::tune(args),
            Command::Graphs(args) => graphs::bench(args),
            Command::Stream(args) => stream::bench(args),
            Command::Pruning(args) => pruning::bench(args),
            Command::Fleet(args) => replay::fleet(args),
            Command::Pressure(args) => stream::pressure(args),
        }
    })
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
