//! Reads `tokenizer.json`.
//!
//! The file is parsed here into plain lists, checked, and only then handed to the `tokenizers` library in pieces: its
//! own reader panics on some files, keeps the last of two equal keys, and gives added tokens other ids than the file
//! says where the two disagree.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use super::pipeline::{BpeOptions, MERGES_MAX, PipelineParts, guarded, missing_byte_piece};
use super::vocab::{Scheme, TokenKind, char_of_byte, occurs_in_utf8};
use super::{ADDED_TOKENS_MAX, TokenizerError};

/// Deepest nesting of sequences of steps accepted.
const STEP_DEPTH_MAX: usize = 4;
/// Most steps accepted in a normalizer or pre-tokenizer.
const STEPS_MAX: usize = 64;
/// Longest pattern accepted in a step, in bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;

/// What a `tokenizer.json` says, checked.
pub(super) struct ParsedJson {
    pub(super) scheme: Scheme,
    pub(super) tokens: Vec<(u32, String, TokenKind)>,
    pub(super) parts: PipelineParts,
    /// The first token that the post-processor puts before a text.
    pub(super) first_token: Option<String>,
}

pub(super) fn parse(text: &str, file: &str) -> Result<ParsedJson, TokenizerError> {
    let json_error =
        |e: serde_json::Error| TokenizerError::Json { file: file.to_owned(), reason: e.to_string() };
    let unsupported = |field, name: &str| TokenizerError::Unsupported {
        file: file.to_owned(),
        field,
        name: name.to_owned(),
    };
    // The type first: the models' forms differ, and "unsupported" says more than "invalid".
    let probe: Probe = serde_json::from_str(text).map_err(json_error)?;
    if let Some(kind) = probe.model.kind.as_deref().filter(|&kind| kind != "BPE") {
        return Err(unsupported("tokenizer model", kind));
    }
    let json: Root = serde_json::from_str(text).map_err(json_error)?;
    let model = json.model;
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err(unsupported("dropout", "above 0"));
    }
    let affixes = [
        ("continuing_subword_prefix", model.continuing_subword_prefix),
        ("end_of_word_suffix", model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(affix) = affix.filter(|affix| !affix.is_empty()) {
            return Err(unsupported(field, &affix));
        }
    }
    if json.added_tokens.len() > ADDED_TOKENS_MAX {
        let (value, limit) = (json.added_tokens.len(), ADDED_TOKENS_MAX);
        return Err(TokenizerError::OverLimit { file: file.to_owned(), field: "added tokens", value, limit });
    }
    if model.merges.len() > MERGES_MAX {
        let (value, limit) = (model.merges.len(), MERGES_MAX);
        return Err(TokenizerError::OverLimit { file: file.to_owned(), field: "merges", value, limit });
    }

    let mut steps = Steps::default();
    steps.check(file, "normalizer", json.normalizer.as_ref(), &NORMALIZERS, 0)?;
    steps.check(file, "pre-tokenizer", json.pre_tokenizer.as_ref(), &PRE_TOKENIZERS, 0)?;
    let byte_fallback = model.byte_fallback.unwrap_or(false);
    let scheme = match (steps.byte_level, byte_fallback || steps.metaspace) {
        (true, false) => Scheme::ByteLevel,
        (false, true) => Scheme::SentencePiece,
        (true, true) => return Err(unsupported("pre-tokenizer", "ByteLevel together with byte fallback")),
        (false, false) => return Err(unsupported("pre-tokenizer", "neither ByteLevel nor Metaspace")),
    };

    let merges = parse_merges(file, model.merges)?;
    let (tokens, ordinary, added) =
        join_tokens(file, model.vocab.0, json.added_tokens, &merges, model.unk_token.as_deref())?;
    let options = BpeOptions {
        unk_token: model.unk_token,
        fuse_unk: model.fuse_unk.unwrap_or(false),
        byte_fallback,
        ignore_merges: model.ignore_merges.unwrap_or(false),
    };
    check_bytes(file, scheme, &ordinary, &options)?;
    let (normalizer, pre_tokenizer) = guarded(file, || -> Result<_, serde_json::Error> {
        let normalizer: Option<NormalizerWrapper> =
            json.normalizer.map(serde_json::from_value).transpose()?;
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            json.pre_tokenizer.map(serde_json::from_value).transpose()?;
        Ok((normalizer, pre_tokenizer))
    })?
    .map_err(json_error)?;
    let first_token = json.post_processor.as_ref().and_then(|p| first_token(p, 0));
    let parts =
        PipelineParts { file: file.to_owned(), ordinary, merges, options, normalizer, pre_tokenizer, added };
    Ok(ParsedJson { scheme, tokens, parts, first_token })
}

