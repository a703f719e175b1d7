//! `refrain ask`: a question, answered from the index, from files or from a piped text.

use refrain_assistant::{
    AnswerRequest, AssistantOptions, JobOptions, Passage, Prompts, Searched, TaskError, Template,
};
use serde_json::{Value, json};

use crate::args::AskArgs;
use crate::assisted::{Assisted, Served, Shows, store_of};
use crate::context::{Covered, Notes};
use crate::failure::{Exit, Failure};
use crate::handed::{Places, by_server};
use crate::index::{absolute, folder_or_default, note_age, of_context, open_named};
use crate::input::{STANDARD_INPUT, piped_text};
use crate::interrupt::Interrupt;
use crate::models::located;
use crate::report::{
    about_passages, note_nearest, note_provenance, note_searched, passage_json, searched_json,
};
use crate::terminal::{AnswerStream, note};

pub(crate) fn ask(args: &AskArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let piped = piped_text()?;
    // Files that the index may not have are read here.
    if let Some(store) = store_of(&args.task.assist).filter(|_| args.context.is_empty()) {
        let model = args.task.assist.model.model.as_deref();
        let notes = || folder_or_default(args.notes.as_deref()).ok();
        let places = Places {
            notes: if piped.is_none() { notes() } else { None },
            model: model
                .map(|model| located(model).map_or_else(|_| model.to_owned(), |path| path.into_owned())),
        };
        let cancelled = "ended by Ctrl-C; nothing of it is kept";
        if let Some(exit) = by_server(&store, &places, piped.as_deref(), interrupt, cancelled)? {
            return Ok(exit);
        }
    }
    ask_with(args, piped, interrupt, None)
}

/// As [`ask`], with a text that was piped, and in a server with its model and store.
pub(crate) fn ask_with(
    args: &AskArgs,
    piped: Option<String>,
    interrupt: &Interrupt,
    served: Option<&Served>,
) -> Result<Exit, Failure> {
    if piped.is_some() && !args.filter.is_empty() {
        let problem =
            "--within, --kind, --dates and --tag are about the index, and the answer is from standard input";
        return Err(Failure::usage(problem, "omit them, or give `< /dev/null`"));
    }
    // A default of the user may name the index.
    if piped.is_some() && args.notes.is_some() {
        note("the answer is from standard input: the index is not searched");
    }
    let of_index = match args.context.is_empty() || piped.is_some() {
        true => None,
        false => of_context(&args.context, interrupt)?,
    };
    let given = match (args.context.is_empty() && piped.is_none()) || of_index.is_some() {
        true => None,
        false if !args.filter.is_empty() => {
            let problem = "--kind, --dates and --tag are about the index, which does not have these files";
            return Err(Failure::usage(problem, "omit them, or add the files with `refrain index add`"));
        }
        false => Some(Notes::read(&args.context, piped.as_deref())?),
    };
    // A log or a letter has its meaning as a whole.
    let whole = piped.filter(|_| args.context.is_empty());
    let mut passages = None;
    if let (Some(given), None) = (&given, &whole) {
        match given.for_answer(&args.question, args.passages)? {
            Covered::By(found) => passages = Some(found),
            Covered::Not(searched) => return not_found(&searched, "these files", args.task.json),
        }
    }
    let notes = match (&given, of_index) {
        (Some(_), _) => None,
        (None, Some(folder)) => Some(folder),
        (None, None) => {
            let (folder, index) = open_named(args.notes.as_deref())?;
            note_age(&index);
            Some(folder)
        }
    };
    let mut prompts = Prompts::default();
    // The demonstration has learnt another prompt.
    if !args.no_citations && args.task.assist.model.model.is_some() {
        prompts.answer = Template::cited_answer();
    }
    let mut options = AssistantOptions::default();
    options.n_passages = args.passages;
    let assisted = match served {
        None => Assisted::task(&args.task, notes.as_deref(), options, prompts)?,
        Some(served) => Assisted::served(&args.task, served, options, prompts)?,
    };
    if let (Some(given), Some(text)) = (given, whole) {
        passages = if assisted.has_room_for(&[&text, &args.question]) {
            Some(vec![Passage::new(STANDARD_INPUT, text)])
        } else {
            let n = args.passages;
            note(&format!(
                "standard input does not fit the context: the prompt shows the {n} passages that match best (--passages)"
            ));
            match given.for_answer(&args.question, n)? {
                Covered::By(found) => Some(found),
                Covered::Not(searched) => return not_found(&searched, "this text", args.task.json),
            }
        };
    }
    let mut request = AnswerRequest::new(args.question.as_str());
    request.filter = args.filter.filter();
    // Only one of them is given.
    request.filter.folders.extend(args.context.iter().map(|path| absolute(path)));
    request.passages = passages;
    let mut options = JobOptions::default();
    if let Some(served) = served {
        options.cancel = served.cancel.clone();
    }
    let job = match assisted.assistant.answer(request, options) {
        Err(TaskError::NotInNotes { searched }) => {
            let place = if args.context.is_empty() { "your notes" } else { "these files" };
            return not_found(&searched, place, args.task.json);
        }
        job => job?,
    };
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.finish(&done.report, || {
        let mut json =
            about_passages(&done.text, &done.reasoning, &done.report, &done.passages, &done.provenance);
        json["searched"] = json!(done.searched.as_ref().map(searched_json));
        json
    })?;
    if !args.task.json {
        if let Some(searched) = &done.searched {
            note_searched(searched);
        }
        note_provenance(&done.text, &done.passages, &done.provenance);
    }
    Ok(Exit::Done)
}

/// The answer of notes, files or a text that have none. Scripts see it by the exit code.
fn not_found(searched: &Searched, place: &str, is_json: bool) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    if is_json {
        let nearest: Vec<Value> = searched.nearest.iter().map(passage_json).collect();
        let json = json!({ "text": null, "searched": searched_json(searched), "nearest": nearest });
        out.line(&json.to_string())?;
        return Ok(Exit::Failed);
    }
    out.line(&format!("Not in {place}."))?;
    note_searched(searched);
    note_nearest(searched);
    note(
        "other words may find it; `refrain ask QUESTION < FILE` answers from a whole text, whatever it covers",
    );
    Ok(Exit::Failed)
}
