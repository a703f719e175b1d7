//! The sampling options that a checkpoint's authors recommend.
//!
//! A Hugging Face folder states them in `generation_config.json`, a GGUF file under `general.sampling.`. A
//! packed file contains the files of its source, so it states the same options. Invalid options do not
//! prevent loading: a value of the wrong type or outside its range is ignored, and listed with the reason.

use serde::Serialize;
use serde_json::Value;

use crate::face::internals;
use refrain_containers::gguf::GgufFile;

/// The recommended sampling options of a checkpoint; `None` if it does not state one. The values are within
/// the ranges that [`Sampling`](crate::verify::Sampling) accepts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GenerationDefaults {
    /// Whether to sample (`do_sample`); false means greedy decoding.
    pub do_sample: Option<bool>,
    /// Temperature, 0..=100.
    pub temperature: Option<f32>,
    /// The number of most likely tokens that are kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// The total probability that the kept tokens reach, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// The least probability relative to the most likely token, 0..=1.
    pub min_p: Option<f32>,
    /// The penalty on tokens of the window, 0.01..=100.
    pub repetition_penalty: Option<f32>,
    /// Number of newest tokens that the penalty covers; only GGUF files state it. (In transformers it covers
    /// the whole text.)
    pub penalty_window: Option<usize>,
    /// Ignored values, each with the reason.
    pub left_aside: Vec<String>,
}

/// The file of a Hugging Face folder.
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";

/// Largest accepted top-k and penalty window: far more than any vocabulary or context has.
const COUNT_MAX: u32 = 1 << 30;

