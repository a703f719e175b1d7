//! Text to token ids: the steps of the `tokenizers` library, composed here.
//!
//! The library's own `Tokenizer` is not used, for three reasons. It puts control tokens into the same table as
//! ordinary tokens, so plain text could spell them. It needs a second copy of everything to encode text with and
//! without control tokens. It builds an encoding with offsets that have no use here. Parts of the library panic on
//! some vocabularies, so input is checked first, and every call is guarded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{self, BPE, BpeTrainer};
use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    Token,
};

use super::error::TokenizerProblem;
use super::regexp::Budget;
use super::steps::{CountedNormalizer, NormalizerStep, PreTokenizerStep, pre_tokenize};
use super::unigram::{Unigram, UnigramParts};
use super::vocab::{self, Scheme, Vocab};
use super::wordpiece::{WordPiece, WordPieceParts};
use refrain_files::catch_quietly;
use refrain_trees::TokenId;

/// Maximum number of merges (published: about 500 000).
pub const MERGES_MAX: usize = 1 << 22;

/// Settings of the byte-pair encoder from the files.
#[derive(Debug, Default)]
pub(super) struct BpeOptions {
    pub(super) unk_token: Option<String>,
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
}

/// The inputs of the model that cuts a word into tokens.
pub(super) enum ModelParts {
    Bpe {
        /// Tokens that the encoder may produce: text and id.
        ordinary: Vec<(String, u32)>,
        merges: Vec<(String, String)>,
        options: BpeOptions,
    },
    Unigram(UnigramParts),
    WordPiece(WordPieceParts),
}

impl ModelParts {
    /// As [`vocab::missing_bytes`], for the tokens that the encoder may produce.
    pub(super) fn missing_bytes(&self, scheme: Scheme) -> Result<Vec<u8>, u8> {
        match self {
            Self::Bpe { ordinary, options, .. } => {
                let texts = ordinary.iter().map(|(text, _)| text.as_str());
                vocab::missing_bytes(scheme, options.byte_fallback, texts)
            }
            Self::Unigram(parts) => {
                let texts = parts.pieces.iter().map(|(text, ..)| text.as_str());
                vocab::missing_bytes(scheme, parts.byte_fallback, texts)
            }
            // A word with a character that no piece has is unknown.
            Self::WordPiece(_) => Ok(Vec::new()),
        }
    }
}

/// The inputs of a pipeline.
pub(super) struct PipelineParts {
    pub(super) file: String,
    pub(super) model: ModelParts,
    pub(super) normalizer: Vec<NormalizerStep>,
    pub(super) pre_tokenizer: Vec<PreTokenizerStep>,
    /// The pre-tokenizer for a piece that follows a control token, if it is another one.
    pub(super) pre_tokenizer_inside: Option<Vec<PreTokenizerStep>>,
    /// Tokens matched literally, including control tokens (`special`).
    pub(super) added: Vec<AddedToken>,
}

pub(super) struct Pipeline {
    file: String,
    normalizer: Vec<NormalizerStep>,
    pre_tokenizer: Vec<PreTokenizerStep>,
    pre_tokenizer_inside: Option<Vec<PreTokenizerStep>>,
    model: CutModel,
    /// Matches control tokens and user-defined tokens.
    parse: AddedVocabulary,
    /// Matches user-defined tokens only.
    as_text: AddedVocabulary,
    /// Matches control tokens only.
    controls: AddedVocabulary,
}

