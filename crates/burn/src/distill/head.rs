//! Trains a draft head for a target: one block that continues the target's hidden states, in the layout of a head for multi-token
//! prediction or of an EAGLE-3 head.
//!
//! Drafts below the first token read the head's own states, so the head learns from them too, as EAGLE-3 does in its training-time test
//! (arXiv 2503.01840): [`drafts`] computes nodes of several depths below the text, which see what they see when the head drafts.
//! Queries are computed only where a prediction is learnt, so a long prompt costs its keys and values.
//!
//! The loss is that of a draft model ([`draft`](super::draft)), the sum over all depths. The target has to be of the Llama
//! family with plain attention, because the block is that of this crate.

use std::path::Path;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use refrain::checkpoint::Checkpoint;
use refrain::drafting::HiddenStates;
use refrain::internals::kernels::dequantize;
use refrain::internals::model::checkpoint::WeightId;
use refrain::internals::model::config::{Attention, Dense, FeedForward, Mixer, Norms, RopeScaling};
use refrain::internals::model::gguf::GgufFile;

use super::draft::held_out;
use super::record::{LOG_P_MIN, Record, TOP};
use super::text::Passage;
use super::{Draws, HeldOut, choices, kl, matrix, rate_share, split_lessons};
use crate::model::{DraftHead, Eagle3Head, ModelShape, MtpHead, Texts, drafts};
use crate::train::{Trainer, optimizer};
use crate::{Error, export, gguf};

/// Depths of the loss.
pub const DEPTHS: usize = 3;

/// The recipe of a head. Together with target, passages and record it determines the head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadRecipe {
    /// The layout.
    pub kind: HeadKind,
    /// Optimiser steps.
    pub steps: usize,
    /// Passages of a step.
    pub passages: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Seed of the first weights and of the order of the passages.
    pub seed: u64,
}

/// The layout of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// A head for multi-token prediction, in the layout of llama.cpp's GGUF files.
    Mtp,
    /// An EAGLE-3 head, in the layout of its authors' folders.
    Eagle3 {
        /// Tokens that it drafts: those that the target predicts most often in the passages.
        n_tokens: usize,
    },
}

impl HeadKind {
    /// The hidden states that a head reads of a target with `n_layers` layers.
    pub fn reads(self, n_layers: usize) -> HiddenStates {
        match self {
            Self::Mtp => HiddenStates::Final,
            Self::Eagle3 { .. } => HiddenStates::Before(taps(n_layers)),
        }
    }
}

/// The layers of a target before which an EAGLE-3 head reads: those of its authors, or others in targets of few layers. The first is
/// never 1, which would make the list name outputs.
fn taps(n_layers: usize) -> [usize; 3] {
    let middle = n_layers / 2;
    let first = if middle < 2 { 0 } else { 2 };
    [first, middle, n_layers.saturating_sub(3).max(middle + 1).min(n_layers)]
}

/// A trained head.
#[derive(Debug, Clone)]
pub enum TrainedHead {
    /// For multi-token prediction.
    Mtp(MtpHead),
    /// EAGLE-3, with the tokens that it drafts, in ascending order.
    Eagle3(Eagle3Head, Vec<u32>),
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

