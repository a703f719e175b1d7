//! Two implementations of one model: the engine reads the exported files and computes the same logits as burn.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use half::bf16;
use refrain::checkpoint::Checkpoint;
use refrain::internals::draft::CostProfile;
use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::{
    CancelToken, ChatOptions, Engine, EngineOptions, KvType, Quantize, SessionOptions, SpecialTokens, TokenId,
};
use refrain_burn::export::write_folder;
use refrain_burn::model::{Llama, Positions};
use refrain_burn::world::document::{Chat, prompt};
use refrain_burn::{Error, gguf, tokens};

use crate::common;

fn engine(checkpoint: &Checkpoint) -> Engine {
    let options = EngineOptions {
        n_threads: Some(1),
        quantize: Quantize::F32,
        cost_profile: Some(CostProfile::from_measurements(&[(1, 100.0), (64, 100.0)])),
        ..EngineOptions::default()
    };
    Engine::load(checkpoint, options, |_, _| {}).expect("the engine loads the model")
}

fn engine_logits(engine: &Engine, ids: &[u32]) -> Vec<f32> {
    let options = SessionOptions { kv_type: KvType::F32, ..SessionOptions::default() };
    let mut session = engine.session(options).expect("a session opens");
    let ids: Vec<TokenId> = ids.iter().map(|id| TokenId(*id)).collect();
    session.append_tokens(&ids).expect("the tokens fit");
    let mut logits = Vec::new();
    session
        .score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend_from_slice(row)))
        .expect("the tokens are scored");
    logits
}

fn burn_logits(model: &Llama, ids: &[u32], device: &Device) -> Vec<f32> {
    let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    let seq = ids.len();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, seq]), device);
    let hidden = model.hidden(tokens, &Positions::new(&model.shape, seq, device));
    model.logits(hidden.reshape([seq, model.shape.hidden])).into_data().try_to_vec().expect("logits are f32")
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.map(f32::abs).fold(0.0, f32::max)
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    largest(a.iter().zip(b).map(|(a, b)| a - b))
}

/// Rounds weights as the folder does.
struct Rounding;

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weights| {
            let device = weights.device();
            Tensor::from_data(weights.into_data().convert::<bf16>().convert::<f32>(), &device)
        })
    }
}

/// A long question, so that several blocks of queries are computed.
const MESSAGE: &str = "Answer the question from the notes.\n\n# Project Velmora\nTarrin Oskvale leads project Velmora, which \
    has a budget of €24,700 and is due on 14 March. The kick-off was in room 12 on 3 February.\n\nQuestion: Who leads Velmora?";

#[test]
fn the_engine_computes_the_logits_of_burn() -> Result<(), Error> {
    let (device, tokenizer) = (Device::default(), common::tokenizer());
    let folder = tempfile::tempdir()?;
    let model = Llama::init(&common::shape(), 5, &device);
    write_folder(&model, &tokenizer, folder.path())?;
    let model = model.map(&mut Rounding);
    let engine = engine(&Checkpoint::open(folder.path()).expect("the folder opens"));
    let ids = tokens::encode(&tokenizer, &prompt(MESSAGE))?;
    assert_eq!(engine.config().context_len, model.shape.max_positions);
    assert!(ids.len() > 140, "{} tokens are one block", ids.len());
    let theirs = engine.tokenizer().encode(&prompt(MESSAGE), SpecialTokens::Parse).expect("it encodes");
    assert!(theirs.iter().map(|id| id.0).eq(ids.iter().copied()));
    let difference = furthest(&engine_logits(&engine, &ids), &burn_logits(&model, &ids, &device));
    assert!(difference < 2e-4, "the logits differ by {difference}");
    Ok(())
}

#[test]
fn the_gguf_file_is_the_same_model_up_to_rounding() -> Result<(), Error> {
    let (device, tokenizer) = (Device::default(), common::tokenizer());
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    let model = Llama::init(&common::shape(), 5, &device);
    gguf::write(&model, &tokenizer, "test", &path)?;
    let engine = engine(&Checkpoint::open(&path).expect("the file opens"));
    let ids = tokens::encode(&tokenizer, &prompt(MESSAGE))?;
    let theirs = engine.tokenizer().encode(&prompt(MESSAGE), SpecialTokens::Parse).expect("it encodes");
    assert!(theirs.iter().map(|id| id.0).eq(ids.iter().copied()));
    let logits = burn_logits(&model, &ids, &device);
    let difference = furthest(&engine_logits(&engine, &ids), &logits);
    // Queries with rows in the wrong order would differ by the size of the logits.
    assert!(difference < 0.05 * largest(logits.iter().copied()), "the logits differ by {difference}");
    Ok(())
}

#[test]
fn the_engine_renders_the_chats_of_the_training_text() -> Result<(), Error> {
    use refrain::{Message, Role};
    let (device, tokenizer) = (Device::default(), common::tokenizer());
    let folder = tempfile::tempdir()?;
    write_folder(&Llama::init(&common::shape(), 5, &device), &tokenizer, folder.path())?;
    let engine = engine(&Checkpoint::open(folder.path()).expect("the folder opens"));
    let template = engine.tokenizer().chat_template().expect("the folder has a template");
    let messages = [
        Message::new(Role::User, "Who leads it?"),
        Message::new(Role::Assistant, "Tarrin Oskvale."),
        Message::new(Role::User, "Where?"),
    ];
    let texts = engine.tokenizer().special_texts();
    let rendered =
        template.render(&messages, &ChatOptions::default(), true, texts).expect("the template renders");
    let first = Chat::single("Who leads it?".to_owned(), "Tarrin Oskvale.".to_owned()).document().text();
    assert_eq!(rendered, format!("{first}{}", prompt("Where?")));
    Ok(())
}
