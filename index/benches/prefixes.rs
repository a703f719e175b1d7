//! Restoring a prompt of 2,000 tokens beside computing it, at the shape of a 1.5 B model; time of keeping, and sizes.
//!
//! ```sh
//! cargo bench -p refrain-index --no-default-features --bench prefixes
//! ```
//!
//! The weights are random, in Q4_0 and the shape of Qwen2.5-1.5B with a small vocabulary (prefill does not use the output
//! matrix); they take 0.75 GB of memory. Files are in the temporary folder. *Warm* files are in the page cache; *cold* ones
//! were synced and dropped from it (Linux). A restore includes hashing the tokens, listing the folder, checking every byte
//! and copying into the KV cache. Each restored state is compared with the computed one.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::CostProfile;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};
use refrain::{CancelToken, Drafting, Engine, EngineOptions, KvType, Session, SessionOptions, TokenId};
use refrain_index::prefixes::{PrefixOptions, PrefixStore};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PROMPT_TOKENS: usize = 2001;
const ROUNDS: usize = 7;

fn main() -> Outcome<()> {
    let checkpoint = Checkpoint::from_gguf_bytes(random_model()?.into(), "random 1.5B")?;
    let costs = CostProfile::free_rows(1.0);
    let engine = Engine::load(
        &checkpoint,
        EngineOptions { cost_profile: Some(costs), ..EngineOptions::default() },
        |_, _| {},
    )?;
    drop(checkpoint);
    let prompt: Vec<TokenId> = (0..PROMPT_TOKENS).map(|i| TokenId((i * i % 251) as u32)).collect();
    println!("| KV cache | | MB | keep ms | warm ms (least) | cold ms (least) | of prefill, warm | cold |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let mut session = session(&engine, kv_type, &prompt)?;
        let start = Instant::now();
        session.prefill(&CancelToken::new(), |_, _| {})?;
        let prefill_ms = ms(start);
        println!("| {kv_type} | prefill | | | {prefill_ms:.0} | | | |");
        for (name, key) in [("restore", None), ("restore, encrypted", Some([7; 32]))] {
            let folder = tempfile::tempdir()?;
            let store = PrefixStore::open(folder.path(), PrefixOptions { key, ..PrefixOptions::default() })?;
            let start = Instant::now();
            store.keep(&session, "bench", &[], usize::MAX)?;
            let keep_ms = ms(start);
            let mb = store.status()?.bytes as f64 / 1e6;
            let warm = restores(&engine, kv_type, &prompt, &store, &session, || Ok(()))?;
            let cold = restores(&engine, kv_type, &prompt, &store, &session, || drop_cached(folder.path()))?;
            let share = |(_, median): (f64, f64)| 100.0 * median / prefill_ms;
            println!(
                "| {kv_type} | {name} | {mb:.1} | {keep_ms:.0} | {:.0} ({:.0}) | {:.0} ({:.0}) | {:.2} % | {:.2} % |",
                warm.1,
                warm.0,
                cold.1,
                cold.0,
                share(warm),
                share(cold)
            );
        }
    }
    Ok(())
}

fn session(engine: &Engine, kv_type: KvType, prompt: &[TokenId]) -> Outcome<Session> {
    let options =
        SessionOptions { drafting: Drafting::Off, context_len: Some(4096), ..SessionOptions::default() };
    let mut session = engine.session(SessionOptions { kv_type, ..options })?;
    session.append_tokens(prompt)?;
    Ok(session)
}

/// Least and median time of a restore, in ms.
fn restores(
    engine: &Engine,
    kv_type: KvType,
    prompt: &[TokenId],
    store: &PrefixStore,
    computed: &Session,
    before: impl Fn() -> Outcome<()>,
) -> Outcome<(f64, f64)> {
    let mut times = Vec::new();
    let state = |session: &Session| -> Outcome<Vec<u8>> {
        let mut state = Vec::new();
        session.state().write(0..session.state().n_cached_tokens(), &mut state)?;
        Ok(state)
    };
    let expected = state(computed)?;
    for _ in 0..ROUNDS {
        let mut session = session(engine, kv_type, prompt)?;
        before()?;
        let start = Instant::now();
        let n = store.restore(&mut session, "bench")?;
        times.push(ms(start));
        if n != prompt.len() - 1 || state(&session)? != expected {
            return Err(format!("{n} tokens, or other bits").into());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok((times[0], times[ROUNDS / 2]))
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Drops the files below a folder from the page cache.
fn drop_cached(folder: &Path) -> Outcome<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_cached(&path)?;
        } else {
            let file = fs::File::open(&path)?;
            file.sync_all()?;
            #[cfg(target_os = "linux")]
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// A GGUF file in memory: random Q4_0 weights, 28 layers.
fn random_model() -> Outcome<Vec<u8>> {
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
    let n_layers = 28;
    let mut writer = GgufWriter::new();
    for (key, value) in [
        ("block_count", n_layers),
        ("context_length", 4096),
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
    let types = (0..260).map(|i| [6, 3, 1][usize::from(i >= 256) + usize::from(i >= 258)]).collect();
    writer.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types)));
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![hidden, vocab]),
        ("output_norm.weight".to_owned(), vec![hidden]),
    ];
    for layer_idx in 0..n_layers {
        tensors.extend(
            layer.iter().map(|(name, dims)| (format!("blk.{layer_idx}.{name}.weight"), dims.to_vec())),
        );
    }
    let ty = |dims: &[u64]| if dims.len() == 1 { BlockType::F32 } else { BlockType::Q4_0 };
    tensors.iter().for_each(|(name, dims)| _ = writer.tensor(name, ty(dims), dims));
    let mut out = writer.start(Vec::new())?;
    let mut random = 1u64;
    for (_, dims) in &tensors {
        out.write_tensor(&random_tensor(&mut random, ty(dims), dims.iter().product()))?;
    }
    Ok(out.finish()?)
}

/// Norms of one, and blocks of random codes with a scale that keeps a layer's outputs near one.
fn random_tensor(random: &mut u64, ty: BlockType, n_values: u64) -> Vec<u8> {
    if ty == BlockType::F32 {
        return (0..n_values).flat_map(|_| 1f32.to_le_bytes()).collect();
    }
    let mut bytes = Vec::with_capacity(n_values as usize / 32 * 18);
    for _ in 0..n_values / 32 {
        // f16 bits of 0.00125, then 32 codes of 4 bits.
        bytes.extend(0x151f_u16.to_le_bytes());
        for _ in 0..2 {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend((*random ^ (*random >> 29)).to_le_bytes());
        }
    }
    bytes
}
