//! The tokenizer in a GGUF model's metadata.

use tokenizers::AddedToken;
use tokenizers::normalizers::{Prepend, Replace};

use super::error::{TokenizerProblem, check_limit};
use super::infill::InfillIds;
use super::limits::{ADDED_TOKENS_MAX, VOCAB_SIZE_MAX};
use super::pipeline::{BpeOptions, MERGES_MAX, ModelParts, PipelineParts};
use super::steps::NormalizerStep;
use super::tokenizer::{Spec, Tokenizer};
use super::vocab::{Scheme, TokenKind};
use super::{json, pre, spm};
use refrain_containers::gguf::{GgufArray, GgufFile, GgufValue};
use refrain_trees::TokenId;

/// `tokenizer.ggml.token_type`.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

pub(super) fn from_gguf(gguf: &GgufFile) -> Result<Tokenizer, TokenizerProblem> {
    let keys = Keys { gguf };
    let model = keys.required("model", "a string", GgufValue::as_str)?;
    let texts = keys.required("tokens", "a list of strings", |v| v.as_array()?.as_strings())?;
    check_limit(gguf.name(), "tokens", texts.len(), VOCAB_SIZE_MAX)?;
    let types = token_types(&keys, texts.len())?;
    let tokens = tokens(texts, &types);
    let Encoder { scheme, parts, adds_bos, inserts_space } = match model {
        "gpt2" => byte_level(&keys, &tokens)?,
        "llama" => scored(&keys, &tokens, &types)?,
        "gemma4" => merged(&keys, &tokens, &types)?,
        other => return Err(keys.unsupported("tokenizer (tokenizer.ggml.model)", other)),
    };
    let eos = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let eos = eos.iter().filter_map(|key| keys.id(key, tokens.len()).transpose());
    let adds_bos = match (model, keys.get("add_bos_token", "a bool", GgufValue::as_bool)?) {
        // The first files of this kind say no by mistake; llama.cpp does not follow them either.
        ("gemma4", _) => true,
        (_, stated) => stated.unwrap_or(adds_bos),
    };
    // llama.cpp's defaults for files that do not state them.
    let is_control =
        |id: u32| tokens.get(id as usize).is_some_and(|(_, _, kind)| *kind == TokenKind::Control);
    let default = |id: u32| (model == "llama" && is_control(id)).then_some(TokenId(id));
    let bos = keys.id("bos_token_id", tokens.len())?.or(default(1));
    if adds_bos && bos.is_none() {
        let missing = "tokenizer.ggml.bos_token_id (each prompt begins with this token)".to_owned();
        return Err(TokenizerProblem::Missing { file: keys.file(), missing });
    }
    let mut eos: Vec<TokenId> = eos.collect::<Result<_, _>>()?;
    if keys.gguf.get("tokenizer.ggml.eos_token_id").is_none() {
        eos.extend(default(2).filter(|_| bos != default(2)));
    }
    Tokenizer::build(Spec {
        scheme,
        strips_first_space: inserts_space,
        bos,
        adds_bos,
        closing: None,
        eos,
        template: keys.template()?,
        infill: keys.infill(tokens.len())?,
        parts,
        tokens,
    })
}

/// The encoder of one kind of tokenizer.
struct Encoder {
    scheme: Scheme,
    parts: PipelineParts,
    /// The prompt begins with BOS, unless the file states otherwise.
    adds_bos: bool,
    /// The encoder puts a space before a text.
    inserts_space: bool,
}

type Tokens = Vec<(u32, String, TokenKind)>;

fn tokens(texts: &[String], types: &[u64]) -> Tokens {
    let kinds = types.iter().map(|ty| match *ty {
        CONTROL | UNKNOWN => TokenKind::Control,
        USER_DEFINED => TokenKind::UserDefined,
        UNUSED => TokenKind::Unused,
        _ => TokenKind::Normal,
    });
    // At most VOCAB_SIZE_MAX entries, so the ids fit.
    texts.iter().zip(kinds).enumerate().map(|(id, (text, kind))| (id as u32, text.clone(), kind)).collect()
}

fn token_types(keys: &Keys<'_>, n_tokens: usize) -> Result<Vec<u64>, TokenizerProblem> {
    let types = keys.get("token_type", "a list of whole numbers", |v| v.as_array()?.to_u64s())?;
    let Some(types) = types else { return Ok(vec![1; n_tokens]) };
    if types.len() != n_tokens {
        let (found, expected) = (types.len(), n_tokens);
        let file = keys.file();
        return Err(TokenizerProblem::WrongCount {
            file,
            field: "tokenizer.ggml.token_type",
            found,
            expected,
        });
    }
    Ok(types)
}

