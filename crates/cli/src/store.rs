//! `refrain store`: what the store holds, and its budget.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use refrain_assistant::{Assistant, StoreError, StoreStatus, StoredKind, store_status};
use refrain_index::NotesIndex;
use serde_json::json;

use crate::args::StoreArgs;
use crate::failure::{Exit, Failure};
use crate::hub::free_bytes;
use crate::index::utc;
use crate::key::{KEY_ADVICE, key};
use crate::terminal::{AnswerStream, note, visible};
use refrain_program::args::bytes_text;
use refrain_program::place::data_folder;

/// Maximum bytes of computed prompts in a store. Answers and texts have bounds of their own, far below.
const BUDGET: u64 = 1 << 30;
/// The computed prompts take at most this part of what the disk has left, with them.
const SHARE_OF_FREE: u64 = 20;
/// Notes that are listed; further ones are counted.
const NOTES_MAX: usize = 10;

/// Maximum bytes of the computed prompts of the store in a folder: 1 GiB, and at most 5 % of the free disk.
pub(crate) fn budget(store: &Path) -> u64 {
    // A folder that is not there yet will be on the disk of the next one above.
    let Some(free) = store.ancestors().find_map(free_bytes) else { return BUDGET };
    let own = store_bytes(store);
    BUDGET.min(free.saturating_add(own) / SHARE_OF_FREE)
}

/// Says what was evicted since the last call.
pub(crate) fn note_evicted(assistant: &Assistant) {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let evicted = assistant.evicted_bytes();
    let before = SAID.swap(evicted, Ordering::Relaxed);
    // After a change of the model, the store is open anew, and counts from 0.
    let before = if evicted < before { 0 } else { before };
    if evicted > before {
        note(&format!(
            "the longest unused computed prompts are evicted, {}: `refrain store` shows the store and its limit",
            bytes_text(evicted - before)
        ));
    }
}

/// Bytes of the computed prompts.
fn store_bytes(store: &Path) -> u64 {
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    // prefixes/KEY/NAMESPACE/BLOCK
    let files =
        below(store.join("prefixes")).flat_map(|key| below(key.path())).flat_map(|name| below(name.path()));
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

pub(crate) fn store(args: &StoreArgs) -> Result<Exit, Failure> {
    let Some(store) = folder(args.store.as_deref(), "assistant", "--store")? else {
        return Err(Failure::usage("there is no default folder", "name one with --store"));
    };
    let key = key()?;
    let index = folder(args.notes.as_deref(), "notes", "--notes")?;
    // Without an index, notes have no names here.
    let index = index.and_then(|index| NotesIndex::open_with_key(&index, key.as_ref()).ok());
    let files = index.and_then(|index| index.files().ok()).unwrap_or_default();
    let status = store_status(&store, key.as_ref(), files.into_iter().map(|file| file.path));
    let status = status.map_err(|error| match error {
        error @ StoreError::Key { .. } => Failure::input(error, KEY_ADVICE),
        error => Failure::new(Exit::Failed, format!("{error} (check the folder and the disk)")),
    })?;
    let budget = budget(&store);
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&as_json(&store, &status, budget).to_string())?;
        return Ok(Exit::Done);
    }
    out.line(&visible(&format!("store             {}", store.display())))?;
    for kind in &status.kinds {
        let (name, unit) = match kind.kind {
            StoredKind::Answers => ("answers", ""),
            StoredKind::Summaries => ("summaries", ""),
            StoredKind::Prefixes => ("computed prompts", " tokens"),
            StoredKind::Replaced => ("replaced texts", ""),
            StoredKind::Typed => ("typed lines", ""),
            _ => ("others", ""),
        };
        let n = kind.n.map(|n| format!(", {n}{unit}")).unwrap_or_default();
        let oldest = kind.oldest.map(|oldest| format!(", the oldest of {}", day(oldest))).unwrap_or_default();
        out.line(&format!("{name:<16}  {:>9}{n}{oldest}", bytes_text(kind.bytes)))?;
    }
    let all: u64 = status.kinds.iter().map(|kind| kind.bytes).sum();
    out.line(&format!("all               {:>9}", bytes_text(all)))?;
    for made in status.by_note.iter().take(NOTES_MAX) {
        let name = made.note.as_ref().map(|note| note.display().to_string());
        let name = name.unwrap_or_else(|| "a note that the index does not have".to_owned());
        out.line(&visible(&format!("made from         {:>9}, {name}", made.n)))?;
    }
    if status.by_note.len() > NOTES_MAX {
        out.line(&format!("made from         {} more notes", status.by_note.len() - NOTES_MAX))?;
    }
    if status.is_in_use {
        note("another process has the store open: its contents are not counted");
    }
    note(&format!(
        "computed prompts take at most {} (1 GiB, 5 % of the free disk): beyond it, the longest unused are evicted; `refrain forget` deletes",
        bytes_text(budget)
    ));
    Ok(Exit::Done)
}

/// The folder that the user has named, or the default one; `None` if there is no default one. A named one must exist.
pub(crate) fn folder(named: Option<&Path>, default: &str, option: &str) -> Result<Option<PathBuf>, Failure> {
    match named {
        None => Ok(data_folder(default)),
        Some(folder) if folder.is_dir() => Ok(Some(folder.to_owned())),
        Some(folder) => {
            let problem = format!("`{}` is no folder", folder.display());
            Err(Failure::input(problem, &format!("check {option}")))
        }
    }
}

fn as_json(store: &Path, status: &StoreStatus, budget: u64) -> serde_json::Value {
    let kind = |kind: StoredKind| match kind {
        StoredKind::Answers => "answers",
        StoredKind::Summaries => "summaries",
        StoredKind::Prefixes => "prefix_tokens",
        StoredKind::Replaced => "replaced_texts",
        StoredKind::Typed => "typed_lines",
        _ => "others",
    };
    json!({
        "store": store.to_string_lossy(),
        "kinds": status.kinds.iter().map(|status| json!({
            "kind": kind(status.kind),
            "n": status.n,
            "bytes": status.bytes,
            "oldest": status.oldest.map(seconds),
        })).collect::<Vec<_>>(),
        "by_note": status.by_note.iter().map(|made| json!({
            "path": made.note.as_ref().map(|note| note.to_string_lossy()),
            "n": made.n,
        })).collect::<Vec<_>>(),
        "bytes": status.kinds.iter().map(|kind| kind.bytes).sum::<u64>(),
        "prefix_bytes_max": budget,
        "in_use": status.is_in_use,
    })
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn day(time: SystemTime) -> String {
    utc(seconds(time))[..10].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_part_of_the_free_disk() {
        let folder = tempfile::tempdir().unwrap();
        let not_yet = folder.path().join("a/b/store");
        let budget = budget(&not_yet);
        assert!(budget > 0 && budget <= BUDGET, "{budget}");
        if let Some(free) = free_bytes(folder.path()) {
            // Others write to the disk meanwhile.
            assert!(budget <= free / 10 || budget == BUDGET, "{budget} of {free}");
        }
    }
}
