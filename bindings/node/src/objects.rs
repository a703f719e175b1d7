//! The objects but jobs. Of each call, the library states what it does and its errors.

use std::sync::Arc;

use napi::bindgen_prelude::AsyncTask;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode, UnknownReturnValue};
use napi_derive::napi;
use refrain_ffi::{EngineOptions, Event, EventListener, Message, NotesOptions, Units};

use crate::job::Job;
use crate::names::{read, write};
use crate::work::{Work, later, now};

/// Receives batches of events as JSON.
type Listener = ThreadsafeFunction<String, UnknownReturnValue, String, napi::Status, false>;

struct OnEvents(Listener);

impl EventListener for OnEvents {
    fn on_events(&self, events: Vec<Event>) -> bool {
        // (Loading tells at most 101 times.)
        self.0.call(write(&events), ThreadsafeFunctionCallMode::NonBlocking) == napi::Status::Ok
    }
}

#[napi]
pub fn library_version() -> String {
    refrain_ffi::library_version()
}

#[napi]
pub fn document_path(id: String) -> napi::Result<String> {
    now(|| refrain_ffi::document_path(read(&id, "id")?))
}

#[napi]
pub fn estimate_memory(engine: String, session: String) -> AsyncTask<Work<String>> {
    later(move || {
        Ok(write(&refrain_ffi::estimate_memory(read(&engine, "engine")?, read(&session, "session")?)?))
    })
}

#[napi]
pub struct Engine(Arc<refrain_ffi::Engine>);

#[napi]
impl Engine {
    #[napi]
    pub fn open(options: String, on_events: Option<Listener>) -> AsyncTask<Work<Engine>> {
        later(move || {
            let listener = on_events.map(|call| Arc::new(OnEvents(call)) as Arc<dyn EventListener>);
            let mut options: EngineOptions = read(&options, "options")?;
            options.units.get_or_insert(Units::Utf16);
            Ok(Engine(refrain_ffi::Engine::open(options, listener)?))
        })
    }

    #[napi]
    pub fn info(&self) -> AsyncTask<Work<String>> {
        let engine = Arc::clone(&self.0);
        later(move || Ok(write(&engine.info()?)))
    }

    #[napi]
    pub fn session(&self, options: String, history: Option<&History>) -> AsyncTask<Work<Session>> {
        let (engine, history) = (Arc::clone(&self.0), history.map(|history| Arc::clone(&history.0)));
        later(move || Ok(Session(engine.session(read(&options, "options")?, history)?)))
    }

    #[napi]
    pub fn history(&self, options: String) -> AsyncTask<Work<History>> {
        let engine = Arc::clone(&self.0);
        later(move || Ok(History(engine.history(read(&options, "options")?)?)))
    }

    #[napi]
    pub fn assistant(&self, options: String) -> AsyncTask<Work<Assistant>> {
        let engine = Arc::clone(&self.0);
        later(move || Ok(Assistant(engine.assistant(read(&options, "options")?)?)))
    }

    #[napi]
    pub fn forget_outputs(&self, namespace: String) -> AsyncTask<Work<()>> {
        let engine = Arc::clone(&self.0);
        later(move || engine.forget_outputs(read(&namespace, "namespace")?))
    }

    #[napi]
    pub fn set_device_state(&self, state: String) -> AsyncTask<Work<()>> {
        let engine = Arc::clone(&self.0);
        later(move || engine.set_device_state(read(&state, "state")?))
    }

    #[napi]
    pub fn prepare_to_suspend(&self, max_wait_ms: u32) -> AsyncTask<Work<String>> {
        let engine = Arc::clone(&self.0);
        later(move || Ok(write(&engine.prepare_to_suspend(max_wait_ms)?)))
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}

#[napi]
pub struct History(Arc<refrain_ffi::History>);

#[napi]
impl History {
    #[napi]
    pub fn forget(&self) -> AsyncTask<Work<()>> {
        let history = Arc::clone(&self.0);
        later(move || history.forget())
    }

    #[napi]
    pub fn maintain(&self) -> AsyncTask<Work<()>> {
        let history = Arc::clone(&self.0);
        later(move || history.maintain())
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}

#[napi]
pub struct Session(Arc<refrain_ffi::Session>);

#[napi]
impl Session {
    #[napi]
    pub fn append(&self, message: String) -> AsyncTask<Work<()>> {
        let session = Arc::clone(&self.0);
        later(move || {
            let Message { role, content } = read(&message, "message")?;
            session.append(role, content)
        })
    }

    #[napi]
    pub fn append_text(&self, text: String) -> AsyncTask<Work<()>> {
        let session = Arc::clone(&self.0);
        later(move || session.append_text(read(&text, "text")?))
    }

