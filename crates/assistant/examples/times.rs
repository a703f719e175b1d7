//! Time to the first text and total time of the tasks, cold and with a restored prompt, without and with drafts, in one run.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example times -- MODEL.gguf [--tokens 512,2048] [--replay] [--rounds 3]
//! ```
//!
//! The notes are made from a seed. With `--replay` the walk follows a constructed output (sentences of the notes and new ones)
//! instead of the model's choice, and everything else is computed: so the model may have random weights. A command for a screen always
//! follows the model, within its grammar. *Warm*: the same request again, with the prompt that the first one kept; answers are not
//! kept. Rounds take turns; the medians are printed.

use std::error::Error;
use std::time::Instant;

use refrain::{
    Drafting, Engine, EngineOptions, LogitsProcessor, ProcessorError, SessionOptions, SpecialTokens, TokenId,
};
use refrain_assistant::{
    AnswerRequest, Assistant, AssistantOptions, EditRequest, Job, JobEvent, JobOptions, Passage,
    ReplyRequest, Screen, SummarizeRequest, TaskError, UiTask,
};

const TASKS: [&str; 5] = ["summarize", "answer", "ui", "reply", "edit"];
/// Longest text that is edited: its output is as long.
const EDITED_TOKENS_MAX: usize = 512;

const NAMES: [&str; 8] = ["Ada", "Jonas", "Maria", "Rafael", "Theresa", "Bruno", "Ilse", "Marek"];
const THINGS: [&str; 10] = [
    "the pump",
    "the invoice",
    "the garden gate",
    "the bicycle",
    "the roof",
    "the parcel",
    "the old desk",
    "the boiler",
    "the key",
    "the fence",
];
const VERBS: [&str; 8] =
    ["repairs", "collects", "paints", "orders", "measures", "returns", "cleans", "photographs"];
const DAYS: [&str; 6] =
    ["on Monday", "on Thursday morning", "before noon", "next week", "on 14 May", "after the holidays"];

/// A generator of numbers, for text that is the same in every run.
struct Random(u64);

impl Random {
    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        words[(self.0 >> 33) as usize % words.len()]
    }

    fn sentence(&mut self) -> String {
        let (name, verb, thing, day) =
            (self.pick(&NAMES), self.pick(&VERBS), self.pick(&THINGS), self.pick(&DAYS));
        format!("{name} {verb} {thing} {day}.")
    }
}

/// Sentences of at least `n_tokens` tokens together.
fn sentences(engine: &Engine, random: &mut Random, n_tokens: usize) -> Result<Vec<String>, Box<dyn Error>> {
    let (mut sentences, mut n) = (Vec::new(), 0);
    while n < n_tokens {
        let sentence = random.sentence();
        n += engine.tokenizer().encode(&sentence, SpecialTokens::AsText)?.len();
        sentences.push(sentence);
    }
    Ok(sentences)
}

/// Makes the recorded tokens the most likely ones. The first call is at the end of the prompt.
struct Recorded {
    start: Option<usize>,
    response: Vec<TokenId>,
}

impl LogitsProcessor for Recorded {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let start = *self.start.get_or_insert(tokens.len());
        let token = tokens.len().checked_sub(start).and_then(|at| self.response.get(at));
        if let Some(logit) = token.and_then(|token| logits.get_mut(token.index())) {
            *logit = f32::MAX;
        }
        Ok(())
    }
}

/// The request of a task, and the output for a replay.
struct Case {
    task: &'static str,
    sentences: Vec<String>,
    response: Option<Vec<TokenId>>,
}

impl Case {
    fn new(
        engine: &Engine,
        task: &'static str,
        n_tokens: usize,
        replays: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let mut random = Random(7);
        let n_tokens = match task {
            "edit" => n_tokens.min(EDITED_TOKENS_MAX),
            // A screen has a number and a role before each label.
            "ui" => n_tokens * 3 / 5,
            _ => n_tokens,
        };
        let sentences = sentences(engine, &mut random, n_tokens)?;
        let some = |step: usize, n: usize| {
            sentences.iter().step_by(step).take(n).cloned().collect::<Vec<_>>().join(" ")
        };
        let response = match task {
            "summarize" => format!("The notes name five things to do. {} {}", some(7, 3), random.sentence()),
            "answer" => format!("According to the notes, {}", some(11, 1)),
            "reply" => format!(
                "Hello,\n\nthank you for your message. {} That suits me well.\n\nBest regards",
                some(5, 2)
            ),
            _ => {
                let mut edited = sentences.clone();
                edited[sentences.len() / 2] =
                    "This sentence was written anew, because the old one was wrong.".to_owned();
                edited.join(" ")
            }
        };
        let mut response = engine.tokenizer().encode(&response, SpecialTokens::AsText)?;
        response.extend(engine.tokenizer().eos().first());
        let response = Some(response).filter(|_| replays && task != "ui");
        Ok(Self { task, sentences, response })
    }