/// Cuts a word into tokens.
enum CutModel {
    Bpe(Box<BPE>),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

impl CutModel {
    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::Bpe(bpe) => bpe.tokenize(word),
            Self::Unigram(unigram) => Ok(unigram.tokenize(word)),
            Self::WordPiece(pieces) => Ok(pieces.tokenize(word)),
        }
    }

    fn bpe(
        file: &str,
        scheme: Scheme,
        ordinary: Vec<(String, u32)>,
        merges: Vec<(String, String)>,
        options: BpeOptions,
    ) -> Result<Self, TokenizerProblem> {
        let ordinary: bpe::Vocab = ordinary.into_iter().collect();
        check_merges(file, &merges, &ordinary)?;
        if let Some(unk) = options.unk_token.as_ref().filter(|unk| !ordinary.contains_key(*unk)) {
            let missing = format!("the token {unk:?} (`unk_token`)");
            return Err(TokenizerProblem::Missing { file: file.to_owned(), missing });
        }
        guarded(file, || {
            let mut builder = BPE::builder()
                .fuse_unk(options.fuse_unk)
                .byte_fallback(options.byte_fallback)
                .ignore_merges(options.ignore_merges)
                .vocab_and_merges(ordinary, merges);
            // A byte-level vocabulary has a token for every byte of real text. The character of another byte may be
            // the text of a control token, which no text may spell.
            if let Some(unk_token) = options.unk_token.filter(|_| scheme == Scheme::SentencePiece) {
                builder = builder.unk_token(unk_token);
            }
            let library = |e: tokenizers::Error| TokenizerProblem::Library {
                file: file.to_owned(),
                reason: e.to_string(),
            };
            Ok(Self::Bpe(Box::new(builder.build().map_err(library)?)))
        })?
    }
}

impl Pipeline {
    pub(super) fn new(parts: PipelineParts, scheme: Scheme, vocab: &Vocab) -> Result<Self, TokenizerProblem> {
        let PipelineParts { file, model, normalizer, pre_tokenizer, pre_tokenizer_inside, added } = parts;
        let model = match model {
            ModelParts::Bpe { ordinary, merges, options } => {
                CutModel::bpe(&file, scheme, ordinary, merges, options)?
            }
            ModelParts::Unigram(parts) => CutModel::Unigram(Unigram::new(&file, parts)?),
            ModelParts::WordPiece(parts) => CutModel::WordPiece(WordPiece::new(&file, parts)?),
        };
        let library = |reason: String| TokenizerProblem::Library { file: file.clone(), reason };
        guarded(&file, || {
            let ids = Ids(vocab.ids());
            let mut parse = AddedVocabulary::new();
            let mut as_text = AddedVocabulary::new();
            let mut controls = AddedVocabulary::new();
            let (control_tokens, user_defined): (Vec<_>, Vec<_>) =
                added.iter().cloned().partition(|token| token.special);
            let subsets =
                [(&mut controls, control_tokens), (&mut as_text, user_defined), (&mut parse, added)];
            for (vocabulary, tokens) in subsets {
                let len: usize = tokens.iter().map(|token: &AddedToken| token.content.len()).sum();
                let budget = Budget::new(len);
                let counted = CountedNormalizer { steps: &normalizer, budget: &budget };
                vocabulary
                    .add_tokens(tokens, &ids, (!normalizer.is_empty()).then_some(&counted))
                    .map_err(|e| library(e.to_string()))?;
                if budget.is_spent() {
                    return Err(TokenizerProblem::TooManySteps { file: file.clone(), len });
                }
            }
            let file = file.clone();
            Ok(Self {
                file,
                normalizer,
                pre_tokenizer,
                pre_tokenizer_inside,
                model,
                parse,
                as_text,
                controls,
            })
        })?
    }

    /// The tokenizer's file, for error messages.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Splits a text at control tokens only.
    pub(super) fn split_at_controls(&self, text: &str) -> Result<Vec<Piece>, TokenizerProblem> {
        guarded(&self.file, || {
            let pieces = self.controls.extract_and_normalize::<NormalizerWrapper>(None, text);
            let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let pieces =
                splits.iter().map(|(text, _, tokens)| match tokens.as_ref().and_then(|t| t.first()) {
                    Some(token) => Piece::Control(TokenId(token.id)),
                    None => Piece::Text((*text).to_owned()),
                });
            pieces.collect()
        })
    }

    /// Encodes a text whose control tokens become their ids.
    pub(super) fn encode_parsed(&self, text: &str) -> Result<Vec<TokenId>, TokenizerProblem> {
        self.encode(text, &self.parse, &self.pre_tokenizer)
    }