    /// The row of a token in the output matrix, `[hidden]`.
    fn row(&self, token: u32) -> &[f32] {
        &self.embedding[token as usize * self.shape.hidden..][..self.shape.hidden]
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
    /// Rows of the head: the target's prediction at position `row + 1` is recorded.
    fn n_rows(&self) -> usize {
        self.passage.tokens.len().saturating_sub(2)
    }

    /// Rows whose prediction is learnt: those with ancestors at all depths.
    fn learnt(&self) -> std::ops::Range<usize> {
        self.passage.first_learnt.saturating_sub(1).max(DEPTHS - 1)..self.n_rows()
    }
}

/// Rows of one forward and backward pass.
struct HeadBatch {
    /// Passages, and rows of each, with padding in front.
    shape: [usize; 2],
    /// Rows of padding of each passage.
    n_skipped: Vec<usize>,
    /// The last rows of each passage that are computed at all depths.
    n_drafted: usize,
    /// `[passages, rows]`
    tokens: Vec<i32>,
    /// `[passages, rows, state_dim]`
    states: Vec<f32>,
    /// Learnt predictions in `[passages, n_drafted]`.
    at: Vec<i32>,
    /// The likeliest token of each, or −1 if the head does not draft it.
    firsts: Vec<i64>,
    /// `[n_learnt, TOP]`
    top: Vec<i32>,
    /// `[n_learnt, TOP]`
    log_p: Vec<f32>,
}

/// Trains a head from a target's recorded states ([`HeadKind::reads`]) and predictions for `passages`. Calls `progress` with
/// (step, mean loss of a prediction).
///
/// # Errors
/// [`Error::TooFewPassages`]; [`Error::Diverged`].
pub fn train(
    target: &HeadTarget,
    passages: &[Passage],
    record: &Record,
    recipe: &HeadRecipe,
    progress: impl FnMut(usize, f64),
) -> Result<(TrainedHead, [HeldOut; DEPTHS]), Error> {
    let device = Device::default().autodiff();
    let (shape, norm) = (&target.shape, target.norm.clone());
    match recipe.kind {
        HeadKind::Mtp => {
            let head = MtpHead::init(shape, norm, recipe.seed, &device);
            let (head, held_out) = fit(head, None, target, passages, record, recipe, progress)?;
            Ok((TrainedHead::Mtp(head), held_out))
        }
        HeadKind::Eagle3 { n_tokens } => {
            let tokens = frequent(record, shape.vocab, n_tokens);
            let rows = tokens.iter().flat_map(|&token| target.row(token)).copied().collect::<Vec<_>>();
            let head = Eagle3Head::init(shape, norm, &rows, recipe.seed, &device);
            let (head, held_out) = fit(head, Some(&tokens), target, passages, record, recipe, progress)?;
            Ok((TrainedHead::Eagle3(head, tokens), held_out))
        }
    }
}

/// The `n` tokens with most of the recorded probability, in ascending order.
fn frequent(record: &Record, vocab: usize, n: usize) -> Vec<u32> {
    let mut weights = vec![0.0; vocab];
    for (token, log_p) in record.top.iter().flatten().zip(record.log_p.iter().flatten()) {
        weights[*token as usize] += f64::from(log_p.exp());
    }
    let mut tokens: Vec<u32> = (0..vocab as u32).collect();
    tokens.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]));
    tokens.truncate(n.max(1));
    tokens.sort_unstable();
    tokens
}

