//! The drafting part of a session: its sources, the tree builder, and the policy of the running generation.

use std::ops::Range;

use crate::cancel::CancelToken;
use crate::draft::{
    BuilderConfig, CostProfile, DraftSource, DraftTree, HiddenStates, SOURCES_MAX, TreeBuilder,
};
use crate::draft_model::{DraftModelSource, OwnRows};
use crate::engine::error::SessionError;
use crate::engine::policy::Policy;
use refrain_trees::TokenId;

/// State of drafting for one session.
pub(in crate::engine) struct DraftingState {
    /// The session's own sources, then those of the running generation.
    pub(in crate::engine) sources: Vec<Box<dyn DraftSource>>,
    /// Number of the session's own sources.
    n_own: usize,
    pub(in crate::engine) builder: TreeBuilder,
    pub(in crate::engine) policy: Policy,
    /// Row costs behind `context` tokens, as learned by the running generation.
    pub(in crate::engine) costs: CostProfile,
    pub(in crate::engine) context: usize,
    /// The newest step's draft.
    pub(in crate::engine) tree: DraftTree,
    /// Number of committed tokens that the sources have observed.
    pub(in crate::engine) primed: usize,
    /// Number of positions whose successor lists or hidden states the sources have received.
    pub(in crate::engine) calibrated: usize,
    /// Whether a call of a source has begun and not ended: the source panicked, so its state is unknown.
    pub(super) is_disturbed: bool,
    /// What sources watch between calls: never cancelled.
    never: CancelToken,
}

impl DraftingState {
    pub(super) fn new(sources: Vec<Box<dyn DraftSource>>, bounds: BuilderConfig) -> Self {
        Self {
            n_own: sources.len(),
            sources,
            builder: TreeBuilder::new(bounds),
            policy: Policy::disabled(),
            costs: CostProfile::free_rows(1.0),
            context: 0,
            tree: DraftTree::default(),
            primed: 0,
            calibrated: 0,
            is_disturbed: false,
            never: CancelToken::new(),
        }
    }

    /// The session's own sources.
    pub(super) fn own_sources(&self) -> &[Box<dyn DraftSource>] {
        &self.sources[..self.n_own]
    }

    /// Adds a source of the session.
    ///
    /// # Errors
    /// As [`check_source`](Self::check_source); nothing is changed.
    pub(super) fn add_own(
        &mut self,
        source: Box<dyn DraftSource>,
        tokens: &[TokenId],
    ) -> Result<(), SessionError> {
        // A generation that was leaked has left its sources.
        self.end_generation();
        self.check_source(source.as_ref())?;
        self.add(source, tokens);
        self.n_own = self.sources.len();
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
    ) -> Result<(), SessionError> {
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

    /// The state of a fork, whose target has `own_rows` in common with a source.
    pub(super) fn fork(&self, own_rows: Option<&OwnRows>) -> Self {
        let sources = self.own_sources().iter().map(|source| -> Box<dyn DraftSource> {
            match own_rows.map(DraftModelSource::of_rows) {
                Some(of_rows) if of_rows.name() == source.name() => Box::new(of_rows),
                _ => source.fork(),
            }
        });
        let sources = sources.collect();
        let Self { primed, calibrated, is_disturbed, .. } = *self;
        Self { primed, calibrated, is_disturbed, ..Self::new(sources, self.builder.config()) }
    }

    /// Drops the sources of the generation.
    pub(in crate::engine) fn end_generation(&mut self) {
        self.sources.truncate(self.n_own);
    }

    /// Checks that a source may be added.
    ///
    /// # Errors
    /// [`SessionError::TooManySources`]; [`SessionError::DuplicateSource`]: there is a source of this name.
    fn check_source(&self, source: &dyn DraftSource) -> Result<(), SessionError> {
        if self.sources.len() >= SOURCES_MAX {
            return Err(SessionError::TooManySources { max: SOURCES_MAX });
        }
        if self.sources.iter().any(|held| held.name() == source.name()) {
            return Err(SessionError::DuplicateSource { name: source.name().into() });
        }
        Ok(())
    }

    /// Puts a source in the place of the session's own source of its name. No effect if there is none.
    pub(super) fn exchange(&mut self, mut source: Box<dyn DraftSource>, tokens: &[TokenId]) {
        let mut own = self.sources[..self.n_own].iter_mut();
        if let Some(held) = own.find(|held| held.name() == source.name()) {
            source.prime(&tokens[..self.primed]);
            *held = source;
        }
    }

    /// Adds a source; it observes the tokens that the other sources have observed.
    fn add(&mut self, mut source: Box<dyn DraftSource>, tokens: &[TokenId]) {
        source.reset();
        source.prime(&tokens[..self.primed]);
        self.sources.push(source);
    }

    /// Prepares a generation behind `context` tokens, with the costs there.
    pub(in crate::engine) fn begin(&mut self, policy: Policy, (costs, context): (CostProfile, usize)) {
        (self.policy, self.costs, self.context) = (policy, costs, context);
    }

    /// As [`guarded`](Self::guarded), for work in which sources compute: they stop soon after `cancel` is set. No source holds the
    /// flag when the call has ended, so it cannot stop the work of a later call.
    pub(in crate::engine) fn watched<T>(
        &mut self,
        cancel: &CancelToken,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.guarded(|drafting| {
            drafting.watch(cancel);
            let result = work(drafting);
            drafting.unwatch();
            result
        })
    }

    fn watch(&mut self, cancel: &CancelToken) {
        let computing = self.sources.iter_mut().filter_map(|source| source.computing());
        computing.for_each(|source| source.watch(cancel.flag()));
    }

    fn unwatch(&mut self) {
        let never = self.never.clone();
        self.watch(&never);
    }

    /// Runs `work` on the sources. If it panics, every source restarts before its next call.
    pub(in crate::engine) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        // Only `recover` clears the mark of an earlier panic.
        let was_disturbed = std::mem::replace(&mut self.is_disturbed, true);
        let result = work(self);
        self.is_disturbed = was_disturbed;
        result
    }

