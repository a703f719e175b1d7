//! The measured acceptance rate of claims, by source.

mod cell;
mod drafted;
mod record;

use std::borrow::Cow;

use super::constants::ReliabilityConfig;
use super::evidence::{
    DEPTHS, Evidence, EvidenceClass, MATCH_LENS, PROBABILITIES, depth_bucket, match_len_bucket,
};
use super::fitted;
use super::limits::SOURCES_MAX;
use super::name::SourceName;
use super::prior::Prior;
use cell::{Cell, N_CELLS, cell_index};
use drafted::DraftedShift;
use record::{SWEEP_STEPS, SourceRecord};

pub(super) use record::StoredRecord;

/// The reliability table: from evidence to the probability that the target chooses the token.
///
/// A claim's probability starts at the prior of its class. The prior is a function of probability, match
/// length and count, fitted to recorded responses (`prior.rs`); for classes that do not match text it is the
/// claim itself. The prior is then corrected by the record of the claim's cell: source name × match length ×
/// probability × depth × agreement of other sources:
///
/// ```text
/// p = prior · (κ + hits) / (κ + expected)          expected = Σ prior over the cell's claims
/// ```
///
/// This is the posterior mean of a rate with a Gamma(κ, κ) prior. It shrinks like a Beta prior, but it
/// corrects the prior by a factor, so differences *within* a cell remain.
///
/// Every claim under a *visited* node is evidence, even if its token is not in the tree: the committed token
/// decides whether the claim was right. A table therefore learns even while nothing is drafted, and a source
/// that becomes useful is noticed at once. Old evidence fades: a cell's sums are halved when they exceed a
/// bound. A claim withheld by the builder, because its reach is below `reach_min`, is not judged. Every 256
/// steps the sums of cells with withheld claims and no judged claims are halved, so these claims return
/// towards their prior and are judged again.
///
/// Tokens that are drafted are corrected once more, all of a source alike, by what came true of that source's drafts (`drafted.rs`). This
/// correction learns only while the source drafts, and fades otherwise.
///
/// `update` and `probability` are O(1). A source takes 13 KB. A table holds at most [`SOURCES_MAX`] sources;
/// a further source replaces the source with the least evidence.
#[derive(Clone, Debug)]
pub struct ReliabilityTable {
    sources: Vec<SourceRecord>,
    prior: Cow<'static, Prior>,
    /// Upper bound of the prior of a text match. Shape `[text class, match length, probability]`.
    prior_max: Vec<f32>,
    config: ReliabilityConfig,
}

/// The place of a source's record in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceSlot(u8);

/// Bounds of a probability: no token is certain, none impossible.
const PROBABILITY_MIN: f32 = 1e-4;
const PROBABILITY_MAX: f32 = 0.995;

/// Hit rate assumed for the likeliest claim of a source that computes, before any claim was judged, …
const FIRST_HIT: f32 = 0.7;
/// … and its weight, in claims.
const FIRST_CLAIMS: f32 = 4.0;
/// Factor on the weight of observed claims in a step without one: half after 88 steps.
const FIRST_AGEING: f32 = 127.0 / 128.0;

impl Default for ReliabilityConfig {
    fn default() -> Self {
        fitted::RELIABILITY
    }
}

impl Default for ReliabilityTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ReliabilityTable {
    /// The built-in table: priors without evidence.
    pub fn new() -> Self {
        static SHIPPED: Prior = Prior::SHIPPED;
        Self::with_cow(Cow::Borrowed(&SHIPPED), fitted::RELIABILITY)
    }

    /// A table with another prior or another rate of learning.
    pub fn with_prior(prior: Prior, config: ReliabilityConfig) -> Self {
        Self::with_cow(Cow::Owned(prior), config)
    }

