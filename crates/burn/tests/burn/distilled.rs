//! A distilled draft model: it learns the target's predictions, the same seed gives the same model, and the engine
//! drafts with it.

use burn::tensor::{Device, Tensor, TensorData};
use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::CostProfile;
use refrain::{Drafting, Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId};
use refrain_burn::distill::draft::{self, DraftLoss, DraftRecipe};
use refrain_burn::distill::head::{self, HeadKind, HeadRecipe, HeadTarget, TrainedHead};
use refrain_burn::distill::{Passage, Recorder};
use refrain_burn::export::{Weight, eagle3_weights, mtp_weights, weights, write_folder};
use refrain_burn::model::{DraftHead, Llama, ModelShape, MtpHead, Positions, Texts, drafts};
use refrain_burn::rng::Rng;
use refrain_burn::{Error, gguf};

use crate::common;

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
    engine.set_draft_model(draft, free, |_, _| {}).expect("one vocabulary");
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

/// Trains a head of this kind for the GGUF file at `path`, writes it to `out`, and decodes with what `open` opens there.
fn train_head_and_draft(
    kind: HeadKind,
    path: &std::path::Path,
    out: &std::path::Path,
    open: impl Fn(&std::path::Path) -> Checkpoint,
) -> Result<TrainedHead, Error> {
    gguf::write(&target(), &common::tokenizer(), "test", path)?;
    let checkpoint = Checkpoint::open(path).expect("it opens");
    let (of_target, recorder) = (HeadTarget::read(&checkpoint)?, Recorder::open(&checkpoint, Some(1))?);
    let reads = kind.reads(recorder.engine().config().n_layers());
    let record = recorder.record_states(&passages(), reads, usize::MAX, |_, _| {})?;
    let n_tokens: usize = passages().iter().map(|passage| passage.tokens.len()).sum();
    assert_eq!(record.states.len(), n_tokens * record.state_dim);
    let recipe = HeadRecipe { kind, steps: 30, passages: 4, rate: 5e-3, seed: 1 };
    let mut losses = Vec::new();
    let (trained, held_out) =
        head::train(&of_target, &passages(), &record, &recipe, |_, loss| losses.push(loss))?;
    assert!(losses[29] < 0.8 * losses[0], "{} became {}", losses[0], losses[29]);
    for held_out in held_out {
        assert!(held_out.n_positions > 20 && held_out.kl.is_finite(), "{held_out:?}");
    }
    let (again, _) = head::train(&of_target, &passages(), &record, &recipe, |_, _| {})?;
    assert_eq!(head_weights(&again)?, head_weights(&trained)?);
    head::check_out(kind, path, out)?;
    head::write(&trained, &of_target, path, out)?;
    draft_with(path, &open(out))?;
    let of_one = head::train(&of_target, &passages()[..1], &Default::default(), &recipe, |_, _| {});
    assert!(matches!(of_one, Err(Error::TooFewPassages { given: 0 })));
    Ok(trained)
}

fn head_weights(head: &TrainedHead) -> Result<Vec<Weight>, Error> {
    match head {
        TrainedHead::Mtp(head) => mtp_weights(head),
        TrainedHead::Eagle3(head, _) => eagle3_weights(head, &[]),
    }
}

#[test]
fn a_head_learns_the_targets_predictions_from_its_states() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let (path, out) = (folder.path().join("target.gguf"), folder.path().join("head.gguf"));
    train_head_and_draft(HeadKind::Mtp, &path, &out, |out| Checkpoint::open_mtp(out).expect("it opens"))?;

    let whole = folder.path().join("folder");
    write_folder(&target(), &common::tokenizer(), &whole)?;
    assert!(matches!(head::check_out(HeadKind::Mtp, &whole, &out), Err(Error::Usage(_))));
    Ok(())
}

#[test]
fn an_eagle3_head_drafts_the_tokens_that_the_target_predicts() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let (path, out) = (folder.path().join("target.gguf"), folder.path().join("head"));
    let kind = HeadKind::Eagle3 { n_tokens: 64 };
    let trained = train_head_and_draft(kind, &path, &out, |out| Checkpoint::open(out).expect("it opens"))?;
    let TrainedHead::Eagle3(_, tokens) = trained else { panic!("another kind") };
    assert_eq!(tokens.len(), 64);
    assert!(tokens.is_sorted_by(|a, b| a < b));
    assert!(matches!(head::check_out(kind, &path, &out), Err(Error::Usage(_))), "it is not empty");
    Ok(())
}

/// What `drafts` computes for all passages and depths at once, one row at a time: a pass over a node's ancestors and itself.
#[test]
fn nodes_see_the_text_before_their_first_ancestor_and_their_ancestors() {
    const DEPTHS: usize = 3;
    let device = Device::default();
    let shape = common::shape();
    let head = MtpHead::init(&shape, vec![1.0; shape.hidden], 7, &device);
    let mut rng = Rng::new(3, 0);
    let (lens, n_rows) = ([9, 6], 6);
    let mut random = |n: usize| (0..n).map(|_| rng.gaussian() as f32).collect::<Vec<_>>();
    let texts = lens.map(|len| [random(len * shape.hidden), random(len * shape.hidden)]);
    let tensor = |values: Vec<f32>, batch: usize| {
        let rows = values.len() / shape.hidden / batch;
        Tensor::<3>::from_data(TensorData::new(values, [batch, rows, shape.hidden]), &device)
    };
    let padded = |which: usize| {
        let of_text = |(len, text): (usize, &[Vec<f32>; 2])| {
            let mut rows = vec![0.0; (lens[0] - len) * shape.hidden];
            rows.extend(&text[which]);
            rows
        };
        tensor(lens.into_iter().zip(&texts).flat_map(of_text).collect(), 2)
    };
    let given = Texts { embedded: padded(0), states: padded(1), n_skipped: vec![0, 3] };
    let found: Vec<Vec<f32>> = drafts(&head, given, n_rows, DEPTHS)
        .into_iter()
        .map(|projected| projected.into_data().try_to_vec().unwrap())
        .collect();
    for (number, (len, [embedded, states])) in lens.into_iter().zip(&texts).enumerate() {
        for root in len - n_rows..=len - DEPTHS {
            let mut states = states[..(root + 1) * shape.hidden].to_vec();
            for depth in 1..=DEPTHS {
                let row = root + depth - 1;
                let positions = Positions::new(&shape, row + 1, &device);
                let embedded = embedded[..(row + 1) * shape.hidden].to_vec();
                let [x, _] = head.begin(tensor(embedded, 1), tensor(states.clone(), 1));
                let [own, _] = head.end(head.block.forward(x, &shape, &positions));
                let own: Vec<f32> = own.into_data().try_to_vec().unwrap();
                let own = &own[row * shape.hidden..];
                states.extend(own);
                let at = number * n_rows + row + n_rows - len;
                let found = &found[depth - 1][at * shape.hidden..][..shape.hidden];
                let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
                assert!(found.iter().zip(own).all(is_close), "text {number}, root {root}, depth {depth}");
            }
        }
    }
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
