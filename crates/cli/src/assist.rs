//! The assistant's commands: ask, summarize, reply, edit, ui; and the assistant of `run` and `chat`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anstyle::{AnsiColor, Effects, Style};
use refrain::{Engine, FinishReason, Origin, Sampling, SessionOptions, SpecialTokens, Stats, TextKind};
use refrain_assistant::edit::{DiffEvent, EditDoubt};
use refrain_assistant::provenance::{CheckedSentence, CitationVerdict, Support};
use refrain_assistant::{
    AnswerRequest, Assistant, AssistantOptions, BuildError, Builder, Command, EditCopies, EditPart,
    EditRequest, Estimate, Job, JobEvent, JobOptions, LeftOut, LeftOutReason, Passage, Prompts, Provenance,
    ReplyRequest, Report, Screen, Searched, Source, StoreError, SummarizeRequest, TaskError, Template,
    TextEvent, UiActions, UiTask,
};
use refrain_files::replace::replace_contents;
use refrain_grammar::Grammar;
use refrain_index::SourceKind;
use serde_json::{Value, json};

use crate::args::{
    AskArgs, AssistArgs, EditArgs, ReplyArgs, SummarizeArgs, TaskArgs, UiArgs, WordsArgs, is_none,
};
use crate::context;
use crate::embedder;
use crate::failure::{Exit, Failure};
use crate::grammar::constrained;
use crate::handed::{Served, by_server};
use crate::index::{self, note_age, of_context, open_named};
use crate::input::{STANDARD_INPUT, piped_text, read_bytes, read_input};
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::load::{note_demonstration, note_kernels};
use crate::progress::Progress;
use crate::setup::{self, Setup};
use crate::store::{budget, note_evicted};
use crate::terminal::{AnswerStream, ask_user, note, visible, write_error};
use crate::{profile, sampling, span};
use refrain_program::args::ModelArgs;
use refrain_program::place::data_folder;

