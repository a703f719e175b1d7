//! `refrain chat`: a conversation. Turns are read from standard input; answers draft from the conversation
//! and from earlier answers.

use std::io::{self, BufRead, IsTerminal};

use refrain::{Engine, GenerateOptions, Role, Sampling, Session, SessionOptions, TokenId};
use refrain_grammar::Grammar;
use refrain_index::Label;

use crate::answer::{Answer, answer};
use crate::args::{ChatArgs, StatsFormat};
use crate::context::PassageSource;
use crate::failure::{Exit, Failure, print_error};
use crate::grammar::{Given, constrained};
use crate::history::History;
use crate::interrupt::Interrupt;
use crate::load::note_demonstration;
use crate::prefixes::{CHAT, Prefixes};
use crate::prompt::{Composed, Composer, Request, prompt_room};
use crate::setup::{self, Setup};
use crate::terminal::{AnswerStream, line_entered, note, print_legend, write_error};
use crate::{profile, sampling, stats};

const HELP: &str = "/reset starts a new conversation · /stats shows the last answer's statistics · /exit or Ctrl-D ends the program · \
                    Ctrl-C ends an answer";

/// The namespace of the history: conversations draft from conversations.
const NAMESPACE: &str = CHAT;

/// Maximum bytes of a turn. The bound keeps a pipe without line ends from filling the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn chat(args: &ChatArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let composer = Composer::new(&args.task)?;
    let grammar = Given::read(&args.common.grammar)?;
    let setup = setup::open(&args.common.model, &args.common.session, 1)?;
    if !setup.has_chat_template()? {
        let problem = format!("`{}` has no chat template", setup.checkpoint.name());
        return Err(Failure::input(problem, "`refrain run --raw` continues plain text"));
    }
    let Setup { checkpoint, engine, learned, .. } = &setup;
    let mut chat = Chat {
        args,
        interrupt,
        composer,
        history: History::open(&args.common.history, engine, NAMESPACE)?,
        prefixes: Prefixes::open(args.common.prefixes.as_ref(), NAMESPACE)?,
        engine,
        session_options: setup.session_options(&args.common.session, NAMESPACE),
        model: checkpoint.name(),
        sampling: sampling::for_chat(engine, args.common.model.model.is_none()),
        grammar: grammar.map(|grammar| grammar.compile(engine)).transpose()?,
        shown: Vec::new(),
        labels: Vec::new(),
        labelled: Vec::new(),
        last: None,
    };
    let mut session = chat.new_session()?;
    profile::note_mismatch(engine, chat.session_options.kv_type);
    let mut out = AnswerStream::stdout();
    let is_interactive = io::stdin().is_terminal();
    if is_interactive {
        note(&sampling::describe(&chat.options().sampling));
        note(HELP);
    }

    note_demonstration(&args.common.model);
    let mut exit = Exit::Done;
    while let Some(line) = read_line(is_interactive)? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => note(HELP),
            "/reset" => {
                session = chat.new_session()?;
                chat.shown.clear();
                chat.labels.clear();
                chat.labelled.clear();
            }
            "/stats" => chat.print_last(),
            command if command.starts_with('/') => note(&format!("no such command: {command} · {HELP}")),
            text => match chat.turn(&mut session, text, &mut out) {
                Ok(()) => {}
                Err(failure) if failure.exit() == Exit::Done => return Err(failure),
                Err(failure) if failure.exit() == Exit::Interrupted => {
                    note("cancelled during the prefill: the turn was removed")
                }
                Err(failure) => {
                    // The conversation continues without this turn. The exit code reports the failure to scripts.
                    print_error(&failure.line());
                    note("the turn was removed; /reset starts a new conversation");
                    exit = failure.exit();
                }
            },
        }
    }
    learned.keep(engine);
    Ok(if is_interactive { Exit::Done } else { exit })
}

struct Chat<'a> {
    args: &'a ChatArgs,
    interrupt: &'a Interrupt,
    composer: Composer,
    engine: &'a Engine,
    session_options: SessionOptions,
    history: History,
    prefixes: Prefixes,
    model: &'a str,
    /// The default options of the conversation.
    sampling: Sampling,
    /// The grammar of every answer.
    grammar: Option<Grammar>,
    /// Passages that the conversation already contains.
    shown: Vec<PassageSource>,
    /// Where the conversation shows files.
    labels: Vec<Label>,
    /// The tokens in which they do: of the last turn's prompt and answer.
    labelled: Vec<TokenId>,
    /// The newest answer, for `/stats`.
    last: Option<(Answer, Composed)>,
}

impl Chat<'_> {
    /// A conversation without turns.
    fn new_session(&self) -> Result<Session, Failure> {
        let mut session = self.history.session(self.engine, self.session_options.clone())?;
        if let Some(system) = &self.args.task.system {
            session.append_turn(Role::System, system.as_str())?;
        }
        Ok(session)
    }

    fn options(&self) -> GenerateOptions {
        let options = self.args.common.generate_options(self.sampling.clone());
        constrained(options, self.grammar.as_ref(), &self.args.common.sampling)
    }

    /// One turn and its answer. A turn that fails is removed from the conversation.
    fn turn(&mut self, session: &mut Session, text: &str, out: &mut AnswerStream) -> Result<(), Failure> {
        let request = Request { text: text.to_owned(), material: None };
        let (max_tokens, system) = (self.args.common.sampling.max_tokens, self.args.task.system.as_deref());
        let room = prompt_room(self.engine, session, max_tokens, system)?;
        let composed = self.composer.compose(self.engine, &request, &self.shown, room)?;
        let n_turns = session.turns().len();
        session.append_turn(Role::User, composed.message.as_str())?;
        let restored = self.prefixes.restore(session);
        let answer = match restored.and_then(|()| answer(session, self.options(), out, self.interrupt)) {
            Ok(answer) => answer,
            Err(failure) => {
                while session.turns().len() > n_turns {
                    session.pop_turn();
                }
                return Err(failure);
            }
        };
        self.history.keep(&answer.tokens);
        // Some templates move text when another turn follows. What was behind the first change may be anywhere behind it now.
        let is_same = |(a, b): &(&TokenId, &TokenId)| a == b;
        let n_same = self.labelled.iter().zip(session.tokens()).take_while(is_same).count();
        self.labels.iter_mut().for_each(|label| label.tokens.start = label.tokens.start.min(n_same));
        self.labelled = session.tokens().to_vec();
        let turns = &session.turns()[..n_turns + 1];
        self.labels.extend(self.prefixes.labels(self.engine, session, turns, &composed));
        self.prefixes.keep(session, &self.labels);
        // Cancelled before the first token: the session has no answer turn, so the question is removed too.
        if session.turns().len() == n_turns + 1 {
            session.pop_turn();
        }
        match self.args.common.stats {
            StatsFormat::Text => stats::print_brief(&answer),
            StatsFormat::Json => out.line(&stats::json(self.engine, self.model, &answer, &composed))?,
            StatsFormat::Off => {}
        }
        let is_first = self.last.is_none();
        if is_first && out.is_colored() && self.args.common.stats != StatsFormat::Off {
            print_legend(&answer.summary.stats);
        }
        self.shown.extend(composed.sources.iter().cloned());
        self.last = Some((answer, composed));
        Ok(())
    }

    fn print_last(&self) {
        match &self.last {
            Some((answer, composed)) => stats::print(answer, &composed.sources),
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
