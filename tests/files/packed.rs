//! Packed files: the same bits as their source. Any other contents are refused.

use std::path::{Path, PathBuf};

use refrain::checkpoint::{Checkpoint, PackedAccess};
use refrain::internals::draft::CostProfile;
use refrain::internals::error::CheckpointError;
use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::packed::{
    FORMAT_VERSION, PAGE_BYTES, PackSummary, PackedFile, Part, WritePackedError, pack,
};
use refrain::internals::model::weights::LoadOptions;
use refrain::{
    CancelToken, ChatOptions, Engine, EngineOptions, KvType, Message, Quantize, Role, SessionOptions,
    SpecialTokens, TokenId,
};
use tempfile::TempDir;
use xxhash_rust::xxh3::Xxh3;

use crate::common::{Rng, Tiny};
use crate::model_files::hf::{HfModel, HfTensor, safetensors_bytes, tokenizer_json};
use crate::model_files::{self, Gguf, assert_variant, spm_gguf};

/// Packs into `model.refrain` of a new folder.
fn packed(checkpoint: &Checkpoint, quantize: Quantize) -> (TempDir, PathBuf, PackSummary) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    let summary = pack(checkpoint, &path, LoadOptions { quantize, ..LoadOptions::default() }).unwrap();
    (dir, path, summary)
}

fn engine(checkpoint: &Checkpoint, quantize: Quantize, packed_access: PackedAccess) -> Engine {
    let options = EngineOptions {
        n_threads: Some(2),
        quantize,
        packed_access,
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::load(checkpoint, options, |_, _| {}).unwrap()
}

/// The bits of all logits of a text of random tokens.
fn logits(engine: &Engine) -> Vec<u32> {
    let mut rng = Rng(5);
    let tokens: Vec<TokenId> =
        (0..24).map(|_| TokenId(rng.below(engine.tokenizer().vocab_size()) as u32)).collect();
    let options = SessionOptions { kv_type: KvType::F32, history: false, ..SessionOptions::default() };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(&tokens).unwrap();
    let mut logits = Vec::new();
    session
        .score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend(row.iter().map(|x| x.to_bits()))))
        .unwrap();
    assert!(logits.iter().any(|&bits| bits != logits[0]), "logits that say nothing");
    assert!(logits.iter().all(|&bits| f32::from_bits(bits).is_finite()), "logits that are no numbers");
    logits
}

/// Packs `source` and compares all properties of the packed model with those of the source.
#[track_caller]
fn assert_same(source: &Checkpoint, quantize: Quantize, case: &str) {
    let (_dir, path, summary) = packed(source, quantize);
    let direct = engine(source, quantize, PackedAccess::Map);
    let expected = logits(&direct);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.config(), source.config(), "{case}");
    assert_eq!(checkpoint.name(), source.name(), "{case}");
    checkpoint.packed().unwrap().verify(None).unwrap();
    assert_eq!(summary.file_bytes, std::fs::metadata(&path).unwrap().len(), "{case}");
    assert_eq!(summary.identity, direct.model_identity(), "{case}: identity while loading and ahead of time");
    for access in [PackedAccess::Map, PackedAccess::Read] {
        // The file states the types of packing, and the options do not change them.
        for quantize in [Quantize::Keep, Quantize::Q4_0] {
            let engine = engine(&checkpoint, quantize, access);
            assert_eq!(engine.model_identity(), summary.identity, "{case} {access:?}");
            assert_eq!(engine.memory_usage(), direct.memory_usage(), "{case} {access:?}");
            assert_eq!(logits(&engine), expected, "{case} {access:?}");
            assert_eq!(engine.tokenizer().fingerprint(), direct.tokenizer().fingerprint(), "{case}");
        }
    }
    let in_memory = Checkpoint::from_packed_bytes(std::fs::read(&path).unwrap().into(), "memory").unwrap();
    assert_eq!(logits(&engine(&in_memory, Quantize::Keep, PackedAccess::Map)), expected, "{case} in memory");
}

