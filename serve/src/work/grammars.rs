//! Compiled grammars, the newest of each model kept: agents send the same tools with every request.

use std::sync::{Mutex, PoisonError};

use refrain_grammar::{Grammar, JsonOptions};
use serde_json::Value;

use super::calls;
use super::request::Tools;
use crate::error::{ApiError, ApiResult};
use crate::models::Model;

/// Grammars that a model keeps.
const KEPT: usize = 16;

/// The kept grammars, the oldest first, under hashes of their sources.
#[derive(Debug, Default)]
pub(crate) struct Grammars(Mutex<Vec<(blake3::Hash, Grammar)>>);

impl Grammars {
    fn get(
        &self,
        kind: &str,
        source: &str,
        compile: impl FnOnce() -> ApiResult<Grammar>,
    ) -> ApiResult<Grammar> {
        let key = blake3::hash(format!("{kind}\0{source}").as_bytes());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = lock();
            if let Some(index) = kept.iter().position(|(other, _)| *other == key) {
                let entry = kept.remove(index);
                let grammar = entry.1.clone();
                kept.push(entry);
                return Ok(grammar);
            }
        }
        let grammar = compile()?;
        let mut kept = lock();
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((key, grammar.clone()));
        Ok(grammar)
    }
}

/// JSON under a schema, which is at `path` in the request.
pub(crate) fn json(model: &Model, schema: &Value, path: &str) -> ApiResult<Grammar> {
    let source = schema.to_string();
    model.grammars.get("json", &source, || {
        let compiled = Grammar::json_schema(model.vocabulary()?, &source, JsonOptions::default());
        compiled.map_err(|error| ApiError::of_grammar(&error, path))
    })
}

/// Calls of tools.
pub(crate) fn calls(model: &Model, tools: &Tools, has_marker: bool) -> ApiResult<Grammar> {
    let tokenizer = model.engine.tokenizer();
    let is_open_special = tokenizer.token_id(calls::OPEN).is_some_and(|id| tokenizer.is_special(id));
    let source = calls::grammar(tools, is_open_special, has_marker);
    model.grammars.get("calls", &source, || {
        // Each schema alone: an error names its tool, and limits hold for each.
        for function in tools.callable() {
            json(model, &function.parameters, &function.path)?;
        }
        let compiled = Grammar::lark(model.vocabulary()?, &source);
        compiled.map_err(|error| ApiError::of_grammar(&error, "tools"))
    })
}
