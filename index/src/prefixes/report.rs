//! What the folder contains, and what of it is not used.

use std::collections::HashSet;
use std::path::PathBuf;

use super::PrefixError;
use super::block;
use super::error::PrefixProblem;
use super::folder::{Entry, LABEL_BYTES, Tree, list};
use super::seal::Id;
use super::store::{CHANGES_LOCK, PrefixStore};
use crate::history::disk::Kind;

/// The contents of the folder.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PrefixStatus {
    /// Namespaces.
    pub n_namespaces: usize,
    /// Usable blocks.
    pub n_blocks: usize,
    /// Their tokens. Tokens that several prefixes share count once.
    pub n_tokens: usize,
    /// Labels.
    pub n_labels: usize,
    /// Bytes that count for [`max_bytes`](super::PrefixOptions::max_bytes).
    pub bytes: u64,
    /// Files that are not used. Those of the store are replaced when the same prefix is kept, or evicted.
    pub left_aside: Vec<LeftAside>,
}

/// A file that is not used.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeftAside {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub problem: PrefixProblem,
}

impl PrefixStore {
    /// Reads names, and the tokens of every block. Blocks whose state is damaged are found by
    /// [`verify`](Self::verify) only.
    ///
    /// # Errors
    /// [`PrefixError::Io`]: the folder cannot be listed.
    pub fn status(&self) -> Result<PrefixStatus, PrefixError> {
        self.report(|_, _, _| Ok(()))
    }

    /// As [`status`](Self::status), but reads and checks every byte.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn verify(&self) -> Result<PrefixStatus, PrefixError> {
        let mut buf = Vec::new();
        self.report(|head, file, seal| block::read_state(seal, head, file, &mut buf).map(drop))
    }

    fn report(
        &self,
        mut check_state: impl FnMut(
            &block::Head,
            &dyn crate::disk_file::DiskFile,
            &super::seal::Seal,
        ) -> Result<(), PrefixProblem>,
    ) -> Result<PrefixStatus, PrefixError> {
        let mut status = PrefixStatus::default();
        let mut foreign = Vec::new();
        for kind in [Kind::File, Kind::Folder, Kind::Other] {
            let is_lock = |name: &str| {
                kind == Kind::File
                    && name
                        .strip_suffix(".lock")
                        .is_some_and(|id| name == CHANGES_LOCK || Id::parse(id).is_some())
            };
            let is_folder = |folder: &PathBuf, name: &str| {
                kind == Kind::Folder
                    && if *folder == self.root {
                        folder.join(name) == self.folder
                    } else {
                        Id::parse(name).is_some()
                    }
            };
            for folder in [&self.root, &self.folder] {
                let names = list(&*self.disk, folder, kind)?;
                let is_foreign =
                    |name: &&String| !(is_folder(folder, name) || is_lock(name) && *folder == self.root);
                foreign.extend(names.iter().filter(is_foreign).map(|name| folder.join(name)));
            }
        }
        let mut left_aside = |path, problem| status.left_aside.push(LeftAside { path, problem });
        foreign.into_iter().for_each(|path| left_aside(path, PrefixProblem::Foreign));
        for tree in self.trees()? {
            let Tree { blocks, labels, foreign, copies, .. } = &tree;
            foreign
                .iter()
                .chain(copies)
                .for_each(|name| left_aside(tree.folder.join(name), PrefixProblem::Foreign));
            status.n_namespaces += usize::from(!blocks.is_empty());
            let n_labels = labels.values().map(HashSet::len).sum::<usize>();
            status.n_labels += n_labels;
            status.bytes += n_labels as u64 * LABEL_BYTES;
            let mut entries: Vec<&Entry> = blocks.values().collect();
            entries.sort_unstable_by_key(|entry| (entry.index, entry.id));
            for entry in entries {
                let Some((bytes, _)) = self.stat(&tree, entry)? else { continue };
                status.bytes += bytes;
                let path = tree.path(entry);
                let checked = self.disk.open(&path).map_err(PrefixProblem::from).and_then(|file| {
                    let head = block::read_head(&self.seal, entry, &*file)?;
                    check_state(&head, &*file, &self.seal)
                });
                match checked {
                    Ok(()) => {
                        status.n_blocks += 1;
                        status.n_tokens += entry.n_tokens;
                    }
                    Err(problem) => left_aside(path, problem),
                }
            }
        }
        Ok(status)
    }
}
