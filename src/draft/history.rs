//! The source *history*: earlier responses, of this session and of other sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::constants::OrderConfig;
use super::evidence::EvidenceClass;
use super::openings::{OpeningPlace, Openings};
use super::orders;
use super::predictions::EchoStore;
use super::source::{Anchor, Candidates, Cursor, DraftSource, StepOutcome, TargetListener, most_frequent};
use crate::face::internals;
use refrain_trees::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

/// Earlier responses by namespace (an account, an app, a task), shared by the threads of a process.
///
/// In memory only; a namespace never returns tokens of another. A namespace keeps two automata: the *young*
/// one grows, the *old* one is fixed. When the young automaton holds half of the namespace's bound, it
/// becomes the old one, and the previous old one is dropped. A namespace therefore holds at least the newest
/// half of its bound, and no response waits for a rebuild. Responses are separate sequences: no draft crosses
/// from one into another.
///
/// A namespace is created by its first response. There is a bound on the tokens of all namespaces
/// ([`TOTAL_TOKENS_MAX`](Self::TOTAL_TOKENS_MAX)) and on their number ([`NAMESPACES_MAX`](Self::NAMESPACES_MAX)). Behind a response that exceeds one,
/// the namespaces whose newest response is the oldest are dropped.
///
/// The lists of echo are kept here too, by namespace and within the same number, and are forgotten with
/// their namespace.
///
/// Critical [memory pressure](crate::device::MemoryPressure) drops all responses, and keeps those lists.
#[derive(Debug)]
pub struct HistoryStore {
    map: Mutex<NamespaceMap>,
    tokens_max: u32,
    total_tokens_max: usize,
    /// Number of added and removed namespaces: a source looks its namespace up again when the number has
    /// changed.
    n_changes: AtomicU64,
}

#[derive(Default, Debug)]
struct NamespaceMap {
    entries: BTreeMap<String, Entry>,
    n_appends: u64,
    /// The lists of echo, and the number of the newest session that asked for them.
    echoes: BTreeMap<String, (EchoStore, u64)>,
    n_echo_uses: u64,
}

#[derive(Debug)]
struct Entry {
    namespace: Arc<RwLock<Namespace>>,
    /// That of the namespace.
    n_tokens: Arc<AtomicUsize>,
    /// Number of the newest append.
    appended_at: u64,
}

/// The responses of one namespace.
#[derive(Debug)]
struct Namespace {
    /// `[young, old]`.
    automata: [SuffixAutomaton; 2],
    /// Tokens of both, to be read without the lock.
    n_tokens: Arc<AtomicUsize>,
    /// How the newest responses begin, newest first: as many and as long as [`Openings`] are.
    openings: VecDeque<Box<[TokenId]>>,
    /// Number of changes of any kind: a reader's matches are valid only at an equal number.
    version: u64,
    /// Number of moves or drops of automata: cursors of another generation are invalid.
    generation: u16,
}

impl Default for HistoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl HistoryStore {
    /// Default maximum tokens of a namespace: about 60 MB.
    pub const TOKENS_MAX: u32 = 1 << 20;

    /// Default maximum tokens of all namespaces: two full ones, about 120 MB, as much as a model of 200 million parameters in 4 bits.
    pub const TOTAL_TOKENS_MAX: usize = 2 * Self::TOKENS_MAX as usize;

    /// Maximum namespaces of a store.
    pub const NAMESPACES_MAX: usize = 1024;

    internals! {
        /// An empty store with the default bound per namespace.
        fn new() -> Self {
            Self::with_tokens_max(Self::TOKENS_MAX)
        }

        /// An empty store with at most `tokens_max` tokens (at least 2) per namespace. The default bound of all namespaces rises to that of one.
        fn with_tokens_max(tokens_max: u32) -> Self {
            let tokens_max = tokens_max.max(2);
            let total_tokens_max = Self::TOTAL_TOKENS_MAX.max(tokens_max as usize);
            HistoryStore { map: Mutex::default(), tokens_max, total_tokens_max, n_changes: AtomicU64::new(0) }
        }

        /// The store with at most `total_tokens_max` tokens (at least 2) in all namespaces, and in each.
        fn with_total_tokens_max(self, total_tokens_max: usize) -> Self {
            let total_tokens_max = total_tokens_max.max(2);
            let tokens_max = self.tokens_max.min(u32::try_from(total_tokens_max).unwrap_or(u32::MAX));
            HistoryStore { tokens_max, total_tokens_max, ..self }
        }
    }

