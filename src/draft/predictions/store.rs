//! What the target found likely after the same tokens: lists, bounded, replaced by age, and shared by the sessions of a
//! namespace with echo.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::successors::{LIST_BYTES, SUCCESSORS_MAX, Successor, SuccessorLists};
use refrain_trees::{TokenId, VERIFY_ROWS_MAX};
use serde::{Deserialize, Serialize};

/// What echo keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EchoConfig {
    /// Maximum rejected rows read per step, the likeliest first, 0..=[`VERIFY_ROWS_MAX`](crate::drafting::VERIFY_ROWS_MAX). They are
    /// projected together. 0: visited rows only.
    pub rejected_rows: u32,
    /// Maximum lists of successors, 1..=[`LISTS_MAX`](Self::LISTS_MAX). About 90 bytes each. Sessions that share their
    /// lists have the largest of their values together.
    pub lists_max: u32,
}

impl Default for EchoConfig {
    fn default() -> Self {
        // A row in the batch costs far more than its projection onto the shortlist.
        EchoConfig { rejected_rows: VERIFY_ROWS_MAX as u32, lists_max: 1 << 16 }
    }
}

impl EchoConfig {
    /// Maximum of [`lists_max`](Self::lists_max): more than a context and its drafts have.
    pub const LISTS_MAX: u32 = 1 << 22;

    /// What [`Calibration::Auto`](crate::drafting::Calibration::Auto) chooses: fewer lists, 3.3 MB at most, because each session's memory counts
    /// against the budget of a streamed model.
    pub const AUTO: EchoConfig = EchoConfig { rejected_rows: VERIFY_ROWS_MAX as u32, lists_max: 1 << 14 };
}

/// The last two tokens of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    pub(super) before: u32,
    pub(super) last: u32,
}

impl Pair {
    /// The last two of these tokens.
    pub(super) fn ending(tokens: &[TokenId]) -> Option<Self> {
        let (&last, before) = tokens.split_last()?;
        Some(Self { before: before.last().map_or(NONE, |token| token.0), last: last.0 })
    }

    /// The pair after one more token.
    pub(super) fn then(self, token: TokenId) -> Self {
        Self { before: self.last, last: token.0 }
    }

    /// The last token alone. As a key it is distinct from every pair: no token is `NONE`.
    pub(super) fn single(self) -> Self {
        Self { before: NONE, last: self.last }
    }

    pub(super) fn key(self) -> u64 {
        u64::from(self.before) << 32 | u64::from(self.last)
    }
}

/// The target's newest successors after one or two tokens. Clones share the lists.
///
/// Holds at most as many lists as the largest [`EchoConfig::lists_max`] of its sessions asks for, about 90 bytes each.
/// The newest list of a key counts, and a full store replaces the list that was set longest ago.
///
/// Sessions that run at the same time see each other's lists. Their drafts then depend on timing, but their output does
/// not.
#[derive(Clone, Debug, Default)]
pub struct EchoStore {
    store: Arc<Mutex<Store>>,
}

impl EchoStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of lists.
    pub fn len(&self) -> usize {
        self.lock().keys.len()
    }

    /// Whether there is no list.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An independent copy.
    pub(super) fn copy(&self) -> Self {
        Self { store: Arc::new(Mutex::new(self.lock().clone())) }
    }

    /// Removes all lists and frees their memory.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        self.lock().memory_usage()
    }

    /// The lists, from the one that was set longest ago to the newest.
    pub fn lists(&self) -> Vec<EchoList> {
        let store = self.lock();
        let list = |slot: usize| {
            let (tokens, sixteenths) = store.lists.stored(slot);
            EchoList { key: store.keys[slot], tokens, sixteenths }
        };
        store.by_age().map(list).collect()
    }

    /// Replaces the lists by the [valid](EchoList::is_valid) ones of these, from the oldest to the newest. Of equal keys the
    /// last one counts, and lists beyond `lists_max` (or the larger bound of a session) are dropped, oldest first. Returns
    /// [`n_changes`](Self::n_changes) after it.
    pub fn replace(&self, lists_max: u32, lists: &[EchoList]) -> u64 {
        let mut store = self.lock();
        store.clear();
        store.reserve(lists_max);
        let mut one = SuccessorLists::new();
        let newest = &lists[lists.len().saturating_sub(store.n_max)..];
        for list in newest.iter().filter(|list| list.is_valid()) {
            one.clear();
            one.push_stored(&list.tokens, &list.sixteenths);
            store.set_key(list.key, &one, 0);
        }
        store.n_changes
    }

    /// Counts the changes of the lists.
    pub fn n_changes(&self) -> u64 {
        self.lock().n_changes
    }

    /// Locks the lists. After a panic during a change they are dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(|poisoned| {
            self.store.clear_poison();
            let mut store = poisoned.into_inner();
            store.clear();
            store
        })
    }
}

