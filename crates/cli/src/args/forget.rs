//! The options of `forget`.

use std::path::PathBuf;

use clap::Args;

use super::index::date;

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Notes: files, or folders with everything below them.
    ///
    /// The files stay. Their text goes from the index of notes too.
    #[arg(value_name = "NOTE", required_unless_present_any = ["conversation", "before", "all"])]
    pub(crate) paths: Vec<PathBuf>,
    /// A conversation, by the number that `chat` or an app has given it.
    ///
    /// May be repeated.
    #[arg(long, value_name = "ID")]
    pub(crate) conversation: Vec<u64>,
    /// Everything that was made before this date (`2024-05-01`; UTC).
    ///
    /// Or `2024-05-01T12:30`. Also what has a date in the future, whatever it was made from. Computed prompts go if they were not used
    /// since. Notes stay in the index.
    #[arg(long, value_name = "DATE", value_parser = date, conflicts_with_all = ["paths", "conversation"])]
    pub(crate) before: Option<i64>,
    /// Everything, and all notes of the index.
    ///
    /// With --store and without --notes, the index is left as it is.
    #[arg(long, conflicts_with_all = ["paths", "conversation", "before"])]
    pub(crate) all: bool,
    /// One JSON object with the numbers of what was deleted.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where answers and computed prompts are kept.
    ///
    /// The default is `refrain/assistant` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// The index of notes.
    ///
    /// The default is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
}