    /// Encodes a text whose control tokens are encoded as letters.
    pub(super) fn encode_as_text(&self, text: &str) -> Result<Vec<TokenId>, TokenizerProblem> {
        self.encode(text, &self.as_text, &self.pre_tokenizer)
    }

    /// As [`Pipeline::encode_as_text`], for a piece that follows a control token.
    pub(super) fn encode_as_text_inside(&self, text: &str) -> Result<Vec<TokenId>, TokenizerProblem> {
        self.encode(text, &self.as_text, self.pre_tokenizer_inside.as_ref().unwrap_or(&self.pre_tokenizer))
    }

    fn encode(
        &self,
        text: &str,
        added: &AddedVocabulary,
        pre_tokenizer: &[PreTokenizerStep],
    ) -> Result<Vec<TokenId>, TokenizerProblem> {
        let library = |e: tokenizers::Error| TokenizerProblem::Library {
            file: self.file.clone(),
            reason: format!("cannot encode a text of {} bytes: {e}", text.len()),
        };
        guarded(&self.file, || {
            let budget = Budget::new(text.len());
            let normalizer = CountedNormalizer { steps: &self.normalizer, budget: &budget };
            let normalizer = (!self.normalizer.is_empty()).then_some(&normalizer);
            let mut pieces: PreTokenizedString = added.extract_and_normalize(normalizer, text);
            // The library drops the errors of a normalizer.
            let split = match budget.is_spent() {
                true => Ok(()),
                false => pre_tokenize(pre_tokenizer, &mut pieces, &budget),
            };
            if budget.is_spent() {
                return Err(TokenizerProblem::TooManySteps { file: self.file.clone(), len: text.len() });
            }
            split.map_err(library)?;
            pieces.tokenize(|piece| self.model.tokenize(piece.get())).map_err(library)?;
            let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
            let tokens = splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref());
            Ok(tokens.flatten().map(|token| TokenId(token.id)).collect())
        })?
    }
}

/// A part of a text between control tokens, or a control token.
pub(super) enum Piece {
    Control(TokenId),
    Text(String),
}

/// Each merge must join two ordinary tokens to an ordinary token: the library's builder indexes on that assumption.
fn check_merges(
    file: &str,
    merges: &[(String, String)],
    ordinary: &bpe::Vocab,
) -> Result<(), TokenizerProblem> {
    let mut joined = String::new();
    for (index, (left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if ![left, right, &joined].iter().all(|text| ordinary.contains_key(*text)) {
            return Err(TokenizerProblem::Merge {
                file: file.to_owned(),
                index,
                merge: format!("{left} {right}"),
            });
        }
    }
    Ok(())
}

/// Runs library code and converts a panic into an error.
pub(super) fn guarded<T>(file: &str, run: impl FnOnce() -> T) -> Result<T, TokenizerProblem> {
    // A panic leaves no partial change: `run` builds new values, and the encoder's cache is never half written.
    catch_quietly(run).map_err(|reason| TokenizerProblem::Panicked { file: file.to_owned(), reason })
}

/// A model that only maps ids, as [`AddedVocabulary`] requires.
struct Ids<'a>(&'a HashMap<String, u32>);

impl Model for Ids<'_> {
    type Trainer = BpeTrainer;

    fn tokenize(&self, _: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(Vec::new())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.get(token).copied()
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.iter().find(|(_, i)| **i == id).map(|(token, _)| token.clone())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.clone()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_library_becomes_an_error() {
        for (run, expected) in [
            ((|| panic!("with {} words", 3)) as fn(), "with 3 words"),
            (|| panic!("static"), "static"),
            (|| std::panic::panic_any(7), "no message"),
        ] {
            match guarded("tokenizer.json", run) {
                Err(TokenizerProblem::Panicked { file, reason }) => {
                    assert_eq!((file.as_str(), reason.as_str()), ("tokenizer.json", expected));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
