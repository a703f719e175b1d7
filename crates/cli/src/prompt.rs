//! The prompt: read from the command line, laid out for the task, and fitted to the context.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use refrain::{Engine, PromptPassage, Session, SpecialTokens, Task};

use crate::args::{RunArgs, TaskArgs};
use crate::context::{Chosen, Notes, PassageSource, whole_text};
use crate::failure::Failure;
use crate::fit::{Fitted, LeftOut, fit};
use crate::terminal::{note, visible};

/// Default maximum of output tokens.
pub(crate) const MAX_TOKENS_DEFAULT: usize = 512;

/// Maximum number of places that a notice names; further places are only counted.
const PLACES_MAX: usize = 5;

/// Maximum length of a prompt or text, in bytes: the same limit as for a note.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// Allowance for the chat template around a message. Published templates add 10 to 60 tokens, with their default
/// system turn.
const TEMPLATE_TOKENS: usize = 64;

/// The user's request, and the text for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The request; may be empty if there is material.
    pub(crate) text: String,
    /// The text to work on: its file and its contents.
    pub(crate) material: Option<(PathBuf, String)>,
}

impl Request {
    /// Reads the request from argument, file or standard input.
    ///
    /// All tasks except `answer` use the text of a file or of standard input as material. With a PROMPT,
    /// every task does.
    pub(crate) fn read(args: &RunArgs, task: Option<Task>) -> Result<Self, Failure> {
        let prompt = args.prompt.as_deref().filter(|&prompt| prompt != "-");
        let reads_stdin = args.prompt.as_deref() == Some("-");
        let file = match (&args.file, prompt) {
            (Some(_), _) if reads_stdin => {
                return Err(Failure::usage("`-` and --file both name the request", "give one of them"));
            }
            (Some(path), _) => Some((path.clone(), read_input(path)?)),
            (None, None) if reads_stdin || !io::stdin().is_terminal() => {
                Some((PathBuf::from("-"), read_input(Path::new("-"))?))
            }
            (None, _) => None,
        };
        match (prompt, file, task) {
            (Some(_), Some(_), None) => {
                Err(Failure::usage("PROMPT and --file need a task", "add --task, or omit one of them"))
            }
            (Some(prompt), material, _) => Ok(Self { text: prompt.to_owned(), material }),
            (None, Some((_, text)), None | Some(Task::Answer)) => Ok(Self { text, material: None }),
            // An empty pipe, such as /dev/null in scripts, is no material.
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
        .map_err(|_| Failure::input(format!("`{}` is not UTF-8 text", path.display()), "convert it to UTF-8"))
}

/// Lays out user messages: the task, the passages of the notes, the request.
pub(crate) struct Composer {
    task: Option<Task>,
    notes: Notes,
    n_passages: usize,
}

/// A user message.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) message: String,
    /// The message without its passages.
    pub(crate) bare: String,
    /// The sources of its passages, in their order.
    pub(crate) sources: Vec<PassageSource>,
    /// The passages, or parts of them, that did not fit.
    pub(crate) left_out: Vec<LeftOut>,
}

impl Composer {
    /// Reads the notes. `--context` without a task is a question.
    pub(crate) fn new(args: &TaskArgs) -> Result<Self, Failure> {
        let task = task(args);
        let notes = match &args.notes {
            Some(_) if matches!(task, Some(Task::Summarize | Task::Ui)) => {
                return Err(Failure::usage(
                    "--notes searches, and this task shows all notes",
                    "use --context",
                ));
            }
            Some(folder) => Notes::stored(folder.as_deref())?,
            None => Notes::read(&args.context, args.follow_links)?,
        };
        Ok(Self { task, notes, n_passages: args.passages })
    }

    /// The message for a request, of at most `tokens_max` tokens.
    ///
    /// The text that came with the request is shown first, then notes. `answer` and `reply` show the passages
    /// that match the request best. `ui` and `summarize` show all notes in the order of their files;
    /// `summarize` with a request shows the best passages instead if not all notes fit. Passages that do not
    /// fit are cut or left out with a notice. If not even the start of one fits, an error is returned.
    /// Passages in `shown` are already in the conversation; if there are no others, the message is the
    /// request alone.
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
        let no_material = (PathBuf::new(), String::new());
        let (name, material) = request.material.as_ref().unwrap_or(&no_material);
        let layout = Layout { engine, task, request: &request.text, tokens_max };
        let material_passages = whole_text(name, material);
        let query = format!("{}\n{material}", request.text);
        let takes_all = matches!(task, Task::Summarize | Task::Ui) || query.trim().is_empty();
        if takes_all {
            let notes = without(self.notes.whole(), shown);
            if notes.is_empty() && !shown.is_empty() {
                return Ok(Composed::plain(request));
            }
            if material_passages.is_empty() && notes.is_empty() && request.text.trim().is_empty() {
                return Err(Failure::usage(
                    format!("nothing to {}", verb(task)),
                    "give a PROMPT, --file or --context",
                ));
            }
            let composed = layout.compose(&[&material_passages[..], &notes].concat(), shown)?;
            let can_choose = task == Task::Summarize && !request.text.trim().is_empty();
            if composed.left_out.is_empty() || !can_choose || notes.is_empty() {
                return Ok(composed.notified(tokens_max));
            }
            note("the notes do not fit the context: the passages that match the request best are shown");
        }
        let best = without(self.notes.search(&query, self.n_passages)?, shown);
        if best.is_empty() && !shown.is_empty() {
            return Ok(Composed::plain(request));
        }
        let composed = layout.compose(&[material_passages, best].concat(), shown)?;
        Ok(composed.notified(tokens_max))
    }
}

