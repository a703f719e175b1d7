//! Prompts of models that fill in the middle of a text: what stands before and after a gap, each behind a control token.
//!
//! Most families write prefix, suffix and a token behind which the middle begins (Bavarian et al. 2022, "PSM"). Mistral's write the suffix
//! first; the middle then continues the prefix, and needs no token.

use super::error::{TokenizerError, TokenizerProblem};
use super::tokenizer::{SpecialTokens, Tokenizer};
use super::vocab::Vocab;
use refrain_trees::TokenId;

/// The texts of the tokens before the prefix, the suffix and the middle: Qwen and CodeGemma, StarCoder with Granite and SmolLM, SantaCoder,
/// Code Llama, DeepSeek, GLM.
const FAMILIES: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["\u{2581}<PRE>", "\u{2581}<SUF>", "\u{2581}<MID>"],
    [
        "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
    ],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
];
/// Mistral's tokens before the suffix and the prefix, in this order.
const SUFFIX_FIRST: [&str; 2] = ["[SUFFIX]", "[PREFIX]"];
/// Tokens before the name of a repository, and before the name of each of its files.
const REPOSITORY: [&str; 3] = ["<|repo_name|>", "<reponame>", "<repo_name>"];
const FILE: [&str; 4] = ["<|file_sep|>", "<|file_separator|>", "<file_sep>", "<filename>"];
/// Further tokens with which models end a middle.
const ENDS: [&str; 4] = ["\u{2581}<EOT>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>"];

/// Ids that the files of a tokenizer state, as GGUF's keys `tokenizer.ggml.fim_pre_token_id` and its neighbours do.
#[derive(Debug, Default)]
pub(super) struct InfillIds {
    pub(super) prefix: Option<TokenId>,
    pub(super) suffix: Option<TokenId>,
    pub(super) middle: Option<TokenId>,
    pub(super) padding: Option<TokenId>,
    pub(super) repository: Option<TokenId>,
    pub(super) file: Option<TokenId>,
}

/// The control tokens of such prompts.
#[derive(Debug)]
pub(super) struct InfillTokens {
    prefix: TokenId,
    suffix: TokenId,
    /// `None`: the suffix comes first.
    middle: Option<TokenId>,
    repository: Option<TokenId>,
    file: Option<TokenId>,
    ends: Vec<TokenId>,
}

impl InfillTokens {
    /// The tokens that the files state, else those with a known text.
    pub(super) fn find(vocab: &Vocab, stated: &InfillIds) -> Option<Self> {
        let any = |texts: &[&str]| texts.iter().find_map(|text| vocab.id(text));
        let known = FAMILIES.iter().find_map(|[prefix, suffix, middle]| {
            Some((vocab.id(prefix)?, vocab.id(suffix)?, Some(vocab.id(middle)?)))
        });
        let suffix_first = || {
            let [suffix, prefix] = SUFFIX_FIRST;
            Some((vocab.id(prefix)?, vocab.id(suffix)?, None))
        };
        let (prefix, suffix, middle) = match (stated.prefix, stated.suffix, stated.middle) {
            (Some(prefix), Some(suffix), Some(middle)) => (prefix, suffix, Some(middle)),
            _ => known.or_else(suffix_first)?,
        };
        let repository = stated.repository.or_else(|| any(&REPOSITORY));
        let file = stated.file.or_else(|| any(&FILE));
        let mut ends: Vec<TokenId> = [Some(prefix), Some(suffix), middle, stated.padding, repository, file]
            .into_iter()
            .chain(ENDS.iter().map(|text| vocab.id(text)))
            .flatten()
            .collect();
        ends.sort_unstable();
        ends.dedup();
        Some(Self { prefix, suffix, middle, repository, file, ends })
    }
}

/// A text whose middle a model writes.
#[derive(Debug, Clone, Copy)]
pub struct Gap<'a> {
    /// The text before the gap.
    pub before: &'a str,
    /// The text after it.
    pub after: &'a str,
    /// Names and texts of other files that the model may read.
    pub files: &'a [(String, String)],
}

impl Tokenizer {
    /// Whether the vocabulary has control tokens for [`encode_infill`](Self::encode_infill).
    pub fn can_infill(&self) -> bool {
        self.infill.is_some()
    }

    /// Encodes a prompt whose continuation fits between two texts, as models for code are trained to write it. Includes BOS, if plain prompts
    /// begin with it. Generate with [`infill_ends`](Self::infill_ends) as stop tokens.
    ///
    /// Text that spells a control token is encoded as letters.
    ///
    /// # Errors
    /// - Kind [`NotFound`](refrain_files::ErrorKind::NotFound), field `infill`: the vocabulary has no tokens for it.
    /// - The errors of [`encode`](Self::encode).
    pub fn encode_infill(&self, before: &str, after: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with_gap(Gap { before, after, files: &[] })
    }

    /// Tokens with which a model ends a middle, beside [`eos`](Self::eos). Empty if it cannot fill in.
    pub fn infill_ends(&self) -> &[TokenId] {
        self.infill.as_ref().map_or(&[], |tokens| &tokens.ends)
    }

    /// As [`encode_infill`](Self::encode_infill), with other files before the prompt.
    pub(super) fn encode_with_gap(&self, gap: Gap<'_>) -> Result<Vec<TokenId>, TokenizerError> {
        let Some(tokens) = &self.infill else { return Err(TokenizerProblem::NoInfill.into()) };
        let encode = |text: &str| self.encode(text, SpecialTokens::AsText);
        let mut prompt: Vec<TokenId> = self.bos().filter(|_| self.adds_bos()).into_iter().collect();
        if let Some(file) = tokens.file.filter(|_| !gap.files.is_empty()) {
            if let Some(repository) = tokens.repository {
                prompt.push(repository);
                prompt.extend(encode("repository\n")?);
            }
            for (name, text) in gap.files {
                prompt.push(file);
                prompt.extend(encode(&format!("{name}\n{text}\n"))?);
            }
            prompt.push(file);
            prompt.extend(encode("file\n")?);
        } else {
            for (name, text) in gap.files {
                prompt.extend(encode(&format!("--- {name} ---\n{text}\n\n"))?);
            }
        }
        match tokens.middle {
            Some(middle) => {
                prompt.push(tokens.prefix);
                prompt.extend(encode(gap.before)?);
                prompt.push(tokens.suffix);
                prompt.extend(self.encode_after(gap.after)?);
                prompt.push(middle);
            }
            None => {
                prompt.push(tokens.suffix);
                prompt.extend(self.encode_after(gap.after)?);
                prompt.push(tokens.prefix);
                prompt.extend(encode(gap.before)?);
            }
        }
        Ok(prompt)
    }

    /// Encodes a text that goes on in the middle of a line: without the space that the tokenizer inserts before every text. Models are trained
    /// on suffixes without it.
    fn encode_after(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        /// A character that no piece joins with others.
        const GUARD: &str = "\u{263a}";
        let encode = |text: &str| self.encode(text, SpecialTokens::AsText);
        if !self.inserts_space() {
            return encode(text);
        }
        let (guard, guarded) = (encode(GUARD)?, encode(&format!("{GUARD}{text}"))?);
        match guarded.strip_prefix(&*guard) {
            Some(rest) => Ok(rest.to_vec()),
            None => encode(text),
        }
    }
}
