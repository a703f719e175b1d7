//! Checks the steps of a `tokenizer.json` before the `tokenizers` library receives them: types, number, nesting, and
//! the length of patterns.

use serde_json::Value;

use super::charsmap::{CHARSMAP_BYTES_MAX, Charsmap};
use super::error::{TokenizerProblem, check_limit};

/// Maximum nesting of step sequences.
const STEP_DEPTH_MAX: usize = 4;
/// Maximum number of steps in a normalizer or pre-tokenizer.
const STEPS_MAX: usize = 64;
/// Maximum length of a step's pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Maximum growth of a text by the replacements of all steps, in output bytes for one input byte. (A space replaced by
/// `▁` counts 3. SentencePiece's NFKC makes 39 bytes of the 3 of U+FDFA, spaces included.) Without a limit, 30 steps
/// that each double a letter would fill the memory.
pub const GROWTH_MAX: usize = 16;

const NORMALIZERS: [&str; 12] = [
    "Sequence",
    "BertNormalizer",
    "Precompiled",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "Prepend",
    "Replace",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: [&str; 9] = [
    "Sequence",
    "BertPreTokenizer",
    "ByteLevel",
    "Split",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Whitespace",
    "WhitespaceSplit",
];

/// The kind of a tokenizer's steps.
#[derive(Default)]
pub(super) struct Steps {
    count: usize,
    /// The growth by each step, in their order.
    growths: Vec<Growth>,
    /// Bytes become characters of the byte-level alphabet.
    pub(super) byte_level: bool,
    /// Spaces become `▁`.
    pub(super) metaspace: bool,
    /// A space is inserted before a text.
    pub(super) inserts_space: bool,
    /// A step inserts a space at the beginning of a text, and not behind a control token.
    pub(super) begins_once: bool,
}

impl Steps {
    pub(super) fn check_normalizer(
        &mut self,
        file: &str,
        step: Option<&Value>,
    ) -> Result<(), TokenizerProblem> {
        self.check(file, "normalizer", step, &NORMALIZERS, 0)
    }

    pub(super) fn check_pre_tokenizer(
        &mut self,
        file: &str,
        step: Option<&Value>,
    ) -> Result<(), TokenizerProblem> {
        self.check(file, "pre-tokenizer", step, &PRE_TOKENIZERS, 0)
    }

    /// Checks the types of all steps, their number, nesting and patterns.
    fn check(
        &mut self,
        file: &str,
        field: &'static str,
        step: Option<&Value>,
        known: &[&str],
        depth: usize,
    ) -> Result<(), TokenizerProblem> {
        let Some(step) = step else { return Ok(()) };
        self.count += 1;
        check_limit(file, "steps of the tokenizer", self.count, STEPS_MAX)?;
        check_limit(file, "nesting of the tokenizer's steps", depth, STEP_DEPTH_MAX)?;
        let Some(kind) = step.get("type").and_then(Value::as_str) else {
            let field = format!("{field}.type");
            return Err(TokenizerProblem::WrongType { file: file.to_owned(), field, expected: "a string" });
        };
        if !known.contains(&kind) {
            return Err(TokenizerProblem::Unsupported {
                file: file.to_owned(),
                field,
                name: kind.to_owned(),
            });
        }
        let text_of = |value: &Value| value.as_str().map_or(0, str::len);
        let pattern = step.get("pattern").map_or(0, |p| match p {
            Value::Object(map) => map.values().map(text_of).max().unwrap_or(0),
            other => text_of(other),
        });
        check_limit(file, "bytes of a pattern", pattern, PATTERN_BYTES_MAX)?;
        self.growths.push(growth(file, step)?);
        check_limit(file, "growth of a text by replacements", self.growth(), GROWTH_MAX)?;
        self.byte_level |= kind == "ByteLevel";
        let writes_metaspace =
            |key: &str| step.get(key).and_then(Value::as_str).is_some_and(|s| s.contains('\u{2581}'));
        self.metaspace |= kind == "Metaspace" || writes_metaspace("content") || writes_metaspace("prepend");
        self.begins_once |= step.get("prepend_scheme").and_then(Value::as_str) == Some("first");
        self.inserts_space |= match kind {
            "Prepend" => writes_metaspace("prepend"),
            "Metaspace" => {
                step.get("prepend_scheme").and_then(Value::as_str) != Some("never")
                    && step.get("add_prefix_space").and_then(Value::as_bool) != Some(false)
            }
            _ => false,
        };
        if kind == "Sequence" {
            for list in ["normalizers", "pretokenizers"] {
                for step in step.get(list).and_then(Value::as_array).into_iter().flatten() {
                    self.check(file, field, Some(step), known, depth + 1)?;
                }
            }
        }
        Ok(())
    }
}

/// The growth of a text by a step.
enum Growth {
    /// Any byte becomes at most this number of bytes.
    Any(usize),
    /// A space becomes a text of this length without spaces.
    Spaces(usize),
    /// A table of replacements.
    Charsmap(Charsmap),
}

impl Steps {
    /// Maximum output bytes of all steps for one byte of text. From the last step to the first: the bytes that a space
    /// and another byte become from that step on.
    fn growth(&self) -> usize {
        let (mut space, mut other) = (1usize, 1usize);
        for growth in self.growths.iter().rev() {
            (space, other) = match growth {
                Growth::Any(factor) => {
                    let grown = space.max(other).saturating_mul(*factor);
                    (grown, grown)
                }
                Growth::Spaces(len) => (other.saturating_mul(*len), other),
                Growth::Charsmap(charsmap) => {
                    let grown = charsmap.growth(other, space);
                    (grown.max(space), grown)
                }
            };
        }
        space.max(other)
    }
}

fn growth(file: &str, step: &Value) -> Result<Growth, TokenizerProblem> {
    let len_of = |key: &str| step.get(key).and_then(Value::as_str).map_or(0, str::len);
    let kind = step.get("type").and_then(Value::as_str);
    let pattern = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
    let has_space = |key: &str| step.get(key).and_then(Value::as_str).is_none_or(|text| text.contains(' '));
    match kind {
        Some("Precompiled") => {
            let field = "precompiled_charsmap";
            let Some(table) = step.get(field).and_then(Value::as_str) else {
                let (file, field) = (file.to_owned(), field.to_owned());
                return Err(TokenizerProblem::WrongType { file, field, expected: "a base64 text" });
            };
            check_limit(file, "bytes of a charsmap", table.len(), CHARSMAP_BYTES_MAX)?;
            Charsmap::check(table).map(Growth::Charsmap).map_err(|reason| TokenizerProblem::Json {
                file: file.to_owned(),
                reason: format!("`{field}`: {reason}"),
            })
        }
        Some("Metaspace") if !has_space("replacement") => Ok(Growth::Spaces(len_of("replacement").max(1))),
        Some("Replace") if pattern == Some(" ") && !has_space("content") => {
            Ok(Growth::Spaces(len_of("content").max(1)))
        }
        // A space on either side of a character of Chinese, which has three bytes.
        Some("BertNormalizer") => Ok(Growth::Any(2)),
        _ => Ok(Growth::Any(growth_of_any(step))),
    }
}

/// Maximum output bytes of a step for one byte of text. (For a text that is prepended once, all its bytes count.)
fn growth_of_any(step: &Value) -> usize {
    let len_of = |key: &str| step.get(key).and_then(Value::as_str).map_or(0, str::len);
    let replaced = match step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str()) {
        Some(pattern) if !pattern.is_empty() => len_of("content").div_ceil(pattern.len()),
        // A pattern may match one letter, or nothing at all.
        _ => len_of("content"),
    };
    replaced.max(len_of("prepend")).max(len_of("replacement")).max(1)
}

