//! Random calls of the C face, from bytes. The test and the fuzz target share them.
//!
//! Every call must return: with `Ok` or with a code that its arguments explain. Handles come from a pool of live, closed, freed, null,
//! foreign and made-up ones, of all types.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The job of the listener that calls back, and the codes that it got.
struct Reentering {
    job: AtomicU64,
}

unsafe extern "C" fn go_on(_user: *mut c_void, _events: *const c_char, _len: usize) -> bool {
    true
}

unsafe extern "C" fn reenter(user: *mut c_void, _events: *const c_char, _len: usize) -> bool {
    // SAFETY: it was leaked by `listen`.
    let reentering = unsafe { &*user.cast::<Reentering>() };
    let job = reentering.job.load(Ordering::Relaxed);
    let mut buffer = Buffer::EMPTY;
    // SAFETY: the buffer lives.
    unsafe {
        assert_eq!(refrain_job_next_events(job, 0, &mut buffer, null_mut()), Code::Reentrant);
        assert_eq!(refrain_free(job, null_mut()), Code::Reentrant);
        assert_eq!(refrain_buffer_free(&mut buffer), Code::Ok);
    }
    let code = refrain_job_cancel(job);
    assert!(matches!(code, Code::Ok | Code::StaleHandle | Code::Busy), "{code:?}");
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

/// Makes the calls that the bytes name. `engine` stays open.
pub(crate) fn run(bytes: &[u8], engine: Handle) {
    let mut bytes = Bytes(bytes);
    let mut handles = vec![engine, 0, 1, u64::MAX, engine ^ (1 << 48), engine + 7];
    let mut buffers: Vec<Buffer> = Vec::new();
    for _ in 0..64 {
        if bytes.0.is_empty() {
            break;
        }
        let operation = bytes.next();
        let handle = handles[usize::from(bytes.next()) % handles.len()];
        let options = OPTIONS[usize::from(bytes.next()) % OPTIONS.len()];
        let text = TEXTS[usize::from(operation / 32) % TEXTS.len()];
        let request = REQUESTS[usize::from(operation / 32) % REQUESTS.len()];
        let (mut made, mut buffer, mut error) = (0, Buffer::EMPTY, Buffer::EMPTY);
        let (json, len) = (options.as_ptr().cast::<c_char>(), options.len());
        let (words, words_len) = (text.as_ptr().cast::<c_char>(), text.len());
        let (task, task_len) = (request.as_ptr().cast::<c_char>(), request.len());
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
                15 => {
                    let reentering = Box::leak(Box::new(Reentering { job: AtomicU64::new(handle) }));
                    let user = std::ptr::from_mut(reentering).cast();
                    refrain_job_listen(handle, Some(reenter), user, failed)
                }
                16 => refrain_job_listen(handle, Some(go_on), null_mut(), failed),
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
}
