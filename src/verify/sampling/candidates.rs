//! The candidates after top-k, top-p and min-p, and the draw from them.

use std::cmp::Ordering;

use super::options::Sampling;
use crate::kernels::{self, Kernels};
use refrain_trees::TokenId;

/// The candidates of one choice, most likely first. The memory is reused between choices.
#[derive(Default)]
pub(super) struct Candidates {
    /// (logit or probability, token).
    kept: Vec<(f32, u32)>,
    probabilities: Vec<f32>,
    block_max: Vec<f32>,
    block_sums: Vec<f64>,
}

impl Candidates {
    /// Draws a token from the distribution that `config` makes of `logits` `[vocab_size]`, whose largest is `max`, with `u` of 0..1. The
    /// logits may be overwritten. The scaled logit of a token is `(logit − max) / temperature`, and −∞ for NaN.
    pub(super) fn choose(
        &mut self,
        kernels: Kernels,
        config: &Sampling,
        (logits, max): (&mut [f32], f32),
        u: f64,
    ) -> TokenId {
        if config.top_k > 0 && config.top_k < logits.len() {
            self.keep_top_k(kernels, config, (logits, max));
        } else {
            let factor = 1.0 / kernels::exp_scaled(kernels, logits, max, config.temperature);
            if config.top_p >= 1.0 && config.min_p <= 0.0 {
                return self.draw_of_all(kernels, (logits, factor), u);
            }
            self.keep_likely(kernels, config, (logits, factor));
        }
        self.kept.truncate(self.nucleus_len(config));
        draw(&self.kept, u)
    }

    /// The `top_k` largest scaled logits, sorted, with probabilities normalized over these.
    ///
    /// As many blocks have a number of at least the bound as tokens are asked for, so no smaller number is among them. Numbers that differ
    /// may be equal when scaled, and then the lower token wins: the bound leaves room for the rounding.
    fn keep_top_k(&mut self, kernels: Kernels, config: &Sampling, (logits, max): (&[f32], f32)) {
        let k = config.top_k;
        kernels::block_max(kernels, logits, &mut self.block_max);
        let bound = if k <= self.block_max.len() {
            let (_, &mut at_least, _) = self.block_max.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            at_least - (max - at_least) * 1e-6
        } else {
            f32::NEG_INFINITY
        };
        self.kept.clear();
        kernels::gather_above(kernels, logits, 1.0, bound.next_down(), &mut self.kept);
        for (logit, _) in &mut self.kept {
            *logit = (*logit - max) / config.temperature;
        }
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
        // Numbers that differ may have equal probabilities. Then the lower token is first here too, as without top-k.
        self.kept.sort_unstable_by(most_likely_first);
    }

