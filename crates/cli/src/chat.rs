//! `refrain chat`: the assistant's conversation, with its turns from standard input.

use std::path::{Path, PathBuf};

use refrain::{Message, Role};
use refrain_assistant::{AssistantOptions, ChatAnswer, ChatRequest, Conversation, Prompts, Turn, TypedLines};
use refrain_grammar::Grammar;

use crate::args::{AssistArgs, ChatArgs, StatsFormat};
use crate::assisted::{Assisted, Shows, store_of};
use crate::context::{Covered, Notes};
use crate::conversations;
use crate::editor::{Entered, Turns};
use crate::failure::{Exit, Failure, print_error};
use crate::grammar::Given;
use crate::index::open_named;
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::load::note_demonstration;
use crate::report::{note_nearest, note_searched, searched_json};
use crate::terminal::{AnswerStream, note, print_legend, visible};
use crate::{sampling, stats};
use refrain_program::place::home;

const HELP: &str = "/help lists the commands · Ctrl-D ends the program · Ctrl-C ends an answer · a line that ends with \\ goes on";

/// The commands, each with what it does.
const COMMANDS: [(&str, &str, &str); 9] = [
    ("/clear", "", "starts a new conversation"),
    ("/system", "[TEXT]", "shows the system turn, or sets it"),
    ("/model", "[NAME]", "shows the model, or goes on with another"),
    ("/notes", "[PATH|off]", "shows which notes a turn searches, or names them"),
    ("/save", "FILE", "writes the conversation into a file"),
    ("/load", "FILE", "goes on with a conversation that was saved"),
    ("/stats", "", "shows the last answer's statistics"),
    ("/help", "", "lists the commands"),
    ("/exit", "", "ends the program, as Ctrl-D"),
];

const NAMES: [&str; COMMANDS.len()] = {
    let (mut names, mut i) = ([""; COMMANDS.len()], 0);
    while i < names.len() {
        names[i] = COMMANDS[i].0;
        i += 1;
    }
    names
};

pub(crate) fn chat(args: &ChatArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let context = match args.context.is_empty() {
        true => None,
        false => Some(Notes::read(&args.context, None)?),
    };
    let index = args.notes.as_ref().map(|named| open_named(named.as_deref())).transpose()?;
    let index = index.map(|(folder, _)| folder);
    let given = Given::read(&args.answer.grammar)?;
    let assist = args.answer.assist.clone();
    let open = Open::new(&assist, index.as_deref(), given.as_ref(), None)?;
    let typed = typed_lines(&assist, &open);
    let earlier = typed.as_ref().map(TypedLines::read).unwrap_or_default();
    let mut turns = Turns::open(&NAMES, earlier);
    let is_interactive = !matches!(turns, Turns::Lines { is_terminal: false });
    if is_interactive {
        note(&sampling::describe(&open.assisted.sampling));
        note(HELP);
    }
    note_demonstration(&assist.model);
    let searched = match (args.context.first(), &index) {
        (Some(_), _) => list(&args.context),
        (None, Some(index)) => format!("the index in `{}`", index.display()),
        (None, None) => "none".to_owned(),
    };
    let mut chat =
        Chat { args, assist, interrupt, context, index, searched, given, open: Some(open), last: None };
    let mut exit = Exit::Done;
    let mut was_dropped = false;
    loop {
        let line = match turns.next() {
            Ok(Entered::Turn(line)) => line,
            Ok(Entered::Dropped) if was_dropped => return Err(Failure::new(Exit::Interrupted, "")),
            Ok(Entered::Dropped) => {
                was_dropped = true;
                note("Ctrl-C again, or Ctrl-D, ends the program");
                continue;
            }
            Ok(Entered::End) => break,
            Ok(Entered::Refused(failure)) => {
                print_error(&failure.line());
                continue;
            }
            Err(failure) => return Err(failure),
        };
        was_dropped = false;
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        if matches!(text, "/exit" | "/quit") {
            break;
        }
        turns.remember(text);
        if let Some(typed) = typed.as_ref().filter(|_| is_interactive)
            && let Err(error) = typed.append(chat.open().conversation.id(), text)
        {
            note(&visible(&format!("the line is not kept: {error}")));
        }
        match chat.enter(text) {
            Ok(()) => {}
            Err(failure) if failure.exit() == Exit::Done || chat.open.is_none() => return Err(failure),
            Err(failure) if failure.exit() == Exit::Interrupted => note("the turn was removed"),
            Err(failure) => {
                // The conversation continues without this turn. The exit code reports the failure to scripts.
                print_error(&failure.line());
                note("nothing of it is kept; /clear starts a new conversation");
                exit = failure.exit();
            }
        }
    }
    if is_interactive && chat.open().assisted.assistant.has_store() && chat.last.is_some() {
        let id = chat.open().conversation.id().0;
        note(&format!("`refrain forget --conversation {id}` deletes what is kept of the conversation"));
    }
    Ok(if is_interactive { Exit::Done } else { exit })
}

