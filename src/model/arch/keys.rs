//! Typed access to the hyper-parameters of a container: the metadata of a GGUF file, or a `config.json`.
//!
//! A field is named once, with both its names ([`Key`]). `Keys` notes which fields were read: a field that would change
//! the computation, has another value than the neutral one, and was read by nobody is refused.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::model::config::ConfigError;
use refrain_containers::gguf::{GgufFile, GgufValue};

/// The names of a field in both containers; an empty name if a container does not have it.
#[derive(Clone, Copy)]
pub(in crate::model) struct Key {
    /// Behind the prefix of the architecture in GGUF metadata.
    pub(in crate::model) gguf: &'static str,
    /// In `config.json`.
    pub(in crate::model) json: &'static str,
}

/// A field with both its names.
pub(in crate::model) const fn key(gguf: &'static str, json: &'static str) -> Key {
    Key { gguf, json }
}

/// The hyper-parameters of a container.
pub(in crate::model) struct Keys<'a> {
    source: Source<'a>,
    /// The name of the architecture in the container.
    pub(in crate::model) name: &'a str,
    read: RefCell<BTreeSet<&'static str>>,
}

/// Where hyper-parameters are stated.
enum Source<'a> {
    Gguf { file: &'a GgufFile, factors: StoredFactors },
    Json(Object<'a>),
}

/// The divisors of frequencies that a GGUF file stores as tensors.
#[derive(Default)]
pub(in crate::model) struct StoredFactors {
    /// `rope_freqs.weight`.
    pub(in crate::model) factors: Option<Vec<f32>>,
    /// `rope_factors_short.weight`.
    pub(in crate::model) short: Option<Vec<f32>>,
    /// `rope_factors_long.weight`.
    pub(in crate::model) long: Option<Vec<f32>>,
}

/// A JSON object; `null` counts as absent, as it does in Python's `config.get`.
#[derive(Clone, Copy)]
pub(in crate::model) struct Object<'a> {
    file: &'a str,
    path: &'a str,
    map: &'a Map<String, Value>,
}

