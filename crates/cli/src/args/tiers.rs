//! Which options `--help` shows: those of every day. `--help-all` adds the others by group. A knob of tests is in neither, and works.

use clap::{Arg, Command};

/// Options of every command, and of those with a session, that `--help` leaves to `--help-all`.
const RARE: [&str; 16] = [
    "color",
    "config",
    "models",
    "pre-tokenizer",
    "key-file",
    // Texts and notes.
    "raw",
    "passages",
    // Models.
    "quantize",
    "kv",
    // Sampling.
    "seed",
    "top-k",
    "top-p",
    "min-p",
    // Grammars.
    "regex",
    "choice",
    "grammar",
];

/// Knobs of tests: a simulated disk.
const KNOBS: [&str; 1] = ["flash-bandwidth"];

/// Options for experts, of any command, that `--help` leaves to `--help-all`.
const EXPERT: [&str; 20] = [
    // Kernels, static graphs and streaming.
    "map",
    "isa",
    "graph-memory",
    "pinned-layers",
    // Drafting.
    "window-cache",
    "pruning",
    "drafting",
    // Sampling and grammars.
    "penalty",
    "logit-bias",
    "ignore-eos",
    "grammar-after",
    // Servers, downloads and stores.
    "limits",
    "attempts",
    "conversation",
    "words",
    // Measurements of models, and their graphs.
    "contexts",
    "logits",
    "weights",
    "blocks",
    "prefill",
];

/// `command` and those below it, with each option in its tier.
pub(super) fn apply(command: Command) -> Command {
    let has_session = command.get_arguments().any(|arg| arg.get_long() == Some("ctx"));
    let place = |arg: Arg| match arg.get_long() {
        Some(long) if KNOBS.contains(&long) => arg.hide(true),
        Some(long) if EXPERT.contains(&long) => arg.hide_short_help(true),
        Some(long) if RARE.contains(&long) && (has_session || arg.is_global_set()) => {
            arg.hide_short_help(true)
        }
        _ => arg,
    };
    command.mut_args(place).mut_subcommands(apply)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::command_line;
    use super::*;

    /// The long names of the options of `command` and those below it, hidden ones included.
    fn longs(command: &Command) -> BTreeSet<String> {
        let own = command.get_arguments().filter_map(Arg::get_long);
        let mut all: BTreeSet<String> = own.map(str::to_owned).collect();
        command.get_subcommands().for_each(|below| all.append(&mut longs(below)));
        all
    }

    #[test]
    fn the_program_stays_small() {
        let mut command = command_line();
        command.build();
        let all = longs(&command);
        let n_commands = command.get_subcommands().count();
        assert!(n_commands <= 14, "{n_commands} commands");
        assert!(all.len() <= 90, "{} options: {all:?}", all.len());
    }

    #[test]
    fn the_lists_name_options() {
        let all = longs(&command_line());
        for name in RARE.iter().chain(&EXPERT).chain(&KNOBS) {
            assert!(all.contains(*name), "{name}");
        }
        assert!(!RARE.iter().any(|name| EXPERT.contains(name) || KNOBS.contains(name)));
    }
}
