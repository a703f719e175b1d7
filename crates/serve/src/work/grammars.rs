//! Grammars of outputs, compiled one at a time for each model.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use refrain::CancelToken;
use refrain_grammar::{Grammar, JsonOptions};
use serde_json::Value;

use super::kept_grammars::Grammars;
use super::request::Tools;
use super::tool_format::{self, Form};
use crate::blocking::{caught, on_own_thread};
use crate::error::{ApiError, ApiResult};
use crate::models::Model;

/// How long the schemas of a request's tools are compiled one by one, to name the place of the one that is refused.
const PLACE_TIME_MAX: Duration = Duration::from_secs(5);

/// How often a request that waits for a grammar looks whether its client has gone.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// The right to compile a grammar of a model.
struct Turn(Arc<Model>);

impl Turn {
    /// Waits a moment for the right.
    fn wait(model: &Arc<Model>) -> Option<Self> {
        let Grammars { is_compiling, has_compiled, .. } = &model.grammars;
        let locked = is_compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = has_compiled.wait_timeout_while(locked, CANCEL_POLL, |is_compiling| *is_compiling);
        let (mut is_compiling, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_free = !std::mem::replace(&mut *is_compiling, true);
        is_free.then(|| Self(Arc::clone(model)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Grammars { is_compiling, has_compiled, .. } = &self.0.grammars;
        *is_compiling.lock().unwrap_or_else(PoisonError::into_inner) = false;
        has_compiled.notify_one();
    }
}

/// The kept grammar of a source, or a new one.
///
/// The compiler cannot be interrupted, so it runs on a thread of its own. A request whose client has gone does not wait for it; the compiler's
/// limits end it, and its grammar is kept.
///
/// # Errors
/// Those of `compile`; status 503: `cancel` is set.
fn get(
    model: &Arc<Model>,
    kind: &str,
    source: &str,
    cancel: &CancelToken,
    compile: impl FnOnce(&Model) -> ApiResult<Grammar> + Send + 'static,
) -> ApiResult<Grammar> {
    let key = blake3::hash(format!("{kind}\0{source}").as_bytes());
    let turn = loop {
        if let Some(grammar) = model.grammars.find(key) {
            return Ok(grammar);
        }
        if cancel.is_cancelled() {
            return Err(ApiError::stopped());
        }
        if let Some(turn) = Turn::wait(model) {
            break turn;
        }
    };
    // Whoever had the turn may have compiled the same.
    if let Some(grammar) = model.grammars.find(key) {
        return Ok(grammar);
    }
    let (sender, receiver) = sync_channel(1);
    let work = move || {
        let Turn(model) = &turn;
        let compiled = caught(|| compile(model));
        if let Ok(grammar) = &compiled {
            model.grammars.keep(key, grammar.clone());
        }
        drop(turn);
        // The receiver may have gone.
        let _ = sender.send(compiled);
    };
    on_own_thread("refrain-schema", work)?;
    loop {
        match receiver.recv_timeout(CANCEL_POLL) {
            Ok(compiled) => return compiled,
            Err(RecvTimeoutError::Timeout) if !cancel.is_cancelled() => {}
            Err(_) => return Err(ApiError::stopped()),
        }
    }
}

/// JSON under a schema, which is at `path` in the request.
pub(crate) fn json(
    model: &Arc<Model>,
    schema: &Value,
    path: &str,
    cancel: &CancelToken,
) -> ApiResult<Grammar> {
    let (source, path) = (schema.to_string(), path.to_owned());
    let theirs = source.clone();
    get(model, "json", &source, cancel, move |model| compile(model, &theirs, &path))
}

/// A text of a grammar in GBNF.
pub(crate) fn gbnf(model: &Arc<Model>, grammar: &str, cancel: &CancelToken) -> ApiResult<Grammar> {
    let theirs = grammar.to_owned();
    get(model, "gbnf", grammar, cancel, move |model| {
        let compiled = Grammar::gbnf(model.vocabulary()?, &theirs);
        compiled.map_err(|error| ApiError::of_grammar(&error, "grammar"))
    })
}

fn compile(model: &Model, schema: &str, path: &str) -> ApiResult<Grammar> {
    let compiled = Grammar::json_schema(model.vocabulary()?, schema, JsonOptions::default());
    compiled.map_err(|error| ApiError::of_grammar(&error, path))
}

/// Calls of tools. `is_open`: whether the output begins inside its reasoning.
pub(crate) fn calls(
    model: &Arc<Model>,
    tools: &Tools,
    is_open: bool,
    form: Form<'_>,
    cancel: &CancelToken,
) -> ApiResult<Grammar> {
    // The schemas with their places.
    let functions = tools.callable();
    let mut all: Vec<(&Value, &str)> =
        functions.iter().map(|function| (&function.parameters, &*function.path)).collect();
    if let Form::CallsOr { schema, path } = form {
        all.push((schema, path));
    }
    let schemas: Vec<(String, String)> =
        all.into_iter().map(|(schema, path)| (schema.to_string(), path.to_owned())).collect();
    if let Form::CallsOr { schema, path } = form {
        // Options of the compiler come from this server, and `false` allows no answer.
        let is_allowed = match schema {
            Value::Object(schema) => !schema.contains_key("x-guidance"),
            schema => *schema == Value::Bool(true),
        };
        if !is_allowed {
            return Err(compile(model, &schema.to_string(), path).err().unwrap_or_else(ApiError::stopped));
        }
    }
    let source = tool_format::grammar(model.told().format, tools, model.engine.tokenizer(), is_open, form);
    let (theirs, their_cancel) = (source.clone(), cancel.clone());
    get(model, "calls", &source, cancel, move |model| {
        let error = match Grammar::lark(model.vocabulary()?, &theirs) {
            Ok(grammar) => return Ok(grammar),
            Err(error) => error,
        };
        // Each schema alone, to name its place.
        let since = Instant::now();
        for (schema, path) in schemas {
            if their_cancel.is_cancelled() {
                return Err(ApiError::stopped());
            }
            if since.elapsed() > PLACE_TIME_MAX {
                break;
            }
            compile(model, &schema, &path)?;
        }
        Err(ApiError::of_grammar(&error, "tools"))
    })
}
