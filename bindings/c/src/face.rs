//! The functions.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use refrain_ffi::{
    DeviceState, Engine, EngineOptions, ErrorKind, Event, EventListener, FfiError, GenerateOptions, History,
    HistoryOptions, Job, Role, Session, SessionOptions, TextKind,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::code::Code;
use crate::handles::{Handle, Typed, library};
use crate::texts::{Buffer, Out, record, text};

/// Receives the events of a job: a JSON array of `len` bytes with a NUL behind them, valid during the call, with `user` as it was given.
/// Returns whether the job goes on.
pub type Listener =
    Option<unsafe extern "C" fn(user: *mut c_void, events_json: *const c_char, len: usize) -> bool>;

/// Runs a function: a panic becomes a code, an error becomes JSON in `error`.
///
/// # Safety
/// `error` is null, or valid for writes.
unsafe fn run(error: *mut Buffer, work: impl FnOnce() -> Result<(), FfiError>) -> Code {
    // SAFETY: the caller promises it.
    unsafe { report(error, refrain_ffi::call(work)) }
}

/// Stores the JSON of an error, and gives its code.
///
/// # Safety
/// As [`run`].
unsafe fn report(error: *mut Buffer, outcome: Result<(), FfiError>) -> Code {
    let code = outcome.as_ref().map_or_else(|failed| Code::of(failed.kind()), |()| Code::Ok);
    if !error.is_null() {
        let store = || {
            // SAFETY: it is not null, and the caller promises the rest.
            let out = unsafe { Out::new(error, Buffer::EMPTY) }?;
            if let Err(failed) = &outcome {
                out.json(failed.info());
            }
            Ok::<(), FfiError>(())
        };
        if catch_unwind(AssertUnwindSafe(store)).is_err() {
            return Code::Panicked;
        }
    }
    code
}

/// Calls `work` with an object, and gives a handle of what it makes.
///
/// # Safety
/// `made` is null, or valid for writes.
unsafe fn make<T: Typed, M: Typed>(
    handle: Handle,
    made: *mut Handle,
    work: impl FnOnce(&T) -> Result<Arc<M>, FfiError>,
) -> Result<(), FfiError> {
    // SAFETY: the caller promises it.
    let out = unsafe { Out::new(made, 0) }?;
    let object = library().typed::<T>(handle)?;
    out.set(library().insert(work(&object)?.object()));
    Ok(())
}

/// An enum by its name in JSON.
fn named<T: DeserializeOwned>(name: &str, field: &str) -> Result<T, FfiError> {
    let given: serde::de::value::StrDeserializer<'_, serde_json::Error> = name.into_deserializer();
    T::deserialize(given).map_err(|error| FfiError::argument(field, format!("is refused: {error}")))
}

/// The listener of C as a listener of the library.
struct OfC {
    call: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> bool,
    user: *mut c_void,
}

// SAFETY: the header says that listeners run on threads of the library, so `user` is for those.
unsafe impl Send for OfC {}
// SAFETY: the library calls a listener on one thread at a time.
unsafe impl Sync for OfC {}

impl EventListener for OfC {
    fn on_events(&self, events: Vec<Event>) -> bool {
        let mut json = serde_json::to_string(&events).unwrap_or_else(|_| "[]".to_owned());
        // As behind the bytes of a buffer.
        json.push('\0');
        // SAFETY: C has given the function for this, and the text is valid during the call.
        unsafe { (self.call)(self.user, json.as_ptr().cast(), json.len() - 1) }
    }
}

fn listener(call: Listener, user: *mut c_void) -> Option<Arc<dyn EventListener>> {
    call.map(|call| Arc::new(OfC { call, user }) as Arc<dyn EventListener>)
}

/// Runs `$work` in a library with notes.
macro_rules! with_notes {
    ($work:block) => {{
        #[cfg(feature = "notes")]
        {
            $work
        }
        #[cfg(not(feature = "notes"))]
        {
            Err(FfiError::new(ErrorKind::Unsupported, "this library was built without notes"))
        }
    }};
}

/// The version of the binary interface: REFRAIN_ABI_VERSION of the header with which the library was built.
#[unsafe(no_mangle)]
pub extern "C" fn refrain_abi_version() -> u32 {
    crate::REFRAIN_ABI_VERSION
}