/// Every byte of a text must end up in some token, or text would be lost without a word.
fn check_bytes(
    file: &str,
    scheme: Scheme,
    ordinary: &[(String, u32)],
    options: &BpeOptions,
) -> Result<(), TokenizerError> {
    let missing = match scheme {
        Scheme::ByteLevel => {
            let texts: HashSet<&str> = ordinary.iter().map(|(text, _)| text.as_str()).collect();
            let mut buffer = [0; 4];
            (0..=255u8).find(|&byte| {
                occurs_in_utf8(byte) && !texts.contains(&*char_of_byte(byte).encode_utf8(&mut buffer))
            })
        }
        Scheme::SentencePiece if options.byte_fallback => missing_byte_piece(ordinary),
        Scheme::SentencePiece => None,
    };
    match missing {
        None => Ok(()),
        Some(byte) => Err(TokenizerError::MissingByte { file: file.to_owned(), byte }),
    }
}

fn parse_merges(file: &str, merges: Vec<MergeJson>) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut out = Vec::with_capacity(merges.len());
    for (index, merge) in merges.into_iter().enumerate() {
        match merge {
            MergeJson::Pair(left, right) => out.push((left, right)),
            MergeJson::Joined(text) => out.push(split_merge(file, index, text)?),
        }
    }
    Ok(out)
}

/// A merge written as `left right`; the older form, in which no token can hold a space.
pub(super) fn split_merge(
    file: &str,
    index: usize,
    text: String,
) -> Result<(String, String), TokenizerError> {
    match text.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(TokenizerError::Merge { file: file.to_owned(), index, merge: text }),
    }
}

type Tokens = Vec<(u32, String, TokenKind)>;

/// One list of all tokens; those the encoder may produce; those matched literally.
fn join_tokens(
    file: &str,
    vocab: Vec<(String, u32)>,
    added: Vec<AddedJson>,
    merges: &[(String, String)],
    unk_token: Option<&str>,
) -> Result<(Tokens, Vec<(String, u32)>, Vec<AddedToken>), TokenizerError> {
    let mut kinds: HashMap<&str, (u32, TokenKind)> = HashMap::new();
    for token in &added {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        if kinds.insert(&token.content, (token.id, kind)).is_some() {
            let (token, id) = (token.content.clone(), token.id);
            return Err(TokenizerError::DuplicateToken { file: file.to_owned(), token, id });
        }
    }
    // A control token that merges build up has to stay in the encoder's table; published files have none.
    let in_merges: HashSet<String> = merges
        .iter()
        .flat_map(|(left, right)| [left.clone(), right.clone(), format!("{left}{right}")])
        .collect();
    let mut tokens = Vec::with_capacity(vocab.len() + added.len());
    let mut ordinary = Vec::with_capacity(vocab.len());
    let mut in_vocab = HashSet::new();
    for (text, id) in vocab {
        match kinds.get(text.as_str()) {
            Some(&(added_id, _)) if added_id != id => {
                return Err(TokenizerError::DuplicateToken { file: file.to_owned(), token: text, id });
            }
            Some(&(_, kind)) => {
                in_vocab.insert(id);
                tokens.push((id, text.clone(), kind));
                let is_needed = in_merges.contains(&text) || unk_token == Some(text.as_str());
                if kind == TokenKind::UserDefined || is_needed {
                    ordinary.push((text, id));
                }
            }
            None => {
                tokens.push((id, text.clone(), TokenKind::Normal));
                ordinary.push((text, id));
            }
        }
    }
    let outside = added.iter().filter(|token| !in_vocab.contains(&token.id));
    tokens.extend(outside.map(|token| {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        (token.id, token.content.clone(), kind)
    }));
    let added = added.into_iter().map(AddedJson::into_token).collect();
    Ok((tokens, ordinary, added))
}