pub(crate) fn ask(args: &AskArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let piped = piped_text()?;
    // Files that the index may not have are read here.
    if let Some(store) = store_of(&args.task.assist).filter(|_| args.context.is_empty())
        && let Some(exit) =
            by_server(&store, piped.as_deref(), interrupt, "ended by Ctrl-C; nothing of it is kept")?
    {
        return Ok(exit);
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
        false => Some(context::Notes::read(&args.context, piped.as_deref())?),
    };
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
    let given = match (given, piped) {
        // A log or a letter has its meaning as a whole.
        (Some(_), Some(piped))
            if args.context.is_empty() && assisted.has_room_for(&[&piped, &args.question]) =>
        {
            Some(vec![Passage::new(STANDARD_INPUT, piped)])
        }
        (Some(notes), piped) => {
            if piped.is_some() && args.context.is_empty() {
                let n = args.passages;
                note(&format!(
                    "standard input does not fit the context: the prompt shows the {n} passages that match best (--passages)"
                ));
            }
            Some(notes.search(&args.question, args.passages)?)
        }
        (None, _) => None,
    };
    let mut request = AnswerRequest::new(args.question.as_str());
    request.filter = args.filter.filter();
    // Only one of them is given.
    request.filter.folders.extend(args.context.iter().map(|path| absolute(path)));
    request.passages = given;
    let job = match assisted.assistant.answer(request, JobOptions::default()) {
        Err(TaskError::NotInNotes { searched }) => return not_in_notes(&searched, args.task.json),
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

/// The answer of notes that have none. Scripts see it by the exit code.
fn not_in_notes(searched: &Searched, is_json: bool) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    if is_json {
        let nearest: Vec<Value> = searched.nearest.iter().map(passage_json).collect();
        let json = json!({ "text": null, "searched": searched_json(searched), "nearest": nearest });
        out.line(&json.to_string())?;
        return Ok(Exit::Failed);
    }
    out.line("Not in your notes.")?;
    note_searched(searched);
    note_nearest(searched);
    note("other words may find it; --context FILE answers from a file, whatever it covers");
    Ok(Exit::Failed)
}

/// A notice of the words that were searched for.
pub(crate) fn note_searched(searched: &Searched) {
    note(&visible(&format!("searched for: {searched}")));
}

/// A notice for each of the nearest passages.
pub(crate) fn note_nearest(searched: &Searched) {
    for passage in &searched.nearest {
        note(&visible(&format!("nearest: {}", place_of(passage))));
    }
}

pub(crate) fn searched_json(searched: &Searched) -> Value {
    let words: Vec<Value> =
        searched.words.iter().map(|word| json!({ "text": word.text, "weight": word.weight })).collect();
    json!({ "words": words, "coverage": searched.coverage, "is_not_in_notes": searched.is_not_in_notes() })
}

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

pub(crate) fn reply(args: &ReplyArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let message = read_texts(args.message.as_slice())?;
    let is_mail = args.message.as_deref().and_then(SourceKind::of) == Some(SourceKind::Mail);
    let request =
        if is_mail { ReplyRequest::of_thread(message) } else { joined(message).map(ReplyRequest::of) };
    let Some(mut request) = request else {
        return Err(Failure::input("there is no message", "name another file"));
    };
    for path in &args.earlier {
        request.earlier.extend(read_text(path)?.into_iter().rev());
    }
    let notes =
        args.notes.as_ref().map(|named| open_named(named.as_deref())).transpose()?.map(|(folder, _)| folder);
    request.request = args.request.clone().unwrap_or_default();
    request.n_passages = if notes.is_some() { args.passages } else { 0 };
    request.filter = args.filter.filter();
    if notes.is_none() && !args.filter.is_empty() {
        let problem = "--within, --kind, --dates and --tag are about the index of notes";
        return Err(Failure::usage(problem, "add --notes, or omit them"));
    }
    let options = AssistantOptions::default();
    let assisted = Assisted::task(&args.task, notes.as_deref(), options, Prompts::default())?;
    let job = assisted.assistant.reply(request, JobOptions::default())?;
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.finish(&done.report, || {
        about_passages(&done.text, &done.reasoning, &done.report, &done.passages, &done.provenance)
    })?;
    Ok(Exit::Done)
}

pub(crate) fn edit(args: &EditArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    if args.undo {
        return undo(args);
    }
    let (file, instruction) = what_to_edit(args)?;
    if args.in_place {
        check_in_place(args)?;
    }
    let text = read_input(file)?;
    let options = AssistantOptions::default();
    let assisted = Assisted::task(&args.task, None, options, Prompts::default())?;
    let mut request = EditRequest::new(text.as_str(), instruction);
    if let Some(within) = &args.within {
        request.part = part_of(within);
    }
    let request = if file == Path::new("-") { request } else { request.of_note(file)? };
    let job = assisted.assistant.edit(request, JobOptions::default())?;
    let shows = match (args.changes, args.in_place) {
        (true, _) => Shows::Changes(&text),
        (false, true) if args.yes => Shows::Nothing,
        (false, true) => Shows::Changes(&text),
        (false, false) => Shows::Text,
    };
    let mut progress = Progressed::default();
    let Some(done) = assisted.run_or_stop(job, interrupt, shows, &mut progress)? else {
        return stopped(args, &text, &progress);
    };
    for around in &done.around {
        let first = around.lines().next().unwrap_or_default();
        note(&visible(&format!("left out, because it is not of the text: {first}")));
    }
    if args.in_place {
        let ends_itself = matches!(done.report.finish, FinishReason::EndToken | FinishReason::Stop);
        if !ends_itself || done.report.n_cut > 0 || done.text.trim().is_empty() {
            let problem =
                format!("the new text of `{}` is not complete: the file is unchanged", args.file.display());
            return Err(Failure::new(Exit::Failed, format!("{problem} (raise --max-tokens or --ctx)")));
        }
        if done.text == text {
            note("nothing is changed");
        } else if is_wanted(args, &done.doubts)? {
            put_in_place(args, &text, &done.text)?;
        } else {
            note("the file is unchanged");
        }
    } else {
        done.doubts.iter().for_each(|doubt| note(&visible(&format!("check it: {doubt}"))));
    }
    assisted.finish(&done.report, || {
        let mut json = about(&done.text, &done.reasoning, &done.report);
        json["changes"] = json!(done.changes);
        json["doubts"] = json!(done.doubts);
        json["old_part"] = json!(done.old_part);
        json["new_part"] = json!(done.new_part);
        json["around"] = json!(done.around);
        json
    })?;
    Ok(Exit::Done)
}

/// Lines such as `12-20` or `12`, or a heading.
fn part_of(within: &str) -> EditPart {
    let (first, last) = within.split_once('-').unwrap_or((within, within));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => EditPart::Lines { first, last },
        _ => EditPart::Section(within.to_owned()),
    }
}

/// What a job has done so far.
#[derive(Default)]
struct Progressed {
    /// Parts of a summary.
    n_parts: usize,
    /// Windows of a long text that are edited, of all.
    n_windows: (usize, usize),
    /// The ends of the newest one in the old and the new text.
    old_end: usize,
    new_end: usize,
    /// The new text so far.
    text: String,
    doubts: Vec<EditDoubt>,
}

impl Progressed {
    /// The text with the windows that are done, and the rest as it was.
    fn with_rest(&self, old: &str) -> String {
        [&self.text[..self.new_end], &old[self.old_end..]].concat()
    }
}

/// Ends an edit that Ctrl-C has stopped.
fn stopped(args: &EditArgs, text: &str, done: &Progressed) -> Result<Exit, Failure> {
    // Whoever said --yes is not there to choose.
    if !args.in_place || args.yes || done.n_windows.0 == 0 {
        note("ended by Ctrl-C; nothing of it is kept");
        return Err(TaskError::Cancelled.into());
    }
    note(&format!("ended by Ctrl-C; {} of {} windows are done", done.n_windows.0, done.n_windows.1));
    let new = done.with_rest(text);
    if new == text {
        note("nothing is changed");
    } else if is_wanted(args, &done.doubts)? {
        put_in_place(args, text, &new)?;
    } else {
        note("the file is unchanged");
    }
    Ok(Exit::Interrupted)
}