/// The lines that were typed in conversations with this store. Without a store, none are kept; nor with a key, which would not encrypt
/// them.
fn typed_lines(assist: &AssistArgs, open: &Open) -> Option<TypedLines> {
    let has_key = key().is_ok_and(|key| key.is_some());
    let folder = store_of(assist).filter(|_| open.assisted.assistant.has_store() && !has_key);
    folder.map(TypedLines::in_store)
}

/// A model, and the conversation with it.
struct Open {
    assisted: Assisted,
    /// The grammar of every answer.
    grammar: Option<Grammar>,
    conversation: Conversation,
}

impl Open {
    /// Opens the model, with the conversation so far.
    fn new(
        assist: &AssistArgs,
        index: Option<&Path>,
        given: Option<&Given>,
        so_far: Option<(refrain_assistant::ConversationId, Vec<Turn>)>,
    ) -> Result<Self, Failure> {
        let is_embedded = assist.model.model.is_none();
        let (options, prompts) = (AssistantOptions::default(), Prompts::default());
        let assisted = Assisted::open(assist, index, options, prompts, |engine| {
            sampling::for_chat(engine, is_embedded)
        })?;
        if !assisted.setup.has_chat_template()? {
            let problem = format!("`{}` has no chat template", assisted.setup.checkpoint.name());
            return Err(Failure::input(problem, "`refrain run --raw` continues plain text"));
        }
        let grammar = given.map(|given| given.compile(assisted.engine())).transpose()?;
        let conversation = match so_far {
            Some((id, turns)) => assisted.assistant.open_conversation(id, turns),
            None => assisted.assistant.conversation(),
        };
        Ok(Self { assisted, grammar, conversation })
    }
}

struct Chat<'a> {
    args: &'a ChatArgs,
    /// The options of the model, which /model changes.
    assist: AssistArgs,
    interrupt: &'a Interrupt,
    /// Notes that were read for the conversation.
    context: Option<Notes>,
    /// The folder of the index that turns search.
    index: Option<PathBuf>,
    /// The notes that turns search, in words.
    searched: String,
    given: Option<Given>,
    /// `None` while another model is loaded.
    open: Option<Open>,
    /// The newest answer, for `/stats`.
    last: Option<ChatAnswer>,
}

