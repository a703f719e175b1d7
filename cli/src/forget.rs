//! `refrain forget`: deletes what the assistant's commands have kept.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain_assistant::{ConversationId, Forget, ForgetError, Forgotten, StoreError, forget as forget_in};
use serde_json::json;

use crate::args::ForgetKeptArgs;
use crate::failure::{Exit, Failure};
use crate::history::data_folder;
use crate::terminal::{AnswerStream, note};

pub(crate) fn forget(args: &ForgetKeptArgs) -> Result<Exit, Failure> {
    let store = folder(args.store.as_deref(), "assistant", "--store")?;
    let index = folder(args.notes.as_deref(), "notes", "--notes")?;
    let mut all = Forgotten::default();
    for what in wanted(args) {
        let Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending, .. } =
            forget_in(store.as_deref(), index.as_deref(), what)?;
        all.n_answers += n_answers;
        all.n_summaries += n_summaries;
        all.n_prefix_blocks += n_prefix_blocks;
        all.is_notes_pending |= is_notes_pending;
    }
    if args.json {
        let json = json!({
            "answers": all.n_answers,
            "summaries": all.n_summaries,
            "prefix_blocks": all.n_prefix_blocks,
            "notes_pending": all.is_notes_pending,
        });
        AnswerStream::stdout().line(&json.to_string())?;
    } else {
        let Forgotten { n_answers, n_summaries, n_prefix_blocks, .. } = all;
        note(&format!(
            "deleted: {n_answers} answers, {n_summaries} summaries, {n_prefix_blocks} blocks of computed prompts"
        ));
    }
    if all.is_notes_pending {
        note("another process writes the index and will forget the notes; until then, their text is there");
    }
    Ok(Exit::Done)
}

fn wanted(args: &ForgetKeptArgs) -> Vec<Forget> {
    if args.all {
        return vec![Forget::Everything];
    }
    let notes = args.paths.iter().cloned().map(Forget::Note);
    let conversations = args.conversation.iter().map(|&id| Forget::Conversation(ConversationId(id)));
    // A time before 1970 is before everything.
    let seconds = |seconds: i64| Duration::from_secs(seconds.max(0).unsigned_abs());
    let before = args.before.map(|time| Forget::Before(SystemTime::UNIX_EPOCH + seconds(time)));
    notes.chain(conversations).chain(before).collect()
}

/// The folder that the user has named, or the default one; `None` if there is no default one. A named one must exist.
fn folder(named: Option<&Path>, default: &str, option: &str) -> Result<Option<PathBuf>, Failure> {
    match named {
        None => Ok(data_folder(default)),
        Some(folder) if folder.is_dir() => Ok(Some(folder.to_owned())),
        Some(folder) => {
            let problem = format!("`{}` is no folder", folder.display());
            Err(Failure::input(problem, &format!("check {option}")))
        }
    }
}

impl From<ForgetError> for Failure {
    fn from(error: ForgetError) -> Self {
        match error {
            ForgetError::Notes(error) => error.into(),
            ForgetError::Store(error @ StoreError::InUse { .. }) => {
                Self::input(error, "nothing is deleted: wait for the other process to end")
            }
            error => Self::new(
                Exit::Failed,
                format!("{error} (the rest is deleted when the store is next opened)"),
            ),
        }
    }
}
