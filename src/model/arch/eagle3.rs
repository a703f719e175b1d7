//! EAGLE-3 heads: the fields of their `config.json`, and the names of their tensors. A folder that has one has nothing else.
//!
//! The layouts are those of the authors (SafeAILab, `cnets.py`), of SpecForge and of vLLM's speculators (`llama_eagle3.py`). They differ in
//! the name of the layer (`midlayer.` or `layers.0.`), and the last one has the fields of the layer in an object of their own.

use serde_json::Value;

use super::keys::Object;
use super::tensors::{Container, Place, Slot, WeightId};
use crate::model::config::{CONTEXT_LEN_MAX, ConfigError, DraftHead, Eagle3, ModelConfig, RopeScaling};

/// The fields of the layer, in an object of their own.
const LAYER: &str = "transformer_layer_config";

const CONTEXT_LEN: &str = "max_position_embeddings";

const TAPS: &str = "eagle_aux_hidden_state_layer_ids";

/// Fields that change the computation, with the value of a head without the change.
const NEUTRAL: [(&str, bool); 5] = [
    ("fc_norm", false),
    ("norm_before_fc", false),
    ("norm_output", true),
    ("parallel_drafting", false),
    ("use_aux_hidden_state", true),
];

/// Whether the configuration is that of a head.
pub(super) fn is_head(object: &Object<'_>) -> bool {
    let of_class = |name: &Value| name.as_str().is_some_and(|name| name.contains("Eagle3"));
    let classes = object.get("architectures").and_then(Value::as_array);
    object.get("draft_vocab_size").is_some() || classes.is_some_and(|names| names.iter().any(of_class))
}

/// The object with the fields of the layer.
pub(super) fn layer<'a>(object: Object<'a>) -> Result<Object<'a>, ConfigError> {
    Ok(object.object(LAYER)?.unwrap_or(object))
}

/// The head whose layer is that of `model`. If it states no context, its context is that of its target
/// ([`Model::load_head`](crate::model::Model::load_head)), as in SGLang; to the authors, the number is the first size of a table that grows.
///
/// # Errors
/// [`ConfigError`]: a field has another type, or a value that is not implemented; a scaling of rotations needs a context that is not stated.
pub(super) fn read(object: Object<'_>, model: ModelConfig) -> Result<ModelConfig, ConfigError> {
    if model.architecture.name() != "llama" {
        return Err(object.unsupported("model_type", model.architecture.name()));
    }
    if model.n_layers() != 1 {
        return Err(object.unsupported("num_hidden_layers", model.n_layers()));
    }
    let of_layer = layer(object)?;
    let context_len = match of_layer.count(CONTEXT_LEN)? {
        None if model.ropes.iter().all(|rope| rope.scaling == RopeScaling::None) => CONTEXT_LEN_MAX,
        None => of_layer.required_count(CONTEXT_LEN)?,
        Some(_) => model.context_len,
    };
    let eagle = object.object("eagle_config")?;
    for object in eagle.iter().chain([&object]) {
        for (field, neutral) in NEUTRAL {
            if let Some(value) = object.flag(field)?.filter(|&value| value != neutral) {
                return Err(object.unsupported(field, value));
            }
        }
    }
    let listed = |object: &Object<'_>| object.counts(TAPS).transpose();
    let taps = match eagle.as_ref().and_then(listed).or_else(|| listed(&object)).transpose()? {
        None => None,
        Some(ids) => match <[usize; 3]>::try_from(ids) {
            // Lists that begin with 1 name layers by their outputs, others by their inputs (SGLang's reading).
            Ok([1, middle, last]) => Some([2, middle.saturating_add(1), last.saturating_add(1)]),
            Ok(ids) => Some(ids),
            Err(ids) => return Err(object.unsupported(TAPS, format!("{ids:?}"))),
        },
    };
    let eagle3 = Eagle3 {
        target_hidden_dim: object.count("target_hidden_size")?.unwrap_or(model.hidden_dim),
        taps,
        draft_vocab_size: object.count("draft_vocab_size")?.unwrap_or(model.vocab_size),
        // vLLM's default for the layout with an object of the layer.
        normed_residual: object.flag("norm_before_residual")?.unwrap_or(object.has(LAYER)),
    };
    let draft_head = Some(DraftHead::Eagle3(eagle3));
    Ok(ModelConfig { context_len, draft_head, tied_head: false, ..model })
}

/// Where a folder stores a tensor of a head.
pub(in crate::model) fn place(config: &ModelConfig, slot: &Slot) -> Place {
    let whole = |name: &str| Place::whole(name, slot);
    let of_layer = |rest: &str| whole(&format!("midlayer.{rest}")).or(whole(&format!("layers.0.{rest}")));
    match slot.id {
        WeightId::Embedding => whole("embed_tokens.weight"),
        WeightId::OutputNorm => whole("norm.weight"),
        WeightId::DraftInput => whole("fc.weight"),
        WeightId::DraftEmbeddingNorm => of_layer("input_layernorm.weight"),
        WeightId::DraftHiddenNorm => of_layer("hidden_norm.weight"),
        _ => {
            let place = slot.standard(config, Container::Json);
            match place.names[0].strip_prefix("model.layers.0.") {
                Some(rest) => of_layer(rest),
                None => place,
            }
        }
    }
}
