//! A distilled draft model: it learns the target's predictions, the same seed gives the same model, and the engine
//! drafts with it.

mod common;

use burn::tensor::Device;
use refrain::internals::draft::CostProfile;
use refrain::{
    Checkpoint, DraftModelOptions, Drafting, Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId,
};
use refrain_burn::distill::draft::{self, DraftLoss, DraftRecipe};
use refrain_burn::distill::head::{self, HeadRecipe, HeadTarget};
use refrain_burn::distill::{Passage, Recorder};
use refrain_burn::export::{mtp_weights, weights, write_folder};
use refrain_burn::model::{Llama, ModelShape};
use refrain_burn::{Error, gguf};

fn passages() -> Vec<Passage> {
    let token = |passage: u32, at: u32| TokenId(20 + (passage * 7 + at * at) % 12);
    (0..20)
        .map(|n| Passage { tokens: (0..30 + n % 3).map(|at| token(n, at)).collect(), first_learnt: 2 })
        .collect()
}

fn recipe(loss: DraftLoss) -> DraftRecipe {
    let shape = ModelShape {
        hidden: 32,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        intermediate: 64,
        ..common::shape()
    };
    DraftRecipe { shape, loss, steps: 30, passages: 4, rate: 5e-3, seed: 1 }
}

/// Distils from the target at `path`, writes the draft model to `out`, and decodes with it.
fn distil_and_draft(path: &std::path::Path, out: &std::path::Path) -> Result<(), Error> {
    let recorder = Recorder::open(&Checkpoint::open(path).expect("it opens"), Some(1))?;
    let record = recorder.record(&passages(), None, usize::MAX, |_, _| {})?;
    let mut losses = Vec::new();
    let kl = recipe(DraftLoss::Kl);
    let (model, held_out) = draft::distil(&passages(), &record, &kl, |_, loss| losses.push(loss))?;
    assert!(losses[29] < 0.8 * losses[0], "{} became {}", losses[0], losses[29]);
    assert!(held_out.n_positions > 20 && held_out.kl.is_finite(), "{held_out:?}");
    let (again, same) = draft::distil(&passages(), &record, &kl, |_, _| {})?;
    assert_eq!((weights(&again)?, same), (weights(&model)?, held_out));
    let mut losses = Vec::new();
    draft::distil(&passages(), &record, &recipe(DraftLoss::Plain), |_, loss| losses.push(loss))?;
    assert!(losses[29] < losses[0] && losses[0] > 5.0, "the text's own tokens: {losses:?}");

    draft::write(&model, path, recorder.engine().tokenizer(), out)?;
    draft_with(path, &Checkpoint::open(out).expect("it opens"))
}

/// Decodes with the target at `path` and a draft model.
fn draft_with(path: &std::path::Path, draft: &Checkpoint) -> Result<(), Error> {
    let options = || EngineOptions {
        n_threads: Some(1),
        cost_profile: Some(CostProfile::free_rows(1.0)),
        ..EngineOptions::default()
    };
    let engine = Engine::open(path, options())?;
    let free = DraftModelOptions {
        cost_profile: Some(CostProfile::free_rows(0.01)),
        ..DraftModelOptions::default()
    };
    engine.set_draft_model(draft, free, None).expect("one vocabulary");
    let mut session = engine.session(SessionOptions {
        drafting: Drafting::DraftModel,
        history: false,
        ..SessionOptions::default()
    })?;
    session.append_tokens(&passages()[0].tokens)?;
    let options = GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
    let summary = session.generate(options)?.run(|_| std::ops::ControlFlow::Continue(()))?;
    assert!(summary.stats.sources[0].drafted > 0, "{:?}", summary.stats);
    Ok(())
}

fn target() -> Llama {
    Llama::init(&common::shape(), 5, &Device::default())
}

