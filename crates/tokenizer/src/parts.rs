//! The ways to a tokenizer, and what the project's own crates ask of it.

use super::error::TokenizerError;
use super::infill::Gap;
use super::reasoning::{ReasoningMarkers, ReasoningSplitter};
use super::template::{ChatTemplate, SpecialTexts};
use super::tokenizer::Tokenizer;
use super::{gguf, hf};
use refrain_containers::gguf::GgufFile;
use refrain_containers::hf::HfFolder;
use refrain_trees::TokenId;

impl Tokenizer {
    /// Builds the tokenizer from the text of a `tokenizer.json` alone. Error messages name `file`.
    ///
    /// # Errors
    /// [`TokenizerError`].
    pub fn from_json(text: &str, file: &str) -> Result<Self, TokenizerError> {
        Ok(hf::from_json(text, file, &hf::Extras::default())?)
    }
}

/// What the engine and the server ask of a tokenizer, and apps do not.
pub trait TokenizerParts: Sized {
    /// Builds the tokenizer of a Hugging Face folder: `tokenizer.json`, with `tokenizer_config.json`,
    /// `generation_config.json` and `chat_template.jinja` where they exist.
    ///
    /// # Errors
    /// [`TokenizerError`].
    fn from_hf_folder(folder: &HfFolder) -> Result<Self, TokenizerError>;

    /// As [`from_hf_folder`](Self::from_hf_folder), from texts by file name. A packed file contains the texts of
    /// [`FOLDER_FILES`](super::FOLDER_FILES).
    ///
    /// # Errors
    /// [`TokenizerError`], and those of `text`.
    fn from_folder_files(
        place: &str,
        text: &dyn Fn(&str) -> Result<Option<String>, TokenizerError>,
    ) -> Result<Self, TokenizerError>;

    /// Builds the tokenizer that a GGUF model's metadata describes.
    ///
    /// # Errors
    /// [`TokenizerError`].
    fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError>;

    /// As [`Tokenizer::encode_infill`], with other files before the prompt.
    ///
    /// # Errors
    /// As there.
    fn encode_gap(&self, gap: Gap<'_>) -> Result<Vec<TokenId>, TokenizerError>;

    /// The texts of BOS and EOS, as chat templates use them; empty where there is none.
    fn special_texts(&self) -> &SpecialTexts;

    /// The token that the tokenizer's files put behind a text, such as `[SEP]` of an encoder. No text is encoded with it: the model's code
    /// appends it, as it does [`Tokenizer::bos`].
    fn closing(&self) -> Option<TokenId>;

    /// The model's chat template; `None` where it has none, and where [`Tokenizer::chat_template_error`] says why it cannot be
    /// parsed.
    fn chat_template(&self) -> Option<&ChatTemplate>;

    /// The markers around the model's reasoning: a known pair that the vocabulary has as tokens, else one that the chat template
    /// writes; `None` for a model that does not reason.
    fn reasoning_markers(&self) -> Option<&ReasoningMarkers>;

    /// A splitter for the answer to a prompt of these tokens, of which the last few are looked at: where the prompt ends with an
    /// open marker, the answer begins with reasoning.
    fn reasoning_splitter(&self, prompt: &[TokenId]) -> ReasoningSplitter;
}

impl TokenizerParts for Tokenizer {
    fn from_hf_folder(folder: &HfFolder) -> Result<Self, TokenizerError> {
        hf::from_folder(folder)
    }

    fn from_folder_files(
        place: &str,
        text: &dyn Fn(&str) -> Result<Option<String>, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        hf::from_files(place, text)
    }

    fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        Ok(gguf::from_gguf(file)?)
    }

    fn encode_gap(&self, gap: Gap<'_>) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with_gap(gap)
    }

    fn special_texts(&self) -> &SpecialTexts {
        &self.special_texts
    }

    fn closing(&self) -> Option<TokenId> {
        self.closing
    }

    fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()?.as_ref().ok()
    }

    fn reasoning_markers(&self) -> Option<&ReasoningMarkers> {
        self.reasoning.as_ref()
    }

    fn reasoning_splitter(&self, prompt: &[TokenId]) -> ReasoningSplitter {
        let Some(markers) = &self.reasoning else { return ReasoningSplitter::new(None, "") };
        // A token stands for a byte at least, and white space may follow the marker.
        let n_tokens = markers.open.len() + 8;
        let tail: Vec<u8> = prompt[prompt.len().saturating_sub(n_tokens)..]
            .iter()
            .flat_map(|&token| self.token_bytes(token).unwrap_or_default())
            .copied()
            .collect();
        ReasoningSplitter::new(Some(markers.clone()), &String::from_utf8_lossy(&tail))
    }
}
