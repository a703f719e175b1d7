//! What must be the same bits on every target: tokens, log-probabilities and logits of some answers of the fixture model.

use std::error::Error;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, GenerateOptions, KvType, PromptPassage, Quantize, Role,
    SessionOptions, Task,
};
use serde_json::json;

const NOTES: [PromptPassage<'_>; 2] = [
    PromptPassage::new(
        "Trip to Bergholm",
        "The hotel for the trip to Bergholm is the Marlund and the booking code of the trip is KX-4471.",
    ),
    PromptPassage::new("Nadia Verlinck", "Nadia Verlinck works for Hestia Foods and lives in Tromvik."),
];

/// The user's message of every answer.
pub fn message() -> String {
    Task::Answer.user_message(&NOTES, "What is the booking code of the trip to Bergholm?")
}

/// A line of JSON for each answer: every type of KV cache, greedy and drawn, with and without drafts, and float weights.
///
/// # Errors
/// The models are not the fixtures.
pub fn lines(target: Vec<u8>, draft: Vec<u8>) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = Vec::new();
    for quantize in [Quantize::Keep, Quantize::F32] {
        let mut options = EngineOptions::default();
        options.quantize = quantize;
        let checkpoint = Checkpoint::from_gguf_bytes(target.clone().into(), "target")?;
        let engine = Engine::load(&checkpoint, options, |_, _| {})?;
        if quantize == Quantize::Keep {
            let draft = Checkpoint::from_gguf_bytes(draft.clone().into(), "draft")?;
            engine.set_draft_model(&draft, DraftModelOptions::default(), |_, _| {})?;
        }
        for kv_type in
            KvType::ALL.iter().copied().filter(|ty| quantize == Quantize::Keep || *ty == KvType::F16)
        {
            for drafting in [Drafting::Auto, Drafting::Off] {
                for temperature in [0.0, 0.8] {
                    lines.push(line(&engine, quantize, kv_type, drafting, temperature)?);
                }
            }
        }
    }
    Ok(lines)
}

fn line(
    engine: &Engine,
    quantize: Quantize,
    kv_type: KvType,
    drafting: Drafting,
    temperature: f32,
) -> Result<String, Box<dyn Error>> {
    let mut options = SessionOptions::default();
    (options.kv_type, options.drafting) = (kv_type, drafting);
    let mut session = engine.session(options)?;
    session.append_turn(Role::User, message())?;
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.ignore_eos) = (48, true);
    (options.sampling.temperature, options.sampling.seed) = (temperature, Some(7));
    for event in session.generate(options)? {
        event?;
    }
    // FNV-1a over the bits of all logits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut receive = |logits: &[f32]| {
        for byte in logits.iter().flat_map(|logit| logit.to_bits().to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    let score = session.score(&CancelToken::new(), Some(&mut receive))?;
    let bits: Vec<String> = score.log_probabilities.iter().map(|p| format!("{:016x}", p.to_bits())).collect();
    let tokens: Vec<u32> = session.tokens().iter().map(|token| token.0).collect();
    let line = json!({
        "answer": format!("{quantize:?}, KV {kv_type}, drafting {drafting:?}, temperature {temperature}"),
        "tokens": tokens,
        "log_probabilities": bits,
        "logits": format!("{hash:016x}"),
    });
    Ok(line.to_string())
}
