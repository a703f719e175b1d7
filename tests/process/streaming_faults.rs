//! A disk that fails while a model is streamed: for any fault at any read, a generation gives its output or a typed
//! error. Committed tokens stay, and the session continues with the same bits as without the fault.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::CostProfile;
use refrain::internals::error::ForwardError;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::graphs::{LayersError, LayersProblem};
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::stream::{DIRECT_ALIGN, ReadAt};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, Event, GenerateError, GenerateOptions, Quantize, Session,
    SessionOptions, TokenId,
};
use tempfile::TempDir;

use crate::common::{self, LogitsRecorder, Tiny, plain, prompt, run_in};

/// The faults of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The device cannot read the sector.
    Eio,
    /// The file ends here.
    End,
    /// One page, or a part of it, at a time.
    Short(usize),
    /// Signals, several in a row.
    Interrupted(usize),
    /// A count that exceeds the requested bytes.
    TooMany,
    /// A delay of some milliseconds.
    Slow,
    /// The device is missing until it is connected again.
    Gone,
    /// The same, detected by any read: a read ahead may fail while another pass already waits for it.
    GoneSlowly,
}

const FAULTS: [Fault; 10] = [
    Fault::Eio,
    Fault::End,
    Fault::Short(DIRECT_ALIGN),
    Fault::Short(100),
    Fault::Interrupted(3),
    Fault::Interrupted(1000),
    Fault::TooMany,
    Fault::Slow,
    Fault::Gone,
    Fault::GoneSlowly,
];

impl Fault {
    /// Whether a generation is unaffected.
    fn is_harmless(self) -> bool {
        matches!(self, Fault::Short(DIRECT_ALIGN) | Fault::Interrupted(3) | Fault::Slow)
    }
}

/// The place of the next fault; counts reads.
#[derive(Default)]
struct Plan {
    n_reads: AtomicUsize,
    /// (number of the read, fault, number of its occurrences)
    fault: Mutex<Option<(usize, Fault, usize)>>,
}

impl Plan {
    fn plant(&self, at: usize, fault: Fault) {
        self.n_reads.store(0, Ordering::SeqCst);
        *self.fault.lock().unwrap() = Some((at, fault, 0));
    }

    fn clear(&self) {
        *self.fault.lock().unwrap() = None;
    }

    /// The fault of this read, and its number of occurrences.
    fn next(&self) -> Option<(Fault, usize)> {
        let mut planted = self.fault.lock().unwrap();
        let n_read = self.n_reads.fetch_add(1, Ordering::SeqCst);
        let (at, fault, n_times) = planted.as_mut()?;
        // While the fault lasts, the following read repeats it.
        let lasts = match *fault {
            Fault::Gone | Fault::GoneSlowly => usize::MAX,
            Fault::Interrupted(n) => n,
            Fault::Short(_) => 100,
            _ => 1,
        };
        if n_read < *at || *n_times >= lasts {
            return None;
        }
        *n_times += 1;
        Some((*fault, *n_times - 1))
    }

    fn read(&self, file: &dyn ReadAt, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let planted = self.next();
        if let Some((Fault::GoneSlowly, n_times)) = planted {
            std::thread::sleep(Duration::from_millis(4 - n_times as u64 % 5));
        }
        match planted.map(|(fault, _)| fault) {
            None => file.read_at(offset, out),
            Some(Fault::Eio | Fault::Gone | Fault::GoneSlowly) => Err(io::Error::from_raw_os_error(5)),
            Some(Fault::End) => Ok(0),
            Some(Fault::Interrupted(_)) => Err(io::ErrorKind::Interrupted.into()),
            Some(Fault::TooMany) => Ok(out.len() + 1),
            Some(Fault::Short(len)) => {
                let n_bytes = file.read_at(offset, out)?.min(len);
                // A caller that uses these bytes computes nonsense.
                out[n_bytes..].fill(0xA5);
                Ok(n_bytes)
            }
            Some(Fault::Slow) => {
                std::thread::sleep(Duration::from_millis(3));
                file.read_at(offset, out)
            }
        }
    }
}

