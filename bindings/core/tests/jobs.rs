//! Objects, jobs and errors: what every binding relies on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use refrain_ffi::{
    DeviceState, Engine, EngineOptions, ErrorKind, Event, EventListener, FfiError, GenerateOptions,
    HistoryOptions, Job, MemoryPressure, Role, Session, SessionOptions, Stage, ThermalState,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");

fn options() -> EngineOptions {
    EngineOptions { threads: Some(1), measure_ms: Some(0), ..EngineOptions::new(MODEL) }
}

fn engine() -> Arc<Engine> {
    Engine::open(options(), None).unwrap()
}

fn session(engine: &Engine) -> Arc<Session> {
    let session =
        engine.session(SessionOptions { context_len: Some(1024), ..SessionOptions::default() }, None);
    let session = session.unwrap();
    session.append(Role::User, "Who repairs the tap?".to_owned()).unwrap();
    session
}

/// An output of at least 600 tokens.
fn long() -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(960),
        json_schema: Some(r#"{"type": "array", "items": {"type": "integer"}, "minItems": 600}"#.to_owned()),
        ..GenerateOptions::default()
    }
}

fn short() -> GenerateOptions {
    GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() }
}

fn kind<T>(outcome: Result<T, FfiError>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[test]
fn a_job_has_progress_text_and_a_result_and_then_nothing() {
    let engine = engine();
    let session = session(&engine);
    let job = session.generate(short()).unwrap();
    let mut events = Vec::new();
    while !job.is_ended().unwrap() {
        events.extend(job.next_events(1000).unwrap());
    }
    assert!(matches!(&events[0], Event::Progress { stage: Stage::Prefill, done, total } if done <= total));
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            Event::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let Some(Event::Done { result }) = events.last() else { panic!("{events:?}") };
    assert_eq!((text, result.stats.tokens), (result.text.clone(), 8));
    assert_eq!(job.next_events(1000).unwrap(), [], "at once");
    assert_eq!(&job.wait().unwrap(), &**result);
    assert_eq!(session.messages().unwrap().len(), 2);
    let again = session.generate(short()).unwrap();
    again.wait().unwrap();
    assert_eq!(again.next_events(0).unwrap().last().map(Event::is_last), Some(true), "wait takes no events");
}

#[test]
fn a_second_use_is_busy_and_a_cancelled_job_gives_back_its_session() {
    let engine = engine();
    let session = session(&engine);
    let job = session.generate(long()).unwrap();
    assert_eq!(kind(session.info()), Some(ErrorKind::Busy));
    assert_eq!(kind(session.generate(short())), Some(ErrorKind::Busy));
    let reader = Arc::clone(&job);
    let is_reading = Arc::new(AtomicBool::new(false));
    let reads = Arc::clone(&is_reading);
    let reader = thread::spawn(move || {
        let mut n = 0;
        reads.store(true, Ordering::Relaxed);
        while !reader.is_ended().unwrap() {
            match reader.next_events(1000) {
                Ok(events) => n += events.len(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
            }
        }
        n
    });
    while !is_reading.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(2));
    job.cancel();
    job.cancel();
    // Waits for the job, which is on its way home.
    session.info().unwrap();
    assert_eq!(kind(job.wait()), Some(ErrorKind::Cancelled));
    assert!(reader.join().unwrap() > 0);
    session.append(Role::User, "And the door?".to_owned()).unwrap();
    session.generate(short()).unwrap().wait().unwrap();
}

#[test]
fn closed_objects_refuse_and_an_engine_closes_what_it_made() {
    let engine = engine();
    let [one, other] = [0; 2].map(|_| session(&engine));
    one.close().unwrap();
    one.close().unwrap();
    assert_eq!(kind(one.info()), Some(ErrorKind::Closed));
    let job = other.generate(long()).unwrap();
    engine.close().unwrap();
    assert_eq!(kind(job.wait()), Some(ErrorKind::Cancelled));
    assert_eq!(kind(other.info()), Some(ErrorKind::Closed));
    assert_eq!(kind(engine.info()), Some(ErrorKind::Closed));
    job.close().unwrap();
    assert_eq!(kind(job.next_events(0)), Some(ErrorKind::Closed));
    assert!(job.is_ended().unwrap());
}

#[test]
fn a_session_outlives_its_engines_object_and_a_job_its_sessions() {
    let engine = engine();
    let session = session(&engine);
    drop(engine);
    let job = session.generate(short()).unwrap();
    drop(session);
    assert_eq!(job.wait().unwrap().stats.tokens, 8);
}

#[test]
fn a_dropped_job_is_cancelled() {
    let engine = engine();
    let session = session(&engine);
    drop(session.generate(long()).unwrap());
    // (The whole output has 600 tokens or more.)
    assert!(session.info().unwrap().tokens < 500);
}

/// Notes what it gets, calls back, and answers as it is told.
struct Listener {
    job: Mutex<Option<Arc<Job>>>,
    answer: Result<bool, ()>,
    seen: Mutex<Vec<Event>>,
    refused: AtomicUsize,
}

impl Listener {
    fn new(answer: Result<bool, ()>) -> Arc<Self> {
        Arc::new(Self { job: Mutex::default(), answer, seen: Mutex::default(), refused: AtomicUsize::new(0) })
    }
}

impl EventListener for Listener {
    fn on_events(&self, events: Vec<Event>) -> bool {
        assert!(!events.is_empty());
        self.seen.lock().unwrap().extend(events);
        if let Some(job) = &*self.job.lock().unwrap() {
            let codes = [kind(job.next_events(0)), kind(job.close()), kind(job.wait())];
            assert_eq!(codes, [Some(ErrorKind::Reentrant); 3]);
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.answer.unwrap_or_else(|()| panic!("a listener that throws"))
    }
}

/// Waits until the listener of a job has ended.
fn settle(job: &Job) {
    while kind(job.next_events(0)) == Some(ErrorKind::Busy) {
        thread::yield_now();
    }
}

#[test]
fn a_listener_gets_all_events_stops_the_job_and_may_not_call_back() {
    let engine = engine();
    let session = session(&engine);
    let listener = Listener::new(Ok(true));
    let job = session.generate(short()).unwrap();
    *listener.job.lock().unwrap() = Some(Arc::clone(&job));
    job.listen(Arc::clone(&listener) as Arc<dyn EventListener>).unwrap();
    job.wait().unwrap();
    settle(&job);
    let seen = listener.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().filter(|event| event.is_last()).count(), 1);
    assert!(seen.last().is_some_and(Event::is_last) && listener.refused.load(Ordering::Relaxed) > 0);
    // Nothing would ever call a second one.
    assert_eq!(kind(job.listen(Listener::new(Ok(true)))), Some(ErrorKind::WrongState));
    assert_eq!(job.next_events(0), Ok(Vec::new()), "the refused listener has left the events");

    let stops = Listener::new(Ok(false));
    let job = session.generate(long()).unwrap();
    job.listen(Arc::clone(&stops) as Arc<dyn EventListener>).unwrap();
    assert_eq!(kind(job.listen(Listener::new(Ok(true)))), Some(ErrorKind::Busy));
    assert_eq!(kind(job.wait()), Some(ErrorKind::Cancelled));
    settle(&job);
    assert!(matches!(stops.seen.lock().unwrap().last(), Some(Event::Failed { error }) if error.code == 10));

    let throws = Listener::new(Err(()));
    let job = session.generate(long()).unwrap();
    job.listen(Arc::clone(&throws) as Arc<dyn EventListener>).unwrap();
    assert_eq!(kind(job.wait()), Some(ErrorKind::Listener));
    session.generate(short()).unwrap().wait().unwrap();
}

#[test]
fn a_listened_job_goes_on_without_its_object() {
    let engine = engine();
    let session = session(&engine);
    let listener = Listener::new(Ok(true));
    let job = session.generate(short()).unwrap();
    job.listen(Arc::clone(&listener) as Arc<dyn EventListener>).unwrap();
    drop(job);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !listener.seen.lock().unwrap().last().is_some_and(Event::is_last) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert!(matches!(listener.seen.lock().unwrap().last(), Some(Event::Done { .. })));
}

#[test]
fn a_listener_sees_the_model_being_read() {
    let listener = Listener::new(Ok(false));
    Engine::open(options(), Some(Arc::clone(&listener) as Arc<dyn EventListener>)).unwrap();
    let seen = listener.seen.lock().unwrap();
    let stages: Vec<(u64, u64)> = seen
        .iter()
        .map(|event| match event {
            Event::Progress { stage: Stage::Load, done, total } => (*done, *total),
            event => panic!("{event:?}"),
        })
        .collect();
    assert!(
        stages.is_sorted() && stages.len() <= 102 && stages.last().is_some_and(|(done, total)| done == total)
    );
}

#[test]
fn sessions_share_the_memory_limit_and_give_it_back() {
    let of_session = SessionOptions { context_len: Some(256), ..SessionOptions::default() };
    let memory = refrain_ffi::estimate_memory(options(), of_session.clone()).unwrap();
    assert_eq!(memory.total_bytes, memory.model_bytes + memory.session_bytes);
    let refused =
        Engine::open(EngineOptions { memory_limit_bytes: Some(memory.model_bytes - 1), ..options() }, None);
    let Err(FfiError::Failed { info }) = refused else { panic!("it does not fit") };
    assert_eq!((info.kind, info.field.as_deref()), (ErrorKind::OutOfMemory, Some("memory_limit_bytes")));
    assert_eq!((info.value, info.limit), (Some(memory.model_bytes as f64), Some(memory.model_bytes - 1)));

    // Room for one session and a half.
    let room = memory.total_bytes + memory.session_bytes / 2;
    let engine = Engine::open(EngineOptions { memory_limit_bytes: Some(room), ..options() }, None).unwrap();
    let one = engine.session(of_session.clone(), None).unwrap();
    assert_eq!(kind(engine.session(of_session.clone(), None)), Some(ErrorKind::OutOfMemory));
    one.close().unwrap();
    drop(one);
    engine.session(of_session, None).unwrap();
}

#[test]
fn a_device_that_is_short_of_memory_changes_no_text() {
    let engine = engine();
    let [calm, short_of_memory] = [0; 2].map(|_| session(&engine));
    let expected = calm.generate(short()).unwrap().wait().unwrap().text;
    short_of_memory.prefill().unwrap().wait().unwrap();
    let cached = short_of_memory.info().unwrap().cached_tokens;
    let state = DeviceState {
        memory: Some(MemoryPressure::Critical),
        thermal: Some(ThermalState::Serious),
        ..DeviceState::default()
    };
    engine.set_device_state(state).unwrap();
    assert!(short_of_memory.info().unwrap().cached_tokens < cached);
    assert_eq!(short_of_memory.generate(short()).unwrap().wait().unwrap().text, expected);
}

#[test]
fn a_process_that_is_suspended_has_no_running_job() {
    let engine = engine();
    let session = session(&engine);
    let job = session.generate(long()).unwrap();
    let report = engine.prepare_to_suspend(60_000).unwrap();
    assert_eq!((report.cancelled, report.running), (1, 0));
    assert_eq!(kind(job.wait()), Some(ErrorKind::Cancelled));
    session.generate(short()).unwrap().wait().unwrap();
}

#[test]
fn a_history_gets_outputs_that_were_not_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let of_history = |key: Option<Vec<u8>>| HistoryOptions {
        folder: folder.path().to_str().unwrap().to_owned(),
        namespace: Some("ada".to_owned()),
        key,
    };
    assert_eq!(kind(engine.history(of_history(Some(vec![1; 31])))), Some(ErrorKind::InvalidArgument));
    let history = engine.history(of_history(None)).unwrap();
    let session = engine.session(SessionOptions::default(), Some(Arc::clone(&history))).unwrap();
    session.append(Role::User, "Who repairs the tap?".to_owned()).unwrap();
    let bytes = || -> u64 {
        let files = walk(folder.path());
        files.iter().map(|file| file.metadata().unwrap().len()).sum()
    };
    let before = bytes();
    let cancelled = session.generate(short()).unwrap();
    cancelled.cancel();
    let _ = cancelled.wait();
    let result = session.generate(short()).unwrap().wait().unwrap();
    assert_eq!(result.not_kept, None);
    assert!(bytes() > before);
    history.maintain().unwrap();
    history.forget().unwrap();
    history.close().unwrap();
    assert_eq!(kind(history.maintain()), Some(ErrorKind::Closed));
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(walk(&path)),
            false => files.push(path),
        }
    }
    files
}

