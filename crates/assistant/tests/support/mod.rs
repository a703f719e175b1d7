//! What the tests share: the fixture model, an index of the sample notes, plain decoding, and a search through every byte of a
//! folder.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use refrain::internals::draft::CostProfile;
use refrain::{
    Drafting, Engine, EngineOptions, Event, GenerateOptions, Message, Role, Sampling, Session, SessionOptions,
};
use refrain_assistant::{Assistant, AssistantOptions, Builder, KeptPrompts};
use refrain_index::notes::{NotesOptions, NotesWriter};

/// The sample notes of the fixture model.
pub(crate) fn sample_notes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/notes")
}

/// One engine for all tests of the program. Every draft pays: measured costs depend on what else the machine does.
pub(crate) fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let open = || {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let cost_profile = Some(CostProfile::free_rows(100.0));
        let options = EngineOptions { n_threads: Some(1), cost_profile, ..EngineOptions::default() };
        Engine::open(model, options).expect("the fixture model")
    };
    ENGINE.get_or_init(open).clone()
}

/// A folder with notes, an index of them and a store.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    /// A copy of the sample notes, indexed.
    pub(crate) fn with_samples() -> Self {
        let place = Self::new();
        for entry in fs::read_dir(sample_notes()).expect("the sample notes") {
            let path = entry.expect("an entry").path();
            fs::copy(&path, place.notes().join(path.file_name().expect("a name"))).expect("copied");
        }
        place.update();
        place
    }

    /// A folder without notes.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("notes")).expect("a folder");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.path("notes")
    }

    /// Writes a note.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.notes().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// Brings the index up to date.
    pub(crate) fn update(&self) {
        let mut writer = NotesWriter::open(&self.path("index"), NotesOptions::default()).expect("opens");
        writer.add(&[self.notes()]).expect("exists");
        writer.update(&mut |_, _| ControlFlow::Continue(())).expect("updates");
    }

    pub(crate) fn builder(&self) -> Builder {
        Assistant::builder(engine()).notes(self.path("index")).options(options())
    }

    pub(crate) fn assistant(&self) -> Assistant {
        self.builder().build().expect("builds")
    }

    pub(crate) fn with_store(&self) -> Assistant {
        self.builder().store(self.path("store")).build().expect("builds")
    }

    /// The files in the folder, notes excepted, whose bytes contain `bytes`.
    pub(crate) fn files_with(&self, bytes: &[u8]) -> Vec<PathBuf> {
        let mut found = files(self.folder.path());
        let has = |content: &[u8]| content.windows(bytes.len()).any(|window| window == bytes);
        found.retain(|path, content| !path.starts_with(self.notes()) && has(content));
        found.into_keys().collect()
    }
}

/// The value with a change.
pub(crate) fn changed<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

pub(crate) fn options() -> AssistantOptions {
    changed(AssistantOptions::default(), |it| {
        it.answer_tokens = Some(80);
        // What is kept is to be deleted, and to change no output.
        it.keeps_prompts = KeptPrompts::All;
    })
}

/// The files below a folder.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).expect("readable");
            found.insert(path, bytes);
        }
    }
    found
}

/// A session that decodes plainly.
pub(crate) fn plain_session() -> Session {
    engine()
        .session(SessionOptions { drafting: Drafting::Off, history: false, ..SessionOptions::default() })
        .expect("starts")
}

/// The output of plain decoding after these turns.
pub(crate) fn plain(turns: &[(Role, &str)], sampling: Sampling) -> String {
    let mut session = plain_session();
    for &(role, text) in turns {
        session.append_message(Message::new(role, text)).expect("a turn");
    }
    let options = GenerateOptions { max_tokens: 80, sampling, ..GenerateOptions::default() };
    let mut text = String::new();
    for event in session.generate(options).expect("starts") {
        match event.expect("decodes") {
            Event::Token(token) => text.push_str(&token.text),
            Event::Done(summary) => text.push_str(&summary.text),
            _ => {}
        }
    }
    text
}

/// The output of plain decoding for a user message.
pub(crate) fn plain_answer(message: &str) -> String {
    plain(&[(Role::User, message)], AssistantOptions::default().sampling)
}
