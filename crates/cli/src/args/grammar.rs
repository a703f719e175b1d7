//! The options of grammars.

use std::path::PathBuf;

use clap::Args;

/// The grammar of the answers. At most one kind is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Grammar")]
pub(crate) struct GrammarArgs {
    /// Answer in JSON under this schema.
    ///
    /// A file, or the schema itself.
    #[arg(long, value_name = "FILE|TEXT", conflicts_with_all = ["regex", "choice", "grammar"])]
    pub(crate) json_schema: Option<String>,
    /// Answer with a text that this regular expression matches as a whole.
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true, conflicts_with_all = ["choice", "grammar"])]
    pub(crate) regex: Option<String>,
    /// Answer with this text, or that of another --choice. May be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "grammar")]
    pub(crate) choice: Vec<String>,
    /// Answer in the language of a grammar in Lark or GBNF.
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<PathBuf>,
    /// The grammar starts after this text, such as `</think>`.
    ///
    /// The text before it is free.
    #[arg(long, value_name = "MARKER", allow_hyphen_values = true)]
    pub(crate) grammar_after: Option<String>,
}
