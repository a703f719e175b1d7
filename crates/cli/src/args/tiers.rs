//! Which options `--help` shows: those of every day. `--help-all` adds the others by group. Knobs of tests are in neither, and work.

use clap::{Arg, Command};

/// Options of every command, and of those with a session, that `--help` leaves to `--help-all`.
const RARE: [&str; 24] = [
    "color",
    "config",
    "models",
    "pre-tokenizer",
    "key-file",
    // Texts and notes.
    "raw",
    "follow-links",
    "passages",
    // Models.
    "quantize",
    "kv",
    // Stores.
    "history",
    "prefixes",
    // Sampling.
    "seed",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "presence-penalty",
    "frequency-penalty",
    "dry-multiplier",
    // Grammars.
    "regex",
    "choice",
    "grammar",
    "grammar-after",
];

/// Knobs of tests: a simulated disk, a state of the device that nobody has reported, graphs without measured times.
const KNOBS: [&str; 4] = ["flash-bandwidth", "heat", "memory-pressure", "no-times"];

/// Options for experts, of any command, that `--help` leaves to `--help-all`.
const EXPERT: [&str; 47] = [
    // Kernels, static graphs and streaming.
    "no-map",
    "isa",
    "graph-memory",
    "graph-switching",
    "pinned-layers",
    // The parts of drafting.
    "window-cache",
    "pruning",
    "pruning-threshold",
    "calibration",
    "echo",
    "echo-rows",
    "echo-lists",
    "no-reuse",
    "reuse-threshold",
    "reuse-steps",
    "reuse-tokens",
    "verify-rows",
    "verify-len",
    "prefill-chunk",
    // The policy of drafting.
    "draft-rows",
    "acceptance-floor",
    "floor-window",
    "floor-pause",
    "draft-min-tokens",
    "draft-max-temp",
    "draft-min-memory",
    // Sampling and grammars.
    "dry-base",
    "dry-allowed-length",
    "dry-penalty-last-n",
    "dry-sequence-breaker",
    "logit-bias",
    "ignore-eos",
    "json-whitespace",
    // Servers, downloads and stores.
    "queue",
    "grace-time",
    "kept-prompts",
    "attempts",
    "stall-time",
    "conversation",
    "words",
    // Measurements of models, and their graphs.
    "contexts",
    "logits",
    "weights",
    "blocks",
    "prefill",
    "tokens",
    // Settings.
    "no-config",
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

    /// The long names of the options of `command` and those below it that `is_shown` takes.
    fn longs(command: &Command, is_shown: fn(&Arg) -> bool) -> BTreeSet<String> {
        let own = command.get_arguments().filter(|arg| is_shown(arg)).filter_map(Arg::get_long);
        let mut all: BTreeSet<String> = own.map(str::to_owned).collect();
        command.get_subcommands().for_each(|below| all.append(&mut longs(below, is_shown)));
        all
    }

    #[test]
    fn the_program_stays_small() {
        let mut command = command_line();
        command.build();
        let shown = longs(&command, |arg| !arg.is_hide_set());
        let n_commands = command.get_subcommands().count();
        assert!(n_commands <= 14, "{n_commands} commands");
        assert!(shown.len() <= 140, "{} options: {shown:?}", shown.len());
    }

    #[test]
    fn the_lists_name_options() {
        let all = longs(&command_line(), |_| true);
        for name in RARE.iter().chain(&EXPERT).chain(&KNOBS) {
            assert!(all.contains(*name), "{name}");
        }
        assert!(!RARE.iter().any(|name| EXPERT.contains(name) || KNOBS.contains(name)));
    }
}