const TINY: Tiny = Tiny { n_layers: 3, ty: BlockType::Q8_0, ..Tiny::DEFAULT };

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.refrain");
    let checkpoint = Checkpoint::from_gguf_bytes(TINY.gguf().into(), "tiny").unwrap();
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    (dir, path)
}

fn engine(path: &Path, streaming: StreamOptions) -> Engine {
    let options = EngineOptions { n_threads: Some(1), streaming: Some(streaming), ..TINY.options() };
    Engine::open(path, options).unwrap()
}

fn faulty(path: &Path, pinned: Pinned) -> (Engine, Arc<Plan>) {
    let plan = Arc::new(Plan::default());
    let theirs = Arc::clone(&plan);
    let mut streaming = StreamOptions::new(pinned);
    streaming.wrap = common::reading(move |file, offset, out| theirs.read(file, offset, out));
    (engine(path, streaming), plan)
}

const N_TOKENS: usize = 10;

/// Generates until the session has `N_TOKENS` more than the prompt, or until an error; adds the logits' bits by
/// position.
fn go_on(session: &mut Session, prompt_len: usize, logits: &LogitsRecorder) -> Result<(), GenerateError> {
    let max_tokens = prompt_len + N_TOKENS - session.tokens().len();
    if max_tokens == 0 {
        return Ok(());
    }
    let options = GenerateOptions {
        max_tokens,
        ignore_eos: true,
        processors: vec![Box::new(logits.clone())],
        ..GenerateOptions::default()
    };
    let mut n_events = 0;
    let before = session.tokens().len();
    let result = session.generate(options)?.try_for_each(|event| {
        n_events += usize::from(matches!(event?, Event::Token(_)));
        Ok(())
    });
    // In both cases, the committed tokens are those of the app's events.
    assert_eq!(session.tokens().len() - before, n_events);
    result
}

struct Expected {
    prompt: Vec<TokenId>,
    tokens: Vec<TokenId>,
    logits: BTreeMap<usize, u64>,
}

fn expected() -> Expected {
    let (prompt, logits) = (prompt(4, 24), LogitsRecorder::default());
    let mut session = TINY.engine(1).session(plain()).unwrap();
    session.append_tokens(&prompt).unwrap();
    go_on(&mut session, prompt.len(), &logits).unwrap();
    let (tokens, logits) = (session.tokens().to_vec(), logits.0.lock().unwrap().clone());
    Expected { prompt, tokens, logits }
}

fn session(engine: &Engine, drafts: bool) -> Session {
    let drafting = SessionOptions { history: false, prefill_chunk: 8, ..SessionOptions::default() };
    let options = if drafts { drafting } else { SessionOptions { prefill_chunk: 8, ..plain() } };
    engine.session(options).unwrap()
}