/// The file and the instruction. With one argument and piped input, the argument is the instruction.
fn what_to_edit(args: &EditArgs) -> Result<(&Path, &str), Failure> {
    if let Some(instruction) = &args.instruction {
        return Ok((&args.file, instruction));
    }
    let advice = "`refrain edit FILE INSTRUCTION`, or pipe the text to `refrain edit INSTRUCTION`";
    match args.file.to_str().filter(|&text| text != "-" && !args.in_place && !args.file.exists()) {
        Some(instruction) if !io::stdin().is_terminal() => Ok((Path::new("-"), instruction)),
        _ => Err(Failure::usage("the instruction is missing", advice)),
    }
}

/// Refuses `--in-place` where it could do harm, before a model is loaded.
fn check_in_place(args: &EditArgs) -> Result<(), Failure> {
    if args.file == Path::new("-") {
        return Err(Failure::usage("standard input cannot be replaced", "omit --in-place"));
    }
    if args.task.assist.model.model.is_none() {
        let problem = "the demonstration model inside this program writes into no file";
        return Err(Failure::usage(
            problem,
            "name a model with --model; `refrain` alone helps to choose one",
        ));
    }
    let is_seen = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    if !args.yes && (args.task.json || !is_seen) {
        let problem = "--in-place shows the changes on a terminal and asks";
        return Err(Failure::usage(problem, "--yes replaces the file without a question"));
    }
    if store_of(&args.task.assist).is_none() && args.task.assist.store.is_none() {
        let problem = "there is no folder that could keep the old text";
        return Err(Failure::usage(problem, "name one with --store, or keep nothing with --store none"));
    }
    Ok(())
}

/// Whether the file is to be replaced by a text with these doubts: as the options say, or the user's answer.
fn is_wanted(args: &EditArgs, doubts: &[EditDoubt]) -> Result<bool, Failure> {
    let file = args.file.display();
    let doubts: Vec<String> = match args.force {
        true => Vec::new(),
        false => doubts.iter().map(ToString::to_string).collect(),
    };
    if args.yes {
        return match doubts.is_empty() {
            true => Ok(true),
            false => {
                let problem = format!("{}: `{file}` is unchanged", doubts.join("; "));
                Err(Failure::new(Exit::Failed, format!("{problem} (--force replaces it all the same)")))
            }
        };
    }
    for doubt in &doubts {
        note(&visible(&format!("check it: {doubt}")));
    }
    // A habit answers with one letter.
    let (wanted, question): (&[&str], _) = match doubts.is_empty() {
        true => (&["y", "yes"], "[y/N]"),
        false => (&["yes"], "(`yes` replaces it)"),
    };
    let answer = ask_user(&visible(&format!("Replace `{file}`? {question} ")))?;
    Ok(wanted.contains(&answer.trim().to_lowercase().as_str()))
}

/// Replaces the file, unless it was changed since `old` was read, and keeps `old`.
fn put_in_place(args: &EditArgs, old: &str, new: &str) -> Result<(), Failure> {
    if read_input(&args.file)? != old {
        let problem = format!("`{}` was changed meanwhile: it is not replaced", args.file.display());
        return Err(Failure::new(Exit::Failed, problem));
    }
    if let Some(folder) = store_of(&args.task.assist) {
        EditCopies::in_store(folder, key()?.as_ref()).keep(&args.file, old, new).map_err(not_copied)?;
    }
    replace(&args.file, new)?;
    if store_of(&args.task.assist).is_some() {
        note(&visible(&format!("`refrain edit --undo {}` brings the old text back", args.file.display())));
    }
    Ok(())
}

fn not_copied(error: StoreError) -> Failure {
    let advice = "the file is unchanged; --store none keeps no old text";
    Failure::new(Exit::Failed, format!("{error} ({advice})"))
}

/// `refrain edit --undo`.
fn undo(args: &EditArgs) -> Result<Exit, Failure> {
    let file = args.file.display();
    let key = key()?;
    let copies = store_of(&args.task.assist).map(|folder| EditCopies::in_store(folder, key.as_ref()));
    let copy =
        copies.as_ref().map(|copies| copies.newest(&args.file)).transpose().map_err(not_copied)?.flatten();
    let (Some(copies), Some(copy)) = (copies, copy) else {
        let problem = format!("no text of `{file}` is kept that `edit --in-place` has replaced");
        return Err(Failure::input(problem, "--store names another store"));
    };
    // A file that is gone has no changes to lose.
    let current = if args.file.exists() { Some(read_input(&args.file)?) } else { None };
    if let Some(current) = current.filter(|current| !copy.is_before(current)) {
        if !args.force {
            let problem = format!("`{file}` was changed since the edit, and is left as it is");
            return Err(Failure::input(problem, "--force brings the old text back and keeps this one"));
        }
        copies.keep(&args.file, &current, &copy.text).map_err(not_copied)?;
    }
    replace(&args.file, &copy.text)?;
    copies.remove(copy).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    note(&visible(&format!("`{file}` has its old text again")));
    Ok(Exit::Done)
}