/// The version of the library, such as "0.2.0": a text with a NUL, which is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn refrain_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Frees what a function has stored in a buffer, and makes it empty. An empty buffer is left alone.
///
/// Errors: STALE_HANDLE: the bytes are not of the library, or were freed; NULL_POINTER.
///
/// # Safety
/// `buffer` is null or points to an initialised buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_buffer_free(buffer: *mut Buffer) -> Code {
    let work = || {
        if buffer.is_null() {
            return Err(FfiError::new(ErrorKind::NullPointer, "the buffer is NULL"));
        }
        // SAFETY: it is not null, and the caller promises the rest.
        unsafe { &mut *buffer }.free()
    };
    // (Allowed within a listener: it uses no object.)
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.map_or(Code::Panicked, |freed| freed.map_or_else(|failed| Code::of(failed.kind()), |()| Code::Ok))
}

/// Closes an object. Its handle stays valid, and later calls are CLOSED. Of an engine, everything that was made from it is closed too, and
/// jobs are cancelled. Allowed twice.
///
/// # Safety
/// `error` is null, or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_close(object: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || library().get(object)?.close()) }
}

/// Frees a handle. A job is cancelled; what was made from the object stays. The handle is STALE_HANDLE from now on.
///
/// # Safety
/// `error` is null, or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_free(object: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || library().remove(object).map(drop)) }
}

/// The memory of a model with one session, from the header of its file: {"model_bytes", "session_bytes", "total_bytes", "fits"}.
///
/// `engine_json`: EngineOptions, see refrain_engine_open. `session_json`: SessionOptions, see refrain_engine_session.
///
/// Errors: as refrain_engine_open.
///
/// # Safety
/// The texts are valid, `estimate` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_estimate_memory(
    engine_json: *const c_char,
    engine_json_len: usize,
    session_json: *const c_char,
    session_json_len: usize,
    estimate: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(estimate, Buffer::EMPTY)?;
            let engine: EngineOptions = record(engine_json, engine_json_len, "engine_json")?;
            let session: SessionOptions = record(session_json, session_json_len, "session_json")?;
            out.json(&refrain_ffi::estimate_memory(engine, session)?);
            Ok(())
        })
    }
}

/// Loads a model. It takes seconds. `listener` may be NULL; else it receives {"type": "progress", "stage": "load", "done", "total"} events,
/// in bytes, on this thread. A load cannot be stopped.
///
/// `options_json`: EngineOptions: {"path": GGUF or packed file, or folder of Hugging Face; "threads"; "memory_limit_bytes": of the model
/// and its sessions together; "quantize": "keep", "f32", "q8_0" or "q4_0"; "draft_model": path or "mtp"; "measure_ms": 300; "units": of
/// places in texts, "utf8" or "utf16"}.
///
/// Errors: NOT_FOUND, DAMAGED, UNSUPPORTED, OVER_LIMIT, IO of the file; OUT_OF_MEMORY; MISMATCH of the draft model; INVALID_ARGUMENT.
///
/// # Safety
/// The text is valid, `engine` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_open(
    options_json: *const c_char,
    options_json_len: usize,
    listener: Listener,
    user: *mut c_void,
    engine: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(engine, 0)?;
            let options: EngineOptions = record(options_json, options_json_len, "options_json")?;
            let opened = Engine::open(options, self::listener(listener, user))?;
            out.set(library().insert(opened.object()));
            Ok(())
        })
    }
}

/// What was loaded: {"architecture", "layers", "context_len", "vocab_size", "threads", "memory_bytes", "has_chat_template",
/// "instruction_set"}.
///
/// # Safety
/// `info` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_info(engine: Handle, info: *mut Buffer, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(info, Buffer::EMPTY)?;
            out.json(&library().typed::<Engine>(engine)?.info()?);
            Ok(())
        })
    }
}

