//! The time until a model's weights can be used: from a GGUF file, and packed, mapped or read.
//!
//! ```sh
//! cargo bench --bench load                           # 1 GB; takes twice that in the temporary folder, and in memory
//! REFRAIN_LOAD_MB=128 cargo bench --bench load
//! REFRAIN_LOAD_TYPE=BF16 cargo bench --bench load    # numbers instead of Q8_0, which loading quantises; or Q4_0
//! REFRAIN_LOAD_VOCAB=151936 cargo bench --bench load # a byte-level vocabulary of this size instead of 260 pieces
//! REFRAIN_LOAD_MODEL=model.gguf cargo bench --bench load
//! REFRAIN=target/release/refrain cargo bench --bench load    # also starts of the program
//! ```
//!
//! Without a given model, the bench makes a file of this size with random Q8_0 weights in the shape of a
//! 1.5 B Llama, with the number of layers that fits. Files are in the temporary folder and in the page cache,
//! so the time of the disk is not included. Times are the least of three. Each way ends with one forward
//! pass, which touches every page of a mapped file. Its logits are compared with those of the GGUF file, and
//! a difference ends the bench.
//!
//! A second table has a start by part, from the mapped file to the first token behind a short prompt: where the first start
//! measures rows, and where it is given what an earlier one has measured. A third one has starts of the program, until it writes
//! its first byte; the time of its prompt and its first step is subtracted in the last column.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use refrain::checkpoint::{Checkpoint, PackedAccess};
use refrain::internals::engine::MeasuredCosts;
use refrain::internals::kernels::{BlockType, Kernels, Pool};
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};
use refrain::internals::model::packed::pack;
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{Engine, EngineOptions, Event, GenerateOptions, KvType, SessionOptions, TokenId};

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
    println!("\n| start, row times | open ms | load ms | session ms | prompt and first token ms | all ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut kept, mut tokens) = (Vec::new(), None);
    for name in ["measured", "kept"] {
        let mut least = [f64::INFINITY; 5];
        for _ in 0..ROUNDS {
            let given = if name == "kept" { kept.clone() } else { Vec::new() };
            let (parts, measured, first) = start_by_part(&packed, given)?;
            if *tokens.get_or_insert_with(|| first.clone()) != first {
                return Err(format!("{name}: another first token").into());
            }
            least = std::array::from_fn(|i| least[i].min(parts[i]));
            if name == "measured" {
                kept = measured;
            } else if !measured.is_empty() {
                return Err("rows were measured again".into());
            }
        }
        let [open, load, session, first, all] = least;
        println!("| {name} | {open:.1} | {load:.1} | {session:.1} | {first:.1} | {all:.1} |");
    }
    match std::env::var_os("REFRAIN") {
        Some(program) => starts_of_program(Path::new(&program), &packed, folder.path()),
        None => Ok(()),
    }
}

/// Milliseconds of a start: opening, loading, a session, a short prompt with the first token, all of it. Then what loading has measured,
/// and the token.
type Start = ([f64; 5], Vec<MeasuredCosts>, Vec<TokenId>);

fn start_by_part(path: &Path, kept: Vec<MeasuredCosts>) -> Result<Start, Error> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(path)?;
    let opened = start.elapsed();
    let options = EngineOptions { packed_access: PackedAccess::Map, ..EngineOptions::default() };
    let engine = Engine::load_measured(&checkpoint, options, kept, |_, _| {})?;
    let loaded = start.elapsed();
    let mut session = engine.session(SessionOptions::default())?;
    let begun = start.elapsed();
    session.append_tokens(&[TokenId(1); 8])?;
    let options = GenerateOptions { max_tokens: 1, ignore_eos: true, ..GenerateOptions::default() };
    let mut tokens = Vec::new();
    for event in session.generate(options)? {
        if let Event::Token(token) = event? {
            tokens.push(token.id);
        }
    }
    let done = start.elapsed();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let parts = [ms(opened), ms(loaded - opened), ms(begun - loaded), ms(done - begun), ms(done)];
    Ok((parts, engine.device().measured_costs(), tokens))
}