/// The token that a template post-processor inserts first, if it is a special token.
pub(super) fn first_token(processor: &Value, depth: usize) -> Option<String> {
    if depth > STEP_DEPTH_MAX {
        return None;
    }
    match processor.get("type")?.as_str()? {
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(|p| first_token(p, depth + 1)),
        "TemplateProcessing" => {
            let first = processor.get("single")?.as_array()?.first()?;
            Some(first.get("SpecialToken")?.get("id")?.as_str()?.to_owned())
        }
        "BertProcessing" | "RobertaProcessing" => pair_token(processor, "cls"),
        _ => None,
    }
}

/// The token that a post-processor appends last, if it is a special token.
pub(super) fn last_token(processor: &Value, depth: usize) -> Option<String> {
    if depth > STEP_DEPTH_MAX {
        return None;
    }
    match processor.get("type")?.as_str()? {
        "Sequence" => {
            let processors = processor.get("processors")?.as_array()?;
            processors.iter().rev().find_map(|p| last_token(p, depth + 1))
        }
        "TemplateProcessing" => {
            let last = processor.get("single")?.as_array()?.last()?;
            Some(last.get("SpecialToken")?.get("id")?.as_str()?.to_owned())
        }
        "BertProcessing" | "RobertaProcessing" => pair_token(processor, "sep"),
        _ => None,
    }
}

/// The text of a token that is written with its id.
fn pair_token(processor: &Value, field: &str) -> Option<String> {
    Some(processor.get(field)?.as_array()?.first()?.as_str()?.to_owned())
}

/// The same pre-tokenizer for a piece that is not the beginning of the text. `Metaspace` inserts a space before the
/// first word only, so that space is left out. (The nesting has been checked.)
pub(super) fn without_first_space(mut step: Value) -> Value {
    if step.get("prepend_scheme").and_then(Value::as_str) == Some("first") {
        step["prepend_scheme"] = "never".into();
    }
    if let Some(steps) = step.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        for step in steps {
            *step = without_first_space(step.take());
        }
    }
    step
}
