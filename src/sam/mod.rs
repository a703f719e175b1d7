//! Suffix automata over token ids.
