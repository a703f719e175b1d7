//! What the answers of the older two endpoints, and their chunks, begin with, and how their streams end.

use std::time::Duration;

use serde_json::{Value, json};

use super::error_json;
use super::wire::chat::Delivery;
use super::wire::common::usage_json;
use crate::api::stream::Sink;
use crate::app::App;
use crate::error::ApiError;
use crate::time::unix_time;
use crate::work::{Running, Usage};

/// The version decides the output together with model, sampling and seed.
const FINGERPRINT: &str = concat!("refrain-", env!("CARGO_PKG_VERSION"));

pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
    tier: Option<&'static str>,
}

impl Head {
    pub(super) fn new(app: &App, prefix: &str, running: &Running, tier: Option<&'static str>) -> Self {
        Self { id: app.id(prefix), created: unix_time(), model: running.model.id.clone(), tier }
    }

    fn json(&self, object: &str, choices: Value) -> Value {
        let mut value = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        });
        if let Some(tier) = self.tier {
            value["service_tier"] = tier.into();
        }
        value["choices"] = choices;
        value
    }

    /// An answer that is sent at once.
    pub(super) fn whole(&self, object: &str, choices: Value, usage: &Usage) -> Value {
        let mut value = self.json(object, choices);
        value["usage"] = usage_json(usage);
        value
    }

    /// A chunk of a stream.
    pub(super) fn chunk(&self, object: &str, choices: Value, delivery: &Delivery) -> Value {
        let mut value = self.json(object, choices);
        if delivery.includes_usage {
            value["usage"] = Value::Null;
        }
        value
    }
}

/// How far the prefill is, in a chunk that has nothing else.
pub(super) fn progress(out: &mut Sink, mut chunk: Value, done: usize, total: usize, cached: usize) {
    chunk["prompt_progress"] = json!({ "total": total, "cache": cached, "processed": done });
    out.data(&chunk);
}

/// The end of a stream of chunks: one with the usage, and the times beside origins, if it was asked for, then the last event.
pub(super) fn end(out: &mut Sink, mut chunk: Value, delivery: &Delivery, usage: &Usage) {
    if delivery.shows_origins {
        chunk["timings"] = timings_json(usage);
    }
    if delivery.includes_usage {
        chunk["usage"] = usage_json(usage);
        out.data(&chunk);
    }
    done(out);
}

/// Times in milliseconds and tokens per second, by the names of llama.cpp, and the number of passes that wrote the output.
pub(super) fn timings_json(usage: &Usage) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    // 0 where nothing was computed.
    let rate = |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
    let n_computed = usage.prompt.saturating_sub(usage.cached);
    json!({
        "cache_n": usage.cached,
        "prompt_n": n_computed,
        "prompt_ms": ms(usage.prefill_time),
        "prompt_per_second": rate(n_computed, usage.prefill_time),
        "predicted_n": usage.output,
        "predicted_ms": ms(usage.decode_time),
        "predicted_per_second": rate(usage.output, usage.decode_time),
        "n_steps": usage.steps,
    })
}

/// The last event of every stream that ends well.
pub(super) fn done(out: &mut Sink) {
    out.text("data: [DONE]\n\n".to_owned());
}

/// The end of a stream that has failed. Official clients raise an error with this message. `[DONE]` would say that the answer is whole.
pub(super) fn failed(out: &mut Sink, error: &ApiError) {
    out.data(&error_json(error));
}
