//! GGUF files of every family in which one tensor is missing or has another shape, and files whose number of experts is not that
//! of their tensors. One table for all: every tensor that a file has is taken away once, so no kind of layer is left out.

use std::path::PathBuf;

use refrain::LoadError;
use refrain::checkpoint::Checkpoint;
use refrain::internals::error::CheckpointError;
use refrain::internals::model::config::{ConfigError, FeedForward};
use refrain::internals::model::gguf::GgufValue;

use crate::model_files::Gguf;
use crate::model_files::converted::converted;

/// The golden models that are files too, by name: those with a converter's list, and the families under standard names.
fn files() -> Vec<(String, Gguf)> {
    let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(goldens).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let name = |folder: &PathBuf| folder.file_name().unwrap().to_str().unwrap().to_owned();
    folders.retain(|folder| converted(folder).is_some() || ["qwen2", "qwen3"].contains(&&*name(folder)));
    folders.iter().map(|folder| (name(folder), Gguf::from_golden(folder))).collect()
}

fn open(gguf: &Gguf) -> Result<Checkpoint, LoadError> {
    Checkpoint::from_gguf_bytes(gguf.bytes().into(), "bad.gguf")
}

/// The reason of a refusal.
fn reason(found: &Result<Checkpoint, LoadError>) -> Result<&Checkpoint, &CheckpointError> {
    found.as_ref().map_err(|error| error.detail().expect("an error of the checkpoint"))
}

/// The role of a layer's tensor, or the whole name.
fn role(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| Some(rest.split_once('.')?.1)).unwrap_or(name)
}

/// Whether the error of a file without a tensor names it, with these exceptions.
fn names_the_missing(family: &str, name: &str, found: &Result<Checkpoint, LoadError>) -> bool {
    match reason(found) {
        Err(CheckpointError::MissingTensor { file, tensor }) => file == "bad.gguf" && tensor == name,
        Err(CheckpointError::Config(ConfigError::Missing { field, .. })) => match name {
            // Its rows are the vocabulary, if no field states it.
            "token_embd.weight" => field.ends_with(".vocab_size"),
            // Its rows are the rank of all layers.
            "blk.0.laurel_l.weight" => field.ends_with(role(name)),
            _ => field == name && name.starts_with("rope_factors_"),
        },
        // No field states them: the first layer that could have one decides for all.
        Err(CheckpointError::UnexpectedTensor { tensor, .. }) => match role(name) {
            "attn_q.bias" | "attn_output.bias" => role(tensor).starts_with("attn_"),
            "altup_correct_scale.weight" | "exp_probs_b.bias" | "ssm_conv1d.bias" => {
                role(tensor) == role(name)
            }
            _ => false,
        },
        Ok(_) => match role(name) {
            // Without an output matrix the embedding is one, and without factors frequencies are not scaled.
            "output.weight" | "rope_freqs.weight" => true,
            // Layers without values use their keys.
            "attn_v.weight" | "layer_output_scale.weight" => family.starts_with("gemma4"),
            _ => false,
        },
        Err(_) => false,
    }
}

#[test]
fn a_tensor_that_is_missing_is_named() {
    let (mut n_cases, mut others) = (0, Vec::new());
    for (family, gguf) in files() {
        open(&gguf).unwrap_or_else(|error| panic!("{family}: {error}"));
        for (name, ..) in &gguf.tensors {
            let mut without = gguf.clone();
            without.remove_tensor(name);
            let found = open(&without);
            if !names_the_missing(&family, name, &found) {
                others.push(format!("{family} without {name}: {:?}", found.err()));
            }
            n_cases += 1;
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
    assert!(n_cases > 1000, "{n_cases}");
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let mut others = Vec::new();
    for (family, gguf) in files() {
        for at in 0..gguf.tensors.len() {
            let name = gguf.tensors[at].0.clone();
            // A row, an element or an expert more.
            let mut longer = gguf.clone();
            let (_, _, dims, data) = &mut longer.tensors[at];
            let (last, n_bytes) = (dims.len() - 1, data.len());
            let n = dims[last];
            dims[last] += 1;
            data.extend(vec![0; n_bytes / n as usize]);
            let is_named = match reason(&open(&longer)) {
                // The rows of an embedding are its vocabulary, those of the first branch the rank.
                Err(CheckpointError::WrongShape { tensor, .. }) if name == "token_embd.weight" => {
                    tensor == "output.weight"
                }
                Ok(_) => ["token_embd.weight", "per_layer_token_embd.weight"].contains(&&*name),
                Err(CheckpointError::WrongShape { tensor, .. }) if name == "blk.0.laurel_l.weight" => {
                    tensor == "blk.0.laurel_r.weight"
                }
                Err(CheckpointError::WrongShape { tensor, .. }) => *tensor == name,
                Err(error @ CheckpointError::Config(_)) => {
                    let word = if name == "token_embd.weight" { "vocab" } else { "factors" };
                    [
                        "token_embd.weight",
                        "rope_freqs.weight",
                        "rope_factors_long.weight",
                        "rope_factors_short.weight",
                    ]
                    .contains(&&*name)
                        && error.to_string().contains(word)
                }
                Err(_) => false,
            };
            if !is_named {
                others.push(format!("{family}: {name} is longer: {:?}", open(&longer).err()));
            }
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}

#[test]
fn numbers_of_experts_that_the_tensors_do_not_have_name_one_of_them() {
    let mut families = Vec::new();
    for (family, gguf) in files() {
        let config = open(&gguf).unwrap().config().clone();
        let experts = config.layers.iter().find_map(|layer| match &layer.feed {
            FeedForward::Experts(experts) => Some(experts.n_experts as u32),
            _ => None,
        });
        let Some(n_experts) = experts else { continue };
        let key = format!("{}.expert_count", config.architecture.name());
        for wrong in [n_experts - 1, n_experts + 1] {
            let mut gguf = gguf.clone();
            gguf.set(&key, GgufValue::U32(wrong));
            match reason(&open(&gguf)) {
                Err(CheckpointError::WrongShape { tensor, expected, found, .. }) => {
                    assert!(tensor.starts_with("blk."), "{family}: {tensor}");
                    assert!(
                        expected.contains(&wrong.into()) && found.contains(&n_experts.into()),
                        "{family}: {tensor}"
                    );
                }
                other => panic!("{family} with {wrong} experts: {:?}", other.err()),
            }
        }
        families.push(family);
    }
    assert_eq!(families, ["gemma4-experts", "gpt_oss", "granitemoehybrid", "lfm2_moe", "qwen3_moe"]);
}
