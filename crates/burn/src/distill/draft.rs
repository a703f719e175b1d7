//! Distils a small draft model with the target's vocabulary from the target's predictions.
//!
//! The student is the Llama of this crate. Its loss is the forward divergence KL(target ‖ student) at every
//! learnt position of the text, over the target's likeliest tokens and the rest as one event. For comparison,
//! the loss can be the likelihood of the text's next token. The output has the container and the tokenizer of
//! the target: a Hugging Face folder or a GGUF file.

use std::fs;
use std::path::Path;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use refrain::Tokenizer;
use refrain::internals::model::gguf::GgufFile;

use super::record::{Record, TOP};
use super::text::Passage;
use super::{Draws, HeldOut, choices, kl, rate_share, split_lessons};
use crate::batch::MicroBatch;
use crate::model::{Llama, ModelShape, Positions};
use crate::tokens::Row;
use crate::train::{Trainer, log_likelihood};
use crate::{Error, export, gguf};

/// The student's training target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftLoss {
    /// The target's predictions.
    Kl,
    /// The text's next tokens.
    Plain,
}

/// The recipe of a draft model. Together with passages and record it determines the model.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftRecipe {
    /// The sizes.
    pub shape: ModelShape,
    /// The training target.
    pub loss: DraftLoss,
    /// Optimiser steps.
    pub steps: usize,
    /// Passages of a step.
    pub passages: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Seed of the first weights and of the order of the passages.
    pub seed: u64,
}

/// A passage with the target's predictions.
#[derive(Clone, Copy)]
struct Lesson<'a> {
    passage: &'a Passage,
    /// The first position of the passage in the record, which has one per learnt token.
    first: usize,
}

impl Lesson<'_> {
    fn len(&self) -> usize {
        self.passage.tokens.len()
    }

    fn n_learnt(&self) -> usize {
        self.len() - 1 - self.passage.first_learnt
    }
}

/// Rows of one forward and backward pass.
struct SoftBatch {
    rows: MicroBatch,
    /// `[n_learnt, TOP]`
    top: Vec<i32>,
    /// `[n_learnt, TOP]`
    log_p: Vec<f32>,
}

/// Distils a draft model from a target's recorded predictions for `passages`. Calls `progress` with (step,
/// mean loss).
///
/// # Errors
/// [`Error::TooFewPassages`]; [`Error::Diverged`]; [`Error::Usage`]: the sizes are not those of a model.
pub fn distil(
    passages: &[Passage],
    record: &Record,
    recipe: &DraftRecipe,
    mut progress: impl FnMut(usize, f64),
) -> Result<(Llama, HeldOut), Error> {
    check_shape(&recipe.shape)?;
    let (learnt, held_out) = held_out(lessons(passages, record));
    if learnt.is_empty() || held_out.is_empty() {
        return Err(Error::TooFewPassages { given: learnt.len() + held_out.len() });
    }
    let device = Device::default();
    let mut trainer = Trainer::new(&recipe.shape, recipe.seed, &device);
    let mut draws = Draws::new(learnt.len(), recipe.seed);
    for step in 0..recipe.steps {
        let batches = batches(draws.take(&learnt, recipe.passages), record, recipe.shape.vocab);
        let total = batches.iter().map(|batch| batch.top.len() / TOP).sum();
        let rate = recipe.rate * rate_share(step, recipe.steps);
        let loss = trainer
            .step_by(&batches, rate, total, |model, batch, device| batch.loss(model, recipe.loss, device));
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        progress(step + 1, loss);
    }
    let model = trainer.plain_model();
    let held_out = evaluate(&model, held_out, record, &device)?;
    Ok((model, held_out))
}

fn check_shape(shape: &ModelShape) -> Result<(), Error> {
    let ModelShape { hidden, layers, heads, kv_heads, head_dim, intermediate, .. } = *shape;
    let refused = |what: &str| Err(Error::Usage(format!("a model of this shape cannot be: {what}")));
    if [hidden, layers, heads, kv_heads, head_dim, intermediate].contains(&0) {
        return refused("every size is 1 or more");
    }
    if !heads.is_multiple_of(kv_heads) {
        return refused("the heads must be a multiple of the key/value heads");
    }
    if [hidden, head_dim, intermediate].iter().any(|size| !size.is_multiple_of(32)) {
        return refused("widths must be multiples of 32, as the blocks of quantised weights are");
    }
    Ok(())
}

/// The completely recorded passages.
fn lessons<'a>(passages: &'a [Passage], record: &Record) -> Vec<Lesson<'a>> {
    let mut lessons = Vec::new();
    let mut first = 0;
    for group in record.passage.chunk_by(|a, b| a == b) {
        let lesson = Lesson { passage: &passages[group[0] as usize], first };
        if lesson.n_learnt() == group.len() {
            lessons.push(lesson);
        }
        first += group.len();
    }
    lessons
}