    #[napi]
    pub fn pop(&self) -> AsyncTask<Work<String>> {
        let session = Arc::clone(&self.0);
        later(move || Ok(write(&session.pop()?)))
    }

    #[napi]
    pub fn messages(&self) -> AsyncTask<Work<String>> {
        let session = Arc::clone(&self.0);
        later(move || Ok(write(&session.messages()?)))
    }

    #[napi]
    pub fn info(&self) -> AsyncTask<Work<String>> {
        let session = Arc::clone(&self.0);
        later(move || Ok(write(&session.info()?)))
    }

    #[napi]
    pub fn generate(&self, options: String) -> AsyncTask<Work<Job>> {
        let session = Arc::clone(&self.0);
        later(move || Ok(Job::new(session.generate(read(&options, "options")?)?)))
    }

    #[napi]
    pub fn prefill(&self) -> AsyncTask<Work<Job>> {
        let session = Arc::clone(&self.0);
        later(move || Ok(Job::new(session.prefill()?)))
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}

#[napi]
pub struct Assistant(Arc<refrain_ffi::Assistant>);

#[napi]
impl Assistant {
    #[napi]
    pub fn start(&self, request: String, options: String) -> AsyncTask<Work<Job>> {
        let assistant = Arc::clone(&self.0);
        later(move || Ok(Job::new(assistant.start(read(&request, "request")?, read(&options, "options")?)?)))
    }

    #[napi]
    pub fn conversation(&self, id: String, turns: String) -> AsyncTask<Work<Conversation>> {
        let assistant = Arc::clone(&self.0);
        later(move || Ok(Conversation(assistant.conversation(read(&id, "id")?, read(&turns, "turns")?)?)))
    }

    #[napi]
    pub fn forget(&self, what: String) -> AsyncTask<Work<String>> {
        let assistant = Arc::clone(&self.0);
        later(move || Ok(write(&assistant.forget(read(&what, "what")?)?)))
    }

    #[napi]
    pub fn refresh_notes(&self) -> AsyncTask<Work<()>> {
        let assistant = Arc::clone(&self.0);
        later(move || assistant.refresh_notes())
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}

#[napi]
pub struct Conversation(Arc<refrain_ffi::Conversation>);

#[napi]
impl Conversation {
    #[napi]
    pub fn say(&self, request: String, options: String) -> AsyncTask<Work<Job>> {
        let conversation = Arc::clone(&self.0);
        later(move || Ok(Job::new(conversation.say(read(&request, "request")?, read(&options, "options")?)?)))
    }

    #[napi]
    pub fn id(&self) -> napi::Result<String> {
        now(|| self.0.id())
    }

    #[napi]
    pub fn turns(&self) -> AsyncTask<Work<String>> {
        let conversation = Arc::clone(&self.0);
        later(move || Ok(write(&conversation.turns()?)))
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}

#[napi]
pub struct Notes(Arc<refrain_ffi::Notes>);

#[napi]
impl Notes {
    #[napi]
    pub fn open(options: String) -> AsyncTask<Work<Notes>> {
        later(move || {
            let mut options: NotesOptions = read(&options, "options")?;
            options.units.get_or_insert(Units::Utf16);
            Ok(Notes(refrain_ffi::Notes::open(options)?))
        })
    }

    #[napi]
    pub fn add(&self, paths: String) -> AsyncTask<Work<Job>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(Job::new(notes.add(read(&paths, "paths")?)?)))
    }

    #[napi]
    pub fn update(&self) -> AsyncTask<Work<Job>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(Job::new(notes.update()?)))
    }

    #[napi]
    pub fn forget(&self, paths: String) -> AsyncTask<Work<Job>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(Job::new(notes.forget(read(&paths, "paths")?)?)))
    }

    #[napi]
    pub fn put(&self, request: String) -> AsyncTask<Work<f64>> {
        let notes = Arc::clone(&self.0);
        // (A count of changes.)
        later(move || Ok(notes.put(read(&request, "request")?)? as f64))
    }

    #[napi]
    pub fn search(&self, request: String) -> AsyncTask<Work<String>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(write(&notes.search(read(&request, "request")?)?)))
    }

    #[napi]
    pub fn documents_since(&self, change: String) -> AsyncTask<Work<String>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(write(&notes.documents_since(read(&change, "change")?)?)))
    }

    #[napi]
    pub fn cursor(&self) -> AsyncTask<Work<String>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(write(&notes.cursor()?)))
    }

    #[napi]
    pub fn files(&self) -> AsyncTask<Work<String>> {
        let notes = Arc::clone(&self.0);
        later(move || Ok(write(&notes.files()?)))
    }

    #[napi]
    pub fn refresh(&self) -> AsyncTask<Work<()>> {
        let notes = Arc::clone(&self.0);
        later(move || notes.refresh())
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.0.close())
    }
}