fn byte_level(keys: &Keys<'_>, tokens: &Tokens) -> Result<Encoder, TokenizerProblem> {
    let file = keys.file();
    let Some(name) = keys.get("pre", "a string", GgufValue::as_str)? else {
        return Err(TokenizerProblem::NoPreTokenizer { file, known: pre::names() });
    };
    let family = pre::family(&file, name)?;
    let options = BpeOptions { ignore_merges: family.ignore_merges, ..BpeOptions::default() };
    let parts = PipelineParts {
        file,
        model: ModelParts::Bpe { ordinary: ordinary(tokens), merges: keys.merges()?, options },
        normalizer: family.normalizer,
        pre_tokenizer: family.pre_tokenizer,
        pre_tokenizer_inside: None,
        added: added(keys, tokens, false)?,
    };
    Ok(Encoder { scheme: Scheme::ByteLevel, parts, adds_bos: family.adds_bos, inserts_space: false })
}

/// Sentence pieces with scores.
fn scored(keys: &Keys<'_>, tokens: &Tokens, types: &[u64]) -> Result<Encoder, TokenizerProblem> {
    let file = keys.file();
    let scores = keys.required("scores", "a list of floats", |v| v.as_array()?.as_f32s())?;
    if scores.len() != tokens.len() {
        let (found, expected) = (scores.len(), tokens.len());
        return Err(TokenizerProblem::WrongCount { file, field: "tokenizer.ggml.scores", found, expected });
    }
    let ordinary = ordinary(tokens);
    let pieces: Vec<(&str, f32)> = ordinary
        .iter()
        .map(|(text, id)| (text.as_str(), scores.get(*id as usize).copied().unwrap_or(0.0)))
        .collect();
    let merges = spm::merges(&pieces).map_err(|e| TokenizerProblem::MergesTooLarge {
        file: keys.file(),
        bytes: e.bytes,
        limit: e.limit,
    })?;
    check_limit(keys.gguf.name(), "merges made from scores", merges.len(), MERGES_MAX)?;
    let inserts_space = keys.get("add_space_prefix", "a bool", GgufValue::as_bool)?.unwrap_or(true);
    // The control tokens of Phi-3 take the white space that follows them. GGUF has no key for it; llama.cpp knows the
    // model by its name.
    let trims = keys.gguf.get("general.architecture").and_then(GgufValue::as_str) == Some("phi3");
    let added = added(keys, tokens, trims)?;
    sentence_piece(keys, tokens, types, SentencePieces { ordinary, merges, inserts_space, added })
}

/// Sentence pieces with merges: Gemma 4.
fn merged(keys: &Keys<'_>, tokens: &Tokens, types: &[u64]) -> Result<Encoder, TokenizerProblem> {
    // A merge may make a token that is also matched literally: a run of spaces or of line feeds.
    let spelled = |kind: &TokenKind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined);
    let ordinary = tokens.iter().filter(|(_, _, kind)| spelled(kind));
    let ordinary = ordinary.map(|(id, text, _)| (text.clone(), *id)).collect();
    let added = added(keys, tokens, false)?;
    let pieces = SentencePieces { ordinary, merges: keys.merges()?, inserts_space: false, added };
    sentence_piece(keys, tokens, types, pieces)
}

struct SentencePieces {
    ordinary: Vec<(String, u32)>,
    merges: Vec<(String, String)>,
    inserts_space: bool,
    added: Vec<AddedToken>,
}

fn sentence_piece(
    keys: &Keys<'_>,
    tokens: &Tokens,
    types: &[u64],
    pieces: SentencePieces,
) -> Result<Encoder, TokenizerProblem> {
    let SentencePieces { mut ordinary, merges, inserts_space, added } = pieces;
    // If there is a piece for every byte, the encoder never produces the unknown token. The library still requires it
    // in its table.
    let unk = types.iter().position(|&ty| ty == UNKNOWN).and_then(|i| tokens.get(i));
    if let Some((id, text, _)) = unk {
        ordinary.push((text.clone(), *id));
    }
    let library =
        |e: tokenizers::Error| TokenizerProblem::Library { file: keys.file(), reason: e.to_string() };
    let mut normalizer = Vec::with_capacity(2);
    if inserts_space {
        normalizer.push(NormalizerStep::Library(Prepend::new("\u{2581}".to_owned()).into()));
    }
    normalizer.push(NormalizerStep::Library(Replace::new(" ", "\u{2581}").map_err(library)?.into()));
    let options = BpeOptions {
        unk_token: unk.map(|(_, text, _)| text.clone()),
        fuse_unk: true,
        byte_fallback: true,
        ignore_merges: false,
    };
    let parts = PipelineParts {
        file: keys.file(),
        model: ModelParts::Bpe { ordinary, merges, options },
        normalizer,
        pre_tokenizer: Vec::new(),
        pre_tokenizer_inside: None,
        added,
    };
    Ok(Encoder { scheme: Scheme::SentencePiece, parts, adds_bos: true, inserts_space })
}