    /// Adds a finished response. If it is longer than half the bound, only its end is kept; an empty response
    /// changes nothing. Amortised O(tokens), plus O(namespaces).
    pub fn append(&self, namespace: &str, response: &[TokenId]) {
        if response.is_empty() {
            return;
        }
        let namespace = self.ensure_namespace(namespace);
        self.append_to(&mut write(&namespace), response);
        self.evict();
    }

    fn append_to(&self, namespace: &mut Namespace, response: &[TokenId]) {
        let half = self.tokens_max as usize / 2;
        let kept = &response[response.len() - response.len().min(half)..];
        if namespace.automata[0].len() + kept.len() > half {
            namespace.rotate();
        }
        let young = &mut namespace.automata[0];
        young.start_sequence();
        for token in kept {
            young.extend(token.0).expect("half of the bound fits");
        }
        namespace.openings.push_front(response[..response.len().min(Openings::LEN_MAX)].into());
        namespace.openings.truncate(Openings::MAX);
        namespace.count();
        namespace.version += 1;
    }

    /// Drops the namespaces whose newest response is the oldest, as far as they exceed the bounds. The one with the newest response stays.
    fn evict(&self) {
        let mut map = self.lock();
        let n_tokens = |entry: &Entry| entry.n_tokens.load(Ordering::Relaxed);
        let mut total: usize = map.entries.values().map(n_tokens).sum();
        let mut dropped = Vec::new();
        while map.entries.len() > Self::NAMESPACES_MAX
            || total > self.total_tokens_max && map.entries.len() > 1
        {
            let stalest = map.entries.iter().min_by_key(|(_, entry)| entry.appended_at);
            let Some(name) = stalest.map(|(name, _)| name.clone()) else { break };
            let Some(entry) = map.entries.remove(&name) else { break };
            total -= n_tokens(&entry).min(total);
            dropped.push(entry);
        }
        drop(map);
        if !dropped.is_empty() {
            self.retire(dropped);
        }
    }

    /// Drops all responses and frees their memory. The lists of echo stay, because sessions share them.
    pub(crate) fn release(&self) {
        let removed = std::mem::take(&mut self.lock().entries);
        self.retire(removed.into_values());
    }

    internals! {
        /// The lists of echo of a namespace, which its sessions share. The first call creates them, empty; if there
        /// are [`NAMESPACES_MAX`](Self::NAMESPACES_MAX) others, those asked for longest ago are dropped here and stay with
        /// their sessions.
        fn echo(&self, namespace: &str) -> EchoStore {
            let mut map = self.lock();
            map.n_echo_uses += 1;
            let used_at = map.n_echo_uses;
            if !map.echoes.contains_key(namespace) && map.echoes.len() >= Self::NAMESPACES_MAX {
                let stalest = map.echoes.iter().min_by_key(|(_, (_, used_at))| *used_at);
                let stalest = stalest.map(|(name, _)| name.clone());
                stalest.and_then(|name| map.echoes.remove(&name));
            }
            let (echo, of_newest) = map.echoes.entry(namespace.to_owned()).or_default();
            *of_newest = used_at;
            echo.clone()
        }
    }

    /// Removes a namespace, with its lists of echo. Its sessions find it empty from the next step on, and see
    /// later responses.
    pub fn forget(&self, namespace: &str) {
        let mut map = self.lock();
        let removed = map.entries.remove(namespace);
        map.echoes.get(namespace).into_iter().for_each(|(echo, _)| echo.clear());
        drop(map);
        self.retire(removed);
    }

    /// Removes all namespaces, as [`forget`](Self::forget).
    pub fn clear(&self) {
        let mut map = self.lock();
        let removed = std::mem::take(&mut map.entries);
        map.echoes.values().for_each(|(echo, _)| echo.clear());
        drop(map);
        self.retire(removed.into_values());
    }

    /// Number of tokens in a namespace.
    pub fn n_tokens(&self, namespace: &str) -> usize {
        let namespace = self.find(namespace);
        namespace.map_or(0, |namespace| read(&namespace).automata.iter().map(SuffixAutomaton::len).sum())
    }

