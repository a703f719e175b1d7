//! Trains a head for multi-token prediction for a target: one block that continues the target's final hidden states.
//!
//! ```text
//! row i of depth 1:   (token i + 1, the target's state at i)      ─► the target's prediction at i + 1
//! row i of depth 2:   (token i + 1, the head's own state of row i − 1) ─► the same
//! ```
//!
//! Drafts below the first token read the head's own states, so the head learns from them too (as EAGLE-3 does, arXiv 2503.01840). At a
//! further depth all rows read states of the depth before, which the head does only below the text when it drafts.
//!
//! The loss is that of a draft model ([`draft`](super::draft)), the sum over all depths. The target has to be a GGUF file of the Llama
//! family with plain attention, because the block is that of this crate.

use std::path::Path;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use refrain::Checkpoint;
use refrain::architecture::{Attention, Dense, FeedForward, Mixer, Norms, RopeScaling};
use refrain::internals::kernels::dequantize;
use refrain::internals::model::checkpoint::WeightId;
use refrain::internals::model::gguf::GgufFile;

use super::draft::{DraftHeldOut, held_out};
use super::record::{Record, TOP};
use super::text::Passage;
use super::{Draws, grouped, indices, kl_sum, matrix, rate_share};
use crate::model::{ModelShape, MtpHead, Positions};
use crate::train::{Trainer, optimizer};
use crate::{Error, gguf};

/// Depths of the loss.
pub const DEPTHS: usize = 3;

/// Maximum number of tokens in a micro-batch, padding included.
const MICRO_TOKENS_MAX: usize = 2048;

/// The recipe of a head. Together with target, passages and record it determines the head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadRecipe {
    /// Optimiser steps.
    pub steps: usize,
    /// Passages of a step.
    pub passages: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Seed of the first weights and of the order of the passages.
    pub seed: u64,
}

/// What a head shares with its target, or takes from it.
#[derive(Debug, Clone)]
pub struct HeadTarget {
    shape: ModelShape,
    /// `[vocab, hidden]`; the output matrix too.
    embedding: Vec<f32>,
    /// `[hidden]`
    norm: Vec<f32>,
}

impl HeadTarget {
    /// Reads the sizes and the embedding of the target.
    ///
    /// # Errors
    /// [`Error::Usage`]: the target is not of the Llama family with plain attention and a tied output matrix.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, Error> {
        let config = checkpoint.config();
        let shape = shape_of(checkpoint).ok_or_else(|| {
            let name = checkpoint.name();
            Error::Usage(format!(
                "a head is trained for models of the Llama family with tied embeddings and plain attention in all layers, which \
                 {name} is not"
            ))
        })?;
        let values = |id: WeightId, n: usize| -> Result<Vec<f32>, Error> {
            let failed = |error: &dyn std::fmt::Display| Error::Weights(error.to_string());
            let info = checkpoint.tensor(id).ok_or_else(|| failed(&format_args!("no {id:?}")))?;
            let bytes = checkpoint.read(id).map_err(|error| failed(&error))?;
            let mut values = vec![0.0; n];
            dequantize(info.ty, &bytes, &mut values);
            Ok(values)
        };
        let embedding = values(WeightId::Embedding, config.vocab_size * config.hidden_dim)?;
        Ok(Self { shape, embedding, norm: values(WeightId::OutputNorm, config.hidden_dim)? })
    }
}

/// The sizes of the target, if this crate's block is that of its layers.
fn shape_of(checkpoint: &Checkpoint) -> Option<ModelShape> {
    let config = checkpoint.config();
    let layer = config.layers.first()?;
    let (Mixer::Attention(attention), FeedForward::Dense(dense)) = (&layer.mixer, &layer.feed) else {
        return None;
    };
    let [rope] = &config.ropes[..] else { return None };
    let is_plain = config.architecture.name() == "llama"
        && config.tied_head
        && config.layers.iter().all(|other| other == layer)
        && *attention == Attention::plain(attention.n_heads, attention.n_kv_heads, attention.head_dim)
        && *dense == Dense::plain(dense.ffn_dim, dense.activation)
        && layer.norms == Norms::Pre
        && (rope.rotary_dim, &rope.scaling) == (attention.head_dim, &RopeScaling::None);
    is_plain.then_some(ModelShape {
        vocab: config.vocab_size,
        hidden: config.hidden_dim,
        layers: config.n_layers(),
        heads: attention.n_heads,
        kv_heads: attention.n_kv_heads,
        head_dim: attention.head_dim,
        intermediate: dense.ffn_dim,
        norm_eps: f64::from(config.norm_eps),
        rope_theta: rope.theta,
        max_positions: config.context_len,
    })
}

