//! The early-exit predictor: a low-rank linear map from a middle layer's hidden state to scores of tokens.
//!
//! ```text
//! z        = down · x/rms(x)          [rank]          (Lever, arXiv 2605.16786, eq. 7, with W = up · down)
//! score(t) = up[t] · z                for the requested tokens
//! ```
//!
//! A full `[vocab_size, hidden_dim]` map would be as large as the output matrix. At rank 64 the map takes a
//! twenty-fourth of it at the shape of a 1.5 B model. Only the rows of the relevant tokens are read: the
//! draft tokens, and a pool of frequent tokens for the shadow candidates.

use std::path::Path;

use half::f16;

use super::error::{PredictorError, PredictorField};
use super::file;
use super::parts::PredictorParts;
use crate::error::LoadError;
use crate::face::internals;
use crate::kernels::{self, ActivationForm, Activations, BlockType, MatMul, PackError, PackedMatrix};
use crate::model::Model;
use crate::model::transformer::Compute;
use refrain_trees::TokenId;

/// Added to the mean square of a hidden state, as in the norms of the models.
const NORM_EPS: f32 = 1e-6;

/// A linear map from a middle layer's hidden state to scores of tokens: immutable, shared by sessions.
pub struct Predictor {
    parts: PredictorParts,
    /// `parts.down`, packed for the kernels. `[rank, hidden_dim]`
    down: PackedMatrix,
    /// The pool's rows of `up`. `[shadow_pool.len(), rank]`
    pool: PackedMatrix,
    /// All ones, `[hidden_dim]`: the weights of the norm are part of `down`.
    ones: Vec<f32>,
}

/// Working memory of one user of a predictor.
#[derive(Default)]
pub struct PredictorScratch {
    activations: Activations,
    /// `[n_rows, hidden_dim]`
    normed: Vec<f32>,
    /// `[n_rows, rank]`
    z: Vec<f32>,
    /// `[n_rows, shadow_pool.len()]`
    pool: Vec<f32>,
}

impl Predictor {
    internals! {
        /// A predictor with these parts.
        ///
        /// # Errors
        /// [`PredictorError::Parts`], [`PredictorError::OutOfRange`], [`PredictorError::NotFinite`],
        /// [`PredictorError::PoolOrder`]: the parts do not fit together; [`PredictorError::Memory`].
        fn new(parts: PredictorParts) -> Result<Self, LoadError> {
            Ok(Self::named(parts, "predictor")?)
        }
    }

    /// Reads a predictor file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a predictor.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        Ok(Self::named(file::read(path)?, &path.display().to_string())?)
    }

    /// Reads a predictor from memory; `name` is used in error messages.
    ///
    /// # Errors
    /// The bytes are not a predictor.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, LoadError> {
        Ok(Self::named(file::parse(bytes, name)?, name)?)
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        file::to_bytes(&self.parts)
    }

    /// Writes the file atomically; an existing file is replaced.
    ///
    /// # Errors
    /// The file cannot be written; an existing file is unchanged.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        Ok(file::write(&self.parts, path.as_ref())?)
    }

    fn named(parts: PredictorParts, name: &str) -> Result<Self, PredictorError> {
        file::check(&parts, name)?;
        let memory = |source: PackError| PredictorError::Memory { file: name.to_owned(), source };
        let PredictorParts { hidden_dim, rank, .. } = parts;
        let bytes: Vec<u8> = parts.down.iter().flat_map(|value| value.to_le_bytes()).collect();
        let down =
            PackedMatrix::pack(BlockType::F32, rank, hidden_dim, &bytes, &|row| row).map_err(memory)?;
        let rows = parts.shadow_pool.iter().map(|token| up_row(&parts, *token));
        let bytes: Vec<u8> = rows.flatten().flat_map(|value| value.to_f32().to_le_bytes()).collect();
        let n_pool = parts.shadow_pool.len();
        let pool = PackedMatrix::pack(BlockType::F32, n_pool, rank, &bytes, &|row| row).map_err(memory)?;
        let ones = vec![1.0; hidden_dim];
        Ok(Self { parts, down, pool, ones })
    }

    internals! {
        /// The parts of the predictor.
        fn parts(&self) -> &PredictorParts {
            &self.parts
        }
    }

    /// The layer before which rows are scored: 1 or more.
    pub fn layer_idx(&self) -> usize {
        self.parts.layer_idx
    }

    internals! {
        /// Bytes of the weights.
        fn memory_usage(&self) -> usize {
            self.down.size_bytes()
                + self.pool.size_bytes()
                + size_of_val(&self.parts.down[..])
                + size_of_val(&self.parts.up[..])
                + size_of_val(&self.parts.shadow_pool[..])
                + size_of_val(&self.ones[..])
        }
    }

    /// Checks that the predictor can prune drafts of `model`.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), PredictorError> {
        let (parts, config) = (&self.parts, model.config());
        if model.graphs().is_some() {
            return Err(PredictorError::StaticGraphs);
        }
        if parts.model != model.identity() {
            return Err(PredictorError::OtherModel { trained_for: parts.model, model: model.identity() });
        }
        let shape = |field, predictor, model| Err(PredictorError::Shape { field, predictor, model });
        if parts.layer_idx >= config.n_layers() {
            return shape(PredictorField::Layer, parts.layer_idx, config.n_layers() - 1);
        }
        if parts.hidden_dim != config.hidden_dim {
            return shape(PredictorField::HiddenDim, parts.hidden_dim, config.hidden_dim);
        }
        if parts.vocab_size != config.vocab_size {
            return shape(PredictorField::VocabSize, parts.vocab_size, config.vocab_size);
        }
        Ok(())
    }

    internals! {
        /// Maps hidden states `[n_rows, hidden_dim]` into `scratch`. With `with_pool`, also scores the shadow
        /// pool for each row.
        ///
        /// # Panics
        /// `hidden` is not a whole number of rows.
        fn set_rows(
            &self,
            compute: Compute<'_>,
            hidden: &[f32],
            with_pool: bool,
            scratch: &mut PredictorScratch,
        ) {
            let PredictorParts { hidden_dim, rank, .. } = self.parts;
            assert!(
                hidden.len().is_multiple_of(hidden_dim),
                "{} values are not rows of {hidden_dim}",
                hidden.len()
            );
            let n_rows = hidden.len() / hidden_dim;
            let PredictorScratch { activations, normed, z, pool } = scratch;
            normed.resize(hidden.len(), 0.0);
            for (out, x) in normed.chunks_exact_mut(hidden_dim).zip(hidden.chunks_exact(hidden_dim)) {
                kernels::rms_norm(compute.kernels, x, &self.ones, NORM_EPS, out);
            }
            z.resize(n_rows * rank, 0.0);
            pool.resize(if with_pool { n_rows * self.parts.shadow_pool.len() } else { 0 }, 0.0);
            let mut apply = |x: &[f32], n_cols: usize, w: &PackedMatrix, out: &mut [f32]| {
                if out.is_empty() {
                    return;
                }
                activations.set(compute.kernels, compute.pool, x, n_rows, n_cols, ActivationForm::F32);
                kernels::matmul(compute.kernels, compute.pool, activations, &mut [MatMul { w, out }]);
            };
            apply(normed, hidden_dim, &self.down, z);
            apply(z, rank, &self.pool, pool);
        }

        /// The score of a token after row `row` of [`set_rows`](Self::set_rows).
        ///
        /// # Panics
        /// The row or the token does not exist.
        fn score(&self, scratch: &PredictorScratch, row: usize, token: TokenId) -> f32 {
            let z = &scratch.z[row * self.parts.rank..(row + 1) * self.parts.rank];
            up_row(&self.parts, token).iter().zip(z).map(|(up, z)| up.to_f32() * z).sum()
        }
    }

    /// The scores of the shadow pool after row `row`, in the pool's order.
    pub(super) fn pool_scores<'s>(&self, scratch: &'s PredictorScratch, row: usize) -> &'s [f32] {
        let n_pool = self.parts.shadow_pool.len();
        &scratch.pool[row * n_pool..(row + 1) * n_pool]
    }
}