    /// Number of namespaces with responses.
    pub fn n_namespaces(&self) -> usize {
        self.lock().entries.len()
    }

    /// Bytes on the heap, of all namespaces.
    pub fn memory_usage(&self) -> u64 {
        let map = self.lock();
        let of_responses = map.entries.values().map(|entry| read(&entry.namespace).memory_usage());
        of_responses.chain(map.echoes.values().map(|(echo, _)| echo.memory_usage())).sum::<usize>() as u64
    }

    internals! {
        /// A draft source that reads a namespace. The namespace may be created later.
        fn source(self: &Arc<Self>, namespace: &str) -> HistorySource {
            self.source_with_config(namespace, OrderConfig::default())
        }

        /// A [`source`](Self::source) with other constants.
        fn source_with_config(self: &Arc<Self>, namespace: &str, config: OrderConfig) -> HistorySource {
            HistorySource::new(Arc::clone(self), namespace, config)
        }
    }

    fn lock(&self) -> MutexGuard<'_, NamespaceMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Option<Arc<RwLock<Namespace>>> {
        self.lock().entries.get(name).map(|entry| Arc::clone(&entry.namespace))
    }

    /// Returns the namespace for an append, and creates it if needed.
    fn ensure_namespace(&self, name: &str) -> Arc<RwLock<Namespace>> {
        let mut map = self.lock();
        map.n_appends += 1;
        let appended_at = map.n_appends;
        if let Some(entry) = map.entries.get_mut(name) {
            entry.appended_at = appended_at;
            return Arc::clone(&entry.namespace);
        }
        let n_tokens = Arc::new(AtomicUsize::new(0));
        let automaton = SuffixAutomaton::with_max_tokens(self.tokens_max / 2);
        let automata = [automaton.clone(), automaton];
        let namespace = Arc::new(RwLock::new(Namespace {
            automata,
            n_tokens: Arc::clone(&n_tokens),
            openings: VecDeque::new(),
            version: 0,
            generation: 0,
        }));
        let entry = Entry { namespace: Arc::clone(&namespace), n_tokens, appended_at };
        map.entries.insert(name.to_owned(), entry);
        drop(map);
        self.retire([]);
        namespace
    }

    /// Empties removed namespaces, because a source or an append may still hold them.
    fn retire(&self, removed: impl IntoIterator<Item = Entry>) {
        self.n_changes.fetch_add(1, Ordering::Release);
        removed.into_iter().for_each(|entry| write(&entry.namespace).clear());
    }
}

impl Namespace {
    fn rotate(&mut self) {
        self.void_matches();
        self.automata.swap(0, 1);
        self.automata[0].clear();
    }

    /// Also frees the memory, because the user asked to remove the data.
    fn clear(&mut self) {
        self.void_matches();
        for automaton in &mut self.automata {
            *automaton = SuffixAutomaton::with_max_tokens(automaton.max_tokens());
        }
        self.openings = VecDeque::new();
        self.count();
    }

    /// Updates the number of tokens.
    fn count(&self) {
        self.n_tokens.store(self.automata.iter().map(SuffixAutomaton::len).sum(), Ordering::Relaxed);
    }

    /// Invalidates all matches. Called before a change that invalidates states, so that a panic half-way
    /// leaves no valid match.
    fn void_matches(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.version += 1;
    }

    fn memory_usage(&self) -> usize {
        let of_openings: usize = self.openings.iter().map(|opening| size_of_val(&**opening)).sum();
        self.automata.iter().map(SuffixAutomaton::memory_usage).sum::<usize>() + of_openings
    }
}

/// Locks for reading. A panic elsewhere leaves at worst a partial response, which is still usable for drafts.
fn read(namespace: &RwLock<Namespace>) -> RwLockReadGuard<'_, Namespace> {
    namespace.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(namespace: &RwLock<Namespace>) -> RwLockWriteGuard<'_, Namespace> {
    namespace.write().unwrap_or_else(PoisonError::into_inner)
}

