//! Projects the target's rows for the source predictions.
//!
//! *Calibration* and *echo* need the likely successors of every context position. Prefill ends with the hidden states
//! of a chunk's rows. They are projected a few rows at a time, and each row is reduced to a
//! [list](SuccessorLists) of 40 bytes. Except with [`Calibration::Full`], a row is projected onto a
//! [`Shortlist`]: the tokens of the context, the most frequent tokens of earlier outputs, and the first
//! tokens of the vocabulary. A successor outside the shortlist would have no continuation in the draft tree.
//! Rows that the walk visits are already projected. *Echo* also lists the successors of rejected rows, whose hidden
//! states are still in memory.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use crate::draft::{DraftSource, DraftTree, NodeIdx, NodeSet, SUCCESSORS_MAX, Successor, SuccessorLists};
use crate::engine::options::{Calibration, SessionOptions};
use crate::engine::shared::Shared;
use crate::kernels::{self, BlockType, PackError};
use crate::model::transformer::{ForwardError, PassEnd};
use crate::model::{Model, ModelConfig, Shortlist, Workspace};
use refrain_trees::TokenId;

/// Number of lowest token ids that every shortlist contains. A byte-level vocabulary lists the bytes first,
/// then its merges from the most frequent on.
const FREQUENT_TOKENS: usize = 512;

/// Maximum tokens that a source may add to a shortlist: outputs of one task share several hundred tokens.
const FREQUENT_OUTPUT_TOKENS_MAX: usize = 512;

/// Maximum tokens of a shortlist, including the frequent tokens: 4 MB at the shape of a 1.5 B model in Q4_0.
/// The examined texts contain fewer distinct tokens in a context of 8 k.
const SHORTLIST_TOKENS_MAX: usize = 4096;

/// Maximum number of logits held at a time: 1 MiB stays in a core's cache. One row of a whole vocabulary may
/// exceed it.
const LOGITS_MAX: usize = 1 << 18;

/// Minimum rows listed per call, whatever the vocabulary: each call reads the output matrix.
const LIST_ROWS_MIN: usize = 4;

/// Projects rows and keeps the results that draft sources learn from.
pub(super) struct Reader {
    /// Whether prompt and visited rows are listed over the whole vocabulary.
    is_full: bool,
    /// Whether the rows of the prompt are listed.
    lists_prompt: bool,
    /// Maximum rejected rows whose successors are listed per step; 0 without echo.
    rejected_rows_max: usize,
    /// `None` if all rows that are read are projected onto the whole vocabulary.
    shortlist: Option<Shortlist>,
    /// Rows of the current chunk of work.
    rows: Vec<u32>,
    /// `[rows, tokens]`
    logits: Vec<f32>,
    /// Lists of the newest prefill chunk, or of the nodes that the walk has visited.
    lists: SuccessorLists,
    /// Rejected nodes of the newest tree, and their successors.
    rejected: (Vec<NodeIdx>, SuccessorLists),
}

impl Reader {
    /// Approximate bytes of a reader: a shortlist of 8-bit rows with the place of each token, and the logits.
    pub(super) fn bytes(config: &ModelConfig) -> u64 {
        let row_bytes = BlockType::Q8_0.row_bytes(config.hidden_dim as u64).unwrap_or(0);
        let logits = LOGITS_MAX.max(LIST_ROWS_MIN * config.vocab_size);
        let places = config.vocab_size + SHORTLIST_TOKENS_MAX;
        row_bytes.saturating_mul(SHORTLIST_TOKENS_MAX as u64) + ((logits + places) * size_of::<f32>()) as u64
    }

    /// Returns `None` if calibration and echo are off.
    ///
    /// # Errors
    /// The memory for a shortlist cannot be allocated.
    pub(super) fn new(options: &SessionOptions, model: &Model) -> Result<Option<Self>, PackError> {
        if !options.reads_rows() {
            return Ok(None);
        }
        let is_full = options.calibration == Calibration::Full;
        let rejected_rows_max = options.echo.map_or(0, |config| config.rejected_rows as usize);
        let mut shortlist = None;
        if !is_full || rejected_rows_max > 0 {
            let list = shortlist.insert(model.shortlist(SHORTLIST_TOKENS_MAX)?);
            let n_frequent = FREQUENT_TOKENS.min(model.config().vocab_size);
            model.extend_shortlist(list, (0..n_frequent as u32).map(TokenId));
        }
        Ok(Some(Self {
            is_full,
            lists_prompt: options.calibration != Calibration::Off,
            rejected_rows_max,
            shortlist,
            rows: Vec::new(),
            logits: Vec::new(),
            lists: SuccessorLists::new(),
            rejected: Default::default(),
        }))
    }