/// Starts a session: one conversation, or one plain text. `history` is 0, or a history of this engine, from which the session drafts and
/// to which it adds its outputs.
///
/// `options_json`: SessionOptions: {"context_len": tokens of prompt and output; "kv_type": "f16", "f32", "q8_0" or "q4_0"; "drafting":
/// "auto", "draft_model" or "off"; "namespace"; "system": a turn before all others; "history": true}.
///
/// Errors: INVALID_ARGUMENT; OUT_OF_MEMORY; WRONG_STATE: "draft_model" without one.
///
/// # Safety
/// The text is valid, `session` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_session(
    engine: Handle,
    options_json: *const c_char,
    options_json_len: usize,
    history: Handle,
    session: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            make(engine, session, |engine: &Engine| {
                let options: SessionOptions = record(options_json, options_json_len, "options_json")?;
                let history = match history {
                    0 => None,
                    history => Some(library().typed::<History>(history)?),
                };
                engine.session(options, history)
            })
        })
    }
}

/// Opens the outputs of this model in a folder.
///
/// `options_json`: HistoryOptions: {"folder"; "namespace"; "key": 32 bytes as a list of numbers, which encrypt the outputs}.
///
/// Errors: IO, DAMAGED, MISMATCH of the key.
///
/// # Safety
/// The text is valid, `history` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_history(
    engine: Handle,
    options_json: *const c_char,
    options_json_len: usize,
    history: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            make(engine, history, |engine: &Engine| {
                let options: HistoryOptions = record(options_json, options_json_len, "options_json")?;
                engine.history(options)
            })
        })
    }
}

/// Makes an assistant: the tasks of a notes or assistant app.
///
/// `options_json`: AssistantOptions: {"notes": folder of an index; "embedder": path; "store": folder that keeps answers; "key"; "session":
/// SessionOptions; "max_tokens"; "n_passages": 4; "coverage_min": 0.3}.
///
/// Errors: IN_USE: another process has the store; NOT_FOUND: there is no index; MISMATCH of the key; OUT_OF_MEMORY; INVALID_ARGUMENT.
///
/// # Safety
/// The text is valid, `assistant` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_assistant(
    engine: Handle,
    options_json: *const c_char,
    options_json_len: usize,
    assistant: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                make(engine, assistant, |engine: &Engine| {
                    engine.assistant(record(options_json, options_json_len, "options_json")?)
                })
            })
        })
    }
}

/// Forgets the outputs that the engine keeps in memory: of a namespace, or all, if `namespace` is NULL.
///
/// # Safety
/// The text is valid, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_forget_outputs(
    engine: Handle,
    namespace: *const c_char,
    namespace_len: usize,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let name = match namespace.is_null() && namespace_len == 0 {
                true => None,
                false => Some(text(namespace, namespace_len, "namespace")?.to_owned()),
            };
            library().typed::<Engine>(engine)?.forget_outputs(name)
        })
    }
}

/// Tells the engine what the device reports. With heat, memory pressure and saved power it drafts less, and gives back memory. Never
/// changes a text.
///
/// `state_json`: DeviceState: {"thermal": "nominal", "fair", "serious" or "critical"; "memory": "normal", "warning" or "critical"; "power":
/// "mains", "battery" or "saver"}. What is left out stays as it was.
///
/// # Safety
/// The text is valid, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_set_device_state(
    engine: Handle,
    state_json: *const c_char,
    state_json_len: usize,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let state: DeviceState = record(state_json, state_json_len, "state_json")?;
            library().typed::<Engine>(engine)?.set_device_state(state)
        })
    }
}

/// What a process does before the system suspends it: cancels the engine's jobs, waits for them for at most `max_wait_ms` milliseconds, and
/// makes histories durable: {"cancelled", "running"}, of which the second did not end in time.
///
/// # Safety
/// `report` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_engine_prepare_to_suspend(
    engine: Handle,
    max_wait_ms: u32,
    report: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(report, Buffer::EMPTY)?;
            out.json(&library().typed::<Engine>(engine)?.prepare_to_suspend(max_wait_ms)?);
            Ok(())
        })
    }
}

/// Adds a turn. `role` is "system", "developer", "user", "assistant" or "tool". The content cannot forge control tokens.
///
/// Errors: INVALID_ARGUMENT: the role; WRONG_STATE: the session holds plain text; BUSY.
///
/// # Safety
/// The texts are valid, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_append(
    session: Handle,
    role: *const c_char,
    role_len: usize,
    content: *const c_char,
    content_len: usize,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let role: Role = named(text(role, role_len, "role")?, "role")?;
            let content = text(content, content_len, "content")?.to_owned();
            library().typed::<Session>(session)?.append(role, content)
        })
    }
}

