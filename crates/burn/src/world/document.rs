//! Training documents: chats in the template of the models, and plain prose.

/// Ends a document of plain text, and pads.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Opens a message.
pub const MESSAGE_START: &str = "<|im_start|>";
/// Closes a message; the end-of-sequence token of chats.
pub const MESSAGE_END: &str = "<|im_end|>";

/// The chat template, as stored in tokenizer_config.json and GGUF metadata.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A document in pieces. Only pieces marked as learnt count in the loss.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// Text and whether it is learnt.
    pub pieces: Vec<(String, bool)>,
}

impl Document {
    /// Plain text, all of it learnt.
    pub fn prose(text: String) -> Self {
        Self { pieces: vec![(text, true), (END_OF_TEXT.to_owned(), true)] }
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.pieces.iter().map(|(text, _)| text.as_str()).collect()
    }
}

/// The turns of a chat.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    turns: Vec<(String, String)>,
}

impl Chat {
    /// A chat of one turn.
    pub fn single(message: String, answer: String) -> Self {
        Self { turns: vec![(message, answer)] }
    }

    /// Adds a message and its answer.
    pub fn turn(&mut self, message: String, answer: String) {
        self.turns.push((message, answer));
    }

    /// The turns so far.
    pub fn turns(&self) -> &[(String, String)] {
        &self.turns
    }

    /// The document. Answers and their end tokens are learnt.
    pub fn document(&self) -> Document {
        let mut pieces = Vec::new();
        for (message, answer) in &self.turns {
            pieces.push((prompt(message), false));
            pieces.push((format!("{answer}{MESSAGE_END}"), true));
            pieces.push(("\n".to_owned(), false));
        }
        Document { pieces }
    }
}

/// A user message and the opening of the answer.
pub fn prompt(message: &str) -> String {
    format!("{MESSAGE_START}user\n{message}{MESSAGE_END}\n{MESSAGE_START}assistant\n")
}

/// A question of the evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The user message with the notes.
    pub message: String,
    /// The question alone.
    pub question: String,
    /// The required value.
    pub fact: String,
}
