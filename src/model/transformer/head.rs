//! The output projection: onto the vocabulary (from memory, or in pieces from flash), and onto the tokens of
//! a shortlist.

use std::sync::atomic::AtomicBool;

use super::{Buffers, Compute, ForwardError, Model, Workspace, for_rows, project};
use crate::kernels::{self, FloatEnv, MatMul, PackError, PackedMatrix, resize_exact};
use crate::model::shortlist::Shortlist;
use crate::model::streamed::Streamed;
use refrain_trees::TokenId;

/// Logits that a thread scales at a time.
const LOGITS_PART: usize = 4096;

/// Rows of one workspace to project in [`Model::logits_together`].
pub struct ProjectedPart<'a> {
    /// The workspace, after a pass.
    pub workspace: &'a mut Workspace,
    /// The rows.
    pub rows: &'a [u32],
    /// Becomes `[rows.len(), vocab_size]`.
    pub out: &'a mut Vec<f32>,
}

impl Model {
    /// Projects the final hidden states of some rows of the last batch onto the vocabulary.
    ///
    /// `out` becomes `[rows.len(), vocab_size]`.
    ///
    /// # Errors
    /// [`ForwardError::Layers`] if the output matrix is streamed and cannot be read. `out` is then
    /// unspecified; the hidden states are unchanged, so the call may be repeated.
    ///
    /// # Panics
    /// If a row was not in the last batch.
    pub fn logits(
        &self,
        compute: Compute<'_>,
        workspace: &mut Workspace,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ForwardError> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.logits_with_cancel(compute, workspace, rows, out, &NEVER)
    }

    /// As [`Model::logits`], with cancellation: if the output matrix is streamed, `cancel` is read before
    /// each piece and every few milliseconds while a pass waits for one.
    ///
    /// # Errors
    /// As [`Model::logits`], and [`ForwardError::Cancelled`] with the same state left behind.
    ///
    /// # Panics
    /// If a row was not in the last batch.
    pub fn logits_with_cancel(
        &self,
        compute: Compute<'_>,
        workspace: &mut Workspace,
        rows: &[u32],
        out: &mut Vec<f32>,
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        let _env = FloatEnv::ieee();
        match (self.head(), &self.streamed) {
            (Some(head), _) => self.project_rows(compute, workspace, rows, head, out),
            (None, Some(streamed)) => {
                workspace.buffers.gather(rows, self.config.hidden_dim);
                self.project_pieces(compute, &mut workspace.buffers, streamed, out, cancel)?;
            }
            (None, None) => self.project_rows(compute, workspace, rows, self.head_in_memory(), out),
        }
        Ok(())
    }

