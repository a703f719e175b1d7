//! From the command line to the words that the model reads.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use refrain::{Engine, PromptPassage, Session, SpecialTokens, Task};

use crate::args::{RunArgs, TaskArgs};
use crate::context::{Chosen, Notes, PassageSource, whole_text};
use crate::failure::Failure;
use crate::terminal::note;

/// Longest prompt or text that is read, in bytes: the same bound as a note's.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// Allowance for the chat template around a message. Published ones take 10 to 60, with their default system turn.
const TEMPLATE_TOKENS: usize = 64;

/// What the user asks, and the text that came with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The user's own words; may be empty where there is material.
    pub(crate) text: String,
    /// A text to work on: its name and itself.
    pub(crate) material: Option<(String, String)>,
}

impl Request {
    /// Reads the request from argument, file or standard input.
    ///
    /// A task that works on a text (all but `answer`) takes a text from file or standard input as its material; with a
    /// PROMPT beside it, every task does.
    pub(crate) fn read(args: &RunArgs, task: Option<Task>) -> Result<Self, Failure> {
        let prompt = args.prompt.as_deref().filter(|&prompt| prompt != "-");
        let reads_stdin = args.prompt.as_deref() == Some("-");
        let file = match (&args.file, prompt) {
            (Some(_), _) if reads_stdin => {
                return Err(Failure::usage("both `-` and --file name the request", "give one of them"));
            }
            (Some(path), _) => Some((path.display().to_string(), read_input(path)?)),
            (None, None) if reads_stdin || !io::stdin().is_terminal() => {
                Some(("-".to_owned(), read_input(Path::new("-"))?))
            }
            (None, _) => None,
        };
        match (prompt, file, task) {
            (Some(_), Some(_), None) => {
                Err(Failure::usage("a PROMPT and a --file without a task", "add --task, or give one of them"))
            }
            (Some(prompt), material, _) => Ok(Self { text: prompt.to_owned(), material }),
            (None, Some((_, text)), None | Some(Task::Answer)) => Ok(Self { text, material: None }),
            // An empty pipe (a script's /dev/null) is no material.
            (None, material, _) => Ok(Self {
                text: String::new(),
                material: material.filter(|(_, text)| !text.trim().is_empty()),
            }),
        }
    }
}

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_input(path: &Path) -> Result<String, Failure> {
    let cannot = |error: io::Error| {
        Failure::input(
            format!("cannot read `{}`: {error}", path.display()),
            "check the path and its permissions",
        )
    };
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(cannot)?)
    };
    let mut bytes = Vec::new();
    source.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        let problem = format!("`{}` is longer than {INPUT_BYTES_MAX} bytes", path.display());
        return Err(Failure::input(problem, "give a shorter text"));
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::input(format!("`{}` is not UTF-8 text", path.display()), "convert it first"))
}

/// Lays out user messages: the task, the passages chosen from the notes, the request.
pub(crate) struct Composer {
    task: Option<Task>,
    notes: Notes,
    n_passages: usize,
}

/// A user message.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) message: String,
    /// Where its passages came from, in their order.
    pub(crate) sources: Vec<PassageSource>,
}

impl Composer {
    /// Reads the notes. `--context` without a task is a question.
    pub(crate) fn new(args: &TaskArgs) -> Result<Self, Failure> {
        let task = task(args);
        Ok(Self { task, notes: Notes::read(&args.context)?, n_passages: args.passages })
    }

