//! A training run: steps, progress, saved states, and sample answers at intervals.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use tokenizers::Tokenizer;

use crate::Error;
use crate::batch::Source;
use crate::checkpoint::{self, State};
use crate::evaluate;
use crate::model::ModelShape;
use crate::train::{Recipe, Trainer};

/// Weight of the newest step in the smoothed loss.
const SMOOTHING: f64 = 0.02;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Folder of the saved states.
    pub folder: PathBuf,
    /// The recipe.
    pub recipe: Recipe,
    /// The last step of this run, if it is to end before the recipe.
    pub stop_at: Option<usize>,
    /// Sizes of a new model.
    pub shape: ModelShape,
    /// Steps between saved states.
    pub save_every: usize,
    /// Evaluation questions at each saved state.
    pub questions: usize,
    /// Steps between progress lines; 0 prints none.
    pub report_every: usize,
}

impl Run {
    /// Trains up to the last step or `stop_at`. Continues from the newest saved state if there is one.
    pub fn train(&self, tokenizer: &Tokenizer, device: &Device) -> Result<(Trainer, State), Error> {
        fs::create_dir_all(&self.folder)?;
        let (mut trainer, mut state) = self.start(device)?;
        let recipe = &self.recipe;
        let source = Source {
            tokenizer,
            seed: recipe.seed,
            documents: recipe.documents,
            easy_steps: recipe.easy_steps,
            drill_steps: recipe.drill_steps,
        };
        let mut shown = Shown { at: Instant::now(), tokens: state.tokens };
        let last = self.stop_at.map_or(recipe.steps(), |stop| stop.min(recipe.steps()));
        while state.step < last {
            let started = Instant::now();
            let batches = source.step(state.step)?;
            let loss = trainer.step(&batches, recipe.rate_at(state.step));
            if !loss.is_finite() {
                return Err(Error::Diverged { step: state.step, loss });
            }
            state.tokens +=
                batches.iter().flat_map(|batch| &batch.rows).map(|row| row.ids.len() as u64).sum::<u64>();
            state.loss = if state.step == 0 { loss } else { state.loss + SMOOTHING * (loss - state.loss) };
            state.step += 1;
            state.seconds += started.elapsed().as_secs_f64();
            if self.report_every > 0 && state.step.is_multiple_of(self.report_every) {
                println!("{}", shown.line(&state, loss));
            }
            if state.step.is_multiple_of(self.save_every) || state.step == last {
                checkpoint::save(&self.folder, &trainer, &state)?;
                self.ask(&trainer, &state, tokenizer, device)?;
                shown = Shown { at: Instant::now(), tokens: state.tokens };
            }
        }
        Ok((trainer, state))
    }

    fn start(&self, device: &Device) -> Result<(Trainer, State), Error> {
        if let Some(folder) = checkpoint::latest(&self.folder)? {
            let (trainer, state) = checkpoint::load(&folder, device)?;
            return Ok((trainer, State { recipe: self.recipe.clone(), ..state }));
        }
        let state = State {
            step: 0,
            tokens: 0,
            loss: 0.0,
            seconds: 0.0,
            recipe: self.recipe.clone(),
            shape: self.shape.clone(),
        };
        Ok((Trainer::new(&self.shape, self.recipe.seed, device), state))
    }

    fn ask(
        &self,
        trainer: &Trainer,
        state: &State,
        tokenizer: &Tokenizer,
        device: &Device,
    ) -> Result<(), Error> {
        if self.questions == 0 {
            return Ok(());
        }
        let answers = evaluate::questions(&trainer.plain_model(), tokenizer, self.questions, device)?;
        let right = answers.iter().filter(|answer| answer.is_right()).count();
        println!("step {} saved; {right} of {} answers right", state.step, answers.len());
        for answer in answers.iter().take(4) {
            let (asked, fact) = (&answer.question.question, &answer.question.fact);
            println!("  {asked} expected {fact:?}, got {:?}", answer.answer);
        }
        Ok(())
    }
}

/// The folder of a model's run.
pub fn folder(runs: &Path, model: &str) -> PathBuf {
    runs.join(model)
}

/// Time and token count of the previous progress line.
struct Shown {
    at: Instant,
    tokens: u64,
}

impl Shown {
    fn line(&mut self, state: &State, loss: f64) -> String {
        let speed = (state.tokens - self.tokens) as f64 / self.at.elapsed().as_secs_f64();
        let per_step = state.tokens as f64 / state.step as f64;
        let minutes = (state.recipe.steps() - state.step) as f64 * per_step / speed / 60.0;
        *self = Self { at: Instant::now(), tokens: state.tokens };
        format!(
            "step {}/{} loss {loss:.3} mean {:.3} rate {:.2e} {speed:.0} tok/s {:.2} M tokens, {minutes:.0} min left",
            state.step,
            state.recipe.steps(),
            state.loss,
            state.recipe.rate_at(state.step - 1),
            state.tokens as f64 / 1e6,
        )
    }
}