/// A passage with the target's states and predictions.
#[derive(Clone, Copy)]
struct Lesson<'a> {
    passage: &'a Passage,
    /// The first learnt position in the record.
    first: usize,
    /// The first token in the record's states.
    first_state: usize,
}

impl Lesson<'_> {
    /// Rows of the head.
    fn n_rows(&self) -> usize {
        self.passage.tokens.len() - 1
    }

    /// Rows whose prediction is learnt: the target's at position `row + 1`.
    fn learnt(&self) -> std::ops::Range<usize> {
        self.passage.first_learnt.max(1) - 1..self.n_rows() - 1
    }
}

/// Rows of one forward and backward pass.
struct HeadBatch {
    shape: [usize; 2],
    /// `[rows, seq]`
    tokens: Vec<i32>,
    /// `[rows, seq, hidden]`
    states: Vec<f32>,
    /// Flat positions of learnt predictions.
    at: Vec<i32>,
    /// `[n_learnt, TOP]`
    top: Vec<i32>,
    /// `[n_learnt, TOP]`
    log_p: Vec<f32>,
}

/// Trains a head from a target's recorded states and predictions for `passages`. Calls `progress` with (step, mean loss of a
/// prediction).
///
/// # Errors
/// [`Error::TooFewPassages`]; [`Error::Diverged`].
pub fn train(
    target: &HeadTarget,
    passages: &[Passage],
    record: &Record,
    recipe: &HeadRecipe,
    mut progress: impl FnMut(usize, f64),
) -> Result<(MtpHead, [DraftHeldOut; DEPTHS]), Error> {
    let (learnt, kept) = held_out(lessons(passages, record));
    if learnt.is_empty() || kept.is_empty() {
        return Err(Error::TooFewPassages { given: learnt.len() + kept.len() });
    }
    let device = Device::default();
    let autodiff = device.clone().autodiff();
    let head = MtpHead::init(&target.shape, target.norm.clone(), recipe.seed, &autodiff);
    let mut trainer = Trainer::from_parts(head, optimizer(), &device);
    let mut draws = Draws::new(learnt.len(), recipe.seed);
    for step in 0..recipe.steps {
        let batches = batches(draws.take(&learnt, recipe.passages), record);
        let total = DEPTHS * batches.iter().map(|batch| batch.at.len()).sum::<usize>();
        let rate = recipe.rate * rate_share(step, recipe.steps);
        let loss = trainer.step_by(&batches, rate, total, |head, batch, device| {
            let losses = batch.log_q(head, target, device).map(|log_q| batch.kl(log_q, device));
            losses.into_iter().reduce(|sum, loss| sum + loss).expect("there is a depth")
        });
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        progress(step + 1, loss);
    }
    let head = trainer.plain_model();
    let held_out = evaluate(&head, target, kept, record, &device)?;
    Ok((head, held_out))
}

/// The completely recorded passages.
fn lessons<'a>(passages: &'a [Passage], record: &Record) -> Vec<Lesson<'a>> {
    let (mut lessons, mut first, mut first_state) = (Vec::new(), 0, 0);
    for group in record.passage.chunk_by(|a, b| a == b) {
        let lesson = Lesson { passage: &passages[group[0] as usize], first, first_state };
        let n_learnt = lesson.passage.tokens.len() - 1 - lesson.passage.first_learnt;
        if n_learnt == group.len() && !lesson.learnt().is_empty() {
            lessons.push(lesson);
        }
        first += group.len();
        first_state += lesson.passage.tokens.len();
    }
    lessons
}

/// Batches of lessons of similar length, as large as memory allows.
fn batches(lessons: Vec<Lesson<'_>>, record: &Record) -> Vec<HeadBatch> {
    grouped(lessons, Lesson::n_rows, MICRO_TOKENS_MAX)
        .into_iter()
        .map(|lessons| HeadBatch::new(&lessons, record))
        .collect()
}

