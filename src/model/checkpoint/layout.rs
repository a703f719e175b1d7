//! The tensors of an architecture: role, names in both containers, shape.

use super::{LayerWeight, WeightId};
use crate::model::config::{Architecture, ModelConfig};

/// A required tensor.
pub(in crate::model) struct Slot {
    pub(in crate::model) id: WeightId,
    /// `[rows, columns]`, or `[length]` of a vector.
    pub(in crate::model) shape: Vec<u64>,
}

/// All tensors of a model with this configuration.
pub(in crate::model) fn slots(config: &ModelConfig) -> Vec<Slot> {
    use LayerWeight::*;
    let hidden = config.hidden_dim as u64;
    let q_dim = config.n_heads as u64 * config.head_dim as u64;
    let kv_dim = config.n_kv_heads as u64 * config.head_dim as u64;
    let (head, ffn, vocab) = (config.head_dim as u64, config.ffn_dim as u64, config.vocab_size as u64);

    let mut layer = vec![
        (AttnNorm, vec![hidden]),
        (Q, vec![q_dim, hidden]),
        (K, vec![kv_dim, hidden]),
        (V, vec![kv_dim, hidden]),
        (O, vec![hidden, q_dim]),
        (FfnNorm, vec![hidden]),
        (Gate, vec![ffn, hidden]),
        (Up, vec![ffn, hidden]),
        (Down, vec![hidden, ffn]),
    ];
    if config.qkv_bias {
        layer.extend([(QBias, vec![q_dim]), (KBias, vec![kv_dim]), (VBias, vec![kv_dim])]);
    }
    if config.o_bias {
        layer.push((OBias, vec![hidden]));
    }
    if config.architecture.has_qk_norm() {
        layer.extend([(QNorm, vec![head]), (KNorm, vec![head])]);
    }

    let mut slots = vec![
        Slot { id: WeightId::Embedding, shape: vec![vocab, hidden] },
        Slot { id: WeightId::OutputNorm, shape: vec![hidden] },
    ];
    if !config.tied_head {
        slots.push(Slot { id: WeightId::Head, shape: vec![vocab, hidden] });
    }
    for layer_idx in 0..config.n_layers {
        for (weight, shape) in &layer {
            slots.push(Slot { id: WeightId::Layer(layer_idx, *weight), shape: shape.clone() });
        }
    }
    slots
}

/// The tensor's name in GGUF.
pub(in crate::model) fn gguf_name(id: WeightId) -> String {
    use LayerWeight::*;
    let (layer_idx, weight) = match id {
        WeightId::Embedding => return "token_embd.weight".to_owned(),
        WeightId::OutputNorm => return "output_norm.weight".to_owned(),
        WeightId::Head => return "output.weight".to_owned(),
        WeightId::Layer(layer_idx, weight) => (layer_idx, weight),
    };
    let rest = match weight {
        AttnNorm => "attn_norm.weight",
        Q => "attn_q.weight",
        K => "attn_k.weight",
        V => "attn_v.weight",
        O => "attn_output.weight",
        QBias => "attn_q.bias",
        KBias => "attn_k.bias",
        VBias => "attn_v.bias",
        OBias => "attn_output.bias",
        QNorm => "attn_q_norm.weight",
        KNorm => "attn_k_norm.weight",
        FfnNorm => "ffn_norm.weight",
        Gate => "ffn_gate.weight",
        Up => "ffn_up.weight",
        Down => "ffn_down.weight",
    };
    format!("blk.{layer_idx}.{rest}")
}

/// The tensor's name in a Hugging Face folder.
pub(super) fn hf_name(id: WeightId) -> String {
    use LayerWeight::*;
    let (layer_idx, weight) = match id {
        WeightId::Embedding => return "model.embed_tokens.weight".to_owned(),
        WeightId::OutputNorm => return "model.norm.weight".to_owned(),
        WeightId::Head => return "lm_head.weight".to_owned(),
        WeightId::Layer(layer_idx, weight) => (layer_idx, weight),
    };
    let rest = match weight {
        AttnNorm => "input_layernorm.weight",
        Q => "self_attn.q_proj.weight",
        K => "self_attn.k_proj.weight",
        V => "self_attn.v_proj.weight",
        O => "self_attn.o_proj.weight",
        QBias => "self_attn.q_proj.bias",
        KBias => "self_attn.k_proj.bias",
        VBias => "self_attn.v_proj.bias",
        OBias => "self_attn.o_proj.bias",
        QNorm => "self_attn.q_norm.weight",
        KNorm => "self_attn.k_norm.weight",
        FfnNorm => "post_attention_layernorm.weight",
        Gate => "mlp.gate_proj.weight",
        Up => "mlp.up_proj.weight",
        Down => "mlp.down_proj.weight",
    };
    format!("model.layers.{layer_idx}.{rest}")
}

/// Whether converters to GGUF reorder this tensor's rows: llama's Q and K, weights and biases.
pub(super) fn is_interleaved_in_gguf(architecture: Architecture, id: WeightId) -> bool {
    use LayerWeight::{K, KBias, Q, QBias};
    architecture == Architecture::Llama && matches!(id, WeightId::Layer(_, Q | K | QBias | KBias))
}

/// Whether a tensor only repeats the configuration or another tensor. Some files contain such tensors.
pub(super) fn is_redundant(name: &str, config: &ModelConfig) -> bool {
    name == "rope_freqs.weight"
        || name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("attn_rot_embd.weight")
        || (config.tied_head && name == "lm_head.weight")
}