/// Drafts from earlier responses: follows the committed text through the automata of a [`HistoryStore`]'s
/// namespace. Where a response begins, it also proposes the beginnings of the newest ones ([`Openings`]).
///
/// Reads under a lock that is held for writing only at a response's end, in this or another session. When the
/// history has grown, the newest tokens of the text are matched again, so matches are exact up to
/// [`Self::REMATCH_LEN`] tokens. Two sessions of one namespace see each other's responses as they finish.
/// Their drafts then depend on timing, but their output does not.
#[derive(Clone, Debug)]
pub struct HistorySource {
    store: Arc<HistoryStore>,
    name: Arc<str>,
    /// The namespace as of `n_changes` changes of the store.
    namespace: Option<Arc<RwLock<Namespace>>>,
    n_changes: u64,
    config: OrderConfig,
    /// The running match in each automaton.
    matches: [Match; 2],
    /// Version of the namespace for which the matches are valid, and the number of committed tokens that they
    /// have followed.
    version: u64,
    n_followed: usize,
    /// Number of committed tokens where the response begins, and the openings there.
    begin: usize,
    openings: Openings,
}

/// A place in an opening as a cursor. As a match it is empty, and the empty suffix is excluded from the matches.
fn opening_cursor(place: OpeningPlace) -> Cursor {
    Cursor(u64::from(place.next) | u64::from(place.agreed) << 48)
}

fn opening_of(cursor: Cursor) -> Option<OpeningPlace> {
    let place = OpeningPlace { next: cursor.0 as u32, agreed: (cursor.0 >> 48) as u16 };
    orders::decode(cursor).0.is_empty().then_some(place)
}

impl HistorySource {
    /// Number of committed tokens that are matched again at the start and after a change of the history.
    pub const REMATCH_LEN: usize = 64;

    fn new(store: Arc<HistoryStore>, name: &str, config: OrderConfig) -> Self {
        HistorySource {
            store,
            name: name.into(),
            namespace: None,
            n_changes: u64::MAX,
            // The empty suffix is excluded: only the session's own sources propose its most frequent tokens.
            config: OrderConfig { match_len_min: config.match_len_min.max(1), ..config },
            matches: [Match::EMPTY; 2],
            version: u64::MAX,
            n_followed: 0,
            begin: usize::MAX,
            openings: Openings::default(),
        }
    }

    /// Looks the namespace up again if namespaces were added or removed.
    fn find_namespace(&mut self) {
        // Read before the look-up: a concurrent change is found by the next call.
        let n_changes = self.store.n_changes.load(Ordering::Acquire);
        if n_changes != self.n_changes {
            let found = self.store.find(&self.name);
            if found.as_ref().map(Arc::as_ptr) != self.namespace.as_ref().map(Arc::as_ptr) {
                self.version = u64::MAX; // the matches belong to another namespace
            }
            (self.namespace, self.n_changes) = (found, n_changes);
        }
    }

    /// Advances the matches to the end of the committed text. Returns the generation, read under the same
    /// lock, because the automata may change before the next lock.
    fn follow(&mut self, committed: &[TokenId]) -> u16 {
        self.find_namespace();
        let Some(namespace) = &self.namespace else {
            self.matches = [Match::EMPTY; 2];
            return 0;
        };
        let namespace = read(namespace);
        let n_new = committed.len().wrapping_sub(self.n_followed);
        let n_read = if namespace.version == self.version && n_new < Self::REMATCH_LEN {
            n_new
        } else {
            self.matches = [Match::EMPTY; 2];
            committed.len().min(Self::REMATCH_LEN)
        };
        for (m, automaton) in self.matches.iter_mut().zip(&namespace.automata) {
            for token in &committed[committed.len() - n_read..] {
                *m = automaton.follow(*m, token.0);
            }
        }
        self.version = namespace.version;
        self.n_followed = committed.len();
        namespace.generation
    }

    /// Reads the openings and pushes their begins.
    fn push_openings(&mut self, out: &mut Vec<Anchor>) {
        let Some(namespace) = &self.namespace else { return };
        self.openings.set(read(namespace).openings.iter().map(AsRef::as_ref));
        let begins = self.openings.begins();
        out.extend(begins.map(|place| Anchor { cursor: opening_cursor(place), match_len: 0 }));
    }

