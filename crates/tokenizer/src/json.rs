//! Reads `tokenizer.json`.
//!
//! The file is parsed here into plain lists and checked. Only then are its parts passed to the `tokenizers` library.
//! The library's own reader is not used for three reasons: it panics on some files, it keeps the last of two equal
//! keys, and it assigns other ids to added tokens if the file contradicts itself.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tokenizers::AddedToken;

use super::error::{TokenizerProblem, check_limit};
use super::json_steps::{Steps, first_token, last_token, without_first_space};
use super::limits::{ADDED_TOKENS_MAX, VOCAB_SIZE_MAX};
use super::pipeline::{BpeOptions, MERGES_MAX, ModelParts, PipelineParts, guarded};
use super::steps;
use super::unigram::UnigramParts;
use super::vocab::{CONTINUING, Scheme, TokenKind};
use super::wordpiece::WordPieceParts;

/// The checked content of a `tokenizer.json`.
pub(super) struct ParsedJson {
    pub(super) scheme: Scheme,
    pub(super) tokens: Vec<(u32, String, TokenKind)>,
    pub(super) parts: PipelineParts,
    /// The first token that the post-processor inserts before a text.
    pub(super) first_token: Option<String>,
    /// The last token that it appends to a text.
    pub(super) last_token: Option<String>,
    /// The encoder puts a space before a text.
    pub(super) inserts_space: bool,
}

pub(super) fn parse(text: &str, file: &str) -> Result<ParsedJson, TokenizerProblem> {
    let json_error =
        |e: serde_json::Error| TokenizerProblem::Json { file: file.to_owned(), reason: e.to_string() };
    // Checks the type first: other types have other fields, and "unsupported" is more helpful than "invalid".
    let probe: Probe = serde_json::from_str(text).map_err(json_error)?;
    match probe.model.kind.as_deref() {
        None | Some("BPE") => {
            let json: Root<BpeJson> = serde_json::from_str(text).map_err(json_error)?;
            parse_with(file, json, bpe)
        }
        Some("Unigram") => {
            let json: Root<UnigramJson> = serde_json::from_str(text).map_err(json_error)?;
            parse_with(file, json, unigram)
        }
        Some("WordPiece") => {
            let json: Root<WordPieceJson> = serde_json::from_str(text).map_err(json_error)?;
            parse_with(file, json, word_piece)
        }
        Some(other) => {
            let (file, name) = (file.to_owned(), other.to_owned());
            Err(TokenizerProblem::Unsupported { file, field: "tokenizer model", name })
        }
    }
}

/// The part of a file that depends on the type of its model.
struct ParsedModel {
    scheme: Scheme,
    /// All tokens.
    tokens: Vec<(u32, String, TokenKind)>,
    model: ModelParts,
}

/// The checks of all types of model around those of one type.
fn parse_with<M>(
    file: &str,
    json: Root<M>,
    parse_model: impl FnOnce(&str, M, &[AddedJson], &Steps) -> Result<ParsedModel, TokenizerProblem>,
) -> Result<ParsedJson, TokenizerProblem> {
    check_limit(file, "added tokens", json.added_tokens.len(), ADDED_TOKENS_MAX)?;
    let mut checked = Steps::default();
    checked.check_normalizer(file, json.normalizer.as_ref())?;
    checked.check_pre_tokenizer(file, json.pre_tokenizer.as_ref())?;
    let ParsedModel { scheme, tokens, model } = parse_model(file, json.model, &json.added_tokens, &checked)?;
    let added = json.added_tokens.into_iter().map(AddedJson::into_token).collect();
    let inside = json.pre_tokenizer.clone().map(without_first_space).filter(|_| checked.begins_once);
    let (normalizer, pre_tokenizer, pre_tokenizer_inside) = guarded(file, || -> Result<_, String> {
        let inside = inside.map(|inside| steps::pre_tokenizer(Some(inside))).transpose()?;
        Ok((steps::normalizer(json.normalizer)?, steps::pre_tokenizer(json.pre_tokenizer)?, inside))
    })?
    .map_err(|reason| TokenizerProblem::Json { file: file.to_owned(), reason })?;
    let first_token = json.post_processor.as_ref().and_then(|p| first_token(p, 0));
    let last_token = json.post_processor.as_ref().and_then(|p| last_token(p, 0));
    // Each token that begins a word stands for a space too.
    let inserts_space =
        scheme == Scheme::WordPiece || scheme == Scheme::SentencePiece && checked.inserts_space;
    let parts = PipelineParts {
        file: file.to_owned(),
        model,
        normalizer,
        pre_tokenizer,
        pre_tokenizer_inside,
        added,
    };
    Ok(ParsedJson { scheme, tokens, parts, first_token, last_token, inserts_space })
}