/// The folder of the store: the named one, or the default one if the user has one.
pub(crate) fn store_of(args: &AssistArgs) -> Option<PathBuf> {
    match &args.store {
        Some(folder) => Some(folder.clone()).filter(|folder| !is_none(folder)),
        None => data_folder("assistant"),
    }
}

pub(crate) fn ui(args: &UiArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let screen = read_screen(&args.screen)?;
    let mut task = UiTask::new(args.goal.as_str());
    // The demonstration has learnt prompts without the list.
    task.lists_actions = args.task.assist.model.model.is_some();
    if let Some(path) = &args.actions {
        task.actions = UiActions::from_json(&read_input(path)?).map_err(|error| {
            Failure::input(
                format!("`{}`: {error}", path.display()),
                "see `refrain ui --help-all` for their form",
            )
        })?;
    }
    for step in args.earlier.chunks(2) {
        let [path, command] = step else { continue };
        let path = Path::new(path);
        task.push(if is_none(path) { None } else { Some(read_screen(path)?) }, command);
    }
    if task.n_dropped() > 0 {
        note(&format!("the {} oldest screens are dropped", task.n_dropped()));
    }
    let assisted = Assisted::task(&args.task, None, AssistantOptions::default(), Prompts::default())?;
    let job = assisted.assistant.ui_command(&task, screen, JobOptions::default())?;
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.finish(&done.report, || {
        let mut json = about(&done.text, "", &done.report);
        json["command"] = command_json(&done.command);
        json
    })?;
    Ok(Exit::Done)
}

fn read_screen(path: &Path) -> Result<Screen, Failure> {
    Screen::read(&read_input(path)?).map_err(|error| {
        Failure::input(format!("`{}`: {error}", path.display()), "see `refrain ui --help-all` for its form")
    })
}

/// An assistant for one command.
pub(crate) struct Assisted {
    model: ModelArgs,
    /// Whether one JSON object is written in place of the text.
    is_json: bool,
    pub(crate) setup: Arc<Setup>,
    context_len: usize,
    /// Whether the model is a server's, which keeps what it has learnt itself.
    is_served: bool,
    /// How tokens are chosen, without a grammar.
    pub(crate) sampling: Sampling,
    pub(crate) assistant: Assistant,
}

/// What a command writes while its job runs; nothing with `--json`.
#[derive(Clone, Copy)]
pub(crate) enum Shows<'a> {
    Nothing,
    Text,
    /// The changes from this text.
    Changes(&'a str),
}

impl WordsArgs {
    /// The options of an answer.
    pub(crate) fn job(&self, assisted: &Assisted, grammar: Option<&Grammar>) -> JobOptions {
        let mut options = JobOptions::default();
        options.stop = self.stop.clone();
        options.ignore_eos = self.ignore_eos;
        match grammar {
            Some(grammar) => constrained(options, grammar, &assisted.sampling, &self.assist.sampling),
            None => options,
        }
    }
}

impl Assisted {
    /// Opens the assistant of a task.
    fn task(
        args: &TaskArgs,
        notes: Option<&Path>,
        options: AssistantOptions,
        prompts: Prompts,
    ) -> Result<Self, Failure> {
        let assisted = Self::open(&args.assist, notes, options, prompts, sampling::for_task)?;
        Ok(Self { is_json: args.json, ..assisted })
    }

    /// The assistant of a server, for a task of another process: its answers are those of an assistant that the process would open.
    fn served(
        args: &TaskArgs,
        served: &Served,
        mut options: AssistantOptions,
        prompts: Prompts,
    ) -> Result<Self, Failure> {
        let (setup, args, is_json) = (Arc::clone(&served.setup), &args.assist, args.json);
        let context_len = span::context_len(setup.engine.config(), &args.session, span::room(), 1);
        options.session =
            SessionOptions { context_len: Some(context_len), ..args.session.session_options("assistant") };
        setup.engine.session(options.session.clone())?;
        // The notices of a process that loads the model.
        note_kernels(&setup.engine);
        profile::note_mismatch(&setup.engine, options.session.kv_type);
        let sampling = args.sampling.sampling(sampling::for_task(&setup.engine));
        options.sampling = sampling.clone();
        options.answer_tokens = args.sampling.max_tokens;
        options.system = args.system.clone();
        let assistant = served.assistant.with_options(options).with_prompts(prompts);
        // What a writer has changed since; without it, the earlier state is searched.
        assistant.notes().map(|notes| notes.refresh().ok());
        Ok(Self {
            model: args.model.clone(),
            is_json,
            setup,
            context_len,
            is_served: true,
            sampling,
            assistant,
        })
    }