    /// Every token that top-p and min-p can keep, sorted, with probabilities, which are `weights · factor`. The largest weight is 1.
    ///
    /// Sorting a whole vocabulary takes longer than a step of a small model. So tokens below the floor of min-p are
    /// dropped before sorting, and the tail is sorted only if the likelier tokens do not reach `top_p`. The result
    /// equals that of sorting all tokens.
    fn keep_likely(&mut self, kernels: Kernels, config: &Sampling, (weights, factor): (&[f32], f32)) {
        let min_p_floor = config.min_p * factor;
        for floor in [1e-3, 1e-6, 0.0f32] {
            self.kept.clear();
            kernels::gather_above(
                kernels,
                weights,
                factor,
                floor.max(min_p_floor.next_down()),
                &mut self.kept,
            );
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

    /// Inverse transform sampling over all tokens by id: first the block, then the token.
    fn draw_of_all(&mut self, kernels: Kernels, (weights, factor): (&[f32], f32), u: f64) -> TokenId {
        kernels::block_sums(kernels, weights, factor, &mut self.block_sums);
        let threshold = u * self.block_sums.iter().sum::<f64>();
        let (mut before, mut chosen) = (0.0f64, 0);
        for (block, &sum) in self.block_sums.iter().enumerate() {
            if before + sum > threshold {
                let first = block * kernels::BLOCK_LEN;
                let mut reached = before;
                for (i, weight) in weights[first..].iter().take(kernels::BLOCK_LEN).enumerate() {
                    let p = weight * factor;
                    if p > 0.0 {
                        chosen = (first + i) as u32;
                        reached += f64::from(p);
                        if reached > threshold {
                            break;
                        }
                    }
                }
                break;
            }
            before += sum;
        }
        TokenId(chosen)
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
fn draw(candidates: &[(f32, u32)], u: f64) -> TokenId {
    let total: f64 = candidates.iter().map(|c| f64::from(c.0)).sum();
    let threshold = u * total;
    let mut sum = 0.0f64;
    let mut chosen = 0;
    for &(p, token) in candidates {
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

    /// The reference: scales, sorts all tokens, then cuts.
    fn naive(config: &Sampling, logits: &[f32]) -> Vec<(f32, u32)> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scaled = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { (x - max) / config.temperature };
        let mut kept: Vec<(f32, u32)> = logits.iter().map(|&x| scaled(x)).zip(0..).collect();
        if config.top_k > 0 {
            kept.sort_by(most_likely_first);
            kept.truncate(config.top_k);
        }
        let mut probabilities: Vec<f32> = kept.iter().map(|c| c.0).collect();
        kernels::softmax(Kernels::detect(), &mut probabilities);
        let mut all = Candidates::default();
        all.kept = probabilities.into_iter().zip(kept).map(|(p, c)| (p, c.1)).filter(|c| c.0 > 0.0).collect();
        all.kept.sort_by(most_likely_first);
        all.kept.truncate(all.nucleus_len(config));
        all.kept
    }

    /// Those that a choice keeps with a probability above 0.
    fn kept(config: &Sampling, logits: &[f32]) -> Vec<(f32, u32)> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut candidates = Candidates::default();
        candidates.choose(Kernels::detect(), config, (&mut logits.to_vec(), max), 0.5);
        candidates.kept.retain(|c| c.0 > 0.0);
        candidates.kept
    }

    fn bits(kept: &[(f32, u32)]) -> Vec<(u32, u32)> {
        kept.iter().map(|c| (c.0.to_bits(), c.1)).collect()
    }

    #[test]
    fn min_p_sorts_only_what_it_keeps() {
        let scaled: Vec<f32> = (0..50_000u32).map(|i| -((i * 7919 % 50_000) as f32) / 1e4).collect();
        let config = Sampling { temperature: 1.0, min_p: 0.5, ..Sampling::default() };
        let mut weights = scaled.clone();
        let factor = 1.0 / kernels::exp_scaled(Kernels::detect(), &mut weights, 0.0, 1.0);
        let mut candidates = Candidates::default();
        candidates.keep_likely(Kernels::detect(), &config, (&weights, factor));
        let n_sorted = candidates.kept.len();
        assert_eq!(candidates.kept, naive(&config, &scaled), "nothing is sorted and then dropped");
        assert!((1..7000).contains(&n_sorted), "e^-0.69 of a range of 5: {n_sorted}");
    }

    #[test]
    fn numbers_that_are_equal_when_scaled_are_ordered_by_token() {
        // 1 + 2⁻²³ and 1 differ, and their differences to 2²⁰ do not.
        let mut logits = vec![-1e9f32; 1000];
        (logits[100], logits[900], logits[300]) = (1.0, 1.0 + f32::EPSILON, (1u32 << 20) as f32);
        let config = Sampling { temperature: 1e5, top_k: 2, ..Sampling::default() };
        assert_eq!(bits(&kept(&config, &logits)), bits(&naive(&config, &logits)));
        assert_eq!(kept(&config, &logits)[1].1, 100);
    }

    #[test]
    fn equal_probabilities_are_ordered_by_token_with_top_k_and_without() {
        let mut logits = vec![-50.0f32; 100];
        (logits[7], logits[50], logits[20]) = (0.0, -1e-9, -2e-9);
        for top_k in [0, 99] {
            let config = Sampling { temperature: 1.0, top_k, top_p: 0.99, ..Sampling::default() };
            assert_eq!(bits(&kept(&config, &logits)), bits(&naive(&config, &logits)));
            assert_eq!(kept(&config, &logits).iter().map(|c| c.1).collect::<Vec<_>>(), [7, 20, 50]);
        }
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let number = prop_oneof![
            8 => -30.0f32..30.0,
            8 => -2.0f32..0.0,
            4 => Just(-0.5f32),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
        ];
        proptest::collection::vec(number, 1..900).prop_map(|mut logits| {
            logits[0] = logits[0].max(-29.0);
            logits
        })
    }

    proptest! {
        #[test]
        fn filtering_before_sorting_changes_no_bit(
            logits in logits(),
            temperature in prop_oneof![Just(1.0f32), 0.01f32..3.0],
            top_k in prop_oneof![Just(0usize), 1usize..30, 1usize..900],
            top_p in prop_oneof![Just(1.0f32), 0.05f32..0.999],
            min_p in prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..0.3, 0.0f32..1e-6],
        ) {
            let config = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
            if top_k > 0 && top_k < logits.len() || top_p < 1.0 || min_p > 0.0 {
                let top_k = if top_k < logits.len() { top_k } else { 0 };
                let config = Sampling { top_k, ..config };
                prop_assert_eq!(bits(&kept(&config, &logits)), bits(&naive(&config, &logits)));
            }
        }

        /// The draw over blocks is the draw over all tokens, but for sums that another order rounds otherwise.
        #[test]
        fn a_draw_by_blocks_is_one_over_all(logits in logits(), u in 0.0f64..1.0) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let config = Sampling { temperature: 1.0, ..Sampling::default() };
            let mut by_id = naive(&config, &logits);
            by_id.sort_by_key(|c| c.1);
            let at = |u| Candidates::default().choose(Kernels::detect(), &config, (&mut logits.clone(), max), u);
            let expected = draw(&by_id, u);
            let near = [draw(&by_id, u - 1e-12), draw(&by_id, u + 1e-12)];
            prop_assert!(at(u) == expected || near.contains(&at(u)));
            prop_assert!(by_id.iter().any(|c| at(1.0 - 1e-16).0 == c.1 && at(0.0).0 == by_id[0].1));
        }
    }
}
