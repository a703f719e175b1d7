//! The time of rewriting a note whose text is in the prompt, by kind of edit: drafting beside plain decoding, in one run.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example edit_speed -- MODEL.gguf [--rows 16] [--only NAME]
//! cargo run --release -p refrain-assistant --example edit_speed -- MODEL.gguf --replay    # by a table of costs, without running the model
//! cargo run --release -p refrain-assistant --example edit_speed -- MODEL.gguf --real      # what the model itself writes
//! ```
//!
//! Without `--real`, the walk follows the constructed new text instead of the model's choice; everything else is computed. So the model may have random
//! weights. Times exclude prefill. What drafting learns is kept from edit to edit, as in an app.

use std::convert::Infallible;
use std::error::Error;
use std::ops::ControlFlow;

use refrain::drafting::{Calibration, CostProfile, DraftSource, DraftTree, ReuseConfig, StepOutcome};
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::draft::{
    BuilderConfig, ContextSource, NodeSet, PredictionsSource, ReliabilityTable, ResumeSource, StepLimits,
    TreeBuilder,
};
use refrain::internals::verify::{Walk, walk};
use refrain::{
    Drafting, Engine, EngineOptions, GenerateOptions, LogitsProcessor, ProcessorError, Role, SessionOptions,
    SpecialTokens, Stats, TokenId,
};
use refrain_assistant::edit::{DiffEvent, LiveDiff};

/// Times of batches of a 1.5B in Q4_0, in µs by rows (`benches/results/recorded-text.json`).
const COSTS: [(usize, f32); 5] =
    [(1, 22_700.0), (4, 26_300.0), (8, 28_200.0), (16, 44_300.0), (32, 88_100.0)];

const NOTE: &str = include_str!("../tests/note.md");

