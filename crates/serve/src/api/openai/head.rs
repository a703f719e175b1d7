//! What the answers of the older two endpoints, and their chunks, begin with, and how their streams end.

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

/// The end of a stream of chunks: one with the usage, if it was asked for, then the last event.
pub(super) fn end(out: &mut Sink, mut chunk: Value, usage: Option<&Usage>) {
    if let Some(usage) = usage {
        chunk["usage"] = usage_json(usage);
        out.data(&chunk);
    }
    done(out);
}

/// The last event of every stream that ends well.
pub(super) fn done(out: &mut Sink) {
    out.text("data: [DONE]\n\n".to_owned());
}

/// The end of a stream that has failed. Official clients raise an error with this message. `[DONE]` would say that the answer is whole.
pub(super) fn failed(out: &mut Sink, error: &ApiError) {
    out.data(&error_json(error));
}
