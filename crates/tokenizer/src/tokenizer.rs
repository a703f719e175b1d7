//! The tokenizer of a model.

use std::collections::HashMap;

use super::error::{TokenizerError, TokenizerProblem, check_limit};
use super::infill::{InfillIds, InfillTokens};
use super::limits::{ADDED_TOKEN_BYTES_MAX, ADDED_TOKENS_BYTES_MAX, TEXT_BYTES_MAX};
use super::memo::Memo;
use super::pipeline::{Pipeline, PipelineParts};
use super::reasoning::ReasoningMarkers;
use super::template::{ChatTemplate, SpecialTexts, TemplateError};
use super::vocab::{Scheme, TokenKind, Vocab};
use refrain_kernels::has_room;
use refrain_trees::TokenId;

/// Memory of a token beside its text, in the tables of the tokenizer and of its encoder (about 400 bytes, measured).
const TOKEN_MEMORY: usize = 512;

/// Tokens that end a turn or a text in published models, even if the file does not list them as such.
const END_TOKENS: [&str; 11] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|return|>",
    "<|call|>",
    MESSAGE_END,
];
/// Ends a turn, except in a vocabulary with the tokens [`ANSWER_ENDS`]. There it ends one message of a turn, such as
/// the reasoning before the answer, whatever the file says.
const MESSAGE_END: &str = "<|end|>";
const ANSWER_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];

/// Whether the text of a control token is encoded as that token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpecialTokens {
    /// Text such as `<|im_end|>` becomes the control token. For text that the program itself has composed.
    Parse,
    /// Text such as `<|im_end|>` is encoded as letters. For all input from users, files and the web.
    AsText,
}

/// A model's tokenizer: immutable, shared by threads.
///
/// Building one from files of n bytes takes at most [`FILE_MEMORY_MULTIPLE`](super::FILE_MEMORY_MULTIPLE) × n + [`FILE_MEMORY_SLACK`](super::FILE_MEMORY_SLACK) bytes of
/// memory, for any content. A vocabulary that needs more is refused before the memory is allocated.
///
/// Holds the vocabulary three times (texts to ids in the encoder and here, bytes of all tokens): about 30 MB for 150
/// 000 tokens. The encoder keeps a cache of up to 10 000 short pieces per thread, and the newest turns of conversations, up to 2 MiB.
pub struct Tokenizer {
    pub(super) pipeline: Pipeline,
    /// Of the pieces of conversations that follow a control token.
    pub(super) memo: Memo,
    vocab: Vocab,
    missing_bytes: Vec<u8>,
    scheme: Scheme,
    strips_first_space: bool,
    bos: Option<TokenId>,
    adds_bos: bool,
    pub(super) closing: Option<TokenId>,
    eos: Vec<TokenId>,
    pub(super) special_texts: SpecialTexts,
    /// Texts of all control tokens, and their first characters.
    pub(super) controls: Vec<String>,
    pub(super) control_starts: Vec<char>,
    pub(super) template: Option<Result<ChatTemplate, TemplateError>>,
    pub(super) reasoning: Option<ReasoningMarkers>,
    pub(super) infill: Option<InfillTokens>,
    fingerprint: u64,
}