#[test]
fn gguf_models_give_the_same_bits_in_every_type() {
    for ty in [BlockType::Q8_0, BlockType::Q4_0, BlockType::F16, BlockType::F32, BlockType::BF16] {
        let tiny = Tiny { ty, ..Tiny::default() };
        let source = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
        assert_same(&source, Quantize::Keep, ty.name());
    }
    // Rows of K-quants are whole blocks of 256.
    let tiny = Tiny { ty: BlockType::Q4K, hidden_dim: 256, ..Tiny::default() };
    let source = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    assert_same(&source, Quantize::Keep, "Q4_K");
    let tiny = Tiny { ty: BlockType::F16, ..Tiny::default() };
    let source = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    assert_same(&source, Quantize::Q4_0, "F16 as Q4_0");
    assert_same(&source, Quantize::F32, "F16 as F32");
}

/// A block of random codes with small scales: these types can be read, but not written.
fn random_block(rng: &mut Rng, ty: BlockType, data: &mut Vec<u8>) {
    let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| rng.next_u64() as u8).collect();
    let mut scale = Vec::new();
    quantize(BlockType::F16, &[if ty.block_len() == 32 { 0.01 } else { 1e-4 }], &mut scale);
    let places: &[usize] = match ty {
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::Tq2_0 => &[64],
        BlockType::Q5_0 | BlockType::Iq4Nl | BlockType::Iq4Xs => &[0],
        BlockType::Mxfp4 => &[],
        _ => &[0, 2],
    };
    if ty == BlockType::Mxfp4 {
        block[0] = 120;
    }
    places.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&scale));
    data.extend(block);
}

/// `Gguf::tiny` with numbers as weights: llama, its Q and K interleaved, the head tied, the vocabulary padded.
fn llama_gguf(ty: BlockType) -> Gguf {
    let mut gguf = Gguf::tiny();
    // K-quants need rows of 256 columns.
    let (hidden, q_dim, kv_dim, ffn) = (256, 32, 16, 256);
    gguf.set("llama.embedding_length", hidden as u32).set("llama.feed_forward_length", ffn as u32);
    let mut rng = Rng(3);
    for (name, found, dims, data) in &mut gguf.tensors {
        *dims = match name.rsplit_once('.').unwrap().0.rsplit('.').next().unwrap() {
            "token_embd" => vec![hidden, 320],
            "attn_q" => vec![hidden, q_dim],
            "attn_k" | "attn_v" => vec![hidden, kv_dim],
            "attn_output" => vec![q_dim, hidden],
            "ffn_gate" | "ffn_up" => vec![hidden, ffn],
            "ffn_down" => vec![ffn, hidden],
            _ => vec![hidden],
        };
        let ty = if dims.len() == 1 || dims[0] % ty.block_len() as u64 != 0 { BlockType::F32 } else { ty };
        let n_values = dims.iter().product::<u64>() as usize;
        data.clear();
        if ty.is_float() || matches!(ty, BlockType::Q8_0 | BlockType::Q4_0) {
            let values: Vec<f32> = (0..n_values).map(|_| 0.3 * rng.signed()).collect();
            quantize(ty, &values, data);
        } else {
            (0..n_values / ty.block_len()).for_each(|_| random_block(&mut rng, ty, data));
        }
        *found = ty.into();
    }
    gguf
}

