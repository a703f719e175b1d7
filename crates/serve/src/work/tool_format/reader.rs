//! Reads the calls of an output while it arrives.
//!
//! What a text means does not depend on how it is cut. A text that only looks like a call is text. Where arguments have been sent already, they stay
//! as they were cut, and the text behind the place that is wrong is text.

use std::fmt;
use std::sync::Arc;

use super::ToolFormat;
use super::held::{Held, Stop};
use super::signature::Signature;
use crate::work::request::Tools;

/// Maximum bytes of white space between text and calls that belong to neither.
const SPACE_BYTES_MAX: usize = 256;

/// A part of an output that may have calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallPart {
    Text(String),
    /// A call of this function begins.
    Begin(String),
    /// A piece of its arguments, which are JSON.
    Arguments(String),
}

/// What a step of a [`Body`] has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: more text is needed.
    More,
    /// A part of the text.
    Again,
    /// The calls have ended.
    End,
    /// The text goes on in another form.
    Fail,
}

impl From<Stop> for Step {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::More => Self::More,
            Stop::Bad => Self::Fail,
        }
    }
}

/// Reads calls behind their opening.
pub(crate) trait Body: fmt::Debug + Send {
    /// Decides a part of the held text. It takes nothing before a function is certain.
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step;

    /// The part of the arguments in the rest of an output that was cut.
    fn cut(&self, _rest: &str) -> String {
        String::new()
    }
}

/// Reads one output.
#[derive(Debug)]
pub(crate) struct Reader {
    format: &'static dyn ToolFormat,
    signatures: Arc<[Signature]>,
    state: State,
    held: Held,
    /// Whether the output is calls or JSON.
    answers_json: bool,
    has_text: bool,
}

#[derive(Debug)]
enum State {
    /// The beginning of the output.
    Start,
    /// JSON, in which a marker is text.
    Json,
    /// Free text, up to an opening.
    Free,
    /// `opening` is the text before the calls; `None` as soon as a function is certain.
    Calls { body: Box<dyn Body>, opening: Option<String> },
    /// Behind calls.
    Behind,
}

impl Reader {
    /// `answers_json`: whether the output is calls or JSON.
    pub(super) fn new(format: &'static dyn ToolFormat, tools: &Tools, answers_json: bool) -> Self {
        Self {
            format,
            signatures: Signature::all(tools),
            state: State::Start,
            held: Held::default(),
            answers_json,
            has_text: false,
        }
    }

    /// Reads the next text.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<CallPart>) {
        self.held.push(text);
        while self.step(out) {}
    }

    /// The output has ended. The rest of a call that was cut belongs to its arguments, or has no meaning.
    pub(crate) fn finish(&mut self, out: &mut Vec<CallPart>) {
        let rest = self.held.take_all();
        match std::mem::replace(&mut self.state, State::Free) {
            State::Calls { opening: Some(opening), .. } => self.text(opening + &rest, out),
            State::Calls { body, opening: None } => {
                let arguments = body.cut(&rest);
                if !arguments.is_empty() {
                    out.push(CallPart::Arguments(arguments));
                }
            }
            State::Behind if rest.trim().is_empty() => {}
            _ => self.text(rest, out),
        }
    }

    fn text(&mut self, text: String, out: &mut Vec<CallPart>) {
        if !text.is_empty() {
            self.has_text |= !text.trim().is_empty();
            out.push(CallPart::Text(text));
        }
    }

    /// Goes on in calls; the held text begins with `n_bytes` of an opening.
    fn open(&mut self, n_bytes: usize, marker: &'static str) {
        let opening = Some(self.held.take(n_bytes));
        self.state = State::Calls { body: self.format.body(&self.signatures, marker), opening };
    }

    /// Decides a part of the held text; whether another step may decide more.
    fn step(&mut self, out: &mut Vec<CallPart>) -> bool {
        match &mut self.state {
            State::Start => self.start(),
            State::Json => {
                let text = self.held.take_all();
                self.text(text, out);
                false
            }
            State::Free => self.free(out),
            State::Calls { body, opening } => {
                let n_before = out.len();
                let step = body.step(&mut self.held, out);
                if out[n_before..].iter().any(|part| matches!(part, CallPart::Begin(_))) {
                    *opening = None;
                }
                match step {
                    Step::More => return false,
                    Step::Again => {}
                    Step::End => self.state = State::Behind,
                    Step::Fail => {
                        let opening = opening.take();
                        let is_json = self.answers_json && opening.is_some();
                        self.state = if is_json { State::Json } else { State::Free };
                        self.text(opening.unwrap_or_default(), out);
                    }
                }
                true
            }
            State::Behind => {
                let rest = self.held.rest();
                let n_spaces = rest.len() - rest.trim_start().len();
                if n_spaces == rest.len() && n_spaces <= SPACE_BYTES_MAX {
                    return false;
                }
                if n_spaces <= SPACE_BYTES_MAX && !self.has_text {
                    self.held.skip(n_spaces);
                }
                self.state = State::Free;
                true
            }
        }
    }

    fn start(&mut self) -> bool {
        let rest = self.held.rest();
        let text = rest.trim_start();
        let n_spaces = rest.len() - text.len();
        if text.is_empty() && n_spaces <= SPACE_BYTES_MAX {
            return false;
        }
        let first = text.chars().next();
        if n_spaces <= SPACE_BYTES_MAX && first.is_some() && first == self.format.begins_with() {
            self.open(n_spaces, "");
            return true;
        }
        if !self.answers_json {
            self.state = State::Free;
            return true;
        }
        let opens = self.format.opens();
        if let Some(&marker) = opens.iter().find(|marker| text.starts_with(**marker)) {
            self.open(n_spaces + marker.len(), marker);
            return true;
        }
        if opens.iter().any(|marker| marker.starts_with(text)) {
            return false;
        }
        self.state = State::Json;
        true
    }

    fn free(&mut self, out: &mut Vec<CallPart>) -> bool {
        let rest = self.held.rest();
        let mut found: Option<(usize, &'static str)> = None;
        for &marker in self.format.opens() {
            // A marker that comes later is not looked for.
            let n_bytes = found.map_or(rest.len(), |(at, _)| rest.floor_char_boundary(at + marker.len()));
            found = rest[..n_bytes].find(marker).map(|at| (at, marker)).or(found);
        }
        let Some((at, marker)) = found else {
            let n_begun = self.format.opens().iter().map(|marker| n_begun(rest, marker)).max().unwrap_or(0);
            let n_certain = without_space(&rest[..rest.len() - n_begun]).len();
            let text = self.held.take(n_certain);
            self.text(text, out);
            return false;
        };
        // White space between an introduction and a call belongs to neither.
        let n_text = without_space(&rest[..at]).len();
        let text = self.held.take(n_text);
        self.text(text, out);
        self.open(at - n_text + marker.len(), marker);
        true
    }
}

/// A text without the white space at its end, of which at most [`SPACE_BYTES_MAX`] are left out.
fn without_space(text: &str) -> &str {
    let n_min = text.ceil_char_boundary(text.len().saturating_sub(SPACE_BYTES_MAX));
    &text[..text.trim_end().len().max(n_min)]
}

/// Bytes at the end of a text that begin the marker and do not end it.
pub(super) fn n_begun(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    let begins =
        |&n: &usize| marker.is_char_boundary(n) && text.as_bytes().ends_with(&marker.as_bytes()[..n]);
    (1..=longest).rev().find(begins).unwrap_or(0)
}
