//! The golden models as llama.cpp's converter writes them: this project's names, shapes and changes of values give the
//! converter's tensors, byte for byte, and the file gives the folder's logits. `gguf.json` of a golden folder lists what the
//! converter wrote.

use std::collections::BTreeSet;
use std::path::PathBuf;

use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::arch::Architecture;
use refrain::internals::model::arch::tensors::{Container, place, slots};
use refrain::internals::model::checkpoint::Change;
use refrain::internals::model::config::{FeedForward, Mixer, ModelConfig, RopeScaling};
use refrain::{CancelToken, Engine, EngineOptions, KvType, Quantize, SessionOptions, TokenId};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use crate::common::plain;
use crate::model_files::converted::{converted, factors};
use crate::model_files::{Gguf, golden};

/// Distance of logits from the reference that its own rounding explains.
const TOLERANCE: f32 = 2e-4;

/// What a converted file has in common with its folder beside names and values.
#[derive(Clone, Copy, PartialEq)]
enum Common {
    /// The bits of the logits.
    Bits,
    /// Logits near the reference: the file states a number in f32, or sums run in another order.
    Logits,
    /// Nothing more, for the reason given.
    Tensors(&'static str),
}

/// Golden folder, longest context, and what the file has in common with it.
const CONVERTED: &[(&str, Option<usize>, Common)] = &[
    ("gemma3", None, Common::Tensors("the converter drops an uneven plan of layers")),
    ("gemma3-multimodal", None, Common::Bits),
    // The converter computes the cutoffs of activations in f32.
    ("gemma3n", None, Common::Logits),
    ("gemma4", None, Common::Bits),
    ("gemma4-experts", None, Common::Bits),
    ("gpt_oss", None, Common::Bits),
    ("granite", None, Common::Bits),
    ("granitemoehybrid", None, Common::Bits),
    ("granitemoehybrid-dense", None, Common::Bits),
    ("lfm2", None, Common::Bits),
    ("lfm2_moe", None, Common::Bits),
    ("llama", None, Common::Bits),
    // The converter drops dynamic scaling, which begins behind the original context.
    ("llama-dynamic", Some(64), Common::Bits),
    ("minicpm", None, Common::Bits),
    ("ministral3", None, Common::Bits),
    ("mistral", None, Common::Tensors("the converter drops the window")),
    ("olmo2", None, Common::Bits),
    ("olmo3", None, Common::Bits),
    ("phi3", Some(64), Common::Bits),
    // The columns of the output projection are in another order, and so are its sums.
    ("qwen3_5", None, Common::Logits),
    ("qwen3_5-grouped", None, Common::Logits),
    ("qwen3-grouped", None, Common::Bits),
    ("qwen3_moe", None, Common::Bits),
    ("smollm3", None, Common::Bits),
];

/// Golden models without the converter's list.
const NOT_CONVERTED: &[(&str, &str)] = &[
    ("ministral", "the converter refuses `MinistralForCausalLM`"),
    ("qwen2", "its names are the standard ones"),
    ("qwen3", "its names are the standard ones"),
];

#[test]
fn every_family_is_listed() {
    let folders = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().path());
    let (listed, others): (Vec<_>, Vec<_>) = folders
        .filter(|path| path.join("config.json").exists())
        .partition(|path| path.join("gguf.json").exists());
    let names = |paths: &[PathBuf]| -> BTreeSet<String> {
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&listed), CONVERTED.iter().map(|case| case.0.to_owned()).collect());
    assert_eq!(names(&others), NOT_CONVERTED.iter().map(|case| case.0.to_owned()).collect());
    let open = |path: &PathBuf| Checkpoint::open(path).unwrap().config().architecture.name();
    let families: BTreeSet<&str> = listed.iter().chain(&others).map(open).collect();
    assert_eq!(Architecture::names().collect::<BTreeSet<_>>(), families);
}

#[test]
fn tensors_are_those_of_the_converter() {
    for (family, ..) in CONVERTED {
        let list = converted(&golden(family)).unwrap();
        let listed = list["tensors"].as_object().unwrap();
        let gguf = file(family);
        let names: BTreeSet<&str> = gguf.tensors.iter().map(|tensor| tensor.0.as_str()).collect();
        assert_eq!(names, listed.keys().map(String::as_str).collect(), "{family}");
        let exponentials = exponentials(family);
        for (name, ty, _, data) in &gguf.tensors {
            let listed = &listed[name];
            assert_eq!(Some(&*ty.to_string()), listed["type"].as_str(), "{family} {name}");
            let expected = listed["sha256"].as_str().unwrap();
            let equal = match exponentials.contains(name) {
                true => neighbours(data).any(|data| sha256(&data) == expected),
                false => sha256(data) == expected,
            };
            assert!(equal, "{family}: the values of {name} are not the converter's");
        }
    }
}

