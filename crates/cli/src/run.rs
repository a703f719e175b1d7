//! `refrain run`: one request, one answer.

use refrain::{Role, Session, SessionError, SpecialTokens};

use crate::answer::answer;
use crate::args::{RunArgs, StatsFormat};
use crate::failure::{Exit, Failure};
use crate::grammar::{Given, constrained};
use crate::history::History;
use crate::interrupt::Interrupt;
use crate::load::note_demonstration;
use crate::prefixes::{Prefixes, RUN};
use crate::prompt::{Composer, Request, prompt_room, task};
use crate::setup::{self, Setup};
use crate::terminal::{AnswerStream, note, print_legend};
use crate::{profile, sampling, stats};

pub(crate) fn run(args: &RunArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    // Requests and notes are checked before a model is loaded.
    let task = task(&args.task);
    let request = Request::read(args, task)?;
    let composer = Composer::new(&args.task)?;
    let grammar = Given::read(&args.common.grammar)?;

    let setup = setup::open(&args.common.model, &args.common.session, 1)?;
    let has_template = !args.raw && setup.has_chat_template()?;
    let Setup { checkpoint, engine, learned, .. } = &setup;
    let namespace = task.map_or(RUN, |task| task.name());
    let history = History::open(&args.common.history, engine, namespace)?;
    let prefixes = Prefixes::open(args.common.prefixes.as_ref(), namespace)?;
    let options = setup.session_options(&args.common.session, namespace);
    profile::note_mismatch(engine, options.kv_type);
    let mut session = history.session(engine, options)?;
    let options = args.common.generate_options(sampling::for_run(engine, task));
    let grammar = grammar.map(|grammar| grammar.compile(engine)).transpose()?;
    let options = constrained(options, grammar.as_ref(), &args.common.sampling);

    let system = args.task.system.as_deref();
    let room = prompt_room(engine, &session, args.common.sampling.max_tokens, system)?;
    let composed = composer.compose(engine, &request, &[], room)?;
    if has_template {
        append_turns(&mut session, system, &composed.message)?;
    } else {
        append_plain(&mut session, args.raw, system, &composed.message)?;
    }

    let mut out = AnswerStream::stdout();
    prefixes.restore(&mut session)?;
    let answer = answer(&mut session, options, &mut out, interrupt)?;
    // A request that is refused has no answer to explain.
    note_demonstration(&args.common.model);
    history.keep(&answer.tokens);
    let turns = session.turns();
    let n_turns = turns.iter().rposition(|turn| turn.role == Role::User).map_or(0, |at| at + 1);
    let labels = prefixes.labels(engine, &session, &turns[..n_turns], &composed);
    prefixes.keep(&session, &labels);
    learned.keep(engine);
    match args.common.stats {
        StatsFormat::Text => stats::print(&answer, &composed.sources),
        StatsFormat::Json => out.line(&stats::json(engine, checkpoint.name(), &answer, &composed))?,
        StatsFormat::Off => {}
    }
    if out.is_colored() && args.common.stats != StatsFormat::Off {
        print_legend(&answer.summary.stats);
    }
    Ok(answer.exit())
}

/// Appends the message as a turn of the model's chat template.
fn append_turns(session: &mut Session, system: Option<&str>, message: &str) -> Result<(), SessionError> {
    if let Some(system) = system {
        session.append_turn(Role::System, system)?;
    }
    session.append_turn(Role::User, message)
}

/// Appends the message as plain text that the model continues, because the user requested it or the model has
/// no chat template.
fn append_plain(
    session: &mut Session,
    is_asked_for: bool,
    system: Option<&str>,
    message: &str,
) -> Result<(), SessionError> {
    if !is_asked_for {
        note("the model has no chat template: it continues the prompt as plain text");
    }
    let text = system.map_or_else(|| message.to_owned(), |system| format!("{system}\n\n{message}"));
    session.append_text(&text, SpecialTokens::AsText)
}