/// A predictor as an exit: the scores of the whole vocabulary.
pub(crate) struct ExitHead {
    predictor: Predictor,
    /// `parts.up`, packed for the kernels. `[vocab_size, rank]`
    up: PackedMatrix,
}

impl ExitHead {
    /// # Errors
    /// The matrix could not be allocated.
    pub(crate) fn new(predictor: Predictor) -> Result<Self, PackError> {
        let PredictorParts { vocab_size, rank, up, .. } = &predictor.parts;
        let bytes: Vec<u8> = up.iter().flat_map(|value| value.to_le_bytes()).collect();
        let up = PackedMatrix::pack(BlockType::F16, *vocab_size, *rank, &bytes, &|row| row)?;
        Ok(Self { predictor, up })
    }

    /// Scores all tokens behind hidden states `[n_rows, hidden_dim]` of the predictor's layer: `out` becomes `[n_rows, vocab_size]`.
    ///
    /// # Panics
    /// `hidden` is not a whole number of rows.
    pub(crate) fn scores(
        &self,
        compute: Compute<'_>,
        hidden: &[f32],
        scratch: &mut PredictorScratch,
        out: &mut Vec<f32>,
    ) {
        self.predictor.set_rows(compute, hidden, false, scratch);
        let PredictorScratch { activations, z, .. } = scratch;
        let PredictorParts { rank, vocab_size, .. } = self.predictor.parts;
        let n_rows = z.len() / rank;
        out.resize(n_rows * vocab_size, 0.0);
        activations.set(compute.kernels, compute.pool, z, n_rows, rank, self.up.activation_form());
        kernels::matmul(compute.kernels, compute.pool, activations, &mut [MatMul { w: &self.up, out }]);
    }

    /// Bytes of the weights.
    pub(crate) fn memory_usage(&self) -> usize {
        self.predictor.memory_usage() + self.up.size_bytes()
    }
}

impl std::fmt::Debug for Predictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PredictorParts { model, layer_idx, hidden_dim, rank, vocab_size, .. } = &self.parts;
        let mut shown = f.debug_struct("Predictor");
        shown.field("model", model).field("layer_idx", layer_idx).field("hidden_dim", hidden_dim);
        shown.field("rank", rank).field("vocab_size", vocab_size).finish_non_exhaustive()
    }
}

fn up_row(parts: &PredictorParts, token: TokenId) -> &[f16] {
    &parts.up[token.index() * parts.rank..(token.index() + 1) * parts.rank]
}
