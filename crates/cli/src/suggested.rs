//! The models that the program suggests.
//!
//! `suggested.json` has repositories, files and their published sizes, with the bytes of keys and values of a token in f16, from the published
//! configurations (2 bytes × 2 × layers × KV heads × head size). The hub's listing has the exact sizes, and `pull` checks them.

use refrain::CONTEXT_LEN_DEFAULT_MAX;
use refrain::internals::engine::ReadRate;
use refrain::internals::stream::available_bytes;
use refrain_program::args::bytes_text;
use serde::Deserialize;
use serde_json::json;

use crate::args::ModelSuggestArgs;
use crate::elsewhere::Folders;
use crate::failure::{Exit, Failure};
use crate::models;
use crate::terminal::{AnswerStream, note};

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
    pub(crate) licence: String,
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
    pub(crate) licence: String,
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

/// `refrain model suggest`: the suggestions, with what this machine makes of them.
pub(crate) fn suggest(args: &ModelSuggestArgs) -> Result<Exit, Failure> {
    let Suggestions { models, embedder } = all_suggestions();
    let rate = ReadRate::measure().ok().flatten().map(|rate| rate.bytes_per_s);
    let free = available_bytes();
    let here = present();
    let is_here = |name: &str, repo: &str| here.iter().any(|own| own == name || own == repo);
    let mut out = AnswerStream::stdout();
    if args.json {
        let shown = models.iter().map(|model| {
            json!({
                "name": model.name(),
                "title": model.title,
                "for": model.r#for,
                "licence": model.licence,
                "bytes": model.bytes,
                "memory_bytes": model.memory_bytes(),
                "estimated_tokens_per_s": rate.map(|rate| model.tokens_per_s(rate)),
                "is_here": is_here(&model.name(), &model.repo),
            })
        });
        let all = json!({
            "models": shown.collect::<Vec<_>>(),
            "embedder": {
                "name": embedder.repo,
                "for": embedder.r#for,
                "licence": embedder.licence,
                "bytes": embedder.bytes,
                "is_here": is_here(&embedder.repo, &embedder.repo),
            },
        });
        out.line(&all.to_string())?;
        return Ok(Exit::Done);
    }
    let mark = |is_here: bool| if is_here { ", here already" } else { "" };
    for model in &models {
        let speed = match rate.map(|rate| model.tokens_per_s(rate)) {
            Some(speed) if speed >= 10.0 => format!("estimated {speed:.0} tokens/s here"),
            Some(speed) => format!("estimated {speed:.1} tokens/s here"),
            None => "speed unknown".to_owned(),
        };
        let memory = model.memory_bytes();
        let is_large = free.is_some_and(|free| memory > free);
        let room = if is_large { ", more than is free now" } else { "" };
        out.line(&format!("{}: {}{}", model.name(), model.r#for, mark(is_here(&model.name(), &model.repo))))?;
        out.line(&format!(
            "    {}, {}, {} to download, {} of memory{room}, {speed}",
            model.title,
            model.licence,
            bytes_text(model.bytes),
            bytes_text(memory)
        ))?;
    }
    out.line(&format!(
        "{}: {}{}",
        embedder.repo,
        embedder.r#for,
        mark(is_here(&embedder.repo, &embedder.repo))
    ))?;
    out.line(&format!(
        "    {}, {}, {} to download",
        embedder.title,
        embedder.licence,
        bytes_text(embedder.bytes)
    ))?;
    note(
        "`refrain model pull NAME` gets one; speeds are estimated from the rate at which this machine reads memory, without drafts",
    );
    Ok(Exit::Done)
}

/// The names of the models on this device, with the repositories of those with several files.
fn present() -> Vec<String> {
    let pulled = models::all().unwrap_or_default().into_iter();
    let pulled = pulled.flat_map(|pulled| {
        let repo = pulled.name.split(':').next().unwrap_or_default().to_owned();
        let files = pulled.unit.files.iter().map(|file| format!("{repo}:{file}")).collect::<Vec<_>>();
        files.into_iter().chain([pulled.name])
    });
    let (others, _) = Folders::of_user().list();
    pulled.chain(others.into_iter().map(|found| found.name)).collect()
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
