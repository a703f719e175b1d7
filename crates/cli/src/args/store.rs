//! The options of `store`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where answers and computed prompts are kept.
    ///
    /// The default is `refrain/assistant` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// The index of notes, which names the notes that answers were made from.
    ///
    /// The default is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
}