    fn with_cow(prior: Cow<'static, Prior>, config: ReliabilityConfig) -> Self {
        let classes = [EvidenceClass::TextMatch, EvidenceClass::ResumedCopy];
        let prior_max = classes.into_iter().flat_map(|class| {
            let prior = &prior;
            (0..MATCH_LENS).flat_map(move |len| {
                let most = move |bucket| prior.probability_max(class, len, bucket);
                (0..PROBABILITIES).map(most).map(|p| p.clamp(PROBABILITY_MIN, PROBABILITY_MAX))
            })
        });
        let prior_max = prior_max.collect();
        ReliabilityTable { sources: Vec::new(), prior, prior_max, config }
    }

    /// Returns the slot of the source of this name and class; adds a record if there is none.
    pub fn slot(&mut self, name: &str, class: EvidenceClass) -> SourceSlot {
        let mut slots = Vec::new();
        self.bind(std::iter::once((name, class)), &mut slots);
        slots[0]
    }

    /// Finds the slots of the sources of one session, at most [`SOURCES_MAX`]. `slots` holds the result of an
    /// earlier call, or is empty. If the sources are unchanged, nothing is searched.
    pub(super) fn bind<'a>(
        &mut self,
        sources: impl Iterator<Item = (&'a str, EvidenceClass)> + Clone,
        slots: &mut Vec<SourceSlot>,
    ) {
        let mut n = 0;
        for (name, class) in sources.clone() {
            let held = slots.get(n).and_then(|slot| self.sources.get(usize::from(slot.0)));
            if !held.is_some_and(|record| record.is_of(name, class)) {
                let found = self.sources.iter().position(|record| record.is_of(name, class));
                let at = found.unwrap_or_else(|| self.insert(name, class, sources.clone()));
                slots.truncate(n);
                slots.push(SourceSlot(at as u8));
            }
            n += 1;
        }
        slots.truncate(n);
    }

    /// Adds an empty record. A full table replaces the record with the least evidence that is not `in_use`.
    fn insert<'a>(
        &mut self,
        name: &str,
        class: EvidenceClass,
        in_use: impl Iterator<Item = (&'a str, EvidenceClass)> + Clone,
    ) -> usize {
        let record = SourceRecord::new(name.into(), class);
        if self.sources.len() < SOURCES_MAX {
            self.sources.push(record);
            return self.sources.len() - 1;
        }
        let is_used = |held: &SourceRecord| in_use.clone().any(|(name, class)| held.is_of(name, class));
        let unused = self.sources.iter().enumerate().filter(|(_, held)| !is_used(held));
        let least = unused.min_by(|a, b| a.1.n_judged().total_cmp(&b.1.n_judged()));
        let at = least.expect("fewer sources draft together than a table holds").0;
        self.sources[at] = record;
        at
    }

    /// Probability that the target chooses the token of this claim.
    pub fn probability(&self, slot: SourceSlot, evidence: &Evidence) -> f32 {
        self.corrected(self.prior(evidence), &self.record(slot).cells[cell_index(evidence)])
    }

    /// Probability that the target chooses a token that is drafted, from that of its strongest claim. Rises with `probability`.
    #[inline]
    pub(super) fn drafted(&self, slot: SourceSlot, probability: f32) -> f32 {
        self.record(slot).drafted.apply(probability)
    }

    /// Learns from a draft token that was judged, and from its [probability](Self::drafted).
    pub(super) fn update_drafted(&mut self, slot: SourceSlot, probability: f32, hit: bool) {
        self.record_mut(slot).drafted.learn(f32::from(u8::from(hit)) - probability);
    }

    /// Current upper bounds of a source's claims.
    pub(super) fn caps(&self, slot: SourceSlot) -> Caps {
        let mut caps = Caps::NONE;
        let record = self.record(slot);
        let by_class = match record.class {
            EvidenceClass::TextMatch => 0,
            EvidenceClass::ResumedCopy => MATCH_LENS,
            _ => return caps,
        };
        let mut so_far = [PROBABILITY_MIN; DEPTHS];
        for len in 0..MATCH_LENS {
            for at in 0..PROBABILITIES {
                let prior_max = self.prior_max[(by_class + len) * PROBABILITIES + at];
                let cells = &record.cells[(len * PROBABILITIES + at) * DEPTHS..][..DEPTHS];
                for (cap, cell) in so_far.iter_mut().zip(cells) {
                    *cap = cap.max(self.corrected(prior_max, cell));
                }
            }
            caps.0[len] = so_far;
        }
        caps
    }

