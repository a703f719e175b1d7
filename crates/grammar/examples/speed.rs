//! Measures what a grammar costs and what its drafts save: commands for a screen under a JSON Schema, with the fixture model or
//! another one.
//!
//! ```sh
//! cargo run --release -p refrain-grammar --example speed -- [MODEL] [ROUNDS]
//! ```
//!
//! The rows of a grammar have the same outputs; only the drafts differ. A round decodes every request once per row, in turns.

use std::error::Error;
use std::time::{Duration, Instant};

use refrain::{
    Drafting, Engine, EngineOptions, Event, GenerateOptions, LogitsProcessor, Role, Session, SessionOptions,
    Stats,
};
use refrain_grammar::{Grammar, JsonOptions, Vocabulary};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "action": {"enum": ["click", "long_press", "scroll_up", "scroll_down", "type_text", "go_back"]},
        "element": {"enum": ["search_field", "send_button", "attach_button", "contact_list", "settings_menu", "none"]},
        "text": {"type": "string", "maxLength": 24},
        "is_final": {"type": "boolean"}
    },
    "required": ["action", "element", "is_final"],
    "additionalProperties": false
}"#;

const GOALS: [&str; 8] = [
    "Send the message.",
    "Scroll to the end of the list.",
    "Attach the file.",
    "Open the settings.",
    "Search for Anna.",
    "Go back to the last page.",
    "Write that I am late.",
    "Choose the first contact.",
];

/// How a request is decoded.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    TextDrafts,
    GrammarDrafts,
    AllDrafts,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Plain, "no drafts"),
    (Way::TextDrafts, "text"),
    (Way::GrammarDrafts, "grammar"),
    (Way::AllDrafts, "text + grammar"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| MODEL.to_owned());
    let rounds: usize = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let engine = Engine::open(&model, EngineOptions::default())?;
    let (vocabulary, opened) = timed(|| Vocabulary::of_engine(&engine));
    let vocabulary = vocabulary?;
    println!("vocabulary of {} tokens: {opened:.1?}", vocabulary.tokenizer().vocab_size());
    for (name, whitespace) in [("compact", false), ("white space", true)] {
        let mut options = JsonOptions::default();
        options.whitespace = whitespace;
        let (grammar, compiled) = timed(|| Grammar::json_schema(&vocabulary, SCHEMA, options));
        let grammar = grammar?;
        println!("\n{name}: compiled in {compiled:.1?}, mask made in {:.1?}", timed(|| grammar.mask()).1);
        measure(&engine, &grammar, rounds)?;
    }
    Ok(())
}

#[allow(clippy::needless_range_loop, reason = "the index is that of a request, in every list of sessions")]
fn measure(engine: &Engine, grammar: &Grammar, rounds: usize) -> Result<(), Box<dyn Error>> {
    let mut totals: Vec<Total> = WAYS.iter().map(|_| Total::default()).collect();
    let mut sessions: Vec<Vec<Session>> = Vec::new();
    for (way, _) in WAYS {
        let drafting = match way {
            Way::Plain => Drafting::Off,
            Way::GrammarDrafts => Drafting::OwnSources,
            Way::TextDrafts | Way::AllDrafts => Drafting::Auto,
        };
        let options = SessionOptions { drafting, history: false, ..SessionOptions::default() };
        let session = |goal: &&str| -> Result<Session, Box<dyn Error>> {
            let mut session = engine.session(options.clone())?;
            let screen = "Elements: search_field, send_button, attach_button, contact_list, settings_menu.";
            session.append_turn(Role::User, format!("{screen}\n{goal}\nAnswer with a command."))?;
            Ok(session)
        };
        sessions.push(GOALS.iter().map(session).collect::<Result<_, _>>()?);
    }
    let mut mask_us = Vec::new();
    for round in 0..=rounds {
        for goal in 0..GOALS.len() {
            let mut texts = Vec::new();
            for (at, (way, _)) in WAYS.iter().enumerate() {
                let (text, stats, masks) = decode(&sessions[at][goal], grammar, *way)?;
                texts.push(text);
                // The first round warms up and learns.
                if round > 0 {
                    totals[at].add(&stats);
                    mask_us.extend(masks);
                }
            }
            assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "drafts change no output: {texts:?}");
            if round == 0 && goal < 2 {
                println!("  {}", texts[0]);
            }
        }
    }
    println!(
        "| drafts from | tokens per step | µs per token | time | of which masks, choice, walk | drafting |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for ((_, name), total) in WAYS.iter().zip(&totals) {
        let per_token = total.us / total.tokens as f64;
        println!(
            "| {name} | {:.2} | {per_token:.0} | {:.2} | {:.0} | {:.0} |",
            total.tokens as f64 / total.steps as f64,
            totals[0].us / totals[0].tokens as f64 / per_token,
            total.walk_us / total.tokens as f64,
            total.draft_us / total.tokens as f64
        );
    }
    mask_us.sort_by(f64::total_cmp);
    let at = |share: f64| mask_us[((mask_us.len() - 1) as f64 * share) as usize];
    println!(
        "mask of a token in µs: p50 {:.1}, p90 {:.1}, p99 {:.1}, most {:.0}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    Ok(())
}

/// Decodes one request in a copy of its session. Returns the text, the statistics, and the times of the masks in µs.
fn decode(
    session: &Session,
    grammar: &Grammar,
    way: Way,
) -> Result<(String, Stats, Vec<f64>), Box<dyn Error>> {
    let mut session = session.fork()?;
    let (times, timed_mask) = TimedMask::new(grammar);
    let mut options = GenerateOptions { max_tokens: 96, ..GenerateOptions::default() };
    if matches!(way, Way::GrammarDrafts | Way::AllDrafts) {
        options = grammar.constrain(options);
    } else {
        options.processors.push(Box::new(timed_mask));
    }
    let (mut text, mut stats) = (String::new(), None);
    for event in session.generate(options)? {
        match event? {
            Event::Token(token) => text.push_str(&token.text),
            Event::Done(summary) => stats = Some(summary.stats),
            _ => {}
        }
    }
    let times = std::mem::take(&mut *times.lock().expect("no panic"));
    Ok((text, stats.expect("an end"), times))
}

/// A mask whose calls are timed.
struct TimedMask {
    mask: refrain_grammar::GrammarMask,
    times: std::sync::Arc<std::sync::Mutex<Vec<f64>>>,
}

impl TimedMask {
    fn new(grammar: &Grammar) -> (std::sync::Arc<std::sync::Mutex<Vec<f64>>>, Self) {
        let times = std::sync::Arc::default();
        (std::sync::Arc::clone(&times), Self { mask: grammar.mask(), times })
    }
}

impl LogitsProcessor for TimedMask {
    fn process(
        &mut self,
        tokens: &[refrain::TokenId],
        logits: &mut [f32],
    ) -> Result<(), refrain::ProcessorError> {
        let (result, time) = timed(|| self.mask.process(tokens, logits));
        self.times.lock().expect("no panic").push(time.as_secs_f64() * 1e6);
        result
    }
}

#[derive(Default)]
struct Total {
    tokens: usize,
    steps: usize,
    us: f64,
    walk_us: f64,
    draft_us: f64,
}

impl Total {
    fn add(&mut self, stats: &Stats) {
        let time = &stats.time_us;
        self.tokens += stats.tokens;
        self.steps += stats.steps;
        self.us += time.draft + time.forward + time.walk + time.commit + time.observe;
        self.walk_us += time.walk;
        self.draft_us += time.draft;
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = work();
    (result, started.elapsed())
}
