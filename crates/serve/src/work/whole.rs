//! An answer that is sent at once: the pieces of a request, collected.

use super::Running;
use super::logprobs::TokenLogprob;
use super::piece::{Annotation, Finish, Piece, PromptScores, Usage};
use crate::error::{ApiError, ApiResult};

/// One output.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The prompt, if its probabilities were asked for.
    pub(crate) prompt: Option<PromptScores>,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// For each piece of text with probabilities: where it begins in the text, in bytes.
    pub(crate) text_starts: Vec<usize>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) finish: Option<Finish>,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// All outputs.
pub(crate) struct Whole {
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
}

impl Running {
    /// Waits for all `n` outputs.
    pub(crate) async fn whole(mut self, n: usize) -> ApiResult<Whole> {
        let mut choices: Vec<Choice> = (0..n).map(|_| Choice::default()).collect();
        while let Some(piece) = self.pieces.recv().await {
            match piece {
                Piece::Prefill { .. } => {}
                Piece::Prompt { choice, scores } => choices[choice].prompt = Some(scores),
                Piece::Reasoning { choice, text, .. } => choices[choice].reasoning.push_str(&text),
                Piece::Text { choice, text, logprobs, .. } => {
                    let choice = &mut choices[choice];
                    choice.text_starts.extend(logprobs.iter().map(|_| choice.text.len()));
                    choice.logprobs.extend(logprobs);
                    choice.text.push_str(&text);
                }
                Piece::Call { choice, id, name, .. } => {
                    choices[choice].calls.push(Call { id, name, arguments: String::new() });
                }
                Piece::Arguments { choice, call, text } => {
                    choices[choice].calls[call].arguments.push_str(&text)
                }
                Piece::End { choice, finish, stop, annotations } => {
                    let choice = &mut choices[choice];
                    (choice.finish, choice.stop, choice.annotations) = (Some(finish), stop, annotations);
                }
                Piece::Done(usage) => return Ok(Whole { choices, usage }),
                Piece::Failed(error) => return Err(error),
            }
        }
        Err(ApiError::stopped())
    }
}
