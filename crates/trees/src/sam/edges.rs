//! The outgoing transitions of all states.
//!
//! Token alphabets are large and most states have one successor, so a set of edges takes one of three forms:
//!
//! - up to one edge: inline in the state, without memory of its own;
//! - up to [`LINEAR_MAX`] edges: an unordered block in the pool, scanned linearly (two cache lines at most);
//! - more: a *hot list* of the [`LINEAR_MAX`] most frequent edges followed by an open-addressing table of all
//!   of them.
//!
//! Lookup and insertion are therefore O(1) for any degree, and the most frequent successors of a state with
//! thousands of edges are read without a scan. Full blocks are replaced by blocks of twice the size; replaced
//! blocks go to free lists and are reused.
//!
//! Invariants: the tokens of a set are distinct; its form depends only on the number of edges; a hot list
//! holds distinct edges of its set's table with the same targets.

use std::cmp::Reverse;

/// No target: an empty slot of a table.
const EMPTY: u32 = u32::MAX;

/// Maximum edges of a linear block; more edges need a table. Sixteen edges are 128 bytes: two cache lines.
pub(super) const LINEAR_MAX: usize = 16;

/// One transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub(super) token: u32,
    pub(super) target: u32,
}

/// The edges of one state: their number, and either the only edge or the offset of the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EdgeSet {
    len: u32,
    /// The edge, if it is the only one. Otherwise its `target` is the block's offset in the pool.
    first: Edge,
}

impl EdgeSet {
    pub(super) const NONE: EdgeSet = EdgeSet { len: 0, first: Edge { token: 0, target: EMPTY } };

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    fn offset(&self) -> usize {
        self.first.target as usize
    }
}

/// Slots of the table of `len` edges, which is at most three quarters full.
fn table_slots(len: usize) -> usize {
    (len + len / 3 + 1).next_power_of_two()
}

/// Slots of the block of `len` edges, including its hot list. Zero for the inline form.
fn block_slots(len: usize) -> usize {
    match len {
        0..=1 => 0,
        2..=LINEAR_MAX => len.next_power_of_two(),
        _ => LINEAR_MAX + table_slots(len),
    }
}

/// The blocks of all states of one automaton.
#[derive(Clone, Debug, Default)]
pub(super) struct EdgePool {
    slots: Vec<Edge>,
    /// Offsets of unused blocks, by the logarithm of their size (hot list not counted).
    free: Vec<Vec<u32>>,
}

