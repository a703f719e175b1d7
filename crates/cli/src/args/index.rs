//! The options of stored notes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use refrain_index::notes::{absolute, parse_date};
use refrain_index::{NoteFilter, SourceKind};
use refrain_program::args::bytes;

#[derive(Debug, Args)]
pub(crate) struct IndexCommandArgs {
    #[command(subcommand)]
    pub(crate) command: IndexCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Add files and folders to the index: notes (.md, .txt), mail (.eml, .mbox), chats (.jsonl), screens (.xml, .screen), calendars (.ics).
    Add(IndexPathsArgs),
    /// Compare the index with the files, and read what has changed.
    Update(IndexUpdateArgs),
    /// Keep the index up to date until Ctrl-C.
    Watch(IndexUpdateArgs),
    /// Search the notes.
    Search(Box<IndexSearchArgs>),
    /// Show the contents of the index.
    Status(IndexStatusArgs),
    /// Remove files and folders from the index, with every byte of their text, and do not read them again. The files stay.
    /// `refrain forget` also deletes the answers, summaries and computed prompts that were made from them.
    Forget(IndexForgetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct IndexFolderArgs {
    /// The folder of the index.
    ///
    /// The default is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) index: Option<PathBuf>,
}

/// The options of commands that read notes.
#[derive(Debug, Args)]
pub(crate) struct IndexReadArgs {
    #[command(flatten)]
    pub(crate) folder: IndexFolderArgs,
    /// Skip files longer than this, such as 20MB [default: 8MiB].
    ///
    /// Remembered.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) max_bytes: Option<u64>,
    /// The languages of the notes, as codes (`en,de`), or `all` [default: all].
    ///
    /// The language of each note is detected among them. Remembered.
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub(crate) languages: Vec<String>,
    /// Follow links that lead out of the added files and folders.
    ///
    /// `=false` skips them, as without the option. Remembered.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) follow_links: Option<bool>,
    /// Store token ids for this model, so that `ask` need not tokenize passages.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Store vectors of this model, so that searches find by meaning too; `none` ends it.
    ///
    /// A sentence encoder such as all-MiniLM-L6-v2, or a decoder such as Qwen3-Embedding. Without it, the model that
    /// `refrain model pull sentence-transformers/all-MiniLM-L6-v2` gets is used once it is there. Remembered.
    #[arg(long, value_name = "MODEL")]
    pub(crate) embedder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct IndexPathsArgs {
    /// Files and folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) read: IndexReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IndexUpdateArgs {
    /// Read every file, even if its length and times are the same.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) read: IndexReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IndexForgetArgs {
    /// Files and folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) folder: IndexFolderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IndexStatusArgs {
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) folder: IndexFolderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct IndexSearchArgs {
    /// The request, as plain text.
    pub(crate) request: String,
    /// Maximum number of passages.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 5)]
    pub(crate) passages: usize,
    /// One JSON object per passage.
    #[arg(long)]
    pub(crate) json: bool,
    /// Search by words alone, also if vectors are stored.
    #[arg(long)]
    pub(crate) words: bool,
    #[command(flatten)]
    pub(crate) filter: IndexFilterArgs,
    #[command(flatten)]
    pub(crate) folder: IndexFolderArgs,
}

/// Conditions on passages.
#[derive(Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct IndexFilterArgs {
    /// Only this kind of source: note, mail, chat, screen, event, document, data or code.
    ///
    /// May be repeated.
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<SourceKind>,
    /// Only this file, or files in this folder; `document:/ID` is a text that an app has put. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) within: Vec<PathBuf>,
    /// Only from a date up to one: `2024-05-01..2024-05-31` (UTC).
    ///
    /// Both are included, and one may be left out: `2024-05-01T12:30..`, `..2024-05-31`.
    #[arg(long, value_name = "FROM..UNTIL", value_parser = dates)]
    pub(crate) dates: Option<Dates>,
    /// Only with this tag, or with one of several. May be repeated.
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
}

impl IndexFilterArgs {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The conditions. Paths are as the index has them.
    pub(crate) fn filter(&self) -> NoteFilter {
        let dates = self.dates.unwrap_or(Dates { from: None, until: None });
        // One that cannot be absolute is refused by the search.
        let within = self.within.iter().map(|path| absolute(path).unwrap_or_else(|_| path.clone()));
        NoteFilter {
            kinds: self.kind.clone(),
            folders: within.collect(),
            from: dates.from,
            until: dates.until,
            tags: self.tag.clone(),
        }
    }
}

pub(super) fn date(text: &str) -> Result<i64, String> {
    parse_date(text).ok_or_else(|| format!("`{text}` is no date like 2024-05-01"))
}

/// The first and the last second; a day without a time counts as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dates {
    pub(crate) from: Option<i64>,
    pub(crate) until: Option<i64>,
}

fn dates(text: &str) -> Result<Dates, String> {
    let (from, until) = text.split_once("..").ok_or("write FROM..UNTIL; one of them may be left out")?;
    let given = |text: &str| (!text.is_empty()).then(|| date(text)).transpose();
    let is_day = !until.contains([':', 'T']);
    let end = |seconds: i64| if is_day { seconds + 86_399 } else { seconds };
    Ok(Dates { from: given(from)?, until: given(until)?.map(end) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_open_on_either_side() {
        let day = date("2024-05-01").unwrap();
        assert_eq!(dates("2024-05-01.."), Ok(Dates { from: Some(day), until: None }));
        assert_eq!(dates("..2024-05-01"), Ok(Dates { from: None, until: Some(day + 86_399) }));
        let hour = dates("2024-05-01..2024-05-01T01:00").unwrap();
        assert_eq!((hour.from, hour.until), (Some(day), Some(day + 3600)));
        assert!(dates("2024-05-01").is_err() && dates("soon..").is_err());
    }
}
