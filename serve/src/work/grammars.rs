//! Compiled grammars, the newest of each model kept: agents send the same tools with every request.

use std::sync::{Mutex, MutexGuard, PoisonError};

use refrain::CancelToken;
use refrain_grammar::{Grammar, JsonOptions};
use serde_json::Value;

use super::calls;
use super::request::Tools;
use crate::error::{ApiError, ApiResult};
use crate::models::Model;

/// Grammars that a model keeps.
const KEPT: usize = 16;

/// Bytes of all schemas of a request, each times its alternatives: the compiler copies a schema for each of them.
const COPIES_BYTES_MAX: usize = 64 << 20;

/// The kept grammars, the oldest first, under hashes of their sources.
#[derive(Debug, Default)]
pub(crate) struct Grammars {
    kept: Mutex<Vec<(blake3::Hash, Grammar)>>,
    /// One grammar is compiled at a time: it takes a processor, and equal requests often come together.
    compiling: Mutex<()>,
}

impl Grammars {
    fn get(
        &self,
        kind: &str,
        source: &str,
        compile: impl FnOnce() -> ApiResult<Grammar>,
    ) -> ApiResult<Grammar> {
        let key = blake3::hash(format!("{kind}\0{source}").as_bytes());
        if let Some(grammar) = self.find(key) {
            return Ok(grammar);
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammar) = self.find(key) {
            return Ok(grammar);
        }
        let grammar = compile()?;
        let mut kept = self.lock();
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((key, grammar.clone()));
        Ok(grammar)
    }

    fn find(&self, key: blake3::Hash) -> Option<Grammar> {
        let mut kept = self.lock();
        let index = kept.iter().position(|(other, _)| *other == key)?;
        let entry = kept.remove(index);
        let grammar = entry.1.clone();
        kept.push(entry);
        Some(grammar)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(blake3::Hash, Grammar)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// JSON under a schema, which is at `path` in the request.
pub(crate) fn json(model: &Model, schema: &Value, path: &str) -> ApiResult<Grammar> {
    let source = schema.to_string();
    model.grammars.get("json", &source, || compile(model, &source, path))
}

fn compile(model: &Model, schema: &str, path: &str) -> ApiResult<Grammar> {
    let compiled = Grammar::json_schema(model.vocabulary()?, schema, JsonOptions::default());
    compiled.map_err(|error| ApiError::of_grammar(&error, path))
}

/// Calls of tools. `cancel` ends the work between two schemas.
pub(crate) fn calls(
    model: &Model,
    tools: &Tools,
    has_marker: bool,
    cancel: &CancelToken,
) -> ApiResult<Grammar> {
    let mut n_bytes = 0_usize;
    for function in tools.callable() {
        let copies = 1 + alternatives(&function.parameters);
        n_bytes = n_bytes.saturating_add(function.parameters.to_string().len().saturating_mul(copies));
        if n_bytes > COPIES_BYTES_MAX {
            return Err(ApiError::field(&function.path, "the schemas have too many alternatives"));
        }
    }
    let tokenizer = model.engine.tokenizer();
    let is_open_special = tokenizer.token_id(calls::OPEN).is_some_and(|id| tokenizer.is_special(id));
    let source = calls::grammar(tools, is_open_special, has_marker);
    model.grammars.get("calls", &source, || {
        let error = match Grammar::lark(model.vocabulary()?, &source) {
            Ok(grammar) => return Ok(grammar),
            Err(error) => error,
        };
        // Each schema alone, to name its tool.
        for function in tools.callable() {
            if cancel.is_cancelled() {
                return Err(ApiError::stopped());
            }
            compile(model, &function.parameters.to_string(), &function.path)?;
        }
        Err(ApiError::of_grammar(&error, "tools"))
    })
}

/// Entries of all lists of alternatives.
fn alternatives(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => fields.iter().fold(0, |sum: usize, (name, value)| {
            let own = match value {
                Value::Array(items) if name == "anyOf" || name == "oneOf" => items.len(),
                _ => 0,
            };
            sum.saturating_add(own).saturating_add(alternatives(value))
        }),
        Value::Array(items) => items.iter().map(alternatives).fold(0, usize::saturating_add),
        _ => 0,
    }
}
