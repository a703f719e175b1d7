//! What the window does, without the window: it opens a model and notes, and answers questions in events.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use refrain::{CancelToken, Engine, EngineOptions};
use refrain_assistant::{AnswerRequest, Assistant, JobEvent, JobOptions, TaskError};
use refrain_index::{NotesOptions, NotesWriter};
use serde::Serialize;

/// What the page receives.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Told {
    /// Bytes of the model, files of the notes or tokens of the prompt.
    Progress {
        /// `load`, `index` or `prompt`.
        of: &'static str,
        /// What is done.
        done: u64,
        /// All of it.
        total: u64,
    },
    /// A piece of the answer.
    Text {
        /// The piece.
        text: String,
    },
    /// The answer is complete.
    Done {
        /// The passages that the answer cites by number.
        sources: Vec<Source>,
    },
    /// No passage covers enough of the question.
    NotInNotes {
        /// Names the nearest passages.
        message: String,
    },
    /// The user has stopped the answer.
    Cancelled,
}

/// A passage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// The number that the text cites.
    pub number: usize,
    /// The title.
    pub title: String,
    /// The note.
    pub path: String,
    /// The line or page.
    pub locator: String,
}

/// An open model over notes. Shared by the commands of the window.
pub struct Answers {
    assistant: Assistant,
    /// Of the answer that runs.
    running: Mutex<Option<CancelToken>>,
}

impl Answers {
    /// Reads what has changed of the notes, and loads the model. It takes seconds: call it on a thread that may wait.
    ///
    /// # Errors
    /// The message of the library, for the user.
    pub fn open(
        model: &Path,
        notes: &Path,
        index: &Path,
        mut tell: impl FnMut(Told),
    ) -> Result<Self, String> {
        let mut writer = NotesWriter::open(index, NotesOptions::default()).map_err(message)?;
        let mut on_file = |done: u64, total: u64| {
            tell(Told::Progress { of: "index", done, total });
            ControlFlow::Continue(())
        };
        writer.add(&[notes]).map_err(message)?;
        writer.update(&mut on_file).map_err(message)?;
        writer.close(&mut |_, _| ControlFlow::Continue(()), &mut |_| {}).map_err(message)?;
        let checkpoint = refrain::checkpoint::Checkpoint::open(model).map_err(message)?;
        let on_bytes = |done: u64, total: u64| tell(Told::Progress { of: "load", done, total });
        let engine = Engine::load(&checkpoint, EngineOptions::default(), on_bytes).map_err(message)?;
        let assistant = Assistant::builder(engine).notes(index).build().map_err(message)?;
        Ok(Self { assistant, running: Mutex::new(None) })
    }

    /// Answers a question on the caller's thread; [`stop`](Self::stop) ends it from another one. A new question ends the one before.
    ///
    /// # Errors
    /// The message of the library, for the user.
    pub fn ask(&self, question: &str, mut tell: impl FnMut(Told)) -> Result<(), String> {
        let job = match self.assistant.ask(AnswerRequest::new(question), JobOptions::default()) {
            Ok(job) => job,
            Err(error @ TaskError::NotInNotes { .. }) => {
                tell(Told::NotInNotes { message: error.to_string() });
                return Ok(());
            }
            Err(error) => return Err(message(error)),
        };
        let cancel = job.cancel_token();
        if let Some(earlier) = self.running().replace(cancel.clone()) {
            earlier.cancel();
        }
        for event in job {
            match event {
                Ok(JobEvent::Prefill { done, total }) => {
                    tell(Told::Progress { of: "prompt", done: done as u64, total: total as u64 });
                }
                Ok(JobEvent::Text(piece)) => tell(Told::Text { text: piece.text }),
                Ok(JobEvent::Done(answer)) => {
                    let sources = answer.sources.iter().map(|source| Source {
                        number: source.number,
                        title: source.title.clone(),
                        path: source
                            .path
                            .as_deref()
                            .map_or_else(String::new, |path| path.display().to_string()),
                        locator: source.locator.map_or_else(String::new, |locator| locator.to_string()),
                    });
                    tell(Told::Done { sources: sources.collect() });
                }
                Ok(_) => {}
                Err(_) if cancel.is_cancelled() => tell(Told::Cancelled),
                Err(error) => return Err(message(error)),
            }
        }
        Ok(())
    }

    /// Stops the answer that runs.
    pub fn stop(&self) {
        if let Some(cancel) = self.running().take() {
            cancel.cancel();
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<CancelToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}