    /// Milliseconds to the first text and to the end, and tokens.
    fn times(&self, assistant: &Assistant) -> Result<[f64; 3], Box<dyn Error>> {
        let text = self.sentences.join(" ");
        let notes: Vec<Passage> =
            self.sentences.chunks(8).map(|some| Passage::new("Note", some.join(" "))).collect();
        let mut options = JobOptions::default();
        if let Some(response) = &self.response {
            options.processors.push(Box::new(Recorded { start: None, response: response.clone() }));
            options.answer_tokens = Some(response.len() + 1);
        }
        let started = Instant::now();
        match self.task {
            "summarize" => {
                timed(started, assistant.summarize(SummarizeRequest::text("Notes", text), options)?)
            }
            "answer" => {
                let mut request = AnswerRequest::new("Who repairs the pump?");
                request.passages = Some(notes);
                timed(started, assistant.answer(request, options)?)
            }
            "ui" => {
                let screen = Screen::new("Tasks", self.sentences.iter().map(|label| ("item", label)))?;
                // As before the list of commands, so that earlier rows compare.
                let mut task = UiTask::new("Open the task about the pump.");
                task.lists_actions = false;
                timed(started, assistant.ui_command(&task, screen, options)?)
            }
            "reply" => {
                let mut request = ReplyRequest::new(
                    "Mail from Ada",
                    "Can we meet to look at the pump? Please tell me when.",
                );
                request.passages = notes;
                timed(started, assistant.reply(request, options)?)
            }
            _ => timed(
                started,
                assistant.edit(EditRequest::new(text, "Correct the wrong sentence."), options)?,
            ),
        }
    }
}

fn timed<T>(started: Instant, job: Job<T>) -> Result<[f64; 3], Box<dyn Error>> {
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let (mut first, mut n_events) = (None, 0);
    for event in job {
        match event {
            Ok(JobEvent::Text(_)) => {
                first.get_or_insert_with(|| ms(started));
                n_events += 1;
            }
            Ok(_) | Err(TaskError::Incomplete { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok([first.unwrap_or_else(|| ms(started)), ms(started), f64::from(n_events)])
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut model, mut lens, mut replays, mut rounds) = (None, vec![512, 2048], false, 3);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("an option needs a value");
        match arg.as_str() {
            "--tokens" => lens = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--rounds" => rounds = value()?.parse()?,
            "--replay" => replays = true,
            _ => model = Some(arg),
        }
    }
    let engine = Engine::open(model.ok_or("the model file is missing")?, EngineOptions::default())?;
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    println!(
        "{isa}, {n_threads} threads, {rounds} rounds, {}\n",
        if replays { "replay" } else { "the model's own text" }
    );
    println!(
        "| task | tokens of notes | plain: first, total ms | drafts | warm, plain | warm, drafts | total: drafts | warm, drafts |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for &n_tokens in &lens {
        for task in TASKS {
            let case = Case::new(&engine, task, n_tokens, replays)?;
            let mut cells: [Vec<[f64; 3]>; 4] = Default::default();
            for _ in 0..rounds {
                for (way, drafting) in [Drafting::Off, Drafting::Auto].into_iter().enumerate() {
                    let store = tempfile::tempdir()?;
                    let session = SessionOptions {
                        drafting,
                        context_len: Some(n_tokens + 1536),
                        ..SessionOptions::default()
                    };
                    let mut options = AssistantOptions::default();
                    options.session = session;
                    options.history = false;
                    let assistant =
                        Assistant::builder(engine.clone()).store(store.path()).options(options).build()?;
                    cells[way].push(case.times(&assistant)?);
                    cells[2 + way].push(case.times(&assistant)?);
                }
            }
            let median = |times: &[[f64; 3]], of: usize| {
                let mut times: Vec<f64> = times.iter().map(|times| times[of]).collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            };
            let shown: Vec<String> = cells
                .iter()
                .map(|times| format!("{:.0}, {:.0}", median(times, 0), median(times, 1)))
                .collect();
            let ratio = |way: usize| median(&cells[0], 1) / median(&cells[way], 1);
            println!("| {task} | {n_tokens} | {} | {:.2} | {:.2} |", shown.join(" | "), ratio(1), ratio(3));
        }
    }
    Ok(())
}
