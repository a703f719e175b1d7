//! `refrain chat`: the assistant's conversation, with its turns from standard input.

use std::io::{self, BufRead, IsTerminal};

use refrain_assistant::{AssistantOptions, ChatAnswer, ChatRequest, Conversation, Prompts};
use refrain_grammar::Grammar;

use crate::args::{ChatArgs, StatsFormat};
use crate::assist::{Assisted, Shows};
use crate::context::Notes;
use crate::failure::{Exit, Failure, print_error};
use crate::grammar::Given;
use crate::index::open_named;
use crate::interrupt::Interrupt;
use crate::load::note_demonstration;
use crate::terminal::{AnswerStream, line_entered, note, print_legend, write_error};
use crate::{sampling, stats};

const HELP: &str = "/reset starts a new conversation · /stats shows the last answer's statistics · /exit or Ctrl-D ends the program · \
                    Ctrl-C ends an answer";

/// Maximum bytes of a turn. The bound keeps a pipe without line ends from filling the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn chat(args: &ChatArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let context = match args.context.is_empty() {
        true => None,
        false => Some(Notes::read(&args.context)?),
    };
    let index = args.notes.as_ref().map(|named| open_named(named.as_deref())).transpose()?;
    let index = index.map(|(folder, _)| folder);
    let grammar = Given::read(&args.answer.grammar)?;
    let assist = &args.answer.assist;
    let is_embedded = assist.model.model.is_none();
    let (options, prompts) = (AssistantOptions::default(), Prompts::default());
    let assisted = Assisted::open(assist, index.as_deref(), options, prompts, |engine| {
        sampling::for_chat(engine, is_embedded)
    })?;
    if !assisted.setup.has_chat_template()? {
        let problem = format!("`{}` has no chat template", assisted.setup.checkpoint.name());
        return Err(Failure::input(problem, "`refrain run --raw` continues plain text"));
    }
    let is_interactive = io::stdin().is_terminal();
    if is_interactive {
        note(&sampling::describe(&assisted.sampling));
        note(HELP);
    }
    note_demonstration(&assist.model);
    let mut chat = Chat {
        args,
        interrupt,
        context,
        grammar: grammar.map(|grammar| grammar.compile(assisted.engine())).transpose()?,
        conversation: assisted.assistant.conversation(),
        assisted: &assisted,
        last: None,
    };
    let mut exit = Exit::Done;
    while let Some(line) = read_line(is_interactive)? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => note(HELP),
            "/reset" => chat.conversation = assisted.assistant.conversation(),
            "/stats" => chat.print_last(),
            command if command.starts_with('/') => note(&format!("no such command: {command} · {HELP}")),
            text => match chat.turn(text) {
                Ok(()) => {}
                Err(failure) if failure.exit() == Exit::Done => return Err(failure),
                Err(failure) if failure.exit() == Exit::Interrupted => note("the turn was removed"),
                Err(failure) => {
                    // The conversation continues without this turn. The exit code reports the failure to scripts.
                    print_error(&failure.line());
                    note("the turn was removed; /reset starts a new conversation");
                    exit = failure.exit();
                }
            },
        }
    }
    if is_interactive && assisted.assistant.has_store() && chat.last.is_some() {
        let id = chat.conversation.id().0;
        note(&format!("`refrain forget --conversation {id}` deletes what is kept of the conversation"));
    }
    Ok(if is_interactive { Exit::Done } else { exit })
}

struct Chat<'a> {
    args: &'a ChatArgs,
    interrupt: &'a Interrupt,
    /// Notes that were read for the conversation.
    context: Option<Notes>,
    /// The grammar of every answer.
    grammar: Option<Grammar>,
    assisted: &'a Assisted<'a>,
    conversation: Conversation,
    /// The newest answer, for `/stats`.
    last: Option<ChatAnswer>,
}

impl Chat<'_> {
    /// One turn and its answer. A turn that fails is removed from the conversation.
    fn turn(&mut self, text: &str) -> Result<(), Failure> {
        let Self { args, assisted, .. } = *self;
        let n_passages = if args.notes.is_some() { args.passages } else { 0 };
        let found = self.context.as_ref().map(|notes| notes.search(text, args.passages)).transpose()?;
        let mut request = ChatRequest::new(text);
        request.n_passages = n_passages;
        request.passages = found;
        let options = args.answer.job(assisted, self.grammar.as_ref());
        let job = self.conversation.say(request, options)?;
        let done = assisted.run(job, self.interrupt, Shows::Text)?;
        assisted.note_end(&done.report);
        if !done.dropped.is_empty() {
            let n_dropped = done.dropped.len();
            note(&format!("left out: the oldest {n_dropped} turns do not fit the context any more (--ctx)"));
        }
        match args.answer.stats {
            StatsFormat::Text => stats::print_brief(&done.report),
            StatsFormat::Json => {
                let json = stats::json(&assisted.setup, &done.text, &done.passages, &done.report);
                AnswerStream::stdout().line(&json)?;
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
            Some(done) => stats::print(&done.report, &done.passages),
            None => note("there is no answer yet"),
        }
    }
}

/// The next line; `None` at the end of the input.
fn read_line(is_interactive: bool) -> Result<Option<String>, Failure> {
    if is_interactive {
        write_error("> ");
    }
    let mut bytes = Vec::new();
    let n_bytes = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Failure::input(format!("cannot read the next turn: {error}"), "check the input"))?;
    if n_bytes == 0 {
        return Ok(None);
    }
    if is_interactive && bytes.ends_with(b"\n") {
        line_entered();
    }
    if n_bytes as u64 == LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
        return Err(Failure::input(
            format!("a turn is longer than {LINE_BYTES_MAX} bytes"),
            "send shorter lines",
        ));
    }
    match String::from_utf8(bytes) {
        Ok(line) => Ok(Some(line)),
        Err(_) => Err(Failure::input("a turn is not UTF-8 text", "convert the input first")),
    }
}