    /// The message for a request, of at most `tokens_max` tokens.
    ///
    /// The text that came with the request is in it whole. Of the notes, `answer` and `reply` take the passages that fit
    /// the request best, and leave out the last of them where room is short; `ui` and `summarize` take all, but that
    /// `summarize` falls back to passages where there is a request to choose them by. What is needed and does not fit is
    /// refused. Passages in `shown` stand in the conversation already; where there are no others, the request is enough.
    pub(crate) fn compose(
        &self,
        engine: &Engine,
        request: &Request,
        shown: &[PassageSource],
        tokens_max: usize,
    ) -> Result<Composed, Failure> {
        let Some(task) = self.task else {
            if request.text.trim().is_empty() {
                return Err(Failure::usage("the request is empty", "give a PROMPT, --file, or pipe one in"));
            }
            return Ok(Composed::plain(request));
        };
        let (name, material) = request.material.as_ref().map_or(("", ""), |(name, text)| (name, text));
        let query = format!("{}\n{material}", request.text);
        let layout =
            Layout { engine, task, request: &request.text, material: whole_text(name, material), tokens_max };
        let takes_all = matches!(task, Task::Summarize | Task::Ui) || query.trim().is_empty();
        if takes_all {
            let all = without(self.notes.whole(), shown);
            if all.is_empty() && !shown.is_empty() {
                return Ok(Composed::plain(request));
            }
            if layout.material.is_empty() && all.is_empty() && request.text.trim().is_empty() {
                return Err(Failure::usage(
                    format!("nothing to {}", verb(task)),
                    "give a PROMPT, --file or --context",
                ));
            }
            let can_choose = task == Task::Summarize && !request.text.trim().is_empty();
            match layout.compose(&all)? {
                Fit::Fits(composed) => return Ok(composed),
                Fit::TooLong { n_tokens } if !can_choose => return Err(too_long(n_tokens, tokens_max)),
                Fit::TooLong { .. } => {
                    note("the notes do not fit the context: passages are chosen by the request")
                }
            }
        }
        let best = without(self.notes.search(&query, self.n_passages)?, shown);
        if best.is_empty() && !shown.is_empty() {
            return Ok(Composed::plain(request));
        }
        layout.compose_best(&best)
    }
}

impl Composed {
    /// The user's own words.
    fn plain(request: &Request) -> Self {
        Self { message: request.text.clone(), sources: Vec::new() }
    }
}

fn without(mut chosen: Vec<Chosen>, shown: &[PassageSource]) -> Vec<Chosen> {
    chosen.retain(|passage| !shown.iter().any(|source| source.is_same_place(&passage.source)));
    chosen
}

/// Tokens of the context that the next message may take: what the output needs stays free, but for at most a quarter of
/// the context (an output is seldom as long as it may be), and some for the chat template.
pub(crate) fn prompt_room(session: &Session, max_tokens: usize) -> usize {
    let context_len = session.context_len();
    let kept_free = max_tokens.min(context_len / 4) + TEMPLATE_TOKENS.min(context_len / 8);
    (context_len - kept_free).saturating_sub(session.tokens().len())
}

/// The task that the options ask for.
pub(crate) fn task(args: &TaskArgs) -> Option<Task> {
    args.task.or((!args.context.is_empty()).then_some(Task::Answer))
}

fn verb(task: Task) -> &'static str {
    match task {
        Task::Summarize => "summarize",
        Task::Answer => "answer",
        Task::Ui => "act on",
        Task::Reply => "reply to",
    }
}

/// What stays the same while passages are tried.
struct Layout<'a> {
    engine: &'a Engine,
    task: Task,
    request: &'a str,
    material: Vec<Chosen>,
    tokens_max: usize,
}

enum Fit {
    Fits(Composed),
    TooLong { n_tokens: usize },
}

impl Layout<'_> {
    fn compose(&self, notes: &[Chosen]) -> Result<Fit, Failure> {
        let passages = || self.material.iter().chain(notes);
        let shown: Vec<_> = passages().map(|p| PromptPassage { title: &p.title, text: &p.text }).collect();
        let message = self.task.user_message(&shown, self.request);
        let tokens = self.engine.tokenizer().encode(&message, SpecialTokens::AsText);
        let n_tokens = tokens.map_err(|error| Failure::input(error, "give a shorter text"))?.len();
        if n_tokens > self.tokens_max {
            return Ok(Fit::TooLong { n_tokens });
        }
        Ok(Fit::Fits(Composed {
            message,
            sources: passages().map(|passage| passage.source.clone()).collect(),
        }))
    }

    /// As many of the passages, best first, as fit.
    fn compose_best(&self, notes: &[Chosen]) -> Result<Composed, Failure> {
        for n_notes in (0..=notes.len()).rev() {
            match self.compose(&notes[..n_notes])? {
                Fit::Fits(composed) => {
                    let n_dropped = notes.len() - n_notes;
                    if n_dropped > 0 {
                        let room = self.tokens_max;
                        note(&format!(
                            "{n_dropped} of {} passages left out: room for {room} tokens",
                            notes.len()
                        ));
                    }
                    return Ok(composed);
                }
                Fit::TooLong { n_tokens } if n_notes == 0 => return Err(too_long(n_tokens, self.tokens_max)),
                Fit::TooLong { .. } => {}
            }
        }
        unreachable!("the last round has no passages and returns")
    }
}

fn too_long(n_tokens: usize, tokens_max: usize) -> Failure {
    let problem = format!("the prompt has {n_tokens} tokens, and the context has room for {tokens_max}");
    Failure::input(problem, "raise --ctx, lower --max-tokens, or give less text")
}