/// Plants `n_faults` faults, at reads all over a generation; returns the number of detected ones.
fn plant_all(n_faults: usize) -> usize {
    let (_dir, path) = packed();
    let expected = expected();
    let mut n_noticed = 0;
    for (pinned, drafts) in [(0, false), (0, true), (1, false), (2, true)] {
        let (engine, plan) = faulty(&path, Pinned::Layers(pinned));
        if pinned == 2 {
            // A draft model, so that faults of the ring occur in the middle of its own text.
            let draft = Checkpoint::from_gguf_bytes(Tiny { seed: 5, ..TINY }.gguf().into(), "draft").unwrap();
            let cost_profile = Some(CostProfile::free_rows(0.01));
            let cheap = DraftModelOptions { cost_profile, ..DraftModelOptions::default() };
            engine.set_draft_model(&draft, cheap, |_, _| {}).unwrap();
        }
        plan.plant(usize::MAX, Fault::Eio);
        let mut whole = session(&engine, drafts);
        whole.append_tokens(&expected.prompt).unwrap();
        go_on(&mut whole, expected.prompt.len(), &LogitsRecorder::default()).unwrap();
        let n_reads = plan.n_reads.load(Ordering::SeqCst);
        if engine.draft_model().is_some() {
            let mut session = session(&engine, drafts);
            session.append_tokens(&expected.prompt).unwrap();
            let options =
                GenerateOptions { max_tokens: N_TOKENS, ignore_eos: true, ..GenerateOptions::default() };
            let sources = run_in(&mut session, options, usize::MAX).stats.sources;
            let computed = sources.iter().find_map(|source| source.computed.as_ref()).unwrap();
            assert!(computed.passes > 0 && computed.off.is_none(), "{computed:?}");
        }
        for i in 0..n_faults / 4 {
            // A step without a common factor with the number of kinds, so that every kind occurs in every part.
            let (at, fault) = (i * 37 % n_reads, FAULTS[i % FAULTS.len()]);
            let case = format!("{fault:?} at read {at} of {n_reads}, {pinned} pinned, drafts: {drafts}");
            let mut session = session(&engine, drafts);
            session.append_tokens(&expected.prompt).unwrap();
            let logits = LogitsRecorder::default();
            plan.plant(at, fault);
            match go_on(&mut session, expected.prompt.len(), &logits) {
                Ok(()) => {}
                Err(error) => {
                    let Some(ForwardError::Layers(error)) = error.detail() else {
                        panic!("{case}: {error:?}")
                    };
                    assert!(!fault.is_harmless(), "{case}: {error}");
                    check_error(error, &path, &case);
                    n_noticed += 1;
                }
            }
            plan.clear();
            assert_eq!(session.tokens(), &expected.tokens[..session.tokens().len()], "{case}");
            go_on(&mut session, expected.prompt.len(), &logits).expect(&case);
            assert_eq!(session.tokens(), expected.tokens, "{case}");
            // Every position once: reported tokens are not computed again.
            assert_eq!(*logits.0.lock().unwrap(), expected.logits, "{case}");
        }
    }
    n_noticed
}

fn check_error(error: &LayersError, path: &Path, case: &str) {
    assert_eq!(error.file, path.display().to_string(), "{case}");
    let len = std::fs::metadata(path).unwrap().len();
    match &error.problem {
        LayersProblem::Read { offset, kind, .. } => {
            assert!(*offset < len, "{case}: {error}");
            let kinds = [
                io::ErrorKind::UnexpectedEof,
                io::ErrorKind::Interrupted,
                io::ErrorKind::InvalidData,
                io::Error::from_raw_os_error(5).kind(),
            ];
            assert!(kinds.contains(kind), "{case}: {error}");
        }
        other => panic!("{case}: {other}"),
    }
}

#[test]
fn every_fault_is_an_error_or_none() {
    let n_noticed = plant_all(240);
    assert!(n_noticed > 30, "{n_noticed} of 240 were noticed");
}

/// The same at 2000 places.
#[test]
#[ignore = "takes 15 seconds; `cargo test --test process -- --ignored streaming_faults::`"]
fn two_thousand_faults() {
    let n_noticed = plant_all(2000);
    assert!(n_noticed > 250, "{n_noticed} of 2000 were noticed");
}

/// A file that another program shortens and restores.
#[test]
fn a_file_that_becomes_shorter_is_an_error_with_its_place() {
    let (_dir, path) = packed();
    let expected = expected();
    let whole = std::fs::read(&path).unwrap();
    let engine = engine(&path, StreamOptions::new(Pinned::Layers(0)));
    let sections = Checkpoint::open(&path).unwrap().packed().unwrap().sections().to_vec();
    for section in &sections {
        let mut session = session(&engine, false);
        session.append_tokens(&expected.prompt).unwrap();
        let logits = LogitsRecorder::default();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(section.offset).unwrap();
        // Blocks in the ring are still valid.
        let error = (0..2).find_map(|_| go_on(&mut session, expected.prompt.len(), &logits).err());
        let error = error.as_ref().and_then(GenerateError::detail);
        let Some(ForwardError::Layers(error)) = error else { panic!("cut at {}: {error:?}", section.offset) };
        let LayersProblem::Read { offset, kind: io::ErrorKind::UnexpectedEof, .. } = error.problem else {
            panic!("cut at {}: {error}", section.offset)
        };
        assert!(offset >= section.offset, "{offset} before {}", section.offset);
        std::fs::write(&path, &whole).unwrap();
        go_on(&mut session, expected.prompt.len(), &logits).unwrap();
        assert_eq!((session.tokens(), &*logits.0.lock().unwrap()), (&expected.tokens[..], &expected.logits));
    }
}

