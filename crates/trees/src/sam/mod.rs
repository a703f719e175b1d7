//! Suffix automata over token ids.
//!
//! A suffix automaton is the smallest automaton that accepts every substring of a text (Blumer et al. 1985).
//! Here the text is a sequence of tokens, which are plain `u32` numbers, and the automaton is built *online*.
//! After every token it gives the longest suffix of the text that has occurred before, and the tokens that
//! followed it. Drafting from context needs nothing else.
//!
//! - [`SuffixAutomaton`] is the data; [`extend`](SuffixAutomaton::extend) takes amortised constant time.
//! - [`Match`] is a cursor: the position of a substring in the automaton. Many cursors can walk one
//!   automaton, and they stay valid when it grows.
//!
//! The method of drafting is SAM-Decoding's (arXiv 2411.10666). Counts and most recent positions per state
//! follow SuffixDecoding (arXiv 2411.04975).

mod automaton;
mod cursor;
mod edges;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

pub use automaton::{FullError, SuffixAutomaton};
pub use cursor::{Match, Transition};