/// A list of an [`EchoStore`], as an app keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EchoList {
    /// The token before the last one in the high half, `u32::MAX` if the list follows one token alone; the last token in
    /// the low half.
    pub key: u64,
    /// The successors, likeliest first; `u32::MAX` behind the last.
    pub tokens: [u32; SUCCESSORS_MAX],
    /// −log-probability of each successor in sixteenths, not descending; 255 behind the last.
    pub sixteenths: [u8; SUCCESSORS_MAX],
}

impl EchoList {
    /// Whether a store may hold the list: it follows a token, has a successor, no successor twice, and its order is that
    /// of the probabilities.
    pub fn is_valid(&self) -> bool {
        let n = self.tokens.iter().position(|&token| token == NONE).unwrap_or(SUCCESSORS_MAX);
        let (listed, unused) = (&self.tokens[..n], &self.tokens[n..]);
        self.key as u32 != NONE
            && n > 0
            && (1..n).all(|i| !listed[..i].contains(&listed[i]))
            && unused.iter().all(|&token| token == NONE)
            && self.sixteenths[..n].is_sorted()
            && self.sixteenths[n..].iter().all(|&unused| unused == u8::MAX)
    }
}

/// No token.
pub(super) const NONE: u32 = u32::MAX;

/// The newest list of each key, at most `n_max` of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    n_max: usize,
    /// The list of each slot. `[keys.len()]`
    pub(super) lists: SuccessorLists,
    /// `[len]`
    pub(super) keys: Vec<u64>,
    /// The slots that were set before and after each slot; its own at both ends. `[len]`
    neighbours: Vec<[u32; 2]>,
    /// The slots that were set longest ago and last. Unused while there is no slot.
    oldest: u32,
    newest: u32,
    /// Only looked up, never iterated over.
    pub(super) slots: HashMap<u64, u32>,
    n_changes: u64,
    /// Scratch memory of one list.
    blended: SuccessorLists,
}

/// The share of a new row in the list after one token. On traces of two models at 8, 16 and 32 rows, shares of 0.65 to
/// 0.85 give between 0.99 and 1.02 times the tokens per step of a share of 1 (B *Echo*).
const NEW_SHARE: f32 = 0.75;

impl Store {
    /// Allows `lists_max` lists, if that is more than before; values beyond the bounds are clamped.
    pub(super) fn reserve(&mut self, lists_max: u32) {
        self.n_max = self.n_max.max(lists_max.clamp(1, EchoConfig::LISTS_MAX) as usize);
    }

    /// Sets the list of a key to list `at` of `from`, which becomes the newest.
    pub(super) fn set(&mut self, key: Pair, from: &SuccessorLists, at: usize) {
        self.set_key(key.key(), from, at);
    }

