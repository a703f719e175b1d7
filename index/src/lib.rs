//! Passages and histories over token ids.
