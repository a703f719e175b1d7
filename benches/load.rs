//! The time until a model's weights can be used: from a GGUF file, and packed, mapped or read.
//!
//! ```sh
//! cargo bench --bench load                           # 1 GB; takes twice that in the temporary folder, and in memory
//! REFRAIN_LOAD_MB=128 cargo bench --bench load
//! REFRAIN_LOAD_TYPE=BF16 cargo bench --bench load    # numbers instead of Q8_0, which loading quantises
//! REFRAIN_LOAD_MODEL=model.gguf cargo bench --bench load
//! ```
//!
//! Without a given model, the bench makes a file of this size with random Q8_0 weights in the shape of a
//! 1.5 B Llama, with the number of layers that fits. Files are in the temporary folder and in the page cache,
//! so the time of the disk is not included. Times are the least of three. Each way ends with one forward
//! pass, which touches every page of a mapped file. Its logits are compared with those of the GGUF file, and
//! a difference ends the bench.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use refrain::checkpoint::{Checkpoint, PackedAccess};
use refrain::internals::kernels::{BlockType, Kernels, Pool};
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};
use refrain::internals::model::packed::pack;
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{KvType, TokenId};

type Error = Box<dyn std::error::Error>;

/// Runs of each way; the least time counts.
const ROUNDS: usize = 3;
/// Steps after loading, which show the effect of the kind of memory.
const STEPS: usize = 8;

fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let source = match std::env::var_os("REFRAIN_LOAD_MODEL") {
        Some(path) => PathBuf::from(path),
        None => random_model(folder.path())?,
    };
    let packed = folder.path().join("model.refrain");
    let start = Instant::now();
    let summary = pack(&Checkpoint::open(&source)?, &packed, LoadOptions::default())?;
    println!("{} MB packed in {:.1} s", summary.file_bytes >> 20, start.elapsed().as_secs_f64());
    println!("| from | open ms | weights ms | first pass ms | later passes ms | tokenizer ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut expected = None;
    for (name, path, packed_access, n_threads) in [
        ("GGUF or folder, one thread", &source, PackedAccess::Map, Some(1)),
        ("GGUF or folder", &source, PackedAccess::Map, None),
        ("packed, mapped", &packed, PackedAccess::Map, None),
        ("packed, read, one thread", &packed, PackedAccess::Read, Some(1)),
        ("packed, read", &packed, PackedAccess::Read, None),
    ] {
        let mut least: Option<Times> = None;
        let options = LoadOptions { packed_access, n_threads, ..LoadOptions::default() };
        for _ in 0..ROUNDS {
            let (times, logits) = load(path, options)?;
            if *expected.get_or_insert_with(|| logits.clone()) != logits {
                return Err(format!("{name}: other logits").into());
            }
            least = Some(least.map_or(times, |least| least.min(times)));
        }
        let Times([open, weights, first, later, tokenizer]) = least.ok_or("no rounds")?;
        println!("| {name} | {open:.1} | {weights:.1} | {first:.1} | {later:.1} | {tokenizer:.1} |");
    }
    Ok(())
}

/// Milliseconds: open, weights, first pass, mean of later passes, tokenizer.
#[derive(Clone, Copy)]
struct Times([f64; 5]);

impl Times {
    fn min(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].min(other.0[i])))
    }
}