#[test]
fn a_llama_gguf_with_interleaved_rows_and_a_tied_head() {
    for ty in BlockType::ALL {
        let source = Checkpoint::from_gguf_bytes(llama_gguf(ty).bytes().into(), "llama.gguf").unwrap();
        assert!(source.config().tied_head);
        assert_same(&source, Quantize::Keep, ty.name());
    }
    // The divisors of rotary frequencies become hyper-parameters, to the bit.
    let mut gguf = llama_gguf(BlockType::F32);
    gguf.add_tensor("rope_freqs.weight", BlockType::F32, &[4]);
    gguf.tensors.last_mut().unwrap().3 =
        [1.0f32, 1.1, 3.3333333, 7.7].iter().flat_map(|f| f.to_le_bytes()).collect();
    assert_same(
        &Checkpoint::from_gguf_bytes(gguf.bytes().into(), "llama.gguf").unwrap(),
        Quantize::Keep,
        "factors",
    );
}

/// A folder with numbers as weights, and a tokenizer with every file beside it.
fn hf_folder(model_type: &str, change: impl Fn(&mut HfModel)) -> (TempDir, Checkpoint) {
    let mut model = HfModel::tiny(model_type);
    model.set_vocab_size(320);
    change(&mut model);
    model.tensors.iter_mut().for_each(|tensor| tensor.dtype = "F32");
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("config.json", &model.config.to_string());
    write("tokenizer.json", &tokenizer_json().to_string());
    write("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#);
    write("generation_config.json", r#"{"eos_token_id": [260, 258]}"#);
    write("chat_template.jinja", "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}");
    std::fs::write(dir.path().join("model.safetensors"), numbers(&model.tensors)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

/// A `.safetensors` file of F32 tensors with values below one.
fn numbers(tensors: &[HfTensor]) -> Vec<u8> {
    let mut bytes = safetensors_bytes(tensors);
    let n_values: u64 = tensors.iter().map(|t| t.shape.iter().product::<u64>()).sum();
    let start = bytes.len() - 4 * n_values as usize;
    let mut rng = Rng(9);
    bytes[start..].as_chunks_mut().0.iter_mut().for_each(|value| *value = (0.5 * rng.signed()).to_le_bytes());
    bytes
}

#[test]
fn hugging_face_folders_of_every_architecture() {
    for (model_type, quantize) in [
        ("llama", Quantize::Q8_0),
        ("qwen2", Quantize::Q8_0),
        ("qwen3", Quantize::Q8_0),
        ("qwen2", Quantize::Q4_0),
        ("qwen3", Quantize::Keep),
        ("llama", Quantize::F32),
    ] {
        let (_dir, source) = hf_folder(model_type, |_| {});
        assert!(!source.config().tied_head);
        assert_eq!(source.config().attention(0).unwrap().qkv_bias, model_type == "qwen2");
        assert_same(&source, quantize, &format!("{model_type} {quantize:?}"));
    }
    let (_dir, tied) = hf_folder("qwen2", |model| {
        model.config["tie_word_embeddings"] = true.into();
        model.remove("lm_head.weight");
    });
    assert!(tied.config().tied_head);
    assert_same(&tied, Quantize::Q8_0, "tied qwen2");
    let (_dir, scaled) = hf_folder("llama", |model| {
        model.config["rope_scaling"] = serde_json::json!({"rope_type": "llama3", "factor": 8.1, "low_freq_factor": 1.0,
            "high_freq_factor": 4.3, "original_max_position_embeddings": 64});
        model.config["rms_norm_eps"] = 1.0000001e-5.into();
    });
    assert_same(&scaled, Quantize::Q8_0, "llama3 scaling");
}

#[test]
fn golden_models_too() {
    for name in model_files::GOLDEN.into_iter().chain(model_files::GOLDEN_EXPERTS) {
        let path = model_files::golden(name);
        assert_same(&Checkpoint::open(&path).unwrap(), Quantize::Q8_0, name);
        assert_same(&Checkpoint::open(&path).unwrap(), Quantize::Keep, name);
    }
}

#[test]
fn matrices_of_several_pieces_are_read_whole() {
    // In f32 the largest have 8 MiB, several of the pieces that a thread reads, and the smallest less than one.
    let tiny = Tiny { hidden_dim: 1024, n_layers: 1, head_dim: 256, ..Tiny::DEFAULT };
    let source = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny.gguf").unwrap();
    assert_same(&source, Quantize::Keep, "several pieces");
}

#[test]
fn a_packed_model_can_be_widened_for_reference_checks() {
    let (_dir, source) = hf_folder("qwen3", |_| {});
    let (_packed_dir, path, summary) = packed(&source, Quantize::Keep);
    let packed_model = Checkpoint::open(&path).unwrap();
    let widened = engine(&packed_model, Quantize::F32, PackedAccess::Map);
    let direct = engine(&source, Quantize::F32, PackedAccess::Map);
    assert_eq!(logits(&widened), logits(&direct));
    // For Q8_0, the widened weights are the values of the 8-bit codes.
    let (_dir_q8, path, summary_q8) = packed(&source, Quantize::Q8_0);
    let widened = engine(&Checkpoint::open(&path).unwrap(), Quantize::F32, PackedAccess::Read);
    assert!(widened.memory_usage() > engine(&source, Quantize::Q8_0, PackedAccess::Map).memory_usage());
    assert_ne!(widened.model_identity(), summary_q8.identity);
    assert_ne!(summary.identity, summary_q8.identity);
}

#[test]
fn tokenizers_and_templates_come_along() {
    let (_dir, folder) = hf_folder("llama", |_| {});
    let mut spm = llama_gguf(BlockType::F32);
    spm.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
    spm.metadata.extend(spm_gguf().metadata);
    let keep = |gguf: &Gguf| Checkpoint::from_gguf_bytes(gguf.bytes().into(), "model.gguf").unwrap();
    let (gguf, spm) = (keep(&llama_gguf(BlockType::F32)), keep(&spm));
    for (case, source) in [("folder", &folder), ("gguf", &gguf), ("sentence piece", &spm)] {
        let (_dir, path, _) = packed(source, Quantize::Q8_0);
        let (a, b) = (source.tokenizer().unwrap(), Checkpoint::open(&path).unwrap().tokenizer().unwrap());
        assert_eq!(
            (a.fingerprint(), a.eos(), a.bos(), a.adds_bos()),
            (b.fingerprint(), b.eos(), b.bos(), b.adds_bos())
        );
        for text in ["", "abc abcab", "naïve 日本 <|im_end|>"] {
            for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
                assert_eq!(a.encode(text, special).unwrap(), b.encode(text, special).unwrap(), "{case}");
            }
        }
        let chat = [Message::new(Role::User, "abc?")];
        let (a, b) = (
            a.encode_chat(&chat, &ChatOptions::default(), true),
            b.encode_chat(&chat, &ChatOptions::default(), true),
        );
        assert_eq!(a.is_ok(), case != "sentence piece");
        assert_eq!(a.ok(), b.ok(), "{case}");
    }
    // If the source has no tokenizer, the packed model has none, with the same error.
    let bare = tempfile::tempdir().unwrap();
    HfModel::tiny("llama").write(bare.path());
    let source = Checkpoint::open(bare.path()).unwrap();
    let (_dir, path, _) = packed(&source, Quantize::Q8_0);
    for checkpoint in [source, Checkpoint::open(&path).unwrap()] {
        assert_variant(&checkpoint.tokenizer().unwrap_err(), "Missing", &["tokenizer.json"]);
    }
}

#[test]
fn sections_are_pages_in_order() {
    let (_dir, source) = hf_folder("qwen3", |_| {});
    let (_packed_dir, path, summary) = packed(&source, Quantize::Q8_0);
    let file = PackedFile::open(&path).unwrap();
    let parts: Vec<Part> = file.sections().iter().map(|s| s.part).collect();
    assert_eq!(parts, [Part::Embedding, Part::Layer(0), Part::Output]);
    let mut end = file.sections()[0].offset;
    for section in file.sections() {
        assert_eq!((section.offset, section.offset % PAGE_BYTES, section.len % PAGE_BYTES), (end, 0, 0));
        end += section.len;
        for tensor in &section.tensors {
            assert_eq!(tensor.offset % 64, 0);
            assert!(tensor.offset + tensor.len <= section.len);
        }
    }
    assert_eq!(end, file.file_bytes());
    assert_eq!(summary.n_sections, 3);
    assert!(matches!(
        Checkpoint::open(&path).unwrap().read(refrain::internals::model::checkpoint::WeightId::Embedding),
        Err(CheckpointError::PackedTensor { .. })
    ));
}

#[test]
fn packing_what_is_packed_is_refused() {
    let (_dir, source) = hf_folder("llama", |_| {});
    let (dir, path, _) = packed(&source, Quantize::Q8_0);
    let again = pack(&Checkpoint::open(&path).unwrap(), &dir.path().join("again"), LoadOptions::default());
    let error = again.unwrap_err();
    assert!(matches!(error, WritePackedError::AlreadyPacked { .. }), "{error}");
    assert!(!dir.path().join("again").exists());
    // A missing folder.
    let error = pack(&source, Path::new("/nowhere/at/all.refrain"), LoadOptions::default()).unwrap_err();
    assert_variant(&error, "Replace", &["create", "nowhere"]);
}

#[test]
fn a_mapped_model_outlives_its_replacement() {
    let (_dir, source) = hf_folder("llama", |_| {});
    let (_packed_dir, path, _) = packed(&source, Quantize::Q8_0);
    let engine = engine(&Checkpoint::open(&path).unwrap(), Quantize::Keep, PackedAccess::Map);
    let before = logits(&engine);
    let (_other_dir, other) = hf_folder("qwen3", |_| {});
    pack(&other, &path, LoadOptions::default()).unwrap();
    assert_eq!(logits(&engine), before);
    assert_eq!(Checkpoint::open(&path).unwrap().config().architecture, other.config().architecture);
}

// ---- Damage ----

/// A small packed file, and the offset of its data.
fn small() -> (Vec<u8>, usize) {
    let (_dir, source) = hf_folder("qwen2", |_| {});
    let (_packed_dir, path, _) = packed(&source, Quantize::Q8_0);
    let bytes = std::fs::read(&path).unwrap();
    let json_len = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    (bytes, (40 + json_len).next_multiple_of(PAGE_BYTES) as usize)
}

fn refusal(bytes: Vec<u8>) -> refrain::internals::model::packed::PackedFileError {
    PackedFile::from_bytes(bytes.into(), "damaged.refrain").expect_err("a damaged file was accepted")
}

#[test]
fn every_flipped_byte_before_the_data_is_refused() {
    let (bytes, data_start) = small();
    for at in 0..data_start {
        for mask in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= mask;
            let variant = match at {
                0..8 => "Magic",
                8..12 => "Version",
                12..16 => "PanelLayout",
                // A length may exceed its limit or the file, or only be wrong.
                16..24 => "",
                _ => "HeaderChecksum",
            };
            assert_variant(&refusal(damaged), variant, &["damaged.refrain"]);
        }
    }
}

#[test]
fn every_cut_is_refused() {
    let (bytes, data_start) = small();
    let last_page = bytes.len() - PAGE_BYTES as usize;
    let pages = (0..bytes.len()).step_by(PAGE_BYTES as usize);
    let cuts = (0..64).chain(pages).chain([data_start - 1, data_start + 1, last_page + 1, bytes.len() - 1]);
    for len in cuts {
        let variant = if len < 8 { "Magic" } else { "Truncated" };
        assert_variant(&refusal(bytes[..len].to_vec()), variant, &["damaged.refrain"]);
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_variant(&refusal(longer), "FileLength", &["offset 24"]);
    // The same on a disk.
    let file = tempfile::Builder::new().suffix(".refrain").tempfile().unwrap();
    std::fs::write(file.path(), &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(Checkpoint::open(file.path()).unwrap_err().detail(), Some(CheckpointError::Packed(_))));
    std::fs::write(file.path(), b"").unwrap();
    assert_variant(&Checkpoint::open(file.path()).unwrap_err(), "Packed(Magic", &[]);
}

#[test]
fn every_flipped_byte_of_the_data_is_found() {
    let (bytes, data_start) = small();
    let sections = PackedFile::from_bytes(bytes.clone().into(), "whole").unwrap().sections().to_vec();
    // Each 97th byte, and the edges of every section.
    let edges = sections.iter().flat_map(|s| [s.offset, s.offset + s.len - 1]).map(|at| at as usize);
    for at in (data_start..bytes.len()).step_by(97).chain(edges) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let file = PackedFile::from_bytes(damaged.into(), "damaged.refrain").unwrap();
        let error = file.verify(None).unwrap_err();
        let section = sections.iter().find(|s| (s.offset..s.offset + s.len).contains(&(at as u64)));
        let name = section.map_or("tokenizer".to_owned(), |s| s.part.to_string());
        assert_variant(&error, "SectionChecksum", &["damaged.refrain", &format!("`{name}`")]);
        // The tokenizer's section is verified at every read.
        assert_eq!(file.tokenizer().is_err(), section.is_none());
    }
}

#[test]
fn verifying_reports_progress() {
    let (bytes, data_start) = small();
    let total = (bytes.len() - data_start) as u64;
    let seen = std::cell::RefCell::new(Vec::new());
    let file = PackedFile::from_bytes(bytes.into(), "whole").unwrap();
    file.verify(Some(&|done, of| seen.borrow_mut().push((done, of)))).unwrap();
    assert_eq!(seen.borrow().last(), Some(&(total, total)));
}

/// Changes the JSON of a packed file and corrects its lengths and checksum: a forgery.
fn forged(change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let (bytes, data_start) = small();
    let json_len = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let mut json = serde_json::from_slice(&bytes[40..40 + json_len]).unwrap();
    change(&mut json);
    with_header(&bytes[..16], json.to_string().as_bytes(), &bytes[data_start..])
}

fn with_header(start: &[u8], json: &[u8], data: &[u8]) -> Vec<u8> {
    let data_start = (40 + json.len()).next_multiple_of(PAGE_BYTES as usize);
    let mut bytes = start.to_vec();
    bytes.extend((json.len() as u64).to_le_bytes());
    bytes.extend(((data_start + data.len()) as u64).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend_from_slice(json);
    bytes.resize(data_start, 0);
    let mut hash = Xxh3::new();
    hash.update(&bytes[..32]);
    hash.update(&bytes[40..]);
    bytes[32..40].copy_from_slice(&hash.digest().to_le_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The attention of the first layer in a header.
fn attention(header: &mut serde_json::Value) -> &mut serde_json::Value {
    &mut header["config"]["layers"][0]["mixer"]["attention"]
}

#[test]
fn forged_headers_are_refused_with_the_field() {
    assert!(PackedFile::from_bytes(forged(|_| {}).into(), "forged").is_ok());
    type Change = fn(&mut serde_json::Value);
    let cases: [(&str, &str, Change); 24] = [
        ("Header", "unknown field", |h| h["more"] = 1.into()),
        ("Header", "missing field", |h| _ = h.as_object_mut().unwrap().remove("config")),
        ("Header", "hexadecimal", |h| h["sections"][0]["checksum"] = "+00000000000000f".into()),
        ("Header", "invalid", |h| h["sections"][0]["offset"] = (-1).into()),
        ("Header", "perceptron", |h| h["config"]["architecture"] = "perceptron".into()),
        ("Config(OutOfRange", "n_layers", |h| h["config"]["layers"] = serde_json::json!([])),
        ("Config(OutOfRange", "n_layers", |h| {
            let layer = h["config"]["layers"][0].clone();
            h["config"]["layers"] = vec![layer; 1025].into();
        }),
        ("Config(OutOfRange", "vocab_size", |h| h["config"]["vocab_size"] = (1u64 << 40).into()),
        ("Config(Inconsistent", "n_kv_heads", |h| attention(h)["n_kv_heads"] = 3.into()),
        ("Count", "sections", |h| {
            let layer = h["config"]["layers"][0].clone();
            h["config"]["layers"].as_array_mut().unwrap().push(layer);
        }),
        ("Count", "layer.0", |h| attention(h)["qkv_bias"] = false.into()),
        ("Count", "output", |h| h["config"]["tied_head"] = true.into()),
        ("Name", "layer.0", |h| h["sections"][1]["name"] = "layer.1".into()),
        ("Name", "token_embd", |h| h["sections"][0]["tensors"][0]["name"] = "token_embed".into()),
        ("Name", "tokenizer file", |h| h["tokenizer"]["files"][0]["name"] = "../config.json".into()),
        ("Name", "tokenizer file", |h| h["tokenizer"]["files"][1]["name"] = "tokenizer.json".into()),
        ("Type", "Q9_9", |h| h["sections"][0]["tensors"][0]["type"] = "Q9_9".into()),
        ("Type", "attn_norm", |h| h["sections"][1]["tensors"][0]["type"] = "F16".into()),
        ("Shape", "token_embd", |h| h["sections"][0]["tensors"][0]["shape"][0] = 321.into()),
        ("Pack", "whole number", |h| h["sections"][0]["tensors"][0]["type"] = "Q4_K".into()),
        ("Length", "token_embd", |h| h["sections"][0]["tensors"][0]["len"] = 64.into()),
        ("Length", "tokenizer", |h| h["tokenizer"]["len"] = u64::MAX.into()),
        ("Offset", "attn_q", |h| h["sections"][1]["tensors"][1]["offset"] = 0.into()),
        ("Offset", "layer.0", |h| h["sections"][1]["offset"] = u64::MAX.into()),
    ];
    for (variant, part, change) in cases {
        assert_variant(&refusal(forged(change)), variant, &[part]);
    }
    // Another type with the same bits per weight moves no section, so only the matrix is wrong. A wider type moves
    // all.
    let wider: Change = |h| h["sections"][0]["tensors"][0]["type"] = "F32".into();
    assert_variant(&refusal(forged(wider)), "Length", &["embedding"]);
    let lengths: Change = |h| {
        h["tokenizer"]["files"][0]["len"] = (u64::MAX - 1).into();
        h["tokenizer"]["files"][1]["len"] = (u64::MAX - 1).into();
    };
    assert_variant(&refusal(forged(lengths)), "SizeOverflow", &[]);
}

#[test]
fn other_versions_are_refused_by_number() {
    let (bytes, _) = small();
    let with = |at: usize, number: u32| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        refusal(bytes)
    };
    let newer = FORMAT_VERSION + 1;
    assert_variant(
        &with(8, newer),
        "Version",
        &[&format!("version {newer}"), &format!("supported: {FORMAT_VERSION}"), "`refrain model pack MODEL "],
    );
    assert_variant(&with(12, 77), "PanelLayout", &["layout 77", "`refrain model pack MODEL "]);
    let mut long = bytes.clone();
    long[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_variant(&refusal(long), "OverLimit", &["header length", "offset 16"]);
    let mut past = bytes.clone();
    past[16..24].copy_from_slice(&(8u64 << 20).to_le_bytes());
    assert_variant(&refusal(past), "Truncated", &["header", "offset 40"]);
}

#[test]
fn packing_is_deterministic() {
    let (_dir, source) = hf_folder("llama", |_| {});
    let (_a, a, _) = packed(&source, Quantize::Q8_0);
    let (_b, b, _) = packed(&source, Quantize::Q8_0);
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap());
}