impl EdgePool {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.iter_mut().for_each(Vec::clear);
    }

    /// Bytes of the pool, including unused blocks.
    pub(super) fn memory_usage(&self) -> usize {
        let free: usize = self.free.iter().map(|list| list.capacity() * size_of::<u32>()).sum();
        self.slots.capacity() * size_of::<Edge>() + free + self.free.capacity() * size_of::<Vec<u32>>()
    }

    pub(super) fn get(&self, set: &EdgeSet, token: u32) -> Option<u32> {
        match set.len() {
            0 => None,
            1 => (set.first.token == token).then_some(set.first.target),
            len if len <= LINEAR_MAX => {
                self.linear(set).iter().find(|edge| edge.token == token).map(|edge| edge.target)
            }
            len => {
                let table = &self.slots[set.offset() + LINEAR_MAX..][..table_slots(len)];
                let edge = table[probe(table, token)];
                (edge.target != EMPTY).then_some(edge.target)
            }
        }
    }

    /// Adds an edge for a token that has none yet.
    pub(super) fn insert(&mut self, set: &mut EdgeSet, edge: Edge) {
        debug_assert!(self.get(set, edge.token).is_none(), "token {} has an edge", edge.token);
        let len = set.len();
        if block_slots(len + 1) != block_slots(len) {
            self.grow(set);
        }
        match len {
            0 => set.first = edge,
            1..LINEAR_MAX => self.slots[set.offset() + len] = edge,
            _ => {
                let table = &mut self.slots[set.offset() + LINEAR_MAX..][..table_slots(len + 1)];
                let slot = probe(table, edge.token);
                table[slot] = edge;
            }
        }
        set.len += 1;
    }

    /// Changes the target of an existing edge.
    pub(super) fn redirect(&mut self, set: &mut EdgeSet, edge: Edge) {
        match set.len() {
            1 => set.first = edge,
            len if len <= LINEAR_MAX => replace(&mut self.slots[set.offset()..][..len], edge),
            len => {
                let (hot, table) = self.slots[set.offset()..][..block_slots(len)].split_at_mut(LINEAR_MAX);
                replace(hot, edge);
                let slot = probe(table, edge.token);
                table[slot] = edge;
            }
        }
    }

    /// A copy of the edges, for a cloned state.
    pub(super) fn duplicate(&mut self, set: &EdgeSet) -> EdgeSet {
        let n_slots = block_slots(set.len());
        if n_slots == 0 {
            return *set;
        }
        let offset = self.allocate(n_slots);
        self.slots.copy_within(set.offset()..set.offset() + n_slots, offset);
        EdgeSet { len: set.len, first: Edge { token: 0, target: offset as u32 } }
    }

    /// Updates the hot list after an occurrence of `token`; `count` returns the occurrences of a target
    /// state. The edge replaces the rarest edge of the list unless that edge is more frequent. Among equally
    /// frequent edges, the newest therefore stay.
    pub(super) fn touch(&mut self, set: &EdgeSet, token: u32, count: impl Fn(u32) -> u32) {
        if set.len() <= LINEAR_MAX || self.hot(set).iter().any(|edge| edge.token == token) {
            return;
        }
        let Some(target) = self.get(set, token) else { return };
        let hot = &mut self.slots[set.offset()..][..LINEAR_MAX];
        let rarest = (0..LINEAR_MAX).max_by_key(|&i| Reverse(count(hot[i].target)));
        let rarest = rarest.expect("a hot list is not empty");
        if count(hot[rarest].target) <= count(target) {
            hot[rarest] = Edge { token, target };
        }
    }

    /// The most frequent edges: all of a small set, the hot list of a large one.
    pub(super) fn best<'a>(&'a self, set: &'a EdgeSet) -> &'a [Edge] {
        match set.len() {
            0 => &[],
            1 => std::slice::from_ref(&set.first),
            len if len <= LINEAR_MAX => self.linear(set),
            _ => self.hot(set),
        }
    }

    /// Every edge of the set, in no particular order.
    pub(super) fn all(&self, set: &EdgeSet) -> Vec<Edge> {
        match set.len() {
            len if len <= LINEAR_MAX => self.best(set).to_vec(),
            len => {
                let table = &self.slots[set.offset() + LINEAR_MAX..][..table_slots(len)];
                table.iter().copied().filter(|edge| edge.target != EMPTY).collect()
            }
        }
    }

    fn linear(&self, set: &EdgeSet) -> &[Edge] {
        &self.slots[set.offset()..][..set.len()]
    }

    fn hot(&self, set: &EdgeSet) -> &[Edge] {
        &self.slots[set.offset()..][..LINEAR_MAX]
    }

    /// Moves the set to the block that its next edge needs.
    fn grow(&mut self, set: &mut EdgeSet) {
        let len = set.len();
        if len == 0 {
            return;
        }
        let offset = self.allocate(block_slots(len + 1));
        if len == 1 {
            self.slots[offset] = set.first;
        } else {
            let old = set.offset()..set.offset() + block_slots(len);
            self.slots.copy_within(old.start..old.start + LINEAR_MAX.min(len), offset);
            if len >= LINEAR_MAX {
                self.fill_table(old.start, len, offset);
            }
            self.release(old.start, old.len());
        }
        set.first = Edge { token: 0, target: offset as u32 };
    }

    /// Inserts the `len` edges of the block at `old` into the table of the block at `new`.
    fn fill_table(&mut self, old: usize, len: usize, new: usize) {
        let old = match len {
            LINEAR_MAX => old..old + len,
            _ => old + LINEAR_MAX..old + block_slots(len),
        };
        let table = new + LINEAR_MAX..new + block_slots(len + 1);
        for i in old {
            let edge = self.slots[i];
            if edge.target != EMPTY {
                let slot = probe(&self.slots[table.clone()], edge.token);
                self.slots[table.start + slot] = edge;
            }
        }
    }

    /// A block of empty slots.
    fn allocate(&mut self, n_slots: usize) -> usize {
        let empty = Edge { token: 0, target: EMPTY };
        if let Some(offset) = self.free.get_mut(size_class(n_slots)).and_then(Vec::pop) {
            let offset = offset as usize;
            self.slots[offset..][..n_slots].fill(empty);
            return offset;
        }
        let offset = self.slots.len();
        assert!(offset + n_slots < EMPTY as usize, "edge pool of {offset} slots is full");
        self.slots.resize(offset + n_slots, empty);
        offset
    }

    fn release(&mut self, offset: usize, n_slots: usize) {
        let class = size_class(n_slots);
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        self.free[class].push(offset as u32);
    }
}

/// The class of blocks of the same size. Linear blocks have 2 to 16 slots. The others have 16 plus a power of
/// two larger than 16.
fn size_class(n_slots: usize) -> usize {
    let table = if n_slots > LINEAR_MAX { n_slots - LINEAR_MAX } else { n_slots };
    table.ilog2() as usize
}

/// The slot of `token`, or the empty slot in which it would be inserted. Fibonacci hashing, linear probing.
fn probe(table: &[Edge], token: u32) -> usize {
    debug_assert!(table.len().is_power_of_two() && table.len() > 1);
    let mask = table.len() - 1;
    let mut slot = (token.wrapping_mul(0x9E37_79B9) >> (32 - table.len().ilog2())) as usize;
    while table[slot].target != EMPTY && table[slot].token != token {
        slot = (slot + 1) & mask;
    }
    slot
}

fn replace(edges: &mut [Edge], edge: Edge) {
    if let Some(slot) = edges.iter_mut().find(|slot| slot.token == edge.token) {
        slot.target = edge.target;
    }
}
