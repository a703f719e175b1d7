//! Computed prefixes of prompts on disk: restored before an answer, kept after it, and deleted by `refrain history prefixes`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use refrain::{Engine, Message, Session, Task};
use refrain_index::{Label, PrefixError, PrefixOptions, PrefixStore};
use serde_json::json;

use crate::args::{PrefixesCommand, PrefixesCommandArgs, PrefixesFolderArgs};
use crate::failure::{Exit, Failure};
use crate::key::key;
use crate::prompt::Composed;
use crate::terminal::{AnswerStream, note, note_once, visible};
use refrain_program::place::cache_folder;

/// The namespaces of `run` without a task and of `chat`. The others have the names of tasks.
pub(crate) const RUN: &str = "run";
pub(crate) const CHAT: &str = "chat";

/// The prefixes of a namespace; none without the option.
pub(crate) struct Prefixes {
    store: Option<PrefixStore>,
    namespace: &'static str,
}

impl Prefixes {
    /// Opens the folder that the user named, or without a name the default folder.
    pub(crate) fn open(folder: Option<&Option<PathBuf>>, namespace: &'static str) -> Result<Self, Failure> {
        let store = folder.map(|named| open(&folder_or_default(named.as_deref())?)).transpose()?;
        Ok(Self { store, namespace })
    }

    /// Restores the longest stored prefix of the session's prompt. A folder that cannot be read is a note, because the
    /// prompt can be computed.
    pub(crate) fn restore(&self, session: &mut Session) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        match store.restore(session, self.namespace) {
            Ok(_) => Ok(()),
            Err(PrefixError::Session(error)) => Err(error.into()),
            Err(error) => {
                note_once(&visible(&format!("no prefix is restored: {error}")));
                Ok(())
            }
        }
    }

    /// The labels of a turn that shows files: the last one of `turns`, which are the first turns of the session.
    pub(crate) fn labels(
        &self,
        engine: &Engine,
        session: &Session,
        turns: &[Message],
        composed: &Composed,
    ) -> Vec<Label> {
        if self.store.is_none() || composed.sources.is_empty() {
            return Vec::new();
        }
        let mut bare = turns.to_vec();
        bare.iter_mut().rev().take(1).for_each(|last| last.content.clone_from(&composed.bare));
        let without = match bare.is_empty() {
            true => None,
            false => Some(engine.tokenizer().encode_chat(&bare, &Default::default(), true)),
        };
        // The tokens before the files are those of a prompt without them. Plain text without turns has no place that is known.
        let start = match without {
            Some(Ok(without)) => session.tokens().iter().zip(&without).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let paths: BTreeSet<&Path> = composed.sources.iter().map(|source| source.place().0).collect();
        let names: BTreeSet<String> = paths.into_iter().flat_map(|path| names(path, true)).collect();
        names.into_iter().map(|name| Label { tokens: start..usize::MAX, name }).collect()
    }

    /// Keeps prompt and answer. A failure is a note, because the answer is already printed.
    pub(crate) fn keep(&self, session: &Session, labels: &[Label]) {
        let Some(store) = &self.store else { return };
        if let Err(error) = store.keep(session, self.namespace, labels, usize::MAX) {
            note_once(&visible(&format!("the prompt is not kept: {error}")));
        }
    }
}

/// The labels of a file: its path and, so that folders can be forgotten, those above it; also the path without links.
fn names(path: &Path, with_folders: bool) -> Vec<String> {
    let absolute = refrain_index::notes::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Also of a file that is gone.
    let plain = refrain_index::notes::without_links(&absolute);
    let above = |path: PathBuf| {
        let n = if with_folders { usize::MAX } else { 1 };
        path.ancestors().take(n).map(|path| format!("note:{}", path.display())).collect::<Vec<_>>()
    };
    [absolute, plain].into_iter().flat_map(above).collect()
}

fn folder_or_default(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = named.map(Path::to_owned).or_else(|| cache_folder("prefixes"));
    folder.ok_or_else(|| Failure::usage("there is no default folder", "name one: --prefixes=DIR"))
}

fn open(folder: &Path) -> Result<PrefixStore, Failure> {
    PrefixStore::open(folder, PrefixOptions { key: key()?, ..PrefixOptions::default() })
        .map_err(|error| Failure::new(Exit::Failed, format!("{error} (check the folder of --prefixes)")))
}

pub(crate) fn prefixes(args: &PrefixesCommandArgs) -> Result<Exit, Failure> {
    match &args.command {
        PrefixesCommand::Status(args) => status(args),
        PrefixesCommand::Forget(args) => forget(&args.paths, &args.folder),
        PrefixesCommand::Clear(args) => removed(open_existing(args)?.clear(), args),
    }
}

/// The store of a folder that exists: one is not made to delete from it.
fn open_existing(args: &PrefixesFolderArgs) -> Result<PrefixStore, Failure> {
    let folder = folder_or_default(args.prefixes.as_deref())?;
    if !folder.is_dir() {
        let problem = format!("`{}` is no folder: no prompts are kept", folder.display());
        return Err(Failure::input(problem, "--prefixes names another one"));
    }
    open(&folder)
}

fn status(args: &PrefixesFolderArgs) -> Result<Exit, Failure> {
    let status = open_existing(args)?.status().map_err(failed)?;
    let mut out = AnswerStream::stdout();
    if args.json {
        let json = json!({
            "namespaces": status.n_namespaces,
            "blocks": status.n_blocks,
            "tokens": status.n_tokens,
            "labels": status.n_labels,
            "bytes": status.bytes,
            "left_aside": status.left_aside.len(),
        });
        out.line(&json.to_string())?;
    } else {
        out.line(&format!("tokens    {} in {} blocks", status.n_tokens, status.n_blocks))?;
        out.line(&format!("labels    {}", status.n_labels))?;
        out.line(&format!("disk      {:.1} MB", status.bytes as f64 / 1e6))?;
    }
    for left in &status.left_aside {
        note(&visible(&format!("not used: {}: {}", left.path.display(), left.problem)));
    }
    Ok(Exit::Done)
}

fn forget(paths: &[PathBuf], args: &PrefixesFolderArgs) -> Result<Exit, Failure> {
    let store = open_existing(args)?;
    let labels: Vec<String> = paths.iter().flat_map(|path| names(path, false)).collect();
    let namespaces = [RUN, CHAT].into_iter().chain(Task::ALL.into_iter().map(|task| task.name()));
    let n_removed = namespaces.map(|namespace| store.forget_all(namespace, &labels));
    removed(n_removed.sum(), args)
}

fn removed(n_removed: Result<usize, PrefixError>, args: &PrefixesFolderArgs) -> Result<Exit, Failure> {
    let n_removed = n_removed.map_err(failed)?;
    match args.json {
        true => AnswerStream::stdout().line(&json!({ "blocks": n_removed }).to_string())?,
        false => note(&format!("deleted: {n_removed} blocks of up to 64 tokens")),
    }
    Ok(Exit::Done)
}

fn failed(error: PrefixError) -> Failure {
    Failure::new(Exit::Failed, format!("{error} (what is left is deleted by the next command)"))
}
