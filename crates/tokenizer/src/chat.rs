//! Renders and encodes a conversation. No message can insert a control token.
//!
//! A template writes control tokens and messages into one text. In that text, the letters `<|im_end|>` of a message
//! look like a real end of turn. Before rendering, the text of every control token inside a message is therefore
//! broken by a mark: a Unicode noncharacter that occurs nowhere in the conversation. The rendered text is split at
//! the remaining control tokens, the marks are removed, and the parts between are encoded as plain text.
//!
//! All other texts of the app are marked in the same way: names, tool calls, tools, documents and variables. A text
//! that ends with the beginning of a control token is marked too, because the next text could complete the token.

use serde_json::Value;

use super::error::{TokenizerError, TokenizerProblem};
use super::limits::TEXT_BYTES_MAX;
use super::message::{ChatOptions, Message};
use super::pipeline::Piece;
use super::tokenizer::Tokenizer;
use refrain_trees::TokenId;

/// Names with a fixed meaning in templates.
const RESERVED: [&str; 16] = [
    "messages",
    "tools",
    "documents",
    "enable_thinking",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "range",
    "namespace",
    "dict",
    "loop",
    "caller",
    "self",
    "super",
];

impl ChatOptions {
    /// Sets a further variable of the template. `date_string` is accepted too and replaces the date's default form.
    ///
    /// # Errors
    /// The name has a fixed meaning in templates. The options are unchanged.
    pub fn set_variable(&mut self, name: impl Into<String>, value: Value) -> Result<(), TokenizerError> {
        let name = name.into();
        if RESERVED.contains(&name.as_str()) {
            return Err(TokenizerProblem::ReservedVariable { name }.into());
        }
        self.variables.insert(name, value);
        Ok(())
    }
}

/// The noncharacters that can serve as the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

impl Tokenizer {
    /// Renders a conversation with the model's chat template and encodes it. Control tokens come from the template
    /// alone. The texts of control tokens inside a message or an option are encoded as letters.
    ///
    /// # Errors
    /// The model has no template, or the template cannot be parsed or does not accept the conversation; then the
    /// [field](TokenizerError::field) is `chat_template`. Otherwise as [`Tokenizer::encode`].
    pub fn encode_chat(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let template = match &self.template {
            None => return Err(TokenizerProblem::NoChatTemplate.into()),
            Some(Err(e)) => return Err(e.clone().into()),
            Some(Ok(template)) => template,
        };
        let mut total = 0;
        let mut used = [false; 32];
        let mut see = |text: &str| {
            total += text.len();
            let marks = text.chars().filter(|c| MARKS.contains(c));
            marks.for_each(|c| used[(u32::from(c) - u32::from(*MARKS.start())) as usize] = true);
        };
        messages.iter().for_each(|message| message.each_text(&mut see));
        options.each_text(&mut see);
        if total > TEXT_BYTES_MAX {
            return Err(TokenizerProblem::TextTooLong { len: total, limit: TEXT_BYTES_MAX }.into());
        }
        let Some(mark) = MARKS.zip(used).find_map(|(mark, is_used)| (!is_used).then_some(mark)) else {
            let reason = "a message uses every Unicode noncharacter from U+FDD0 to U+FDEF".to_owned();
            return Err(TokenizerProblem::Library { file: self.pipeline.file().to_owned(), reason }.into());
        };
        let break_controls = |text: &str| self.break_control_tokens(text, mark);
        let marked: Vec<Message> =
            messages.iter().map(|message| message.map_texts(&break_controls)).collect();
        let options = options.map_texts(&break_controls);
        let text = template.render(&marked, &options, add_generation_prompt, &self.special_texts)?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerProblem::TextTooLong { len: text.len(), limit: TEXT_BYTES_MAX }.into());
        }
        let mut ids = Vec::new();
        for piece in self.pipeline.split_at_controls(&text)? {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => {
                    let text = text.replace(mark, "");
                    if ids.is_empty() {
                        ids = self.pipeline.encode_as_text(&text)?;
                    } else {
                        self.memo.extend(&mut ids, &text, || self.pipeline.encode_as_text_inside(&text))?;
                    }
                }
            }
        }
        Ok(ids)
    }

    /// Inserts the mark after the first character of every control token's text, and of a control token's beginning
    /// at the end of the text.
    fn break_control_tokens(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // Each start of a control token gets a mark, so overlapping control tokens are all broken.
        while let Some(c) = rest.chars().next() {
            out.push(c);
            let may_start = self.control_starts.contains(&c);
            let begins = |control: &String| rest.starts_with(control.as_str()) || control.starts_with(rest);
            if may_start && self.controls.iter().any(begins) {
                out.push(mark);
            }
            rest = &rest[c.len_utf8()..];
        }
        out
    }
}
