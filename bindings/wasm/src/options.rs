//! Options as JSON. A field that is left out has the library's default; an unknown one is an error.

use std::time::Duration;

use refrain::{Drafting, KvType, Quantize, Role};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ErrorInfo;

/// The largest seed, plus 1: JavaScript's numbers hold the integers below.
const SEED_END: u64 = 1 << 53;

/// Options of an engine.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EngineOptions {
    /// `keep`, `f32`, `q8_0` or `q4_0`.
    quantize: Option<String>,
    /// Milliseconds for measuring step costs while loading.
    measure_ms: Option<u32>,
}

/// Options of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SessionOptions {
    context_len: Option<u32>,
    /// `f32`, `f16`, `q8_0` or `q4_0`.
    kv_type: Option<String>,
    /// `auto`, `draft_model` or `off`.
    drafting: Option<String>,
    namespace: Option<String>,
    history: Option<bool>,
    /// A system turn before every prompt.
    pub(crate) system: Option<String>,
}

/// Options of a generation.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GenerateOptions {
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<u64>,
    stop: Vec<String>,
}

/// A turn of a conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    role: String,
    pub(crate) content: String,
}

/// Reads JSON; an empty text is an empty object.
pub(crate) fn parse<T: DeserializeOwned + Default>(text: &str) -> Result<T, Box<ErrorInfo>> {
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text).map_err(|error| ErrorInfo::not_json(text, &error))
}

/// The value of a name; the error lists the names.
fn named<T: Copy>(field: &str, given: &str, names: &[(&str, T)]) -> Result<T, Box<ErrorInfo>> {
    let found = names.iter().find(|(name, _)| *name == given).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        ErrorInfo::option(field, format!("{field} is `{given:.40}`, none of {}", all.join(", ")))
    })
}

impl EngineOptions {
    pub(crate) fn for_library(&self) -> Result<refrain::EngineOptions, Box<ErrorInfo>> {
        let mut options = refrain::EngineOptions::default();
        options.measure_time = self.measure_ms.map(|ms| Duration::from_millis(ms.into()));
        if let Some(name) = &self.quantize {
            options.quantize = named(
                "quantize",
                name,
                &[
                    ("keep", Quantize::Keep),
                    ("f32", Quantize::F32),
                    ("q8_0", Quantize::Q8_0),
                    ("q4_0", Quantize::Q4_0),
                ],
            )?;
        }
        Ok(options)
    }
}

impl SessionOptions {
    pub(crate) fn for_library(&self) -> Result<refrain::SessionOptions, Box<ErrorInfo>> {
        let mut options = refrain::SessionOptions::default();
        options.context_len = self.context_len.map(|n| n as usize);
        if let Some(name) = &self.kv_type {
            let names: Vec<(&str, KvType)> = KvType::ALL.iter().map(|ty| (ty.name(), *ty)).collect();
            options.kv_type = named("kv_type", name, &names)?;
        }
        if let Some(name) = &self.drafting {
            let names =
                [("auto", Drafting::Auto), ("draft_model", Drafting::DraftModel), ("off", Drafting::Off)];
            options.drafting = named("drafting", name, &names)?;
        }
        if let Some(namespace) = &self.namespace {
            options.namespace.clone_from(namespace);
        }
        options.history = self.history.unwrap_or(options.history);
        Ok(options)
    }
}

impl GenerateOptions {
    pub(crate) fn for_library(self) -> Result<refrain::GenerateOptions, Box<ErrorInfo>> {
        let mut options = refrain::GenerateOptions::default();
        options.max_tokens = self.max_tokens.map_or(options.max_tokens, |n| n as usize);
        options.stop = self.stop;
        if let Some(seed) = self.seed.filter(|&seed| seed >= SEED_END) {
            let limit = SEED_END - 1;
            let mut error = ErrorInfo::option("seed", format!("seed is {seed}, more than {limit}"));
            (error.value, error.limit) = (Some(seed as f64), Some(limit));
            return Err(error);
        }
        let sampling = &mut options.sampling;
        let set = |field: &mut f32, given: Option<f32>| *field = given.unwrap_or(*field);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        sampling.top_k = self.top_k.map_or(sampling.top_k, |n| n as usize);
        sampling.seed = self.seed;
        Ok(options)
    }
}

impl Message {
    pub(crate) fn role(&self) -> Result<Role, Box<ErrorInfo>> {
        let roles = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
        named("role", &self.role, &roles.map(|role| (role.name(), role)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_none_are_refused_by_name() {
        let field = |error: Box<ErrorInfo>| (error.code, error.field);
        let engine = |json| parse::<EngineOptions>(json).and_then(|options| options.for_library());
        let session = |json| parse::<SessionOptions>(json).and_then(|options| options.for_library());
        let generate = |json| parse::<GenerateOptions>(json).and_then(GenerateOptions::for_library);
        assert!(engine("").is_ok() && session("{}").is_ok() && generate("").is_ok());
        assert_eq!(engine(r#"{"quantize": "q4_0", "measure_ms": 0}"#).unwrap().quantize, Quantize::Q4_0);
        assert_eq!(session(r#"{"kv_type": "q8_0", "drafting": "off"}"#).unwrap().drafting, Drafting::Off);
        assert_eq!(generate(r#"{"temperature": 0.5, "seed": 7}"#).unwrap().sampling.seed, Some(7));
        let named = |field: &str| (8, Some(field.to_owned()));
        assert_eq!(field(engine(r#"{"quantize": "q5"}"#).unwrap_err()), named("quantize"));
        assert_eq!(field(session(r#"{"kv_type": "f8"}"#).unwrap_err()), named("kv_type"));
        assert_eq!(field(session(r#"{"drafting": ""}"#).unwrap_err()), named("drafting"));
        assert_eq!(field(generate(r#"{"seed": 9007199254740992}"#).unwrap_err()), named("seed"));
        let error = generate("{\"max_tokens\":\n x}").unwrap_err();
        assert_eq!((error.code, error.kind, error.offset), (46, "not_json", Some(16)));
        for json in ["null", "[", r#"{"threads": 2}"#, r#"{"max_tokens": -1}"#] {
            assert_eq!(generate(json).unwrap_err().kind, "not_json", "{json}");
        }
    }
}