impl GenerationDefaults {
    /// Reads the text of a `generation_config.json`.
    pub(crate) fn from_json(text: &str) -> Self {
        let config: serde_json::Map<String, Value> = match serde_json::from_str(text) {
            Ok(config) => config,
            Err(error) => return Self { left_aside: vec![error.to_string()], ..Self::default() },
        };
        let number = |key: &str| match config.get(key) {
            None | Some(Value::Null) => None,
            Some(value) => Some((key.to_owned(), value.as_f64())),
        };
        let mut defaults = Self::default();
        match config.get("do_sample") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(do_sample)) => defaults.do_sample = Some(*do_sample),
            Some(_) => defaults.left_aside.push("do_sample is neither true nor false".to_owned()),
        }
        defaults.temperature = defaults.real(number("temperature"), |t| (0.0..=100.0).contains(&t));
        defaults.top_k = defaults.count(number("top_k"));
        defaults.top_p = defaults.real(number("top_p"), |p| p > 0.0 && p <= 1.0);
        defaults.min_p = defaults.real(number("min_p"), |p| (0.0..=1.0).contains(&p));
        defaults.repetition_penalty =
            defaults.real(number("repetition_penalty"), |r| (0.01..=100.0).contains(&r));
        defaults
    }

    internals! {
        /// Reads the metadata under `general.sampling.`, which converters fill from `generation_config.json`.
        fn from_gguf(file: &GgufFile) -> Self {
            let number = |name: &str| {
                let key = format!("general.sampling.{name}");
                let value = file.get(&key)?;
                let number = value.as_f64().or(value.as_u64().map(|number| number as f64));
                Some((key, number))
            };
            let mut defaults = Self::default();
            defaults.temperature = defaults.real(number("temp"), |t| (0.0..=100.0).contains(&t));
            defaults.top_k = defaults.count(number("top_k"));
            defaults.top_p = defaults.real(number("top_p"), |p| p > 0.0 && p <= 1.0);
            defaults.min_p = defaults.real(number("min_p"), |p| (0.0..=1.0).contains(&p));
            defaults.repetition_penalty =
                defaults.real(number("penalty_repeat"), |r| (0.01..=100.0).contains(&r));
            defaults.penalty_window = defaults.count(number("penalty_last_n"));
            defaults
        }
    }

    /// A stated number, if it is in its range as an `f32`.
    fn real(&mut self, stated: Option<(String, Option<f64>)>, is_ok: impl Fn(f32) -> bool) -> Option<f32> {
        let (key, number) = stated?;
        let Some(number) = number else {
            self.left_aside.push(format!("{key} is not a number"));
            return None;
        };
        let is_ok = is_ok(number as f32);
        if !is_ok {
            self.left_aside.push(format!("{key} is {number}, which is out of range"));
        }
        is_ok.then_some(number as f32)
    }

    /// A stated whole number from 0 to [`COUNT_MAX`].
    fn count(&mut self, stated: Option<(String, Option<f64>)>) -> Option<usize> {
        let (key, number) = stated?;
        let in_range = number.filter(|n| n.fract() == 0.0 && (0.0..=f64::from(COUNT_MAX)).contains(n));
        if in_range.is_none() {
            self.left_aside.push(format!("{key} is no whole number from 0 to {COUNT_MAX}"));
        }
        in_range.map(|n| n as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use refrain_containers::gguf::{GgufValue, GgufWriter};

    #[test]
    fn a_generation_config_is_read() {
        let defaults = GenerationDefaults::from_json(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null,
                "repetition_penalty": 1.05, "eos_token_id": [1, 2], "max_length": 20}"#,
        );
        assert_eq!(defaults.do_sample, Some(true));
        assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (Some(0.6), Some(20), Some(0.95)));
        assert_eq!((defaults.min_p, defaults.repetition_penalty), (None, Some(1.05)));
        assert_eq!(defaults.left_aside, [""; 0]);
        assert_eq!(GenerationDefaults::from_json("{}"), GenerationDefaults::default());
    }

    #[test]
    fn bad_values_are_left_aside_with_a_reason() {
        let defaults = GenerationDefaults::from_json(
            r#"{"do_sample": 1, "temperature": -1, "top_k": 2.5, "top_p": "high", "min_p": 1e300,
                "repetition_penalty": 1.2}"#,
        );
        assert_eq!(defaults.left_aside.len(), 5, "{:?}", defaults.left_aside);
        assert_eq!(defaults.repetition_penalty, Some(1.2), "the others are taken");
        assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (None, None, None));
        for text in ["", "[]", "7", "{", "\u{0}"] {
            assert_eq!(GenerationDefaults::from_json(text).left_aside.len(), 1, "{text:?}");
        }
    }

    #[test]
    fn the_metadata_of_a_gguf_file_is_read() {
        let mut writer = GgufWriter::new();
        writer.metadata("general.sampling.temp", GgufValue::F32(0.5));
        writer.metadata("general.sampling.top_k", GgufValue::I32(40));
        writer.metadata("general.sampling.top_p", GgufValue::F32(7.0));
        writer.metadata("general.sampling.min_p", GgufValue::String("0.1".to_owned()));
        writer.metadata("general.sampling.penalty_last_n", GgufValue::I32(-1));
        let bytes = writer.start(Vec::new()).unwrap().finish().unwrap();
        let file = GgufFile::from_bytes(bytes.into(), "test").unwrap();
        let defaults = GenerationDefaults::from_gguf(&file);
        assert_eq!((defaults.temperature, defaults.top_k), (Some(0.5), Some(40)));
        assert_eq!((defaults.top_p, defaults.min_p, defaults.penalty_window), (None, None, None));
        assert_eq!(defaults.left_aside.len(), 3, "{:?}", defaults.left_aside);
    }

    proptest! {
        #[test]
        fn any_text_gives_options_that_sampling_accepts(
            temperature in any::<f64>(), top_k in any::<f64>(), top_p in any::<f64>(), min_p in any::<f64>(),
            repetition_penalty in any::<f64>(),
        ) {
            let config = serde_json::json!({
                "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                "repetition_penalty": repetition_penalty,
            });
            let defaults = GenerationDefaults::from_json(&config.to_string());
            let sampling = crate::verify::Sampling::default().with_model_defaults(&defaults);
            prop_assert_eq!(sampling.check_options(10), Ok(()));
        }
    }
}
