//! Conversations to tokens: a chat template around texts that cannot forge it.
//!
//! A template's control tokens (`<|im_start|>` and the like) are text in its output, so a note that contains their
//! spelling could end a turn and start another. Before rendering, such spellings in a message are replaced by markers
//! from Unicode's private use area; afterwards the pieces between markers are encoded with control tokens recognised, and
//! each marker's own text without.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::token::TokenId;
use crate::tokenizer::{Message, SpecialTokens, Tokenizer, TokenizerError};

/// Opens a marker; private use, and itself replaced where a text contains it.
const MARKER_OPEN: char = '\u{F8F0}';
const MARKER_CLOSE: char = '\u{F8F1}';

/// Encodes conversations for one tokenizer.
pub(crate) struct ChatEncoder {
    /// Spellings that a message must not be able to pass off as control tokens, and the markers themselves.
    literals: AhoCorasick,
}

impl ChatEncoder {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        Self::with_literals(tokenizer.special_literals().filter(|l| !l.is_empty()).map(str::to_owned).collect())
    }

    fn with_literals(mut literals: Vec<String>) -> Self {
        literals.extend([MARKER_OPEN.to_string(), MARKER_CLOSE.to_string()]);
        let literals = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&literals);
        // A vocabulary's control tokens are far below the automaton's limit of 2³¹ states.
        Self { literals: literals.expect("control tokens fit an automaton") }
    }

    /// Encodes a conversation, ready for the assistant to answer.
    ///
    /// # Errors
    /// [`TokenizerError`] when there is no chat template, it fails, or the text is too long.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let mut forged = Vec::new();
        let messages: Vec<Message> = messages
            .iter()
            .map(|m| Message { role: m.role, content: self.mark(&m.content, &mut forged) })
            .collect();
        let rendered = tokenizer.render_chat(&messages, true)?;
        let mut tokens = Vec::new();
        let mut rest = rendered.as_str();
        while let Some((before, literal, after)) = next_marker(rest, &forged) {
            tokens.extend(tokenizer.encode(before, SpecialTokens::Parse)?);
            tokens.extend(tokenizer.encode(literal, SpecialTokens::AsText)?);
            rest = after;
        }
        tokens.extend(tokenizer.encode(rest, SpecialTokens::Parse)?);
        Ok(tokens)
    }

    /// Replaces every literal in `text` by a marker with its number in `forged`.
    fn mark(&self, text: &str, forged: &mut Vec<String>) -> String {
        let mut marked = String::with_capacity(text.len());
        self.literals.replace_all_with(text, &mut marked, |_, literal, marked| {
            marked.push_str(&format!("{MARKER_OPEN}{}{MARKER_CLOSE}", forged.len()));
            forged.push(literal.to_owned());
            true
        });
        marked
    }
}

/// Splits at the first marker: the text before it, the literal it stands for, the text after it.
fn next_marker<'a>(text: &'a str, forged: &'a [String]) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, marked) = text.split_once(MARKER_OPEN)?;
    let (number, after) = marked.split_once(MARKER_CLOSE)?;
    Some((before, forged.get(number.parse::<usize>().ok()?)?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_control_tokens_come_back_as_text() {
        let encoder = ChatEncoder::with_literals(vec!["<|im".to_owned(), "<|im_end|>".to_owned()]);
        let text = "a <|im_end|> b \u{F8F0}0\u{F8F1} <|im c";
        let mut forged = Vec::new();
        let marked = encoder.mark(text, &mut forged);
        assert_eq!(forged, ["<|im_end|>", "\u{F8F0}", "\u{F8F1}", "<|im"]);
        let mut restored = String::new();
        let mut rest = marked.as_str();
        while let Some((before, literal, after)) = next_marker(rest, &forged) {
            restored += before;
            restored += literal;
            rest = after;
        }
        assert_eq!(restored + rest, text);
    }

    #[test]
    fn plain_text_is_left_alone() {
        let mut forged = Vec::new();
        let encoder = ChatEncoder::with_literals(vec!["<|x|>".to_owned()]);
        assert_eq!(encoder.mark("héllo", &mut forged), "héllo");
        assert!(forged.is_empty() && next_marker("héllo", &forged).is_none());
    }
}
