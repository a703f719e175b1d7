//! Long prompts of streamed models, which read each layer once for several chunks: every family has the bits of the model in memory, also after
//! a fault or a cancellation in the middle of the layers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::Calibration;
use refrain::internals::error::ForwardError;
use refrain::internals::model::kv_cache::WindowCache;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{CancelToken, ErrorKind, GenerateOptions, SessionOptions, TokenId};

use crate::common::{self, Run, engine_at as engine, plain, run, run_in};
use crate::model_files::{golden, packed};

/// Windows, recurrent layers, experts, and both; and what runs in chunks: layers' own inputs, several residual streams.
const FAMILIES: [&str; 11] = [
    "qwen3",
    "gemma3",
    "gpt_oss",
    "lfm2",
    "qwen3_5",
    "granitemoehybrid",
    "lfm2_moe",
    "qwen3_moe",
    "gemma4-experts",
    "gemma4",
    "gemma3n",
];

/// Those that read every prompt in chunks.
const IN_CHUNKS: [&str; 2] = ["gemma4", "gemma3n"];

const CHUNK: usize = 16;
const N_TOKENS: usize = 150;

fn prompt() -> Vec<TokenId> {
    (0..N_TOKENS as u32).map(|i| TokenId(3 + (i * i * 7 + i) % 250)).collect()
}

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: 10, ignore_eos: true, ..GenerateOptions::default() }
}

fn reference(path: &Path) -> Run {
    run(&engine(path, 1, None), plain(), Vec::new(), &prompt(), options())
}

/// Without drafts and with sources that read the prompt's rows, with whole and with bounded caches of windows.
fn sessions() -> [SessionOptions; 3] {
    let plain = SessionOptions { prefill_chunk: CHUNK, ..plain() };
    let reading = SessionOptions {
        history: false,
        prefill_chunk: CHUNK,
        calibration: Calibration::InContext,
        ..SessionOptions::default()
    };
    [SessionOptions { window_cache: WindowCache::Bounded, ..plain.clone() }, plain, reading]
}

#[test]
fn the_bits_are_those_of_the_model_in_memory() {
    for family in FAMILIES {
        let (_dir, path) = packed(&Checkpoint::open(golden(family)).unwrap());
        let reference = reference(&path);
        for pinned in [Pinned::Layers(0), Pinned::Layers(1), Pinned::Memory(0)] {
            if pinned == Pinned::Memory(0) && IN_CHUNKS.contains(&family) {
                continue; // The projection of layers' own inputs is pinned in any case.
            }
            let engine = engine(&path, 2, Some(StreamOptions::new(pinned)));
            let streamed = engine.streamed().unwrap();
            let has_sweeps = streamed.memory().prompt_bytes > 0;
            for (i, session) in sessions().into_iter().enumerate() {
                let case = format!("{family}, {pinned:?}, session {i}");
                let found = run(&engine, session, Vec::new(), &prompt(), options());
                found.assert_equal(&reference, &case);
                let read = found.stats.streaming.unwrap().prefill.read_bytes;
                let once = streamed.pass_bytes() + streamed.ring_room();
                // Experts are read as routers choose them, and rows for a list of tokens by themselves.
                if has_sweeps && i < 2 && streamed.memory().experts_bytes == 0 {
                    assert!(read <= 2 * once, "{case}: {read} bytes, {once} for a pass");
                }
            }
            let expected = pinned != Pinned::Memory(0) && !IN_CHUNKS.contains(&family);
            assert_eq!(has_sweeps, expected, "{family}, {pinned:?}");
        }
    }
}

#[test]
fn a_session_goes_on_after_a_fault_or_a_cancellation() {
    let (mut n_failed, mut n_cancelled) = (0, 0);
    for family in FAMILIES {
        let (_dir, path) = packed(&Checkpoint::open(golden(family)).unwrap());
        let reference = reference(&path);
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let mut streaming = StreamOptions::new(Pinned::Layers(0));
        streaming.wrap = common::failing_after(&left, Duration::ZERO);
        let engine = engine(&path, 1, Some(streaming));
        for (i, options_of) in sessions().into_iter().enumerate() {
            for fault in 0..8 {
                let case = format!("{family}, session {i}, fault {fault}");
                let mut session = engine.session(options_of.clone()).unwrap();
                // Some of it before, so that recurrent layers return to a state in the middle.
                let n_before = [1, 40][fault % 2];
                session.append_tokens(&prompt()[..n_before]).unwrap();
                session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
                session.append_tokens(&prompt()[n_before..]).unwrap();
                let cancel = CancelToken::new();
                if fault < 6 {
                    left.store(3 * fault, Ordering::SeqCst);
                }
                let mut n_reports = 0;
                let failed = session.prefill(&cancel, |done, total| {
                    assert!(done <= total);
                    n_reports += 1;
                    if fault >= 6 && n_reports == fault - 5 {
                        cancel.cancel();
                    }
                });
                left.store(usize::MAX, Ordering::SeqCst);
                match &failed {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::Cancelled && fault >= 6 => n_cancelled += 1,
                    Err(error) => {
                        let Some(ForwardError::Layers(_)) = error.detail() else {
                            panic!("{case}: {error:?}")
                        };
                        n_failed += 1;
                    }
                }
                assert_eq!(session.tokens(), prompt(), "{case}");
                run_in(&mut session, options(), usize::MAX).assert_equal(&reference, &case);
            }
        }
    }
    // Some passes find all that they need in the ring.
    assert!(n_failed > 10 && n_cancelled > 30, "{n_failed} failed, {n_cancelled} cancelled");
}

/// The memory for a prompt belongs to one session at a time; others read chunk by chunk meanwhile.
#[test]
fn sessions_at_once_have_their_bits() {
    let (_dir, path) = packed(&Checkpoint::open(golden("qwen3_5")).unwrap());
    let reference = reference(&path);
    let engine = engine(&path, 2, Some(StreamOptions::new(Pinned::Layers(0))));
    std::thread::scope(|scope| {
        for session in sessions() {
            let (engine, reference) = (&engine, &reference);
            scope.spawn(move || {
                for _ in 0..3 {
                    let found = run(engine, session.clone(), Vec::new(), &prompt(), options());
                    found.assert_equal(reference, "beside others");
                }
            });
        }
    });
}
