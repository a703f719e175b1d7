//! The pass of an encoder.
//!
//! Cost sketch of MiniLM-L6 (22 million parameters, of which the pass reads 10.6 million as 42 MB of f32): 21 MFLOP for a token, and
//! 0.6 MFLOP more for its attention in a text of 200 tokens. The floats of 512 rows take 9 MB.

use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::config::{EncoderConfig, Pooling};
use super::weights::{EncoderWeights, Layer, Linear, Norm};
use crate::error::of_alloc;
use crate::kernels::{
    Activations, AllocError, AttentionRule, AttentionScratch, AttentionShape, FloatEnv, KvLayer, KvType,
    MatMul, Visible, add, attention, gelu, has_room, layer_norm_in_place, matmul, resize_exact,
};
use crate::model::transformer::Compute;
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_trees::TokenId;

/// Rows of a pass of several texts. A tile has up to 16 rows, so more rows gain nothing; a longer text has a pass of its own.
const ROWS_MAX: usize = 512;

/// Texts have no vectors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The cancel flag was set.
    #[error("cancelled")]
    Cancelled,
    /// The system gives too little memory for the rows of a text.
    #[error("the pass over {n_rows} tokens needs {bytes} bytes of memory, which the system does not give")]
    Memory {
        /// Rows.
        n_rows: usize,
        /// Bytes needed.
        bytes: usize,
    },
    /// The keys and values of a text cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl Fault for EncodeError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Cancelled => Facts::new(ErrorKind::Cancelled),
            Self::Memory { bytes, .. } => Facts::new(ErrorKind::OutOfMemory).value(*bytes),
            Self::Alloc(error) => of_alloc(error),
        }
    }
}

/// The memory of passes, which grows to that of the largest one.
#[derive(Default)]
pub struct EncoderWorkspace {
    /// `[n_rows, hidden_dim]`, like the next five.
    x: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    /// What is added to `x`.
    change: Vec<f32>,
    /// `[n_rows, ffn_dim]`
    inner: Vec<f32>,
    activations: Activations,
    scratch: AttentionScratch,
    /// Keys and values of one text in one layer.
    kv: Option<KvLayer>,
}