fn bpe(
    file: &str,
    model: BpeJson,
    added: &[AddedJson],
    steps: &Steps,
) -> Result<ParsedModel, TokenizerProblem> {
    let unsupported = |field, name: &str| TokenizerProblem::Unsupported {
        file: file.to_owned(),
        field,
        name: name.to_owned(),
    };
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
    check_limit(file, "merges", model.merges.len(), MERGES_MAX)?;
    let byte_fallback = model.byte_fallback.unwrap_or(false);
    let scheme = match (steps.byte_level, byte_fallback || steps.metaspace) {
        (true, false) => Scheme::ByteLevel,
        (false, true) => Scheme::SentencePiece,
        (true, true) => return Err(unsupported("pre-tokenizer", "ByteLevel together with byte fallback")),
        (false, false) => return Err(unsupported("pre-tokenizer", "neither ByteLevel nor Metaspace")),
    };
    let merges = parse_merges(file, model.merges)?;
    let Joined { tokens, ordinary } =
        join_tokens(file, model.vocab.0, added, &merges, model.unk_token.as_deref())?;
    let options = BpeOptions {
        unk_token: model.unk_token,
        fuse_unk: model.fuse_unk.unwrap_or(false),
        byte_fallback,
        ignore_merges: model.ignore_merges.unwrap_or(false),
    };
    Ok(ParsedModel { scheme, tokens, model: ModelParts::Bpe { ordinary, merges, options } })
}

fn unigram(
    file: &str,
    model: UnigramJson,
    added: &[AddedJson],
    steps: &Steps,
) -> Result<ParsedModel, TokenizerProblem> {
    if steps.byte_level {
        let (field, name) = ("pre-tokenizer", "ByteLevel before Unigram".to_owned());
        return Err(TokenizerProblem::Unsupported { file: file.to_owned(), field, name });
    }
    let vocab_size = model.vocab.len();
    check_limit(file, "tokens", vocab_size, VOCAB_SIZE_MAX)?;
    // Any text may have a character without a piece.
    let Some(unknown) = model.unk_id else {
        let (file, missing) = (file.to_owned(), "the unknown token (`model.unk_id`)".to_owned());
        return Err(TokenizerProblem::Missing { file, missing });
    };
    let Some(unknown) = u32::try_from(unknown).ok().filter(|&id| (id as usize) < vocab_size) else {
        let (file, field) = (file.to_owned(), "unk_id");
        return Err(TokenizerProblem::IdOutOfRange { file, field, id: unknown, vocab_size });
    };
    let mut added_ids = added_ids(file, added)?;
    let (mut tokens, mut pieces) = (Vec::with_capacity(vocab_size + added.len()), Vec::new());
    let mut min_score = f64::INFINITY;
    // At most VOCAB_SIZE_MAX entries, so the ids fit.
    for (id, (text, score)) in (0u32..).zip(model.vocab) {
        if !score.is_finite() {
            let reason = format!("the score of token {text:?} with id {id} is {score}");
            return Err(TokenizerProblem::Json { file: file.to_owned(), reason });
        }
        min_score = min_score.min(score);
        let kind = match added_ids.remove(text.as_str()) {
            None => TokenKind::Normal,
            Some((added_id, _)) if added_id != id => return Err(duplicate(file, &text, id)),
            Some((_, kind)) => kind,
        };
        // A control token is no piece, so that text cannot spell it.
        if kind != TokenKind::Control && id != unknown {
            pieces.push((text.clone(), id, score));
        }
        tokens.push((id, text, if id == unknown { TokenKind::Control } else { kind }));
    }
    let beyond = added.iter().filter(|token| added_ids.contains_key(token.content.as_str()));
    tokens.extend(beyond.map(|token| (token.id, token.content.clone(), token.kind())));
    let byte_fallback = model.byte_fallback.unwrap_or(false);
    let parts = UnigramParts { pieces, unknown, min_score, byte_fallback };
    Ok(ParsedModel { scheme: Scheme::SentencePiece, tokens, model: ModelParts::Unigram(parts) })
}

fn word_piece(
    file: &str,
    model: WordPieceJson,
    added: &[AddedJson],
    steps: &Steps,
) -> Result<ParsedModel, TokenizerProblem> {
    let unsupported = |field, name: &str| TokenizerProblem::Unsupported {
        file: file.to_owned(),
        field,
        name: name.to_owned(),
    };
    if steps.byte_level || steps.metaspace {
        return Err(unsupported("pre-tokenizer", "ByteLevel or Metaspace before WordPiece"));
    }
    // The vocabulary's bytes are those of this prefix.
    let prefix = model.continuing_subword_prefix.unwrap_or_else(|| CONTINUING.to_owned());
    if prefix != CONTINUING {
        return Err(unsupported("continuing_subword_prefix", &prefix));
    }
    check_limit(file, "tokens", model.vocab.0.len(), VOCAB_SIZE_MAX)?;
    let unk_token = model.unk_token.unwrap_or_else(|| "[UNK]".to_owned());
    let unknown = model.vocab.0.iter().find(|(text, _)| *text == unk_token).map(|(_, id)| *id);
    let Some(unknown) = unknown else {
        let missing = format!("the token {unk_token:?} (`unk_token`) in `model.vocab`");
        return Err(TokenizerProblem::Missing { file: file.to_owned(), missing });
    };
    let Joined { mut tokens, mut ordinary } = join_tokens(file, model.vocab.0, added, &[], None)?;
    ordinary.retain(|(_, id)| *id != unknown);
    // Of older files, the unknown token is no added one.
    tokens.iter_mut().filter(|(id, ..)| *id == unknown).for_each(|(_, _, kind)| *kind = TokenKind::Control);
    let word_chars_max = model.max_input_chars_per_word.unwrap_or(100);
    let parts = WordPieceParts { pieces: ordinary, unknown, prefix, word_chars_max };
    Ok(ParsedModel { scheme: Scheme::WordPiece, tokens, model: ModelParts::WordPiece(parts) })
}