    /// A prior, corrected by the claims of its cell.
    fn corrected(&self, prior: f32, cell: &Cell) -> f32 {
        let prior_hits = self.config.prior_hits;
        let factor = (prior_hits + cell.hits) / (prior_hits + cell.expected);
        (prior * factor).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
    }

    /// Updates the record with a judged claim: `hit` if the target chose its token.
    pub fn update(&mut self, slot: SourceSlot, evidence: &Evidence, hit: bool) {
        let expected = self.prior(evidence);
        let hits_max = self.config.hits_max;
        let record = self.record_mut(slot);
        let at = cell_index(evidence);
        record.since_sweep.judged.insert(at);
        record.cells[at].add(hit, expected, hits_max);
    }

    /// Records a claim withheld by the builder for its low probability; it is not judged.
    #[inline]
    pub(super) fn withhold(&mut self, slot: SourceSlot, evidence: &Evidence) {
        self.record_mut(slot).since_sweep.withheld.insert(cell_index(evidence));
    }

    /// Ends a step of a source. The shift of its draft tokens fades. Every [`SWEEP_STEPS`] steps, cells with withheld claims and no judged claims
    /// fade.
    pub(super) fn end_step(&mut self, slot: SourceSlot) {
        let record = self.record_mut(slot);
        record.drafted.fade();
        record.since_sweep.n_steps += 1;
        if record.since_sweep.n_steps >= SWEEP_STEPS {
            record.sweep();
        }
    }

    /// Hit rate of the likeliest claim of a source that computes, known before the source is expanded.
    pub(super) fn first_hit(&self, slot: SourceSlot) -> f32 {
        let cell = &self.record(slot).first;
        (FIRST_CLAIMS * FIRST_HIT + cell.hits) / (FIRST_CLAIMS + cell.expected)
    }

    /// Updates the hit rate of the likeliest claim of an expanded source.
    pub(super) fn update_first(&mut self, slot: SourceSlot, hit: bool) {
        let hits_max = self.config.hits_max;
        self.record_mut(slot).first.add(hit, 1.0, hits_max);
    }

    /// Ages the first-hit rate of a computing source in a step without its expansion, so that the source is
    /// tried again.
    pub(super) fn age_first(&mut self, slot: SourceSlot) {
        self.record_mut(slot).first.fade(FIRST_AGEING);
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        let of_record = size_of::<SourceRecord>() + N_CELLS * size_of::<Cell>();
        self.sources.len() * of_record + self.prior_max.capacity() * size_of::<f32>()
    }

    /// The names of the sources with a record.
    pub fn source_names(&self) -> impl Iterator<Item = &SourceName> {
        self.sources.iter().map(|record| &record.name)
    }

    /// The table at the start of a generation: later evidence is counted separately.
    pub(super) fn started(mut self) -> Self {
        for record in &mut self.sources {
            record.first.n_halvings = 0.0;
            record.cells.iter_mut().for_each(|cell| cell.n_halvings = 0.0);
        }
        self
    }

