//! Golden Hugging Face folders as a converter to GGUF writes them.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::{BlockType, dequantize};
use refrain::internals::model::arch::tensors::{Container, Slot, place, slots};
use refrain::internals::model::checkpoint::{Change, LayerWeight, WeightId};
use refrain::internals::model::config::{Mixer, ModelConfig, RopeConfig, RopeScaling};
use refrain::internals::model::gguf::GgufValue;
use serde_json::Value;

use super::Gguf;

/// What a converter makes of a golden folder: `gguf.json`; `None` if the folder has no such list.
pub fn converted(path: &Path) -> Option<Value> {
    let text = std::fs::read(path.join("gguf.json")).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

impl Gguf {
    /// A golden Hugging Face folder in GGUF, tokenizer included. Vectors are f32, and matrices have the type of the
    /// folder. The folder's list gives the metadata, or else its configuration does, under the keys of Qwen.
    pub fn from_golden(path: &Path) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap();
        let config = checkpoint.config();
        let mut gguf = Self::default();
        gguf.set("general.architecture", config.architecture.name());
        gguf.set("general.name", checkpoint.name());
        match converted(path) {
            Some(list) => {
                for (key, value) in list["metadata"].as_object().unwrap() {
                    gguf.set(key, metadata(value));
                }
            }
            None => gguf.add_plain_metadata(config),
        }
        gguf.add_golden_tokenizer(path);
        slots(config).iter().for_each(|slot| gguf.add_slot(&checkpoint, slot));
        for (name, factors) in config.ropes.iter().flat_map(factors) {
            gguf.add_f32(name, &factors);
        }
        gguf
    }

    /// Every tensor of floats becomes f32; blocks of codes stay.
    pub fn widened(mut self) -> Self {
        for (_, ty, dims, data) in &mut self.tensors {
            let stored = ty.block_type().unwrap();
            if stored.block_len() > 1 {
                continue;
            }
            let mut values = vec![0.0; dims.iter().product::<u64>() as usize];
            dequantize(stored, data, &mut values);
            (*ty, *data) = (BlockType::F32.into(), bytes(&values));
        }
        self
    }

    fn add_plain_metadata(&mut self, config: &ModelConfig) {
        let arch = config.architecture.name();
        let mut attentions = (0..config.n_layers()).filter_map(|layer_idx| config.attention(layer_idx));
        let attention = attentions.next().expect("a layer with attention");
        for (key, value) in [
            ("embedding_length", config.hidden_dim),
            ("feed_forward_length", config.widths().ffn_dim),
            ("block_count", config.n_layers()),
            ("context_length", config.context_len),
            ("attention.head_count", attention.n_heads),
            ("attention.head_count_kv", attention.n_kv_heads),
            ("attention.key_length", attention.head_dim),
            ("attention.value_length", attention.head_dim),
        ] {
            self.set(&format!("{arch}.{key}"), value as u32);
        }
        self.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), config.norm_eps);
        self.set(&format!("{arch}.rope.freq_base"), config.ropes[0].theta as f32);
    }

    fn add_f32(&mut self, name: &str, values: &[f32]) {
        let dims = vec![values.len() as u64];
        self.tensors.push((name.to_owned(), BlockType::F32.into(), dims, bytes(values)));
    }

    /// Stores a tensor of the folder where GGUF files have it.
    fn add_slot(&mut self, checkpoint: &Checkpoint, slot: &Slot) {
        let place = place(checkpoint.config(), slot, Container::Gguf);
        let (ty, mut data) = read(checkpoint, slot);
        // Of blocks, only whole rows move.
        let element = ty.block_bytes();
        let unit = data.len() / slot.shape[0] as usize;
        reorder_value_heads(checkpoint.config(), slot.id, element, unit, &mut data);
        match place.change {
            Change::Keep => {}
            Change::Transposed { n_cols } => {
                let n_rows = data.len() / element / n_cols;
                data = transposed(&data, element, n_rows);
            }
            change => panic!("GGUF files state {change:?} in their values"),
        }
        let dims: Vec<u64> = place.shape.iter().rev().copied().collect();
        let n_bytes = dims.iter().product::<u64>() as usize / ty.block_len() * ty.block_bytes();
        let units_per_name = slot.shape[0] as usize / place.names.len();
        for (name, units) in place.names.iter().zip(data.chunks_exact(units_per_name * unit)) {
            // Several tensors may be parts of a stored one.
            if self.tensors.iter().all(|stored| stored.0 != *name) {
                self.tensors.push((name.clone(), ty.into(), dims.clone(), vec![0; n_bytes]));
            }
            let stored = self.tensors.iter_mut().find(|stored| stored.0 == *name).unwrap();
            assert_eq!((&stored.2, stored.3.len()), (&dims, n_bytes), "{name}");
            for (row, unit_bytes) in units.chunks_exact(unit).enumerate() {
                stored.3[place.rows.stored(row) * unit..][..unit].copy_from_slice(unit_bytes);
            }
        }
    }
}

