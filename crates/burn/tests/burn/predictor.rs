//! The early-exit predictor: it learns the target's predictions, the same seed gives the same predictor, and it prunes
//! drafts.

use burn::tensor::Device;
use refrain::checkpoint::Checkpoint;
use refrain::drafting::Predictor;
use refrain::internals::draft::CostProfile;
use refrain::{Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId};
use refrain_burn::Error;
use refrain_burn::distill::predictor::{self, PredictorRecipe};
use refrain_burn::distill::{Passage, Recorder, text};
use refrain_burn::export::write_folder;
use refrain_burn::model::Llama;

use crate::common;

/// Passages of few tokens, so that even the predictions of an untrained model can be learnt.
fn passages() -> Vec<Passage> {
    let token = |passage: u32, at: u32| TokenId(20 + (passage * 7 + at * at) % 12);
    (0..30).map(|n| Passage { tokens: (0..40).map(|at| token(n, at)).collect(), first_learnt: 3 }).collect()
}

fn folder(seed: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Llama::init(&common::shape(), seed, &Device::default());
    write_folder(&model, &common::tokenizer(), folder.path()).expect("the model is written");
    folder
}

fn recorder(folder: &tempfile::TempDir) -> Recorder {
    Recorder::open(&Checkpoint::open(folder.path()).expect("it opens"), Some(1)).expect("it loads")
}

#[test]
fn a_predictor_learns_and_is_the_same_from_the_same_seed() -> Result<(), Error> {
    let folder = folder(5);
    let recorder = recorder(&folder);
    let record = recorder.record(&passages(), Some(1), usize::MAX, |_, _| {})?;
    assert_eq!((record.len(), record.hidden.len()), (30 * 36, 30 * 36 * 64));
    let recipe = PredictorRecipe { rank: 16, steps: 120, batch: 64, ..PredictorRecipe::default() };
    let train = |recipe: &PredictorRecipe| {
        let mut losses = Vec::new();
        let trained = predictor::train(&record, recorder.engine(), 1, recipe, |_, loss| losses.push(loss))?;
        Ok::<_, Error>((trained, losses))
    };
    let ((parts, held_out), losses) = train(&recipe)?;
    assert_eq!(losses.len(), 120);
    assert!(losses[119] < 0.7 * losses[0], "{} became {}", losses[0], losses[119]);
    // One choice in 320 is right by chance.
    assert!(held_out.agreement > 0.1 && held_out.kl.is_finite(), "{held_out:?}");
    assert_eq!(train(&recipe)?.0, (parts.clone(), held_out));
    assert_ne!(train(&PredictorRecipe { seed: 2, ..recipe })?.0.0, parts);

    let options = EngineOptions {
        n_threads: Some(1),
        cost_profile: Some(CostProfile::free_rows(1.0)),
        ..EngineOptions::default()
    };
    let engine = Engine::open(folder.path(), options)?;
    engine.set_predictor(Predictor::new(parts)?)?;
    let mut session = engine.session(SessionOptions::default())?;
    session.append_tokens(&passages()[0].tokens)?;
    let options = GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
    let summary = session.generate(options)?.run(|_| std::ops::ControlFlow::Continue(()))?;
    assert!(summary.stats.pruning.is_some_and(|pruning| pruning.pruned_steps > 0), "{:?}", summary.stats);
    Ok(())
}

#[test]
fn recording_stops_where_it_is_told_to() -> Result<(), Error> {
    let folder = folder(5);
    let recorder = recorder(&folder);
    let record = recorder.record(&passages(), None, 50, |_, _| {})?;
    assert_eq!((record.len(), record.hidden.len()), (50, 0));
    // 36 positions each: the first passage, and the one at which 36 of 50 have gone by.
    assert_eq!((record.passage[35], record.passage[36], record.passage[49]), (0, 22, 22));
    let too_few = predictor::train(&record, recorder.engine(), 1, &PredictorRecipe::default(), |_, _| {});
    assert!(matches!(too_few, Err(Error::TooFewPositions { given: 50, .. })));
    assert!(recorder.record(&passages(), Some(2), 50, |_, _| {}).is_err(), "there are two layers");
    Ok(())
}

#[test]
fn texts_and_rows_become_passages() -> Result<(), Error> {
    let folder = folder(5);
    let recorder = recorder(&folder);
    let tokenizer = recorder.engine().tokenizer();
    let (notes, rows, bad) =
        (folder.path().join("a.txt"), folder.path().join("b.jsonl"), folder.path().join("c.jsonl"));
    std::fs::write(&notes, "The train leaves at noon. ".repeat(40))?;
    std::fs::write(&rows, "{\"prompt\": \"Who?\", \"response\": \"Nobody.\", \"id\": 1}\n\n")?;
    std::fs::write(&bad, "{\"prompt\": \"Who?\"}")?;
    let passages = text::read(&[notes, rows], tokenizer, 64)?;
    let (row, of_text) = passages.split_last().expect("passages");
    assert!(of_text.len() > 3 && of_text.iter().all(|p| p.tokens.len() <= 64 && p.first_learnt == 0));
    assert_eq!(row.tokens.last(), tokenizer.eos().first());
    let prompt = tokenizer.decode(&row.tokens[..=row.first_learnt]);
    assert!(prompt.contains("Who?") && !prompt.contains("Nobody"), "{prompt}");
    assert!(tokenizer.decode(&row.tokens[row.first_learnt + 1..]).starts_with("Nobody."));
    assert!(matches!(text::read(&[bad], tokenizer, 64), Err(Error::Row { line: 1, .. })));
    let nowhere = folder.path().join("nowhere.txt");
    assert!(matches!(text::read(&[nowhere], tokenizer, 64), Err(Error::Text { .. })));
    Ok(())
}
