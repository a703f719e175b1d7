//! The layers of a model: equal ones together, with what they compute in words.

use std::fmt::Write;

use refrain::checkpoint::ModelConfig;
use refrain::internals::model::config::{
    Activation, Attention, FeedForward, KvSource, LayerPlan, Mixer, Norms, QkNorm, RopeConfig, RopeScaling,
    Routing,
};
use serde::Serialize;

/// Layers that compute the same.
#[derive(Debug, Serialize)]
pub(super) struct LayerKind {
    /// Their number.
    pub(super) count: usize,
    /// Their indices, ascending.
    pub(super) indices: Vec<usize>,
    /// What they compute, in words.
    pub(super) summary: String,
    #[serde(flatten)]
    pub(super) plan: LayerPlan,
}

/// The kinds of layers of a model, in the order of their first layers.
pub(super) fn kinds(config: &ModelConfig) -> Vec<LayerKind> {
    let mut kinds: Vec<LayerKind> = Vec::new();
    for (layer_idx, plan) in config.layers.iter().enumerate() {
        match kinds.iter_mut().find(|kind| kind.plan == *plan) {
            Some(kind) => {
                kind.count += 1;
                kind.indices.push(layer_idx);
            }
            None => {
                let summary = summary(plan, &config.ropes);
                kinds.push(LayerKind { count: 1, indices: vec![layer_idx], summary, plan: plan.clone() });
            }
        }
    }
    kinds
}

/// The multipliers and caps of a model that are not neutral, and what it has beside a residual stream, in words.
pub(super) fn multipliers(config: &ModelConfig) -> Vec<String> {
    let mut found = Vec::new();
    if config.embedding_scale != 1.0 {
        found.push(format!("embedding × {}", config.embedding_scale));
    }
    if config.logit_scale != 1.0 {
        found.push(format!("logits × {}", config.logit_scale));
    }
    if let Some(cap) = config.logit_softcap {
        found.push(format!("logits capped at {cap}"));
    }
    if let Some(streams) = config.streams {
        found.push(format!("{} residual streams, layers compute number {}", streams.n, streams.active));
    }
    if let Some(per_layer) = config.per_layer {
        found.push(format!("{} inputs of each layer beside the residual stream", per_layer.dim));
    }
    found
}

fn summary(plan: &LayerPlan, ropes: &[RopeConfig]) -> String {
    let norms = match plan.norms {
        Norms::Pre => "norms before",
        Norms::Post => "norms behind",
        Norms::Both => "norms before and behind",
    };
    let mut text = format!("{}; {}; {norms}", mixer(&plan.mixer, ropes), feed(&plan.feed));
    if plan.residual_scale != 1.0 {
        put(&mut text, format_args!("; results × {}", plan.residual_scale));
    }
    if let Some(rank) = plan.branch_rank {
        put(&mut text, format_args!("; a branch of rank {rank}"));
    }
    text
}

fn mixer(mixer: &Mixer, ropes: &[RopeConfig]) -> String {
    match mixer {
        Mixer::Attention(attention) => self::attention(attention, ropes),
        Mixer::ShortConv(conv) => {
            format!("short convolution, {} channels over {} positions", conv.conv_dim, conv.conv_len)
        }
        Mixer::DeltaNet(delta) => format!(
            "gated delta rule, {} heads ({} for queries and keys) of {} × {}, convolution over {} positions",
            delta.n_value_heads, delta.n_key_heads, delta.key_dim, delta.value_dim, delta.conv_len
        ),
        Mixer::Mamba2(mamba) => format!(
            "Mamba-2, {} heads of {} in {} groups, state {}, convolution over {} positions",
            mamba.n_heads, mamba.head_dim, mamba.n_groups, mamba.state_dim, mamba.conv_len
        ),
        other => format!("{other:?}"),
    }
}

