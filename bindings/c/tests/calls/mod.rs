//! Random calls of the C face, from bytes. The test and the fuzz target share them.
//!
//! Every call must return: with `Ok` or with a code that its arguments explain. Handles come from a pool of live, closed, freed, null,
//! foreign and made-up ones, of all types.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use refrain_c::*;

/// Options of a small engine, as JSON.
const ENGINE: &str =
    concat!(r#"{"threads": 1, "measure_ms": 0, "path": ""#, env!("CARGO_MANIFEST_DIR"), r#"/MODEL"}"#);

/// The bytes that are left.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }
}

/// What a listener is given. It is freed as soon as the listener has got the last event.
struct Listening {
    job: Handle,
    is_over: AtomicBool,
}

impl Listening {
    fn take(&self, events: *const c_char, len: usize) {
        // SAFETY: the library gives a text.
        let events = unsafe { std::slice::from_raw_parts(events.cast::<u8>(), len) };
        let events: Vec<serde_json::Value> = serde_json::from_slice(events).unwrap();
        let is_last = events.last().is_some_and(|event| event["type"] == "done" || event["type"] == "failed");
        assert!(!self.is_over.load(Ordering::Relaxed), "events after the last one");
        self.is_over.store(is_last, Ordering::Release);
    }
}

unsafe extern "C" fn go_on(user: *mut c_void, events: *const c_char, len: usize) -> bool {
    // SAFETY: it lives until the last event.
    unsafe { &*user.cast::<Listening>() }.take(events, len);
    true
}

unsafe extern "C" fn reenter(user: *mut c_void, events: *const c_char, len: usize) -> bool {
    // SAFETY: it lives until the last event.
    let listening = unsafe { &*user.cast::<Listening>() };
    let job = listening.job;
    let mut buffer = Buffer::EMPTY;
    // SAFETY: the buffer lives.
    unsafe {
        assert_eq!(refrain_job_next_events(job, 0, &mut buffer, null_mut()), Code::Reentrant);
        assert_eq!(refrain_free(job, null_mut()), Code::Reentrant);
        assert_eq!(refrain_buffer_free(&mut buffer), Code::Ok);
    }
    let code = refrain_job_cancel(job);
    assert!(matches!(code, Code::Ok | Code::StaleHandle | Code::Busy), "{code:?}");
    listening.take(events, len);
    true
}

/// Opens an engine; `model` is the path behind the folder of the package that is compiled.
pub(crate) fn open_engine(model: &str) -> Handle {
    let options = ENGINE.replace("MODEL", model);
    let mut engine = 0;
    // SAFETY: text and place live.
    let code = unsafe {
        refrain_engine_open(options.as_ptr().cast(), options.len(), None, null_mut(), &mut engine, null_mut())
    };
    assert_eq!(code, Code::Ok, "{options}");
    engine
}

