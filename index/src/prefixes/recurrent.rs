//! Prefixes of models with recurrent layers, which have one state for all tokens before a position.
//!
//! Keys and values are stored in whole blocks, as for other models. A block has the state of the recurrent layers at its end too, where the
//! session knew it when it was kept; where that is no end of a whole block, a shorter one holds it beside the whole one. Nothing follows a
//! shorter one. A prompt is restored to the last such end among its tokens.
//!
//! A recurrent state takes as much as the keys and values of tens to thousands of tokens, so it is stored at few positions: where a
//! kept prefix ends, behind the newest prompt, and where prompts part. Which tokens prompts share is known when the second one comes: it
//! computes them, and its prefill remembers the state behind the last whole block that it shares. The third one restores it.

use refrain::{Session, TokenId};

use super::block::{block_id, file_bytes};
use super::error::PrefixProblem;
use super::folder::{BLOCK_TOKENS, Entry, Tree};
use super::seal::Id;
use super::store::{Planned, PrefixStore, state_lens};

impl PrefixStore {
    /// Restores the longest prefix whose end has a state, and makes the prefill remember the state where the tokens part from those that
    /// are stored. Returns the stored blocks of the prompt.
    pub(super) fn restore_recurrent(
        &self,
        session: &mut Session,
        tree: &Tree,
        root: Id,
        tokens: &[TokenId],
    ) -> Vec<Entry> {
        let (mut chain, mut parents) = (Vec::new(), vec![root]);
        for (index, wanted) in tokens.chunks_exact(BLOCK_TOKENS).enumerate() {
            let id = block_id(&self.seal, parents[index], wanted);
            let whole = tree.blocks.get(&id).copied();
            let whole = whole.filter(|entry| entry.index == index as u32 && self.head(tree, entry).is_some());
            let Some(whole) = whole else { break };
            chain.push(whole);
            parents.push(id);
        }
        let agreed = chain.len() * BLOCK_TOKENS;
        let mut used = chain.clone();
        let mut open = chain.len() + 1;
        while let Some(index) = open.checked_sub(1) {
            open = index;
            for last in self.ends(session, tree, parents[index], index, tokens) {
                match self.restore_to(session, tree, &chain[..index], last) {
                    Ok(()) => {
                        used.extend((last.n_tokens < BLOCK_TOKENS).then_some(last));
                        open = 0;
                        break;
                    }
                    // No end behind a block that cannot be used is reached.
                    Err(failed) if failed < index => {
                        open = failed + 1;
                        break;
                    }
                    Err(_) => {}
                }
            }
        }
        if agreed > session.state().n_cached_tokens() && agreed < tokens.len() {
            session.state_mut().remember(agreed);
        }
        used
    }

    /// The blocks after `parent` that agree with the tokens and have a state at their end, which is behind the session's cached tokens
    /// and before the newest one; the longest first.
    fn ends(
        &self,
        session: &Session,
        tree: &Tree,
        parent: Id,
        index: usize,
        tokens: &[TokenId],
    ) -> Vec<Entry> {
        let start = index * BLOCK_TOKENS;
        let reaches = (session.state().n_cached_tokens() + 1)..tokens.len();
        let has_end = |entry: &Entry| {
            reaches.contains(&(start + entry.n_tokens))
                && self.head(tree, entry).is_some_and(|head| {
                    tokens[start..].starts_with(&head.tokens)
                        && head.state_bytes == session.state().bytes(entry.n_tokens)
                })
        };
        let mut found: Vec<Entry> = tree.children(parent, index as u32).filter(has_end).collect();
        found.sort_by_key(|entry| std::cmp::Reverse(entry.n_tokens));
        found
    }

    /// Restores the keys and values of `chain` and the state of the block behind it.
    ///
    /// # Errors
    /// The index of a block that could not be used. The session is unchanged.
    fn restore_to(
        &self,
        session: &mut Session,
        tree: &Tree,
        chain: &[Entry],
        last: Entry,
    ) -> Result<(), usize> {
        let key = session.state().key();
        let expected = [BLOCK_TOKENS, last.n_tokens].map(|n_tokens| state_lens(session, n_tokens));
        let [keys_values, _] = expected[0];
        let n_before = session.state().n_cached_tokens();
        let mut buf = Vec::new();
        let mut restoration = session.state_mut();
        for (index, entry) in chain.iter().chain([&last]).enumerate().skip(n_before / BLOCK_TOKENS) {
            let (start, is_last) = (index * BLOCK_TOKENS, index == chain.len());
            let mut restore = || -> Result<bool, PrefixProblem> {
                let expected = expected[usize::from(is_last)];
                let (head, state) = self.read_block(tree, entry, key, expected, &mut buf)?;
                // A state in the midst of the prefix is not needed.
                let part = if is_last { Some(state) } else { state.get(..keys_values as usize) };
                let part = part.ok_or(PrefixProblem::Misplaced)?;
                let end = restoration.add(start, &head.tokens, part).map_err(|_| PrefixProblem::Misplaced)?;
                Ok(end == start + entry.n_tokens)
            };
            if self.judge(entry, restore()) != Some(true) {
                return Err(index);
            }
        }
        Ok(())
    }