    /// As [`set`](Self::set), but an earlier list of the key keeps its share of the probabilities.
    pub(super) fn blend(&mut self, key: Pair, from: &SuccessorLists, at: usize) {
        let Some(slot) = self.slot(key) else { return self.set(key, from, at) };
        // The lists of both, without allocation.
        let mut both = [(TokenId(NONE), 0.0f32); 2 * SUCCESSORS_MAX];
        let mut n = 0;
        let shared = [(NEW_SHARE, from.list(at)), (1.0 - NEW_SHARE, self.lists.list(slot))];
        for (share, Successor { token, log_probability }) in
            shared.into_iter().flat_map(|(share, list)| list.map(move |successor| (share, successor)))
        {
            let probability = share * log_probability.exp();
            match both[..n].iter_mut().find(|held| held.0 == token) {
                Some(held) => held.1 += probability,
                None => {
                    both[n] = (token, probability);
                    n += 1;
                }
            }
        }
        let blended = &mut both[..n];
        blended.sort_by(|a, b| b.1.total_cmp(&a.1));
        let successor =
            |&(token, probability): &(TokenId, f32)| Successor { token, log_probability: probability.ln() };
        let mut successors = [Successor { token: TokenId(NONE), log_probability: 0.0 }; SUCCESSORS_MAX];
        let n = n.min(SUCCESSORS_MAX);
        successors.iter_mut().zip(&blended[..n]).for_each(|(to, of)| *to = successor(of));
        self.blended.clear();
        self.blended.push(&successors[..n]);
        let blended = std::mem::take(&mut self.blended);
        self.set(key, &blended, 0);
        self.blended = blended;
    }

    fn set_key(&mut self, key: u64, from: &SuccessorLists, at: usize) {
        self.n_changes += 1;
        let slot = match self.slots.get(&key) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None if self.keys.len() < self.n_max => {
                self.keys.push(key);
                self.neighbours.push([0; 2]);
                (self.keys.len() - 1) as u32
            }
            None => {
                let slot = self.oldest;
                let Some(held) = self.keys.get_mut(slot as usize) else { return };
                self.slots.remove(&std::mem::replace(held, key));
                self.unlink(slot);
                slot
            }
        };
        self.slots.insert(key, slot);
        self.append(slot);
        self.lists.copy_from(slot as usize, from, at);
    }

    /// Takes a slot out of the order of age. The ends are wrong if it was the only slot.
    fn unlink(&mut self, slot: u32) {
        let [before, after] = self.neighbours[slot as usize];
        match (before == slot, after == slot) {
            (true, _) => self.oldest = after,
            (false, true) => self.neighbours[before as usize][1] = before,
            (false, false) => self.neighbours[before as usize][1] = after,
        }
        match (after == slot, before == slot) {
            (true, _) => self.newest = before,
            (false, true) => self.neighbours[after as usize][0] = after,
            (false, false) => self.neighbours[after as usize][0] = before,
        }
    }

    /// Puts a slot that is in no order at its end.
    fn append(&mut self, slot: u32) {
        if self.keys.len() == 1 {
            (self.oldest, self.newest) = (slot, slot);
        }
        let before = self.newest;
        self.neighbours[slot as usize] = [before, slot];
        if before != slot {
            self.neighbours[before as usize][1] = slot;
        }
        self.newest = slot;
    }

    /// The slots from the oldest to the newest.
    fn by_age(&self) -> impl Iterator<Item = usize> + '_ {
        let first = (!self.keys.is_empty()).then_some(self.oldest);
        let next = |&slot: &u32| Some(self.neighbours[slot as usize][1]).filter(|&after| after != slot);
        std::iter::successors(first, next).map(|slot| slot as usize)
    }

    /// The slot of a key with successors.
    pub(super) fn slot(&self, key: Pair) -> Option<usize> {
        let slot = *self.slots.get(&key.key())? as usize;
        self.lists.successor(slot, 0).map(|_| slot)
    }

    /// The slot of what followed the last two tokens, or else the last one, and how many tokens agree.
    pub(super) fn after(&self, path: Pair) -> Option<(usize, u32)> {
        let by_pair = if path.before == NONE { None } else { self.slot(path) };
        by_pair.map(|slot| (slot, 2)).or_else(|| self.slot(path.single()).map(|slot| (slot, 1)))
    }

    /// The probability of `token` [after](Self::after) a path, 0 if it is not listed; `None` without a list.
    pub(super) fn probability(&self, path: Pair, token: TokenId) -> Option<f32> {
        let (slot, _) = self.after(path)?;
        let listed = self.lists.list(slot).find(|successor| successor.token == token);
        Some(listed.map_or(0.0, |successor| successor.log_probability.exp()))
    }

    fn clear(&mut self) {
        let n_changes = self.n_changes + 1;
        *self = Self { n_max: self.n_max, n_changes, ..Self::default() };
    }

    fn memory_usage(&self) -> usize {
        self.lists.memory_usage()
            + self.blended.memory_usage()
            + self.keys.capacity() * size_of::<u64>()
            + self.neighbours.capacity() * size_of::<[u32; 2]>()
            + self.slots.capacity() * SLOT_BYTES
    }

    /// Upper bound of a store's bytes.
    pub(super) fn bytes(lists_max: u32) -> u64 {
        // Vectors grow to twice their room. A map whose keys are replaced grows once more than its keys need.
        let of_list = 2 * (LIST_BYTES + size_of::<u64>() + size_of::<[u32; 2]>());
        let lists = u64::from(lists_max.clamp(1, EchoConfig::LISTS_MAX)) * (of_list + 5 * SLOT_BYTES) as u64;
        lists + 2 * LIST_BYTES as u64
    }
}