/// A session with text, and a job of it that runs.
fn session_and_job(engine: Handle) -> [Handle; 2] {
    let (text, options) = (TEXTS[1], r#"{"max_tokens": 48}"#);
    let [mut session, mut job] = [0; 2];
    // SAFETY: texts and places live.
    let codes = unsafe {
        [
            refrain_engine_session(engine, options.as_ptr().cast(), 0, 0, &mut session, null_mut()),
            refrain_session_append_text(session, text.as_ptr().cast(), text.len(), null_mut()),
            refrain_session_generate(session, options.as_ptr().cast(), options.len(), &mut job, null_mut()),
        ]
    };
    assert_eq!(codes, [Code::Ok; 3]);
    [session, job]
}

const OPTIONS: [&str; 12] = [
    "",
    "{}",
    r#"{"max_tokens": 2}"#,
    r#"{"max_tokens": 3, "temperature": 0.7, "seed": 5}"#,
    r#"{"max_tokens": 4, "json_schema": "{\"type\": \"boolean\"}"}"#,
    r#"{"max_tokens": 4, "json_schema": "{"}"#,
    r#"{"max_tokens": 4294967295, "stop": ["e"]}"#,
    r#"{"seed": 18446744073709551615}"#,
    r#"{"no_such": 1}"#,
    r#"{"context_len": 64}"#,
    r#"{"context_len": 0}"#,
    "[1",
];

const TEXTS: [&str; 5] =
    ["", "The train leaves at", "user", "Who repairs the tap?\u{0}\u{1f389}", "assistant"];

const REQUESTS: [&str; 7] = [
    r#"{"task": "ask", "question": "Who?", "passages": [{"text": "Ada Voss repairs the tap."}]}"#,
    r#"{"task": "edit", "text": "The tap drips.", "instruction": "Say door.", "selection": {"start": 9, "end": 2}}"#,
    r#"{"task": "edit", "text": "The tap drips.", "instruction": "Say door."}"#,
    r#"{"task": "ui", "screen": "1 button \"OK\"", "goal": "Close it."}"#,
    r#"{"task": "summarize"}"#,
    r#"{"task": "no_such"}"#,
    r#"{"text": "Hello."}"#,
];

/// Makes the calls that the bytes name, and counts those that gave a job a listener. `engine` stays open.
pub(crate) fn run(bytes: &[u8], engine: Handle) -> usize {
    let mut bytes = Bytes(bytes);
    let mut handles = vec![engine, 0, 1, u64::MAX, engine ^ (1 << 48), engine + 7];
    // Few random sequences would make a job.
    handles.extend(session_and_job(engine));
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut listenings: Vec<Arc<Listening>> = Vec::new();
    for _ in 0..64 {
        if bytes.0.is_empty() {
            break;
        }
        let operation = bytes.next();
        // Often the engine or one of the newest three: a job needs a session with text.
        let pick = bytes.next();
        let (kind, index) = (pick % 4, usize::from(pick / 4));
        let handle = match kind {
            0 => engine,
            1 | 2 => handles[handles.len() - 1 - index % 3],
            _ => handles[index % handles.len()],
        };
        let options = OPTIONS[usize::from(bytes.next()) % OPTIONS.len()];
        let text = TEXTS[usize::from(operation / 32) % TEXTS.len()];
        let request = REQUESTS[usize::from(operation / 32) % REQUESTS.len()];
        let (mut made, mut buffer, mut error) = (0, Buffer::EMPTY, Buffer::EMPTY);
        let (json, len) = (options.as_ptr().cast::<c_char>(), options.len());
        let (words, words_len) = (text.as_ptr().cast::<c_char>(), text.len());
        let (task, task_len) = (request.as_ptr().cast::<c_char>(), request.len());
        let listening = Arc::new(Listening { job: handle, is_over: AtomicBool::new(false) });
        let user = Arc::as_ptr(&listening).cast_mut().cast();
        let failed: *mut Buffer = if operation & 64 == 0 { &mut error } else { null_mut() };
        // SAFETY: texts, buffers and places live during the call.
        let code = unsafe {
            match operation % 26 {
                0 | 1 => refrain_engine_session(handle, json, len, 0, &mut made, failed),
                2 => refrain_engine_session(handle, json, len, handle, &mut made, failed),
                3 | 4 => refrain_session_append_text(handle, words, words_len, failed),
                5 => refrain_session_append(handle, words, words_len, words, words_len, failed),
                6..=8 => refrain_session_generate(handle, json, len, &mut made, failed),
                9 => refrain_session_prefill(handle, &mut made, failed),
                10 => refrain_session_pop(handle, &mut buffer, failed),
                11 => refrain_session_info(handle, &mut buffer, failed),
                12 => refrain_session_messages(handle, &mut buffer, failed),
                13 => refrain_job_next_events(handle, 1, &mut buffer, failed),
                14 => refrain_job_next_text(handle, 1, &mut buffer, null_mut(), failed),
                15 => refrain_job_listen(handle, Some(reenter), user, failed),
                16 => refrain_job_listen(handle, Some(go_on), user, failed),
                17 => {
                    refrain_job_cancel(handle);
                    refrain_job_wait(handle, &mut buffer, failed)
                }
                18 => refrain_job_cancel(handle),
                19 if handle != engine => refrain_close(handle, failed),
                20 if handle != engine => refrain_free(handle, failed),
                21 => refrain_engine_assistant(handle, json, len, &mut made, failed),
                22 => refrain_assistant_start(handle, task, task_len, json, len, &mut made, failed),
                23 => refrain_assistant_conversation(handle, json, len, &mut made, failed),
                24 => refrain_conversation_say(handle, task, task_len, json, len, &mut made, failed),
                _ => refrain_session_info(handle, null_mut(), failed),
            }
        };
        assert_ne!(code, Code::Panicked, "operation {operation}");
        assert_ne!(code, Code::Poisoned, "operation {operation}");
        // A failure says why, and makes nothing.
        let says_why = !error.data.is_null();
        assert_eq!(
            says_why,
            code != Code::Ok && operation & 64 == 0 && operation % 26 != 18,
            "operation {operation}"
        );
        if code != Code::Ok {
            assert_eq!(made, 0);
        }
        if made != 0 {
            handles.push(made);
        }
        // After an error the listener is never called.
        if matches!(operation % 26, 15 | 16) && code == Code::Ok {
            listenings.push(listening);
        }
        for mut buffer in [buffer, error] {
            if bytes.next() & 1 == 0 {
                // SAFETY: the library has made it, or it is empty.
                assert_eq!(unsafe { refrain_buffer_free(&mut buffer) }, Code::Ok);
            } else {
                buffers.push(buffer);
            }
        }
    }
    for buffer in &mut buffers {
        let mut again = Buffer { data: buffer.data, len: buffer.len };
        let is_empty = buffer.data.is_null();
        // SAFETY: the library has made it, or it is empty; the second time it is looked up and refused.
        let codes = unsafe { [refrain_buffer_free(buffer), refrain_buffer_free(&mut again)] };
        assert_eq!(codes, [Code::Ok, if is_empty { Code::Ok } else { Code::StaleHandle }]);
    }
    // Newest first: jobs before their sessions.
    for &handle in handles[6..].iter().rev() {
        // SAFETY: null is allowed.
        let code = unsafe { refrain_free(handle, null_mut()) };
        assert!(matches!(code, Code::Ok | Code::StaleHandle), "{code:?}");
    }

    // Every listener gets a last event, also of a job that is closed or freed.
    let deadline = Instant::now() + Duration::from_secs(50);
    for listening in &listenings {
        while !listening.is_over.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "no last event");
            thread::sleep(Duration::from_millis(1));
        }
    }
    listenings.len()
}
