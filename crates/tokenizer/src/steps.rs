//! The steps that change and split a text before its words are cut into tokens.
//!
//! Those of the `tokenizers` library, except the ones that run a regular expression: theirs run in counted steps
//! ([`Regexp`]).

use serde::Deserialize;
use serde_json::Value;
use tokenizers::tokenizer::pattern::Invert;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior,
};

use super::regexp::{Budget, Counted, Regexp};

pub(super) enum NormalizerStep {
    Library(NormalizerWrapper),
    /// Puts a text in the place of each match.
    Replace {
        regexp: Regexp,
        content: String,
    },
}

pub(super) enum PreTokenizerStep {
    Library(PreTokenizerWrapper),
    /// Splits at each match, or between the matches.
    Split {
        regexp: Regexp,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
}

/// The fields of a `Split` beside its pattern.
#[derive(Deserialize)]
struct SplitJson {
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

/// The fields of a `Replace` beside its pattern.
#[derive(Deserialize)]
struct ReplaceJson {
    content: String,
}

/// The steps of a normalizer in a `tokenizer.json`, whose nesting has been checked.
pub(super) fn normalizer(step: Option<Value>) -> Result<Vec<NormalizerStep>, String> {
    let mut steps = Vec::new();
    for step in flat(step, "normalizers") {
        steps.push(match regexp(&step, "Replace")? {
            Some(regexp) => NormalizerStep::Replace { regexp, content: read::<ReplaceJson>(step)?.content },
            None => NormalizerStep::Library(read(step)?),
        });
    }
    Ok(steps)
}

/// The steps of a pre-tokenizer in a `tokenizer.json`, whose nesting has been checked.
pub(super) fn pre_tokenizer(step: Option<Value>) -> Result<Vec<PreTokenizerStep>, String> {
    let mut steps = Vec::new();
    for step in flat(step, "pretokenizers") {
        steps.push(match regexp(&step, "Split")? {
            Some(regexp) => {
                let SplitJson { behavior, invert } = read(step)?;
                PreTokenizerStep::Split { regexp, behavior, invert }
            }
            None => PreTokenizerStep::Library(read(step)?),
        });
    }
    Ok(steps)
}

fn read<T: serde::de::DeserializeOwned>(step: Value) -> Result<T, String> {
    serde_json::from_value(step).map_err(|error| error.to_string())
}

/// The steps inside sequences, one after the other.
fn flat(step: Option<Value>, list: &str) -> Vec<Value> {
    match step {
        Some(mut step) if step.get("type").and_then(Value::as_str) == Some("Sequence") => {
            match step.get_mut(list) {
                Some(Value::Array(steps)) => {
                    std::mem::take(steps).into_iter().flat_map(|step| flat(Some(step), list)).collect()
                }
                // The library reports what is missing.
                _ => vec![step],
            }
        }
        step => step.into_iter().collect(),
    }
}

/// The regular expression of a step of type `kind`.
fn regexp(step: &Value, kind: &str) -> Result<Option<Regexp>, String> {
    let is_kind = step.get("type").and_then(Value::as_str) == Some(kind);
    let pattern = step.get("pattern").and_then(|pattern| pattern.get("Regex")?.as_str()).filter(|_| is_kind);
    pattern
        .map(|pattern| Regexp::new(pattern).map_err(|reason| format!("pattern `{pattern}`: {reason}")))
        .transpose()
}

/// A normalizer with the budget of the text that it changes.
pub(super) struct CountedNormalizer<'a> {
    pub(super) steps: &'a [NormalizerStep],
    pub(super) budget: &'a Budget,
}

impl Normalizer for CountedNormalizer<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            NormalizerStep::Library(step) => step.normalize(text),
            NormalizerStep::Replace { regexp, content } => {
                text.replace(&Counted { regexp, budget: self.budget }, content)
            }
        })
    }
}

/// Splits the pieces of a text by each step in turn.
pub(super) fn pre_tokenize(
    steps: &[PreTokenizerStep],
    pieces: &mut PreTokenizedString,
    budget: &Budget,
) -> tokenizers::Result<()> {
    steps.iter().try_for_each(|step| match step {
        PreTokenizerStep::Library(step) => step.pre_tokenize(pieces),
        PreTokenizerStep::Split { regexp, behavior, invert } => {
            let counted = Counted { regexp, budget };
            pieces.split(|_, piece| match invert {
                true => piece.split(Invert(&counted), *behavior),
                false => piece.split(&counted, *behavior),
            })
        }
    })
}
