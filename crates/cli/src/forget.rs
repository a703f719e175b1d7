//! `refrain forget`: deletes what was kept of answers, and the notes' text in the index.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use refrain_assistant::{ConversationId, Forget, Forgotten};
use serde_json::json;

use crate::args::ForgetArgs;
use crate::failure::{Exit, Failure};
use crate::handed::{Places, by_server};
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::store::folder;
use crate::terminal::{AnswerStream, note};

pub(crate) fn forget(args: &ForgetArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let (store, index) = folders(args)?;
    if let Some(store) = &store
        && let Some(exit) = by_server(
            store,
            &Places { notes: index.clone(), model: None },
            None,
            interrupt,
            "ended by Ctrl-C; what the server has begun to delete, it deletes",
        )?
    {
        return Ok(exit);
    }
    let key = key()?;
    forget_with(args, |what| {
        Ok(refrain_assistant::forget(store.as_deref(), index.as_deref(), key.as_ref(), what)?)
    })
}

/// The folders of the store and of the index.
fn folders(args: &ForgetArgs) -> Result<(Option<PathBuf>, Option<PathBuf>), Failure> {
    let store = folder(args.store.as_deref(), "assistant", "--store")?;
    // Who names a store with --all means that store, not the notes of all programs.
    let index = match args.all && args.store.is_some() && args.notes.is_none() {
        true => None,
        false => folder(args.notes.as_deref(), "notes", "--notes")?,
    };
    Ok((store, index))
}

/// Deletes with a function, and tells what was deleted.
pub(crate) fn forget_with(
    args: &ForgetArgs,
    delete: impl FnOnce(Vec<Forget>) -> Result<Forgotten, Failure>,
) -> Result<Exit, Failure> {
    let all = delete(wanted(args))?;
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

fn wanted(args: &ForgetArgs) -> Vec<Forget> {
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