    /// Pushes the matches, longest first, as cursors of the generation that [`follow`](Self::follow)
    /// returned.
    fn push_anchors(&self, generation: u16, out: &mut Vec<Anchor>) {
        for (automaton, m) in self.matches.iter().enumerate() {
            if m.len() >= self.config.match_len_min as usize {
                let cursor = orders::encode(*m, tag(generation, automaton));
                out.push(Anchor { cursor, match_len: m.len() as u32 });
            }
        }
        out.sort_by_key(|anchor| std::cmp::Reverse(anchor.match_len));
    }
}

/// The tag of a cursor: the lowest bit selects the automaton.
fn tag(generation: u16, automaton: usize) -> u16 {
    generation << 1 | automaton as u16
}

impl DraftSource for HistorySource {
    fn name(&self) -> &str {
        "history"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TextMatch
    }

    /// `anchors` reads the text. A response follows it.
    fn prime(&mut self, committed: &[TokenId]) {
        self.begin = committed.len();
    }

    fn truncate(&mut self, _len: usize) {
        (self.version, self.begin) = (u64::MAX, usize::MAX);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        let generation = self.follow(committed);
        self.push_anchors(generation, out);
        if committed.len() == self.begin {
            self.push_openings(out);
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        let Some(namespace) = &self.namespace else { return };
        let namespace = read(namespace);
        for (parent, &cursor) in frontier.iter().enumerate() {
            if let Some(place) = opening_of(cursor) {
                let places = frontier.iter().filter_map(|&cursor| opening_of(cursor));
                if let Some(token) = self.openings.token(place, places) {
                    out.push(token.candidate(parent as u32, opening_cursor(token.next)));
                }
                continue;
            }
            let (m, generation) = orders::decode(cursor);
            let automaton = usize::from(generation & 1);
            if generation == tag(namespace.generation, automaton) {
                let automaton = &namespace.automata[automaton];
                orders::propose(automaton, m, &self.config, (parent as u32, generation), out);
            }
        }
    }

    fn observe(&mut self, committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.follow(committed);
    }

    fn memory_usage(&self) -> u64 {
        self.openings.memory_usage() as u64 // the store reports shared memory
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }
}

impl TargetListener for HistorySource {
    fn frequent_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        self.find_namespace();
        let Some(namespace) = &self.namespace else { return Vec::new() };
        let namespace = read(namespace);
        most_frequent(namespace.automata.iter().flat_map(SuffixAutomaton::token_counts), n_max)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::predictions::EchoList;
    use super::*;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        ids.into_iter().map(TokenId).collect()
    }

    fn expand(source: &mut HistorySource, anchors: &[Anchor]) -> usize {
        let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
        let mut candidates = Candidates::with_limit(16);
        source.expand(&frontier, &mut candidates);
        candidates.as_slice().len()
    }

    #[test]
    fn anchors_belong_to_the_generation_that_was_followed() {
        let store = Arc::new(HistoryStore::new());
        store.append("a", &tokens(0..100));
        let mut source = store.source("a");
        let generation = source.follow(&tokens(50..60));
        store.forget("a");
        let mut anchors = Vec::new();
        source.push_anchors(generation, &mut anchors);
        assert_eq!(anchors[0].match_len, 10);
        assert_eq!(expand(&mut source, &anchors), 0);
    }

    #[test]
    fn a_response_begins_as_the_newest_ones_did() {
        let store = Arc::new(HistoryStore::new());
        for ids in [[1, 2, 3], [1, 2, 4], [5, 6, 7]] {
            store.append("a", &tokens(ids));
        }
        let mut source = store.source("a");
        let prompt = tokens([40, 41]);
        let mut anchors = Vec::new();
        source.anchors(&prompt, &mut anchors);
        assert!(anchors.is_empty(), "nothing matches, and no response begins");
        source.prime(&prompt);
        source.anchors(&prompt, &mut anchors);
        let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
        let mut first = Candidates::with_limit(16);
        source.expand(&frontier, &mut first);
        assert_eq!(first.as_slice().iter().map(|c| c.token.0).collect::<Vec<_>>(), [5, 1, 1]);
        let mut second = Candidates::with_limit(16);
        source.expand(&[first.as_slice()[1].next, first.as_slice()[2].next], &mut second);
        assert_eq!(
            second.as_slice().iter().map(|c| (c.token.0, c.match_len)).collect::<Vec<_>>(),
            [(2, 1), (2, 1)]
        );
        store.forget("a");
        source.prime(&prompt);
        anchors.clear();
        source.anchors(&prompt, &mut anchors);
        assert!(anchors.is_empty(), "forgotten");
    }