/// Adds plain text, without a chat template.
///
/// Errors: CONTEXT_FULL: it does not fit, and the session is unchanged; WRONG_STATE: the session holds turns; BUSY.
///
/// # Safety
/// The text is valid, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_append_text(
    session: Handle,
    content: *const c_char,
    content_len: usize,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let content = text(content, content_len, "content")?.to_owned();
            library().typed::<Session>(session)?.append_text(content)
        })
    }
}

/// Takes back the newest turn: {"role", "content"}, or null if there is none.
///
/// # Safety
/// `message` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_pop(
    session: Handle,
    message: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(message, Buffer::EMPTY)?;
            out.json(&library().typed::<Session>(session)?.pop()?);
            Ok(())
        })
    }
}

/// The turns: a list of {"role", "content"}.
///
/// # Safety
/// `messages` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_messages(
    session: Handle,
    messages: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(messages, Buffer::EMPTY)?;
            out.json(&library().typed::<Session>(session)?.messages()?);
            Ok(())
        })
    }
}

/// Counts and sizes: {"tokens", "cached_tokens", "context_len", "memory_bytes"}.
///
/// # Safety
/// `info` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_info(
    session: Handle,
    info: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(info, Buffer::EMPTY)?;
            out.json(&library().typed::<Session>(session)?.info()?);
            Ok(())
        })
    }
}

/// Starts an answer to the turns, or the continuation of the text. When the job has ended, the session has the output.
///
/// `options_json`: GenerateOptions: {"max_tokens": 512; "temperature": 0; "top_p": 1; "top_k": 0; "min_p": 0; "repetition_penalty": 1;
/// "seed": below 2^53; "stop": list of texts; "json_schema": a text with a JSON Schema under which the output is valid; "sentences": false;
/// of tasks also "priority": "foreground", "interactive" or "background", and "keep": true}.
///
/// Errors: INVALID_ARGUMENT; CONTEXT_FULL: the newest turn is removed, so that a shorter one can take its place; BUSY.
///
/// # Safety
/// The text is valid, `job` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_generate(
    session: Handle,
    options_json: *const c_char,
    options_json_len: usize,
    job: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            make(session, job, |session: &Session| {
                let options: GenerateOptions = record(options_json, options_json_len, "options_json")?;
                session.generate(options)
            })
        })
    }
}

/// Computes the prompt now, while the user types. Its job has progress and an empty result.
///
/// # Safety
/// `job` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_session_prefill(
    session: Handle,
    job: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || make(session, job, Session::prefill)) }
}

/// Forgets the outputs of the history's namespace, in every file.
///
/// # Safety
/// `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_history_forget(history: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || library().typed::<History>(history)?.forget()) }
}

/// Reads the outputs of other processes, and makes all durable.
///
/// # Safety
/// `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_history_maintain(history: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || library().typed::<History>(history)?.maintain()) }
}

/// The events since the last call, as a JSON array. Waits for the first one for at most `max_wait_ms` milliseconds. The array is empty if
/// none came in time, and after the last event.
///
/// An event is an object with a "type": "progress" {"stage", "done", "total"}; "searched" {"words", "coverage", "nearest"}; "text" {"text",
/// "kind": "answer" or "reasoning", "drafted_by": name or null}; "sentence" {"index", "place", "text"}; "edit" {"change": {"kind": "keep",
/// "insert" or "delete"; "old", "new"}}; "window" {"index", "count", "old", "new"}; "part" {"index", "count", "text"}; "estimate" {"ms",
/// "prompts"}; and as the last one "done" {"result"} or "failed" {"error"}. A place is {"start", "end"}.
///
/// A result is {"text", "reasoning", "finish": "end_token", "stop", "max_tokens" or "context_full"; "is_cut", "seed", "stats", "sources",
/// "copied", "sentences", "left_out", "changes", "doubts", "parts", "previous", "command", "dropped", "update", "kept_tokens", "not_kept"}.
///
/// Errors: BUSY: another thread or a listener takes the events.
///
/// # Safety
/// `events` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_job_next_events(
    job: Handle,
    max_wait_ms: u32,
    events: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(events, Buffer::EMPTY)?;
            let job = library().typed::<Job>(job)?;
            out.json(&job.next_events(max_wait_ms)?);
            Ok(())
        })
    }
}

