//! `refrain chat`: turns from standard input, answers that draft from the conversation and from earlier answers.

use std::io::{self, BufRead, IsTerminal, Write};

use refrain::{Engine, Role, Session};

use crate::answer::{Answer, answer};
use crate::args::{ChatArgs, StatsFormat};
use crate::context::PassageSource;
use crate::failure::{Exit, Failure, print_error};
use crate::history::History;
use crate::interrupt::Interrupt;
use crate::learned::LearnedFile;
use crate::prompt::{Composer, Request, prompt_room};
use crate::terminal::{AnswerStream, note, print_legend};
use crate::{load, profile, stats};

const HELP: &str = "/reset forgets the conversation · /stats shows the last answer's statistics · /exit or Ctrl-D ends · \
                    Ctrl-C ends an answer";

/// Whose history: conversations draft from conversations.
const NAMESPACE: &str = "chat";

/// Longest line that is taken as a turn, in bytes; a pipe without line ends must not fill the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn chat(args: &ChatArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let composer = Composer::new(&args.task)?;
    let draft_model = args.common.session.drafts.model()?;
    let checkpoint = load::checkpoint(args.common.model.model.as_deref())?;
    // What the target is to leave room for in a memory budget comes first.
    let draft = draft_model.map(load::draft_checkpoint).transpose()?;
    let predictor = args.common.session.drafts.pruning.as_ref().map(load::predictor).transpose()?;
    let options = args.common.engine_options(checkpoint.config(), draft.as_ref());
    let engine = load::engine(&checkpoint, options)?;
    if engine.tokenizer().chat_template().is_none() {
        let problem = format!("`{}` has no usable chat template", checkpoint.name());
        return Err(Failure::input(problem, "`refrain run --raw` continues plain text"));
    }
    if let Some(draft) = draft {
        load::draft_model(&engine, &draft, load::draft_model_options(&args.common.model.compute))?;
    }
    if let Some(predictor) = predictor {
        engine.set_predictor(predictor)?;
    }
    args.common.session.policy.report_device(&engine);
    let learned = LearnedFile::open(args.common.model.model.as_deref(), &engine);
    let mut chat = Chat {
        args,
        interrupt,
        composer,
        history: History::open(&args.common.history, &engine, NAMESPACE)?,
        engine: &engine,
        model: checkpoint.name(),
        shown: Vec::new(),
        last: None,
    };
    let mut session = chat.new_session()?;
    profile::note_mismatch(&session);
    let mut out = AnswerStream::stdout();
    let is_interactive = io::stdin().is_terminal();
    if is_interactive {
        note(HELP);
    }
    if out.is_colored() {
        print_legend(&session.source_names());
    }

    let mut exit = Exit::Done;
    while let Some(line) = read_line(is_interactive)? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => note(HELP),
            "/reset" => {
                session = chat.new_session()?;
                chat.shown.clear();
            }
            "/stats" => chat.print_last(),
            command if command.starts_with('/') => note(&format!("no such command: {command} · {HELP}")),
            text => match chat.turn(&mut session, text, &mut out) {
                Ok(()) => {}
                Err(failure) if failure.exit() == Exit::Done => return Err(failure),
                Err(failure) if failure.exit() == Exit::Interrupted => {
                    note("cancelled before the answer began")
                }
                Err(failure) => {
                    // The conversation goes on without this turn; a script learns of it from the exit code.
                    print_error(&failure.line());
                    note("the turn is taken back; /reset forgets the conversation");
                    exit = failure.exit();
                }
            },
        }
    }
    learned.keep(&engine);
    Ok(if is_interactive { Exit::Done } else { exit })
}

struct Chat<'a> {
    args: &'a ChatArgs,
    interrupt: &'a Interrupt,
    composer: Composer,
    engine: &'a Engine,
    history: History,
    model: &'a str,
    /// Passages that stand in the conversation.
    shown: Vec<PassageSource>,
    /// The newest answer, for `/stats`.
    last: Option<(Answer, Vec<PassageSource>)>,
}

impl Chat<'_> {
    /// A conversation without turns. The history of earlier ones drafts for it.
    fn new_session(&self) -> Result<Session, Failure> {
        let options = self.args.common.session.session_options(NAMESPACE);
        let mut session = self.history.session(self.engine, options.clone())?;
        self.args.common.session.drafts.strategy.add_rule(self.engine, &mut session, &options)?;
        if let Some(system) = &self.args.task.system {
            session.append_turn(Role::System, system.as_str())?;
        }
        Ok(session)
    }

    /// One turn and its answer. A turn that cannot be answered is taken back.
    fn turn(&mut self, session: &mut Session, text: &str, out: &mut AnswerStream) -> Result<(), Failure> {
        let options = self.args.common.sampling.generate_options();
        let request = Request { text: text.to_owned(), material: None };
        let room = prompt_room(session, options.max_tokens);
        let composed = self.composer.compose(self.engine, &request, &self.shown, room)?;
        let n_turns = session.turns().len();
        session.append_turn(Role::User, composed.message)?;
        let answer = match answer(session, options, out, self.interrupt) {
            Ok(answer) => answer,
            Err(failure) => {
                while session.turns().len() > n_turns {
                    session.pop_turn();
                }
                return Err(failure);
            }
        };
        self.history.keep(&answer.tokens);
        // Cancelled before it began: there is no answer turn, and the question must not stay without one.
        if session.turns().len() == n_turns + 1 {
            session.pop_turn();
        }
        match self.args.common.stats {
            StatsFormat::Text => stats::print_brief(&answer),
            StatsFormat::Json => {
                out.line(&stats::json(self.engine, self.model, &answer, &composed.sources))?
            }
            StatsFormat::Off => {}
        }
        self.shown.extend(composed.sources.iter().cloned());
        self.last = Some((answer, composed.sources));
        Ok(())
    }

    fn print_last(&self) {
        match &self.last {
            Some((answer, sources)) => stats::print(answer, sources),
            None => note("there is no answer yet"),
        }
    }
}

/// The next line; `None` at the end of the input.
fn read_line(is_interactive: bool) -> Result<Option<String>, Failure> {
    if is_interactive {
        let _ = write!(anstream::stderr(), "> ");
    }
    let mut bytes = Vec::new();
    let n_bytes = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Failure::input(format!("cannot read the next turn: {error}"), "check the input"))?;
    if n_bytes == 0 {
        return Ok(None);
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