/// The lessons for training, and every tenth (at least the last) held out.
pub(super) fn held_out<T>(lessons: Vec<T>) -> (Vec<T>, Vec<T>) {
    let n = lessons.len();
    let (learnt, held_out): (Vec<_>, Vec<_>) =
        lessons.into_iter().enumerate().partition(|(at, _)| at % 10 != 9 && (n >= 10 || at + 1 < n));
    let without_place = |lessons: Vec<(usize, T)>| lessons.into_iter().map(|(_, lesson)| lesson).collect();
    (without_place(learnt), without_place(held_out))
}

fn batches(lessons: Vec<Lesson<'_>>, record: &Record, vocab: usize) -> Vec<SoftBatch> {
    let parts = split_lessons(lessons, Lesson::len, vocab).into_iter();
    parts.map(|lessons| SoftBatch::new(&lessons, record)).collect()
}

impl SoftBatch {
    fn new(lessons: &[Lesson<'_>], record: &Record) -> Self {
        let row = |lesson: &Lesson<'_>| Row {
            ids: lesson.passage.tokens.iter().map(|token| token.0).collect(),
            learnt: (0..lesson.len()).map(|next| next > lesson.passage.first_learnt).collect(),
        };
        let positions = || lessons.iter().flat_map(|lesson| lesson.first..lesson.first + lesson.n_learnt());
        Self {
            rows: MicroBatch { rows: lessons.iter().map(row).collect() },
            top: positions().flat_map(|at| record.top[at].map(|token| token as i32)).collect(),
            log_p: positions().flat_map(|at| record.log_p[at]).collect(),
        }
    }

    /// Logarithms of the student's probabilities, `[n_learnt, vocab]`.
    fn log_q(&self, model: &Llama, device: &Device) -> Tensor<2> {
        let positions = Positions::new(&model.shape, self.rows.seq(), device);
        let hidden = model.hidden(self.rows.inputs(device), &positions);
        let [rows, seq, width] = hidden.dims();
        let (at, _) = self.rows.targets();
        let n_learnt = at.len();
        let at = Tensor::<1, Int>::from_data(TensorData::new(at, [n_learnt]), device);
        log_softmax(model.logits(hidden.reshape([rows * seq, width]).select(0, at)), 1)
    }

    /// The sum of the loss over the learnt positions.
    fn loss(&self, model: &Llama, loss: DraftLoss, device: &Device) -> Tensor<1> {
        match loss {
            DraftLoss::Plain => log_likelihood(model, &self.rows, device).0,
            DraftLoss::Kl => kl(self.log_q(model, device), &self.top, &self.log_p, device),
        }
    }
}

fn evaluate(
    model: &Llama,
    held_out: Vec<Lesson<'_>>,
    record: &Record,
    device: &Device,
) -> Result<HeldOut, Error> {
    let (mut n_positions, mut n_agreed, mut divergence) = (0, 0, 0.0);
    for batch in batches(held_out, record, model.shape.vocab) {
        let log_q = batch.log_q(model, device);
        let choices = choices(&log_q)?;
        let firsts = batch.top.iter().step_by(TOP);
        n_agreed += firsts.zip(&choices).filter(|(first, choice)| i64::from(**first) == **choice).count();
        n_positions += choices.len();
        divergence += f64::from(kl(log_q, &batch.top, &batch.log_p, device).into_scalar::<f32>());
    }
    Ok(HeldOut::new(n_positions, n_agreed, divergence))
}

/// Files of a Hugging Face folder that define its tokens.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// Writes the model with the tokenizer of the target at `target`: into a new or empty folder if the target is a
/// Hugging Face folder, as a GGUF file if it is one.
///
/// # Errors
/// [`Error::Usage`]: the target is another kind of file, or the output exists. Errors of the system.
pub fn write(model: &Llama, target: &Path, tokenizer: &Tokenizer, out: &Path) -> Result<(), Error> {
    check_out(target, out)?;
    if target.is_dir() {
        fs::create_dir_all(out)?;
        for name in TOKENIZER_FILES.iter().filter(|name| target.join(name).exists()) {
            fs::copy(target.join(name), out.join(name))?;
        }
        let ids = (tokenizer.bos().map(|token| token.0), tokenizer.eos().first().map(|token| token.0));
        return export::write_model(model, ids, out);
    }
    let file = GgufFile::open(target).map_err(|error| Error::Weights(error.to_string()))?;
    let of_tokenizer = file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer."));
    gguf::write_model(model, "distilled draft model", of_tokenizer.cloned(), out)
}

/// Whether [`write()`] can write there. For a check before hours of training.
///
/// # Errors
/// [`Error::Usage`].
pub fn check_out(target: &Path, out: &Path) -> Result<(), Error> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == "gguf");
    let refused = |what: String| Err(Error::Usage(what));
    if target.is_dir() && target.join("tokenizer.json").exists() {
        return if export::is_free_folder(out) {
            Ok(())
        } else {
            refused(format!("{} is not an empty folder", out.display()))
        };
    }
    match (is_gguf(target), is_gguf(out)) {
        (true, true) => Ok(()),
        (true, false) => refused(format!(
            "the tokenizer of {} is that of a GGUF file: name a .gguf file instead of {}",
            target.display(),
            out.display()
        )),
        _ => refused(format!("{} is neither a Hugging Face folder nor a GGUF file", target.display())),
    }
}
