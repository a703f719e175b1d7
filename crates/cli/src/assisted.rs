//! The assistant of a command: it is opened as the options say, and runs one job after the other, which it shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anstyle::{AnsiColor, Effects, Style};
use refrain::{CancelToken, Engine, Origin, Sampling, SessionOptions, SpecialTokens, TextKind};
use refrain_assistant::edit::{DiffEvent, EditDoubt};
use refrain_assistant::{
    Assistant, AssistantOptions, BuildError, Builder, Estimate, Job, JobEvent, JobOptions, Prompts, Report,
    StoreError, TaskError, TextEvent,
};
use refrain_grammar::Grammar;
use serde_json::{Value, json};

use crate::args::{AssistArgs, TaskArgs, WordsArgs, is_none};
use crate::embedder;
use crate::failure::Failure;
use crate::grammar::constrained;
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::load::{note_demonstration, note_kernels};
use crate::progress::Progress;
use crate::report::{note_cut, note_left_out, summary};
use crate::setup::{self, Setup};
use crate::store::{budget, note_evicted};
use crate::terminal::{AnswerStream, note, visible, write_error};
use crate::{profile, sampling, span};
use refrain_program::args::ModelArgs;
use refrain_program::place::data_folder;

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

/// What a server has in place of a model and a store of the command's own.
pub(crate) struct Served {
    pub(crate) setup: Arc<Setup>,
    pub(crate) assistant: Assistant,
    /// Cancelled when the process that has handed the command over ends.
    pub(crate) cancel: CancelToken,
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
    pub(crate) fn task(
        args: &TaskArgs,
        notes: Option<&Path>,
        options: AssistantOptions,
        prompts: Prompts,
    ) -> Result<Self, Failure> {
        let assisted = Self::open(&args.assist, notes, options, prompts, sampling::for_task)?;
        Ok(Self { is_json: args.json, ..assisted })
    }

    /// The assistant of a server, for a task of another process: its answers are those of an assistant that the process would open.
    pub(crate) fn served(
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
        let keeps = !args.store.as_deref().is_some_and(is_none);
        let setup = Arc::new(setup::open(&args.model, &args.session, 1, keeps)?);
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
    pub(crate) fn has_room_for(&self, texts: &[&str]) -> bool {
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
    pub(crate) fn run_or_stop<T>(
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
    pub(crate) fn finish(&self, report: &Report, json: impl FnOnce() -> Value) -> Result<(), Failure> {
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

/// What a job has done so far.
#[derive(Default)]
pub(crate) struct Progressed {
    /// Parts of a summary.
    pub(crate) n_parts: usize,
    /// Windows of a long text that are edited, of all.
    pub(crate) n_windows: (usize, usize),
    /// The ends of the newest one in the old and the new text.
    old_end: usize,
    new_end: usize,
    /// The new text so far.
    text: String,
    pub(crate) doubts: Vec<EditDoubt>,
}

impl Progressed {
    /// The text with the windows that are done, and the rest as it was.
    pub(crate) fn with_rest(&self, old: &str) -> String {
        [&self.text[..self.new_end], &old[self.old_end..]].concat()
    }
}

/// The folder of the store: the named one, or the default one if the user has one.
pub(crate) fn store_of(args: &AssistArgs) -> Option<PathBuf> {
    match &args.store {
        Some(folder) => Some(folder.clone()).filter(|folder| !is_none(folder)),
        None => data_folder("assistant"),
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
pub(crate) fn show_change(
    out: &mut AnswerStream,
    change: &DiffEvent,
    old: &str,
    new: &str,
) -> Result<(), Failure> {
    let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
    let red = Style::new().fg_color(Some(AnsiColor::Red.into())).effects(Effects::STRIKETHROUGH);
    match change {
        DiffEvent::Keep { new: place, .. } => out.token(&new[place.clone()], &Origin::Target)?,
        DiffEvent::Insert { new: place, .. } => out.marked(&new[place.clone()], green, ("[+", "+]"))?,
        DiffEvent::Delete { old: place } => out.marked(&old[place.clone()], red, ("[-", "-]"))?,
    }
    Ok(())
}