/// Gives all further events to a listener, in batches as refrain_job_next_events has them, on a thread of the library. `user` must be valid
/// until the listener has got the last event. If the listener returns false, the job is cancelled, and its last event still comes.
///
/// After an error, the listener is never called.
///
/// Errors: BUSY; NULL_POINTER; WRONG_STATE: the last event was taken.
///
/// # Safety
/// The listener may be called on another thread, with `user`; `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_job_listen(
    job: Handle,
    listener: Listener,
    user: *mut c_void,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let missing =
                || FfiError::new(ErrorKind::NullPointer, "the listener is NULL").with_field("listener");
            let listener = self::listener(listener, user).ok_or_else(missing)?;
            library().typed::<Job>(job)?.listen(listener)
        })
    }
}

/// The answer's text since the last call, without other events: whole characters. Waits for the first piece for at most `max_wait_ms`
/// milliseconds. `is_over` becomes true with the last piece: refrain_job_wait then has the result. `is_over` may be NULL.
///
/// Errors: those of the job, such as CANCELLED; BUSY: another thread or a listener takes the events.
///
/// # Safety
/// `answer` is valid for writes, `is_over` and `error` are null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_job_next_text(
    job: Handle,
    max_wait_ms: u32,
    answer: *mut Buffer,
    is_over: *mut bool,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(answer, Buffer::EMPTY)?;
            let job = library().typed::<Job>(job)?;
            let (mut pieces, mut failed) = (String::new(), None);
            for event in job.next_events(max_wait_ms)? {
                match event {
                    Event::Text { text, kind: TextKind::Answer, .. } => pieces.push_str(&text),
                    Event::Failed { error } => failed = Some(FfiError::Failed { info: error }),
                    _ => {}
                }
            }
            if !is_over.is_null() {
                Out::new(is_over, false)?.set(job.is_ended()?);
            }
            out.text(pieces);
            failed.map_or(Ok(()), Err)
        })
    }
}

/// Waits for the end of the job, and gives its result; again, if it is called again. See refrain_job_next_events. It takes no events.
///
/// Errors: those of the job, such as CANCELLED.
///
/// # Safety
/// `result` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_job_wait(job: Handle, result: *mut Buffer, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(result, Buffer::EMPTY)?;
            out.json(&library().typed::<Job>(job)?.wait()?);
            Ok(())
        })
    }
}

/// Cancels a job, from any thread, a listener or a signal handler. It ends before the model's next layer, with the event "failed" of
/// CANCELLED. Allowed twice, and after its end.
///
/// Errors: those of handles; BUSY: in a signal handler that has interrupted a call which makes or frees a handle.
#[unsafe(no_mangle)]
pub extern "C" fn refrain_job_cancel(job: Handle) -> Code {
    match library().cancel(job) {
        Ok(()) => Code::Ok,
        Err(kind) => Code::of(kind),
    }
}

/// Whether the job's last event was taken, or the job was closed.
///
/// # Safety
/// `is_ended` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_job_is_ended(job: Handle, is_ended: *mut bool, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            let out = Out::new(is_ended, false)?;
            out.set(library().typed::<Job>(job)?.is_ended()?);
            Ok(())
        })
    }
}

/// Starts a task. It searches and lays out its prompt on this thread.
///
/// `request_json`: TaskRequest, by "task": "ask" {"question", "filter", "n_passages", "passages", "earlier", "coverage_min"}; "summarize" one
/// of {"texts", "notes", "query"} with {"request", "id", "filter"}; "reply" {"message", "earlier", "request", "tone", "length": "short",
/// "medium" or "long"; "passages", "n_passages", "filter"}; "edit" {"text", "instruction", "note"} with one or none of {"selection": place;
/// "lines": [first, last]; "section": words of a heading}; "ui" {"screen", "goal", "steps", "actions", "n_screens"}; and "prefetch_ask",
/// "prefetch_summarize", "prefetch_reply", which compute a prompt before it is asked. A passage is {"title", "text", "note"}. A filter is
/// {"kinds", "folders", "since", "until", "tags"}. `options_json`: GenerateOptions, see refrain_session_generate.
///
/// Errors: NOT_IN_NOTES, NOTHING, CONTEXT_FULL, WRONG_STATE: there are no notes or no store; INVALID_ARGUMENT.
///
/// # Safety
/// The texts are valid, `job` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_assistant_start(
    assistant: Handle,
    request_json: *const c_char,
    request_json_len: usize,
    options_json: *const c_char,
    options_json_len: usize,
    job: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                make(assistant, job, |assistant: &refrain_ffi::Assistant| {
                    let request = record(request_json, request_json_len, "request_json")?;
                    assistant.start(request, record(options_json, options_json_len, "options_json")?)
                })
            })
        })
    }
}

