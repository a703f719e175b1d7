//! Persisted history never changes the output: tokens and texts equal those of plain decoding, for any contents and
//! any layout of the files.

use std::path::Path;

use refrain::drafting::{Calibration, CostProfile, DraftPolicy, DraftRows, EchoConfig};
use refrain::{
    Drafting, Engine, EngineOptions, Event, GenerateOptions, Role, Sampling, Session, SessionOptions, Stats,
    TokenId,
};
use refrain_index::{HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

const PROMPTS: [&str; 3] = [
    "Summarize the notes.\n\n# Trip\nThe train leaves at 08:15 from platform 4. Ada brings the tickets.",
    "Where does Ada live?\n\n# Ada Voss\nAda lives in Lisbon and repairs taps.",
    "Reply to the message.\n\nCan we meet on 3 May at ten?",
];

fn engine() -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/target.gguf");
    // Every draft pays: measured costs depend on what else the machine does.
    let cost_profile = Some(CostProfile::free_rows(100.0));
    let options = EngineOptions { n_threads: Some(1), cost_profile, ..EngineOptions::default() };
    Engine::open(&model, options).expect("the fixture loads")
}

fn samplings() -> [Sampling; 2] {
    [Sampling::default(), Sampling { temperature: 0.8, top_p: 0.95, seed: Some(5), ..Sampling::default() }]
}

fn plain() -> SessionOptions {
    SessionOptions { drafting: Drafting::Off, history: false, ..SessionOptions::default() }
}

/// A session that drafts from the log only.
fn with_history(engine: &Engine, log: &HistoryLog) -> Session {
    let options =
        SessionOptions { drafting: Drafting::OwnSources, history: false, ..SessionOptions::default() };
    let mut session = engine.session(options).expect("a session");
    session.add_source(Box::new(log.source("tests"))).expect("room for a source");
    session
}

/// The answer of a session: tokens, text, statistics.
fn answer(mut session: Session, prompt: &str, sampling: &Sampling) -> (Vec<TokenId>, String, Stats) {
    session.append_turn(Role::User, prompt).expect("a conversation");
    let options =
        GenerateOptions { max_tokens: 48, sampling: sampling.clone(), ..GenerateOptions::default() };
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut stats = None;
    for event in session.generate(options).expect("starts") {
        match event.expect("generates") {
            Event::Token(token) => {
                tokens.push(token.id);
                text.push_str(&token.text);
            }
            Event::Done(summary) => {
                text.push_str(&summary.text);
                stats = Some(summary.stats);
            }
            _ => {}
        }
    }
    (tokens, text, stats.expect("an end"))
}

#[test]
fn persisted_history_changes_speed_and_nothing_else() {
    let engine = engine();
    let key = HistoryKey::of(&engine);
    // All responses in the log; most in segments; some segments merged.
    for (live_tokens_max, merged) in [(1 << 16, false), (64, false), (64, true)] {
        let folder = tempfile::tempdir().expect("a folder");
        let options =
            HistoryOptions { sync: SyncPolicy::Never, live_tokens_max, ..HistoryOptions::default() };
        for sampling in &samplings() {
            let expected: Vec<_> = PROMPTS
                .iter()
                .map(|prompt| answer(engine.session(plain()).expect("a session"), prompt, sampling))
                .collect();
            let (mut steps, mut tokens) = (0, 0);
            for is_known in [false, true] {
                // A reopened history, as in another process.
                let log = HistoryLog::open(folder.path(), key, options.clone()).expect("opens");
                for (prompt, plain) in PROMPTS.iter().zip(&expected) {
                    let found = answer(with_history(&engine, &log), prompt, sampling);
                    assert_eq!(
                        (&found.0, &found.1),
                        (&plain.0, &plain.1),
                        "{prompt} {live_tokens_max} {is_known}"
                    );
                    if is_known {
                        steps += found.2.steps;
                        tokens += found.0.len();
                    } else {
                        log.append("tests", &found.0).expect("appends");
                    }
                }
                if merged {
                    log.maintain().expect("merges");
                }
            }
            assert!(steps * 2 < tokens, "{steps} steps for {tokens} tokens that were said before");
        }
        let log = HistoryLog::open(folder.path(), key, options).expect("opens");
        let stats = log.stats();
        assert_eq!(stats.namespaces[0].n_segments > 0, live_tokens_max == 64, "{stats:?}");
    }
}

#[test]
fn a_history_of_other_tokens_does_no_harm() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        HistoryOptions { sync: SyncPolicy::Never, live_tokens_max: 64, ..HistoryOptions::default() };
    let log = HistoryLog::open(folder.path(), HistoryKey::of(&engine), options).expect("opens");
    let (plain, _, _) = answer(engine.session(plain()).expect("a session"), PROMPTS[0], &Sampling::default());
    // Drafts that are right up to a point, drafts that are wrong by one, and tokens outside the vocabulary.
    for at in 0..plain.len() {
        let mut wrong = plain.clone();
        wrong[at] = TokenId(if at % 3 == 0 { u32::MAX - at as u32 } else { wrong[at].0 ^ 1 });
        log.append("tests", &wrong).expect("appends");
    }
    log.maintain().expect("merges");
    let (found, _, _) = answer(with_history(&engine, &log), PROMPTS[0], &Sampling::default());
    assert_eq!(found, plain);
}

/// Lists of echo that were kept by an earlier process, for other prompts and another sampling too.
#[test]
fn kept_lists_of_echo_change_speed_and_nothing_else() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let key = HistoryKey::of(&engine);
    let options = HistoryOptions { sync: SyncPolicy::Never, ..HistoryOptions::default() };
    let echoing = |log: &HistoryLog| {
        let config = EchoConfig { rejected_rows: 64, lists_max: 3000 };
        let options = SessionOptions {
            echo: Some(config),
            calibration: Calibration::Full,
            history: false,
            policy: DraftPolicy { rows: DraftRows::Fixed(8), ..DraftPolicy::default() },
            ..SessionOptions::default()
        };
        let mut session = engine.session(options).expect("a session");
        log.share_echo(&mut session, "tests", config.lists_max).expect("a store");
        session
    };
    let mut steps = [0; 2];
    for n_steps in &mut steps {
        for sampling in &samplings() {
            for prompt in PROMPTS {
                let log = HistoryLog::open(folder.path(), key, options.clone()).expect("opens");
                let expected = answer(engine.session(plain()).expect("a session"), prompt, sampling);
                let found = answer(echoing(&log), prompt, sampling);
                assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{prompt}");
                *n_steps += found.2.steps;
                log.append("tests", &found.0).expect("appends");
                log.maintain().expect("keeps the lists");
                assert!(log.echo("tests", 1).expect("a store").len() > 100);
            }
        }
    }
    assert!(steps[1] < steps[0], "{steps:?}: kept lists draft");
}