/// The token that a template post-processor puts first, if it is a special one.
fn first_token(processor: &Value, depth: usize) -> Option<String> {
    if depth > STEP_DEPTH_MAX {
        return None;
    }
    match processor.get("type")?.as_str()? {
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(|p| first_token(p, depth + 1)),
        "TemplateProcessing" => {
            let first = processor.get("single")?.as_array()?.first()?;
            Some(first.get("SpecialToken")?.get("id")?.as_str()?.to_owned())
        }
        _ => None,
    }
}

const NORMALIZERS: [&str; 10] =
    ["Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "Strip", "StripAccents"];
const PRE_TOKENIZERS: [&str; 8] =
    ["Sequence", "ByteLevel", "Split", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"];

/// What the steps of a tokenizer are made of.
#[derive(Default)]
struct Steps {
    count: usize,
    byte_level: bool,
    metaspace: bool,
}

impl Steps {
    /// Checks the types of all steps, their number, nesting and patterns.
    fn check(
        &mut self,
        file: &str,
        field: &'static str,
        step: Option<&Value>,
        known: &[&str],
        depth: usize,
    ) -> Result<(), TokenizerError> {
        let Some(step) = step else { return Ok(()) };
        let over_limit =
            |field, value, limit| TokenizerError::OverLimit { file: file.to_owned(), field, value, limit };
        self.count += 1;
        if self.count > STEPS_MAX {
            return Err(over_limit("steps of the tokenizer", self.count, STEPS_MAX));
        }
        if depth > STEP_DEPTH_MAX {
            return Err(over_limit("nesting of the tokenizer's steps", depth, STEP_DEPTH_MAX));
        }
        let Some(kind) = step.get("type").and_then(Value::as_str) else {
            let field = format!("{field}.type");
            return Err(TokenizerError::WrongType { file: file.to_owned(), field, expected: "a string" });
        };
        if !known.contains(&kind) {
            return Err(TokenizerError::Unsupported { file: file.to_owned(), field, name: kind.to_owned() });
        }
        let text_of = |value: &Value| value.as_str().map_or(0, str::len);
        let pattern = step.get("pattern").map_or(0, |p| match p {
            Value::Object(map) => map.values().map(text_of).max().unwrap_or(0),
            other => text_of(other),
        });
        if pattern > PATTERN_BYTES_MAX {
            return Err(over_limit("bytes of a pattern", pattern, PATTERN_BYTES_MAX));
        }
        self.byte_level |= kind == "ByteLevel";
        let writes_metaspace =
            |key: &str| step.get(key).and_then(Value::as_str).is_some_and(|s| s.contains('\u{2581}'));
        self.metaspace |= kind == "Metaspace" || writes_metaspace("content") || writes_metaspace("prepend");
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

#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Root {
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    #[serde(default, rename = "decoder")]
    _decoder: Option<IgnoredAny>,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedJson {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl AddedJson {
    fn into_token(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

#[derive(Deserialize)]
struct ModelJson {
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: VocabJson,
    merges: Vec<MergeJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Joined(String),
    Pair(String, String),
}

/// The vocabulary as a list, so that a text given twice is seen.
struct VocabJson(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token texts to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabJson, A::Error> {
                let mut entries: Vec<(String, u32)> = Vec::new();
                let mut seen = HashSet::new();
                while let Some((text, id)) = map.next_entry::<String, u32>()? {
                    if !seen.insert(text.clone()) {
                        return Err(A::Error::custom(format_args!("token {text:?} is given twice")));
                    }
                    entries.push((text, id));
                }
                Ok(VocabJson(entries))
            }
        }
        deserializer.deserialize_map(VocabVisitor)
    }
}
