//! The layers that a short measurement runs in place of all.
//!
//! The layers of a model differ: a few with attention among recurrent ones, windows among layers that see everything, matrices
//! with more bits at both ends of a file. Layers that compute the same with the same bytes are one *kind*. A measurement
//! times some layers of each kind, and the kinds are weighed by their number of layers:
//!
//! ```text
//! all layers = Σ over kinds: layers of the kind · mean time of its measured layers
//! ```
//!
//! A kind that the time does not allow counts as its bytes at the mean time per byte of the others.

use serde::{Deserialize, Serialize};

use crate::model::config::{KvSource, LayerPlan, Mixer};

/// The layers of a model by kind.
pub(super) struct LayerKinds {
    kinds: Vec<Kind>,
    /// The kind of each layer.
    kind_of: Vec<usize>,
}

struct Kind {
    plan: LayerPlan,
    /// Bytes of a layer's matrices, at least 1.
    bytes: usize,
    layers: Vec<usize>,
}

/// The positions that a layer reads besides the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reach {
    /// All.
    Context,
    /// This number of them at most.
    Window(usize),
}

impl Reach {
    /// The positions that are read behind a context.
    pub(super) fn of(self, context: usize) -> usize {
        match self {
            Reach::Context => context,
            Reach::Window(window) => context.min(window),
        }
    }
}

impl LayerKinds {
    /// The kinds of layers with these plans and bytes of matrices.
    pub(super) fn new<'a>(layers: impl Iterator<Item = (&'a LayerPlan, usize)>) -> Self {
        let (mut kinds, mut kind_of) = (Vec::<Kind>::new(), Vec::new());
        for (layer_idx, (plan, bytes)) in layers.enumerate() {
            let (plan, bytes) = (cost_plan(plan), bytes.max(1));
            let found = kinds.iter().position(|kind| kind.bytes == bytes && kind.plan == plan);
            let kind = found.unwrap_or_else(|| {
                kinds.push(Kind { plan, bytes, layers: Vec::new() });
                kinds.len() - 1
            });
            kinds[kind].layers.push(layer_idx);
            kind_of.push(kind);
        }
        Self { kinds, kind_of }
    }

    /// The number of kinds.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of a layer's matrices.
    pub(super) fn bytes(&self, layer_idx: usize) -> usize {
        self.kinds[self.kind_of[layer_idx]].bytes
    }

    /// All layers, the most useful first: one of each kind, by the kind's bytes in the model, and then always one of the kind
    /// with the most layers for each that is taken with it (the rule of D'Hondt).
    pub(super) fn order(&self) -> Vec<usize> {
        let mut by_bytes: Vec<usize> = (0..self.len()).collect();
        by_bytes
            .sort_by_key(|&kind| std::cmp::Reverse(self.kinds[kind].bytes * self.kinds[kind].layers.len()));
        let mut n_taken = vec![1; self.len()];
        let mut order: Vec<usize> = by_bytes.iter().map(|&kind| self.kinds[kind].layers[0]).collect();
        let share = |kind: usize, n_taken: &[usize]| {
            let n_layers = self.kinds[kind].layers.len();
            (n_taken[kind] < n_layers).then(|| n_layers as f64 / (n_taken[kind] + 1) as f64)
        };
        while order.len() < self.kind_of.len() {
            let left = by_bytes.iter().filter_map(|&kind| Some((kind, share(kind, &n_taken)?)));
            let most = left.reduce(|best, next| if next.1 > best.1 { next } else { best });
            let (kind, _) = most.expect("layers are left");
            order.push(self.kinds[kind].layers[n_taken[kind]]);
            n_taken[kind] += 1;
        }
        order
    }

    /// The time of all layers from those of a sample, as pairs of a layer and its time.
    pub(super) fn total(&self, sample: &[(usize, f32)]) -> f32 {
        let means = self.means(sample);
        let sum = |kinds: &dyn Fn(&Kind, f32) -> f32| -> f32 {
            self.kinds.iter().zip(&means).filter_map(|(kind, mean)| mean.map(|mean| kinds(kind, mean))).sum()
        };
        let us = sum(&|kind, mean| kind.layers.len() as f32 * mean);
        let bytes = |kind: &Kind| (kind.layers.len() * kind.bytes) as f32;
        let all_bytes: f32 = self.kinds.iter().map(bytes).sum();
        us * all_bytes / sum(&|kind, _| bytes(kind)).max(1.0)
    }

    /// As [`total`](Self::total), of layers with attention alone, by their reach. Layers of a kind that is not in the sample count
    /// as the others of the same reach.
    pub(super) fn attention_totals(&self, sample: &[(usize, f32)]) -> Vec<(Reach, f32)> {
        let means = self.means(sample);
        let mut reaches: Vec<Reach> = self.kinds.iter().filter_map(Kind::reach).collect();
        reaches.sort();
        reaches.dedup();
        let total = |reach: Reach| {
            let of_reach = self.kinds.iter().zip(&means).filter(|(kind, _)| kind.reach() == Some(reach));
            let (mut us, mut n_measured, mut n_layers) = (0.0, 0, 0);
            for (kind, mean) in of_reach {
                n_layers += kind.layers.len();
                if let Some(mean) = mean {
                    us += kind.layers.len() as f32 * mean;
                    n_measured += kind.layers.len();
                }
            }
            (reach, us * n_layers as f32 / n_measured.max(1) as f32)
        };
        reaches.into_iter().map(total).collect()
    }

    /// The mean time of each kind's measured layers.
    fn means(&self, sample: &[(usize, f32)]) -> Vec<Option<f32>> {
        let mut sums = vec![(0.0, 0); self.len()];
        for &(layer_idx, us) in sample {
            let (sum, n) = &mut sums[self.kind_of[layer_idx]];
            (*sum, *n) = (*sum + us, *n + 1);
        }
        sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / n as f32)).collect()
    }
}

