//! The vectors of one embedder in memory, searched by brute force.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tantivy::DocAddress;

use super::derived::{Derived, DerivedKind, decode_vector};
use super::error::NotesError;
use super::files::Folder;
use super::snapshot::Snapshot;

/// Vectors of passages, row by row.
pub(super) struct Vectors {
    pub(super) identity: u64,
    n_dimensions: usize,
    /// `[n, n_dimensions]`.
    values: Vec<f32>,
    /// The row of each passage. Passages of equal text share one.
    rows: HashMap<DocAddress, usize>,
}

impl Vectors {
    /// Reads the vectors of the passages of a snapshot. Passages without a vector are left out.
    pub(super) fn load(
        folder: &Folder,
        snapshot: &Snapshot,
        identity: u64,
        n_dimensions: usize,
    ) -> Result<Self, NotesError> {
        let mut vectors = Self { identity, n_dimensions, values: Vec::new(), rows: HashMap::new() };
        let Some(stored) = Derived::open(folder, DerivedKind::Vectors, identity)? else { return Ok(vectors) };
        let mut row_of_key: HashMap<u64, Option<usize>> = HashMap::new();
        for (ordinal, segment) in snapshot.segments() {
            let column = snapshot.key_column(segment)?;
            for doc in segment.doc_ids_alive() {
                let Some(key) = column.first(doc) else { continue };
                let row = match row_of_key.get(&key) {
                    Some(row) => *row,
                    None => {
                        let vector = stored.value(key)?.map(|bytes| decode_vector(&bytes));
                        let row = vector.filter(|vector| vector.len() == n_dimensions).map(|vector| {
                            vectors.values.extend(vector);
                            vectors.values.len() / n_dimensions - 1
                        });
                        row_of_key.insert(key, row);
                        row
                    }
                };
                if let Some(row) = row {
                    vectors.rows.insert(DocAddress::new(ordinal, doc), row);
                }
            }
        }
        Ok(vectors)
    }

    /// The `limit` allowed passages with the largest dot products, best first, with these. Equal ones are in the order of the index.
    pub(super) fn search(
        &self,
        query: &[f32],
        limit: usize,
        is_allowed: impl Fn(DocAddress) -> bool,
    ) -> Vec<(f32, DocAddress)> {
        if query.len() != self.n_dimensions || limit == 0 {
            return Vec::new();
        }
        // A passage that was found is at the top if it is the worst.
        let mut best: BinaryHeap<Ranked> = BinaryHeap::new();
        for (&address, &row) in &self.rows {
            let score = dot(query, &self.values[row * self.n_dimensions..][..self.n_dimensions]);
            let ranked = Ranked { score, address };
            if best.len() < limit || best.peek().is_some_and(|worst| ranked < *worst) {
                if is_allowed(address) {
                    best.push(ranked);
                }
                if best.len() > limit {
                    best.pop();
                }
            }
        }
        best.into_sorted_vec().into_iter().map(|ranked| (ranked.score, ranked.address)).collect()
    }
}

/// Ordered from the best to the worst.
struct Ranked {
    score: f32,
    address: DocAddress,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.address.cmp(&other.address))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

/// Eight sums, so that the compiler uses vector instructions without changing the order of additions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_best_are_those_of_a_sort(
            rows in prop::collection::vec(prop::collection::vec(-8..8_i8, 11), 0..40),
            query in prop::collection::vec(-8..8_i8, 11), limit in 0..12_usize
        ) {
            let numbers = |row: &[i8]| row.iter().map(|&x| f32::from(x)).collect::<Vec<_>>();
            let query = numbers(&query);
            let vectors = Vectors {
                identity: 0,
                n_dimensions: 11,
                values: rows.iter().flat_map(|row| numbers(row)).collect(),
                rows: (0..rows.len()).map(|row| (DocAddress::new(0, row as u32), row)).collect(),
            };
            let is_allowed = |address: DocAddress| !address.doc_id.is_multiple_of(3);
            // Whole numbers have exact sums.
            let score = |row: usize| -> f32 { numbers(&rows[row]).iter().zip(&query).map(|(a, b)| a * b).sum() };
            let mut expected: Vec<usize> = (0..rows.len()).filter(|row| !row.is_multiple_of(3)).collect();
            expected.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
            expected.truncate(limit);
            let found: Vec<usize> = vectors.search(&query, limit, is_allowed).into_iter().map(|(_, a)| a.doc_id as usize).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