/// The file of a golden folder with its tensors in f32 and in the shapes that the converter gives them.
fn file(family: &str) -> Gguf {
    let path = golden(family);
    let list = converted(&path).unwrap();
    let mut gguf = Gguf::from_golden(&path).widened();
    for (name, _, dims, _) in &mut gguf.tensors {
        let shape =
            list["tensors"][name.as_str()]["shape"].as_array().unwrap_or_else(|| panic!("{family} {name}"));
        let shape: Vec<u64> = shape.iter().map(|dim| dim.as_u64().unwrap()).collect();
        // Dimensions of length 1 count for nothing.
        let long = |dims: &[u64]| dims.iter().copied().filter(|dim| *dim != 1).collect::<Vec<_>>();
        assert_eq!(long(dims), long(&shape), "{family} {name}");
        *dims = shape;
    }
    gguf
}

/// The names of tensors that the converter writes as exponentials.
fn exponentials(family: &str) -> BTreeSet<String> {
    let checkpoint = Checkpoint::open(golden(family)).unwrap();
    let config = checkpoint.config();
    let changed = |id| checkpoint.tensor(id).unwrap().change == Change::MinusExp;
    let of_gguf = |slot| place(config, &slot, Container::Gguf).names.remove(0);
    slots(config).into_iter().filter(|slot| changed(slot.id)).map(of_gguf).collect()
}

/// All vectors whose numbers are at most one unit in the last place off: f32 libraries round exponentials so.
fn neighbours(data: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let bits: Vec<u32> = data.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert!(bits.len() <= 8, "{} numbers have too many neighbours", bits.len());
    (0..3usize.pow(bits.len() as u32)).map(move |choice| {
        let off = |i: usize| (choice / 3usize.pow(i as u32) % 3) as u32;
        bits.iter().enumerate().flat_map(|(i, bits)| (bits + off(i) - 1).to_le_bytes()).collect()
    })
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn files_have_the_configuration_of_their_folders() {
    for (family, _, common) in CONVERTED {
        let (folder, file) = both(family);
        let (mut folder, mut file) = (stated(folder.config()), file.config().clone());
        if folder.ropes.is_empty() {
            // The converter states a million positions where nothing rotates.
            assert_eq!(file.context_len, 1 << 20, "{family}");
            folder.context_len = file.context_len;
        }
        for (layer, of_folder) in file.layers.iter_mut().zip(&folder.layers) {
            if let (FeedForward::Dense(dense), FeedForward::Dense(exact)) = (&mut layer.feed, &of_folder.feed)
            {
                let difference = dense.cutoff.unwrap_or(0.0) - exact.cutoff.unwrap_or(0.0);
                assert!(difference.abs() < 1e-6, "{family}");
                assert_eq!(dense.cutoff.is_some(), exact.cutoff.is_some(), "{family}");
                dense.cutoff = exact.cutoff;
            }
            if let Mixer::DeltaNet(delta) = &mut layer.mixer {
                // The order of the value heads, which the converter changes.
                assert_eq!(delta.strided, delta.n_key_heads != delta.n_value_heads, "{family}");
                delta.strided = false;
            }
        }
        match common {
            Common::Tensors(_) => assert_ne!(folder.layers, file.layers, "{family}"),
            _ => assert_eq!(folder, file, "{family}"),
        }
    }
}

/// A folder's configuration in the form of GGUF files.
fn stated(folder: &ModelConfig) -> ModelConfig {
    let mut config = folder.clone();
    for rope in &mut config.ropes {
        let factors = factors(rope);
        match &mut rope.scaling {
            scaling @ RopeScaling::Llama3 { .. } => *scaling = RopeScaling::Factors(factors[0].1.clone()),
            scaling @ &mut RopeScaling::Dynamic { original_context_len, .. } => {
                config.context_len = original_context_len;
                *scaling = RopeScaling::None;
            }
            RopeScaling::LongRope { attention_factor, .. } => {
                *attention_factor = f64::from(*attention_factor as f32);
            }
            _ => {}
        }
    }
    config
}

fn both(family: &str) -> (Checkpoint, Checkpoint) {
    let file = Checkpoint::from_gguf_bytes(file(family).bytes().into(), family);
    (Checkpoint::open(golden(family)).unwrap(), file.unwrap_or_else(|error| panic!("{family}: {error}")))
}

#[test]
fn files_have_the_logits_of_their_folders() {
    for &(family, context_len, common) in CONVERTED {
        if let Common::Tensors(_) = common {
            continue;
        }
        check_logits(family, "", context_len, common);
    }
}

/// Files state LongRoPE's factors of both lengths. A context behind the original one has its own.
#[test]
fn files_have_the_logits_of_their_folders_behind_the_original_context() {
    check_logits("phi3", "long_", Some(256), Common::Bits);
}

/// Compares logits of the prompt whose name has this prefix with the reference's, and with the folder's.
fn check_logits(family: &str, prefix: &str, context_len: Option<usize>, common: Common) {
    let bytes = std::fs::read(golden(family).join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words =
        |name: &str| tensors.tensor(&format!("{prefix}{name}")).unwrap().data().as_chunks::<4>().0.to_vec();
    let prompt: Vec<TokenId> =
        words("prompt").into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect();
    let reference: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let (folder, file) = both(family);
    let (folder, file) = (logits(&folder, &prompt, context_len), logits(&file, &prompt, context_len));
    assert_eq!(file.len(), reference.len());
    let off = file.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Gemma 4 does not scale its scores down, so that rounding shows more.
    let tolerance = if family.starts_with("gemma4") { 2.0 * TOLERANCE } else { TOLERANCE };
    assert!(off < tolerance, "{family}: off by {off}");
    let same = file.iter().zip(&folder).all(|(a, b)| a.to_bits() == b.to_bits());
    assert_eq!(same, common == Common::Bits, "{family}: the bits of the logits");
}

/// As the converter writes a model that predicts further tokens, unless it is told to leave the blocks for that out.
#[test]
fn blocks_that_predict_further_tokens_are_ignored() {
    let (_, plain) = both("qwen3_5");
    let n_layers = plain.config().n_layers();
    let mut miscounted = file("qwen3_5");
    let is_recurrent = |layer_idx| plain.config().attention(layer_idx).is_none() && layer_idx < n_layers;
    miscounted.set("qwen35.block_count", n_layers as u32 + 1);
    miscounted
        .set("qwen35.attention.recurrent_layers", (0..=n_layers).map(is_recurrent).collect::<Vec<bool>>());
    let mut with_blocks = Gguf { metadata: miscounted.metadata.clone(), ..file("qwen3_5") };
    with_blocks.set("qwen35.nextn_predict_layers", 1u32);
    for name in ["attn_norm", "attn_q", "nextn.eh_proj", "nextn.shared_head_norm"] {
        with_blocks.add_tensor(&format!("blk.{n_layers}.{name}.weight"), BlockType::F32, &[32, 4]);
    }
    let with_blocks = Checkpoint::from_gguf_bytes(with_blocks.bytes().into(), "with blocks").unwrap();
    assert_eq!(with_blocks.config(), plain.config());
    let prompt = [3, 1, 4, 1, 5].map(TokenId);
    let bits = |checkpoint| logits(checkpoint, &prompt, None).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&with_blocks), bits(&plain));
    // A block that is counted as a layer is one.
    let error = Checkpoint::from_gguf_bytes(miscounted.bytes().into(), "miscounted").unwrap_err();
    assert!(error.to_string().contains(&format!("blk.{n_layers}.")), "{error}");
}

