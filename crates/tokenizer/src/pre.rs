//! The pre-tokenizers that GGUF files name (`tokenizer.ggml.pre`).
//!
//! Each pre-tokenizer is the list of regular expressions that llama.cpp uses for the name (`src/llama-vocab.cpp`).
//! They equal the expressions in the model families' own `tokenizer.json`. Every expression splits the pieces of the
//! previous one. Then bytes become characters of the byte-level alphabet.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior, normalizers};

use super::error::TokenizerProblem;
use super::regexp::Regexp;
use super::steps::{NormalizerStep, PreTokenizerStep};

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
    pub(super) pre_tokenizer: Vec<PreTokenizerStep>,
    pub(super) normalizer: Vec<NormalizerStep>,
    /// A piece that is a token is not split further, regardless of the merges.
    pub(super) ignore_merges: bool,
    /// The prompt begins with BOS, unless the file states otherwise.
    pub(super) adds_bos: bool,
}

/// A row of the table: the names, the expressions, whether merges are ignored for a piece that is a token, and whether a
/// prompt begins with BOS.
type Row = (&'static [&'static str], &'static [&'static str], bool, bool);

const FAMILIES: [Row; 10] = [
    (&["llama3", "llama-v3", "llama-bpe", "lfm2"], &[LLAMA3], true, true),
    // OLMo 2 and Granite 4; SmolLM3.
    (&["dbrx", "smaug-bpe"], &[LLAMA3], false, false),
    (&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5], true, false),
    // Qwen2; DeepSeek's distillations into it.
    (&["qwen2", "deepseek-r1-qwen"], &[QWEN2], false, false),
    (&["qwen35"], &[QWEN35], false, false),
    // Ministral, Mistral Nemo and later.
    (&["tekken"], &[TEKKEN], true, true),
    // gpt-oss, Phi-4-mini.
    (&["gpt-4o", "llama4"], &[GPT4O], false, false),
    // `refact`: Granite 3.
    (&["smollm", "refact", "starcoder"], &[r"\p{N}", GPT2], false, false),
    (&["gpt-2", "phi-2"], &[GPT2], false, false),
    // What llama.cpp takes for a file without a name. Few models were trained with it.
    (&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], false, false),
];

/// All names, for messages.
pub(super) fn names() -> String {
    let names: Vec<&str> = FAMILIES.iter().flat_map(|(names, ..)| names.iter().copied()).collect();
    names.join(", ")
}

/// The expressions of all families, with the first name of each.
#[cfg(test)]
pub(super) fn patterns() -> impl Iterator<Item = (&'static str, &'static str)> {
    FAMILIES.iter().flat_map(|(names, patterns, ..)| patterns.iter().map(move |pattern| (names[0], *pattern)))
}

/// The family of a name.
pub(super) fn family(file: &str, name: &str) -> Result<Family, TokenizerProblem> {
    let Some((_, patterns, ignore_merges, adds_bos)) =
        FAMILIES.iter().find(|(names, ..)| names.contains(&name))
    else {
        let field = "pre-tokenizer (tokenizer.ggml.pre)";
        return Err(TokenizerProblem::Unsupported { file: file.to_owned(), field, name: name.to_owned() });
    };
    let mut pre_tokenizer = Vec::with_capacity(patterns.len() + 1);
    for pattern in *patterns {
        let regexp = Regexp::new(pattern)
            .map_err(|reason| TokenizerProblem::Library { file: file.to_owned(), reason })?;
        let behavior = SplitDelimiterBehavior::Isolated;
        pre_tokenizer.push(PreTokenizerStep::Split { regexp, behavior, invert: false });
    }
    let bytes = PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false));
    pre_tokenizer.push(PreTokenizerStep::Library(bytes));
    // Qwen's own tokenizer first normalizes to NFC; llama.cpp does not. The two differ on text that is not in NFC.
    // The model was trained with its own tokenizer, so this code normalizes too.
    let nfc = || NormalizerStep::Library(NormalizerWrapper::NFC(normalizers::unicode::NFC));
    let normalizer = matches!(name, "qwen2" | "deepseek-r1-qwen" | "qwen35").then(nfc).into_iter().collect();
    Ok(Family { pre_tokenizer, normalizer, ignore_merges: *ignore_merges, adds_bos: *adds_bos })
}
