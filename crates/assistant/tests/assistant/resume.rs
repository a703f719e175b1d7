//! Conversations that give their keys and values back under memory pressure go on with the same bits: read from the store or computed, with
//! caches in 8 bits, and with recurrent layers.

use std::path::Path;

use refrain::device::MemoryPressure;
use refrain::{Engine, EngineOptions, KvType};
use refrain_assistant::{Assistant, AssistantOptions, ChatAnswer, ChatRequest, Conversation, JobOptions};

use crate::support::{Place, changed};

/// An engine of its own: the pressure is that of all its sessions.
fn engine(model: &str) -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(model);
    Engine::open(model, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap()
}

fn say(conversation: &Conversation, text: &str) -> ChatAnswer {
    let options = changed(JobOptions::default(), |it| {
        it.answer_tokens = Some(24);
        it.ignore_eos = true;
    });
    conversation.say(ChatRequest::new(text), options).unwrap().run().unwrap()
}

const TURNS: [&str; 3] = [
    "The trip to Aniarda begins on Saturday, and Proambe Oriarnell comes along. Remember both for me, please.",
    "When does the trip begin?",
    "And who comes along?",
];

#[test]
fn a_conversation_that_waited_under_pressure_goes_on_with_the_same_bits() {
    for model in ["fixtures/target.gguf", "tests/golden/qwen3_5", "tests/golden/granitemoehybrid"] {
        for kv_type in [KvType::F16, KvType::Q8_0] {
            let engine = engine(model);
            let holds = (0..engine.config().n_layers()).all(|layer_idx| {
                engine.config().attention(layer_idx).is_none_or(|attention| kv_type.holds(attention.head_dim))
            });
            if !holds {
                continue;
            }
            let options = changed(AssistantOptions::default(), |it| it.session.kv_type = kv_type);
            let plain = Assistant::builder(engine.clone()).options(options.clone()).build().unwrap();
            let calm = plain.conversation();
            let expected: Vec<String> = TURNS.map(|turn| say(&calm, turn).text).into();
            for has_store in [true, false] {
                let place = Place::new();
                let builder = Assistant::builder(engine.clone()).options(options.clone());
                let builder = if has_store { builder.store(place.path("store")) } else { builder };
                let assistant = builder.build().unwrap();
                let conversation = assistant.conversation();
                for (at, turn) in TURNS.into_iter().enumerate() {
                    let answer = say(&conversation, turn);
                    let case = format!("{model}, {kv_type}, store {has_store}, turn {at}");
                    assert_eq!(answer.text, expected[at], "{case}");
                    let stats = &answer.report.stats[0];
                    if at > 0 && !has_store {
                        assert_eq!(stats.cached_tokens, 0, "{case}: it was given back");
                    }
                    if at == 1 && has_store && !engine.config().is_recurrent() {
                        assert!(stats.cached_tokens > 20, "{case}: read from the store: {stats:?}");
                    }
                    engine.device().set_memory_pressure(MemoryPressure::Critical);
                    assistant.release_memory();
                    engine.device().set_memory_pressure(MemoryPressure::Normal);
                    conversation.release_memory();
                }
            }
        }
    }
}

#[test]
fn a_conversation_that_is_gone_or_busy_is_no_obstacle() {
    let assistant = Assistant::builder(engine("fixtures/target.gguf")).build().unwrap();
    drop(assistant.conversation());
    let conversation = assistant.conversation();
    let mut job = conversation.say(ChatRequest::new(TURNS[0]), JobOptions::default()).unwrap();
    job.next().unwrap().unwrap();
    assistant.engine().device().set_memory_pressure(MemoryPressure::Critical);
    assistant.release_memory();
    assistant.engine().device().set_memory_pressure(MemoryPressure::Normal);
    assert!(!job.run().unwrap().text.is_empty());
    assistant.release_memory();
}