#[test]
fn a_folder_for_a_folder() -> Result<(), Error> {
    let (folder, out) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_folder(&target(), &common::tokenizer(), folder.path())?;
    distil_and_draft(folder.path(), &out.path().join("draft"))?;
    assert!(
        matches!(draft::check_out(folder.path(), folder.path()), Err(Error::Usage(_))),
        "it is not empty"
    );
    Ok(())
}

#[test]
fn a_gguf_file_for_a_gguf_file() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("target.gguf");
    gguf::write(&target(), &common::tokenizer(), "test", &path)?;
    distil_and_draft(&path, &folder.path().join("draft.gguf"))?;
    for (target, out) in [("target.gguf", "draft"), ("target.refrain", "draft.gguf")] {
        let refused = draft::check_out(&folder.path().join(target), &folder.path().join(out));
        assert!(matches!(refused, Err(Error::Usage(_))), "{target} {out}");
    }
    Ok(())
}

#[test]
fn a_head_learns_the_targets_predictions_from_its_states() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let (path, out) = (folder.path().join("target.gguf"), folder.path().join("head.gguf"));
    gguf::write(&target(), &common::tokenizer(), "test", &path)?;
    let checkpoint = Checkpoint::open(&path).expect("it opens");
    let (of_target, recorder) = (HeadTarget::read(&checkpoint)?, Recorder::open(&checkpoint, Some(1))?);
    let record = recorder.record_states(&passages(), usize::MAX, |_, _| {})?;
    let n_tokens: usize = passages().iter().map(|passage| passage.tokens.len()).sum();
    assert_eq!(record.states.len(), n_tokens * record.hidden_dim);
    let recipe = HeadRecipe { steps: 30, passages: 4, rate: 5e-3, seed: 1 };
    let mut losses = Vec::new();
    let (trained, held_out) =
        head::train(&of_target, &passages(), &record, &recipe, |_, loss| losses.push(loss))?;
    assert!(losses[29] < 0.8 * losses[0], "{} became {}", losses[0], losses[29]);
    for held_out in held_out {
        assert!(held_out.n_positions > 20 && held_out.kl.is_finite(), "{held_out:?}");
    }
    let (again, _) = head::train(&of_target, &passages(), &record, &recipe, |_, _| {})?;
    assert_eq!(mtp_weights(&again)?, mtp_weights(&trained)?);
    head::check_out(&path, &out)?;
    head::write(&trained, &path, &out)?;
    draft_with(&path, &Checkpoint::open_mtp(&out).expect("it opens"))?;

    let whole = folder.path().join("folder");
    write_folder(&target(), &common::tokenizer(), &whole)?;
    assert!(matches!(head::check_out(&whole, &out), Err(Error::Usage(_))));
    let of_one = head::train(&of_target, &passages()[..1], &Default::default(), &recipe, |_, _| {});
    assert!(matches!(of_one, Err(Error::TooFewPassages { given: 0 })));
    Ok(())
}

#[test]
fn what_makes_no_model_is_refused() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    write_folder(&target(), &common::tokenizer(), folder.path())?;
    let recorder = Recorder::open(&Checkpoint::open(folder.path()).expect("it opens"), Some(1))?;
    let record = recorder.record(&passages()[..1], None, usize::MAX, |_, _| {})?;
    let of_one = draft::distil(&passages(), &record, &recipe(DraftLoss::Kl), |_, _| {});
    assert!(matches!(of_one, Err(Error::TooFewPassages { given: 1 })));
    for change in [
        |shape: &mut ModelShape| shape.hidden = 33,
        |shape: &mut ModelShape| shape.kv_heads = 0,
        |shape: &mut ModelShape| shape.heads = 3,
    ] {
        let mut recipe = recipe(DraftLoss::Kl);
        recipe.shape.kv_heads = 2;
        change(&mut recipe.shape);
        assert!(matches!(draft::distil(&passages(), &record, &recipe, |_, _| {}), Err(Error::Usage(_))));
    }
    Ok(())
}