/// Fields of GGUF metadata that change the computation, with the value of a model that does not use them.
const NEUTRAL_GGUF: [(&str, f64); 13] = [
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("leading_dense_block_count", 0.0),
    ("nextn_predict_layers", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.sliding_window", 0.0),
];

/// Fields of `config.json` that change the computation wherever they are stated, unless they are 0, `false` or an
/// empty list.
const CHANGING_JSON: [&str; 21] = [
    "quantization_config",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "no_rope_layers",
    "mlp_bias",
    "rope_interleaved",
    "scale_emb",
    "scale_depth",
    "dim_model_base",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
    "mamba_n_heads",
    "linear_num_value_heads",
    "conv_L_cache",
];

impl<'a> Keys<'a> {
    pub(in crate::model) fn of_gguf(file: &'a GgufFile, name: &'a str, factors: StoredFactors) -> Self {
        Self { source: Source::Gguf { file, factors }, name, read: RefCell::default() }
    }

    pub(in crate::model) fn of_json(object: Object<'a>, name: &'a str) -> Self {
        Self { source: Source::Json(object), name, read: RefCell::default() }
    }

    /// The file, for messages.
    pub(in crate::model) fn file(&self) -> &'a str {
        match &self.source {
            Source::Gguf { file, .. } => file.name(),
            Source::Json(object) => object.file,
        }
    }

    /// The object of `config.json`; `None` for a GGUF file.
    pub(in crate::model) fn json(&self) -> Option<Object<'a>> {
        match &self.source {
            Source::Gguf { .. } => None,
            Source::Json(object) => Some(*object),
        }
    }

    /// The GGUF file; `None` for a `config.json`.
    pub(in crate::model) fn gguf(&self) -> Option<&'a GgufFile> {
        match &self.source {
            Source::Gguf { file, .. } => Some(file),
            Source::Json(_) => None,
        }
    }

    /// The frequency divisors that a GGUF file stores as tensors.
    pub(in crate::model) fn stored_factors(&self) -> &StoredFactors {
        const NONE: &StoredFactors = &StoredFactors { factors: None, short: None, long: None };
        match &self.source {
            Source::Gguf { factors, .. } => factors,
            Source::Json(_) => NONE,
        }
    }

    /// Whether a GGUF file has the tensor. (A Hugging Face folder states in `config.json` what it has.)
    pub(in crate::model) fn has_tensor(&self, name: &str) -> bool {
        self.gguf().is_some_and(|file| file.tensor(name).is_some())
    }

    /// The field's name in this container.
    fn name_of(&self, key: Key) -> &'static str {
        match &self.source {
            Source::Gguf { .. } => key.gguf,
            Source::Json(_) => key.json,
        }
    }

    /// A count. A list with one value per layer is accepted if all values are equal.
    pub(in crate::model) fn count(&self, key: Key) -> Result<Option<usize>, ConfigError> {
        self.value(
            key,
            "a whole number, the same for all layers",
            |value| {
                let n = match value.as_array() {
                    None => value.as_u64()?,
                    Some(array) => {
                        let values = array.to_u64s()?;
                        let first = *values.first()?;
                        values.iter().all(|&n| n == first).then_some(first)?
                    }
                };
                usize::try_from(n).ok()
            },
            "a whole number of at least 0",
            |value| value.as_u64().and_then(|n| usize::try_from(n).ok()),
        )
    }

    /// A count for each of `n_layers` layers. A single number holds for all layers.
    pub(in crate::model) fn counts(
        &self,
        key: Key,
        n_layers: usize,
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let whole = |n: u64| usize::try_from(n).ok();
        let list = self.value(
            key,
            "a whole number, or one for each layer",
            |value| match value.as_array() {
                None => Some(vec![whole(value.as_u64()?)?; 1]),
                Some(array) => array.to_u64s()?.into_iter().map(whole).collect(),
            },
            "a whole number, or one for each layer",
            |value| match value.as_array() {
                None => Some(vec![whole(value.as_u64()?)?; 1]),
                Some(array) => array.iter().map(|value| whole(value.as_u64()?)).collect(),
            },
        )?;
        self.by_layer(key, list, n_layers)
    }

    /// A flag for each of `n_layers` layers (a list of `true` and `false`, or of 1 and 0).
    pub(in crate::model) fn flags(
        &self,
        key: Key,
        n_layers: usize,
    ) -> Result<Option<Vec<bool>>, ConfigError> {
        let list = self.value(
            key,
            "a flag for each layer",
            |value| match value.as_array() {
                None => Some(vec![value.as_bool()?; 1]),
                Some(array) => array.to_bools(),
            },
            "a flag for each layer",
            |value| {
                let flag = |value: &Value| value.as_bool().or_else(|| value.as_u64().map(|n| n != 0));
                match value.as_array() {
                    None => Some(vec![flag(value)?; 1]),
                    Some(array) => array.iter().map(flag).collect(),
                }
            },
        )?;
        self.by_layer(key, list, n_layers)
    }

    /// A number for each of `n_layers` layers. A single number holds for all layers.
    pub(in crate::model) fn numbers(
        &self,
        key: Key,
        n_layers: usize,
    ) -> Result<Option<Vec<f64>>, ConfigError> {
        let list = self.value(
            key,
            "a float, or one for each layer",
            |value| match value.as_array() {
                None => Some(vec![value.as_f64()?; 1]),
                Some(array) => array.to_f64s(),
            },
            "a number, or one for each layer",
            |value| match value.as_array() {
                None => Some(vec![value.as_f64()?; 1]),
                Some(array) => array.iter().map(Value::as_f64).collect(),
            },
        )?;
        self.by_layer(key, list, n_layers)
    }

    /// Whether the field is a list.
    pub(in crate::model) fn is_list(&self, key: Key) -> bool {
        match &self.source {
            Source::Gguf { file, .. } => file
                .get(&format!("{}.{}", self.name, key.gguf))
                .is_some_and(|value| value.as_array().is_some()),
            Source::Json(object) => object.get(key.json).is_some_and(Value::is_array),
        }
    }

    /// The kind of each layer, as `layer_types` of `config.json` names it.
    pub(in crate::model) fn layer_types(&self, n_layers: usize) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let field = key("", "layer_types");
        let list = self.value(
            field,
            "",
            |_| None,
            "a name for each layer",
            |value| value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>(),
        )?;
        self.by_layer(field, list, n_layers)
    }

    fn by_layer<T: Clone>(
        &self,
        key: Key,
        list: Option<Vec<T>>,
        n_layers: usize,
    ) -> Result<Option<Vec<T>>, ConfigError> {
        match list {
            None => Ok(None),
            Some(list) if list.len() == n_layers => Ok(Some(list)),
            Some(list) if list.len() == 1 => Ok(Some(vec![list[0].clone(); n_layers])),
            Some(list) => Err(ConfigError::Inconsistent {
                file: self.file().to_owned(),
                left: format!("{} with {} values", self.full_name(key), list.len()),
                right: format!("{n_layers} layers"),
            }),
        }
    }

    pub(in crate::model) fn number(&self, key: Key) -> Result<Option<f64>, ConfigError> {
        self.value(key, "a float", GgufValue::as_f64, "a number", Value::as_f64)
    }

    /// A float or a whole number.
    pub(in crate::model) fn scalar(&self, key: Key) -> Result<Option<f64>, ConfigError> {
        let of_gguf = |value: &GgufValue| value.as_f64().or(value.as_u64().map(|n| n as f64));
        self.value(key, "a number", of_gguf, "a number", Value::as_f64)
    }

    pub(in crate::model) fn flag(&self, key: Key) -> Result<Option<bool>, ConfigError> {
        self.value(key, "a bool", GgufValue::as_bool, "true or false", Value::as_bool)
    }

    /// An object of `config.json`.
    pub(in crate::model) fn object(&self, field: &'static str) -> Result<Option<Object<'a>>, ConfigError> {
        self.read.borrow_mut().insert(field);
        self.json().map_or(Ok(None), |object| object.object(field))
    }

    pub(in crate::model) fn text(&self, key: Key) -> Result<Option<&'a str>, ConfigError> {
        self.value(key, "a string", GgufValue::as_str, "a string", Value::as_str)
    }

    /// A count; `default` where `config.json` leaves it out. GGUF files state it.
    pub(in crate::model) fn count_or(&self, key: Key, default: usize) -> Result<usize, ConfigError> {
        self.count(key)?.or(self.json().map(|_| default)).ok_or_else(|| self.missing(key))
    }

    pub(in crate::model) fn required_count(&self, key: Key) -> Result<usize, ConfigError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    /// The field is missing.
    pub(in crate::model) fn missing(&self, key: Key) -> ConfigError {
        ConfigError::Missing { file: self.file().to_owned(), field: self.full_name(key) }
    }

    /// The value of the field is not implemented.
    pub(in crate::model) fn unsupported(&self, key: Key, value: impl ToString) -> ConfigError {
        ConfigError::Unsupported {
            file: self.file().to_owned(),
            field: self.full_name(key),
            value: value.to_string(),
        }
    }

    /// The name of the field with its prefix or path.
    pub(in crate::model) fn full_name(&self, key: Key) -> String {
        match &self.source {
            Source::Gguf { .. } => format!("{}.{}", self.name, key.gguf),
            Source::Json(object) => object.full_name(key.json),
        }
    }

    /// Refuses fields that would change the computation and that nobody has read.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`].
    pub(in crate::model) fn refuse_unread(&self) -> Result<(), ConfigError> {
        match &self.source {
            Source::Gguf { .. } => {
                for (name, neutral) in NEUTRAL_GGUF {
                    if self.read.borrow().contains(name) {
                        continue;
                    }
                    let field = key(name, "");
                    if let Some(value) = self.scalar(field)?.filter(|&value| value != neutral) {
                        return Err(self.unsupported(field, value));
                    }
                }
                let causal = key("attention.causal", "");
                match self.flag(causal)? {
                    Some(false) => Err(self.unsupported(causal, false)),
                    _ => Ok(()),
                }
            }
            Source::Json(object) => {
                let is_neutral = |value: &Value| match value {
                    Value::Bool(value) => !value,
                    Value::Number(value) => value.as_f64() == Some(0.0),
                    Value::Array(values) => values.is_empty(),
                    _ => false,
                };
                for name in CHANGING_JSON {
                    let read = self.read.borrow().contains(name);
                    if let Some(value) = object.get(name).filter(|value| !read && !is_neutral(value)) {
                        let text: String = value.to_string().chars().take(60).collect();
                        return Err(self.unsupported(key("", name), text));
                    }
                }
                Ok(())
            }
        }
    }

    fn value<T>(
        &self,
        key: Key,
        expected_gguf: &'static str,
        of_gguf: impl Fn(&'a GgufValue) -> Option<T>,
        expected_json: &'static str,
        of_json: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let name = self.name_of(key);
        if name.is_empty() {
            return Ok(None);
        }
        self.read.borrow_mut().insert(name);
        match &self.source {
            Source::Json(object) => object.typed(name, expected_json, of_json),
            Source::Gguf { file, .. } => {
                let field = format!("{}.{name}", self.name);
                let Some(value) = file.get(&field) else { return Ok(None) };
                match of_gguf(value) {
                    Some(typed) => Ok(Some(typed)),
                    None => Err(ConfigError::WrongType {
                        file: file.name().to_owned(),
                        field,
                        expected: expected_gguf,
                        found: format!("a {}", value.type_name()),
                    }),
                }
            }
        }
    }
}

