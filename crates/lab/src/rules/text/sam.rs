//! SAM-Decoding: the dynamic and the static automaton.

use crate::rules::corpus::Texts;
use crate::rules::source::{Plan, Rule};
use refrain::TokenId;
use refrain_trees::sam::Match;

/// The minimum match length for drafts, as published.
pub(super) const THRESHOLD: usize = 5;
/// The minimum difference in length between a match in earlier text and one in the session's own text.
pub(super) const BIAS: usize = 5;
/// Maximum number of drafted tokens.
pub(super) const N_TOKENS: usize = 40;

/// How a match becomes a draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamConfig {
    /// The minimum match length for drafts.
    pub(super) threshold: usize,
    /// Whether a match in the session's own text is shortened until [`N_TOKENS`] tokens follow its first occurrence
    /// (`to_anc`; the authors' code does this in the dynamic automaton only).
    pub(super) shortens: bool,
}

impl SamConfig {
    /// As published, with an auxiliary drafter.
    pub(crate) const PUBLISHED: SamConfig = SamConfig { threshold: THRESHOLD, shortens: true };
    /// As published, without shortening.
    pub(super) const UNSHORTENED: SamConfig = SamConfig { shortens: false, ..Self::PUBLISHED };
    /// For matches of any length.
    pub(in crate::rules) const ANY_MATCH: SamConfig = SamConfig { threshold: 1, ..Self::UNSHORTENED };
}

#[derive(Clone, Debug)]
pub(crate) struct Sam {
    texts: Texts,
    config: SamConfig,
}

impl Sam {
    pub(crate) fn new(earlier: &[&[TokenId]], config: SamConfig) -> Self {
        Sam { texts: Texts::new(earlier), config }
    }

    /// The longest suffix of `own` whose first occurrence has [`N_TOKENS`] tokens after it; if none has, the shortest.
    fn shortened(&self, own: Match) -> Match {
        let automaton = self.texts.own.automaton();
        let room = |m: Match| self.texts.own.len() - 1 - automaton.first_end(automaton.renew(m)) as usize;
        let suffixes = std::iter::successors(Some(automaton.renew(own)), |&m| {
            automaton.shorter(m).filter(|m| !m.is_empty())
        });
        let mut last = own;
        for suffix in suffixes {
            last = suffix;
            if room(suffix) >= N_TOKENS {
                break;
            }
        }
        last
    }
}

impl Rule for Sam {
    fn read(&mut self, committed: &[TokenId]) {
        self.texts.read(committed);
    }

    fn reset(&mut self) {
        self.texts.reset();
    }

    fn plan(&mut self, _committed: &[TokenId], plan: &mut Plan) {
        let (own, earlier) = (self.texts.own.automaton().suffix_match(), self.texts.earlier.matched());
        // Both lengths as in the authors' comparison: that of the earlier text is reduced by the bias.
        let own_wins = own.len() + BIAS >= earlier.len();
        let len = if own_wins { own.len() } else { earlier.len() - BIAS };
        if len >= self.config.threshold {
            let own = if self.config.shortens && !own.is_empty() { self.shortened(own) } else { own };
            plan.push_path(match own_wins {
                true => self.texts.own.after_first(own, N_TOKENS),
                false => self.texts.earlier.corpus().after_first(earlier, N_TOKENS),
            });
        }
    }

    fn memory_usage(&self) -> usize {
        self.texts.memory_usage()
    }
}

/// As `Sam`; if it drafts nothing, Token Recycling.
#[derive(Clone, Debug)]
pub(crate) struct SamRecycle<R> {
    sam: Sam,
    recycle: R,
}

impl<R> SamRecycle<R> {
    pub(crate) fn new(sam: Sam, recycle: R) -> Self {
        SamRecycle { sam, recycle }
    }
}

impl<R: Rule> Rule for SamRecycle<R> {
    fn read(&mut self, committed: &[TokenId]) {
        self.sam.read(committed);
        self.recycle.read(committed);
    }

    fn reset(&mut self) {
        self.sam.reset();
        self.recycle.reset();
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        self.sam.plan(committed, plan);
        if plan.len() == 0 {
            self.recycle.plan(committed, plan);
        }
    }

    fn memory_usage(&self) -> usize {
        self.sam.memory_usage() + self.recycle.memory_usage()
    }
}