    /// The end of the prompt's passes; `None` if their rows are not listed.
    pub(super) fn prefill_end(&self) -> Option<PassEnd> {
        let end = if self.listed().is_some() { PassEnd::Unprojected } else { PassEnd::Hidden };
        self.lists_prompt.then_some(end)
    }

    /// Adds the tokens of the text to the shortlist; if space is short, the newest first.
    pub(super) fn extend(&mut self, model: &Model, tokens: &[TokenId]) {
        if let Some(shortlist) = &mut self.shortlist {
            model.extend_shortlist(shortlist, tokens.iter().rev().copied());
        }
    }

    /// Adds the most frequent tokens of earlier outputs to the shortlist, because answers use phrases that no
    /// context contains.
    pub(super) fn extend_frequent(&mut self, model: &Model, sources: &mut [Box<dyn DraftSource>]) {
        let Some(shortlist) = &mut self.shortlist else { return };
        let vocab_size = model.config().vocab_size;
        for source in sources.iter_mut().filter_map(|source| source.target_listener()) {
            let tokens = source.frequent_tokens(FREQUENT_OUTPUT_TOKENS_MAX).into_iter();
            // A source may return tokens outside the vocabulary.
            let known = tokens.filter(|token| token.index() < vocab_size);
            model.extend_shortlist(shortlist, known.take(FREQUENT_OUTPUT_TOKENS_MAX));
        }
    }

    /// The candidate successor tokens; `None`: the whole vocabulary.
    fn listed(&self) -> Option<&Shortlist> {
        self.shortlist.as_ref().filter(|_| !self.is_full)
    }

    /// Lists the successors of these rows of the last batch.
    ///
    /// # Errors
    /// As [`Model::logits_with_cancel`].
    pub(super) fn list_batch(
        &mut self,
        shared: &Shared,
        workspace: &mut Workspace,
        rows: Range<usize>,
        cancel: &AtomicBool,
    ) -> Result<&SuccessorLists, ForwardError> {
        self.lists.clear();
        let width = self.listed().map_or(shared.model.config().vocab_size, |list| list.tokens().len());
        let slice = (LOGITS_MAX / width.max(1)).clamp(LIST_ROWS_MIN, 64);
        for first in rows.clone().step_by(slice) {
            self.rows.clear();
            self.rows.extend(first as u32..rows.end.min(first + slice) as u32);
            let (model, compute) = (&shared.model, shared.compute());
            let shortlist = self.shortlist.as_ref().filter(|_| !self.is_full);
            match shortlist {
                Some(list) => model.shortlist_logits(compute, workspace, &self.rows, list, &mut self.logits),
                None => {
                    model.logits_with_cancel(compute, workspace, &self.rows, &mut self.logits, cancel)?;
                }
            }
            for logits in self.logits.chunks_exact(width) {
                let tokens = shortlist.map(Shortlist::tokens);
                push_likeliest(shared.kernels, logits, tokens, &mut self.lists);
            }
        }
        Ok(&self.lists)
    }

    /// Starts a walk.
    pub(super) fn start_walk(&mut self) {
        self.lists.clear();
    }

    /// Lists the successors of the next visited node from its logits `[vocab_size]`.
    pub(super) fn list_visited(&mut self, shared: &Shared, logits: &[f32]) {
        match self.shortlist.as_ref().filter(|_| !self.is_full) {
            Some(shortlist) => {
                self.logits.clear();
                self.logits.extend(shortlist.tokens().iter().map(|token| logits[token.index()]));
                push_likeliest(shared.kernels, &self.logits, Some(shortlist.tokens()), &mut self.lists);
            }
            None => push_likeliest(shared.kernels, logits, None, &mut self.lists),
        }
    }