impl Chat<'_> {
    fn open(&self) -> &Open {
        self.open.as_ref().expect("without a model, the program ends")
    }

    /// A command, or a turn and its answer.
    fn enter(&mut self, text: &str) -> Result<(), Failure> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let is_command =
            name.len() > 1 && name.starts_with('/') && name[1..].bytes().all(|c| c.is_ascii_alphabetic());
        if !is_command {
            return self.turn(text);
        }
        match (name, rest.trim()) {
            ("/help", _) => help(),
            ("/clear", _) => {
                let open = self.open.as_mut().expect("without a model, the program ends");
                let new = open.assisted.assistant.conversation();
                // /system may have changed it.
                let system = self.assist.system.as_ref();
                let system = system.map(|text| Turn::new(Message::new(Role::System, text.as_str())));
                open.conversation = open.assisted.assistant.open_conversation(new.id(), system);
            }
            ("/stats", _) => self.print_last(),
            ("/system", text) => self.system(text),
            ("/model", "") => {
                note(&visible(&format!("the model is {}", self.open().assisted.setup.checkpoint.name())))
            }
            ("/model", name) => return self.change_model(name),
            ("/notes", "") => note(&visible(&format!("notes: {}", self.searched))),
            ("/notes", path) => return self.notes(path),
            ("/save" | "/load", "") => note(&format!("{name} needs a FILE")),
            ("/save", file) => return self.save(&path_of(file)),
            ("/load", file) => return self.load(&path_of(file)),
            (name, _) => note(&visible(&unknown(name))),
        }
        Ok(())
    }

    /// One turn and its answer. A turn that fails is removed from the conversation.
    fn turn(&mut self, text: &str) -> Result<(), Failure> {
        let args = self.args;
        let Open { assisted, grammar, conversation } = self.open();
        let n_passages = if self.index.is_some() { args.passages } else { 0 };
        let mut request = ChatRequest::new(text);
        request.n_passages = n_passages;
        let mut in_vain = None;
        if let Some(notes) = &self.context {
            let turns = conversation.turns();
            let before = turns.iter().rev().find(|turn| turn.message.role == Role::User);
            let before = before.map(|turn| turn.asked.as_deref().unwrap_or(&turn.message.content));
            match notes.for_turn(text, before, args.passages)? {
                Covered::By(found) => request.passages = Some(found),
                Covered::Not(searched) => in_vain = Some(searched),
            }
        }
        let options = args.answer.job(assisted, grammar.as_ref());
        let job = conversation.say(request, options)?;
        let done = assisted.run(job, self.interrupt, Shows::Text)?;
        assisted.note_end(&done.report);
        if !done.dropped.is_empty() {
            let n_dropped = done.dropped.len();
            note(&format!("left out: the oldest {n_dropped} turns do not fit the context any more (--ctx)"));
        }
        let place = if in_vain.is_some() { "these files" } else { "your notes" };
        let searched = done.searched.as_ref().or(in_vain.as_ref());
        if let Some(searched) = searched.filter(|searched| searched.is_not_in_notes()) {
            note(&format!("not in {place}: the answer is from the conversation alone"));
            note_nearest(searched);
        }
        match args.answer.stats {
            StatsFormat::Text => {
                searched.iter().copied().for_each(note_searched);
                stats::print_brief(&done.report);
            }
            StatsFormat::Json => {
                let mut json = stats::json(&assisted.setup, &done.text, &done.passages, &done.report);
                json["searched"] = serde_json::json!(searched.map(searched_json));
                AnswerStream::stdout().line(&json.to_string())?;
            }
            StatsFormat::Off => {}
        }
        let is_first = self.last.is_none();
        if is_first && AnswerStream::stdout().is_colored() && args.answer.stats != StatsFormat::Off {
            print_legend(&done.report.stats[0]);
        }
        self.last = Some(done);
        Ok(())
    }

    fn print_last(&self) {
        match &self.last {
            Some(done) => {
                done.searched.iter().for_each(note_searched);
                stats::print(&done.report, &done.passages);
            }
            None => note("there is no answer yet"),
        }
    }

    /// Shows the system turn, or sets it: for the conversation so far, and for new ones.
    fn system(&mut self, text: &str) {
        let is_system = |turn: &Turn| matches!(turn.message.role, Role::System | Role::Developer);
        let turns = self.open().conversation.turns();
        if text.is_empty() {
            let own = turns.iter().find(|turn| is_system(turn)).map(|turn| turn.message.content.clone());
            let shown = own.or_else(|| self.assist.system.clone());
            note(&visible(
                &shown.map_or("there is no system turn".to_owned(), |text| format!("system: {text}")),
            ));
            return;
        }
        let system = Turn::new(Message::new(Role::System, text));
        let turns = std::iter::once(system).chain(turns.into_iter().skip_while(is_system));
        let open = self.open.as_mut().expect("without a model, the program ends");
        open.conversation = open.assisted.assistant.open_conversation(open.conversation.id(), turns);
        self.assist.system = Some(text.to_owned());
        note("the system turn is set; the next answer reads the conversation again");
    }

    /// Goes on with another model; with the earlier one, if that fails.
    fn change_model(&mut self, name: &str) -> Result<(), Failure> {
        let mut assist = self.assist.clone();
        assist.model.model = Some(path_of(name));
        let open = self.open.take().expect("without a model, the program ends");
        let so_far = (open.conversation.id(), open.conversation.turns());
        // One model at a time, and one owner of the store.
        drop(open);
        let opened = |assist: &AssistArgs| {
            Open::new(assist, self.index.as_deref(), self.given.as_ref(), Some(so_far.clone()))
        };
        match opened(&assist) {
            Ok(open) => {
                note(&visible(&format!("the model is {}", open.assisted.setup.checkpoint.name())));
                note(&sampling::describe(&open.assisted.sampling));
                (self.open, self.assist) = (Some(open), assist);
                Ok(())
            }
            Err(failure) => {
                self.open = opened(&self.assist).inspect_err(|_| print_error(&failure.line())).map(Some)?;
                Err(failure)
            }
        }
    }

    /// Names the notes that turns search.
    fn notes(&mut self, path: &str) -> Result<(), Failure> {
        (self.context, self.searched) = match path {
            "off" => (None, "none".to_owned()),
            path => {
                let path = [path_of(path)];
                (Some(Notes::read(&path, None)?), list(&path))
            }
        };
        self.index = None;
        note(&visible(&format!("notes: {}", self.searched)));
        Ok(())
    }

    fn save(&self, file: &Path) -> Result<(), Failure> {
        let conversation = &self.open().conversation;
        conversations::save(file, conversation.id(), &conversation.turns())?;
        note(&visible(&format!("saved in `{}`; /load brings it back", file.display())));
        Ok(())
    }

    fn load(&mut self, file: &Path) -> Result<(), Failure> {
        let (id, turns) = conversations::load(file)?;
        let n_turns = turns.len();
        let open = self.open.as_mut().expect("without a model, the program ends");
        open.conversation = open.assisted.assistant.open_conversation(id, turns);
        note(&format!("{n_turns} turns; the next answer reads them"));
        Ok(())
    }
}

fn help() {
    for (name, value, what) in COMMANDS {
        note(&format!("{:<19} {what}", format!("{name} {value}")));
    }
}

/// What is said about a command that is none.
fn unknown(name: &str) -> String {
    let near = |known: &&str| strsim::jaro(name, known);
    let nearest = NAMES.iter().copied().max_by(|a, b| near(a).total_cmp(&near(b)));
    // As clap suggests options.
    let tip = nearest.filter(|name| near(name) > 0.7).map(|name| format!(" (did you mean {name}?)"));
    format!("no such command: {name}{} · {HELP}", tip.unwrap_or_default())
}

/// A path as it is typed: `~/` is the user's home, as in a shell.
fn path_of(text: &str) -> PathBuf {
    text.strip_prefix("~/").and_then(home).unwrap_or_else(|| PathBuf::from(text))
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_command_is_suggested() {
        assert!(unknown("/sytem").contains("did you mean /system?"));
        assert!(unknown("/lod").contains("did you mean /load?"));
        assert!(!unknown("/zzzz").contains("did you mean"));
    }
}