    /// Opens the assistant with these defaults of sampling.
    pub(crate) fn open(
        args: &AssistArgs,
        notes: Option<&Path>,
        mut options: AssistantOptions,
        prompts: Prompts,
        defaults: impl FnOnce(&Engine) -> Sampling,
    ) -> Result<Self, Failure> {
        let setup = Arc::new(setup::open(&args.model, &args.session, 1)?);
        let engine = &setup.engine;
        // Its options are checked before a prompt is laid out by them.
        let of_session = setup.session_options(&args.session, "assistant");
        engine.session(of_session.clone())?;
        profile::note_mismatch(engine, of_session.kv_type);
        let sampling = args.sampling.sampling(defaults(engine));
        options.session = of_session;
        options.sampling = sampling.clone();
        options.answer_tokens = args.sampling.max_tokens;
        options.system = args.system.clone();
        let store = store_of(args);
        let is_new = args.store.is_none() && store.as_deref().is_some_and(|folder| !folder.exists());
        let notes = match notes {
            Some(folder) => Some((folder, embedder::of_folder(folder)?)),
            None => None,
        };
        let key = key()?;
        if let Some(store) = &store {
            options.prefix_bytes_max = budget(store);
        }
        let build = |store: Option<&Path>| {
            let mut builder =
                Assistant::builder(engine.clone()).options(options.clone()).prompts(prompts.clone());
            if let Some((folder, embedder)) = &notes {
                builder = builder.notes(*folder);
                builder =
                    embedder.iter().fold(builder, |builder, embedder| builder.embedder(embedder.clone()));
            }
            if let Some(store) = store {
                builder = builder.store(store);
            }
            key.into_iter().fold(builder, Builder::key).build()
        };
        let assistant = build(store.as_deref()).or_else(|error| match error {
            // A folder that the user has named must be usable.
            BuildError::Store(ref problem)
                if !matches!(problem, StoreError::Key { .. })
                    && (args.store.is_none() || matches!(problem, StoreError::InUse { .. })) =>
            {
                note(&visible(&format!("nothing is kept: {error}")));
                build(None)
            }
            error => Err(error),
        })?;
        if let Some(folder) = store.filter(|_| is_new && assistant.has_store()) {
            let place = folder.display();
            note(&visible(&format!(
                "answers and computed prompts are kept in {place}, for later ones; --store none keeps nothing"
            )));
        }
        let context_len = setup.context_len();
        Ok(Self {
            model: args.model.clone(),
            is_json: false,
            setup,
            context_len,
            is_served: false,
            sampling,
            assistant,
        })
    }

    /// Whether texts fit half of the context whole: the rest is for the words of the prompt and the answer.
    fn has_room_for(&self, texts: &[&str]) -> bool {
        let tokenizer = self.engine().tokenizer();
        let n_tokens =
            |text: &&str| tokenizer.encode(text, SpecialTokens::AsText).map_or(usize::MAX, |ids| ids.len());
        let sum = texts.iter().map(n_tokens).fold(0, usize::saturating_add);
        sum <= self.context_len / 2
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.setup.engine
    }

    /// Runs a job and writes what it shows. Ctrl-C cancels it.
    pub(crate) fn run<T>(&self, job: Job<T>, interrupt: &Interrupt, shows: Shows<'_>) -> Result<T, Failure> {
        let mut progress = Progressed::default();
        self.run_or_stop(job, interrupt, shows, &mut progress)?.ok_or_else(|| {
            note("ended by Ctrl-C; nothing of it is kept");
            TaskError::Cancelled.into()
        })
    }

    /// As [`run`](Self::run); `None` if Ctrl-C was pressed. `progressed` gets what is done.
    fn run_or_stop<T>(
        &self,
        job: Job<T>,
        interrupt: &Interrupt,
        shows: Shows<'_>,
        progressed: &mut Progressed,
    ) -> Result<Option<T>, Failure> {
        let _cancelling = interrupt.cancels(job.cancel_token());
        let mut out = AnswerStream::stdout();
        let mut progress = Some(Progress::tokens("prefill"));
        let shows = if self.is_json { Shows::Nothing } else { shows };
        let (mut is_reasoning, mut result) = (false, None);
        let (mut n_estimates, mut finished) = (0, None::<String>);
        for event in job {
            interrupt.follow();
            let event = match event {
                Err(TaskError::Cancelled) => {
                    out.end_line()?;
                    return Ok(None);
                }
                event => event?,
            };
            if !matches!(event, JobEvent::Estimate(_)) {
                finished.take().iter().for_each(|text| note(text));
            }
            if !matches!(event, JobEvent::Prefill { .. }) {
                progress = None;
            }
            match event {
                JobEvent::Prefill { done, total } => {
                    progress
                        .get_or_insert_with(|| Progress::tokens("prefill"))
                        .set(done as u64, total as u64);
                }
                JobEvent::Text(event) => {
                    let was_reasoning =
                        std::mem::replace(&mut is_reasoning, event.kind == TextKind::Reasoning);
                    if event.kind == TextKind::Answer {
                        progressed.text.push_str(&event.text);
                    }
                    if was_reasoning && !is_reasoning && !matches!(shows, Shows::Nothing) {
                        write_error("\n");
                    }
                    show_text(&mut out, &event, shows)?;
                }
                JobEvent::Estimate(estimate) => {
                    n_estimates += 1;
                    let time = time_text(&estimate);
                    match finished.take() {
                        Some(text) => note(&format!("{text}; {time} left")),
                        None if n_estimates == 1 => {
                            let Estimate { n_prompts, read_tokens, .. } = estimate;
                            note(&format!("{n_prompts} prompts with {read_tokens} tokens: {time}"));
                        }
                        None => {}
                    }
                }
                JobEvent::Part { index, n_parts, .. } => {
                    progressed.n_parts += 1;
                    finished = Some(format!("part {} of {n_parts} is summarised", index + 1));
                }
                JobEvent::Window { index, n_windows, old, new, doubts } => {
                    progressed.n_windows = (index + 1, n_windows);
                    (progressed.old_end, progressed.new_end) = (old.end, new.end);
                    progressed.doubts.extend(doubts);
                    if matches!(shows, Shows::Nothing) {
                        finished = Some(format!("window {} of {n_windows} is edited", index + 1));
                    }
                }
                JobEvent::Edit(change) => {
                    if let Shows::Changes(old) = shows {
                        show_change(&mut out, &change, old, &progressed.text)?;
                    }
                }
                JobEvent::Done(done) => result = Some(done),
                _ => {}
            }
        }
        drop(progress);
        out.end_line()?;
        // A request that is refused has no answer to explain.
        note_demonstration(&self.model);
        Ok(Some(result.expect("a job ends with a result or an error")))
    }

