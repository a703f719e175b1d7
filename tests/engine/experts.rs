//! Mixtures of experts: streamed models, whose experts are read on request, give the bits of models in memory, within their
//! memory, and a disk that fails gives typed errors.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::ForwardError;
use refrain::internals::model::graphs::{LayersError, LayersProblem};
use refrain::internals::model::packed::{PackedFile, Part};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{CancelToken, Engine, ErrorKind, GenerateError, GenerateOptions, SessionOptions, TokenId};

use crate::common::{self, Run, engine_at as engine, plain, run, run_in};
use crate::model_files::{GOLDEN_EXPERTS, golden, packed};

fn prompt() -> Vec<TokenId> {
    (0..60).map(|i| TokenId(3 + (i * i * 7 + i) % 250)).collect()
}

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: 24, ignore_eos: true, ..GenerateOptions::default() }
}

fn reference(path: &Path) -> Run {
    run(&engine(path, 1, None), plain(), Vec::new(), &prompt(), options())
}

#[test]
fn streamed_experts_give_the_bits_of_experts_in_memory() {
    for name in GOLDEN_EXPERTS.into_iter().chain(["gemma4-experts", "granitemoehybrid"]) {
        let (_dir, path) = packed(&Checkpoint::open(golden(name)).unwrap());
        let reference = reference(&path);
        let n_layers = Checkpoint::open(&path).unwrap().config().n_layers();
        for pinned in (0..=n_layers).map(Pinned::Layers).chain([Pinned::Memory(0)]) {
            for n_threads in [1, 3] {
                let engine = engine(&path, n_threads, Some(StreamOptions::new(pinned)));
                let drafting =
                    SessionOptions { history: false, prefill_chunk: 16, ..SessionOptions::default() };
                for (session, is_drafting) in [(plain(), false), (drafting, true)] {
                    let known = AlwaysRight::new(prompt().len(), reference.tokens.clone());
                    let sources: Vec<Box<dyn DraftSource>> =
                        if is_drafting { vec![Box::new(known)] } else { Vec::new() };
                    let run = run(&engine, session, sources, &prompt(), options());
                    run.assert_equal(&reference, &format!("{name}, {pinned:?}, {n_threads} threads"));
                }
                let flow = engine.streamed().unwrap().flow();
                assert!(flow.expert_hits <= flow.expert_uses, "{flow:?}");
                let is_resident = pinned == Pinned::Layers(n_layers);
                assert_eq!(flow.expert_uses == 0, is_resident, "{name}, {pinned:?}: {flow:?}");
                let memory = engine.streamed().unwrap().memory();
                assert_eq!(memory.experts_bytes == 0, is_resident, "{memory:?}");
            }
        }
    }
}

/// Experts stay in memory while they are used.
#[test]
fn experts_in_use_are_not_read_again() {
    let (_dir, path) = packed(&Checkpoint::open(golden("qwen3_moe")).unwrap());
    let engine = engine(&path, 1, Some(StreamOptions::new(Pinned::Layers(3))));
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt()).unwrap();
    run_in(&mut session, options(), usize::MAX);
    let flow = engine.streamed().unwrap().flow();
    // Slots for 8 of the 32 experts.
    assert!(flow.expert_hits > 0 && flow.expert_hits < flow.expert_uses, "{flow:?}");
    // Under pressure, there is room for the experts of a row.
    let before = engine.streamed().unwrap().memory().experts_bytes;
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    assert_eq!(engine.streamed().unwrap().memory().experts_bytes, before / 4);
    let reference = reference(&path);
    run(&engine, plain(), Vec::new(), &prompt(), options()).assert_equal(&reference, "under pressure");
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    run(&engine, plain(), Vec::new(), &prompt(), options()).assert_equal(&reference, "after it");
    assert_eq!(engine.streamed().unwrap().memory().experts_bytes, before);
}

fn faulty(left: &Arc<AtomicUsize>, delay: Duration) -> StreamOptions {
    let mut options = StreamOptions::new(Pinned::Layers(1));
    options.wrap = common::failing_after(left, delay);
    options
}

#[test]
fn a_failed_read_is_a_typed_error_and_the_next_pass_reads_again() {
    let (_dir, path) = packed(&Checkpoint::open(golden("gpt_oss")).unwrap());
    let reference = reference(&path);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let engine = engine(&path, 2, Some(faulty(&left, Duration::ZERO)));
    for n_reads in (0..60).step_by(3) {
        let mut session = engine.session(plain()).unwrap();
        session.append_tokens(&prompt()).unwrap();
        left.store(n_reads, Ordering::SeqCst);
        let failed = session.generate(options()).unwrap().run(|_| std::ops::ControlFlow::Continue(()));
        match failed.as_ref().map_err(GenerateError::detail) {
            Err(Some(ForwardError::Layers(LayersError { problem, .. }))) => {
                assert!(matches!(problem, LayersProblem::Read { .. }), "{problem}");
            }
            other => panic!("{n_reads} reads: {:?}", other.map(|_| "finished")),
        }
        left.store(usize::MAX, Ordering::SeqCst);
        drop(session);
        run(&engine, plain(), Vec::new(), &prompt(), options()).assert_equal(&reference, "after a fault");
    }
}