    /// Adds the evidence of a generation that [started](Self::started) from `base` and ended with `theirs`.
    /// If nothing else was added meanwhile, the result equals `theirs`.
    pub(super) fn merge(&mut self, base: &ReliabilityTable, theirs: &ReliabilityTable) {
        let in_use = theirs.sources.iter().map(|record| (record.name.as_str(), record.class));
        let mut slots = Vec::new();
        self.bind(in_use, &mut slots);
        let hits_max = self.config.hits_max;
        for (slot, theirs) in slots.into_iter().zip(&theirs.sources) {
            let base = base.sources.iter().find(|record| record.is_of(theirs.name.as_str(), theirs.class));
            let record = self.record_mut(slot);
            let base_of = |at: usize| base.map_or(Cell::EMPTY, |base| base.cells[at]);
            for (at, (cell, &theirs)) in record.cells.iter_mut().zip(&theirs.cells).enumerate() {
                *cell = cell.merged(base_of(at), theirs, hits_max);
            }
            let base_drafted = base.map_or(DraftedShift::NONE, |base| base.drafted);
            record.drafted = record.drafted.merged(base_drafted, theirs.drafted);
            let base_first = base.map_or(Cell::EMPTY, |base| base.first);
            record.first = record.first.merged(base_first, theirs.first, hits_max);
            if base.is_none_or(|base| base.since_sweep != theirs.since_sweep) {
                record.since_sweep = theirs.since_sweep;
            }
        }
    }

    /// The stored form of the table. The prior is part of the program.
    pub(super) fn to_stored(&self) -> Vec<StoredRecord> {
        self.sources.iter().map(SourceRecord::to_stored).collect()
    }

    /// A table with the built-in prior and stored records.
    ///
    /// # Errors
    /// The reason why the records are invalid.
    pub(super) fn from_stored(records: Vec<StoredRecord>) -> Result<Self, &'static str> {
        let mut table = Self::new();
        if records.len() > SOURCES_MAX {
            return Err("there are too many sources");
        }
        for record in records {
            if table.sources.iter().any(|held| held.is_of(record.name.as_str(), record.class)) {
                return Err("a source is there twice");
            }
            table.sources.push(SourceRecord::from_stored(record, table.config.hits_max)?);
        }
        Ok(table)
    }

    fn record(&self, slot: SourceSlot) -> &SourceRecord {
        &self.sources[usize::from(slot.0)]
    }

    fn record_mut(&mut self, slot: SourceSlot) -> &mut SourceRecord {
        &mut self.sources[usize::from(slot.0)]
    }

    /// The claim's probability before any evidence.
    fn prior(&self, evidence: &Evidence) -> f32 {
        let probability =
            if evidence.probability.is_nan() { 0.0 } else { evidence.probability.clamp(0.0, 1.0) };
        self.prior.probability(&Evidence { probability, ..*evidence }).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
    }
}

/// Upper bounds of a source's claims of any probability and count, up to a match length. Shape
/// `[match length, depth]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps([[f32; DEPTHS]; MATCH_LENS]);

impl Caps {
    /// Bounds for claims without a record.
    pub(super) const NONE: Caps = Caps([[1.0; DEPTHS]; MATCH_LENS]);