    /// Restarts every source if a call of one has panicked.
    pub(super) fn recover(&mut self) {
        if self.is_disturbed {
            self.sources.iter_mut().for_each(|source| source.reset());
            self.unwatch();
            (self.primed, self.calibrated, self.is_disturbed) = (0, 0, false);
        }
    }

    /// Passes the committed tokens that the sources have not observed to them.
    pub(in crate::engine) fn prime(&mut self, tokens: &[TokenId], cancel: &CancelToken) {
        self.recover();
        if self.primed < tokens.len() {
            self.watched(cancel, |drafting| {
                drafting.sources.iter_mut().for_each(|source| source.prime(tokens))
            });
            self.primed = tokens.len();
        }
    }

    /// The hidden states of the target that sources read: the final ones, and those before layers, of which there is one choice.
    pub(in crate::engine) fn reads_hidden(&mut self) -> [Option<HiddenStates>; 2] {
        let mut read = [None; 2];
        for states in self.sources.iter_mut().filter_map(|source| source.computing()?.reads_hidden()) {
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
        self.watched(cancel, |drafting| {
            let computing = drafting.sources.iter_mut().filter_map(|source| source.computing());
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
            self.guarded(|drafting| drafting.sources.iter_mut().for_each(|source| source.truncate(len)));
            self.primed = 0;
            self.calibrated = self.calibrated.min(len);
        }
    }

    /// Bytes of this session's drafting state.
    pub(super) fn memory_usage(&self) -> usize {
        self.builder.memory_usage() + self.sources.iter().map(|source| source.memory_usage()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::draft::{Anchor, Candidates, Computed, ComputingSource, Cursor, EvidenceClass, StepOutcome};

    /// Shows the flag that it watches.
    struct Watching(Arc<Mutex<Arc<AtomicBool>>>);

    impl DraftSource for Watching {
        fn name(&self) -> &str {
            "watching"
        }

        fn evidence(&self) -> EvidenceClass {
            EvidenceClass::TextMatch
        }

        fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
            Some(self)
        }

        fn prime(&mut self, _: &[TokenId]) {}

        fn reset(&mut self) {}

        fn anchors(&mut self, _: &[TokenId], _: &mut Vec<Anchor>) {}

        fn expand(&mut self, _: &[Cursor], _: &mut Candidates) {}

        fn observe(&mut self, _: &[TokenId], _: &StepOutcome<'_>) {}

        fn memory_usage(&self) -> usize {
            0
        }

        fn fork(&self) -> Box<dyn DraftSource> {
            Box::new(Self(Arc::default()))
        }
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
        let mut drafting = DraftingState::new(sources, BuilderConfig::new(10));
        let is_set = || watched.lock().unwrap().load(Ordering::Relaxed);
        let cancel = CancelToken::new();
        drafting.watched(&cancel, |_| {
            assert!(!is_set());
            cancel.cancel();
            assert!(is_set());
        });
        assert!(!is_set(), "the call has ended");
        drafting.prime(&[TokenId(1)], &cancel);
        drafting.read_hidden(&[TokenId(1)], 0..1, (HiddenStates::Final, &[]), &cancel);
        assert!(!is_set());
        let panicked = catch_unwind(AssertUnwindSafe(|| drafting.watched(&cancel, |_| panic!("planted"))));
        assert!(panicked.is_err() && is_set());
        drafting.recover();
        assert!(!is_set(), "the sources begin anew");
    }
}
