//! `ask` and `forget` through the server that has their store open. The server runs the command as this program would, with the command
//! line of the other process, and sends its output; so the output is the same as without a server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use clap::FromArgMatches;
use refrain::drafting::SourceName;
use refrain::{CancelToken, Origin};
use refrain_assistant::Assistant;
use refrain_index::notes::is_document;
use refrain_serve::{HandError, Handed, HoldingServer};
use serde_json::{Value, json};

use crate::args::{AskArgs, Cli, Command, ForgetArgs, command_line, is_none};
use crate::failure::{Exit, Failure};
use crate::index::folder_or_default;
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::progress::Progress;
use crate::setup::Setup;
use crate::terminal::{AnswerStream, Elsewhere, elsewhere, note, visible, write_error, write_error_lines};
use crate::{assist, config, forget, models};
use refrain_program::args::ModelArgs;

/// Lets the server that has a store open run this process's command. `None` if there is no such server, or it cannot run the command.
pub(crate) fn by_server(
    store: &Path,
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
    let (Some(args), Some(place)) = (args, place) else { return Ok(None) };
    let command = json!({ "args": args, "place": place, "piped": piped, "key": key_hash()? });
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
fn key_hash() -> Result<Option<String>, Failure> {
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

/// What a server has for commands of other processes.
pub(crate) struct Host {
    /// The model's options, the model, and the index of its assistant; `None` if the model may be unloaded, or there are no notes.
    pub(crate) model: Option<(ModelArgs, Arc<Setup>, PathBuf)>,
}

/// What `ask` uses in place of a model and a store of its own.
pub(crate) struct Served {
    pub(crate) setup: Arc<Setup>,
    pub(crate) assistant: Assistant,
}

/// Sends the output of this thread to the other process.
struct Sent(Rc<Handed>);

impl Elsewhere for Sent {
    fn token(&self, text: &str, origin: &Origin) {
        let origin = match origin {
            Origin::Draft(name) => Some(name.as_str()),
            Origin::Target => None,
        };
        self.0.send("token", &json!({ "text": text, "origin": origin }));
    }

    fn end_line(&self) {
        self.0.send("end_line", &json!({}));
    }

    fn line(&self, line: &str) {
        self.0.send("line", &json!({ "text": line }));
    }

    fn error(&self, text: &str) {
        self.0.send("error_text", &json!({ "text": text }));
    }

    fn error_lines(&self, text: &str) {
        self.0.send("error_lines", &json!({ "text": text }));
    }

    fn progress(&self, done: u64, total: u64) {
        self.0.send("progress", &json!({ "done": done, "total": total }));
    }
}

impl Host {
    /// Runs a command that another process has handed over.
    pub(crate) fn run(&self, handed: Handed) {
        let handed = Rc::new(handed);
        let exit =
            |exit: Exit, line: String| handed.send("exit", &json!({ "code": exit as u8, "text": line }));
        let command = match command(handed.command()) {
            Ok(command) => command,
            Err(what) => {
                handed.send("differs", &json!({ "text": what }));
                return exit(Exit::Done, String::new());
            }
        };
        let ran = match command {
            Given::Ask { args, piped } => match self.served(&args, piped.is_some(), handed.assistant()) {
                Ok(served) => {
                    let interrupt = Interrupt::following(handed.cancel().clone());
                    let to = Rc::new(Sent(Rc::clone(&handed)));
                    elsewhere(to, || assist::ask_with(&args, piped, &interrupt, Some(&served)))
                }
                Err(what) => {
                    handed.send("differs", &json!({ "text": what }));
                    return exit(Exit::Done, String::new());
                }
            },
            Given::Forget(args) => {
                let to = Rc::new(Sent(Rc::clone(&handed)));
                match elsewhere(to.clone(), || self.has_index_of(&args)) {
                    Ok(true) => {
                        elsewhere(to, || forget::forget_with(&args, |what| Ok(handed.forget_all(&what)?)))
                    }
                    Ok(false) => {
                        handed.send("differs", &json!({ "text": "it has other notes" }));
                        return exit(Exit::Done, String::new());
                    }
                    Err(failure) => Err(failure),
                }
            }
        };
        match ran {
            Ok(done) => exit(done, String::new()),
            Err(failure) => exit(failure.exit(), failure.line()),
        }
    }

    /// The model for an `ask`, if it is the one that the command names.
    fn served(&self, args: &AskArgs, is_piped: bool, assistant: &Assistant) -> Result<Served, String> {
        let Some((model, setup, index)) = &self.model else { return Err("it has no notes".to_owned()) };
        let given = &args.task.assist.model;
        let place = |args: &ModelArgs| -> Option<PathBuf> {
            let path = args.model.as_deref()?;
            let located = models::located(path).map_or_else(|_| path.to_owned(), |path| path.into_owned());
            Some(located.canonicalize().unwrap_or(located))
        };
        let quantized = |args: &ModelArgs| format!("{:?}", args.compute.engine_options().quantize);
        if place(given) != place(model) || quantized(given) != quantized(model) {
            return Err("it has another model".to_owned());
        }
        let same = |a: &Path, b: &Path| a.canonicalize().ok() == b.canonicalize().ok();
        let searched = folder_or_default(args.notes.as_deref()).ok();
        if !is_piped && !searched.is_some_and(|searched| same(&searched, index)) {
            return Err("it has other notes".to_owned());
        }
        Ok(Served { setup: Arc::clone(setup), assistant: assistant.clone() })
    }

    /// Whether a deletion is from the index of the server's assistant.
    fn has_index_of(&self, args: &ForgetArgs) -> Result<bool, Failure> {
        let Some((_, _, index)) = &self.model else { return Ok(false) };
        let (_, named) = forget::folders(args)?;
        Ok(named.is_some_and(|named| named.canonicalize().ok() == index.canonicalize().ok()))
    }
}

/// A command that may be handed over.
enum Given {
    Ask { args: Box<AskArgs>, piped: Option<String> },
    Forget(Box<ForgetArgs>),
}

/// Reads a command line of another process, with its paths from its current folder.
fn command(given: &Value) -> Result<Given, String> {
    let text = |name: &str| given[name].as_str().map(str::to_owned);
    if text("key") != key_hash().map_err(|failure| failure.line())? {
        return Err("it has another key".to_owned());
    }
    let place = PathBuf::from(text("place").unwrap_or_default());
    let args = given["args"].as_array().into_iter().flatten().filter_map(Value::as_str).map(OsString::from);
    let matches = command_line().try_get_matches_from(args);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    // Who hands it over has parsed it before.
    let cli = cli.map_err(|_| "its command line is another".to_owned())?;
    let full = |path: &mut PathBuf| {
        if !is_none(path) && !is_document(path) {
            *path = place.join(&*path);
        }
    };
    match cli.command {
        Command::Ask(mut args) => {
            args.notes.iter_mut().chain(&mut args.filter.within).for_each(full);
            let model = args.task.assist.model.model.iter_mut().filter(|model| place.join(&**model).exists());
            model.for_each(full);
            Ok(Given::Ask { args, piped: text("piped") })
        }
        Command::Forget(mut args) => {
            args.paths.iter_mut().chain(&mut args.store).chain(&mut args.notes).for_each(full);
            Ok(Given::Forget(Box::new(args)))
        }
        _ => Err("it runs `ask` and `forget` alone".to_owned()),
    }
}