    /// Upper bound of a claim whose match is at most one token longer than this claim's.
    pub(super) fn after(&self, claim: &Evidence) -> f32 {
        let match_len = claim.match_len.saturating_add(1);
        self.0[match_len_bucket(match_len)][depth_bucket(claim.depth.saturating_add(1))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::evidence::Agreement;

    const CLAIM: Evidence = Evidence {
        class: EvidenceClass::TextMatch,
        probability: 0.6,
        match_len: 4,
        count: 3,
        depth: 1,
        agreement: Agreement::Unknown,
    };

    /// A table after `n` judged claims, and the slot of their source.
    fn after(n: usize, hit: impl Fn(usize) -> bool) -> (ReliabilityTable, SourceSlot) {
        let mut table = ReliabilityTable::new();
        let slot = table.slot("context", EvidenceClass::TextMatch);
        (0..n).for_each(|i| table.update(slot, &CLAIM, hit(i)));
        (table, slot)
    }

    fn worth((table, slot): &(ReliabilityTable, SourceSlot)) -> f32 {
        table.probability(*slot, &CLAIM)
    }

    #[test]
    fn learns_what_comes_true() {
        let prior = worth(&after(0, |_| false));
        assert!((0.05..0.95).contains(&prior));
        assert!(worth(&after(400, |_| false)) < 0.15 * prior);
        assert!(worth(&after(400, |_| true)) > 0.9);
        let half = worth(&after(4000, |i| i % 2 == 0));
        assert!((0.4..0.6).contains(&half), "{half}");
    }

    #[test]
    fn forgets_what_is_no_longer_so() {
        let (mut table, slot) = after(10_000, |_| false);
        (0..300).for_each(|_| table.update(slot, &CLAIM, true));
        assert!(table.probability(slot, &CLAIM) > 0.7, "{}", table.probability(slot, &CLAIM));
    }

    #[test]
    fn other_claims_and_other_sources_keep_their_prior() {
        let (mut table, slot) = after(400, |_| false);
        let (fresh, fresh_slot) = after(0, |_| false);
        for other in [
            Evidence { match_len: 40, ..CLAIM },
            Evidence { probability: 0.05, ..CLAIM },
            Evidence { depth: 9, ..CLAIM },
            Evidence { agreement: Agreement::Model, ..CLAIM },
        ] {
            assert_eq!(table.probability(slot, &other), fresh.probability(fresh_slot, &other));
        }
        let history = table.slot("history", EvidenceClass::TextMatch);
        assert_ne!(history, slot);
        assert_eq!(table.probability(history, &CLAIM), fresh.probability(fresh_slot, &CLAIM));
        let same_name = table.slot("context", EvidenceClass::Plain);
        assert!(same_name != slot && same_name != history, "another class is another source");
        assert_eq!(table.slot("context", EvidenceClass::TextMatch), slot);
    }

    #[test]
    fn a_full_table_gives_up_the_source_with_the_least_evidence() {
        let (mut table, slot) = after(100, |_| true);
        let name = |i: usize| format!("source {i}");
        for i in 0..SOURCES_MAX - 1 {
            let slot = table.slot(&name(i), EvidenceClass::Plain);
            if i != 7 {
                table.update(slot, &CLAIM, true);
            }
        }
        assert_eq!(table.source_names().count(), SOURCES_MAX);
        let added = table.slot("one more", EvidenceClass::Plain);
        assert_eq!(table.source_names().count(), SOURCES_MAX);
        assert!(table.source_names().all(|held| *held != name(7).as_str()));
        assert_eq!(table.slot("context", EvidenceClass::TextMatch), slot);
        assert_eq!(table.slot("one more", EvidenceClass::Plain), added);
        let held = table.slot(&name(0), EvidenceClass::Plain);
        assert_eq!(table.slot(&name(0), EvidenceClass::Plain), held);
    }

    #[test]
    fn no_claim_is_worth_more_than_its_cap() {
        let (mut table, slot) = after(400, |i| i % 3 == 0);
        let slots = EvidenceClass::ALL.map(|class| table.slot("context", class));
        for i in 0..3000_u32 {
            let class = EvidenceClass::ALL[i as usize % EvidenceClass::ALL.len()];
            let slot = slots[i as usize % slots.len()];
            let probability = (i * 37 % 101) as f32 / 100.0;
            let evidence = Evidence {
                class,
                probability,
                match_len: i % 23,
                count: i % 7,
                depth: i % 9,
                agreement: Agreement::Unknown,
            };
            let before = Evidence {
                match_len: evidence.match_len.saturating_sub(1),
                depth: i % 9 - u32::from(i % 9 > 0),
                ..evidence
            };
            let cap = table.caps(slot).after(&before);
            let probability = table.probability(slot, &evidence);
            assert!(probability <= cap, "{evidence:?}: {probability} > {cap}");
            table.update(slot, &evidence, i % 5 < 2);
        }
        let short = Evidence { match_len: 0, ..CLAIM };
        let (fresh, _) = (after(0, |_| false).0, slot);
        assert!(fresh.caps(slot).after(&short) < 0.8, "a cap says something");
    }

    #[test]
    fn a_source_whose_first_claims_fail_is_worth_asking_again_some_day() {
        let mut table = ReliabilityTable::new();
        let slot = table.slot("draft_model", EvidenceClass::DraftModel);
        let other = table.slot("server", EvidenceClass::Plain);
        let start = table.first_hit(slot);
        (0..50).for_each(|_| table.update_first(slot, false));
        assert!(table.first_hit(slot) < 0.1 * start);
        assert_eq!(table.first_hit(other), start);
        (0..1000).for_each(|_| table.age_first(slot));
        assert!(table.first_hit(slot) > 0.9 * start);
        (0..1000).for_each(|_| table.update_first(slot, true));
        assert!(table.first_hit(slot) > 0.95);
    }

    #[test]
    fn withheld_claims_return_to_their_prior_and_judged_ones_do_not() {
        let prior = worth(&after(0, |_| false));
        let (mut table, slot) = after(400, |_| false);
        let least = table.probability(slot, &CLAIM);
        let end_steps = |table: &mut ReliabilityTable, is_withheld: bool, is_judged: bool| {
            for step in 0..12 * SWEEP_STEPS {
                if is_withheld {
                    table.withhold(slot, &CLAIM);
                }
                if is_judged && step % 50 == 0 {
                    table.update(slot, &CLAIM, false);
                }
                table.end_step(slot);
            }
            table.probability(slot, &CLAIM)
        };
        assert_eq!(end_steps(&mut table.clone(), false, false), least, "nobody claimed it");
        // The cell's sums are between the bound and half of it.
        assert!(end_steps(&mut table.clone(), true, true) < 2.5 * least);
        let again = end_steps(&mut table, true, false);
        assert!(again > 0.8 * prior, "{least} → {again}, the prior is {prior}");
    }

    #[test]
    fn withheld_claims_return_to_their_prior_over_short_runs() {
        const RUN_STEPS: u32 = 20;
        let prior = worth(&after(0, |_| false));
        let (mut table, slot) = after(400, |_| false);
        table.record_mut(slot).sweep();
        for _ in 0..12 * SWEEP_STEPS / RUN_STEPS {
            // The file at the start of the run, the values that the run learns, and the file at its end.
            let mut file = ReliabilityTable::from_stored(table.to_stored()).unwrap();
            let base = file.clone();
            table = base.clone().started();
            for _ in 0..RUN_STEPS {
                table.withhold(slot, &CLAIM);
                table.end_step(slot);
            }
            file.merge(&base, &table);
            table = file;
        }
        let again = table.probability(slot, &CLAIM);
        assert!(again > 0.8 * prior, "{again}, the prior is {prior}");
    }

    #[test]
    fn a_later_state_is_a_base_too() {
        let (mut base, slot) = after(0, |_| false);
        let at = cell_index(&CLAIM);
        // Runs until just after the third halving of the sums.
        while base.record(slot).cells[at].n_halvings < 3.0 {
            base.update(slot, &CLAIM, true);
        }
        let mut theirs = base.clone();
        (0..5).for_each(|_| theirs.update(slot, &CLAIM, true));
        // Another process has added to the file meanwhile.
        let mut file = ReliabilityTable::from_stored(base.to_stored()).unwrap();
        (0..10).for_each(|_| file.update(slot, &CLAIM, true));
        file.merge(&base, &theirs);
        let [before, merged] = [&base, &file].map(|table| table.record(slot).cells[at]);
        assert!((merged.hits - (before.hits + 15.0)).abs() < 0.01, "{before:?} {merged:?}");
        assert!(merged.expected > before.expected, "{before:?} {merged:?}");
    }

    #[test]
    fn two_generations_at_a_time_both_count() {
        let (mut shared, slot) = after(20, |i| i % 2 == 0);
        let base = shared.clone().started();
        let (mut one, mut other) = (base.clone(), base.clone());
        (0..30).for_each(|_| one.update(slot, &CLAIM, true));
        let long = Evidence { match_len: 40, ..CLAIM };
        (0..30).for_each(|_| other.update(slot, &CLAIM, true));
        (0..30).for_each(|_| other.update(slot, &long, false));
        shared.merge(&base, &one);
        assert_eq!(
            shared.probability(slot, &CLAIM),
            one.probability(slot, &CLAIM),
            "the first is taken over"
        );
        shared.merge(&base, &other);
        assert_eq!(shared.probability(slot, &long), other.probability(slot, &long));
        let cell = &shared.record(slot).cells[cell_index(&CLAIM)];
        assert_eq!(cell.hits, 10.0 + 30.0 + 30.0);
    }

    #[test]
    fn what_faded_in_one_generation_does_not_take_from_another() {
        let (mut shared, slot) = after(100, |_| true);
        let base = shared.clone().started();
        let (mut one, mut other) = (base.clone(), base.clone());
        (0..300).for_each(|_| one.update(slot, &CLAIM, false));
        (0..5).for_each(|_| other.update(slot, &CLAIM, true));
        shared.merge(&base, &other);
        shared.merge(&base, &one);
        let cell = &shared.record(slot).cells[cell_index(&CLAIM)];
        let alone = &one.record(slot).cells[cell_index(&CLAIM)];
        assert!(cell.hits >= alone.hits && cell.expected >= 0.5 * alone.expected, "{cell:?} {alone:?}");
        assert!(shared.probability(slot, &CLAIM) < 0.5, "three hundred claims failed");
    }

    #[test]
    fn stored_records_read_back_and_bad_ones_are_refused() {
        let (mut table, slot) = after(300, |i| i % 3 == 0);
        table.update_first(slot, true);
        table.withhold(slot, &Evidence { match_len: 40, ..CLAIM });
        table.end_step(slot);
        let stored = table.to_stored();
        let since = &stored[0].since_sweep;
        assert_eq!((since.n_steps, since.judged.len(), since.withheld.len()), (1, 1, 1));
        let again = ReliabilityTable::from_stored(stored.clone()).unwrap();
        assert_eq!(again.to_stored(), stored);
        assert_eq!(again.probability(slot, &CLAIM), table.probability(slot, &CLAIM));
        let refused = |change: &dyn Fn(&mut StoredRecord)| {
            let mut record = stored[0].clone();
            change(&mut record);
            ReliabilityTable::from_stored(vec![record]).unwrap_err()
        };
        for bad in [f32::NAN, f32::INFINITY, -1.0, 1e9] {
            assert!(refused(&|record| record.cells[0].1 = bad).contains("range"));
            assert!(refused(&|record| record.cells[0].2 = bad).contains("range"));
            assert!(refused(&|record| record.first = (bad, 0.0)).contains("range"));
        }
        assert!(refused(&|record| record.cells[0].0 = N_CELLS as u16).contains("too many cells"));
        assert!(refused(&|record| record.cells.push(record.cells[0])).contains("rise"));
        assert!(refused(&|record| record.name = "".into()).contains("name"));
        assert!(refused(&|record| record.since_sweep.n_steps = SWEEP_STEPS).contains("too many steps"));
        for bad in [vec![3, 3], vec![N_CELLS as u16]] {
            assert!(
                refused(&|record| record.since_sweep.judged = bad.clone()).contains("since the last sweep")
            );
            assert!(
                refused(&|record| record.since_sweep.withheld = bad.clone()).contains("since the last sweep")
            );
        }
        let twice = vec![stored[0].clone(), stored[0].clone()];
        assert!(ReliabilityTable::from_stored(twice).unwrap_err().contains("twice"));
        let many = vec![stored[0].clone(); SOURCES_MAX + 1];
        assert!(ReliabilityTable::from_stored(many).unwrap_err().contains("too many"));
    }

    #[test]
    fn takes_any_number() {
        let (mut table, slot) = after(0, |_| false);
        for probability in [f32::NAN, f32::INFINITY, -1.0, 0.0, 1.0, 7.0] {
            for extreme in [0, 1, u32::MAX] {
                let evidence =
                    Evidence { probability, match_len: extreme, count: extreme, depth: extreme, ..CLAIM };
                table.update(slot, &evidence, true);
                let p = table.probability(slot, &evidence);
                assert!((PROBABILITY_MIN..=PROBABILITY_MAX).contains(&p), "{evidence:?}: {p}");
            }
        }
    }
}
