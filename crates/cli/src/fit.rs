//! Fits the passages of a request into a number of tokens, and names what is left out.

use std::path::PathBuf;

use refrain::PromptPassage;
use refrain_assistant::CountTokens;
use serde::Serialize;

use crate::context::{Chosen, as_text};
use crate::failure::Failure;

/// A passage, or the end of one, that is not in the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    #[serde(serialize_with = "as_text")]
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    pub(crate) title: String,
    /// Number of left-out tokens; estimated for long texts.
    pub(crate) tokens: usize,
    /// Whether the start of the passage is in the prompt.
    pub(crate) start_shown: bool,
}

/// The passages that fit, and the others.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    pub(crate) shown: Vec<Chosen>,
    pub(crate) left_out: Vec<LeftOut>,
}

/// As [`refrain_assistant::fit`].
pub(crate) fn fit(
    passages: &[Chosen],
    tokens_max: usize,
    count: &CountTokens<'_, Failure>,
) -> Result<Fitted, Failure> {
    let for_prompt: Vec<_> =
        passages.iter().map(|passage| PromptPassage { title: &passage.title, text: &passage.text }).collect();
    let parts = refrain_assistant::fit(&for_prompt, tokens_max, count)?;
    let mut fitted = Fitted::default();
    for (passage, part) in passages.iter().zip(parts) {
        let start_shown = part.shown_len > 0;
        if start_shown {
            fitted.shown.push(Chosen { text: passage.text[..part.shown_len].to_owned(), ..passage.clone() });
        }
        if part.left_out > 0 {
            let (path, line) = passage.source.place();
            let (path, title) = (path.to_owned(), passage.title.clone());
            fitted.left_out.push(LeftOut { path, line, title, tokens: part.left_out, start_shown });
        }
    }
    Ok(fitted)
}
