//! The classes of JavaScript.

use std::time::Duration;

use js_sys::{Function, Reflect};
use wasm_bindgen::prelude::*;

use crate::error::ErrorInfo;

/// An `Error` of JavaScript with the fields of [`ErrorInfo`].
#[expect(clippy::boxed_local, reason = "results hold it so")]
fn thrown(error: Box<ErrorInfo>) -> JsValue {
    let ErrorInfo { code, kind, message, file, field, offset, value, limit } = *error;
    let thrown = js_sys::Error::new(&message);
    let fields: [(&str, JsValue); 7] = [
        ("code", code.into()),
        ("kind", kind.into()),
        ("file", file.into()),
        ("field", field.into()),
        ("offset", offset.map(|n| n as f64).into()),
        ("value", value.into()),
        ("limit", limit.map(|n| n as f64).into()),
    ];
    for (name, value) in fields {
        // It fails for frozen objects only.
        let _ = Reflect::set(&thrown, &name.into(), &value);
    }
    thrown.into()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("records of texts and numbers are JSON")
}

/// A loaded model. `free()` gives its memory back to the module.
#[wasm_bindgen]
pub struct Engine(crate::Engine);

#[wasm_bindgen]
impl Engine {
    /// Loads a GGUF file or a packed file from its bytes. `options` is JSON or empty. `progress(done, total)` counts bytes.
    #[wasm_bindgen(constructor)]
    pub fn new(
        bytes: Vec<u8>,
        options: Option<String>,
        progress: Option<Function>,
    ) -> Result<Engine, JsValue> {
        let report = |done: u64, total: u64| {
            if let Some(progress) = &progress {
                // An exception in the app's function does not stop the loading.
                let _ = progress.call2(&JsValue::NULL, &(done as f64).into(), &(total as f64).into());
            }
        };
        crate::Engine::open(bytes, &options.unwrap_or_default(), report).map(Engine).map_err(thrown)
    }

    /// Loads a smaller model of the same vocabulary, which drafts for sessions that are started from now on.
    #[wasm_bindgen(js_name = setDraftModel)]
    pub fn set_draft_model(&self, bytes: Vec<u8>) -> Result<(), JsValue> {
        self.0.set_draft_model(bytes).map_err(thrown)
    }

    /// Starts a conversation. `options` is JSON or empty.
    pub fn session(&self, options: Option<String>) -> Result<Session, JsValue> {
        self.0.session(&options.unwrap_or_default()).map(Session).map_err(thrown)
    }

    /// What the engine computes with, as JSON.
    pub fn info(&self) -> String {
        json(&self.0.info())
    }
}

/// A conversation. `free()` gives its memory back to the module.
#[wasm_bindgen]
pub struct Session(crate::Session);

#[wasm_bindgen]
impl Session {
    /// Appends turns: JSON, a list of `{"role", "content"}`.
    pub fn append(&mut self, messages: &str) -> Result<(), JsValue> {
        self.0.append(messages).map_err(thrown)
    }

    /// Starts a generation. `options` is JSON or empty.
    pub fn start(&mut self, options: Option<String>) -> Result<(), JsValue> {
        self.0.start(&options.unwrap_or_default()).map_err(thrown)
    }

    /// Computes for about `ms` milliseconds and returns the events, a JSON list; empty if no generation runs.
    pub fn events(&mut self, ms: u32) -> String {
        json(&self.0.events(Duration::from_millis(ms.into())))
    }

    /// Cancels the generation; the next events have its end.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Counts and times of the newest generation, as JSON.
    pub fn stats(&self) -> String {
        json(&self.0.stats())
    }
}

/// The lines of the comparison with the native run.
#[cfg(feature = "bits")]
#[wasm_bindgen]
pub fn bits(target: Vec<u8>, draft: Vec<u8>) -> Result<String, JsValue> {
    crate::bits::lines(target, draft)
        .map(|lines| lines.join("\n"))
        .map_err(|error| js_sys::Error::new(&error.to_string()).into())
}
