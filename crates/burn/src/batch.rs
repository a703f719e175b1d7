//! The documents of a training step as batches of rows of similar length.
//!
//! One row is one document from its first token, as at run time; no row contains a second document. Sorting a
//! step's documents by length keeps the padding below a tenth.

use burn::tensor::{Device, Int, Tensor, TensorData};
use tokenizers::Tokenizer;

use crate::Error;
use crate::tokens::{self, Row};
use crate::world::{self, Stage};

/// Maximum document length. Longer documents are left out. With the answer, this is about the longest prompt of the
/// program's demo.
pub const LONGEST: usize = 640;

/// Tokens of a micro-batch, padding included. Two micro-batches fit the caches and memory.
pub(crate) const MICRO_TOKENS: usize = 2048;

/// Rows of one forward and backward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// The rows, the longest last.
    pub rows: Vec<Row>,
}

impl MicroBatch {
    /// Length of the longest row minus one: the last token is a target only.
    pub fn seq(&self) -> usize {
        self.rows.iter().map(|row| row.ids.len()).max().unwrap_or(1) - 1
    }

    /// Input ids, `[rows, seq]`. Padding has id 0 and comes last, so that no learnt position attends to it.
    pub fn inputs(&self, device: &Device) -> Tensor<2, Int> {
        let seq = self.seq();
        let mut ids = vec![0_i32; self.rows.len() * seq];
        for (row, out) in self.rows.iter().zip(ids.chunks_exact_mut(seq)) {
            for (out, id) in out.iter_mut().zip(&row.ids[..row.ids.len() - 1]) {
                *out = *id as i32;
            }
        }
        Tensor::from_data(TensorData::new(ids, [self.rows.len(), seq]), device)
    }

    /// Flat positions whose next token counts in the loss, and these next tokens.
    pub fn targets(&self) -> (Vec<i32>, Vec<i32>) {
        let seq = self.seq();
        let (mut positions, mut targets) = (Vec::new(), Vec::new());
        for (at, row) in self.rows.iter().enumerate() {
            for next in 1..row.ids.len() {
                if row.learnt[next] {
                    positions.push((at * seq + next - 1) as i32);
                    targets.push(row.ids[next] as i32);
                }
            }
        }
        (positions, targets)
    }
}

/// The training text.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Seed of the corpus.
    pub seed: u64,
    /// Documents of one step.
    pub documents: usize,
    /// Steps with easy documents only.
    pub easy_steps: usize,
    /// Steps until the corpus treats copying as learnt.
    pub drill_steps: usize,
}

impl Source<'_> {
    fn stage(&self, step: usize) -> Stage {
        if step < self.easy_steps {
            Stage::Easy
        } else if step < self.drill_steps {
            Stage::Drill
        } else {
            Stage::Full
        }
    }

    /// The micro-batches of step `step`.
    pub fn step(&self, step: usize) -> Result<Vec<MicroBatch>, Error> {
        let first = (step * self.documents) as u64;
        let mut rows = Vec::with_capacity(self.documents);
        for number in first..first + self.documents as u64 {
            let stage = self.stage(step);
            let document = world::document(self.seed, number, stage);
            let row = tokens::row(self.tokenizer, &document, matches!(stage, Stage::Easy | Stage::Drill))?;
            if row.ids.len() <= LONGEST {
                rows.push(row);
            }
        }
        rows.sort_by_key(|row| row.ids.len());
        let parts = split(rows, |row| row.ids.len(), MICRO_TOKENS);
        Ok(parts.into_iter().map(|rows| MicroBatch { rows }).collect())
    }
}

/// Divides what is sorted by length into an even number of parts of about the same size, and of about `tokens` tokens at most, so
/// that two shards have the same work.
pub(crate) fn split<T>(rows: Vec<T>, len: impl Fn(&T) -> usize, tokens: usize) -> Vec<Vec<T>> {
    let total: usize = rows.iter().map(&len).sum();
    let count = 2 * total.div_ceil(2 * tokens).max(1);
    let (mut parts, mut current, mut seen) = (Vec::with_capacity(count), Vec::new(), 0);
    for row in rows {
        seen += len(&row);
        current.push(row);
        if seen * count >= total * (parts.len() + 1) {
            parts.push(std::mem::take(&mut current));
        }
    }
    parts
}
