//! The models that the program suggests.
//!
//! `suggested.json` has repositories, files and their published sizes, with the bytes of keys and values of a token in f16, from the published
//! configurations (2 bytes × 2 × layers × KV heads × head size). The hub's listing has the exact sizes, and `pull` checks them.

use refrain::CONTEXT_LEN_DEFAULT_MAX;
use serde::Deserialize;

const SUGGESTED: &str = include_str!("suggested.json");

/// A model that may be chosen.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suggestion {
    pub(crate) title: String,
    pub(crate) repo: String,
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) kv_bytes_per_token: u64,
    pub(crate) r#for: String,
}

impl Suggestion {
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.repo, self.file)
    }

    /// Weights, and the keys and values of the default context.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes + self.kv_bytes_per_token * CONTEXT_LEN_DEFAULT_MAX as u64
    }

    /// A token reads the weights once, so this is a bound without drafts.
    pub(crate) fn tokens_per_s(&self, read_bytes_per_s: f64) -> f64 {
        read_bytes_per_s / self.bytes as f64
    }
}

/// A model for the vectors of notes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbedderSuggestion {
    pub(crate) title: String,
    pub(crate) repo: String,
    pub(crate) bytes: u64,
    pub(crate) r#for: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suggestions {
    models: Vec<Suggestion>,
    embedder: EmbedderSuggestion,
}

fn all_suggestions() -> Suggestions {
    serde_json::from_str(SUGGESTED).expect("the file of suggestions is a part of the program, and tested")
}

pub(crate) fn suggestions() -> Vec<Suggestion> {
    all_suggestions().models
}

/// The model whose vectors indexes of notes have by default, once it was pulled.
pub(crate) fn suggested_embedder() -> EmbedderSuggestion {
    all_suggestions().embedder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::ModelName;

    #[test]
    fn suggestions_are_names_that_pull_reads_and_differ() {
        let all = suggestions();
        assert!((1..=9).contains(&all.len()), "one key chooses");
        for model in &all {
            model.name().parse::<ModelName>().unwrap();
            assert!(
                model.file.ends_with(".gguf") && model.bytes > 100_000_000 && model.kv_bytes_per_token > 1000
            );
        }
        let embedder = suggested_embedder();
        embedder.repo.parse::<ModelName>().unwrap();
        assert!(embedder.bytes > 10_000_000 && embedder.repo.ends_with(&embedder.title));
        assert!(all.windows(2).all(|two| two[0].bytes < two[1].bytes), "from small to large");
    }
}
