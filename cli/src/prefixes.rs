//! Computed prefixes of prompts on disk: restored before an answer, kept after it.

use std::path::PathBuf;

use refrain::Session;
use refrain_index::{PrefixError, PrefixOptions, PrefixStore};

use crate::failure::{Exit, Failure};
use crate::history::cache_folder;
use crate::terminal::{note, visible};

/// The prefixes of a namespace; none without the option.
pub(crate) struct Prefixes {
    store: Option<PrefixStore>,
    namespace: &'static str,
}

impl Prefixes {
    /// Opens the folder that the user named, or without a name the default folder.
    pub(crate) fn open(folder: Option<&Option<PathBuf>>, namespace: &'static str) -> Result<Self, Failure> {
        let store = folder.map(|named| {
            let folder = named.clone().or_else(|| cache_folder("prefixes"));
            let folder = folder
                .ok_or_else(|| Failure::usage("there is no default folder", "name one: --prefixes=DIR"))?;
            PrefixStore::open(&folder, PrefixOptions::default()).map_err(|error| {
                Failure::new(Exit::Failed, format!("{error} (check the folder of --prefixes)"))
            })
        });
        Ok(Self { store: store.transpose()?, namespace })
    }

    /// Restores the longest stored prefix of the session's prompt. A folder that cannot be read is a note, because the
    /// prompt can be computed.
    pub(crate) fn restore(&self, session: &mut Session) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        match store.restore(session, self.namespace) {
            Ok(_) => Ok(()),
            Err(PrefixError::Session(error)) => Err(error.into()),
            Err(error) => {
                note(&visible(&format!("no prefix is restored: {error}")));
                Ok(())
            }
        }
    }

    /// Keeps prompt and answer. A failure is a note, because the answer is already printed.
    pub(crate) fn keep(&self, session: &Session) {
        let Some(store) = &self.store else { return };
        if let Err(error) = store.keep(session, self.namespace, &[], usize::MAX) {
            note(&visible(&format!("the prompt is not kept: {error}")));
        }
    }
}