fn logits(checkpoint: &Checkpoint, prompt: &[TokenId], context_len: Option<usize>) -> Vec<f32> {
    let options = EngineOptions {
        n_threads: Some(1),
        quantize: Quantize::F32,
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    let engine = Engine::load(checkpoint, options, |_, _| {}).unwrap();
    let mut session =
        engine.session(SessionOptions { kv_type: KvType::F32, context_len, ..plain() }).unwrap();
    session.append_tokens(prompt).unwrap();
    let mut logits = Vec::new();
    session.score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend_from_slice(row))).unwrap();
    logits
}

/// Writes every converted file to the folder that the variable `REFRAIN_GGUF_DIR` names, for other engines.
#[test]
#[ignore = "writes files: REFRAIN_GGUF_DIR names the folder"]
fn files_for_other_engines() {
    let dir = std::env::var_os("REFRAIN_GGUF_DIR").expect("REFRAIN_GGUF_DIR names a folder");
    let dir = std::path::PathBuf::from(dir);
    for (family, ..) in CONVERTED {
        let path = dir.join(format!("{family}.gguf"));
        std::fs::write(&path, file(family).bytes()).unwrap();
        assert!(Checkpoint::open(&path).unwrap().tokenizer().is_ok(), "{family}");
    }
}

#[test]
fn gate_and_up_of_experts_may_be_apart() {
    let (folder, mut gguf) = (Checkpoint::open(golden("gemma4-experts")).unwrap(), file("gemma4-experts"));
    for tensor in std::mem::take(&mut gguf.tensors) {
        let (name, ty, dims, data) = &tensor;
        let Some(prefix) = name.strip_suffix("ffn_gate_up_exps.weight") else {
            gguf.tensors.push(tensor);
            continue;
        };
        let n_experts = dims[2] as usize;
        let half = data.len() / n_experts / 2;
        for (first, matrix) in [(0, "gate"), (1, "up")] {
            let own = data.chunks_exact(half).skip(first).step_by(2).flatten().copied().collect();
            let name = format!("{prefix}ffn_{matrix}_exps.weight");
            gguf.tensors.push((name, *ty, vec![dims[0], dims[1] / 2, dims[2]], own));
        }
    }
    assert!(gguf.tensors.iter().any(|tensor| tensor.0 == "blk.3.ffn_up_exps.weight"));
    let file = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "file").unwrap();
    assert_eq!(file.config(), folder.config());
    let prompt: Vec<TokenId> = (0..50).map(|i| TokenId(i * 7 % 250)).collect();
    let (found, expected) = (logits(&file, &prompt, None), logits(&folder, &prompt, None));
    assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}