impl<'a> Object<'a> {
    pub(in crate::model) fn new(file: &'a str, path: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { file, path, map }
    }

    /// A field that is present and not `null`.
    pub(in crate::model) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field is present, if only as `null`.
    pub(in crate::model) fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// The first field whose value is an object.
    pub(in crate::model) fn first_object(&self) -> Option<&'a str> {
        self.map.iter().find(|(_, value)| value.is_object()).map(|(name, _)| name.as_str())
    }

    pub(in crate::model) fn text(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(in crate::model) fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(in crate::model) fn number(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub(in crate::model) fn count(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(field, "a whole number of at least 0", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    pub(in crate::model) fn counts(&self, field: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        self.typed(field, "a list of whole numbers", |value| {
            let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
            value.as_array()?.iter().map(count).collect()
        })
    }

    pub(in crate::model) fn numbers(&self, field: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        self.typed(field, "a list of numbers", |value| {
            value.as_array()?.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
        })
    }

    pub(in crate::model) fn object(&self, field: &'a str) -> Result<Option<Object<'a>>, ConfigError> {
        let map = self.typed(field, "an object", Value::as_object)?;
        Ok(map.map(|map| Object { file: self.file, path: field, map }))
    }

    pub(in crate::model) fn required_text(&self, field: &str) -> Result<&'a str, ConfigError> {
        self.text(field)?.ok_or_else(|| self.missing(field))
    }

    pub(in crate::model) fn required_number(&self, field: &str) -> Result<f64, ConfigError> {
        self.number(field)?.ok_or_else(|| self.missing(field))
    }

    pub(in crate::model) fn required_count(&self, field: &str) -> Result<usize, ConfigError> {
        self.count(field)?.ok_or_else(|| self.missing(field))
    }

    pub(in crate::model) fn required_numbers(&self, field: &str) -> Result<Vec<f32>, ConfigError> {
        self.numbers(field)?.ok_or_else(|| self.missing(field))
    }

    pub(in crate::model) fn unsupported(&self, field: &str, value: impl ToString) -> ConfigError {
        let field = self.full_name(field);
        ConfigError::Unsupported { file: self.file.to_owned(), field, value: value.to_string() }
    }

    /// The file, for messages.
    pub(in crate::model) fn file(&self) -> &'a str {
        self.file
    }

    /// All fields, in the order of the file.
    pub(in crate::model) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(in crate::model) fn out_of_range(
        &self,
        field: &str,
        value: impl ToString,
        allowed: impl ToString,
    ) -> ConfigError {
        let (file, field) = (self.file.to_owned(), self.full_name(field));
        ConfigError::OutOfRange { file, field, value: value.to_string(), allowed: allowed.to_string() }
    }

    /// Refuses a number outside its limits.
    pub(in crate::model) fn check_count(
        &self,
        field: &str,
        value: usize,
        min: usize,
        max: usize,
    ) -> Result<(), ConfigError> {
        match (min..=max).contains(&value) {
            true => Ok(()),
            false if max == usize::MAX => Err(self.out_of_range(field, value, format!("at least {min}"))),
            false => Err(self.out_of_range(field, value, format!("{min} to {max}"))),
        }
    }

    fn typed<T>(
        &self,
        field: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(ConfigError::WrongType {
                file: self.file.to_owned(),
                field: self.full_name(field),
                expected,
                found: value.to_string().chars().take(60).collect(),
            }),
        }
    }

    fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.to_owned(), field: self.full_name(field) }
    }

    fn full_name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }
}
