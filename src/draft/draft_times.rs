//! Measured times of drafting: each source's lookups and the builder's own work, per node of a tree.

use serde::{Deserialize, Serialize};

use super::limits::SOURCES_MAX;
use super::name::SourceName;

/// Cost of one node with all sources before any build was timed, µs. Measured for automata in cold caches; in
/// warm caches it is a third (`benches/drafting.rs`).
pub(super) const DRAFT_US_PER_NODE: f32 = 1.5;

/// Cost of one node with one source that was not timed yet, µs: a share of the above.
const SOURCE_US: f32 = 0.3;

/// Maximum time, µs per node: a longer time is an interruption.
const US_MAX: f32 = 1e4;

/// Maximum ratio of a time to the known mean; larger times are clamped.
const OUTLIER: f32 = 4.0;

/// Minimum weight of a timed build in the mean.
const RATE: f32 = 1.0 / 16.0;

/// The mean time per node of each source, by name, and of the builder itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DraftTimes {
    builder: Mean,
    /// At most [`SOURCES_MAX`]: a further one replaces the source with the fewest timed builds.
    sources: Vec<(SourceName, Mean)>,
}

/// A mean over timed builds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mean {
    us: f32,
    n: u32,
}

impl DraftTimes {
    /// Times without a measurement.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expected time per node of a tree that is built from these sources, in µs.
    pub fn us_per_node<'a>(&self, sources: impl Iterator<Item = &'a str>) -> f32 {
        if self.builder.n == 0 {
            return DRAFT_US_PER_NODE;
        }
        let of_source = |name| self.of(name).map_or(SOURCE_US, |mean| mean.us);
        self.builder.us + sources.map(of_source).sum::<f32>()
    }

    /// The mean time of a source, in µs per node, if it was timed.
    pub fn source_us(&self, name: &str) -> Option<f32> {
        self.of(name).map(|mean| mean.us)
    }

    /// Adds the builder's own time in a timed build, in µs per node.
    pub(super) fn observe_builder(&mut self, us: f32) {
        self.builder.observe(us);
    }

    /// Adds the time of a source in a timed build, in µs per node.
    pub(super) fn observe_source(&mut self, name: &str, us: f32) {
        let at = self.sources.iter().position(|(held, _)| *held == *name);
        let at = at.unwrap_or_else(|| self.insert(name.into(), Mean::default()));
        self.sources[at].1.observe(us);
    }

    /// Adds the timed builds between `base` and `theirs`, each with the same weight.
    pub(super) fn merge(&mut self, base: &Self, theirs: &Self) {
        self.builder = self.builder.merged(base.builder, theirs.builder);
        for (name, theirs) in &theirs.sources {
            let base = base.of(name.as_str()).unwrap_or_default();
            match self.sources.iter().position(|(held, _)| held == name) {
                Some(at) => self.sources[at].1 = self.sources[at].1.merged(base, *theirs),
                None => drop(self.insert(name.clone(), *theirs)),
            }
        }
    }

    /// The stored form: the builder's mean, and the mean of each source.
    pub(super) fn to_stored(&self) -> (Mean, &[(SourceName, Mean)]) {
        (self.builder, &self.sources)
    }

    /// # Errors
    /// The reason why the times are invalid.
    pub(super) fn from_stored(builder: Mean, sources: Vec<(SourceName, Mean)>) -> Result<Self, &'static str> {
        let is_mean = |mean: &Mean| (0.0..=US_MAX).contains(&mean.us);
        if sources.len() > SOURCES_MAX {
            return Err("there are too many draft times");
        }
        if !is_mean(&builder) || !sources.iter().all(|(_, mean)| is_mean(mean)) {
            return Err("a draft time is not in its range");
        }
        Ok(Self { builder, sources })
    }

    fn of(&self, name: &str) -> Option<Mean> {
        self.sources.iter().find(|(held, _)| *held == *name).map(|(_, mean)| *mean)
    }

    fn insert(&mut self, name: SourceName, mean: Mean) -> usize {
        if self.sources.len() < SOURCES_MAX {
            self.sources.push((name, mean));
            return self.sources.len() - 1;
        }
        let rarest = self.sources.iter().enumerate().min_by_key(|(_, (_, mean))| mean.n);
        let at = rarest.expect("a full list is not empty").0;
        self.sources[at] = (name, mean);
        at
    }
}

impl Mean {
    fn observe(&mut self, us: f32) {
        if !us.is_finite() || us < 0.0 {
            return;
        }
        let us = if self.n == 0 { us } else { us.min(OUTLIER * self.us.max(0.01)) };
        self.n = self.n.saturating_add(1);
        self.us += (us.min(US_MAX) - self.us) * RATE.max(1.0 / self.n as f32);
    }

    fn merged(self, base: Mean, theirs: Mean) -> Mean {
        let (n_mine, n_theirs) = (self.n.saturating_sub(base.n), theirs.n.saturating_sub(base.n));
        if n_mine == 0 {
            return theirs;
        }
        let weight = n_theirs as f32 / (n_mine as f32 + n_theirs as f32);
        Mean { us: self.us + weight * (theirs.us - self.us), n: self.n.saturating_add(n_theirs) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_over_sources_and_interruptions_count_little() {
        let mut times = DraftTimes::new();
        let per_node = |times: &DraftTimes, names: &[&str]| times.us_per_node(names.iter().copied());
        assert_eq!(per_node(&times, &["context", "history"]), DRAFT_US_PER_NODE);
        for i in 0..400 {
            times.observe_builder(0.2);
            times.observe_source("context", if i % 100 == 99 { 5000.0 } else { 0.5 });
            times.observe_source("slow", 40.0);
        }
        let context = per_node(&times, &["context"]);
        assert!((0.65..0.95).contains(&context), "{context}");
        assert!((per_node(&times, &["context", "slow"]) - context - 40.0).abs() < 0.1);
        assert!((per_node(&times, &["context", "new"]) - context - SOURCE_US).abs() < 1e-3);
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            let before = times.clone();
            times.observe_source("slow", bad);
            assert_eq!(times, before);
        }
    }

    #[test]
    fn names_are_bounded() {
        let mut times = DraftTimes::new();
        (0..3).for_each(|_| times.observe_source("context", 1.0));
        (0..2 * SOURCES_MAX).for_each(|i| times.observe_source(&format!("source {i}"), 1.0));
        assert_eq!(times.sources.len(), SOURCES_MAX);
        assert_eq!(times.source_us("context"), Some(1.0));
    }

    #[test]
    fn builds_of_two_generations_count_alike() {
        let mut shared = DraftTimes::new();
        (0..100).for_each(|_| shared.observe_source("context", 1.0));
        let base = shared.clone();
        let (mut one, mut other) = (base.clone(), base.clone());
        (0..100).for_each(|_| one.observe_source("context", 2.0));
        (0..100).for_each(|_| other.observe_source("context", 3.0));
        shared.merge(&base, &one);
        assert_eq!(shared, one);
        shared.merge(&base, &other);
        let us = shared.source_us("context").unwrap();
        assert!((us - 2.5).abs() < 0.02, "{us}");
        assert_eq!(shared.sources[0].1.n, 300);
    }
}
