//! Training: the loss falls, and an interrupted run gives the same weights as an uninterrupted one, bit for bit.

use std::path::Path;

use burn::tensor::Device;
use refrain_burn::batch::Source;
use refrain_burn::export::weights;
use refrain_burn::run::Run;
use refrain_burn::train::{Cycle, Recipe, Trainer};
use refrain_burn::{Error, checkpoint};

use crate::common;

fn run(folder: &Path, recipe: Recipe, save_every: usize) -> Run {
    let folder = folder.to_path_buf();
    Run { folder, recipe, shape: common::shape(), save_every, questions: 0, report_every: 0, stop_at: None }
}

#[test]
fn a_batch_can_be_learnt_by_heart() {
    let tokenizer = common::tokenizer();
    let source = Source { tokenizer: &tokenizer, seed: 1, documents: 2, easy_steps: 1, drill_steps: 0 };
    let batches = source.step(0).expect("the corpus encodes");
    let mut trainer = Trainer::new(&common::shape(), 1, &Device::default());
    let first = trainer.step(&batches, 3e-3);
    let last = (0..40).map(|_| trainer.step(&batches, 3e-3)).last().expect("steps were made");
    assert!(last < first / 3.0, "{first} became {last}");
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() -> Result<(), Error> {
    let tokenizer = common::tokenizer();
    let device = Device::default();
    let (whole, parts) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (uninterrupted, state) = run(whole.path(), common::recipe(6), 100).train(&tokenizer, &device)?;
    let rest = run(parts.path(), common::recipe(6), 100);
    let (_, stopped) = Run { stop_at: Some(3), ..rest.clone() }.train(&tokenizer, &device)?;
    assert_eq!(stopped.step, 3);
    let (resumed, resumed_state) = rest.train(&tokenizer, &device)?;
    assert_eq!(weights(&resumed.model)?, weights(&uninterrupted.model)?);
    assert_eq!((resumed_state.step, resumed_state.tokens), (state.step, state.tokens));
    assert_eq!(resumed_state.loss, state.loss);
    Ok(())
}

#[test]
fn a_half_written_state_is_passed_over() -> Result<(), Error> {
    let tokenizer = common::tokenizer();
    let folder = tempfile::tempdir()?;
    run(folder.path(), common::recipe(2), 2).train(&tokenizer, &Device::default())?;
    std::fs::create_dir(folder.path().join("step-000003.partial"))?;
    let latest = checkpoint::latest(folder.path())?.expect("a state is saved");
    assert!(latest.ends_with("step-000002"));
    assert_eq!(checkpoint::load(&latest, &Device::default())?.1.step, 2);
    Ok(())
}

#[test]
fn the_rate_rises_stays_and_falls_in_each_cycle() {
    let cycles = vec![Cycle { steps: 100, rate: 1.0, decay: 20 }, Cycle { steps: 50, rate: 2.0, decay: 10 }];
    let recipe = Recipe { cycles, warmup: 10, ..common::recipe(1) };
    assert_eq!(recipe.steps(), 150);
    for (step, rate) in
        [(0, 0.1), (50, 1.0), (90, 0.5), (99, 0.05), (100, 0.2), (120, 2.0), (145, 1.0), (150, 0.0)]
    {
        assert_eq!(recipe.rate_at(step), rate, "at step {step}");
    }
}
