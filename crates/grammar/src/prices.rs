//! The prices of branches: how often each was taken where the same ones were open.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use refrain::TokenId;

/// Maximum number of branch points that are remembered. A further one is not.
const POINTS_MAX: usize = 1024;

/// Counts of the branches taken. A branch point is known by the tokens that its branches begin with.
///
/// Before a branch point was visited its branches have equal prices; each visit counts as much as that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prices {
    taken: HashMap<u64, HashMap<TokenId, u32>>,
}

impl Prices {
    /// The price of each branch, in the order given. The sum is at most 1.
    pub(crate) fn of(&self, branches: &[TokenId]) -> Vec<f32> {
        let equal = 1.0 / branches.len().max(1) as f32;
        let Some(taken) = self.taken.get(&key(branches)) else { return vec![equal; branches.len()] };
        let total: u32 = taken.values().sum();
        let count = |branch: &TokenId| taken.get(branch).copied().unwrap_or(0) as f32;
        branches.iter().map(|branch| (equal + count(branch)) / (1.0 + total as f32)).collect()
    }

    /// Counts that `token` followed where these branches were open.
    pub(crate) fn count(&mut self, branches: &[TokenId], token: TokenId) {
        let key = key(branches);
        if self.taken.len() < POINTS_MAX || self.taken.contains_key(&key) {
            *self.taken.entry(key).or_default().entry(token).or_default() += 1;
        }
    }

    /// Bytes on the heap, about.
    pub(crate) fn memory_usage(&self) -> usize {
        self.taken.values().map(|taken| 64 + 16 * taken.len()).sum()
    }
}

fn key(branches: &[TokenId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    branches.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_priced_as_they_were_taken() {
        let mut prices = Prices::default();
        let branches = [TokenId(1), TokenId(2)];
        assert_eq!(prices.of(&branches), [0.5, 0.5]);
        prices.count(&branches, TokenId(2));
        assert_eq!(prices.of(&branches), [0.25, 0.75]);
        prices.count(&branches, TokenId(9));
        let sum: f32 = prices.of(&branches).iter().sum();
        assert!((sum - 2.0 / 3.0).abs() < 1e-6, "{sum}");
        assert_eq!(prices.of(&[TokenId(2), TokenId(1)]), [0.5, 0.5]);
        assert_eq!(prices.of(&[]), [0.0; 0]);
    }

    #[test]
    fn a_bounded_number_of_points_is_remembered() {
        let mut prices = Prices::default();
        for i in 0..2 * POINTS_MAX as u32 {
            prices.count(&[TokenId(i), TokenId(i + 1)], TokenId(i));
        }
        assert_eq!(prices.taken.len(), POINTS_MAX);
        assert_eq!(prices.of(&[TokenId(0), TokenId(1)]), [0.75, 0.25]);
    }
}