#[test]
fn options_are_checked_with_the_name_and_the_limit() {
    let engine = engine();
    let session = session(&engine);
    let seed = GenerateOptions { seed: Some(1 << 53), temperature: Some(1.0), ..short() };
    let Err(FfiError::Failed { info }) = session.generate(seed) else { panic!("too large") };
    assert_eq!(
        (info.kind, info.field.as_deref(), info.limit),
        (ErrorKind::InvalidArgument, Some("seed"), Some((1 << 53) - 1))
    );
    let schema = GenerateOptions { json_schema: Some("{".to_owned()), ..short() };
    let Err(FfiError::Failed { info }) = session.generate(schema) else { panic!("no schema") };
    assert_eq!((info.kind, info.field.as_deref()), (ErrorKind::InvalidArgument, Some("json_schema")));
    let temperature = GenerateOptions { temperature: Some(-1.0), ..short() };
    let Err(FfiError::Failed { info }) = session.generate(temperature) else { panic!("negative") };
    assert_eq!((info.kind, info.field.as_deref()), (ErrorKind::InvalidArgument, Some("temperature")));
    let missing = Engine::open(EngineOptions::new("/no/such"), None);
    let Err(FfiError::Failed { info }) = missing else { panic!("no file") };
    assert_eq!((info.kind, info.file.as_deref()), (ErrorKind::NotFound, Some("/no/such")));
    // A seed that is drawn repeats its text.
    let drawn = GenerateOptions { temperature: Some(1.0), ..short() };
    let first = session.generate(drawn.clone()).unwrap().wait().unwrap();
    session.pop().unwrap();
    let again = GenerateOptions { seed: first.seed, ..drawn };
    assert_eq!(session.generate(again).unwrap().wait().unwrap().text, first.text);
}

#[test]
fn many_threads_use_one_engine() {
    let engine = engine();
    let expected = session(&engine).generate(short()).unwrap().wait().unwrap().text;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let job = session(&engine).generate(short()).unwrap();
                    assert_eq!(job.wait().unwrap().text, expected);
                }
            });
        }
    });
}