/// Kinds of edits: name, old text, new text.
fn edits() -> Vec<(&'static str, String, String)> {
    let note = NOTE.to_owned();
    let sentence =
        "We switched off the power at the main board, carried the boxes upstairs and opened both windows.";
    let other = "Everybody helped to carry the boxes to the garage, and the power was off until noon.";
    let paragraphs: Vec<&str> = NOTE.trim_end().split("\n\n").collect();
    let join = |order: &[usize]| order.iter().map(|&i| paragraphs[i]).collect::<Vec<_>>().join("\n\n") + "\n";
    let all = |pairs: &[(&str, &str)]| pairs.iter().fold(note.clone(), |text, (a, b)| text.replace(a, b));
    let typos = all(&[
        ("probably", "probaly"),
        ("noticed", "noticd"),
        ("strainer", "stariner"),
        ("insurance", "insurence"),
        ("damaged", "damagd"),
        ("neighbours", "neigbours"),
        ("heavily", "heavly"),
        ("kitchen", "kichen"),
    ]);
    let words: Vec<&str> = NOTE.split_inclusive(' ').collect();
    let really = words.chunks(12).map(|chunk| chunk.concat() + "really ").collect::<String>();
    let lines = |from: &str, to: &str| note.replace(from, to);
    vec![
        ("unchanged", note.clone(), note.clone()),
        ("one sentence changed", note.clone(), note.replace(sentence, other)),
        ("one sentence changed at the end", note.clone(), note.replace("The spare key hangs behind the kitchen door.", "Ask Maria for the spare key.")),
        ("one sentence changed at the start", note.clone(), note.replace("On Tuesday morning we found about four centimetres of water in the cellar.", "The cellar was under water when we got up on Tuesday.")),
        ("one word replaced", note.clone(), note.replace("twenty minutes", "forty minutes")),
        ("five words replaced", note.clone(), all(&[("half past eleven", "half past nine"), ("240 euros", "260 euros"), ("Friday", "Thursday"), ("two carpets", "three carpets"), ("two hours", "three hours")])),
        ("a name replaced", note.clone(), all(&[("Jonas", "Benedikt"), ("Maria", "Theresa")])),
        ("sentence deleted", note.clone(), note.replace(" Maria noticed it first when she went down to fetch the bicycle.", "")),
        ("sentence inserted", note.clone(), note.replace("almost dry. ", "almost dry. Then he drank a cup of coffee with us. ")),
        ("sentence moved back", note.clone(), note.replace(" Maria noticed it first when she went down to fetch the bicycle.", "").replace("both windows.", "both windows. Maria noticed it first when she went down to fetch the bicycle.")),
        ("sentence moved forward", note.clone(), note.replace(&format!(" {sentence}"), "").replace("On Tuesday morning", &format!("{sentence} On Tuesday morning"))),
        ("typos corrected", typos, note.clone()),
        ("tense changed", note.clone(), all(&[("had stopped", "stopped"), ("was stuck", "has been stuck"), ("has uploaded", "uploaded"), ("have blocked", "block"), ("was damaged", "has been damaged"), ("recommends", "recommended")])),
        ("paragraph deleted", note.clone(), join(&[0, 1, 2, 4, 5, 6])),
        ("paragraphs swapped", note.clone(), join(&[0, 1, 3, 2, 4, 5, 6])),
        ("list reordered", note.clone(), lines("- borrow a second dehumidifier from the neighbours\n- call the insurance again on Friday and ask for the claim number\n- order a grating with a finer mesh for the yard\n", "- order a grating with a finer mesh for the yard\n- call the insurance again on Friday and ask for the claim number\n- borrow a second dehumidifier from the neighbours\n")),
        ("list to sentences", note.clone(), all(&[("\n- ", " We have to "), ("neighbours We", "neighbours. We"), ("number We", "number. We"), ("yard We", "yard. We"), ("mouldy We", "mouldy. We")])),
        ("we to they", note.clone(), all(&[(" we ", " they "), ("We ", "They "), (" us", " them")])),
        ("a word inserted in every line", note.clone(), really),
        ("sentences shortened", note.clone(), all(&[(", probably because the float switch was stuck under the lid", ""), (" when she went down to fetch the bicycle", ""), (", cleaned the strainer", ""), (", so rain water runs down the steps instead of into the sewer", ""), (", and he recommends a second pump with its own battery", ""), (", which may take ten days", "")])),
        ("one sentence translated", note.clone(), note.replace(sentence, "Wir haben den Strom am Hauptschalter ausgeschaltet, die Kisten nach oben getragen und beide Fenster geöffnet.")),
        ("rewritten as a letter", note.clone(), "Dear Sir or Madam,\n\nI am writing to report water damage at our house. During the night to Tuesday our pump failed, and in the morning the cellar stood four centimetres under water. A plumber repaired the pump the same day; he thinks that a blocked drain outside caused the flood and will clean it in the middle of October. We lost two carpets, a desk and some thirty books, and our washing machine makes strange noises. Photographs are available. Please send me the claim number and tell me when your expert can come.\n\nYours faithfully".to_owned()),
    ]
}

/// Makes the recorded tokens the most likely ones.
struct Recorded {
    start: usize,
    response: Vec<TokenId>,
}

impl LogitsProcessor for Recorded {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let token = self.response.get(tokens.len() - self.start);
        if let Some(logit) = token.and_then(|token| logits.get_mut(token.index())) {
            *logit = f32::MAX;
        }
        Ok(())
    }
}

/// An edit as tokens.
struct Edit {
    prompt: Vec<TokenId>,
    response: Vec<TokenId>,
}

impl Edit {
    fn new(engine: &Engine, old: &str, new: &str) -> Result<Self, Box<dyn Error>> {
        let prompt = format!(
            "Rewrite the note by the instruction: correct what is wrong.\n\n{old}\nThe new note:\n\n"
        );
        let encode = |text: &str| engine.tokenizer().encode(text, SpecialTokens::AsText);
        Ok(Edit { prompt: encode(&prompt)?, response: encode(new)? })
    }

