//! One answer: generated, streamed to the output, and cancelled by Ctrl-C.

use refrain::{Event, FinishReason, GenerateOptions, Session, Summary, TokenId};

use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::terminal::{AnswerStream, note};

/// An answer; an incomplete one if it was cancelled.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) summary: Summary,
}

impl Answer {
    pub(crate) fn exit(&self) -> Exit {
        match self.summary.finish {
            FinishReason::Cancelled => Exit::Interrupted,
            _ => Exit::Done,
        }
    }
}

/// Generates an answer to the session's last turn and streams it to `out`.
pub(crate) fn answer(
    session: &mut Session,
    options: GenerateOptions,
    out: &mut AnswerStream,
    interrupt: &Interrupt,
) -> Result<Answer, Failure> {
    let _cancelling = interrupt.cancels(options.cancel.clone());
    let max_tokens = options.max_tokens;
    let mut generation = session.generate(options)?;
    {
        let progress = Progress::tokens("prefill");
        generation.prefill(|done, total| progress.set(done, total))?;
    }
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for event in &mut generation {
        match event? {
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens.push(token.id);
                out.token(&token.text, &token.origin)?;
            }
            Event::Done(summary) => {
                text.push_str(&summary.text);
                out.token(&summary.text, &refrain::Origin::Target)?;
                out.end_line()?;
                match summary.finish {
                    FinishReason::MaxTokens => {
                        note(&format!("cut: the answer ends at --max-tokens {max_tokens}"))
                    }
                    FinishReason::ContextFull => {
                        note("cut: the answer ends at the end of the context (--ctx)")
                    }
                    _ => {}
                }
                return Ok(Answer { text, tokens, summary });
            }
            _ => {}
        }
    }
    unreachable!("a generation ends with an event or an error")
}