impl Kind {
    fn reach(&self) -> Option<Reach> {
        match &self.plan.mixer {
            Mixer::Attention(attention) => Some(attention.window.map_or(Reach::Context, Reach::Window)),
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) | Mixer::Mamba2(_) => None,
        }
    }
}

/// A plan without the differences that cost nothing worth measuring: rotations, scales, and which layer has the keys.
fn cost_plan(plan: &LayerPlan) -> LayerPlan {
    let mut plan = plan.clone();
    plan.residual_scale = 1.0;
    if let Mixer::Attention(attention) = &mut plan.mixer {
        (attention.rope, attention.scale, attention.query_growth) = (None, 1.0, None);
        if let KvSource::Layer(source_idx) = &mut attention.kv {
            *source_idx = 0;
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelConfig;
    use crate::model::arch::parse_config;
    use serde_json::{Value, json};

    fn config(fields: Value) -> ModelConfig {
        parse_config(&fields.to_string(), "config.json").unwrap()
    }

    /// The dimensions of published models that decide about kinds, with the number of layers of each kind, the first first.
    fn published() -> Vec<(&'static str, ModelConfig, Vec<usize>)> {
        let kinds = |n_layers: usize, is_full: &dyn Fn(usize) -> bool, other: &str| -> Vec<String> {
            (0..n_layers).map(|i| if is_full(i) { "full_attention" } else { other }.to_owned()).collect()
        };
        let lfm2 = json!({
            "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 65536, "block_ff_dim": 12288, "block_multiple_of": 256,
            "block_auto_adjust_ff_dim": true, "conv_L_cache": 3, "max_position_embeddings": 128000,
            "layer_types": kinds(16, &|i| [2, 5, 8, 10, 12, 14].contains(&i), "conv"),
        });
        let qwen35 = json!({
            "model_type": "qwen3_5_text", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 3584, "vocab_size": 248320,
            "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "tie_word_embeddings": true,
            "layer_types": kinds(24, &|i| i % 4 == 3, "linear_attention"),
        });
        let gemma3 = json!({
            "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144,
            "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
        });
        let granite = json!({
            "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12,
            "num_key_value_heads": 4, "shared_intermediate_size": 4096, "num_local_experts": 0, "vocab_size": 100352,
            "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2,
            "position_embedding_type": "nope", "tie_word_embeddings": true,
            "layer_types":
                (0..40).map(|i| if i % 10 == 5 { "attention" } else { "mamba" }).collect::<Vec<_>>(),
        });
        vec![
            ("LFM2-1.2B", config(lfm2), vec![10, 6]),
            ("Qwen3.5-0.8B", config(qwen35), vec![18, 6]),
            ("Gemma-3-1B", config(gemma3), vec![22, 4]),
            ("Granite-4.0-H-1B", config(granite), vec![36, 4]),
        ]
    }

    fn kinds(config: &ModelConfig) -> LayerKinds {
        LayerKinds::new(config.layers.iter().map(|plan| (plan, 1 << 20)))
    }

    /// The number of each kind's layers among these.
    fn counts(kinds: &LayerKinds, layers: &[usize]) -> Vec<usize> {
        (0..kinds.len()).map(|kind| layers.iter().filter(|&&i| kinds.kind_of[i] == kind).count()).collect()
    }

    #[test]
    fn each_kind_of_layer_is_in_a_sample_by_its_share() {
        for (name, config, expected) in published() {
            let kinds = kinds(&config);
            let (all, order) = (config.n_layers(), kinds.order());
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..all).collect::<Vec<_>>(), "{name}");
            assert_eq!(counts(&kinds, &order), expected, "{name}");
            for n in 1..=all {
                let counts = counts(&kinds, &order[..n]);
                for (count, of_kind) in counts.iter().zip(&expected) {
                    let share = (n * of_kind) as f64 / all as f64;
                    assert!((*count as f64 - share).abs() <= 1.0, "{name}, {n} layers: {counts:?}");
                }
                assert!(n < kinds.len() || counts.iter().all(|count| *count > 0), "{name}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_sample_with_each_kind_has_the_time_of_all_layers() {
        for (name, config, expected) in published() {
            let kinds = kinds(&config);
            let us = |layer_idx: usize| [30.0, 700.0][kinds.kind_of[layer_idx]];
            let total: f32 = (0..config.n_layers()).map(us).sum();
            let order = kinds.order();
            for n in kinds.len()..=config.n_layers() {
                let sample: Vec<(usize, f32)> = order[..n].iter().map(|&i| (i, us(i))).collect();
                assert!((kinds.total(&sample) / total - 1.0).abs() < 1e-4, "{name}, {n} layers");
            }
            // The first layer alone says nothing of the other kind: it counts as its bytes.
            let first = kinds.total(&[(order[0], us(order[0]))]);
            let expected = expected.iter().sum::<usize>() as f32 * us(order[0]);
            assert!((first / expected - 1.0).abs() < 1e-4, "{name}: {first} µs");
        }
    }

    #[test]
    fn attention_is_summed_by_its_reach() {
        let reaches = |name: &str| -> Vec<(Reach, f32)> {
            let (_, config, _) = published().into_iter().find(|(other, ..)| *other == name).unwrap();
            let kinds = kinds(&config);
            let order = kinds.order();
            // Two layers: one of each kind.
            kinds.attention_totals(&[(order[0], 1.0), (order[1], 1.0)])
        };
        assert_eq!(reaches("Gemma-3-1B"), [(Reach::Context, 4.0), (Reach::Window(512), 22.0)]);
        assert_eq!(reaches("LFM2-1.2B"), [(Reach::Context, 6.0)]);
        assert_eq!(reaches("Qwen3.5-0.8B"), [(Reach::Context, 6.0)]);
        assert_eq!(reaches("Granite-4.0-H-1B"), [(Reach::Context, 4.0)]);
    }

    /// Files of mixed formats have larger matrices in some layers, most of them at both ends.
    #[test]
    fn layers_with_larger_matrices_are_a_kind_of_their_own() {
        let (_, config, _) = published().remove(0);
        let plan = &config.layers[2];
        let bytes = |i: usize| if [0, 1, 7, 8].contains(&i) { 3 << 20 } else { 2 << 20 };
        let kinds = LayerKinds::new((0..9).map(|i| (plan, bytes(i))));
        assert_eq!((kinds.len(), kinds.bytes(1), kinds.bytes(2)), (2, 3 << 20, 2 << 20));
        let sample: Vec<(usize, f32)> = kinds.order()[..2].iter().map(|&i| (i, bytes(i) as f32)).collect();
        assert_eq!(kinds.total(&sample), (0..9).map(|i| bytes(i) as f32).sum::<f32>());
        // In the time of a sample without them, they count as their bytes.
        assert_eq!(kinds.total(&[(2, 2.0)]), 5.0 * 2.0 + 4.0 * 3.0);
    }
}