impl EncoderWeights {
    /// The vectors of texts, each the tokens with those around it. Their bits depend on their own tokens only.
    ///
    /// # Errors
    /// [`EncodeError`]: there are no vectors.
    ///
    /// # Panics
    /// If a text is empty or longer than the table of positions, or a token is not in the table of words.
    pub(crate) fn encode(
        &self,
        config: &EncoderConfig,
        compute: Compute<'_>,
        workspace: &mut EncoderWorkspace,
        texts: &[Vec<TokenId>],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<f32>>, EncodeError> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut n_rows = 0;
            let fits = rest.iter().take_while(|text| {
                n_rows += text.len();
                n_rows <= ROWS_MAX
            });
            let (texts, others) = rest.split_at(fits.count().max(1));
            self.pass(config, compute, workspace, texts, cancel)?;
            let mut rows = workspace.x.chunks_exact(config.hidden_dim);
            vectors.extend(texts.iter().map(|text| {
                let rows: Vec<&[f32]> = rows.by_ref().take(text.len()).collect();
                pooled(config.pooling, &rows)
            }));
            rest = others;
        }
        Ok(vectors)
    }

    /// Computes the final rows of the texts.
    fn pass(
        &self,
        config: &EncoderConfig,
        compute: Compute<'_>,
        workspace: &mut EncoderWorkspace,
        texts: &[Vec<TokenId>],
        cancel: &AtomicBool,
    ) -> Result<(), EncodeError> {
        let Compute { kernels: k, pool } = compute;
        let EncoderConfig { hidden_dim, ffn_dim, n_heads, norm_eps, first_position, .. } = *config;
        let n_rows: usize = texts.iter().map(Vec::len).sum();
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        workspace.reserve(config, n_rows, longest)?;
        let EncoderWorkspace { x, query, key, value, attended, change, inner, activations, scratch, kv } =
            workspace;
        let kv = kv.as_mut().expect("reserved");

        let places: Vec<(TokenId, usize)> =
            texts.iter().flat_map(|text| text.iter().copied().zip(first_position..)).collect();
        pool.for_rows(x, hidden_dim, &|row, out| {
            let (token, position) = places[row];
            self.words.row(token.index(), out);
            let mut other = vec![0.0; hidden_dim];
            // In the order of the reference implementation.
            self.types.row(0, &mut other);
            add(k, out, &other);
            self.positions.row(position, &mut other);
            add(k, out, &other);
            normalize(k, out, &self.norm, norm_eps);
        });

        let head_dim = hidden_dim / n_heads;
        let shape = AttentionShape { n_heads, n_kv_heads: n_heads, head_dim };
        let rule = AttentionRule::plain(head_dim);
        for Layer { query: q, key: ks, value: v, out, attention_norm, up, down, norm } in &self.layers {
            if cancel.load(Ordering::Relaxed) {
                return Err(EncodeError::Cancelled);
            }
            let form = [q, ks, v]
                .iter()
                .fold(q.matrix.activation_form(), |form, linear| form.with(linear.matrix.activation_form()));
            activations.set(k, pool, x, n_rows, hidden_dim, form);
            let mut jobs = [
                MatMul { w: &q.matrix, out: query },
                MatMul { w: &ks.matrix, out: key },
                MatMul { w: &v.matrix, out: value },
            ];
            matmul(k, pool, activations, &mut jobs);
            for (rows, linear) in [(&mut *query, q), (&mut *key, ks), (&mut *value, v)] {
                pool.for_rows(rows, hidden_dim, &|_, row| add(k, row, &linear.bias));
            }
            let mut first = 0;
            for text in texts {
                let rows = first * hidden_dim..(first + text.len()) * hidden_dim;
                {
                    let _env = FloatEnv::ieee();
                    let pairs =
                        key[rows.clone()].chunks(hidden_dim).zip(value[rows.clone()].chunks(hidden_dim));
                    pairs.enumerate().for_each(|(slot, (key, value))| kv.write(k, slot, key, value));
                }
                let visible = vec![Visible { prefix_len: text.len(), extra: &[] }; text.len()];
                let out = &mut attended[rows.clone()];
                attention(k, pool, shape, rule, &query[rows], kv, &visible, scratch, out);
                first += text.len();
            }
            let add_and_normalize = |x: &mut [f32], change: &[f32], linear: &Linear, norm: &Norm| {
                pool.for_rows(x, hidden_dim, &|row, out| {
                    add(k, out, &change[row * hidden_dim..][..hidden_dim]);
                    add(k, out, &linear.bias);
                    normalize(k, out, norm, norm_eps);
                });
            };
            activations.set(k, pool, attended, n_rows, hidden_dim, out.matrix.activation_form());
            matmul(k, pool, activations, &mut [MatMul { w: &out.matrix, out: change }]);
            add_and_normalize(x, change, out, attention_norm);
            activations.set(k, pool, x, n_rows, hidden_dim, up.matrix.activation_form());
            matmul(k, pool, activations, &mut [MatMul { w: &up.matrix, out: inner }]);
            activations.set_computed(k, pool, inner, ffn_dim, down.matrix.activation_form(), &|_, row| {
                add(k, row, &up.bias);
                gelu(k, row);
            });
            matmul(k, pool, activations, &mut [MatMul { w: &down.matrix, out: change }]);
            add_and_normalize(x, change, down, norm);
        }
        Ok(())
    }
}

fn normalize(k: crate::kernels::Kernels, row: &mut [f32], norm: &Norm, eps: f32) {
    layer_norm_in_place(k, row, &norm.weight, &norm.bias, eps);
}

impl EncoderWorkspace {
    fn reserve(&mut self, config: &EncoderConfig, n_rows: usize, longest: usize) -> Result<(), EncodeError> {
        let EncoderConfig { hidden_dim, ffn_dim, n_heads, .. } = *config;
        if self.kv.as_ref().is_none_or(|kv| kv.n_slots() < longest) {
            self.kv = None;
            self.kv = Some(KvLayer::new(KvType::F32, n_heads, longest, hidden_dim / n_heads)?);
        }
        if self.x.len() < n_rows * hidden_dim {
            // Activations have the widest rows once more.
            let row_floats = 6 * hidden_dim + ffn_dim + hidden_dim.max(ffn_dim);
            let bytes = n_rows.saturating_mul(row_floats).saturating_mul(size_of::<f32>());
            if !has_room(bytes) {
                return Err(EncodeError::Memory { n_rows, bytes });
            }
        }
        let Self { x, query, key, value, attended, change, inner, .. } = self;
        for rows in [x, query, key, value, attended, change] {
            resize_exact(rows, n_rows * hidden_dim);
        }
        resize_exact(inner, n_rows * ffn_dim);
        Ok(())
    }
}

/// The vector of a text's rows, of length 1. Zeros stay.
fn pooled(pooling: Pooling, rows: &[&[f32]]) -> Vec<f32> {
    let _env = FloatEnv::ieee();
    // In f64, row after row: the same bits everywhere.
    let mut sums = vec![0.0_f64; rows[0].len()];
    let taken = match pooling {
        Pooling::Mean => rows,
        Pooling::FirstToken => &rows[..1],
    };
    for row in taken {
        sums.iter_mut().zip(*row).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    let length = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
    sums.into_iter().map(|sum| (sum * factor) as f32).collect()
}
