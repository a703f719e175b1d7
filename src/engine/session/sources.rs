//! The draft sources of a session, and of its running generation.

use std::ops::Range;

use crate::cancel::CancelToken;
use crate::draft::{
    DraftSource, DraftTree, EvidenceClass, HiddenStates, NodeIdx, SOURCES_MAX, SuccessorLists,
};
use crate::draft_model::{DraftModelSource, OwnRows};
use crate::engine::error::SessionProblem;
use refrain_trees::TokenId;

/// The sources, and what they have observed.
pub(in crate::engine) struct Sources {
    /// The session's own sources, then those of the running generation.
    list: Vec<Box<dyn DraftSource>>,
    /// Number of the session's own sources.
    n_own: usize,
    /// Number of committed tokens that the sources have observed.
    primed: usize,
    /// Number of positions whose successor lists or hidden states the sources have received.
    calibrated: usize,
    /// Whether a call of a source has begun and not ended: the source panicked, so its state is unknown.
    is_disturbed: bool,
    /// What sources watch between calls: never cancelled.
    never: CancelToken,
}

impl Sources {
    pub(super) fn new(list: Vec<Box<dyn DraftSource>>) -> Self {
        Self {
            n_own: list.len(),
            list,
            primed: 0,
            calibrated: 0,
            is_disturbed: false,
            never: CancelToken::new(),
        }
    }

    /// The sources of a fork, whose target has `own_rows` in common with one of them.
    pub(super) fn fork(&self, own_rows: Option<&OwnRows>) -> Self {
        let forks = self.own().iter().map(|source| -> Box<dyn DraftSource> {
            match own_rows.map(DraftModelSource::of_rows) {
                Some(of_rows) if of_rows.name() == source.name() => Box::new(of_rows),
                _ => source.fork(),
            }
        });
        let Self { primed, calibrated, is_disturbed, .. } = *self;
        Self { primed, calibrated, is_disturbed, ..Self::new(forks.collect()) }
    }

    /// All sources, to look at.
    pub(in crate::engine) fn all(&self) -> &[Box<dyn DraftSource>] {
        &self.list
    }

    /// The session's own sources.
    pub(super) fn own(&self) -> &[Box<dyn DraftSource>] {
        &self.list[..self.n_own]
    }

    /// Adds a source of the session.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source); nothing is changed.
    pub(super) fn add_own(
        &mut self,
        source: Box<dyn DraftSource>,
        tokens: &[TokenId],
    ) -> Result<(), SessionProblem> {
        // A generation that was leaked has left its sources.
        self.end_generation();
        self.check_source(source.as_ref())?;
        self.add(source, tokens);
        self.n_own = self.list.len();
        Ok(())
    }

    /// Adds the sources of the generation that starts.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source); no source is added.
    pub(in crate::engine) fn start_generation(
        &mut self,
        sources: Vec<Box<dyn DraftSource>>,
        tokens: &[TokenId],
    ) -> Result<(), SessionProblem> {
        self.end_generation();
        for source in sources {
            if let Err(error) = self.check_source(source.as_ref()) {
                self.end_generation();
                return Err(error);
            }
            self.add(source, tokens);
        }
        Ok(())
    }

    /// Drops the sources of the generation.
    pub(in crate::engine) fn end_generation(&mut self) {
        self.list.truncate(self.n_own);
    }

    /// Checks that a source may be added.
    ///
    /// # Errors
    /// [`SessionProblem::TooManySources`]; [`SessionProblem::DuplicateSource`]: there is a source of this name.
    fn check_source(&self, source: &dyn DraftSource) -> Result<(), SessionProblem> {
        if self.list.len() >= SOURCES_MAX {
            return Err(SessionProblem::TooManySources { max: SOURCES_MAX });
        }
        if self.list.iter().any(|held| held.name() == source.name()) {
            return Err(SessionProblem::DuplicateSource { name: source.name().into() });
        }
        Ok(())
    }