impl HeadBatch {
    fn new(lessons: &[Lesson<'_>], record: &Record) -> Self {
        let seq = lessons.iter().map(Lesson::n_rows).max().unwrap_or(0);
        let hidden = record.hidden_dim;
        // Padding comes last, so no learnt row attends to it.
        let mut tokens = vec![0; lessons.len() * seq];
        let mut states = vec![0.0; lessons.len() * seq * hidden];
        let (mut at, mut top, mut log_p) = (Vec::new(), Vec::new(), Vec::new());
        for (row, lesson) in lessons.iter().enumerate() {
            let n = lesson.n_rows();
            for (to, token) in tokens[row * seq..].iter_mut().zip(&lesson.passage.tokens[1..]) {
                *to = token.0 as i32;
            }
            let own = &record.states[lesson.first_state * hidden..][..n * hidden];
            states[row * seq * hidden..][..n * hidden].copy_from_slice(own);
            for learnt in lesson.learnt() {
                let position = lesson.first + learnt + 1 - lesson.passage.first_learnt;
                at.push((row * seq + learnt) as i32);
                top.extend(record.top[position].map(|token| token as i32));
                log_p.extend(record.log_p[position]);
            }
        }
        Self { shape: [lessons.len(), seq], tokens, states, at, top, log_p }
    }

    /// Logarithms of the head's probabilities at each depth, `[n_learnt, vocab]`.
    fn log_q(&self, head: &MtpHead, target: &HeadTarget, device: &Device) -> [Tensor<2>; DEPTHS] {
        let ([rows, seq], ModelShape { vocab, hidden: width, .. }) = (self.shape, head.shape.clone());
        let positions = Positions::new(&head.shape, seq, device);
        let embedding = matrix(target.embedding.clone(), [vocab, width], device);
        let tokens = Tensor::<1, Int>::from_data(TensorData::new(self.tokens.clone(), [rows * seq]), device);
        let embedded = embedding.clone().select(0, tokens).reshape([rows, seq, width]);
        let at = Tensor::<1, Int>::from_data(TensorData::new(self.at.clone(), [self.at.len()]), device);
        let first = Tensor::<3>::from_data(TensorData::new(self.states.clone(), [rows, seq, width]), device);
        let mut states = first.clone();
        std::array::from_fn(|_| {
            let hidden = head.hidden(embedded.clone(), states.clone(), &positions);
            // Row i of the next depth reads the state of row i − 1 of this one, which stands for the target's at i.
            let before = hidden.clone().narrow(1, 0, seq - 1);
            states = Tensor::cat(vec![first.clone().narrow(1, 0, 1), before], 1);
            let learnt = hidden.reshape([rows * seq, width]).select(0, at.clone());
            log_softmax(learnt.matmul(embedding.clone().transpose()), 1)
        })
    }

    fn kl(&self, log_q: Tensor<2>, device: &Device) -> Tensor<1> {
        let shape = [self.at.len(), TOP];
        let log_q = log_q.gather(1, indices(self.top.clone(), shape, device));
        let log_p = matrix(self.log_p.clone(), shape, device);
        let p = log_p.clone().exp();
        let rest = p.clone().sum_dim(1).neg().add_scalar(1.0).clamp_min(0.0);
        kl_sum(log_q, p, log_p, rest)
    }
}

/// The quality at each depth.
fn evaluate(
    head: &MtpHead,
    target: &HeadTarget,
    held_out: Vec<Lesson<'_>>,
    record: &Record,
    device: &Device,
) -> Result<[DraftHeldOut; DEPTHS], Error> {
    let mut found = [DraftHeldOut { n_positions: 0, agreement: 0.0, kl: 0.0 }; DEPTHS];
    for batch in batches(held_out, record) {
        for (found, log_q) in found.iter_mut().zip(batch.log_q(head, target, device)) {
            let choices = log_q.clone().argmax(1).into_data().convert::<i64>();
            let choices =
                choices.try_to_vec::<i64>().map_err(|error| Error::Weights(format!("{error:?}")))?;
            let firsts = batch.top.iter().step_by(TOP);
            let n_agreed =
                firsts.zip(&choices).filter(|(first, choice)| i64::from(**first) == **choice).count();
            found.agreement += n_agreed as f64;
            found.n_positions += choices.len();
            found.kl += f64::from(batch.kl(log_q, device).into_scalar::<f32>());
        }
    }
    for found in &mut found {
        let n = found.n_positions.max(1) as f64;
        (found.agreement, found.kl) = (found.agreement / n, found.kl / n);
    }
    Ok(found)
}

/// Writes the head beside the metadata and the tokenizer of the target's GGUF file.
///
/// # Errors
/// The target is another kind of file. Errors of the system.
pub fn write(head: &MtpHead, target: &Path, out: &Path) -> Result<(), Error> {
    let file = GgufFile::open(target).map_err(|error| Error::Weights(error.to_string()))?;
    gguf::write_mtp(head, &file, out)
}

/// Whether [`write()`] can write there. For a check before training.
///
/// # Errors
/// [`Error::Usage`].
pub fn check_out(target: &Path, out: &Path) -> Result<(), Error> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == "gguf");
    match [target, out].into_iter().find(|path| !is_gguf(path)) {
        None => Ok(()),
        Some(other) => {
            Err(Error::Usage(format!("{} is no GGUF file, and heads are written as such", other.display())))
        }
    }
}