/// Ids and kinds of the added tokens by text.
fn added_ids<'a>(
    file: &str,
    added: &'a [AddedJson],
) -> Result<HashMap<&'a str, (u32, TokenKind)>, TokenizerProblem> {
    let mut ids = HashMap::new();
    for token in added {
        if ids.insert(token.content.as_str(), (token.id, token.kind())).is_some() {
            return Err(duplicate(file, &token.content, token.id));
        }
    }
    Ok(ids)
}

fn duplicate(file: &str, token: &str, id: u32) -> TokenizerProblem {
    TokenizerProblem::DuplicateToken { file: file.to_owned(), token: token.to_owned(), id }
}

fn parse_merges(file: &str, merges: Vec<MergeJson>) -> Result<Vec<(String, String)>, TokenizerProblem> {
    let mut out = Vec::with_capacity(merges.len());
    for (index, merge) in merges.into_iter().enumerate() {
        match merge {
            MergeJson::Pair(left, right) => out.push((left, right)),
            MergeJson::Joined(text) => out.push(split_merge(file, index, text)?),
        }
    }
    Ok(out)
}

/// A merge written as `left right`, the older form. No token in it can contain a space.
pub(super) fn split_merge(
    file: &str,
    index: usize,
    text: String,
) -> Result<(String, String), TokenizerProblem> {
    match text.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(TokenizerProblem::Merge { file: file.to_owned(), index, merge: text }),
    }
}

/// The vocabulary combined with the added tokens.
struct Joined {
    /// All tokens.
    tokens: Vec<(u32, String, TokenKind)>,
    /// The tokens that the encoder may produce.
    ordinary: Vec<(String, u32)>,
}

fn join_tokens(
    file: &str,
    vocab: Vec<(String, u32)>,
    added: &[AddedJson],
    merges: &[(String, String)],
    unk_token: Option<&str>,
) -> Result<Joined, TokenizerProblem> {
    let added_ids = added_ids(file, added)?;
    // Control tokens are left out of the encoder's table, so that text cannot spell them. A control token built by
    // merges was an ordinary token first and must stay. Published vocabularies have none.
    let mut needed: HashSet<String> = merges
        .iter()
        .flat_map(|(left, right)| [left.clone(), right.clone(), format!("{left}{right}")])
        .filter(|text| added_ids.contains_key(text.as_str()))
        .collect();
    needed.extend(unk_token.map(str::to_owned));

    let mut joined = Joined { tokens: Vec::with_capacity(vocab.len() + added.len()), ordinary: Vec::new() };
    for (text, id) in vocab {
        match added_ids.get(text.as_str()) {
            None => {
                joined.tokens.push((id, text.clone(), TokenKind::Normal));
                joined.ordinary.push((text, id));
            }
            Some(&(added_id, _)) if added_id != id => return Err(duplicate(file, &text, id)),
            Some((_, kind)) => {
                if *kind == TokenKind::UserDefined || needed.contains(&text) {
                    joined.ordinary.push((text, id));
                }
            }
        }
    }
    joined.tokens.extend(added.iter().map(|token| (token.id, token.content.clone(), token.kind())));
    Ok(joined)
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
struct Root<M> {
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    #[serde(default, rename = "decoder")]
    _decoder: Option<IgnoredAny>,
    model: M,
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
    fn kind(&self) -> TokenKind {
        if self.special { TokenKind::Control } else { TokenKind::UserDefined }
    }

    fn into_token(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

#[derive(Deserialize)]
struct BpeJson {
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
struct UnigramJson {
    unk_id: Option<u64>,
    byte_fallback: Option<bool>,
    /// Texts with their scores; the id is the index.
    vocab: Vec<(String, f64)>,
}

#[derive(Deserialize)]
struct WordPieceJson {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    max_input_chars_per_word: Option<usize>,
    vocab: VocabJson,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Joined(String),
    Pair(String, String),
}

/// The vocabulary as a list, so that a duplicate text is detected.
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
