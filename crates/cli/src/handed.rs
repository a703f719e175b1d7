//! `ask` and `forget` through the server that has their store open. The server runs the command as this program would, with the command
//! line of the other process, and sends its output; so the output is the same as without a server.

use std::path::{Path, PathBuf};

use refrain::drafting::SourceName;
use refrain::{CancelToken, Origin};
use refrain_serve::{HandError, HoldingServer};
use serde_json::{Value, json};

use crate::config;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::progress::Progress;
use crate::terminal::{AnswerStream, note, visible, write_error, write_error_lines};

/// The places that a command means in this process: a server may have other default folders.
pub(crate) struct Places {
    /// The index of notes; `None` if the command has none.
    pub(crate) notes: Option<PathBuf>,
    /// The model's file or folder; `None` for the one inside the program.
    pub(crate) model: Option<PathBuf>,
}

impl Places {
    /// As JSON; `None` if a path has none.
    fn write(&self) -> Option<Value> {
        let full = |path: &Option<PathBuf>| match path {
            None => Some(Value::Null),
            Some(path) => Some(std::path::absolute(path).ok()?.to_str()?.into()),
        };
        Some(json!({ "notes": full(&self.notes)?, "model": full(&self.model)? }))
    }

    /// Those of a command that was handed over.
    pub(crate) fn read(command: &Value) -> Self {
        let path = |name: &str| command["places"][name].as_str().map(PathBuf::from);
        Self { notes: path("notes"), model: path("model") }
    }
}

/// Lets the server that has a store open run this process's command. `None` if there is no such server, or it cannot run the command.
pub(crate) fn by_server(
    store: &Path,
    places: &Places,
    piped: Option<&str>,
    interrupt: &Interrupt,
    cancelled: &str,
) -> Result<Option<Exit>, Failure> {
    let Some(server) = HoldingServer::of(store) else { return Ok(None) };
    let args: Option<Vec<String>> = config::effective(&std::env::args_os().collect::<Vec<_>>())?
        .into_iter()
        .map(|arg| arg.into_string().ok())
        .collect();
    let place = std::env::current_dir().ok().and_then(|place| place.into_os_string().into_string().ok());
    // What is no text cannot be handed over.
    let (Some(args), Some(place), Some(places)) = (args, place, places.write()) else { return Ok(None) };
    let command =
        json!({ "args": args, "place": place, "places": places, "piped": piped, "key": key_hash()? });
    let cancel = CancelToken::new();
    let _cancelling = interrupt.cancels(cancel.clone());
    let mut shown =
        Shown { out: AnswerStream::stdout(), progress: None, exit: None, differs: None, has_begun: false };
    let done = server.run(&command, &cancel, &mut |name, data| shown.show(name, &data));
    shown.progress = None;
    match done {
        Ok(()) => {}
        Err(HandError::Cancelled) => {
            shown.out.end_line()?;
            note(cancelled);
            return Err(Failure::new(Exit::Interrupted, ""));
        }
        // Nothing has happened yet.
        Err(HandError::Refused { message, .. }) if !shown.has_begun => {
            note(&visible(&format!("the server that has the store refuses this: {message}")));
            return Ok(None);
        }
        Err(error) => {
            shown.out.end_line()?;
            let advice = "run the command again: without the server, it runs here";
            return Err(Failure::new(Exit::Failed, format!("{error} ({advice})")));
        }
    }
    if let Some(what) = shown.differs {
        note(&visible(&format!("the server that has the store cannot run this: {what}")));
        return Ok(None);
    }
    match shown.exit {
        Some((exit, line)) if line.is_empty() => Ok(Some(exit)),
        Some((exit, line)) => Err(Failure::new(exit, line)),
        None => Err(Failure::new(Exit::Failed, "the server has sent no exit code")),
    }
}

/// What tells whether two processes have one key.
pub(crate) fn key_hash() -> Result<Option<String>, Failure> {
    let hash = |key: [u8; 32]| {
        let digest =
            ring::digest::digest(&ring::digest::SHA256, &[&b"refrain-cli handed"[..], &key].concat());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Ok(key()?.map(hash))
}

/// The output of a command that runs elsewhere.
struct Shown {
    out: AnswerStream,
    progress: Option<Progress>,
    exit: Option<(Exit, String)>,
    differs: Option<String>,
    /// Whether the server has sent an event.
    has_begun: bool,
}

impl Shown {
    fn show(&mut self, name: &str, data: &Value) {
        self.has_begun = true;
        let text = data["text"].as_str().unwrap_or_default();
        if name == "progress" {
            let progress = self.progress.get_or_insert_with(|| Progress::tokens("prefill"));
            return progress.set(data["done"].as_u64().unwrap_or(0), data["total"].as_u64().unwrap_or(0));
        }
        self.progress = None;
        // A pipe that is closed ends the command by the next error of this process.
        let written = match name {
            "token" => {
                let origin = data["origin"].as_str().map(SourceName::from);
                self.out.token(text, &origin.map_or(Origin::Target, Origin::Draft))
            }
            "end_line" => self.out.end_line(),
            "line" => self.out.line(text),
            "error_text" => {
                write_error(text);
                Ok(())
            }
            "error_lines" => {
                write_error_lines(text);
                Ok(())
            }
            "differs" => {
                self.differs = Some(text.to_owned());
                Ok(())
            }
            "exit" => {
                self.exit = Some((exit_of(data["code"].as_u64()), text.to_owned()));
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = written {
            self.exit = Some((Exit::Failed, format!("cannot write the answer: {error}")));
        }
    }
}

fn exit_of(code: Option<u64>) -> Exit {
    let all = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Input, Exit::Interrupted];
    all.into_iter().find(|exit| Some(*exit as u64) == code).unwrap_or(Exit::Failed)
}