    /// Keeps what was learnt, and writes the notices of what is cut, not kept or left out.
    pub(crate) fn note_end(&self, report: &Report) {
        if !self.is_served {
            self.setup.learned.keep(&self.setup.engine);
        }
        note_cut(report);
        note_evicted(&self.assistant);
        if let Some(reason) = &report.not_kept {
            note(&visible(&format!("the answer is not kept: {reason}")));
        }
        note_left_out(&report.left_out);
    }

    /// As [`note_end`](Self::note_end), and writes the JSON form or the other notices.
    fn finish(&self, report: &Report, json: impl FnOnce() -> Value) -> Result<(), Failure> {
        self.note_end(report);
        if self.is_json {
            let mut json = json();
            json["model"] = json!(self.setup.checkpoint.name());
            AnswerStream::stdout().line(&json.to_string())?;
            return Ok(());
        }
        note(&summary(&report.stats));
        Ok(())
    }
}

/// The time of what is left, in words.
fn time_text(estimate: &Estimate) -> String {
    let seconds = estimate.time.as_secs_f64();
    match seconds {
        ..1.0 => "less than a second".to_owned(),
        ..90.0 => format!("about {seconds:.0} s"),
        ..5400.0 => format!("about {:.0} minutes", seconds / 60.0),
        _ => format!("about {:.1} hours", seconds / 3600.0),
    }
}

/// The texts of files, or of standard input without a path.
fn read_texts(paths: &[PathBuf]) -> Result<Vec<Passage>, Failure> {
    match paths {
        [] if io::stdin().is_terminal() => {
            Err(Failure::usage("there is no text", "name a file, or pipe one in"))
        }
        [] => read_text(Path::new("-")),
        paths => Ok(paths.iter().map(|path| read_text(path)).collect::<Result<Vec<_>, _>>()?.concat()),
    }
}

/// Maximum bytes of a file, as in an index.
const DOCUMENT_BYTES_MAX: u64 = 8 << 20;

/// The texts of a file, as an index reads it, or of standard input. A file with an ending that the index does not know is plain text.
fn read_text(path: &Path) -> Result<Vec<Passage>, Failure> {
    if path == Path::new("-") {
        return Ok(vec![Passage::new("", read_input(path)?)]);
    }
    if SourceKind::of(path).is_none() {
        return Ok(vec![Passage::new(name_of(path), read_input(path)?).of_note(path)?]);
    }
    let bytes = read_bytes(path, DOCUMENT_BYTES_MAX)?;
    let (texts, lost) = Passage::read(path, &bytes)
        .map_err(|error| Failure::input(error.to_string(), "name another file"))?;
    if let Some(lost) = lost {
        note(&visible(&format!("`{}`: {lost}", path.display())));
    }
    Ok(texts)
}

/// Texts of one file as one text, below their titles.
fn joined(texts: Vec<Passage>) -> Option<Passage> {
    let mut texts = texts.into_iter();
    let mut whole = texts.next()?;
    let mut title = whole.title.clone();
    for next in texts {
        whole.text.push_str("\n\n");
        if next.title != title {
            let _ = writeln!(whole.text, "# {}", next.title);
            title = next.title;
        }
        whole.text.push_str(&next.text);
    }
    Some(whole)
}