    /// Puts a source in the place of the session's own source of its name. No effect if there is none.
    pub(super) fn exchange(&mut self, mut source: Box<dyn DraftSource>, tokens: &[TokenId]) {
        let mut own = self.list[..self.n_own].iter_mut();
        if let Some(held) = own.find(|held| held.name() == source.name()) {
            source.prime(&tokens[..self.primed]);
            *held = source;
        }
    }

    /// Adds a source; it observes the tokens that the other sources have observed.
    fn add(&mut self, mut source: Box<dyn DraftSource>, tokens: &[TokenId]) {
        source.truncate(0);
        source.prime(&tokens[..self.primed]);
        self.list.push(source);
    }

    /// As [`guarded`](Self::guarded), for work in which sources compute: they stop soon after `cancel` is set. No source holds the
    /// flag when the call has ended, so it cannot stop the work of a later call.
    pub(in crate::engine) fn watched<T>(
        &mut self,
        cancel: &CancelToken,
        work: impl FnOnce(&mut [Box<dyn DraftSource>]) -> T,
    ) -> T {
        let never = self.never.clone();
        self.guarded(|sources| {
            watch(sources, cancel);
            let result = work(sources);
            watch(sources, &never);
            result
        })
    }

    /// Runs `work` on the sources. If it panics, every source restarts before its next call.
    pub(in crate::engine) fn guarded<T>(&mut self, work: impl FnOnce(&mut [Box<dyn DraftSource>]) -> T) -> T {
        // Only `recover` clears the mark of an earlier panic.
        let was_disturbed = std::mem::replace(&mut self.is_disturbed, true);
        let result = work(&mut self.list);
        self.is_disturbed = was_disturbed;
        result
    }

    /// Restarts every source if a call of one has panicked.
    pub(super) fn recover(&mut self) {
        if self.is_disturbed {
            self.list.iter_mut().for_each(|source| source.truncate(0));
            watch(&mut self.list, &self.never);
            (self.primed, self.calibrated, self.is_disturbed) = (0, 0, false);
        }
    }

    /// Passes the committed tokens that the sources have not observed to them.
    pub(in crate::engine) fn prime(&mut self, tokens: &[TokenId], cancel: &CancelToken) {
        self.recover();
        if self.primed < tokens.len() {
            self.watched(cancel, |sources| sources.iter_mut().for_each(|source| source.prime(tokens)));
            self.primed = tokens.len();
        }
    }

    /// Whether one of them computes.
    pub(in crate::engine) fn compute(&mut self) -> bool {
        self.list.iter_mut().any(|source| source.computing().is_some())
    }

    /// Number of committed tokens that the sources have observed.
    pub(in crate::engine) fn n_observed(&self) -> usize {
        self.primed
    }

    /// The hidden states of the target that sources read: the final ones, and those before layers, of which there is one choice.
    pub(in crate::engine) fn reads_hidden(&mut self) -> [Option<HiddenStates>; 2] {
        let mut read = [None; 2];
        for states in self.list.iter_mut().filter_map(|source| source.computing()?.reads_hidden()) {
            read[usize::from(states != HiddenStates::Final)].get_or_insert(states);
        }
        read
    }

    /// Passes hidden states of the target, those of `positions`, to the sources that read them.
    pub(in crate::engine) fn read_hidden(
        &mut self,
        tokens: &[TokenId],
        positions: Range<usize>,
        (states, hidden): (HiddenStates, &[f32]),
        cancel: &CancelToken,
    ) {
        let Range { start: first, end } = positions;
        self.calibrated = self.calibrated.max(end);
        self.watched(cancel, |sources| {
            let computing = sources.iter_mut().filter_map(|source| source.computing());
            let reading = computing.filter(|source| source.reads_hidden() == Some(states));
            reading.for_each(|source| source.read_hidden(tokens, first, hidden));
        });
    }

    /// Removes the committed tokens from `len` on. Automata cannot remove tokens, so their sources restart
    /// and are primed before the next step.
    pub(in crate::engine) fn truncate(&mut self, len: usize) {
        if self.is_disturbed {
            // The sources start again anyway. A second panic, while the first one unwinds, would abort.
            (self.primed, self.calibrated) = (0, self.calibrated.min(len));
            return;
        }
        if len < self.primed.max(self.calibrated) {
            self.guarded(|sources| sources.iter_mut().for_each(|source| source.truncate(len)));
            self.primed = 0;
            self.calibrated = self.calibrated.min(len);
        }
    }

