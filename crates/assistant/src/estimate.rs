//! How long a task of several prompts will take.
//!
//! Before anything was measured, a token takes what the engine measured while it was loaded: reading a prompt in full passes, writing
//! without drafts. Each generation then moves the rates to what its own tokens took, drafts and shared passes included.

use std::time::Duration;

use refrain::Stats;

use crate::assistant::Assistant;

/// What a task has to do still, and how long it will take. A prompt whose beginning is restored from the store takes less.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// Prompts.
    pub n_prompts: usize,
    /// Their tokens.
    pub read_tokens: usize,
    /// Tokens of the outputs, about.
    pub written_tokens: usize,
    /// The time, if nothing else runs.
    pub time: Duration,
}

/// Prompts and outputs that are to be computed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) n_prompts: usize,
    pub(crate) read_tokens: usize,
    /// Tokens that are written alone, and in shared passes.
    pub(crate) alone_tokens: usize,
    pub(crate) together_tokens: usize,
}

impl Work {
    /// Of prompts and outputs with these tokens.
    pub(crate) fn of(prompts: impl Iterator<Item = (usize, usize)>) -> Self {
        prompts.fold(Self::default(), |work, (read, written)| Self {
            n_prompts: work.n_prompts + 1,
            read_tokens: work.read_tokens + read,
            alone_tokens: work.alone_tokens + written,
            together_tokens: 0,
        })
    }
}

impl Assistant {
    /// Learns from a generation that has run alone.
    pub(crate) fn observe(&self, stats: &Stats) {
        self.rates().observe(stats);
    }

    /// Learns from a prompt.
    pub(crate) fn observe_reading(&self, us: f64, n_tokens: usize) {
        self.rates().observe_reading(us, n_tokens);
    }

    /// Learns from steps that generations have made together.
    pub(crate) fn observe_together(&self, us: f64, n_tokens: usize) {
        self.rates().observe_together(us, n_tokens);
    }

    /// How long work takes, of which `n_together` generations run at the same time.
    pub(crate) fn estimate(&self, work: Work, n_together: usize) -> Estimate {
        let n_prompts = work.n_prompts.max(1);
        // In the middle of a prompt.
        let costs = self.engine().costs_behind(work.read_tokens / n_prompts / 2);
        let rates = self.rates();
        let read_us = rates.read_us.unwrap_or_else(|| costs.prompt_us(1));
        let alone_us = rates.alone_us.unwrap_or_else(|| f64::from(costs.verify_us(1, 1)));
        let shared = || f64::from(costs.verify_us(n_together, 1)) / n_together.max(1) as f64;
        let together_us = rates.together_us.unwrap_or_else(|| alone_us.min(shared()));
        let us = read_us * work.read_tokens as f64
            + alone_us * work.alone_tokens as f64
            + together_us * work.together_tokens as f64;
        Estimate {
            n_prompts: work.n_prompts,
            read_tokens: work.read_tokens,
            written_tokens: work.alone_tokens + work.together_tokens,
            // Clocks and costs of tests may be anything.
            time: Duration::try_from_secs_f64(us / 1e6).unwrap_or(Duration::MAX),
        }
    }

    /// How many generations of one job run at the same time, at most: one, if shared passes save no time or the memory is short.
    pub(crate) fn n_together(&self) -> usize {
        let wanted = self.options().n_parts_together.max(1);
        let device = self.engine().device();
        if device.memory_pressure() != Default::default() {
            return 1;
        }
        let costs = device.cost_profile();
        let saves = |n: &usize| costs.verify_us(*n, 1) < SHARED_MAX * *n as f32 * costs.verify_us(1, 1);
        (2..=wanted).rev().find(saves).unwrap_or(1)
    }
}

/// A pass for several generations must take less than this share of a pass for each: a shared one is no use otherwise.
const SHARED_MAX: f32 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_summed() {
        let work = Work::of([(100, 10), (50, 5)].into_iter());
        assert_eq!((work.n_prompts, work.read_tokens, work.alone_tokens), (2, 150, 15));
    }
}