/// The title of a file's text.
fn name_of(path: &Path) -> String {
    let name = path.file_stem();
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn absolute(path: &Path) -> PathBuf {
    // As the index names files: links stay.
    refrain_index::notes::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Replaces a file's text; its permissions, links and names stay.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(replace_contents(path, text.as_bytes())?)
}

fn show_text(out: &mut AnswerStream, event: &TextEvent, shows: Shows<'_>) -> Result<(), Failure> {
    match (event.kind, shows) {
        (_, Shows::Nothing) => {}
        (TextKind::Reasoning, _) => {
            let dim = Style::new().dimmed();
            // A failure to write it is ignored, as that of a notice.
            write_error(&format!("{dim}{}{dim:#}", visible(&event.text)));
        }
        (_, Shows::Text) => out.token(&event.text, &event.origin)?,
        (_, Shows::Changes(_)) => {}
    }
    Ok(())
}

/// Writes a change: kept text as it is, new text green, old text red and struck through; without colours, as `[+new+]` and
/// `[-old-]`.
fn show_change(out: &mut AnswerStream, change: &DiffEvent, old: &str, new: &str) -> Result<(), Failure> {
    let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
    let red = Style::new().fg_color(Some(AnsiColor::Red.into())).effects(Effects::STRIKETHROUGH);
    match change {
        DiffEvent::Keep { new: place, .. } => out.token(&new[place.clone()], &Origin::Target)?,
        DiffEvent::Insert { new: place, .. } => out.marked(&new[place.clone()], green, ("[+", "+]"))?,
        DiffEvent::Delete { old: place } => out.marked(&old[place.clone()], red, ("[-", "-]"))?,
    }
    Ok(())
}

/// The part of the JSON form that all tasks have.
fn about(text: &str, reasoning: &str, report: &Report) -> Value {
    json!({
        "text": text,
        "reasoning": reasoning,
        "finish": report.finish,
        "seed": report.seed,
        "left_out": report.left_out.iter().map(left_out_json).collect::<Vec<_>>(),
        "not_kept": report.not_kept,
        "stats": report.stats,
    })
}

/// As [`about`], of a text from passages.
fn about_passages(
    text: &str,
    reasoning: &str,
    report: &Report,
    passages: &[Passage],
    provenance: &Provenance,
) -> Value {
    let mut json = about(text, reasoning, report);
    json["passages"] = passages.iter().map(passage_json).collect();
    json["copied"] = json!(provenance.copied);
    json["sentences"] = json!(provenance.sentences);
    json
}

pub(crate) fn passage_json(passage: &Passage) -> Value {
    let source = passage.source.as_ref();
    json!({
        "title": passage.title,
        "text": passage.text,
        "path": source.map(|source| source.path.display().to_string()),
        "place": source.map(|source| &source.place),
        "is_verbatim": source.map(|source| source.is_verbatim),
        "locator": source.and_then(|source| source.locator).map(|locator| locator.to_string()),
        "score": source.and_then(|source| source.score),
    })
}

pub(crate) fn left_out_json(left_out: &LeftOut) -> Value {
    let source = left_out.source.as_ref();
    json!({
        "title": left_out.title,
        "path": source.map(|source| source.path.display().to_string()),
        "place": source.map(|source| &source.place),
        "n_tokens": left_out.n_tokens,
        "reason": reason(left_out.reason),
    })
}

fn reason(reason: LeftOutReason) -> &'static str {
    match reason {
        LeftOutReason::Context => "context",
        LeftOutReason::Rest => "rest",
        LeftOutReason::Parts => "parts",
        _ => "other",
    }
}

fn left_out_text(left_out: &LeftOut) -> String {
    let place = place(&left_out.title, left_out.source.as_ref());
    let (start, why) = match left_out.reason {
        LeftOutReason::Rest => ("the rest of ", "it does not fit the context"),
        LeftOutReason::Parts => ("", "the text has too many parts"),
        _ => ("", "it does not fit the context"),
    };
    format!("left out: {start}{place}, {} tokens: {why}", left_out.n_tokens)
}

/// The note and the title of a passage.
pub(crate) fn place_of(passage: &Passage) -> String {
    place(&passage.title, passage.source.as_ref())
}

fn place(title: &str, source: Option<&Source>) -> String {
    match source.map(|source| index::place(&source.path, source.locator)) {
        Some(place) => format!("{place} {title}").trim_end().to_owned(),
        None if title.is_empty() => "the text".to_owned(),
        None => title.to_owned(),
    }
}

fn command_json(command: &Command) -> Value {
    match command {
        Command::Tap { element } => json!({"command": "tap", "element": element}),
        Command::LongPress { element } => json!({"command": "long_press", "element": element}),
        Command::Type { element, text } => json!({"command": "type", "element": element, "text": text}),
        Command::Swipe { element, direction } => {
            json!({"command": "swipe", "element": element, "direction": direction.name()})
        }
        Command::Scroll(direction) => json!({"command": "scroll", "direction": direction.name()}),
        Command::Back => json!({"command": "back"}),
        Command::Key(key) => json!({"command": "key", "key": key}),
        Command::Open(app) => json!({"command": "open", "app": app}),
        Command::Wait => json!({"command": "wait"}),
        Command::Ask(question) => json!({"command": "ask", "question": question}),
        Command::Done => json!({"command": "done"}),
        Command::NoAction => json!({"command": "none"}),
        Command::Own { name, arguments } => {
            // The grammar has made them.
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"command": name, "arguments": arguments})
        }
        other => json!({"command": format!("{other:?}")}),
    }
}

