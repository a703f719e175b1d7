//! Refrain: an on-device language-model engine that drafts from what the device already holds.
pub mod task;