impl Tokenizer {
    /// Whether the model has a chat template. (One that does not parse counts: encoding a turn reports it.)
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some() || self.chat_template_error().is_some()
    }

    pub(super) fn build(spec: Spec) -> Result<Self, TokenizerProblem> {
        let file = spec.parts.file.clone();
        for token in &spec.parts.added {
            check_limit(&file, "bytes of an added token", token.content.len(), ADDED_TOKEN_BYTES_MAX)?;
        }
        let added_bytes: usize = spec.parts.added.iter().map(|token| token.content.len()).sum();
        check_limit(&file, "bytes of all added tokens", added_bytes, ADDED_TOKENS_BYTES_MAX)?;
        let texts: usize = spec.tokens.iter().map(|(_, text, _)| text.len() + TOKEN_MEMORY).sum();
        if !has_room(texts) {
            return Err(TokenizerProblem::Memory { file, bytes: texts });
        }
        let vocab = Vocab::new(&file, spec.scheme, spec.tokens)?;
        let missing_bytes = spec
            .parts
            .model
            .missing_bytes(spec.scheme)
            .map_err(|byte| TokenizerProblem::MissingByte { file: file.clone(), byte })?;
        let controls = spec.parts.added.iter().filter(|token| token.special);
        let controls: Vec<String> = controls.map(|token| token.content.clone()).collect();
        let pipeline = Pipeline::new(spec.parts, spec.scheme, &vocab)?;
        let mut eos = Vec::new();
        let control = |text: &str| vocab.id(text).filter(|&id| vocab.kind(id) == Some(TokenKind::Control));
        let has_messages = ANSWER_ENDS.into_iter().all(|text| control(text).is_some());
        let message_end = control(MESSAGE_END).filter(|_| has_messages);
        for id in spec.eos.into_iter().chain(END_TOKENS.into_iter().filter_map(control)) {
            if Some(id) != message_end && !eos.contains(&id) {
                eos.push(id);
            }
        }
        let infill = InfillTokens::find(&vocab, &spec.infill);
        if let Some(&id) =
            eos.iter().chain(&spec.bos).chain(&spec.closing).find(|id| id.index() >= vocab.len())
        {
            let (id, vocab_size) = (id.0.into(), vocab.len());
            return Err(TokenizerProblem::IdOutOfRange { file, field: "BOS or EOS id", id, vocab_size });
        }
        let text_of = |id: Option<TokenId>| {
            let bytes = id.and_then(|id| vocab.bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let special_texts = SpecialTexts { bos: text_of(spec.bos), eos: text_of(eos.first().copied()) };
        let template = spec.template.as_deref();
        let reasoning =
            ReasoningMarkers::find(|text| vocab.id(text).is_some(), |text| control(text).is_some(), template);
        let fingerprint = vocab.fingerprint();
        let mut control_starts: Vec<char> = controls.iter().filter_map(|text| text.chars().next()).collect();
        control_starts.sort_unstable();
        control_starts.dedup();
        Ok(Self {
            pipeline,
            memo: Memo::default(),
            vocab,
            missing_bytes,
            scheme: spec.scheme,
            strips_first_space: spec.strips_first_space,
            bos: spec.bos,
            adds_bos: spec.adds_bos && spec.bos.is_some(),
            closing: spec.closing,
            eos,
            special_texts,
            controls,
            control_starts,
            template: spec.template.map(ChatTemplate::new),
            reasoning,
            infill,
            fingerprint,
        })
    }

    /// Encodes a text. No BOS is inserted: see [`Tokenizer::adds_bos`].
    ///
    /// # Errors
    /// - Kind [`OverLimit`](refrain_files::ErrorKind::OverLimit): the text is longer than [`TEXT_BYTES_MAX`], or its patterns take too
    ///   many steps.
    /// - Kind [`Unsupported`](refrain_files::ErrorKind::Unsupported): the library failed on this text.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<TokenId>, TokenizerError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerProblem::TextTooLong { len: text.len(), limit: TEXT_BYTES_MAX }.into());
        }
        Ok(match special {
            SpecialTokens::Parse => self.pipeline.encode_parsed(text)?,
            SpecialTokens::AsText => self.pipeline.encode_as_text(text)?,
        })
    }

    /// The largest token id plus one. The model's own vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Bytes without a token in a byte-level vocabulary, in ascending order. Most vocabularies have none. Such bytes
    /// are control characters, or the first bytes of unassigned characters. [`Tokenizer::encode`] drops them, and
    /// keeps the other bytes of such a character: the model was trained on text without them.
    pub fn missing_bytes(&self) -> &[u8] {
        &self.missing_bytes
    }

    /// The bytes that a token stands for. For a control token, the bytes of its own text. `None` if the id has no
    /// token.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// The token with exactly this text in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.vocab.id(text)
    }

    /// Whether a token is a control token, which stands for no text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// The text of tokens. Control tokens are left out, and invalid UTF-8 is replaced.
    ///
    /// A llama-style sentence-piece tokenizer inserts a space before every text. This method removes that first
    /// space.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !self.is_special(id) {
                bytes.extend_from_slice(self.token_bytes(id).unwrap_or_default());
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ') {
            Some(rest) if self.strips_first_space => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// The text of an answer for use as a turn of a conversation. If encoding a turn inserts a space before it, the
    /// answer's first space is removed.
    ///
    /// A llama-style sentence-piece tokenizer inserts a space before every text, also after a control token. A
    /// model's answer therefore begins with a space. Without this method, encoding the conversation again would
    /// double that space.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    pub fn answer_text<'a>(&self, text: &'a str) -> Result<&'a str, TokenizerError> {
        let Some(rest) = text.strip_prefix(' ').filter(|_| self.strips_first_space) else { return Ok(text) };
        // `Metaspace` may be configured to insert the space before the first text only.
        let is_put_inside = self.pipeline.encode_as_text_inside("a")? == self.pipeline.encode_as_text("a")?;
        Ok(if is_put_inside { rest } else { text })
    }

    /// Whether the encoder puts a space before every text.
    pub(super) fn inserts_space(&self) -> bool {
        self.strips_first_space
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// Whether a plain prompt begins with [`Tokenizer::bos`]. Chat templates write BOS themselves.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// All tokens that end a generation. The first is the one named by the files.
    pub fn eos(&self) -> &[TokenId] {
        &self.eos
    }

    /// The parse error of the model's chat template, with the line. `None` if the template is valid or does not
    /// exist. Despite this error the tokenizer encodes plain text; [`Tokenizer::encode_chat`] returns the error.
    pub fn chat_template_error(&self) -> Option<TokenizerError> {
        Some(self.template.as_ref()?.as_ref().err()?.clone().into())
    }

    /// A hash of the vocabulary (ids, bytes, control tokens). It does not depend on the container format. Tokenizers
    /// with equal fingerprints can exchange token ids.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("scheme", &self.scheme)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

/// The inputs of a tokenizer, independent of the container format.
pub(super) struct Spec {
    pub(super) parts: PipelineParts,
    pub(super) scheme: Scheme,
    pub(super) tokens: Vec<(u32, String, TokenKind)>,
    pub(super) strips_first_space: bool,
    pub(super) bos: Option<TokenId>,
    pub(super) adds_bos: bool,
    pub(super) closing: Option<TokenId>,
    pub(super) eos: Vec<TokenId>,
    pub(super) template: Option<String>,
    pub(super) infill: InfillIds,
}

/// Maps the text of each token in a list to its id.
pub(super) fn ids_of(tokens: &[(u32, String, TokenKind)]) -> HashMap<&str, u32> {
    tokens.iter().map(|(id, text, _)| (text.as_str(), *id)).collect()
}