impl Composed {
    /// The user's own words.
    fn plain(request: &Request) -> Self {
        let (message, bare) = (request.text.clone(), request.text.clone());
        Self { message, bare, sources: Vec::new(), left_out: Vec::new() }
    }

    /// Prints a notice of the passages that were left out.
    fn notified(self, tokens_max: usize) -> Self {
        if !self.left_out.is_empty() {
            note(&visible(&notice(&self.left_out, tokens_max)));
        }
        self
    }
}

fn notice(left_out: &[LeftOut], tokens_max: usize) -> String {
    let place = |left: &LeftOut| {
        let start = if left.start_shown { "the rest of " } else { "" };
        format!("{start}{}:{} ({} tokens)", left.path.display(), left.line, left.tokens)
    };
    let mut places: Vec<String> = left_out.iter().take(PLACES_MAX).map(place).collect();
    if left_out.len() > PLACES_MAX {
        places.push(format!("{} more passages", left_out.len() - PLACES_MAX));
    }
    let n_tokens: usize = left_out.iter().map(|left| left.tokens).sum();
    format!(
        "left out, because the context has room for {tokens_max} tokens: {}; {n_tokens} tokens in all (--ctx N sets the context)",
        places.join(", ")
    )
}

fn without(mut chosen: Vec<Chosen>, shown: &[PassageSource]) -> Vec<Chosen> {
    chosen.retain(|passage| !shown.iter().any(|source| source.is_same_place(&passage.source)));
    chosen
}

/// The number of tokens of the context for the next message. Reserved are the output (`max_tokens`: by
/// default at most a quarter of the context, at most half of it if the user gave the number), the chat
/// template, and the system turn.
pub(crate) fn prompt_room(
    engine: &Engine,
    session: &Session,
    max_tokens: Option<usize>,
    system: Option<&str>,
) -> Result<usize, Failure> {
    let context_len = session.context_len();
    let n_output = match max_tokens {
        Some(given) => given.min(context_len / 2),
        None => MAX_TOKENS_DEFAULT.min(context_len / 4),
    };
    // A system turn is encoded with the first message.
    let n_system = match system {
        Some(system) if session.tokens().is_empty() => count_tokens(engine, system)?,
        _ => 0,
    };
    let n_template = TEMPLATE_TOKENS.min(context_len / 8);
    Ok(context_len.saturating_sub(n_output + n_template + n_system + session.tokens().len()))
}

fn count_tokens(engine: &Engine, text: &str) -> Result<usize, Failure> {
    let tokens = engine.tokenizer().encode(text, SpecialTokens::AsText);
    Ok(tokens.map_err(|error| Failure::input(error, "give a shorter text"))?.len())
}

/// The task of the options.
pub(crate) fn task(args: &TaskArgs) -> Option<Task> {
    let has_notes = !args.context.is_empty() || args.notes.is_some();
    args.task.or(has_notes.then_some(Task::Answer))
}

fn verb(task: Task) -> &'static str {
    match task {
        Task::Summarize => "summarize",
        Task::Answer => "answer",
        Task::Ui => "act on",
        Task::Reply => "reply to",
    }
}

/// The parts of a message that do not depend on the passages.
struct Layout<'a> {
    engine: &'a Engine,
    task: Task,
    request: &'a str,
    tokens_max: usize,
}

impl Layout<'_> {
    /// The message with as many of the passages as fit.
    fn compose(&self, passages: &[Chosen], shown: &[PassageSource]) -> Result<Composed, Failure> {
        let count = |text: &str| count_tokens(self.engine, text);
        let n_bare = count(&self.message(&[]))?;
        if n_bare > self.tokens_max {
            return Err(self.too_long(n_bare));
        }
        let mut room = self.tokens_max - n_bare;
        loop {
            let Fitted { shown: fitting, left_out } = fit(passages, room, &count)?;
            if fitting.is_empty() && !left_out.is_empty() && shown.is_empty() {
                let problem = format!("the context has room for {room} tokens of notes, too few for any");
                return Err(Failure::input(
                    problem,
                    "raise --ctx, lower --max-tokens, or ask in fewer words",
                ));
            }
            let message = self.message(&fitting);
            let n_tokens = count(&message)?;
            if n_tokens <= self.tokens_max || fitting.is_empty() {
                let sources = fitting.into_iter().map(|passage| passage.source).collect();
                return Ok(Composed { message, bare: self.message(&[]), sources, left_out });
            }
            // Passages have a few more tokens together than separately, so the next attempt has less room, by
            // at least one token.
            room = room.saturating_sub(n_tokens - self.tokens_max);
        }
    }

    fn message(&self, passages: &[Chosen]) -> String {
        let shown: Vec<_> =
            passages.iter().map(|p| PromptPassage { title: &p.title, text: &p.text }).collect();
        self.task.user_message(&shown, self.request)
    }

    fn too_long(&self, n_tokens: usize) -> Failure {
        let room = self.tokens_max;
        let problem = format!("the request has {n_tokens} tokens, and the context has room for {room}");
        Failure::input(problem, "raise --ctx, lower --max-tokens, or ask in fewer words")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_the_first_places_and_counts_the_others() {
        let left = |line| LeftOut {
            path: "a.md".into(),
            line,
            title: String::new(),
            tokens: 10,
            start_shown: line == 1,
        };
        let some = notice(&[left(1), left(2)], 700);
        assert!(
            some.contains("room for 700 tokens: the rest of a.md:1 (10 tokens), a.md:2 (10 tokens); 20"),
            "{some}"
        );
        let many: Vec<LeftOut> = (1..=9).map(left).collect();
        assert!(notice(&many, 700).contains("4 more passages; 90 tokens in all"), "{}", notice(&many, 700));
    }
}