/// The elements of a tensor of a folder: those of a vector changed as the folder says, and in f32.
fn read(checkpoint: &Checkpoint, slot: &Slot) -> (BlockType, Vec<u8>) {
    let (info, data) = (checkpoint.tensor(slot.id).unwrap(), checkpoint.read(slot.id).unwrap());
    if slot.shape.len() > 1 {
        assert_eq!(info.change, Change::Keep, "{}", info.name());
        return (info.ty, data);
    }
    let mut values = vec![0.0; slot.shape[0] as usize];
    dequantize(info.ty, &data, &mut values);
    match info.change {
        Change::Keep => {}
        Change::PlusOne => values.iter_mut().for_each(|value| *value += 1.0),
        Change::MinusExp => {
            values.iter_mut().for_each(|value| *value = -(libm::exp(f64::from(*value)) as f32));
        }
        Change::Transposed { n_cols } => return (BlockType::F32, transposed(&bytes(&values), 4, n_cols)),
    }
    (BlockType::F32, bytes(&values))
}

/// A matrix with `n_cols` columns, column by column.
fn transposed(data: &[u8], element: usize, n_cols: usize) -> Vec<u8> {
    let n_rows = data.len() / element / n_cols;
    let stored = |i: usize| &data[(i % n_rows * n_cols + i / n_rows) * element..][..element];
    (0..n_rows * n_cols).flat_map(stored).copied().collect()
}

/// Reorders the value heads of a delta rule as converters do: from those that share a key head in a row, to the first of
/// each key head, the second of each, and so on. `unit` is the bytes of a row of a matrix or an element of a vector.
fn reorder_value_heads(config: &ModelConfig, id: WeightId, element: usize, unit: usize, data: &mut [u8]) {
    use LayerWeight::*;
    let WeightId::Layer(layer_idx, weight) = id else { return };
    let Mixer::DeltaNet(delta) = &config.layers[layer_idx].mixer else { return };
    let (n_heads, n_key_heads) = (delta.n_value_heads, delta.n_key_heads);
    let keys = 2 * n_key_heads * delta.key_dim;
    let (head, head_columns) = (delta.value_dim * unit, delta.value_dim * element);
    // Bytes from one list of heads to the next, bytes before the heads, and bytes of a head.
    let (stride, before, head) = match weight {
        DeltaIn => (data.len(), keys * unit, head),
        DeltaGate => (data.len(), 0, head),
        DeltaBeta | DeltaStep | StateA | StateStepBias => (data.len(), 0, unit),
        DeltaOut => (unit, 0, head_columns),
        StateConv => (delta.conv_dim() * element, keys * element, head_columns),
        _ => return,
    };
    for list in data.chunks_exact_mut(stride) {
        let heads = list[before..].to_vec();
        assert_eq!(heads.len(), n_heads * head, "{id:?}");
        for (position, to) in list[before..].chunks_exact_mut(head).enumerate() {
            let from = position % n_key_heads * (n_heads / n_key_heads) + position / n_key_heads;
            to.copy_from_slice(&heads[from * head..][..head]);
        }
    }
}

/// The divisors of frequencies that converters store as tensors, with their names.
pub fn factors(rope: &RopeConfig) -> Vec<(&'static str, Vec<f32>)> {
    match &rope.scaling {
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_len } => {
            let original = *original_context_len as f64;
            let divisor = |i: usize| {
                let exponent = 2.0 * i as f64 / rope.rotary_dim as f64;
                let wave_len = 2.0 * std::f64::consts::PI * rope.theta.powf(exponent);
                if wave_len < original / high_freq_factor {
                    1.0
                } else if wave_len > original / low_freq_factor {
                    *factor as f32
                } else {
                    let smooth =
                        (original / wave_len - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
                }
            };
            vec![("rope_freqs.weight", (0..rope.rotary_dim / 2).map(divisor).collect())]
        }
        RopeScaling::Proportional { n_pairs } => {
            let divisor = |pair: usize| if pair < *n_pairs { 1.0 } else { 1e30 };
            vec![("rope_freqs.weight", (0..rope.rotary_dim / 2).map(divisor).collect())]
        }
        RopeScaling::LongRope { short, long, .. } => {
            vec![("rope_factors_short.weight", short.clone()), ("rope_factors_long.weight", long.clone())]
        }
        _ => Vec::new(),
    }
}

fn metadata(value: &Value) -> GgufValue {
    let float = |value: &Value| match value {
        // JSON has no infinities.
        Value::String(text) => text.parse().unwrap(),
        value => value.as_f64().unwrap() as f32,
    };
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(items) if items.iter().all(Value::is_boolean) => {
            items.iter().map(|item| item.as_bool().unwrap()).collect::<Vec<_>>().into()
        }
        Value::Array(items) if items.iter().all(Value::is_u64) => {
            items.iter().map(|item| item.as_u64().unwrap() as i32).collect::<Vec<_>>().into()
        }
        Value::Array(items) => items.iter().map(float).collect::<Vec<_>>().into(),
        value => value.as_u64().map_or_else(|| float(value).into(), |count| (count as u32).into()),
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