    /// Lists the successors of the likeliest rejected nodes of `tree`, with one projection onto the shortlist. Returns
    /// these nodes and their lists.
    ///
    /// The last batch must hold the rows of `tree`. `verified` are the nodes that passed all layers, and
    /// `path` are the visited nodes.
    pub(super) fn list_rejected(
        &mut self,
        shared: &Shared,
        workspace: &mut Workspace,
        tree: &DraftTree,
        verified: NodeSet,
        path: &[NodeIdx],
    ) -> (&[NodeIdx], &SuccessorLists) {
        let (nodes, lists) = &mut self.rejected;
        nodes.clear();
        lists.clear();
        let drafted = (1..tree.len() as u32).map(NodeIdx);
        let rejected = drafted.filter(|node| verified.contains(*node) && !path.contains(node));
        nodes.extend(rejected.take(self.rejected_rows_max));
        if let Some(shortlist) = self.shortlist.as_mut().filter(|_| !nodes.is_empty()) {
            shared.model.extend_shortlist(shortlist, tree.tokens()[1..].iter().copied());
            self.rows.clear();
            self.rows.extend(nodes.iter().map(|node| node.0));
            let compute = shared.compute();
            shared.model.shortlist_logits(compute, workspace, &self.rows, shortlist, &mut self.logits);
            for logits in self.logits.chunks_exact(shortlist.tokens().len()) {
                push_likeliest(shared.kernels, logits, Some(shortlist.tokens()), lists);
            }
        }
        (nodes, lists)
    }

    /// The lists of the visited nodes, in order of the walk.
    pub(super) fn visited(&self) -> &SuccessorLists {
        &self.lists
    }

    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        self.shortlist.as_ref().map_or(0, Shortlist::memory_usage)
            + 4 * (self.rows.capacity() + self.logits.capacity())
            + self.lists.memory_usage()
            + self.rejected.0.capacity() * size_of::<NodeIdx>()
            + self.rejected.1.memory_usage()
    }
}

/// Minimum log-probability of a kept successor: by the bounds of the builder, less likely successors are
/// never drafted.
const LOG_PROBABILITY_MIN: f32 = -7.0;

/// Lists the likeliest of `tokens` (`None`: of the whole vocabulary) by their logits. Probabilities are
/// normalised over these tokens.
fn push_likeliest(
    k: kernels::Kernels,
    logits: &[f32],
    tokens: Option<&[TokenId]>,
    lists: &mut SuccessorLists,
) {
    let found = kernels::likeliest::<SUCCESSORS_MAX>(k, logits);
    let mut successors = [Successor { token: TokenId(0), log_probability: 0.0 }; SUCCESSORS_MAX];
    let mut n = 0;
    for &(logit, i) in found.best() {
        let log_probability = logit - found.log_sum;
        // NaN if a logit is infinite: then it is not listed.
        if log_probability >= LOG_PROBABILITY_MIN {
            let token = tokens.map_or(TokenId(i), |tokens| tokens[i as usize]);
            successors[n] = Successor { token, log_probability };
            n += 1;
        }
    }
    lists.push(&successors[..n]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Kernels;

    fn likeliest(logits: &[f32], tokens: Option<&[TokenId]>) -> Vec<(u32, f32)> {
        let mut lists = SuccessorLists::new();
        push_likeliest(Kernels::detect(), logits, tokens, &mut lists);
        assert_eq!(lists.len(), 1);
        lists.list(0).map(|s| (s.token.0, s.log_probability.exp())).collect()
    }

    #[test]
    fn the_likeliest_tokens_come_in_order() {
        let logits: Vec<f32> = (0..100u32).map(|i| ((i * 37) % 100) as f32 / 10.0).collect();
        let found = likeliest(&logits, None);
        let mut expected: Vec<u32> = (0..100).collect();
        expected.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        assert_eq!(found.iter().map(|&(token, _)| token).collect::<Vec<_>>(), expected[..SUCCESSORS_MAX]);
        let total: f32 = logits.iter().map(|x| x.exp()).sum();
        for &(token, probability) in &found {
            assert!((probability / (logits[token as usize].exp() / total) - 1.0).abs() < 0.04);
        }
    }

    #[test]
    fn tokens_are_those_of_the_shortlist() {
        let tokens = [9, 4, 7].map(TokenId);
        let found = likeliest(&[1.0, 3.0, 3.0], Some(&tokens));
        assert_eq!(found.iter().map(|&(token, _)| token).collect::<Vec<_>>(), [4, 7, 9], "ties in order");
    }

    #[test]
    fn what_is_unlikely_or_no_number_is_left_out() {
        assert_eq!(likeliest(&[20.0, 0.0, 1.0], None).len(), 1);
        assert_eq!(likeliest(&[f32::NAN; 3], None), []);
        assert_eq!(likeliest(&[f32::NAN, 1.0], None), [(1, 1.0)]);
        assert_eq!(likeliest(&[f32::INFINITY, 1.0], None), []);
        assert_eq!(likeliest(&[f32::NEG_INFINITY; 4], None), []);
        assert_eq!(likeliest(&[], None), []);
    }
}