fn ordinary(tokens: &Tokens) -> Vec<(String, u32)> {
    let ordinary = tokens.iter().filter(|(_, _, kind)| *kind == TokenKind::Normal);
    ordinary.map(|(id, text, _)| (text.clone(), *id)).collect()
}

/// Tokens that are matched literally. With `trims`, all but a few take the white space that follows them.
fn added(keys: &Keys<'_>, tokens: &Tokens, trims: bool) -> Result<Vec<AddedToken>, TokenizerProblem> {
    const UNTRIMMED: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
    let literal = |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
    let added = tokens.iter().filter(|(_, _, kind)| literal(kind));
    let added: Vec<AddedToken> = added
        .map(|(_, text, kind)| {
            AddedToken::from(text.clone(), *kind == TokenKind::Control)
                .normalized(false)
                .rstrip(trims && !UNTRIMMED.contains(&text.as_str()))
        })
        .collect();
    check_limit(keys.gguf.name(), "control and user-defined tokens", added.len(), ADDED_TOKENS_MAX)?;
    Ok(added)
}

/// Typed access to the keys under `tokenizer.ggml`.
struct Keys<'a> {
    gguf: &'a GgufFile,
}

impl<'a> Keys<'a> {
    fn file(&self) -> String {
        self.gguf.name().to_owned()
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, TokenizerProblem> {
        let field = format!("tokenizer.ggml.{key}");
        let Some(value) = self.gguf.get(&field) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(TokenizerProblem::WrongType { file: self.file(), field, expected }),
        }
    }

    fn required<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<T, TokenizerProblem> {
        self.get(key, expected, read)?.ok_or_else(|| TokenizerProblem::Missing {
            file: self.file(),
            missing: format!("tokenizer.ggml.{key}"),
        })
    }

    fn merges(&self) -> Result<Vec<(String, String)>, TokenizerProblem> {
        let merges = self.required("merges", "a list of strings", |v| v.as_array()?.as_strings())?;
        check_limit(self.gguf.name(), "merges", merges.len(), MERGES_MAX)?;
        let file = self.file();
        merges.iter().enumerate().map(|(i, text)| json::split_merge(&file, i, text.clone())).collect()
    }

    fn id(&self, key: &'static str, vocab_size: usize) -> Result<Option<TokenId>, TokenizerProblem> {
        let Some(id) = self.get(key, "a token id", GgufValue::as_u64)? else { return Ok(None) };
        match u32::try_from(id) {
            Ok(small) if (small as usize) < vocab_size => Ok(Some(TokenId(small))),
            _ => Err(TokenizerProblem::IdOutOfRange { file: self.file(), field: key, id, vocab_size }),
        }
    }

    /// The control tokens of prompts with a gap. Three have an older name too.
    fn infill(&self, vocab_size: usize) -> Result<InfillIds, TokenizerProblem> {
        let id = |key, older| match self.id(key, vocab_size)? {
            None => self.id(older, vocab_size),
            id => Ok(id),
        };
        Ok(InfillIds {
            prefix: id("fim_pre_token_id", "prefix_token_id")?,
            suffix: id("fim_suf_token_id", "suffix_token_id")?,
            middle: id("fim_mid_token_id", "middle_token_id")?,
            padding: self.id("fim_pad_token_id", vocab_size)?,
            repository: self.id("fim_rep_token_id", vocab_size)?,
            file: self.id("fim_sep_token_id", vocab_size)?,
        })
    }

    /// The default template: `tokenizer.chat_template`, a text. (Other templates have keys of their own.)
    fn template(&self) -> Result<Option<String>, TokenizerProblem> {
        let field = "tokenizer.chat_template";
        match self.gguf.get(field) {
            None => Ok(None),
            Some(GgufValue::String(text)) => Ok(Some(text.clone())),
            Some(GgufValue::Array(GgufArray::String(texts))) if texts.is_empty() => Ok(None),
            Some(_) => {
                let (file, field) = (self.file(), field.to_owned());
                Err(TokenizerProblem::WrongType { file, field, expected: "a string" })
            }
        }
    }

    fn unsupported(&self, field: &'static str, name: &str) -> TokenizerProblem {
        TokenizerProblem::Unsupported { file: self.file(), field, name: name.to_owned() }
    }
}
