//! Lays out a prompt: as many of the passages as fit beside the request, the template and the output.

use std::collections::BTreeSet;
use std::path::PathBuf;

use refrain::{Message, PromptPassage, Role};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::fit::{Fitted, fit};
use crate::options::JobOptions;
use crate::passage::{LeftOut, LeftOutReason, Passage};
use crate::store::{Kept, n_common};
use crate::template::Template;

/// A prompt, and what it does not show.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// System and user turn.
    pub(crate) turns: Vec<Message>,
    /// Their tokens.
    pub(crate) n_tokens: usize,
    pub(crate) shown: Vec<Passage>,
    /// The passages that are not shown, and the rest of the one that was cut.
    pub(crate) rest: Vec<Passage>,
    /// An entry for each of them.
    pub(crate) left_out: Vec<LeftOut>,
    /// Where the text of each note begins in the prompt, in tokens.
    pub(crate) starts: Vec<(PathBuf, usize)>,
    /// Where the first passage begins.
    pub(crate) first_start: usize,
}

impl Assistant {
    /// What an answer is made from, for a job that starts now; `None` if the job's answers are not kept.
    /// `n_forgotten` was read before the job's texts were.
    pub(crate) fn kept(&self, job: &JobOptions, layout: &Layout, n_forgotten: u64) -> Option<Kept> {
        job.keep.then(|| Kept {
            notes: note_paths(&layout.shown),
            conversation: None,
            starts: layout.starts.clone(),
            measured_in: None,
            n_forgotten,
        })
    }

    /// The prompt with the passages that fit `room` tokens, in their order; the first one that does not fit is cut. `before`
    /// are earlier turns of the conversation.
    pub(crate) fn lay_out(
        &self,
        template: &Template,
        before: &[Message],
        passages: &[Passage],
        request: &str,
        room: usize,
    ) -> Result<Layout, TaskError> {
        let message = |passages: &[Passage]| template.render(&for_prompt(passages), request);
        let turns_of = |passages: &[Passage]| match before {
            [] => self.turns(message(passages)),
            _ => vec![Message::new(Role::User, message(passages))],
        };
        let count = |turns: &[Message]| self.count_turns(&[before, turns].concat());
        let n_bare = count(&turns_of(&[]))?;
        if n_bare > room {
            return Err(TaskError::RequestTooLong { n_tokens: n_bare, room });
        }
        let for_prompt = for_prompt(passages);
        let mut passage_room = room - n_bare;
        loop {
            let fitted = fit(&for_prompt, passage_room, &|text: &str| self.count(text))?;
            let (shown, rest, left_out) = divide(passages, &fitted);
            if shown.is_empty() && !left_out.is_empty() {
                return Err(TaskError::NoRoom { room: room - n_bare });
            }
            let turns = turns_of(&shown);
            let n_tokens = count(&turns)?;
            if n_tokens <= room {
                let (first_start, starts) =
                    self.starts(&shown, |passages| [before, &turns_of(passages)].concat())?;
                return Ok(Layout { turns, n_tokens, shown, rest, left_out, starts, first_start });
            }
            // Passages have a few more tokens together than separately, and numbers before them a few more: the next attempt
            // has less room, by at least one token.
            passage_room = passage_room.saturating_sub(n_tokens - room);
        }
    }

    /// Where the first passage begins, and each note: behind the tokens that the prompt shares with one that ends before the
    /// passage. Without a store, which needs to know it, nothing is computed.
    fn starts(
        &self,
        shown: &[Passage],
        turns_of: impl Fn(&[Passage]) -> Vec<Message>,
    ) -> Result<(usize, Vec<(PathBuf, usize)>), TaskError> {
        let mut starts: Vec<(PathBuf, usize)> = Vec::new();
        if self.store().is_none() || shown.is_empty() {
            return Ok((0, starts));
        }
        let whole = self.encode_turns(&turns_of(shown))?;
        let start_of = |at: usize| -> Result<usize, TaskError> {
            let without = self.encode_turns(&turns_of(&shown[..at]))?;
            Ok(n_common(&without, &whole))
        };
        for (at, passage) in shown.iter().enumerate() {
            let Some(note) = passage.source.as_ref().map(|source| &source.path) else { continue };
            if starts.iter().all(|(other, _)| other != note) {
                starts.push((note.clone(), start_of(at)?));
            }
        }
        Ok((start_of(0)?, starts))
    }

    /// A prompt that must show its passages whole.
    pub(crate) fn lay_out_whole(
        &self,
        template: &Template,
        passages: &[Passage],
        request: &str,
        room: usize,
    ) -> Result<Layout, TaskError> {
        let turns_of = |passages: &[Passage]| self.turns(template.render(&for_prompt(passages), request));
        let turns = turns_of(passages);
        let n_tokens = self.count_turns(&turns)?;
        if n_tokens > room {
            return Err(TaskError::TextTooLong { n_tokens, room });
        }
        let (first_start, starts) = self.starts(passages, turns_of)?;
        Ok(Layout { turns, n_tokens, shown: passages.to_vec(), starts, first_start, ..Layout::default() })
    }
}

fn for_prompt(passages: &[Passage]) -> Vec<PromptPassage<'_>> {
    passages.iter().map(Passage::for_prompt).collect()
}

/// The shown parts of the passages, and the others.
fn divide(passages: &[Passage], fitted: &[Fitted]) -> (Vec<Passage>, Vec<Passage>, Vec<LeftOut>) {
    let (mut shown, mut rest, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (passage, fitted) in passages.iter().zip(fitted) {
        if fitted.shown_len > 0 {
            shown.push(if fitted.left_out > 0 { passage.cut(fitted.shown_len) } else { passage.clone() });
        }
        if fitted.left_out > 0 {
            let reason = if fitted.shown_len > 0 { LeftOutReason::Rest } else { LeftOutReason::Context };
            let hidden = passage.after(fitted.shown_len);
            left_out.push(hidden.as_left_out(fitted.left_out, reason));
            rest.push(hidden);
        }
    }
    (shown, rest, left_out)
}

/// The notes that passages come from.
pub(crate) fn note_paths<'a>(passages: impl IntoIterator<Item = &'a Passage>) -> BTreeSet<PathBuf> {
    passages
        .into_iter()
        .filter_map(|passage| passage.source.as_ref().map(|source| source.path.clone()))
        .collect()
}
