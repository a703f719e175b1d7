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

use super::block::{BLOCK_TOKENS, block_id, file_bytes};
use super::error::PrefixProblem;
use super::folder::{Entry, Tree};
use super::seal::Id;
use super::store::{Planned, PrefixStore};

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
        if agreed > session.n_cached_tokens() && agreed < tokens.len() {
            session.remember_state(agreed);
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
        let reaches = (session.n_cached_tokens() + 1)..tokens.len();
        let has_end = |entry: &Entry| {
            reaches.contains(&(start + entry.n_tokens))
                && self.head(tree, entry).is_some_and(|head| {
                    tokens[start..].starts_with(&head.tokens)
                        && head.state_bytes == session.state_bytes(entry.n_tokens)
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
        let key = session.state_key();
        let keys_values = session.keys_values_bytes(BLOCK_TOKENS);
        let n_before = session.n_cached_tokens();
        let mut buf = Vec::new();
        let mut restoration = session.restoration();
        for (index, entry) in chain.iter().chain([&last]).enumerate().skip(n_before / BLOCK_TOKENS) {
            let (start, is_last) = (index * BLOCK_TOKENS, index == chain.len());
            let mut restore = || -> Result<bool, PrefixProblem> {
                let (head, state) = self.read_block(tree, entry, key, &mut buf)?;
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
                        .is_some_and(|head| !has_end || head.state_bytes == session.state_bytes(n_tokens))
                };
                let state_bytes = match has_end {
                    true => session.state_bytes(n_tokens),
                    false => session.keys_values_bytes(n_tokens),
                };
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