/// Loads and runs. The logits are bits.
fn load(path: &Path, options: LoadOptions<'_>) -> Result<(Times, Vec<u32>), Error> {
    let mut start = Instant::now();
    let mut lap = || {
        let elapsed = start.elapsed().as_secs_f64() * 1e3;
        start = Instant::now();
        elapsed
    };
    let checkpoint = Checkpoint::open(path)?;
    let open = lap();
    let model = Model::load(&checkpoint, options)?;
    let weights = lap();
    let pool = Pool::try_new(std::thread::available_parallelism().map_or(1, usize::from))?;
    let compute = Compute { kernels: Kernels::detect(), pool: &pool };
    let mut kv = KvCache::new(model.config(), KvType::F16, 8)?;
    let (mut workspace, mut batch, mut logits) = (Workspace::new(model.config()), Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    let mut pass = || -> Result<Vec<u32>, Error> {
        batch.set_chain(0, &[TokenId(1)]);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
        model.logits(compute, &mut workspace, &[0], &mut logits).expect("weights in memory");
        Ok(logits.iter().map(|x| x.to_bits()).collect())
    };
    lap();
    let bits = pass()?;
    let first = lap();
    for _ in 0..STEPS {
        pass()?;
    }
    let later = lap() / STEPS as f64;
    checkpoint.tokenizer()?;
    Ok((Times([open, weights, first, later, lap()]), bits))
}

/// A GGUF file of random weights, written tensor by tensor.
fn random_model(folder: &Path) -> Result<PathBuf, Error> {
    let n_bytes = match std::env::var("REFRAIN_LOAD_MB") {
        Ok(text) => text.parse::<u64>()? << 20,
        Err(_) => 1 << 30,
    };
    let (hidden, ffn, vocab) = (1536u64, 8960, 260);
    let layer: [(&str, &[u64]); 9] = [
        ("attn_norm", &[hidden]),
        ("attn_q", &[hidden, hidden]),
        ("attn_k", &[hidden, 256]),
        ("attn_v", &[hidden, 256]),
        ("attn_output", &[hidden, hidden]),
        ("ffn_norm", &[hidden]),
        ("ffn_gate", &[hidden, ffn]),
        ("ffn_up", &[hidden, ffn]),
        ("ffn_down", &[ffn, hidden]),
    ];
    let matrix_type = match std::env::var("REFRAIN_LOAD_TYPE").as_deref() {
        Err(_) | Ok("Q8_0") => BlockType::Q8_0,
        Ok("BF16") => BlockType::BF16,
        Ok(other) => return Err(format!("REFRAIN_LOAD_TYPE: {other} is not Q8_0 or BF16").into()),
    };
    let bytes_of = |dims: &[u64]| matrix_type.row_bytes(dims.iter().product()).unwrap_or(0);
    let layer_bytes = layer.iter().map(|(_, dims)| bytes_of(dims)).sum::<u64>();
    let n_layers = (n_bytes / layer_bytes).max(1);
    let mut writer = GgufWriter::new();
    for (key, value) in [
        ("block_count", n_layers),
        ("context_length", 512),
        ("embedding_length", hidden),
        ("feed_forward_length", ffn),
        ("attention.head_count", 12),
        ("attention.head_count_kv", 2),
    ] {
        writer.metadata(&format!("llama.{key}"), value as u32);
    }
    writer.metadata("general.architecture", "llama");
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    writer.metadata("tokenizer.ggml.model", "llama");
    writer.metadata("tokenizer.ggml.bos_token_id", 256u32);
    let tokens = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = tokens.chain(["<s>", "</s>", "a", "b"].map(str::to_owned)).collect();
    writer.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    writer.metadata("tokenizer.ggml.scores", GgufValue::Array(GgufArray::F32(vec![0.0; 260])));
    let types = (0..260)
        .map(|i| {
            if i < 256 {
                6
            } else if i < 258 {
                3
            } else {
                1
            }
        })
        .collect();
    writer.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types)));
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![hidden, vocab])];
    tensors.push(("output_norm.weight".to_owned(), vec![hidden]));
    for layer_idx in 0..n_layers {
        tensors.extend(
            layer.iter().map(|(name, dims)| (format!("blk.{layer_idx}.{name}.weight"), dims.to_vec())),
        );
    }
    let ty = |dims: &[u64]| if dims.len() == 1 { BlockType::F32 } else { matrix_type };
    tensors.iter().for_each(|(name, dims)| _ = writer.tensor(name, ty(dims), dims));
    let path = folder.join("random.gguf");
    let mut out = writer.start(BufWriter::new(File::create(&path)?))?;
    let mut random = 1u64;
    for (_, dims) in &tensors {
        out.write_tensor(&random_tensor(&mut random, ty(dims), dims.iter().product()))?;
    }
    out.finish()?.flush()?;
    Ok(path)
}

/// Norms of one, and small random numbers, or blocks of random codes with a scale that keeps a layer's outputs near one.
fn random_tensor(random: &mut u64, ty: BlockType, n_values: u64) -> Vec<u8> {
    if ty == BlockType::F32 {
        return (0..n_values).flat_map(|_| 1f32.to_le_bytes()).collect();
    }
    let mut next = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random ^ (*random >> 29)
    };
    let mut bytes = Vec::with_capacity(n_values as usize * 2);
    if ty == BlockType::BF16 {
        // Either sign, 0.015 to 0.03.
        (0..n_values).for_each(|_| bytes.extend((0x3c80 | next() as u16 & 0x807f).to_le_bytes()));
        return bytes;
    }
    for _ in 0..n_values / 32 {
        // f16 bits of 0.0003, then 32 codes.
        bytes.extend(0x0cea_u16.to_le_bytes());
        (0..4).for_each(|_| bytes.extend(next().to_le_bytes()));
    }
    bytes
}