    /// The blocks of a prefix with the ends at which the session knows the recurrent state, in order of their ends.
    pub(super) fn plan_recurrent(
        &self,
        tree: &Tree,
        session: &Session,
        root: Id,
        tokens: &[TokenId],
        ends: &[usize],
    ) -> Vec<Planned> {
        let mut plan: Vec<Planned> = Vec::new();
        let (mut parent, mut before) = (root, None);
        for (index, of_block) in tokens.chunks(BLOCK_TOKENS).enumerate() {
            let start = index * BLOCK_TOKENS;
            let within = ends.iter().map(|&end| end.saturating_sub(start));
            let shorter = within.filter(|&n| (1..=of_block.len()).contains(&n) && n < BLOCK_TOKENS);
            let whole = (of_block.len() == BLOCK_TOKENS).then_some(BLOCK_TOKENS);
            for n_tokens in shorter.chain(whole) {
                let id = block_id(&self.seal, parent, &of_block[..n_tokens]);
                let entry = Entry { index: index as u32, parent, id, n_tokens };
                let has_end = ends.contains(&(start + n_tokens));
                let is_usable = |entry| {
                    self.head(tree, entry)
                        .is_some_and(|head| !has_end || head.state_bytes == session.state().bytes(n_tokens))
                };
                let state_bytes = state_lens(session, n_tokens)[usize::from(has_end)];
                plan.push(Planned {
                    entry,
                    range: start..start + n_tokens,
                    before,
                    has_end,
                    is_stored: tree
                        .blocks
                        .get(&id)
                        .is_some_and(|stored| *stored == entry && is_usable(stored)),
                    bytes: file_bytes(n_tokens, state_bytes),
                });
                if n_tokens == BLOCK_TOKENS {
                    (parent, before) = (id, Some(plan.len() - 1));
                }
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use refrain::drafting::CostProfile;
    use refrain::{CancelToken, Engine, EngineOptions, SessionOptions};

    use super::super::block::{encode, root_id};
    use super::super::{PrefixOptions, PrefixProblem};
    use super::*;

    #[test]
    fn a_length_that_no_state_has_is_refused_before_it_is_read() {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen3_5");
        let options =
            EngineOptions { cost_profile: Some(CostProfile::free_rows(100.0)), ..EngineOptions::default() };
        let engine = Engine::open(golden, options).expect("the golden model loads");
        let tokens: Vec<TokenId> = (0..100).map(|i| TokenId(i * 7 % 250)).collect();
        let session = || {
            let mut session = engine.session(SessionOptions::default()).expect("a session");
            session.append_tokens(&tokens).expect("fits");
            session
        };
        let mut computed = session();
        computed.prefill(&CancelToken::new(), |_, _| {}).expect("computes");
        let folder = tempfile::tempdir().expect("a folder");
        let store = PrefixStore::open(folder.path(), PrefixOptions::default()).expect("opens");
        assert_eq!(store.keep(&computed, "a", &[], usize::MAX).expect("keeps"), 99);
        assert_eq!(store.restore(&mut session(), "a").expect("restores"), 99);
        let tree = Tree::list(&*store.disk, &store.namespace_folder("a")).expect("lists");
        let (root, key) = (root_id(&store.seal, "a", computed.state().key()), computed.state().key());
        let entry =
            tree.children(root, 0).find(|entry| entry.n_tokens == BLOCK_TOKENS).expect("a whole block");
        let expected = state_lens(&computed, BLOCK_TOKENS);
        let mut buf = Vec::new();
        let right = std::fs::read(tree.path(&entry)).expect("reads");
        for given in [0, expected[0] - 1, expected[0] + 1, expected[1] + 4, 1 << 24] {
            let write = |out: &mut Vec<u8>| {
                out.resize(out.len() + given as usize, 0);
                Ok(())
            };
            let file =
                encode(&store.seal, root, key, &tokens[..BLOCK_TOKENS], given, write).expect("encodes");
            std::fs::write(tree.path(&entry), file).expect("writes");
            let read = store.read_block(&tree, &entry, key, expected, &mut buf);
            let problem = read.expect_err("it has another length");
            assert!(
                matches!(problem, PrefixProblem::StateBytes { given: found, n_tokens: 64, .. } if found == given),
                "{problem}"
            );
            assert_eq!(buf.capacity(), 0, "nothing is allocated");
            // A new store knows no unusable blocks yet.
            let store = PrefixStore::open(folder.path(), PrefixOptions::default()).expect("opens");
            assert_eq!(store.restore(&mut session(), "a").expect("restores"), 0);
        }
        std::fs::write(tree.path(&entry), right).expect("writes");
        let store = PrefixStore::open(folder.path(), PrefixOptions::default()).expect("opens");
        assert_eq!(store.restore(&mut session(), "a").expect("restores"), 99);
    }
}
