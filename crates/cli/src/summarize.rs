//! `refrain summarize`: texts, and what the notes of the index say, in fewer words.

use std::path::{Path, PathBuf};

use refrain_assistant::{AssistantOptions, JobOptions, Prompts, SummarizeRequest, TaskError};
use serde_json::json;

use crate::args::{SummarizeArgs, is_none};
use crate::assisted::{Assisted, Progressed, Shows, show_change};
use crate::failure::{Exit, Failure};
use crate::index::{absolute, open_named};
use crate::input::read_texts;
use crate::interrupt::Interrupt;
use crate::report::{about, passage_json};
use crate::terminal::{AnswerStream, note};

pub(crate) fn summarize(args: &SummarizeArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    if args.changes && args.task.assist.store.as_deref().is_some_and(is_none) {
        let problem = "--changes compares with the last summary, and --store none keeps none";
        return Err(Failure::usage(problem, "omit one of them"));
    }
    let of_index = args.notes.is_some() || args.query.is_some();
    let named = args.notes.iter().flatten().next();
    let notes =
        of_index.then(|| open_named(named.map(PathBuf::as_path))).transpose()?.map(|(folder, _)| folder);
    let mut request = match (&args.query, of_index) {
        (Some(query), _) => SummarizeRequest::query(query.as_str()),
        (None, true) if args.paths.is_empty() => {
            return Err(Failure::usage("nothing to summarize", "name a PATH of the notes, or give --query"));
        }
        (None, true) => SummarizeRequest::notes(args.paths.iter().map(|path| absolute(path))),
        (None, false) => SummarizeRequest::texts(read_texts(&args.paths)?),
    };
    request.request = args.request.clone().unwrap_or_default();
    request.filter = args.filter.filter();
    if args.query.is_none() && !args.filter.is_empty() {
        let problem = "--within, --kind, --dates and --tag are about the search of --query";
        return Err(Failure::usage(problem, "add --query, or omit them"));
    }
    let options = AssistantOptions::default();
    let assisted = Assisted::task(&args.task, notes.as_deref(), options, Prompts::default())?;
    let job = assisted.assistant.summarize(request, JobOptions::default())?;
    // The job knows the earlier summary, which is compared with.
    let shows = if args.changes { Shows::Nothing } else { Shows::Text };
    let is_piped = !of_index && args.paths.iter().all(|path| path == Path::new("-"));
    let mut progress = Progressed::default();
    let Some(done) = assisted.run_or_stop(job, interrupt, shows, &mut progress)? else {
        note(&match progress.n_parts {
            n if n > 0 && assisted.assistant.has_store() && !is_piped => {
                format!(
                    "ended by Ctrl-C; {n} finished parts are kept, and the same command goes on from them"
                )
            }
            _ => "ended by Ctrl-C; nothing of it is kept".to_owned(),
        });
        return Err(TaskError::Cancelled.into());
    };
    match &done.previous {
        Some(previous) if args.changes => {
            let mut out = AnswerStream::stdout();
            done.changes.iter().try_for_each(|change| show_change(&mut out, change, previous, &done.text))?;
            out.end_line()?;
        }
        None if args.changes => {
            AnswerStream::stdout().line(&done.text)?;
            note(match is_piped {
                true => "text from standard input has no name, so it is compared with no earlier summary",
                false => "there is no earlier summary to compare with",
            });
        }
        _ => {}
    }
    assisted.finish(&done.report, || {
        let mut json = about(&done.text, &done.reasoning, &done.report);
        json["passages"] = done.passages.iter().map(passage_json).collect();
        json["parts"] = json!(done.parts);
        json["n_kept_parts"] = json!(done.n_kept_parts);
        json["previous"] = json!(done.previous);
        json["changes"] = json!(done.changes);
        json
    })?;
    Ok(Exit::Done)
}