/// Trains `head`, which drafts `drafted`, or all tokens.
fn fit<H: DraftHead>(
    head: H,
    drafted: Option<&[u32]>,
    target: &HeadTarget,
    passages: &[Passage],
    record: &Record,
    recipe: &HeadRecipe,
    mut progress: impl FnMut(usize, f64),
) -> Result<(H, [HeldOut; DEPTHS]), Error> {
    let (learnt, kept) = held_out(lessons(passages, record));
    if learnt.is_empty() || kept.is_empty() {
        return Err(Error::TooFewPassages { given: learnt.len() + kept.len() });
    }
    let (device, vocab) = (Device::default(), target.shape.vocab);
    let mut trainer = Trainer::from_parts(head, optimizer(), &device);
    let mut draws = Draws::new(learnt.len(), recipe.seed);
    for step in 0..recipe.steps {
        let batches = batches(draws.take(&learnt, recipe.passages), record, drafted, vocab);
        let total = DEPTHS * batches.iter().map(|batch| batch.at.len()).sum::<usize>();
        let rate = recipe.rate * rate_share(step, recipe.steps);
        let loss = trainer.step_by(&batches, rate, total, |head, batch, device| {
            let log_q = batch.log_q(head, target, device).into_iter();
            let losses = log_q.map(|log_q| kl(log_q, &batch.top, &batch.log_p, device));
            losses.reduce(|sum, loss| sum + loss).expect("there is a depth")
        });
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        progress(step + 1, loss);
    }
    let head = trainer.plain_model();
    let held_out = evaluate(&head, target, batches(kept, record, drafted, vocab), &device)?;
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

fn batches(
    lessons: Vec<Lesson<'_>>,
    record: &Record,
    drafted: Option<&[u32]>,
    vocab: usize,
) -> Vec<HeadBatch> {
    let n_logits = drafted.map_or(vocab, <[u32]>::len);
    let parts = split_lessons(lessons, Lesson::n_rows, n_logits).into_iter();
    parts.map(|lessons| HeadBatch::new(&lessons, record, drafted)).collect()
}

impl HeadBatch {
    fn new(lessons: &[Lesson<'_>], record: &Record, drafted: Option<&[u32]>) -> Self {
        let n_rows = lessons.iter().map(Lesson::n_rows).max().unwrap_or(0);
        let n_learnt = lessons.iter().map(|lesson| lesson.learnt().len()).max().unwrap_or(0);
        // Those before the first learnt row are its ancestors.
        let n_drafted = n_rows.min(n_learnt + DEPTHS - 1);
        let width = record.state_dim;
        let mut batch = Self {
            shape: [lessons.len(), n_rows],
            n_skipped: lessons.iter().map(|lesson| n_rows - lesson.n_rows()).collect(),
            n_drafted,
            tokens: vec![0; lessons.len() * n_rows],
            states: vec![0.0; lessons.len() * n_rows * width],
            at: Vec::new(),
            firsts: Vec::new(),
            top: Vec::new(),
            log_p: Vec::new(),
        };
        for (number, lesson) in lessons.iter().enumerate() {
            let (n, n_skipped) = (lesson.n_rows(), batch.n_skipped[number]);
            let start = number * n_rows + n_skipped;
            for (to, token) in batch.tokens[start..].iter_mut().zip(&lesson.passage.tokens[1..=n]) {
                *to = token.0 as i32;
            }
            let own = &record.states[lesson.first_state * width..][..n * width];
            batch.states[start * width..][..n * width].copy_from_slice(own);
            for learnt in lesson.learnt() {
                let row = n_skipped + learnt + n_drafted - n_rows;
                batch.at.push((number * n_drafted + row) as i32);
                let position = lesson.first + learnt + 1 - lesson.passage.first_learnt;
                batch.learn(&record.top[position], &record.log_p[position], drafted);
            }
        }
        batch
    }

    /// Adds the target's likely tokens at a position, as far as the head drafts them.
    fn learn(&mut self, top: &[u32; TOP], log_p: &[f32; TOP], drafted: Option<&[u32]>) {
        let number = |token: &u32| match drafted {
            None => Some(*token as i32),
            Some(drafted) => drafted.binary_search(token).ok().map(|number| number as i32),
        };
        let numbers = top.each_ref().map(number);
        let missing = numbers.iter().zip(log_p).filter(|(number, _)| number.is_none());
        let share = 1.0 - missing.map(|(_, log_p)| log_p.exp()).sum::<f32>();
        let log_share = share.max(f32::MIN_POSITIVE).ln();
        self.firsts.push(numbers[0].map_or(-1, i64::from));
        for (number, log_p) in numbers.iter().zip(log_p) {
            self.top.push(number.unwrap_or(0));
            self.log_p.push(if number.is_some() { (log_p - log_share).min(0.0) } else { LOG_P_MIN });
        }
    }

    /// Logarithms of the head's probabilities at each depth, `[n_learnt, drafted tokens]`.
    fn log_q(&self, head: &impl DraftHead, target: &HeadTarget, device: &Device) -> Vec<Tensor<2>> {
        let ([passages, rows], (shape, _)) = (self.shape, head.parts());
        let (vocab, width) = (shape.vocab, shape.hidden);
        let embedding = matrix(target.embedding.clone(), [vocab, width], device);
        let tokens =
            Tensor::<1, Int>::from_data(TensorData::new(self.tokens.clone(), [passages * rows]), device);
        let embedded = embedding.clone().select(0, tokens).reshape([passages, rows, width]);
        let state_dim = self.states.len() / (passages * rows).max(1);
        let states = TensorData::new(self.states.clone(), [passages, rows, state_dim]);
        let states = Tensor::<3>::from_data(states, device);
        let at = Tensor::<1, Int>::from_data(TensorData::new(self.at.clone(), [self.at.len()]), device);
        let texts = Texts { embedded, states, n_skipped: self.n_skipped.clone() };
        let drafts = drafts(head, texts, self.n_drafted, DEPTHS).into_iter();
        drafts
            .map(|projected| {
                let projected = projected.reshape([passages * self.n_drafted, width]);
                log_softmax(head.logits(projected.select(0, at.clone()), &embedding), 1)
            })
            .collect()
    }
}

/// The quality at each depth.
fn evaluate(
    head: &impl DraftHead,
    target: &HeadTarget,
    held_out: Vec<HeadBatch>,
    device: &Device,
) -> Result<[HeldOut; DEPTHS], Error> {
    let mut sums = [(0, 0, 0.0); DEPTHS];
    for batch in held_out {
        for ((n_positions, n_agreed, divergence), log_q) in
            sums.iter_mut().zip(batch.log_q(head, target, device))
        {
            let choices = choices(&log_q)?;
            *n_agreed += batch.firsts.iter().zip(&choices).filter(|(first, choice)| first == choice).count();
            *n_positions += choices.len();
            *divergence += f64::from(kl(log_q, &batch.top, &batch.log_p, device).into_scalar::<f32>());
        }
    }
    Ok(sums.map(|(n_positions, n_agreed, divergence)| HeldOut::new(n_positions, n_agreed, divergence)))
}

/// Writes the head with the target's embedding, so that a target that streams it can have the head: one for multi-token prediction
/// beside metadata and tokenizer of the target's GGUF file, an EAGLE-3 head as a folder.
///
/// # Errors
/// [`Error::Usage`]: as [`check_out`]. Errors of the system.
pub fn write(head: &TrainedHead, of_target: &HeadTarget, target: &Path, out: &Path) -> Result<(), Error> {
    match head {
        TrainedHead::Mtp(head) => {
            check_out(HeadKind::Mtp, target, out)?;
            let file = GgufFile::open(target).map_err(|error| Error::Weights(error.to_string()))?;
            gguf::write_mtp(head, &file, out)
        }
        TrainedHead::Eagle3(head, tokens) => {
            check_out(HeadKind::Eagle3 { n_tokens: tokens.len() }, target, out)?;
            export::write_eagle3(head, tokens, taps(of_target.shape.layers), &of_target.embedding, out)
        }
    }
}

/// Whether [`write()`] can write there. For a check before training.
///
/// # Errors
/// [`Error::Usage`].
pub fn check_out(kind: HeadKind, target: &Path, out: &Path) -> Result<(), Error> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == "gguf");
    let problem = match kind {
        HeadKind::Mtp => {
            let other = [target, out].into_iter().find(|path| !is_gguf(path));
            other.map(|path| format!("{} is no GGUF file, and such heads are written as one", path.display()))
        }
        HeadKind::Eagle3 { .. } => (!export::is_free_folder(out)).then(|| {
            format!("{} is not an empty or new folder, as which such heads are written", out.display())
        }),
    };
    problem.map_or(Ok(()), |problem| Err(Error::Usage(problem)))
}