/// Starts a program `refrain` with the mapped file: first without a cache, then with what that start has kept.
fn starts_of_program(program: &Path, packed: &Path, folder: &Path) -> Result<(), Error> {
    println!(
        "\n| start of the program, row times | first byte ms | prompt and first step ms | the rest ms |"
    );
    println!("| --- | --- | --- | --- |");
    for round in 0..=3 * ROUNDS {
        let mut command = Command::new(program);
        command
            .args(["run", "--raw", "a b", "--map", "--max-tokens", "1", "--stats", "json", "--model"])
            .arg(packed);
        // With a store of its own, the first start may write; the others show no store's work.
        let store = folder.join("store");
        command.arg("--store").arg(if round == 0 { store.as_path() } else { Path::new("none") });
        command.env("HOME", folder).env("XDG_CACHE_HOME", folder.join("cache"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn()?;
        let mut out = child.stdout.take().ok_or("no pipe")?;
        let mut text = vec![0];
        out.read_exact(&mut text)?;
        let first = start.elapsed().as_secs_f64() * 1e3;
        out.read_to_end(&mut text)?;
        child.wait()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let stats: serde_json::Value = serde_json::from_str(text.lines().last().ok_or("no statistics")?)?;
        let time = |part: &str| stats["stats"]["time_us"][part].as_f64().unwrap_or(0.0) / 1e3;
        let pass = time("prefill") + time("forward") + time("walk");
        let origin = stats["row_times"].as_str().unwrap_or("unknown");
        println!("| {origin} | {first:.1} | {pass:.1} | {:.1} |", first - pass);
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
    let vocab = std::env::var("REFRAIN_LOAD_VOCAB").map_or(Ok(PIECES), |text| text.parse::<u64>())?;
    let (hidden, ffn) = (1536u64, 8960);
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
        Ok("Q4_0") => BlockType::Q4_0,
        Ok("BF16") => BlockType::BF16,
        Ok(other) => return Err(format!("REFRAIN_LOAD_TYPE: {other} is not Q8_0, Q4_0 or BF16").into()),
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
    if vocab > PIECES {
        byte_level(&mut writer, vocab as usize);
    } else {
        pieces(&mut writer);
    }
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

/// Tokens of the small vocabulary.
const PIECES: u64 = 260;

/// Pieces for all bytes, and few others.
fn pieces(writer: &mut GgufWriter) {
    writer.metadata("tokenizer.ggml.model", "llama");
    writer.metadata("tokenizer.ggml.bos_token_id", 256u32);
    let tokens = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = tokens.chain(["<s>", "</s>", "a", "b"].map(str::to_owned)).collect();
    writer.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    writer.metadata("tokenizer.ggml.scores", GgufValue::Array(GgufArray::F32(vec![0.0; PIECES as usize])));
    let types = (0..PIECES)
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
}

/// A byte-level vocabulary of `n` tokens, merged at random from shorter ones to the lengths of published vocabularies (about six
/// characters), with control tokens at its end.
fn byte_level(writer: &mut GgufWriter, n: usize) {
    let char_of = |byte: u32| match byte {
        0..=0x20 => 0x100 + byte,
        0x7f..=0xa0 => 0x121 + byte - 0x7f,
        0xad => 0x143,
        _ => byte,
    };
    let mut tokens: Vec<String> =
        (0..256).filter_map(|byte| char::from_u32(char_of(byte))).map(String::from).collect();
    // Letters and the space begin most tokens of text.
    let letters: Vec<usize> = (0..256).filter(|&byte| (0x61..0x7b).contains(&byte) || byte == 0x20).collect();
    let mut seen: HashSet<String> = tokens.iter().cloned().collect();
    let (mut merges, mut random) = (Vec::new(), 7u64);
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    while tokens.len() + control.len() < n {
        let mut part = || match below(3) {
            0 => below(tokens.len()),
            1 => below(tokens.len().min(4096)),
            _ => letters[below(letters.len())],
        };
        let (left, right) = (part(), part());
        let joined = format!("{}{}", tokens[left], tokens[right]);
        if joined.chars().count() <= 12 && seen.insert(joined.clone()) {
            merges.push(format!("{} {}", tokens[left], tokens[right]));
            tokens.push(joined);
        }
    }
    let types = (0..n).map(|i| if i + control.len() < n { 1 } else { 3 }).collect();
    tokens.extend(control.map(str::to_owned));
    writer.metadata("tokenizer.ggml.model", "gpt2");
    writer.metadata("tokenizer.ggml.pre", "qwen2");
    writer.metadata("tokenizer.ggml.eos_token_id", n as u32 - 1);
    writer.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    writer.metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(merges)));
    writer.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types)));
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
    // f16 bits of 0.0003 or 0.0048, then 32 codes.
    let (scale, words) = if ty == BlockType::Q4_0 { (0x1cea_u16, 2) } else { (0x0cea, 4) };
    for _ in 0..n_values / 32 {
        bytes.extend(scale.to_le_bytes());
        (0..words).for_each(|_| bytes.extend(next().to_le_bytes()));
    }
    bytes
}
