//! The candidates after top-k, top-p and min-p, and the draw from them.

use std::cmp::Ordering;

use super::options::Sampling;
use crate::kernels::{self, Kernels};
use refrain_trees::TokenId;

/// The candidates of one choice, most likely first. The memory is reused between choices.
#[derive(Default)]
pub(super) struct Candidates {
    /// (scaled logit or probability, token).
    kept: Vec<(f32, u32)>,
    probabilities: Vec<f32>,
}

impl Candidates {
    /// Filters the `scaled` logits `[vocab_size]` by `config` and stores the remaining candidates, at least one. The
    /// largest scaled logit is 0. If no filter is on, stores nothing and returns false. The logits may be
    /// overwritten.
    pub(super) fn keep(&mut self, kernels: Kernels, config: &Sampling, scaled: &mut [f32]) -> bool {
        if config.top_k > 0 && config.top_k < scaled.len() {
            self.keep_top_k(kernels, config.top_k, scaled);
        } else if config.top_p < 1.0 || config.min_p > 0.0 {
            self.keep_likely(kernels, config, scaled);
        } else {
            return false;
        }
        let len = self.nucleus_len(config);
        self.kept.truncate(len);
        true
    }

    pub(super) fn draw(&self, u: f64) -> TokenId {
        draw(self.kept.iter().copied(), u)
    }

    /// The `k` largest scaled logits, sorted, with probabilities normalized over these `k`.
    fn keep_top_k(&mut self, kernels: Kernels, k: usize, scaled: &[f32]) {
        self.kept.clear();
        self.kept.extend(scaled.iter().copied().zip(0u32..));
        if k < self.kept.len() {
            self.kept.select_nth_unstable_by(k, most_likely_first);
            self.kept.truncate(k);
        }
        self.kept.sort_unstable_by(most_likely_first);
        self.probabilities.clear();
        self.probabilities.extend(self.kept.iter().map(|c| c.0));
        kernels::softmax(kernels, &mut self.probabilities);
        for (candidate, &p) in self.kept.iter_mut().zip(&self.probabilities) {
            candidate.0 = p;
        }
    }

    /// Every token that top-p and min-p can keep, sorted, with probabilities.
    ///
    /// Sorting a whole vocabulary takes longer than a step of a small model. So tokens below the floor of min-p are
    /// dropped before sorting, and the tail is sorted only if the likelier tokens do not reach `top_p`. The result
    /// equals that of sorting all tokens.
    fn keep_likely(&mut self, kernels: Kernels, config: &Sampling, scaled: &mut [f32]) {
        kernels::softmax(kernels, scaled);
        let min_p_floor = config.min_p * scaled[kernels::argmax(kernels, scaled)];
        for floor in [1e-3, 1e-6, 0.0] {
            self.kept.clear();
            let can_stay = |c: &(f32, u32)| c.0 > floor && c.0 >= min_p_floor;
            self.kept.extend(scaled.iter().copied().zip(0u32..).filter(can_stay));
            let sum: f64 = self.kept.iter().map(|c| f64::from(c.0)).sum();
            // This sum runs in another order than the final one. The margin covers the difference; the cut is made
            // over the sorted candidates.
            let reaches_top_p = sum > f64::from(config.top_p) + 1e-6;
            if reaches_top_p || floor < min_p_floor {
                break;
            }
        }
        self.kept.sort_unstable_by(most_likely_first);
    }

    /// The number of sorted candidates that top-p and min-p keep; at least one.
    fn nucleus_len(&self, config: &Sampling) -> usize {
        let floor = config.min_p * self.kept[0].0;
        let mut sum = 0.0f64;
        for (len, &(p, _)) in self.kept.iter().enumerate() {
            let reached = config.top_p < 1.0 && sum >= f64::from(config.top_p);
            if len > 0 && (reached || p < floor) {
                return len;
            }
            sum += f64::from(p);
        }
        self.kept.len()
    }
}

fn most_likely_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// Inverse transform sampling over probabilities in the given order (they need not sum to one).
pub(super) fn draw(candidates: impl Iterator<Item = (f32, u32)> + Clone, u: f64) -> TokenId {
    let total: f64 = candidates.clone().map(|c| f64::from(c.0)).sum();
    let threshold = u * total;
    let mut sum = 0.0f64;
    let mut chosen = 0;
    for (p, token) in candidates {
        if p > 0.0 {
            chosen = token;
            sum += f64::from(p);
            if sum > threshold {
                break;
            }
        }
    }
    TokenId(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference: sorts all tokens, then cuts.
    fn naive(config: &Sampling, scaled: &[f32]) -> Vec<(f32, u32)> {
        let mut probabilities = scaled.to_vec();
        kernels::softmax(Kernels::detect(), &mut probabilities);
        let mut all = Candidates {
            kept: probabilities.into_iter().zip(0..).filter(|c| c.0 > 0.0).collect(),
            probabilities: Vec::new(),
        };
        all.kept.sort_by(most_likely_first);
        all.kept.truncate(all.nucleus_len(config));
        all.kept
    }

    #[test]
    fn min_p_sorts_only_what_it_keeps() {
        let scaled: Vec<f32> = (0..50_000u32).map(|i| -((i * 7919 % 50_000) as f32) / 1e4).collect();
        let config = Sampling { temperature: 1.0, min_p: 0.5, ..Sampling::default() };
        let mut candidates = Candidates::default();
        candidates.keep_likely(Kernels::detect(), &config, &mut scaled.clone());
        let n_sorted = candidates.kept.len();
        assert_eq!(candidates.kept, naive(&config, &scaled), "nothing is sorted and then dropped");
        assert!((1..7000).contains(&n_sorted), "e^-0.69 of a range of 5: {n_sorted}");
    }

    proptest! {
        #[test]
        fn filtering_before_sorting_changes_no_bit(
            logits in proptest::collection::vec(prop_oneof![-30.0f32..0.0, -2.0f32..0.0, Just(-0.5f32)], 1..300),
            top_p in prop_oneof![Just(1.0f32), 0.05f32..0.999],
            min_p in prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..0.3, 0.0f32..1e-6],
        ) {
            let config = Sampling { temperature: 1.0, top_p, min_p, ..Sampling::default() };
            let mut candidates = Candidates::default();
            if candidates.keep(Kernels::detect(), &config, &mut logits.clone()) {
                let bits = |kept: &[(f32, u32)]| -> Vec<(u32, u32)> {
                    kept.iter().map(|c| (c.0.to_bits(), c.1)).collect()
                };
                prop_assert_eq!(bits(&candidates.kept), bits(&naive(&config, &logits)));
            }
        }
    }
}
