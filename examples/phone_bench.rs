//! Speed on a phone, without a model file: `tools/phone-bench` builds this program, copies it to the phone that `adb`
//! finds, and runs it there. On this machine:
//!
//! ```sh
//! cargo run --release --example phone_bench [-- SHAPE]     # 1.5b (the default, 0.9 GB of memory), 0.5b or tiny
//! ```
//!
//! The first table has the matrix products of one decoding step, all layers of the shape with random Q4_0 weights, by
//! rows; attention and norms are left out. The second has the small model that is inside the program: it answers and
//! summarizes sample notes with and without drafts, in turns, and every drafted text must equal the plain one.
//!
//! `phone_bench product TYPE ROWS COLUMNS ISA` computes one product of 16 outputs, once. `tools/mca` traces it.

use std::borrow::Cow;
use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::device::IsaKind;
use refrain::internals::error::{BlockType, PackError};
use refrain::internals::kernels::{Activations, Kernels, MatMul, PackedMatrix, Pool, matmul};
use refrain::{
    Drafting, Engine, EngineOptions, GenerateOptions, PromptPassage, Role, SessionOptions, Stats, Task,
};

static MODEL: &[u8] = include_bytes!("../fixtures/target.gguf");

/// Title and text of sample notes, and a question about each.
const NOTES: [(&str, &str); 3] = [
    ("Aniarda", include_str!("../fixtures/notes/aniarda-travel.md")),
    ("Roof", include_str!("../fixtures/notes/repair-roof.md")),
    ("Preambon", include_str!("../fixtures/notes/project-preambon.md")),
];
const QUESTIONS: [&str; 3] = [
    "Who comes along on the trip to Aniarda?",
    "When is the roof repaired?",
    "How much of the Preambon project is done?",
];

/// Times that each number is measured. The least counts for products, the sum without the first for texts.
const ROUNDS: usize = 5;

/// A model's matrices.
#[derive(Clone, Copy)]
struct Shape {
    n_layers: usize,
    hidden: usize,
    kv: usize,
    ffn: usize,
    vocabulary: usize,
}

impl Shape {
    fn named(name: &str) -> Result<Self, String> {
        match name {
            "1.5b" => Ok(Shape { n_layers: 28, hidden: 1536, kv: 256, ffn: 8960, vocabulary: 151_936 }),
            "0.5b" => Ok(Shape { n_layers: 24, hidden: 896, kv: 128, ffn: 4864, vocabulary: 151_936 }),
            "tiny" => Ok(Shape { n_layers: 2, hidden: 256, kv: 64, ffn: 512, vocabulary: 1024 }),
            _ => Err(format!("no shape {name:?}; there are 1.5b, 0.5b and tiny")),
        }
    }
}

/// The matrices of a layer, by input.
struct Layer {
    qkv: [PackedMatrix; 3],
    output: PackedMatrix,
    gate_up: [PackedMatrix; 2],
    down: PackedMatrix,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["product", ty, n_rows, n_cols, isa] => product(ty, n_rows.parse()?, n_cols.parse()?, isa),
        [] => bench("1.5b"),
        [shape] => bench(shape),
        _ => Err("usage: phone_bench [1.5b | 0.5b | tiny]".into()),
    }
}

fn bench(shape: &str) -> Result<(), Box<dyn Error>> {
    let engine = Engine::load(
        &Checkpoint::from_gguf_bytes(Cow::Borrowed(MODEL), "the model inside")?,
        EngineOptions::default(),
        |_, _| {},
    )?;
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    println!("{isa}, {n_threads} threads\n");
    steps(shape, n_threads)?;
    println!("\n| task | tokens | plain tokens/s | drafted tokens/s | plain time / drafted time |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    texts(&engine, Task::Answer)?;
    texts(&engine, Task::Summarize)
}

/// Milliseconds of the matrix products of a step, by rows.
fn steps(name: &str, n_threads: usize) -> Result<(), Box<dyn Error>> {
    let shape = Shape::named(name)?;
    let (k, pool) = (Kernels::detect(), Pool::try_new(n_threads)?);
    let mut layers = Vec::new();
    for _ in 0..shape.n_layers {
        layers.push(Layer {
            qkv: [
                random(BlockType::Q4_0, shape.hidden, shape.hidden)?,
                random(BlockType::Q4_0, shape.kv, shape.hidden)?,
                random(BlockType::Q4_0, shape.kv, shape.hidden)?,
            ],
            output: random(BlockType::Q4_0, shape.hidden, shape.hidden)?,
            gate_up: [
                random(BlockType::Q4_0, shape.ffn, shape.hidden)?,
                random(BlockType::Q4_0, shape.ffn, shape.hidden)?,
            ],
            down: random(BlockType::Q4_0, shape.hidden, shape.ffn)?,
        });
    }
    let head = random(BlockType::Q4_0, shape.vocabulary, shape.hidden)?;
    println!("matrix products of a step, {name} shape, Q4_0, least of {ROUNDS}:\n");
    println!("| rows | ms | ms per row | times one row |");
    println!("| ---: | ---: | ---: | ---: |");
    let mut one_row = f64::NAN;
    for n_rows in [1, 4, 8, 16, 32] {
        let x: Vec<f32> = (0..n_rows * shape.ffn).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut inputs = Activations::new();
        let mut outs = [const { Vec::new() }; 3];
        let mut multiply = |weights: &[&PackedMatrix]| {
            let n_cols = weights[0].n_cols();
            inputs.set(k, &pool, &x[..n_rows * n_cols], n_rows, n_cols, weights[0].activation_form());
            let mut jobs = Vec::new();
            for (w, out) in weights.iter().zip(&mut outs) {
                out.resize(n_rows * w.n_rows(), 0.0);
                jobs.push(MatMul { w, out });
            }
            matmul(k, &pool, &inputs, &mut jobs);
        };
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            for layer in &layers {
                multiply(&layer.qkv.each_ref());
                multiply(&[&layer.output]);
                multiply(&layer.gate_up.each_ref());
                multiply(&[&layer.down]);
            }
            multiply(&[&head]);
            least = least.min(started.elapsed().as_secs_f64() * 1e3);
        }
        if n_rows == 1 {
            one_row = least;
        }
        println!("| {n_rows} | {least:.2} | {:.2} | {:.2} |", least / n_rows as f64, least / one_row);
    }
    Ok(())
}