/// Bytes of a place of a hash map.
const SLOT_BYTES: usize = size_of::<(u64, u32)>() + 1;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The obvious store: the newest list of each key, and the keys by age.
    #[derive(Default)]
    struct Plain {
        lists: HashMap<(u32, u32), Vec<TokenId>>,
        keys: Vec<(u32, u32)>,
    }

    impl Plain {
        fn set(&mut self, n_max: usize, key: (u32, u32), list: Vec<TokenId>) {
            self.lists.insert(key, list);
            self.keys.retain(|&held| held != key);
            self.keys.push(key);
            if self.keys.len() > n_max {
                self.lists.remove(&self.keys.remove(0));
            }
        }
    }

    fn list_of(tokens: &[TokenId]) -> SuccessorLists {
        let successors = tokens.iter().zip(1..);
        let successors = successors.map(|(&token, i)| Successor { token, log_probability: -(i as f32) });
        let mut lists = SuccessorLists::new();
        lists.push(&successors.collect::<Vec<_>>());
        lists
    }

    /// Different tokens, more than a list holds at most.
    fn tokens() -> impl Strategy<Value = Vec<u32>> {
        proptest::sample::subsequence((0..10).collect::<Vec<u32>>(), 0..10).prop_shuffle()
    }

    proptest! {
        /// Few tokens, so that keys recur, and stores that are soon full.
        #[test]
        fn a_store_holds_the_newest_lists(
            n_max in 1u32..12,
            rows in proptest::collection::vec((0u32..5, 0u32..5, tokens()), 0..120),
        ) {
            let (shared, mut plain) = (EchoStore::new(), Plain::default());
            shared.lock().reserve(n_max);
            for (before, last, list) in rows {
                let before = if before == 0 { NONE } else { before };
                let list: Vec<TokenId> = list.into_iter().map(TokenId).collect();
                let kept = list[..list.len().min(SUCCESSORS_MAX)].to_vec();
                shared.lock().set(Pair { before, last }, &list_of(&list), 0);
                plain.set(n_max as usize, (before, last), kept);
                let store = shared.lock();
                prop_assert!(store.keys.len() <= n_max as usize && store.slots.len() == store.keys.len());
                let key = |&(before, last): &(u32, u32)| Pair { before, last }.key();
                prop_assert_eq!(
                    store.by_age().map(|slot| store.keys[slot]).collect::<Vec<_>>(),
                    plain.keys.iter().map(key).collect::<Vec<_>>()
                );
                for before in (1..5).chain([NONE]) {
                    for last in 0..5 {
                        let held = store.slot(Pair { before, last });
                        let held = held.map(|slot| store.lists.list(slot).map(|s| s.token).collect::<Vec<_>>());
                        let expected = plain.lists.get(&(before, last)).filter(|list| !list.is_empty());
                        prop_assert_eq!(held.as_ref(), expected);
                    }
                }
            }
            // The lists come back as they were, the newest of them in a smaller store.
            let lists: Vec<_> = shared.lists().into_iter().filter(EchoList::is_valid).collect();
            prop_assert_eq!(lists.len(), plain.lists.values().filter(|list| !list.is_empty()).count());
            let other = EchoStore::new();
            other.replace(n_max, &lists);
            prop_assert_eq!(&other.lists(), &lists);
            let smaller = EchoStore::new();
            smaller.replace(3, &lists);
            prop_assert_eq!(&smaller.lists()[..], &lists[lists.len().saturating_sub(3)..]);
        }
    }

    #[test]
    fn older_rows_after_one_token_decay() {
        let row = |tokens: &[(u32, f32)]| {
            let successor =
                |&(token, p): &(u32, f32)| Successor { token: TokenId(token), log_probability: p.ln() };
            let mut lists = SuccessorLists::new();
            lists.push(&tokens.iter().map(successor).collect::<Vec<_>>());
            lists
        };
        let mut store = Store::default();
        store.reserve(4);
        let key = Pair { before: NONE, last: 1 };
        let mut expected = [0.0; 30];
        let rows = [vec![(7, 0.9), (8, 0.1)], vec![(9, 0.2), (7, 0.25)], vec![(8, 0.6)]];
        for (i, tokens) in rows.iter().enumerate() {
            store.blend(key, &row(tokens), 0);
            let share = if i == 0 { 1.0 } else { 0.75 };
            expected.iter_mut().for_each(|p| *p *= 1.0 - share);
            tokens.iter().for_each(|&(token, p)| expected[token as usize] += share * p);
        }
        let found: Vec<Successor> = store.lists.list(store.slot(key).unwrap()).collect();
        assert_eq!(found.iter().map(|s| s.token.0).collect::<Vec<_>>(), [8, 7, 9]);
        for Successor { token, log_probability } in found {
            let ratio = log_probability.exp() / expected[token.index()];
            assert!((ratio - 1.0).abs() < 0.15, "{token:?}: {ratio}");
        }
        // A full list keeps the likeliest of both.
        let many: Vec<(u32, f32)> = (0..8).map(|i| (i + 10, 0.2 - 0.02 * i as f32)).collect();
        store.blend(key, &row(&many), 0);
        let kept: Vec<u32> = store.lists.list(store.slot(key).unwrap()).map(|s| s.token.0).collect();
        assert_eq!((kept.len(), kept[0]), (SUCCESSORS_MAX, 10));
        assert!(kept.contains(&8) && !kept.contains(&9), "{kept:?}");
        assert!(
            store
                .lists
                .list(store.slot(key).unwrap())
                .is_sorted_by(|a, b| a.log_probability >= b.log_probability)
        );
    }

    #[test]
    fn lists_that_no_store_has_are_invalid() {
        let list = |key, tokens: &[u32], sixteenths: &[u8]| {
            let mut list = EchoList { key, tokens: [NONE; 8], sixteenths: [u8::MAX; 8] };
            list.tokens[..tokens.len()].copy_from_slice(tokens);
            list.sixteenths[..sixteenths.len()].copy_from_slice(sixteenths);
            list
        };
        assert!(list(7, &[3, 2], &[0, 255]).is_valid());
        assert!(list(u64::from(NONE) << 32 | 7, &[1, 2, 3, 4, 5, 6, 7, 8], &[9; 8]).is_valid());
        for invalid in [
            list(u64::from(NONE), &[3], &[1]),
            list(7, &[], &[]),
            list(7, &[3, 3], &[1, 2]),
            list(7, &[3, NONE, 2], &[1, 2, 3]),
            list(7, &[3, 2], &[2, 1]),
            list(7, &[3], &[2, 9]),
        ] {
            assert!(!invalid.is_valid(), "{invalid:?}");
        }
    }

    #[test]
    fn a_panic_during_a_change_drops_the_lists() {
        let shared = EchoStore::new();
        shared.lock().reserve(4);
        shared.lock().set(Pair { before: 1, last: 2 }, &list_of(&[TokenId(3)]), 0);
        let other = shared.clone();
        let panicked = std::thread::spawn(move || {
            let _held = other.lock();
            panic!("a planted panic");
        });
        assert!(panicked.join().is_err());
        assert!(shared.is_empty());
        shared.lock().set(Pair { before: 1, last: 2 }, &list_of(&[TokenId(3)]), 0);
        assert_eq!(shared.len(), 1);
    }
}