    /// Decodes with the model.
    fn decode(&self, engine: &Engine, drafting: Drafting, rows: usize) -> Result<Stats, Box<dyn Error>> {
        let mut session = engine.session(SessionOptions {
            context_len: Some(self.prompt.len() + self.response.len() + 1),
            drafting,
            draft_model: false,
            history: false,
            // The model's own answer would differ from the constructed one.
            calibration: Calibration::Off,
            verify_rows_max: rows,
            ..SessionOptions::default()
        })?;
        session.append_tokens(&self.prompt)?;
        let recorded = Recorded { start: self.prompt.len(), response: self.response.clone() };
        let generation = session.generate(GenerateOptions {
            max_tokens: self.response.len(),
            ignore_eos: true,
            processors: vec![Box::new(recorded)],
            ..GenerateOptions::default()
        })?;
        let mut said = Vec::new();
        let summary = generation.run(|token| {
            said.push(token.id);
            ControlFlow::Continue(())
        })?;
        assert_eq!(said, self.response, "the walk follows the constructed text");
        Ok(summary.stats)
    }

    /// The number of steps and their time in µs, by the table of costs.
    fn replay(
        &self,
        mut sources: Vec<Box<dyn DraftSource>>,
        builder: &mut TreeBuilder,
        rows: usize,
    ) -> (usize, f64) {
        let costs = CostProfile::from_measurements(&COSTS);
        let mut committed = self.prompt.clone();
        sources.iter_mut().for_each(|source| source.prime(&committed));
        let (mut tree, mut path) = (DraftTree::default(), Walk::default());
        let (mut n_said, mut n_steps, mut us) = (0, 0, 0.0);
        while n_said < self.response.len() {
            let rest = &self.response[n_said..];
            let limits = StepLimits { max_rows: rows, max_depth: rest.len() - 1, ..StepLimits::NONE };
            builder.build(&mut sources, &committed, limits, &costs, &mut tree);
            let mut n_new = 0;
            let choose = |_, chosen: &[TokenId]| Ok::<_, Infallible>(rest[chosen.len()]);
            let is_end = |_| {
                n_new += 1;
                n_new == rest.len()
            };
            let Ok(()) = walk(&tree, NodeSet::ALL, &mut path, choose, is_end);
            let new_tokens = &rest[..n_new];
            committed.extend_from_slice(new_tokens);
            let accepted = &path.path()[1..];
            builder.observe(&mut sources, &committed, &StepOutcome { tree: &tree, accepted, new_tokens });
            us += f64::from(costs.verify_us(tree.len(), 1));
            (n_said, n_steps) = (n_said + n_new, n_steps + 1);
        }
        (n_steps, us)
    }
}

/// Sums over the edits, and a row of the table for each.
#[derive(Default)]
struct Total {
    tokens: usize,
    steps: usize,
    us: f64,
    plain_us: f64,
}

impl Total {
    fn add(&mut self, tokens: usize, (steps, us): (usize, f64), plain_us: f64) -> String {
        self.tokens += tokens;
        self.steps += steps;
        self.us += us;
        self.plain_us += plain_us;
        Total { tokens, steps, us, plain_us }.cells()
    }

    fn cells(&self) -> String {
        format!(" {:.2} | {:.2} |", self.tokens as f64 / self.steps as f64, self.plain_us / self.us)
    }
}

/// Instructions for a model that follows them.
const INSTRUCTIONS: [&str; 4] = [
    "Change Friday to Thursday.",
    "Write Benedikt instead of Jonas.",
    "Leave out the list.",
    "Correct the spelling.",
];