/// A conversation, new or continued.
///
/// `conversation_json`: {"id": as refrain_conversation_info gave it, "turns": list of {"role", "content", "notes", "asked", "keep"}}, or empty.
///
/// # Safety
/// The text is valid, `conversation` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_assistant_conversation(
    assistant: Handle,
    conversation_json: *const c_char,
    conversation_json_len: usize,
    conversation: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                make(assistant, conversation, |assistant: &refrain_ffi::Assistant| {
                    let Stored { id, turns } =
                        record(conversation_json, conversation_json_len, "conversation_json")?;
                    assistant.conversation(id, turns)
                })
            })
        })
    }
}

/// A conversation as an app stores it.
#[derive(Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
struct Stored {
    id: Option<String>,
    turns: Vec<refrain_ffi::Turn>,
}

/// Deletes what was kept, and gives {"answers", "summaries", "prompt_blocks", "is_notes_pending"}. When it returns, no file has a byte of it.
///
/// `what_json`: by "what": "note" {"path"}, "conversation" {"id"}, "before" {"time": seconds since 1970}, "everything".
///
/// # Safety
/// The text is valid, `forgotten` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_assistant_forget(
    assistant: Handle,
    what_json: *const c_char,
    what_json_len: usize,
    forgotten: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(forgotten, Buffer::EMPTY)?;
                let assistant = library().typed::<refrain_ffi::Assistant>(assistant)?;
                out.json(&assistant.forget(record(what_json, what_json_len, "what_json")?)?);
                Ok(())
            })
        })
    }
}

/// Reads the index of notes again, as writers have left it.
///
/// # Safety
/// `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_assistant_refresh_notes(assistant: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || with_notes!({ library().typed::<refrain_ffi::Assistant>(assistant)?.refresh_notes() }))
    }
}

/// Answers a turn of the user. The conversation has both turns when the job is done.
///
/// `request_json`: ChatRequest: {"text", "n_passages": 0, "filter", "passages"}. `options_json`: GenerateOptions, see
/// refrain_session_generate.
///
/// Errors: BUSY: another job of it runs; CONTEXT_FULL: the turn alone does not fit.
///
/// # Safety
/// The texts are valid, `job` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_conversation_say(
    conversation: Handle,
    request_json: *const c_char,
    request_json_len: usize,
    options_json: *const c_char,
    options_json_len: usize,
    job: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                make(conversation, job, |conversation: &refrain_ffi::Conversation| {
                    let request = record(request_json, request_json_len, "request_json")?;
                    conversation.say(request, record(options_json, options_json_len, "options_json")?)
                })
            })
        })
    }
}

/// The id and the turns of finished jobs, as refrain_assistant_conversation takes them.
///
/// # Safety
/// `info` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_conversation_info(
    conversation: Handle,
    info: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(info, Buffer::EMPTY)?;
                let conversation = library().typed::<refrain_ffi::Conversation>(conversation)?;
                out.json(&Stored { id: Some(conversation.id()?), turns: conversation.turns()? });
                Ok(())
            })
        })
    }
}

/// An index of notes in a folder. It needs no engine. The folder is made by the first write.
///
/// `options_json`: NotesOptions: {"folder"; "languages": codes such as "en"; "embedder": path; "key": 32 bytes as a list of numbers;
/// "units": "utf8" or "utf16"}.
///
/// Errors: INVALID_ARGUMENT, or those of the embedding model.
///
/// # Safety
/// The text is valid, `notes` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_open(
    options_json: *const c_char,
    options_json_len: usize,
    notes: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(notes, 0)?;
                let opened =
                    refrain_ffi::Notes::open(record(options_json, options_json_len, "options_json")?)?;
                out.set(library().insert(opened.object()));
                Ok(())
            })
        })
    }
}