fn attention(attention: &Attention, ropes: &[RopeConfig]) -> String {
    let Attention { n_heads, n_kv_heads, head_dim, .. } = *attention;
    let mut text = format!("attention, {n_heads} heads ({n_kv_heads} for keys and values) of {head_dim}");
    match attention.window {
        Some(window) => put(&mut text, format_args!(", window {window}")),
        None => text += ", all positions",
    }
    match attention.rope.and_then(|rope| ropes.get(rope)) {
        Some(rope) => put(&mut text, format_args!(", {}", self::rope(rope, head_dim))),
        None => text += ", no position embedding",
    }
    let usual = 1.0 / (head_dim as f32).sqrt();
    if (attention.scale - usual).abs() > 1e-6 * usual {
        put(&mut text, format_args!(", scores × {}", attention.scale));
    }
    if let Some(cap) = attention.softcap {
        put(&mut text, format_args!(", scores capped at {cap}"));
    }
    if attention.sinks {
        text += ", sinks";
    }
    match attention.qk_norm {
        Some(QkNorm::Head) => text += ", norms of queries and keys by head",
        Some(QkNorm::Row) => text += ", norms of queries and keys over all heads",
        None => {}
    }
    match (attention.qkv_bias, attention.o_bias) {
        (true, true) => text += ", biases",
        (true, false) => text += ", biases of queries, keys and values",
        (false, true) => text += ", a bias of the output",
        (false, false) => {}
    }
    if attention.query_growth.is_some() {
        text += ", queries grow with their position";
    }
    if attention.gated {
        text += ", gated";
    }
    match attention.kv {
        KvSource::Own => {}
        KvSource::OneProjection => text += ", one projection for keys and values",
        KvSource::Layer(layer_idx) => {
            put(&mut text, format_args!(", keys and values of layer {layer_idx}"));
        }
    }
    text
}

fn rope(rope: &RopeConfig, head_dim: usize) -> String {
    let mut text = format!("rope {}", rope.theta);
    if rope.rotary_dim != head_dim {
        put(&mut text, format_args!(" on {} of {head_dim}", rope.rotary_dim));
    }
    let from = |original: &usize| format!("beyond {original} positions");
    match &rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => put(&mut text, format_args!(" (linear × {factor})")),
        RopeScaling::Llama3 { factor, original_context_len, .. } => {
            put(&mut text, format_args!(" (llama3 × {factor} {})", from(original_context_len)));
        }
        RopeScaling::Factors(_) => text += " (a factor for each frequency)",
        RopeScaling::Yarn { factor, original_context_len, .. } => {
            put(&mut text, format_args!(" (YaRN × {factor} {})", from(original_context_len)));
        }
        RopeScaling::Dynamic { factor, original_context_len } => {
            put(&mut text, format_args!(" (dynamic NTK × {factor} {})", from(original_context_len)));
        }
        RopeScaling::LongRope { original_context_len, .. } => {
            put(&mut text, format_args!(" (LongRoPE {})", from(original_context_len)));
        }
        _ => text += " (scaled)",
    }
    text
}

fn feed(feed: &FeedForward) -> String {
    match feed {
        FeedForward::None => "no feed-forward".to_owned(),
        FeedForward::Dense(dense) => {
            let mut text = format!("feed-forward {}, {}", dense.ffn_dim, activation(dense.activation));
            if let Some(cutoff) = dense.cutoff {
                put(&mut text, format_args!(" of what lies {cutoff} deviations above the mean"));
            }
            text
        }
        FeedForward::Experts(experts) => {
            let mut text = format!(
                "{} of {} experts of {}, {}",
                experts.n_used,
                experts.n_experts,
                experts.ffn_dim,
                activation(experts.activation)
            );
            if let Routing::Sigmoid { biased, .. } = experts.routing {
                text += if biased { ", by biased sigmoids" } else { ", by sigmoids" };
            }
            if experts.shared_ffn_dim > 0 {
                put(&mut text, format_args!(", and one of {} for all", experts.shared_ffn_dim));
            }
            if experts.own_norms {
                text += ", with norms of their own";
            }
            text
        }
        other => format!("{other:?}"),
    }
}

fn activation(activation: Activation) -> String {
    match activation {
        Activation::Silu => "SiLU".to_owned(),
        Activation::GeluTanh => "GELU".to_owned(),
        Activation::ClampedSwiglu { limit } => format!("SwiGLU clamped at {limit}"),
        other => format!("{other:?}"),
    }
}

fn put(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes all text");
}
