//! SAM-Decoding: the dynamic and the static automaton.

use super::recycle::Recycle;
use crate::rules::corpus::Texts;
use crate::rules::source::{Plan, Rule};
use refrain::TokenId;

/// The minimum match length for drafts, as published.
pub(super) const THRESHOLD: usize = 5;
/// The minimum difference in length between a match in earlier text and one in the session's own text.
pub(super) const BIAS: usize = 5;
/// Maximum number of drafted tokens.
pub(super) const N_TOKENS: usize = 40;

#[derive(Clone, Debug)]
pub(super) struct Sam {
    texts: Texts,
    threshold: usize,
}

impl Sam {
    pub(super) fn new(earlier: &[&[TokenId]], threshold: usize) -> Self {
        Sam { texts: Texts::new(earlier), threshold }
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
        if len >= self.threshold {
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
pub(super) struct SamRecycle {
    sam: Sam,
    recycle: Recycle,
}

impl SamRecycle {
    pub(super) fn new(sam: Sam, recycle: Recycle) -> Self {
        SamRecycle { sam, recycle }
    }
}

impl Rule for SamRecycle {
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
