//! A process that streams a model takes at most its budget and 64 MiB, as measured by the system in a separate
//! process.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::CostProfile;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, GenerateOptions, Quantize, SessionOptions};

use crate::common::{Tiny, plain, prompt, run_in};

/// Environment variable with the model's path, for the measured process.
const MODEL: &str = "REFRAIN_TEST_STREAMED_MODEL";
/// Environment variable with its budget.
const BUDGET: &str = "REFRAIN_TEST_STREAMED_BUDGET";

/// Whether a draft model of three such layers drafts.
const DRAFTS: &str = "REFRAIN_TEST_STREAMED_DRAFTS";

const ALLOWANCE: u64 = 64 << 20;

const TARGET: Tiny = Tiny { hidden_dim: 1024, n_layers: 10, head_dim: 64, ..Tiny::DEFAULT };

#[test]
fn the_process_stays_within_its_budget() {
    check("streaming_memory::the_process_stays_within_its_budget", &[120 << 20, 160 << 20], "");
}

/// The draft model takes 85 MiB of it.
#[test]
fn also_with_a_draft_model() {
    check("streaming_memory::also_with_a_draft_model", &[200 << 20], "yes");
}

/// Runs the test of this name in a separate process for each budget.
fn check(test: &str, budgets: &[u64], drafts: &str) {
    if let (Ok(model), Ok(budget)) = (std::env::var(MODEL), std::env::var(BUDGET)) {
        return decode(model.as_ref(), budget.parse().unwrap(), std::env::var(DRAFTS).unwrap() == "yes");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    // Ten layers of 28 MB: more than either budget permits.
    let source = Checkpoint::from_gguf_bytes(TARGET.gguf().into(), "model").unwrap();
    let keep = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    let weights_bytes = pack(&source, &path, keep).unwrap().weights_bytes;
    drop(source);
    std::fs::write(dir.path().join("draft.gguf"), Tiny { n_layers: 3, seed: 2, ..TARGET }.gguf()).unwrap();
    for &budget in budgets {
        assert!(weights_bytes > budget + ALLOWANCE, "{weights_bytes} bytes of weights");
        let measured = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs([
                (MODEL, path.as_os_str()),
                (BUDGET, budget.to_string().as_ref()),
                (DRAFTS, drafts.as_ref()),
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&measured.stdout).into_owned();
        assert!(measured.status.success(), "{text}{}", String::from_utf8_lossy(&measured.stderr));
        let peak = text.lines().find_map(|line| line.strip_prefix("peak ")).expect(&text);
        let peak: u64 = peak.trim().parse().unwrap();
        // All memory, the program's own pages included.
        assert!(peak <= budget + ALLOWANCE, "a peak of {peak} bytes with a budget of {budget}");
    }
}

/// Decodes from flash, with and without drafts, and prints the peak memory of the process.
fn decode(model: &Path, budget: u64, drafts: bool) {
    let draft = drafts.then(|| Checkpoint::open(model.with_file_name("draft.gguf")).unwrap());
    let keep = DraftModelOptions { quantize: Quantize::Keep, ..DraftModelOptions::default() };
    let session = SessionOptions::default();
    let draft_bytes = draft.as_ref().map_or(0, |draft| keep.memory_bytes(draft, &session));
    let reserved_bytes = session.memory_bytes(Checkpoint::open(model).unwrap().config()) + draft_bytes;
    let mut streaming = StreamOptions::new(Pinned::Memory(budget));
    streaming.reserved_bytes = reserved_bytes;
    let streaming = Some(streaming);
    let options = EngineOptions { n_threads: Some(2), streaming, ..Tiny::default().options() };
    let engine = Engine::open(model, options).unwrap();
    if let Some(draft) = draft {
        let cost_profile = Some(CostProfile::free_rows(0.01));
        engine.set_draft_model(&draft, DraftModelOptions { cost_profile, ..keep }, |_, _| {}).unwrap();
        let memory = engine.draft_model().unwrap().memory_usage() as u64;
        assert!(memory > 80 << 20 && memory <= draft_bytes, "{memory} of {draft_bytes}");
    }
    let memory = engine.streamed().unwrap().memory();
    assert!(memory.pinned_bytes + memory.ring_bytes <= budget, "{memory:?}");
    for (session, does_draft) in [(plain(), false), (SessionOptions::default(), true)] {
        let mut session = engine.session(session).unwrap();
        // Two chunks and more, which share the reading of the weights.
        session.append_tokens(&prompt(1, 470)).unwrap();
        let options = GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
        let run = run_in(&mut session, options, usize::MAX);
        assert_eq!(run.tokens.len(), 12);
        let computed = run.stats.sources.iter().find_map(|source| source.computed.as_ref());
        assert!(
            !drafts
                || !does_draft
                || computed.is_some_and(|computed| computed.passes > 0 && computed.off.is_none())
        );
    }
    println!("\npeak {}", peak_bytes());
}

/// The largest resident set so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    kib * 1024
}