    #[test]
    fn lists_of_echo_are_forgotten_with_their_namespace() {
        let list = EchoList { key: 7, tokens: [1, 2, 3, 4, 5, 6, 7, 8], sixteenths: [9; 8] };
        let store = HistoryStore::new();
        let [a, b] = ["a", "b"].map(|namespace| store.echo(namespace));
        for echo in [&a, &b] {
            echo.replace(4, &[list]);
        }
        assert_eq!(store.echo("a").lists(), [list], "shared");
        assert!(store.memory_usage() > 0);
        store.forget("a");
        assert_eq!((a.len(), b.len()), (0, 1));
        store.clear();
        assert_eq!((b.len(), store.memory_usage()), (0, 0));
        b.replace(4, &[list]);
        assert_eq!(store.echo("b").lists(), [list], "still shared");
        for i in 0..HistoryStore::NAMESPACES_MAX {
            store.echo(&i.to_string());
        }
        assert!(store.echo("b").is_empty(), "asked for longest ago");
        assert_eq!(b.lists(), [list], "its sessions keep them");
    }

    /// The state after a panic between a rotation and the following append.
    #[test]
    fn a_rotation_alone_voids_the_matches() {
        let store = Arc::new(HistoryStore::new());
        store.append("a", &tokens(0..100));
        let mut source = store.source("a");
        source.follow(&tokens(50..60));
        let namespace = store.find("a").expect("appended to");
        write(&namespace).rotate();
        let mut anchors = Vec::new();
        source.anchors(&tokens(50..60), &mut anchors);
        assert_eq!(expand(&mut source, &anchors), 1);
    }

    #[test]
    fn drafts_while_other_threads_change_the_history() {
        let store = Arc::new(HistoryStore::with_tokens_max(64));
        let text = tokens(10..40);
        let end = Instant::now() + Duration::from_millis(200);
        std::thread::scope(|scope| {
            for changer in 0..2 {
                let (store, text) = (&store, &text);
                scope.spawn(move || {
                    while Instant::now() < end {
                        store.append("a", text);
                        match changer {
                            0 => store.forget("a"),
                            _ => store.append("a", &text[..3]),
                        }
                    }
                });
            }
            for _ in 0..2 {
                let (mut source, text) = (store.source("a"), &text);
                scope.spawn(move || {
                    let mut anchors = Vec::new();
                    while Instant::now() < end {
                        anchors.clear();
                        source.anchors(text, &mut anchors);
                        expand(&mut source, &anchors);
                    }
                });
            }
        });
    }