/// What the model itself writes for each instruction, with and without drafts.
fn real(engine: &Engine) -> Result<(), Box<dyn Error>> {
    println!("| instruction | tokens | kept bytes of the old text | tokens per step | times plain |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for instruction in INSTRUCTIONS {
        let run = |drafting| -> Result<(String, Stats), Box<dyn Error>> {
            let mut session =
                engine.session(SessionOptions { drafting, history: false, ..SessionOptions::default() })?;
            let request = format!("Rewrite this note and change nothing else. {instruction}\n\n{NOTE}");
            session.append_turn(Role::User, &request)?;
            let mut text = String::new();
            let options = GenerateOptions { max_tokens: 600, ..GenerateOptions::default() };
            let summary = session.generate(options)?.run(|token| {
                text.push_str(&token.text);
                ControlFlow::Continue(())
            })?;
            Ok((text + &summary.text, summary.stats))
        };
        let (plain, plain_stats) = run(Drafting::Off)?;
        let (text, stats) = run(Drafting::Auto)?;
        assert_eq!(plain, text, "drafting changes no text");
        let mut diff = LiveDiff::new(NOTE);
        let events = [diff.push(&text), diff.finish()].concat();
        let kept =
            events.iter().map(|event| if let DiffEvent::Keep { old, .. } = event { old.len() } else { 0 });
        println!(
            "| {instruction} | {} | {} of {} | {:.2} | {:.2} |",
            stats.tokens,
            kept.sum::<usize>(),
            NOTE.len(),
            stats.tokens as f64 / stats.steps as f64,
            plain_stats.time_us.decode() / stats.time_us.decode()
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (mut model, mut rows, mut only) = (None, 16, String::new());
    let (mut is_replay, mut is_real) = (false, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rows" => rows = args.next().ok_or("--rows needs a number")?.parse()?,
            "--only" => only = args.next().ok_or("--only needs a name")?,
            "--real" => is_real = true,
            "--replay" => is_replay = true,
            _ => model = Some(arg),
        }
    }
    let engine = Engine::open(model.ok_or("the model file is missing")?, EngineOptions::default())?;
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    println!("{isa}, {n_threads} threads, at most {rows} rows\n");
    if is_real {
        return real(&engine);
    }
    let edits = edits().into_iter().filter(|(name, ..)| name.contains(&only));
    let (mut drafted, mut right) = (Total::default(), Total::default());
    if is_replay {
        let vocab_size = engine.config().vocab_size;
        println!(
            "| edit | tokens | tokens per step | times plain | if every draft were right: tokens per step | times plain |"
        );
        println!("| --- | ---: | ---: | ---: | ---: | ---: |");
        let mut table = ReliabilityTable::new();
        for (name, old, new) in edits {
            let edit = Edit::new(&engine, &old, &new)?;
            let n = edit.response.len();
            let plain_us = n as f64 * f64::from(COSTS[0].1);
            // With `PredictionsSource` the builder treats the claims as in a session.
            let own: Vec<Box<dyn DraftSource>> = vec![
                Box::new(ContextSource::new()),
                Box::new(ResumeSource::new()),
                Box::new(PredictionsSource::new(Some(ReuseConfig::default()))),
            ];
            let config = BuilderConfig { max_rows: rows, ..BuilderConfig::new(vocab_size) };
            let mut builder = TreeBuilder::with_table(config, table);
            let line = drafted.add(n, edit.replay(own, &mut builder, rows), plain_us);
            table = builder.table().clone();
            let mut builder = TreeBuilder::new(BuilderConfig::as_claimed(vocab_size, rows));
            let known =
                vec![Box::new(AlwaysRight::new(edit.prompt.len(), edit.response.clone()))
                    as Box<dyn DraftSource>];
            println!(
                "| {name} | {n} |{line}{}",
                right.add(n, edit.replay(known, &mut builder, rows), plain_us)
            );
        }
        println!("| all | {} |{}{}", drafted.tokens, drafted.cells(), right.cells());
        return Ok(());
    }
    println!("| edit | tokens | plain ms per token | tokens per step | times plain |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (name, old, new) in edits {
        let edit = Edit::new(&engine, &old, &new)?;
        let plain_us = edit.decode(&engine, Drafting::Off, rows)?.time_us.decode();
        let stats = edit.decode(&engine, Drafting::Auto, rows)?;
        let n = edit.response.len();
        let line = drafted.add(n, (stats.steps, stats.time_us.decode()), plain_us);
        println!("| {name} | {n} | {:.1} |{line}", plain_us / 1e3 / n as f64);
    }
    println!(
        "| all | {} | {:.1} |{}",
        drafted.tokens,
        drafted.plain_us / 1e3 / drafted.tokens as f64,
        drafted.cells()
    );
    Ok(())
}
