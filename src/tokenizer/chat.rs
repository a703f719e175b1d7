//! A conversation to tokens, so that no message can steer the model.
//!
//! A template writes control tokens and messages into one text. If a message contains the letters `<|im_end|>`, that
//! text cannot be told from a real end of turn. So before rendering, every control token's text inside a message is
//! broken by a mark (a Unicode noncharacter that occurs nowhere in the conversation); the rendered text is split at the
//! control tokens that are left, the marks are taken out, and what lies between is encoded as plain text.

use super::pipeline::Piece;
use super::{SpecialTokens, TEXT_BYTES_MAX, Tokenizer, TokenizerError};
use crate::token::TokenId;

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Instructions to the model.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What they say.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// The noncharacters that may serve as the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

impl Tokenizer {
    /// Renders a conversation with the model's chat template and encodes it. Control tokens come from the template
    /// alone: their texts inside a message are encoded as letters.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], [`TokenizerError::Template`], [`TokenizerError::TextTooLong`], and what
    /// [`Tokenizer::encode`] returns.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let template = match &self.template {
            None => return Err(TokenizerError::NoChatTemplate),
            Some(Err(e)) => return Err(e.clone().into()),
            Some(Ok(template)) => template,
        };
        let total: usize = messages.iter().map(|m| m.content.len()).sum();
        if total > TEXT_BYTES_MAX {
            return Err(TokenizerError::TextTooLong { len: total, limit: TEXT_BYTES_MAX });
        }
        let Some(mark) = MARKS.clone().find(|&mark| !messages.iter().any(|m| m.content.contains(mark)))
        else {
            let reason = "a message uses every Unicode noncharacter from U+FDD0 to U+FDEF".to_owned();
            return Err(TokenizerError::Library { file: self.pipeline.file().to_owned(), reason });
        };
        let marked: Vec<Message> = messages
            .iter()
            .map(|m| Message { role: m.role, content: self.break_control_tokens(&m.content, mark) })
            .collect();
        let text = template.render(&marked, add_generation_prompt, &self.special_texts)?;
        let mut ids = Vec::new();
        for piece in self.pipeline.split_at_controls(&text)? {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => {
                    ids.extend(self.encode(&text.replace(mark, ""), SpecialTokens::AsText)?);
                }
            }
        }
        Ok(ids)
    }

    /// Puts the mark after the first character of every control token's text.
    fn break_control_tokens(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // The mark goes in wherever a control token's text begins, so overlapping ones are all broken.
        while let Some(c) = rest.chars().next() {
            out.push(c);
            let may_start = self.control_starts.contains(&c);
            if may_start && self.controls.iter().any(|control| rest.starts_with(control.as_str())) {
                out.push(mark);
            }
            rest = &rest[c.len_utf8()..];
        }
        out
    }
}
