//! Writes a shape as a GGUF file that both engines load.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use refrain::internals::kernels::BlockType;
use refrain::internals::model::gguf::{GgufFile, GgufWriter};

use super::blocks::push_random;
use super::mix::Mix;
use super::shape::{Role, Shape, Tensor};
use crate::engines::Result;
use crate::random::Random;

/// Spread of the logits: with random weights nothing else determines the flatness of their distribution.
const LOGITS_STD: f32 = 2.0;
/// Spread of biases, and of norm weights around 1.
const VECTOR_STD: f32 = 0.1;
/// Spread of the experts' scores: the first of eight then has most of the weight, as in trained routers, and an expert that rounding
/// exchanges at the end of the list changes little.
const ROUTER_STD: f32 = 3.0;
/// Rates of decay and lengths of time steps before training, by the initialization of Mamba-2. A state halves within one to
/// some hundred tokens: it neither grows nor vanishes.
const DECAYS: std::ops::Range<f32> = 1.0..16.0;
const STEPS: std::ops::Range<f32> = 1e-3..0.1;

/// Writes `shape` with random weights. One tensor is in memory at a time. Returns the number of written bytes.
///
/// The file has the tokenizer and vocabulary of the model `tokenizer_of`; without one, a byte-level BPE of the right
/// size.
///
/// # Errors
/// That model has no list of tokens; or the file could not be written, and is then incomplete.
pub fn write(
    shape: &Shape,
    tokenizer_of: Option<&GgufFile>,
    mix: Mix,
    seed: u64,
    path: &Path,
) -> Result<u64> {
    let vocab_size = tokenizer_of.map_or(Ok(shape.vocab_size), n_tokens)?;
    let shape = &Shape { vocab_size, ..*shape };
    let tensors = shape.tensors();
    let mut writer = GgufWriter::new();
    shape.put_metadata(&mut writer);
    writer.metadata("general.file_type", mix.file_type());
    match tokenizer_of {
        Some(file) => {
            let of_tokenizer = file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer."));
            of_tokenizer.for_each(|(key, value)| _ = writer.metadata(key, value.clone()));
        }
        None => put_tokenizer(shape, &mut writer),
    }
    for tensor in &tensors {
        writer.tensor(&tensor.name, mix.type_of(tensor), &tensor.dims);
    }
    let mut data = writer.start(BufWriter::with_capacity(1 << 20, File::create(path)?))?;
    let mut random = Random::new(seed);
    let mut bytes = Vec::new();
    for tensor in &tensors {
        bytes.clear();
        push_tensor(shape, tensor, mix.type_of(tensor), &mut random, &mut bytes);
        data.write_tensor(&bytes)?;
    }
    let mut out = data.finish()?;
    out.flush()?;
    Ok(out.get_ref().metadata()?.len())
}

fn n_tokens(file: &GgufFile) -> Result<u64> {
    let tokens = file.get("tokenizer.ggml.tokens").and_then(|value| value.as_array());
    let n_tokens = tokens.map(|tokens| tokens.len() as u64);
    n_tokens.ok_or_else(|| format!("{}: no `tokenizer.ggml.tokens`", file.name()).into())
}

fn push_tensor(shape: &Shape, tensor: &Tensor, ty: BlockType, random: &mut Random, out: &mut Vec<u8>) {
    let n_values: u64 = tensor.dims.iter().product();
    // The variance of a uniform number in -1..1 is 1/3.
    let uniform = |random: &mut Random, std: f32| (3f32.sqrt() * std * random.next_f32()).to_le_bytes();
    let near_one = |random: &mut Random| (1.0 + 3f32.sqrt() * VECTOR_STD * random.next_f32()).to_le_bytes();
    let input_std = 1.0 / (tensor.dims[0] as f32).sqrt();
    match tensor.role {
        Role::Norm => (0..n_values).for_each(|_| out.extend(near_one(random))),
        Role::Bias => (0..n_values).for_each(|_| out.extend(uniform(random, VECTOR_STD))),
        Role::Router => (0..n_values).for_each(|_| out.extend(uniform(random, ROUTER_STD * input_std))),
        Role::Conv => (0..n_values).for_each(|_| out.extend(uniform(random, input_std))),
        Role::Decay => {
            let decay = |share: f32| DECAYS.start + share * (DECAYS.end - DECAYS.start);
            (0..n_values).for_each(|_| out.extend((-decay(random.next_share())).to_le_bytes()));
        }
        Role::StepBias => {
            // Softplus gives the step again, which is uniform in its logarithm.
            let step = |share: f32| STEPS.start * (STEPS.end / STEPS.start).powf(share);
            (0..n_values).for_each(|_| out.extend(step(random.next_share()).exp_m1().ln().to_le_bytes()));
        }
        Role::RopeFactors => shape.rope_factors().iter().for_each(|factor| out.extend(factor.to_le_bytes())),
        Role::Head => {
            let std = LOGITS_STD * shape.logit_divisor as f32 * input_std;
            push_random(ty, n_values, std, random, out);
        }
        Role::Important { .. } | Role::Matrix => push_random(ty, n_values, input_std, random, out),
    }
}

