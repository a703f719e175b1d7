//! Saved training states: a folder per state, named by the file `latest`, which is replaced by a rename.
//!
//! A state is complete before `latest` names it, so an interruption at any point leaves the last complete state.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::model::{Llama, ModelShape};
use crate::train::{self, Recipe, Trainer};

/// The values of a state besides its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Completed steps. The next document follows from this number.
    pub step: usize,
    /// Processed tokens, padding excluded.
    pub tokens: u64,
    /// Smoothed loss.
    pub loss: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// The recipe.
    pub recipe: Recipe,
    /// The sizes.
    pub shape: ModelShape,
}

/// Writes the state into `run` and removes the previous one.
pub fn save(run: &Path, trainer: &Trainer, state: &State) -> Result<(), Error> {
    let name = format!("step-{:06}", state.step);
    let (folder, partial) = (run.join(&name), run.join(format!("{name}.partial")));
    remove(&partial)?;
    fs::create_dir_all(&partial)?;
    trainer.model.clone().into_record().save(partial.join("model.bpk"))?;
    trainer.optimizer.to_record().save(partial.join("optimizer.bpk"))?;
    fs::write(partial.join("state.json"), serde_json::to_vec_pretty(state)?)?;
    remove(&folder)?;
    fs::rename(&partial, &folder)?;
    let before = latest(run)?;
    fs::write(run.join("latest.partial"), &name)?;
    fs::rename(run.join("latest.partial"), run.join("latest"))?;
    match before {
        Some(before) if before != folder => remove(&before),
        _ => Ok(()),
    }
}

fn remove(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// The folder of the last complete state.
pub fn latest(run: &Path) -> Result<Option<PathBuf>, Error> {
    let pointer = run.join("latest");
    if !pointer.exists() {
        return Ok(None);
    }
    Ok(Some(run.join(fs::read_to_string(pointer)?.trim())))
}

/// Reads a state.
pub fn load(folder: &Path, device: &Device) -> Result<(Trainer, State), Error> {
    let state: State = serde_json::from_slice(&fs::read(folder.join("state.json"))?)?;
    let model = load_model(folder, &state.shape, &device.clone().autodiff())?;
    let optimizer = train::optimizer().load_record(OptimizerRecord::load(folder.join("optimizer.bpk"))?);
    Ok((Trainer::from_parts(model, optimizer, device), state))
}

/// Reads the model of a state.
pub fn load_model(folder: &Path, shape: &ModelShape, device: &Device) -> Result<Llama, Error> {
    let record = ModuleRecord::load(folder.join("model.bpk"))?;
    let model = Llama::init(shape, 0, device);
    Ok(model.try_load_record(record)?)
}
