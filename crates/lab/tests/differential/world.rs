//! A target with what it drafts with, and the same target as a reference.

use std::path::PathBuf;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::Predictor;
use refrain::internals::draft::CostProfile;
use refrain::internals::kernels::{BlockType, Kernels};
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, Quantize};
use refrain_grammar::Vocabulary;
use tempfile::TempDir;

use crate::common::{Rng, Tiny, fixtures, uninformed};
use crate::heads::{Eagle3Folder, both, eagle3, qwen, random_head, target_file};
use crate::model_files::golden;

/// What a target is, and what drafts beside the text.
pub(crate) const KINDS: [&str; 10] = [
    "in memory",
    "in memory, draft model",
    "streamed",
    "streamed, draft model",
    "streamed, own layers",
    "static graphs",
    "head",
    "streamed, head",
    "family",
    "family, recurrent drafts",
];

/// One of each kind of layer plan: windows, experts, shared keys and values, recurrent layers.
const FAMILIES: [&str; 14] = [
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4-experts",
    "gpt_oss",
    "granitemoehybrid",
    "lfm2",
    "lfm2_moe",
    "llama-dynamic",
    "ministral",
    "phi3",
    "qwen3_5",
    "qwen3_moe",
    "smollm3",
];

const RECURRENT: [&str; 4] = ["lfm2", "qwen3_5", "granitemoehybrid", "granitemoehybrid-dense"];

pub(crate) struct World {
    pub engine: Engine,
    /// The same target in memory, on one thread.
    pub reference: Engine,
    /// Tokens below this are text.
    pub n_text_tokens: usize,
    /// For grammars. `None`: the model has no vocabulary for them.
    pub vocabulary: Option<Vocabulary>,
    /// Whether the engine has a draft model, a head, or layers that draft.
    pub(crate) has_draft_model: bool,
    /// Whether some layers are predicted by a predictor of random weights, so that pruning drops rows.
    pub is_pruned: bool,
    /// Files of the engines.
    _files: Vec<TempDir>,
}

pub(crate) fn pick<T: Clone>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len())].clone()
}

/// Whether an event of this chance, in percent, happens.
pub(crate) fn chance(rng: &mut Rng, percent: usize) -> bool {
    rng.below(100) < percent
}

impl World {
    pub(crate) fn new(kind: &str, rng: &mut Rng) -> Self {
        let tiny = tiny(rng);
        let of_tiny = |tiny: Tiny| Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
        let mut files = Vec::new();
        let options = engine_options(rng);
        let (target, engine) = match kind {
            "in memory" | "in memory, draft model" => {
                let target = of_tiny(tiny);
                let engine = Engine::load(&target, options, |_, _| {}).unwrap();
                if kind == "in memory, draft model" {
                    // The target itself is always right.
                    let seed = if chance(rng, 50) { tiny.seed } else { tiny.seed + 1 };
                    engine
                        .set_draft_model(&of_tiny(Tiny { seed, ..tiny }), draft_options(rng), |_, _| {})
                        .unwrap();
                }
                (target, engine)
            }
            "streamed" | "streamed, draft model" => {
                let tiny = Tiny { n_layers: 2 + rng.below(4), ..tiny };
                let (target, path) = packed(of_tiny(tiny), &mut files);
                let pinned = Pinned::Layers(rng.below(tiny.n_layers + 1));
                let engine = streamed(&path, options, StreamOptions::new(pinned));
                if kind == "streamed, draft model" {
                    let seed = if chance(rng, 50) { tiny.seed } else { tiny.seed + 1 };
                    engine
                        .set_draft_model(&of_tiny(Tiny { seed, ..tiny }), draft_options(rng), |_, _| {})
                        .unwrap();
                }
                (target, engine)
            }
            "streamed, own layers" => {
                let (target, path) = packed(Checkpoint::open(target_file()).unwrap(), &mut files);
                let first = 3;
                let mut streaming = StreamOptions::new(Pinned::Layers(first + rng.below(3)));
                streaming.pinned_first = first;
                let engine = streamed(&path, options, streaming);
                let predictor = match chance(rng, 60) {
                    true => Predictor::read(fixtures().join("target.predictor")).unwrap(),
                    false => {
                        Predictor::new(uninformed(&engine, first, pick(rng, &[0.1, 1.0, 1e37]))).unwrap()
                    }
                };
                engine.set_self_draft(predictor).unwrap();
                (target, engine)
            }
            "static graphs" => {
                let tiny = Tiny { n_layers: 2 + rng.below(4), ..tiny };
                let (target, dir) = (of_tiny(tiny), tempfile::tempdir().unwrap());
                let path = dir.path().join("graphs");
                let (prefill_len, verify_len) = pick(rng, &[(32, 8), (16, 16), (7, 3), (100, 1), (8, 24)]);
                let n_blocks = 1 + rng.below(tiny.n_layers);
                write_graphs(&target, &path, n_blocks, prefill_len, verify_len, keep()).unwrap();
                files.push(dir);
                (target, Engine::open(&path, options).unwrap())
            }
            "head" => {
                let (target, head) = match rng.below(5) {
                    0 | 1 => {
                        let (target, head, folder) = qwen();
                        files.push(folder);
                        (target, head)
                    }
                    2 => (Checkpoint::open(target_file()).unwrap(), random_head()),
                    3 => (Checkpoint::open(target_file()).unwrap(), eagle3()),
                    _ => (Checkpoint::open(golden("qwen3")).unwrap(), speculator(64, 384)),
                };
                let engine = Engine::load(&target, options, |_, _| {}).unwrap();
                engine.set_draft_model(&head, draft_options(rng), |_, _| {}).unwrap();
                (target, engine)
            }
            "streamed, head" => {
                let (target, path) = packed(Checkpoint::open(target_file()).unwrap(), &mut files);
                // Where the embedding is streamed, the head's file has its own.
                let (n_pinned, head) = match rng.below(3) {
                    0 => (6, if chance(rng, 50) { random_head() } else { eagle3() }),
                    1 => (
                        rng.below(6),
                        Checkpoint::mtp_from_gguf_bytes(both().bytes().into(), "both").unwrap(),
                    ),
                    _ => (rng.below(6), speculator(256, 2048)),
                };
                let engine = streamed(&path, options, StreamOptions::new(Pinned::Layers(n_pinned)));
                engine.set_draft_model(&head, draft_options(rng), |_, _| {}).unwrap();
                (target, engine)
            }
            "family" => {
                let target = Checkpoint::open(golden(pick(rng, &FAMILIES))).unwrap();
                let engine = Engine::load(&target, options, |_, _| {}).unwrap();
                (target, engine)
            }
            "family, recurrent drafts" => {
                let draft = pick(rng, &RECURRENT);
                let target = if chance(rng, 60) { draft } else { pick(rng, &["qwen3", "lfm2", "gemma3"]) };
                let target = Checkpoint::open(golden(target)).unwrap();
                let engine = Engine::load(&target, options, |_, _| {}).unwrap();
                let draft = Checkpoint::open(golden(draft)).unwrap();
                engine.set_draft_model(&draft, draft_options(rng), |_, _| {}).unwrap();
                (target, engine)
            }
            _ => unreachable!("{kind} is listed"),
        };
        let n_layers = engine.config().n_layers();
        // Neither static graphs nor recurrent layers are pruned.
        let is_pruned = n_layers > 1 && chance(rng, 30) && {
            let layer_idx = 1 + rng.below(n_layers - 1);
            let parts = uninformed(&engine, layer_idx, pick(rng, &[0.1, 1.0]));
            Predictor::new(parts).is_ok_and(|predictor| engine.set_predictor(predictor).is_ok())
        };
        let one_thread = EngineOptions { n_threads: Some(1), ..reference_options() };
        let reference = Engine::load(&target, one_thread, |_, _| {}).unwrap();
        let n_text_tokens = if engine.config().vocab_size > 300 { 250 } else { 256 };
        let vocabulary = Vocabulary::of_engine(&engine).ok();
        let has_draft_model = !matches!(kind, "in memory" | "streamed" | "static graphs" | "family");
        Self { engine, reference, has_draft_model, n_text_tokens, vocabulary, is_pruned, _files: files }
    }
}