/// A byte-level BPE of the right size: the 256 bytes, one merge, and names for the other tokens. It suffices for
/// loading, because the bench passes token numbers.
fn put_tokenizer(shape: &Shape, writer: &mut GgufWriter) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| char_of_byte(byte).to_string()).collect();
    let (left, right) = (char_of_byte(b' '), char_of_byte(b't'));
    tokens.push(format!("{left}{right}"));
    tokens.extend((tokens.len() as u64..shape.vocab_size).map(|id| format!("<|unused_{id}|>")));
    // 1: normal, 3: control, 5: unused (ggml's `token_type`).
    let mut types: Vec<i32> = (0..shape.vocab_size).map(|id| if id <= 256 { 1 } else { 5 }).collect();
    let eos = shape.vocab_size as usize - 1;
    types[eos] = 3;
    writer.metadata("tokenizer.ggml.model", "gpt2");
    let pre = if shape.architecture == "llama" { "llama-bpe" } else { "qwen2" };
    writer.metadata("tokenizer.ggml.pre", pre);
    writer.metadata("tokenizer.ggml.tokens", tokens);
    writer.metadata("tokenizer.ggml.token_type", types);
    writer.metadata("tokenizer.ggml.merges", vec![format!("{left} {right}")]);
    writer.metadata("tokenizer.ggml.bos_token_id", eos as u32);
    writer.metadata("tokenizer.ggml.eos_token_id", eos as u32);
    writer.metadata("tokenizer.ggml.add_bos_token", false);
}

/// GPT-2's printable replacement of a byte: itself if it is printable in Latin-1, else the next free character from
/// 256 on.
fn char_of_byte(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + n_before).expect("68 characters from U+0100 on are assigned")
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Experts, Mixer, Recurrent};
    use super::super::shapes::SHAPES;
    use super::*;
    use clap::ValueEnum;
    use refrain::internals::kernels::{Kernels, Pool};
    use refrain::internals::model::transformer::{Compute, PassEnd};
    use refrain::internals::model::weights::LoadOptions;
    use refrain::internals::model::{Batch, KvCache, Model, Workspace};
    use refrain::checkpoint::Checkpoint;
    use refrain::{KvType, TokenId};

    /// Small dimensions of a published shape, so that the test is quick; rows of 256 let every type occur.
    fn small(name: &str) -> Shape {
        let shape = Shape::parse(name).unwrap();
        let mixer = |mixer| match mixer {
            Mixer::ShortConv { .. } => mixer,
            Mixer::DeltaNet { .. } => Mixer::DeltaNet { n_heads: 4, head_dim: 64, conv_len: 4 },
            Mixer::Mamba2 { .. } => Mixer::Mamba2 { n_heads: 8, head_dim: 64, state_dim: 32, conv_len: 4 },
        };
        let recurrent = shape.recurrent.map(|r| Recurrent { mixer: mixer(r.mixer), attention_layers: &[1] });
        Shape {
            n_layers: 3,
            hidden_dim: 256,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            rotary_dim: shape.rotary_dim.min(64),
            ffn_dim: 512,
            vocab_size: 300,
            context_len: 64,
            recurrent,
            experts: shape.experts.map(|_| Experts { n_experts: 8, n_used: 2, ffn_dim: 256 }),
            ..shape
        }
    }

    #[test]
    fn files_load_and_their_logits_are_finite_and_spread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("small.gguf");
        for Shape { name, .. } in SHAPES {
            for &mix in Mix::value_variants() {
                let n_bytes = write(&small(name), None, mix, 1, &path).unwrap();
                assert_eq!(n_bytes, std::fs::metadata(&path).unwrap().len());
                let checkpoint = Checkpoint::open(&path).unwrap();
                checkpoint.tokenizer().unwrap();
                let model = Model::load(&checkpoint, LoadOptions::default()).unwrap();
                let pool = Pool::new(1);
                let compute = Compute { kernels: Kernels::detect(), pool: &pool };
                let mut kv = KvCache::new(model.config(), KvType::F16, 8).unwrap();
                let mut workspace = Workspace::new(model.config());
                let mut batch = Batch::new();
                batch.set_chain(0, &[5, 90, 17, 256].map(TokenId));
                let never = std::sync::atomic::AtomicBool::new(false);
                model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never).unwrap();
                let mut logits = Vec::new();
                model.logits(compute, &mut workspace, &[3], &mut logits).expect("weights in memory");
                let spread = (logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32).sqrt();
                assert!((0.5..8.0).contains(&spread), "{name} {mix:?}: logits spread by {spread}");
            }
        }
    }

    #[test]
    fn a_file_has_the_tokenizer_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let [with, without] = ["with.gguf", "without.gguf"].map(|name| dir.path().join(name));
        write(&Shape { vocab_size: 290, ..small("llama-3.2-1b") }, None, Mix::Q8_0, 1, &without).unwrap();
        write(&small("qwen2.5-0.5b"), Some(&GgufFile::open(&without).unwrap()), Mix::Q8_0, 1, &with).unwrap();
        let [with, without] = [with, without].map(|path| Checkpoint::open(&path).unwrap());
        assert_eq!(with.tokenizer().unwrap().fingerprint(), without.tokenizer().unwrap().fingerprint());
        assert_eq!(Model::load(&with, LoadOptions::default()).unwrap().config().vocab_size, 290);
    }
}
