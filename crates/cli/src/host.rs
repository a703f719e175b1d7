//! The commands of other processes, as the server runs them ([`handed`](crate::handed)).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use clap::FromArgMatches;
use refrain::Origin;
use refrain_index::notes::is_document;
use refrain_serve::Handed;
use serde_json::{Value, json};

use crate::args::{AskArgs, Cli, Command, ForgetArgs, command_line, is_none};
use crate::assisted::Served;
use crate::failure::Exit;
use crate::handed::{Places, key_hash};
use crate::interrupt::Interrupt;
use crate::setup::Setup;
use crate::terminal::{Elsewhere, elsewhere};
use crate::{ask, forget, models};
use refrain_program::args::ModelArgs;

/// What a server has for commands of other processes.
pub(crate) struct Host {
    /// The model's options, the model, and the index of its assistant; `None` if the model may be unloaded, or there are no notes.
    pub(crate) model: Option<(ModelArgs, Arc<Setup>, PathBuf)>,
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
            Given::Ask { args, piped } => match self.served(&args, piped.is_some(), &handed) {
                Ok(served) => {
                    let to = Rc::new(Sent(Rc::clone(&handed)));
                    elsewhere(to, || ask::ask_with(&args, piped, &Interrupt::default(), Some(&served)))
                }
                Err(what) => {
                    handed.send("differs", &json!({ "text": what }));
                    return exit(Exit::Done, String::new());
                }
            },
            Given::Forget { args, index } => match self.has_index(index.as_deref()) {
                true => {
                    let to = Rc::new(Sent(Rc::clone(&handed)));
                    elsewhere(to, || forget::forget_with(&args, |what| Ok(handed.forget_all(&what)?)))
                }
                false => {
                    handed.send("differs", &json!({ "text": "it has other notes" }));
                    return exit(Exit::Done, String::new());
                }
            },
        };
        match ran {
            Ok(done) => exit(done, String::new()),
            Err(failure) => exit(failure.exit(), failure.line()),
        }
    }

    /// The model for an `ask`, if it is the one that the command names.
    fn served(&self, args: &AskArgs, is_piped: bool, handed: &Handed) -> Result<Served, String> {
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
        if !is_piped && !is_same(args.notes.as_deref(), index) {
            return Err("it has other notes".to_owned());
        }
        let (assistant, cancel) = (handed.assistant().clone(), handed.cancel().clone());
        Ok(Served { setup: Arc::clone(setup), assistant, cancel })
    }

    /// Whether a deletion is from the index of the server's assistant.
    fn has_index(&self, named: Option<&Path>) -> bool {
        self.model.as_ref().is_some_and(|(_, _, index)| is_same(named, index))
    }
}

/// Whether a folder is the server's.
fn is_same(named: Option<&Path>, own: &Path) -> bool {
    let named = named.and_then(|named| named.canonicalize().ok());
    named.is_some() && named == own.canonicalize().ok()
}

/// A command that may be handed over.
enum Given {
    Ask { args: Box<AskArgs>, piped: Option<String> },
    Forget { args: Box<ForgetArgs>, index: Option<PathBuf> },
}

/// Reads a command line of another process, with its paths from its current folder and its default folders.
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
    let Places { notes, model } = Places::read(given);
    match cli.command {
        Command::Ask(mut args) => {
            args.filter.within.iter_mut().chain(&mut args.notes).for_each(full);
            args.notes = notes.or(args.notes);
            args.task.assist.model.model = model;
            Ok(Given::Ask { args, piped: text("piped") })
        }
        Command::Forget(mut args) => {
            args.paths.iter_mut().for_each(full);
            Ok(Given::Forget { args: Box::new(args), index: notes })
        }
        _ => Err("it runs `ask` and `forget` alone".to_owned()),
    }
}
