//! Keeping what is likely to be used again: blocks that an earlier prompt had too.
//!
//! Most prompts come once, and their state takes up to megabytes. So a block is stored when a second prompt has it; of the first one, its
//! id is noted, a hash of 16 bytes. What all prompts of a task begin with is stored from the second prompt on.
//!
//! The list of a namespace is a file of ids, the oldest first. It may lose entries, or be anything: then a block is stored one prompt later
//! or earlier. Forgetting removes the lists of the namespaces that it looks into, whatever it forgets.

use std::collections::HashSet;

use refrain::Session;

use super::block::{block_id, root_id};
use super::error::io_error;
use super::folder::{BLOCK_TOKENS, SEEN, Tree, partial_name};
use super::seal::Id;
use super::store::unless_gone;
use super::{Label, PrefixError, PrefixStore};
use crate::disk_file::if_there;

/// Maximum number of noted blocks in a namespace: the prompts of some hundred questions about notes.
const SEEN_MAX: usize = 4096;

/// Bytes of an id.
const ID_BYTES: usize = size_of::<Id>();

impl PrefixStore {
    /// As [`keep`](Self::keep), but only blocks that are stored, or that a session had for which this was called before. Prompts that
    /// come once then take no room. With recurrent layers, everything is kept: their state is known at few places.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn keep_repeated(
        &self,
        session: &Session,
        namespace: &str,
        labels: &[Label],
        up_to: usize,
    ) -> Result<usize, PrefixError> {
        if session.state().ends().is_some() {
            return self.keep(session, namespace, labels, up_to);
        }
        let tokens = &session.tokens()[..up_to.min(session.state().n_cached_tokens())];
        let mut parent = root_id(&self.seal, namespace, session.state().key());
        let chain = tokens.chunks(BLOCK_TOKENS).map(|tokens| {
            parent = block_id(&self.seal, parent, tokens);
            parent
        });
        let chain: Vec<Id> = chain.collect();
        let folder = self.namespace_folder(namespace);
        let tree = Tree::list(&*self.disk, &folder)?;
        let known: HashSet<Id> = self.seen(&tree)?.into_iter().collect();
        let is_known = |id: &&Id| known.contains(*id) || tree.blocks.contains_key(*id);
        let n_known = chain.iter().take_while(is_known).count();
        let n_kept = self.keep(session, namespace, labels, tokens.len().min(n_known * BLOCK_TOKENS))?;
        unless_gone(self.note_seen(&tree, &chain, n_known))?;
        Ok(n_kept)
    }

    /// The noted blocks.
    fn seen(&self, tree: &Tree) -> Result<Vec<Id>, PrefixError> {
        let path = tree.folder.join(SEEN);
        let Some(file) = if_there(self.disk.open(&path)).map_err(io_error("open", &path))? else {
            return Ok(Vec::new());
        };
        let n = (file.len().map_err(io_error("read", &path))? as usize / ID_BYTES).min(SEEN_MAX);
        let mut bytes = vec![0; n * ID_BYTES];
        file.read_at(&mut bytes, 0).map_err(io_error("read", &path))?;
        Ok(bytes.as_chunks().0.iter().map(|&id| Id(id)).collect())
    }

    /// Notes the blocks of a prompt that are new, without those that are stored now.
    fn note_seen(&self, tree: &Tree, chain: &[Id], n_known: usize) -> Result<(), PrefixError> {
        // From the reading on, so that it does not write again what is forgotten meanwhile.
        let _changing = self.lock_changes()?;
        let seen = self.seen(tree)?;
        let of_prompt: HashSet<Id> = chain.iter().copied().collect();
        if n_known == chain.len() && !seen.iter().any(|id| of_prompt.contains(id)) {
            return Ok(());
        }
        let mut noted: Vec<Id> = seen.into_iter().filter(|id| !of_prompt.contains(id)).collect();
        noted.extend(&chain[n_known..]);
        let surplus = noted.len().saturating_sub(SEEN_MAX);
        let bytes: Vec<u8> = noted[surplus..].iter().flat_map(|id| id.0).collect();
        let (path, partial) =
            (tree.folder.join(SEEN), tree.folder.join(partial_name(self.id, self.next_number())));
        self.disk.create_dir(&tree.folder).map_err(io_error("create", &tree.folder))?;
        let put = self.put(&partial, &path, &bytes, || Ok(Some(())));
        put.map(drop).inspect_err(|_| drop(self.disk.remove_file(&partial)))
    }
}