    /// Against a list of namespaces in the order of their newest responses.
    #[test]
    fn all_namespaces_together_have_a_bound() {
        let (total, of_one) = (100, 40);
        let store = HistoryStore::with_tokens_max(of_one).with_total_tokens_max(total);
        assert_eq!(store.total_tokens_max, total);
        let mut known: Vec<(String, usize)> = Vec::new();
        let mut x = 1u64;
        for step in 0..2000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (name, len) = (format!("{}", (x >> 33) % 9), (x >> 40) as usize % 20 + 1);
            store.append(&name, &tokens((0..len as u32).map(|i| i ^ step)));
            // Within a namespace, the bound of one namespace decides.
            known.retain(|(known, _)| *known != name);
            known.push((name.clone(), store.n_tokens(&name)));
            while known.iter().map(|(_, n)| n).sum::<usize>() > total {
                known.remove(0);
            }
            assert!(store.n_tokens(&name) >= len.min(of_one as usize / 2), "the newest response stays");
            for i in 0..9 {
                let name = format!("{i}");
                let expected = known.iter().find(|(known, _)| *known == name).map_or(0, |(_, n)| *n);
                assert_eq!(store.n_tokens(&name), expected, "step {step}, namespace {name}");
            }
        }
        assert!(known.len() < 9, "{known:?}");
    }

    #[test]
    fn the_bound_of_all_namespaces_is_at_least_that_of_one() {
        for (of_one, total, expected) in [
            (None, None, HistoryStore::TOTAL_TOKENS_MAX),
            (Some(1 << 22), None, 1 << 22),
            (Some(0), Some(0), 2),
            (Some(u32::MAX), Some(10), 10),
        ] {
            let store = of_one.map_or_else(HistoryStore::new, HistoryStore::with_tokens_max);
            let store = total.into_iter().fold(store, HistoryStore::with_total_tokens_max);
            assert_eq!(store.total_tokens_max, expected);
            store.append("a", &tokens(0..64));
            assert!(store.n_tokens("a") <= expected);
        }
    }

    #[test]
    fn released_responses_are_gone_and_lists_of_echo_stay() {
        let store = Arc::new(HistoryStore::new());
        let list = EchoList { key: 7, tokens: [1, 2, 3, 4, 5, 6, 7, 8], sixteenths: [9; 8] };
        store.echo("a").replace(4, &[list]);
        let only_echo = store.memory_usage();
        let mut source = store.source("a");
        for _ in 0..2 {
            store.append("a", &tokens(0..1000));
            let mut anchors = Vec::new();
            source.anchors(&tokens(5..9), &mut anchors);
            assert_eq!(expand(&mut source, &anchors), 1);
            store.release();
            assert_eq!((store.n_namespaces(), store.memory_usage()), (0, only_echo));
            source.anchors(&tokens(5..9), &mut anchors);
            assert_eq!(expand(&mut source, &anchors[1..]), 0);
        }
        assert_eq!(store.echo("a").lists(), [list]);
    }

    #[test]
    fn looking_up_adds_no_namespace_and_forgetting_removes_it() {
        let store = Arc::new(HistoryStore::new());
        let mut source = store.source("a");
        let mut anchors = Vec::new();
        source.anchors(&tokens(0..5), &mut anchors);
        store.forget("b");
        store.append("c", &[]);
        assert_eq!((store.n_tokens("d"), store.n_namespaces()), (0, 0));
        store.append("a", &tokens(0..10));
        assert_eq!(store.n_namespaces(), 1);
        store.forget("a");
        assert_eq!((store.n_namespaces(), store.memory_usage()), (0, 0));
    }

    #[test]
    fn frequent_tokens_are_those_of_all_responses_of_the_namespace() {
        let store = Arc::new(HistoryStore::new());
        let mut source = store.source("a");
        assert_eq!(source.frequent_tokens(4), []);
        store.append("a", &tokens([5, 6, 5, 7]));
        store.append("a", &tokens([9, 6, 5]));
        store.append("b", &tokens([1, 1, 1, 1]));
        assert_eq!(source.frequent_tokens(3), tokens([5, 6, 7]));
        assert_eq!(source.frequent_tokens(0), []);
    }

    #[test]
    fn a_source_sees_its_namespace_go_and_come_back() {
        let store = Arc::new(HistoryStore::new());
        let mut source = store.source("a");
        let mut fork = source.clone();
        let text = tokens(0..5);
        for _ in 0..3 {
            for source in [&mut source, &mut fork] {
                let mut anchors = Vec::new();
                source.anchors(&text, &mut anchors);
                assert!(anchors.is_empty());
            }
            store.append("a", &tokens(0..10));
            for source in [&mut source, &mut fork] {
                let mut anchors = Vec::new();
                source.anchors(&text, &mut anchors);
                assert_eq!(anchors[0].match_len, 5);
                assert_eq!(expand(source, &anchors), 1);
            }
            store.forget("a");
        }
    }

    #[test]
    fn the_namespace_without_a_response_for_longest_is_dropped() {
        let store = Arc::new(HistoryStore::with_tokens_max(16));
        let name = |i: usize| format!("{i}");
        for i in 0..HistoryStore::NAMESPACES_MAX {
            store.append(&name(i), &tokens(0..3));
        }
        let mut source = store.source(&name(1));
        assert_eq!(source.follow(&tokens(0..2)), 0);
        store.append(&name(0), &tokens(0..3));
        store.append("one more", &tokens(0..3));
        assert_eq!(store.n_namespaces(), HistoryStore::NAMESPACES_MAX);
        assert_eq!((store.n_tokens(&name(0)), store.n_tokens(&name(1)), store.n_tokens(&name(2))), (6, 0, 3));
        let mut anchors = Vec::new();
        source.anchors(&tokens(0..2), &mut anchors);
        assert!(anchors.is_empty());
    }
}