fn tiny(rng: &mut Rng) -> Tiny {
    let ty = pick(rng, &[BlockType::F32, BlockType::F16, BlockType::Q8_0, BlockType::Q4_0, BlockType::Q4K]);
    Tiny {
        hidden_dim: if ty == BlockType::Q4K { 256 } else { 64 },
        n_layers: 1 + rng.below(4),
        head_dim: pick(rng, &[16, 32]),
        window: pick(rng, &[None, None, Some(3), Some(40), Some(300)]),
        ty,
        seed: 1 + rng.below(1000) as u64,
        ..Tiny::default()
    }
}

fn reference_options() -> EngineOptions {
    EngineOptions {
        isa: crate::common::isa(),
        quantize: Quantize::Keep,
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    }
}

/// Rows that cost nothing, that cost much, and whose cost is measured.
fn engine_options(rng: &mut Rng) -> EngineOptions {
    let isas: Vec<_> = Kernels::available().into_iter().map(|kernels| kernels.isa()).collect();
    let cost_profile = match rng.below(10) {
        0 => None,
        1..3 => Some(CostProfile::free_rows(1e6)),
        _ => Some(CostProfile::free_rows(100.0)),
    };
    EngineOptions {
        n_threads: Some(1 + rng.below(4)),
        isa: crate::common::isa().or(Some(pick(rng, &isas))),
        quantize: Quantize::Keep,
        cost_profile,
        measure_time: Some(std::time::Duration::ZERO),
        history_tokens_max: pick(rng, &[None, Some(64)]),
        ..EngineOptions::default()
    }
}

fn draft_options(rng: &mut Rng) -> DraftModelOptions {
    let cost_profile = Some(CostProfile::free_rows(pick(rng, &[0.01, 20.0])));
    DraftModelOptions { quantize: Quantize::Keep, cost_profile, ..DraftModelOptions::default() }
}

fn keep() -> LoadOptions<'static> {
    LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }
}

/// An EAGLE-3 head with an embedding of its own.
fn speculator(hidden: usize, vocab_size: usize) -> Checkpoint {
    Eagle3Folder::of_speculators(hidden, vocab_size).open().unwrap()
}

/// A checkpoint, and its packed file in a folder of its own.
fn packed(checkpoint: Checkpoint, files: &mut Vec<TempDir>) -> (Checkpoint, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    pack(&checkpoint, &path, keep()).unwrap();
    files.push(dir);
    (checkpoint, path)
}

fn streamed(path: &PathBuf, options: EngineOptions, streaming: StreamOptions) -> Engine {
    Engine::open(path, EngineOptions { streaming: Some(streaming), ..options }).unwrap()
}