/// A matrix of arbitrary codes and scales.
fn random(ty: BlockType, n_rows: usize, n_cols: usize) -> Result<PackedMatrix, PackError> {
    PackedMatrix::from_panels(ty, n_rows, n_cols, |bytes| {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        for word in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Without the upper exponent bits of an f16: no scale is NaN or infinite.
            word.copy_from_slice(&(state & 0xBFFF_BFFF_BFFF_BFFF).to_le_bytes()[..word.len()]);
        }
        Ok(())
    })
}

/// Decodes the task's texts plain and drafted, in turns.
fn texts(engine: &Engine, task: Task) -> Result<(), Box<dyn Error>> {
    let (mut plain_us, mut drafted_us, mut n_tokens) = (0.0, 0.0, 0);
    for round in 0..ROUNDS {
        for (note, question) in NOTES.iter().zip(QUESTIONS) {
            let question = if task == Task::Answer { question } else { "" };
            let (plain_text, plain) = text(engine, task, note, question, Drafting::Off)?;
            let (drafted_text, drafted) = text(engine, task, note, question, Drafting::Auto)?;
            if plain_text != drafted_text {
                return Err(
                    format!("drafting changed an answer: {plain_text:?} became {drafted_text:?}").into()
                );
            }
            if round > 0 {
                plain_us += plain.time_us.decode();
                drafted_us += drafted.time_us.decode();
                n_tokens += drafted.tokens;
            }
        }
    }
    let per_s = |us: f64| n_tokens as f64 * 1e6 / us;
    println!(
        "| {task:?} | {n_tokens} | {:.0} | {:.0} | {:.2} |",
        per_s(plain_us),
        per_s(drafted_us),
        plain_us / drafted_us
    );
    Ok(())
}

fn text(
    engine: &Engine,
    task: Task,
    &(title, note): &(&str, &str),
    question: &str,
    drafting: Drafting,
) -> Result<(String, Stats), Box<dyn Error>> {
    let mut options = SessionOptions::default();
    (options.drafting, options.history) = (drafting, false);
    let mut session = engine.session(options)?;
    session.append_turn(Role::User, task.user_message(&[PromptPassage::new(title, note)], question))?;
    let mut text = String::new();
    let mut options = GenerateOptions::default();
    options.max_tokens = 80;
    let summary = session.generate(options)?.run(|token| {
        text.push_str(&token.text);
        ControlFlow::Continue(())
    })?;
    Ok((text, summary.stats))
}

/// One product of 16 outputs, on this thread.
fn product(ty: &str, n_rows: usize, n_cols: usize, isa: &str) -> Result<(), Box<dyn Error>> {
    let ty = BlockType::ALL.into_iter().find(|known| known.name() == ty).ok_or("no such type")?;
    let isa =
        IsaKind::ALL.iter().copied().find(|known| known.name() == isa).ok_or("no such instruction set")?;
    let k = Kernels::with_isa(isa).ok_or("this machine lacks the instruction set")?;
    let pool = Pool::try_new(1)?;
    let w = random(ty, 16, n_cols)?;
    let x = vec![1.0; n_rows * n_cols];
    let mut inputs = Activations::new();
    inputs.set(k, &pool, &x, n_rows, n_cols, w.activation_form());
    let mut out = vec![0.0; n_rows * 16];
    matmul(k, &pool, &inputs, &mut [MatMul { w: &w, out: &mut out }]);
    println!("{}", out.iter().sum::<f32>());
    Ok(())
}