/// Starts a job that writes the index. Its result has "update": {"added", "changed", "unchanged", "removed", "passages", "skipped": list of
/// {"path", "reason"}, "is_incomplete"}. Another process that writes is IN_USE, as the job's error.
///
/// `write_json`: by "write": "add" {"paths"}: files and folders, and reads what has changed of all; "update": reads what has changed;
/// "forget" {"paths"}: no file of the index has a byte of their text when the job has ended.
///
/// # Safety
/// The text is valid, `job` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_write(
    notes: Handle,
    write_json: *const c_char,
    write_json_len: usize,
    job: *mut Handle,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                make(notes, job, |notes: &refrain_ffi::Notes| {
                    match record(write_json, write_json_len, "write_json")? {
                        Write::Add { paths } => notes.add(paths),
                        Write::Update => notes.update(),
                        Write::Forget { paths } => notes.forget(paths),
                    }
                })
            })
        })
    }
}

/// How an index is written.
#[derive(Deserialize)]
#[serde(tag = "write", rename_all = "snake_case", deny_unknown_fields)]
enum Write {
    Add { paths: Vec<String> },
    Update,
    Forget { paths: Vec<String> },
}

/// Puts documents without files, and removes some, in one step. Gives the number of the last change, for refrain_notes_documents_since.
///
/// `request_json`: PutRequest: {"documents": list of {"id", "text", "title", "date", "tags", "kind"}; "remove": ids; "cursor": a text of the
/// app that is stored in the same step}.
///
/// # Safety
/// The text is valid, `change` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_put(
    notes: Handle,
    request_json: *const c_char,
    request_json_len: usize,
    change: *mut u64,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(change, 0)?;
                let notes = library().typed::<refrain_ffi::Notes>(notes)?;
                out.set(notes.put(record(request_json, request_json_len, "request_json")?)?);
                Ok(())
            })
        })
    }
}

/// The passages that match a text best, best first: a list of {"path", "document", "kind", "title", "text", "file_start", "file_end",
/// "locator", "date", "tags", "score", "coverage", "snippet", "matched"}.
///
/// `request_json`: SearchRequest: {"text", "limit": 5, "filter", "earlier"}.
///
/// Errors: NOT_FOUND: there is no index.
///
/// # Safety
/// The text is valid, `hits` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_search(
    notes: Handle,
    request_json: *const c_char,
    request_json_len: usize,
    hits: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(hits, Buffer::EMPTY)?;
                let notes = library().typed::<refrain_ffi::Notes>(notes)?;
                out.json(&notes.search(record(request_json, request_json_len, "request_json")?)?);
                Ok(())
            })
        })
    }
}

/// What changed among the documents since a number; 0: all of them. {"change", "put": list of {"id", "bytes", "passages", "change"};
/// "removed": ids; "is_complete"}.
///
/// # Safety
/// `changes` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_documents_since(
    notes: Handle,
    change: u64,
    changes: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(changes, Buffer::EMPTY)?;
                out.json(&library().typed::<refrain_ffi::Notes>(notes)?.documents_since(change)?);
                Ok(())
            })
        })
    }
}

/// What the app stored with the last refrain_notes_put: a JSON string or null.
///
/// # Safety
/// `cursor` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_cursor(
    notes: Handle,
    cursor: *mut Buffer,
    error: *mut Buffer,
) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(cursor, Buffer::EMPTY)?;
                out.json(&library().typed::<refrain_ffi::Notes>(notes)?.cursor()?);
                Ok(())
            })
        })
    }
}

/// The files and documents with passages, by path: a list of {"path", "document", "bytes", "modified", "passages"}.
///
/// # Safety
/// `files` is valid for writes, `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_files(notes: Handle, files: *mut Buffer, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe {
        run(error, || {
            with_notes!({
                let out = Out::new(files, Buffer::EMPTY)?;
                out.json(&library().typed::<refrain_ffi::Notes>(notes)?.files()?);
                Ok(())
            })
        })
    }
}

/// Reads the index as the last writer of any process has left it.
///
/// # Safety
/// `error` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn refrain_notes_refresh(notes: Handle, error: *mut Buffer) -> Code {
    // SAFETY: the caller promises it.
    unsafe { run(error, || with_notes!({ library().typed::<refrain_ffi::Notes>(notes)?.refresh() })) }
}
