//! `refrain run`: one request, one answer.

use refrain::{Engine, Role, Session, SessionError, SpecialTokens};

use crate::answer::answer;
use crate::args::{RunArgs, StatsFormat};
use crate::failure::{Exit, Failure};
use crate::history::History;
use crate::interrupt::Interrupt;
use crate::learned::LearnedFile;
use crate::prompt::{Composer, Request, prompt_room, task};
use crate::terminal::{AnswerStream, note, print_legend};
use crate::{load, profile, stats};

pub(crate) fn run(args: &RunArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    // What is cheap to refuse is refused before a model is loaded.
    let request = Request::read(args, task(&args.task))?;
    let composer = Composer::new(&args.task)?;
    let draft_model = args.common.session.drafts.model()?;

    let checkpoint = load::checkpoint(args.common.model.model.as_deref())?;
    // What the target is to leave room for in a memory budget comes first.
    let draft = draft_model.map(load::draft_checkpoint).transpose()?;
    let predictor = args.common.session.drafts.pruning.as_ref().map(load::predictor).transpose()?;
    let options = args.common.engine_options(checkpoint.config(), draft.as_ref());
    let engine = load::engine(&checkpoint, options)?;
    if let Some(draft) = draft {
        load::draft_model(&engine, &draft, load::draft_model_options(&args.common.model.compute))?;
    }
    if let Some(predictor) = predictor {
        engine.set_predictor(predictor)?;
    }
    args.common.session.policy.report_device(&engine);
    let learned = LearnedFile::open(args.common.model.model.as_deref(), &engine);
    let namespace = task(&args.task).map_or("run", |task| task.name());
    let history = History::open(&args.common.history, &engine, namespace)?;
    let session_options = args.common.session.session_options(namespace);
    let mut session = history.session(&engine, session_options.clone())?;
    args.common.session.drafts.strategy.add_rule(&engine, &mut session, &session_options)?;
    profile::note_mismatch(&session);
    let options = args.common.sampling.generate_options();

    let composed = composer.compose(&engine, &request, &[], prompt_room(&session, options.max_tokens))?;
    if args.raw {
        session.append_text(&composed.message, SpecialTokens::AsText)?;
    } else {
        append_message(&engine, &mut session, args.task.system.as_deref(), &composed.message)?;
    }

    let mut out = AnswerStream::stdout();
    if out.is_colored() {
        print_legend(&session.source_names());
    }
    let answer = answer(&mut session, options, &mut out, interrupt)?;
    history.keep(&answer.tokens);
    learned.keep(&engine);
    match args.common.stats {
        StatsFormat::Text => stats::print(&answer, &composed.sources),
        StatsFormat::Json => {
            out.line(&stats::json(&engine, checkpoint.name(), &answer, &composed.sources))?
        }
        StatsFormat::Off => {}
    }
    Ok(answer.exit())
}

/// Puts the message into the session by the model's chat template, or as plain text where it has none.
fn append_message(
    engine: &Engine,
    session: &mut Session,
    system: Option<&str>,
    message: &str,
) -> Result<(), SessionError> {
    if engine.tokenizer().chat_template().is_none() {
        note("the model has no chat template: it continues the prompt as plain text");
        let text = system.map_or_else(|| message.to_owned(), |system| format!("{system}\n\n{message}"));
        return session.append_text(&text, SpecialTokens::AsText);
    }
    if let Some(system) = system {
        session.append_turn(Role::System, system)?;
    }
    session.append_turn(Role::User, message)
}