    /// As [`Model::logits_with_cancel`] for rows of several workspaces, with one reading of the output matrix.
    /// The logits of each come to its own `out` with the same bits. The `out` of the first holds the logits of all
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Model::logits_with_cancel`]; every `out` is then unspecified.
    ///
    /// # Panics
    /// If a row was not in the last batch of its workspace.
    pub fn logits_together(
        &self,
        compute: Compute<'_>,
        parts: &mut [ProjectedPart<'_>],
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        let Some((first, others)) = parts.split_first_mut() else { return Ok(()) };
        let _env = FloatEnv::ieee();
        let (hidden_dim, vocab_size) = (self.config.hidden_dim, self.config.vocab_size);
        let buffers = &mut first.workspace.buffers;
        buffers.gather(first.rows, hidden_dim);
        for part in &*others {
            buffers.gather_more(&part.workspace.buffers, part.rows, hidden_dim);
        }
        match (self.head(), &self.streamed) {
            (None, Some(streamed)) => self.project_pieces(compute, buffers, streamed, first.out, cancel)?,
            (Some(head), _) => self.project_gathered(compute, buffers, head, first.out),
            (None, None) => self.project_gathered(compute, buffers, self.head_in_memory(), first.out),
        }
        let mut logits = &first.out[first.rows.len() * vocab_size..];
        for part in others {
            let own;
            (own, logits) = logits.split_at(part.rows.len() * vocab_size);
            resize_exact(part.out, own.len());
            part.out.copy_from_slice(own);
        }
        first.out.truncate(first.rows.len() * vocab_size);
        Ok(())
    }

    /// The output matrix, if it is in memory.
    fn head(&self) -> Option<&PackedMatrix> {
        if self.config.tied_head { self.weights.embedding.as_deref() } else { self.weights.head.as_deref() }
    }

    /// Projects the final hidden states of some rows of the last batch onto the tokens of a shortlist. The
    /// logits have the same bits as those of [`Model::logits`].
    ///
    /// `out` becomes `[rows.len(), shortlist.tokens().len()]`.
    ///
    /// # Panics
    /// If a row was not in the last batch, or the shortlist belongs to another model.
    pub fn shortlist_logits(
        &self,
        compute: Compute<'_>,
        workspace: &mut Workspace,
        rows: &[u32],
        shortlist: &Shortlist,
        out: &mut Vec<f32>,
    ) {
        let _env = FloatEnv::ieee();
        self.project_rows(compute, workspace, rows, shortlist.matrix(), out);
    }

    /// An empty shortlist with room for `n_tokens_max` tokens, at most the vocabulary.
    ///
    /// # Errors
    /// [`PackError::Alloc`].
    pub fn shortlist(&self, n_tokens_max: usize) -> Result<Shortlist, PackError> {
        let vocab_size = self.config.vocab_size;
        match self.streamed.as_ref().and_then(Streamed::empty_head) {
            Some(like) => Shortlist::new(&like?, vocab_size, n_tokens_max),
            None => Shortlist::new(self.head_in_memory(), vocab_size, n_tokens_max),
        }
    }

    /// Adds the tokens that are not yet on the shortlist, in order, while there is room. If the output matrix
    /// is streamed, their rows are read; a token whose row cannot be read is skipped.
    pub fn extend_shortlist(&self, shortlist: &mut Shortlist, tokens: impl IntoIterator<Item = TokenId>) {
        match (self.head(), &self.streamed) {
            (None, Some(streamed)) => shortlist.extend(|to, row| streamed.push_head_row(to, row), tokens),
            _ => shortlist.extend(|to, row| to.push_row_of(self.head_in_memory(), row), tokens),
        }
    }

    /// The rows of some tokens in the output matrix, `[tokens.len(), hidden_dim]`; `None` if it is not in memory.
    ///
    /// # Panics
    /// If a token is not in the vocabulary.
    pub(crate) fn output_rows(&self, tokens: &[TokenId]) -> Option<Vec<f32>> {
        let (head, hidden_dim) = (self.head()?, self.config.hidden_dim);
        let mut rows = vec![0.0; tokens.len() * hidden_dim];
        for (token, row) in tokens.iter().zip(rows.chunks_exact_mut(hidden_dim)) {
            head.dequantize_row(token.index(), row);
        }
        Some(rows)
    }

    /// Whether every projection reads the output matrix from flash.
    pub(crate) fn is_head_streamed(&self) -> bool {
        self.streamed.is_some() && self.head().is_none()
    }

    fn head_in_memory(&self) -> &PackedMatrix {
        self.head().expect("the output matrix is in memory where it is not streamed")
    }

    /// `out` becomes `[rows.len(), w.n_rows()]`.
    fn project_rows(
        &self,
        compute: Compute<'_>,
        ws: &mut Workspace,
        rows: &[u32],
        w: &PackedMatrix,
        out: &mut Vec<f32>,
    ) {
        ws.buffers.gather(rows, self.config.hidden_dim);
        self.project_gathered(compute, &mut ws.buffers, w, out);
    }

    /// `out` becomes `[gathered rows, w.n_rows()]`.
    fn project_gathered(&self, compute: Compute<'_>, ws: &mut Buffers, w: &PackedMatrix, out: &mut Vec<f32>) {
        let n_rows = ws.gathered.len() / self.config.hidden_dim;
        resize_exact(out, n_rows * w.n_rows());
        let jobs = &mut [MatMul { w, out }];
        project(compute, &mut ws.activations, &ws.gathered, self.config.hidden_dim, jobs);
        self.finish_logits(compute, out);
    }

    /// Scales and caps logits, if the model does.
    fn finish_logits(&self, compute: Compute<'_>, logits: &mut [f32]) {
        let (scale, cap) = (self.config.logit_scale, self.config.logit_softcap);
        if scale == 1.0 && cap.is_none() {
            return;
        }
        let finish = |logits: &mut [f32]| {
            if scale != 1.0 {
                kernels::scale(compute.kernels, logits, scale);
            }
            if let Some(cap) = cap {
                kernels::softcap(compute.kernels, logits, cap);
            }
        };
        let (parts, rest) = logits.split_at_mut(logits.len() / LOGITS_PART * LOGITS_PART);
        for_rows(compute, parts, LOGITS_PART, &|_, logits| finish(logits));
        finish(rest);
    }

    /// As [`Model::project_gathered`], with a streamed output matrix.
    fn project_pieces(
        &self,
        compute: Compute<'_>,
        ws: &mut Buffers,
        streamed: &Streamed,
        out: &mut Vec<f32>,
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        let vocab_size = self.config.vocab_size;
        let n_rows = ws.gathered.len() / self.config.hidden_dim;
        resize_exact(out, n_rows * vocab_size);
        let Buffers { activations, gathered, piece, .. } = ws;
        streamed.for_each_piece(cancel, |first, w| {
            resize_exact(piece, n_rows * w.n_rows());
            // Each token has its own sum, so the pieces have the bits of the whole matrix.
            project(compute, activations, gathered, self.config.hidden_dim, &mut [MatMul { w, out: piece }]);
            self.finish_logits(compute, piece);
            for (to, from) in out.chunks_exact_mut(vocab_size).zip(piece.chunks_exact(w.n_rows())) {
                to[first..first + w.n_rows()].copy_from_slice(from);
            }
        })
    }
}