#[test]
fn a_disk_that_hangs_is_an_error_and_may_come_back() {
    let (_dir, path) = packed();
    let expected = expected();
    let hangs = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&hangs);
    // Longer than a busy machine leaves a reader without a processor.
    let stall_max = Duration::from_secs(2);
    let mut streaming = StreamOptions::new(Pinned::Layers(1));
    streaming.wrap = common::reading(move |file, offset, out| {
        // Single rows do not hang.
        while out.len() > 2 * DIRECT_ALIGN && theirs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        file.read_at(offset, out)
    });
    streaming.stall_max = stall_max;
    let engine = engine(&path, streaming);
    let mut session = session(&engine, false);
    session.append_tokens(&expected.prompt).unwrap();
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    let logits = LogitsRecorder::default();
    hangs.store(true, Ordering::Relaxed);
    // The blocks in the ring suffice for one or two tokens.
    let error = go_on(&mut session, expected.prompt.len(), &logits).unwrap_err();
    let Some(ForwardError::Layers(layers)) = error.detail() else { panic!("{error:?}") };
    let LayersProblem::Stalled { limit_ms: 2000, .. } = layers.problem else { panic!("{error}") };
    hangs.store(false, Ordering::Relaxed);
    go_on(&mut session, expected.prompt.len(), &logits).unwrap();
    assert_eq!((session.tokens(), &*logits.0.lock().unwrap()), (&expected.tokens[..], &expected.logits));
    // Another generation, without a fault.
    let again = run_in(&mut session, GenerateOptions { max_tokens: 2, ..GenerateOptions::default() }, 2);
    assert!(!again.tokens.is_empty());
}

const FROZEN: &str = "REFRAIN_TEST_FROZEN";

/// A process that the system stops for longer than a disk may stall, as phones do with apps: it goes on. The waits of `stall_max` are longer
/// than the read.
#[test]
#[cfg(unix)]
fn a_frozen_process_goes_on() {
    if std::env::var_os(FROZEN).is_some() {
        return read_slowly();
    }
    for experts in ["no", "yes"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "streaming_faults::a_frozen_process_goes_on", "--nocapture"])
            .env(FROZEN, experts)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.by_ref().any(|line| line.unwrap().ends_with("reading")), "the child has ended");
        let signal = |name: &str| {
            let sent = std::process::Command::new("kill").args([name, &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        };
        signal("-STOP");
        std::thread::sleep(Duration::from_millis(1500));
        signal("-CONT");
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(child.wait().unwrap().success(), "experts: {experts}, {rest:?}");
    }
}

/// Generates from a disk of which one read takes a while.
#[cfg(unix)]
fn read_slowly() {
    let with_experts = std::env::var(FROZEN).unwrap() == "yes";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    let checkpoint = match with_experts {
        true => Checkpoint::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/qwen3_moe")).unwrap(),
        false => Checkpoint::from_gguf_bytes(TINY.gguf().into(), "tiny").unwrap(),
    };
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    let pauses = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&pauses);
    // Of the model with experts, a pass reads those of the first layer first.
    let pinned_first = if with_experts { checkpoint.config().n_layers() - 1 } else { 0 };
    let mut streaming = StreamOptions::new(Pinned::Layers(pinned_first));
    streaming.wrap = common::reading(move |file, offset, out| {
        if theirs.swap(false, Ordering::Relaxed) {
            println!("reading");
            // No sleep outlasts a stop of the process by more than its own length.
            (0..20).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        }
        file.read_at(offset, out)
    });
    streaming.stall_max = Duration::from_secs(1);
    streaming.pinned_first = pinned_first;
    let engine = engine(&path, streaming);
    let mut session = session(&engine, false);
    session.append_tokens(&[TokenId(5), TokenId(6), TokenId(7)]).unwrap();
    let cancel = CancelToken::new();
    pauses.store(true, Ordering::Relaxed);
    session.prefill(&cancel, |_, _| {}).unwrap();
    run_in(&mut session, GenerateOptions { max_tokens: 2, ..GenerateOptions::default() }, 2);
    assert!(!pauses.load(Ordering::Relaxed), "nothing was read");
}