    /// Passes the target's likely successors of the positions of `tokens` from `first` on to the sources that listen.
    pub(in crate::engine) fn calibrate(&mut self, tokens: &[TokenId], first: usize, lists: &SuccessorLists) {
        self.guarded(|sources| {
            let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
            listeners.for_each(|source| source.calibrate(tokens, first, lists));
        });
        self.calibrated = self.calibrated.max(first + lists.len());
    }

    /// Passes the target's likely successors of rejected nodes of `tree` to the sources that listen.
    pub(in crate::engine) fn reject(&mut self, tree: &DraftTree, nodes: &[NodeIdx], lists: &SuccessorLists) {
        if nodes.is_empty() {
            return;
        }
        self.guarded(|sources| {
            let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
            listeners.for_each(|source| source.reject(tree, nodes, lists));
        });
    }

    /// Counts the tokens of a step as observed.
    pub(in crate::engine) fn note_observed(&mut self, n_tokens: usize) {
        self.primed = n_tokens;
    }

    /// Releases the memory of the sources of the classes selected by `is_released`. With all of them, they have observed nothing.
    pub(super) fn release(&mut self, is_released: impl Fn(EvidenceClass) -> bool) {
        self.guarded(|sources| {
            let released = sources.iter_mut().filter(|source| is_released(source.evidence()));
            released.for_each(|source| source.release());
        });
    }

    /// The sources have observed nothing.
    pub(super) fn forget_observed(&mut self) {
        (self.primed, self.calibrated) = (0, 0);
    }

    /// Bytes of the sources.
    pub(super) fn memory_usage(&self) -> usize {
        self.list.iter().map(|source| source.memory_usage()).sum::<u64>() as usize
    }
}

/// Sets the flag that sources watch while they compute.
fn watch(sources: &mut [Box<dyn DraftSource>], cancel: &CancelToken) {
    let computing = sources.iter_mut().filter_map(|source| source.computing());
    computing.for_each(|source| source.watch(cancel.flag()));
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::draft::testing::stateless_source;
    use crate::draft::{Anchor, Candidates, Computed, ComputingSource, Cursor};

    /// Shows the flag that it watches.
    #[derive(Clone)]
    struct Watching(Arc<Mutex<Arc<AtomicBool>>>);

    impl DraftSource for Watching {
        stateless_source!("watching", TextMatch);

        fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
            Some(self)
        }

        fn anchors(&mut self, _: &[TokenId], _: &mut Vec<Anchor>) {}

        fn expand(&mut self, _: &[Cursor], _: &mut Candidates) {}
    }

    impl ComputingSource for Watching {
        fn watch(&mut self, cancel: &Arc<AtomicBool>) {
            *self.0.lock().unwrap() = Arc::clone(cancel);
        }

        fn computed(&self) -> Computed {
            Computed::default()
        }
    }

    #[test]
    fn a_flag_is_watched_for_one_call() {
        let watched: Arc<Mutex<Arc<AtomicBool>>> = Arc::default();
        let sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Watching(Arc::clone(&watched)))];
        let mut sources = Sources::new(sources);
        let is_set = || watched.lock().unwrap().load(Ordering::Relaxed);
        let cancel = CancelToken::new();
        sources.watched(&cancel, |_| {
            assert!(!is_set());
            cancel.cancel();
            assert!(is_set());
        });
        assert!(!is_set(), "the call has ended");
        sources.prime(&[TokenId(1)], &cancel);
        sources.read_hidden(&[TokenId(1)], 0..1, (HiddenStates::Final, &[]), &cancel);
        assert!(!is_set());
        let panicked = catch_unwind(AssertUnwindSafe(|| sources.watched(&cancel, |_| panic!("planted"))));
        assert!(panicked.is_err() && is_set());
        sources.recover();
        assert!(!is_set(), "the sources begin anew");
    }
}
