//! The pre-tokenizers that GGUF files name (`tokenizer.ggml.pre`).
//!
//! Each pre-tokenizer is the list of regular expressions that llama.cpp uses for the name (`src/llama-vocab.cpp`).
//! They equal the expressions in the model families' own `tokenizer.json`. Every expression splits the pieces of the
//! previous one. Then bytes become characters of the byte-level alphabet.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior, normalizers};

use super::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
// llama.cpp writes these two with lookaheads that tell capital letters apart in ASCII only. Here they are as in the
// models' own files.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The splitting rules of a family.
pub(super) struct Family {
    pub(super) pre_tokenizer: PreTokenizerWrapper,
    pub(super) normalizer: Option<NormalizerWrapper>,
    /// A piece that is a token is not split further, regardless of the merges.
    pub(super) ignore_merges: bool,
    /// The prompt begins with BOS, unless the file states otherwise.
    pub(super) adds_bos: bool,
}

/// The family named by `tokenizer.ggml.pre`. A missing name means `default`.
pub(super) fn family(file: &str, name: &str) -> Result<Family, TokenizerError> {
    let (patterns, ignore_merges, adds_bos): (&[&str], bool, bool) = match name {
        "llama3" | "llama-v3" | "llama-bpe" | "lfm2" => (&[LLAMA3], true, true),
        // OLMo 2 and Granite 4; SmolLM3.
        "dbrx" | "smaug-bpe" => (&[LLAMA3], false, false),
        "minicpm5" => (&[r"\p{N}{1,3}", MINICPM5], true, false),
        // Qwen2; DeepSeek's distillations into it.
        "qwen2" | "deepseek-r1-qwen" => (&[QWEN2], false, false),
        "qwen35" => (&[QWEN35], false, false),
        // Ministral, Mistral Nemo and later.
        "tekken" => (&[TEKKEN], true, true),
        // gpt-oss, Phi-4-mini.
        "gpt-4o" | "llama4" => (&[GPT4O], false, false),
        // `refact`: Granite 3.
        "smollm" | "refact" | "starcoder" => (&[r"\p{N}", GPT2], false, false),
        "gpt-2" | "phi-2" => (&[GPT2], false, false),
        "default" => (&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], false, false),
        _ => {
            let field = "pre-tokenizer (tokenizer.ggml.pre)";
            return Err(TokenizerError::Unsupported { file: file.to_owned(), field, name: name.to_owned() });
        }
    };
    let mut steps = Vec::with_capacity(patterns.len() + 1);
    for pattern in patterns {
        let split =
            Split::new(SplitPattern::Regex((*pattern).to_owned()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| TokenizerError::Library { file: file.to_owned(), reason: e.to_string() })?;
        steps.push(PreTokenizerWrapper::Split(split));
    }
    steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
    // Qwen's own tokenizer first normalizes to NFC; llama.cpp does not. The two differ on text that is not in NFC.
    // The model was trained with its own tokenizer, so this code normalizes too.
    let normalizer = matches!(name, "qwen2" | "deepseek-r1-qwen" | "qwen35")
        .then(|| NormalizerWrapper::NFC(normalizers::unicode::NFC));
    Ok(Family {
        pre_tokenizer: PreTokenizerWrapper::Sequence(Sequence::new(steps)),
        normalizer,
        ignore_merges,
        adds_bos,
    })
}