/// Notices of what is left out: one for each reason.
fn note_left_out(left_out: &[LeftOut]) {
    let mut reasons: Vec<LeftOutReason> = Vec::new();
    for first in left_out {
        if reasons.contains(&first.reason) {
            continue;
        }
        reasons.push(first.reason);
        let others = left_out.iter().filter(|other| other.reason == first.reason).skip(1);
        let (n_others, n_tokens) = others.fold((0, 0), |(n, sum), other| (n + 1, sum + other.n_tokens));
        let others =
            if n_others > 0 { format!("; and {n_others} more, {n_tokens} tokens") } else { String::new() };
        note(&visible(&format!("{}{others}", left_out_text(first))));
    }
}

/// A notice that a text, or what it was made from, ended at a limit.
fn note_cut(report: &Report) {
    let limit = match report.finish {
        FinishReason::ContextFull => "the end of the context (--ctx)",
        _ => "the limit of output tokens (--max-tokens)",
    };
    match (report.n_cut, report.stats.len()) {
        (0, _) => {}
        (_, 1) => note(&format!("cut: the text ends at {limit}")),
        (n_cut, n) => {
            note(&format!("cut: {n_cut} of {n} texts, those of the parts included, end at {limit}"))
        }
    }
}

/// Notices: the passages that were shown, and the sentences and citations without support, one for each cause.
fn note_provenance(text: &str, passages: &[Passage], provenance: &Provenance) {
    let sentences = &provenance.sentences;
    for (index, passage) in passages.iter().enumerate() {
        let spans = provenance.copied.iter().filter(|span| span.passage == index);
        let n_copied: usize = spans.map(|span| span.n_words).sum();
        let supports = |support: &Support| match support {
            Support::Copied { passage, .. } | Support::Words { passage, .. } => *passage == index,
            _ => false,
        };
        let is_cited =
            sentences.iter().flat_map(|sentence| &sentence.citations).any(|cited| cited.number == index + 1);
        let use_of_it = match n_copied {
            0 if is_cited || sentences.iter().any(|sentence| supports(&sentence.support)) => String::new(),
            0 => ": shown, and no sentence is from it".to_owned(),
            n => format!(": {n} words copied"),
        };
        note(&visible(&format!("[{}] {}{use_of_it}", index + 1, place_of(passage))));
    }
    let n = sentences.len();
    let quoted = |sentence: &CheckedSentence| &text[sentence.text.clone()];
    let unsupported: Vec<&str> =
        sentences.iter().filter(|sentence| sentence.support.is_missing()).map(quoted).collect();
    if let [first, others @ ..] = &unsupported[..] {
        let how_many = if others.is_empty() {
            String::new()
        } else {
            format!(" {} of {n} sentences, first", others.len() + 1)
        };
        note(&visible(&format!("no passage supports{how_many}: {first}")));
    }
    let cited = |verdict: CitationVerdict| {
        let all = sentences
            .iter()
            .flat_map(|sentence| sentence.citations.iter().map(move |cited| (cited, sentence)));
        all.filter(move |(cited, _)| cited.verdict == verdict)
    };
    let names: BTreeSet<usize> = cited(CitationVerdict::NotShown).map(|(cited, _)| cited.number).collect();
    if !names.is_empty() {
        let numbers: Vec<String> = names.iter().map(|number| format!("[{number}]")).collect();
        note(&format!(
            "{} {} no passage",
            numbers.join(", "),
            if names.len() == 1 { "names" } else { "name" }
        ));
    }
    let mut wrong = cited(CitationVerdict::DoesNotSupport);
    if let Some((first, sentence)) = wrong.next() {
        let others = match wrong.count() {
            0 => String::new(),
            n => format!(" (and {n} more citations do not support theirs)"),
        };
        note(&visible(&format!("[{}] does not support{others}: {}", first.number, quoted(sentence))));
    }
}

/// Tokens, steps and times of all generations, on one line.
fn summary(stats: &[Stats]) -> String {
    let sum = |of: &dyn Fn(&Stats) -> f64| stats.iter().map(of).sum::<f64>();
    let (tokens, steps) = (sum(&|stats| stats.tokens as f64), sum(&|stats| stats.steps as f64));
    let prompt = sum(&|stats| stats.prompt_tokens as f64);
    let restored = sum(&|stats| stats.cached_tokens as f64);
    let mut text = format!("{tokens} tokens in {steps} steps, after {prompt} of prompt");
    if restored > 0.0 {
        let _ = write!(text, " ({restored} not computed again)");
    }
    let ms = |us: f64| us / 1e3;
    let (prefill, decode) = (sum(&|stats| stats.time_us.prefill), sum(&|stats| stats.time_us.decode()));
    let _ = write!(text, "; prefill {:.0} ms, answer {:.0} ms", ms(prefill), ms(decode));
    text
}