#[test]
fn a_slow_disk_stalls_or_is_cancelled() {
    let (_dir, path) = packed(&Checkpoint::open(golden("qwen3_moe")).unwrap());
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let mut streaming = faulty(&left, Duration::from_millis(200));
    streaming.stall_max = Duration::from_millis(40);
    let engine = engine(&path, 1, Some(streaming));
    let mut session = engine.session(plain()).unwrap();
    // The rows of one panel of the embedding.
    session.append_tokens(&[3, 4, 5, 6].map(TokenId)).unwrap();
    let failed = session.generate(options()).unwrap().run(|_| std::ops::ControlFlow::Continue(()));
    match failed.as_ref().map_err(GenerateError::detail) {
        Err(Some(ForwardError::Layers(LayersError { problem, .. }))) => {
            assert!(matches!(problem, LayersProblem::Stalled { limit_ms: 40, .. }), "{problem}");
        }
        other => panic!("{:?}", other.map(|_| "finished")),
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let cancelled = session.score(&cancel, None);
    assert!(cancelled.is_err(), "a cancelled pass ends");
}

/// Reads of experts that wait while the gate is closed, and then fail.
#[derive(Clone, Default)]
struct Gate {
    is_closed: Arc<AtomicBool>,
    n_held: Arc<AtomicUsize>,
}

impl Gate {
    fn options(&self, path: &Path, pinned: Pinned) -> StreamOptions {
        let file = PackedFile::open(path).unwrap();
        // A layer is read from its beginning, its experts behind the other tensors.
        let layers = file.sections().iter().filter(|section| matches!(section.part, Part::Layer(_)));
        let layers: Vec<_> = layers.map(|section| section.offset..section.offset + section.len).collect();
        let is_of_experts =
            move |offset: u64| layers.iter().any(|layer| layer.contains(&offset) && layer.start != offset);
        let gate = self.clone();
        let mut options = StreamOptions::new(pinned);
        options.stall_max = Duration::from_secs(10);
        options.wrap = common::reading(move |file, offset, out| {
            if is_of_experts(offset) && gate.is_closed.load(Ordering::SeqCst) {
                gate.n_held.fetch_add(1, Ordering::SeqCst);
                while gate.is_closed.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                return Err(io::Error::from_raw_os_error(5));
            }
            file.read_at(offset, out)
        });
        options
    }

    /// Closes the gate, and cancels a pass whose reads wait there.
    fn close_before(&self, engine: &Engine) {
        self.is_closed.store(true, Ordering::SeqCst);
        let (cancel, n_before) = (CancelToken::new(), self.n_held.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            let pass = scope.spawn(|| {
                let mut session = engine.session(plain()).unwrap();
                session.append_tokens(&prompt()).unwrap();
                session.prefill(&cancel, |_, _| {})
            });
            while self.n_held.load(Ordering::SeqCst) == n_before {
                std::thread::yield_now();
            }
            cancel.cancel();
            let cancelled = pass.join().unwrap();
            assert_eq!(cancelled.map_err(|error| error.kind()), Err(ErrorKind::Cancelled));
        });
    }

    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }
}

/// A pass waits for reads that a cancelled pass requested. If they fail, it reads again, though every slot is in use by it.
#[test]
fn reads_of_a_cancelled_pass_that_fail_are_made_again() {
    let (_dir, path) = packed(&Checkpoint::open(golden("qwen3_moe")).unwrap());
    let (reference, gate) = (reference(&path), Gate::default());
    let engine = engine(&path, 1, Some(gate.options(&path, Pinned::Layers(0))));
    // Slots for the experts of a row only.
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    let uses = || engine.streamed().unwrap().flow().expert_uses;
    for round in 0..20 {
        gate.close_before(&engine);
        let uses_before = uses();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| run(&engine, plain(), Vec::new(), &prompt(), options()));
            while uses() == uses_before {
                std::thread::yield_now();
            }
            gate.open();
            next.join().unwrap().assert_equal(&reference, &format!("round {round}"));
        });
    }
}

/// Reads of a cancelled pass hold memory. Under pressure it is released when they end, at the latest with the next pass.
#[test]
fn memory_of_reads_under_way_is_released_under_pressure() {
    let (_dir, path) = packed(&Checkpoint::open(golden("qwen3_moe")).unwrap());
    let (reference, gate) = (reference(&path), Gate::default());
    let engine = engine(&path, 1, Some(gate.options(&path, Pinned::Layers(3))));
    let bytes = || engine.streamed().unwrap().memory().experts_bytes;
    let before = bytes();
    gate.close_before(&engine);
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    assert!(bytes() > before / 4, "reads that hang hold their memory");
    gate.open();
    run(&engine, plain(), Vec::new(), &prompt(), options()).assert_equal(&reference, "under pressure");
    assert_eq!(bytes(), before / 4);
    // Reads that end meanwhile are waited for.
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    gate.close_before(&engine);
    std::thread::scope(|scope| {
        let pressed = scope.spawn(|| engine.device().set_memory_pressure(MemoryPressure::Critical));
        gate.open();
        pressed.join().unwrap();
    });
    assert_eq!(bytes(), before / 4);
}
