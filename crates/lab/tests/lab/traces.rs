//! Logit traces hold what the target says, also after rejected drafts.

use std::ops::ControlFlow;
use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::Calibration;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::CostProfile;
use refrain::{Drafting, Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId};
use refrain_bench::rules::LogitRule;
use refrain_bench::trace::{RecordError, RecordOptions, record};
use refrain_bench::{Constants, Costs, Row, Setting, Sources, Strategy, rows};

const OPTIONS: RecordOptions = RecordOptions { max_tokens: 24, prompt_tokens_max: 400 };

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn engine() -> Engine {
    let options = EngineOptions {
        n_threads: Some(2),
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::open(fixture("target.gguf"), options).unwrap()
}

fn settings() -> Vec<Setting> {
    let strategies = [Strategy::LogitRule(LogitRule::Racer), Strategy::Refrain];
    let setting = |strategy| Setting {
        strategy,
        sources: Sources::Passages,
        max_rows: 16,
        costs: Costs::free(),
        constants: Constants::default(),
        fresh: false,
        stake: None,
        draft_us_per_node: None,
        explain: false,
    };
    strategies.map(setting).to_vec()
}

/// What plain decoding says after `text`.
fn says(engine: &Engine, text: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    let mut session = engine
        .session(SessionOptions {
            drafting: Drafting::Off,
            calibration: Calibration::Off,
            reuse: None,
            ..SessionOptions::default()
        })
        .unwrap();
    session.append_tokens(text).unwrap();
    let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
    let mut said = Vec::new();
    let keep = |token: &refrain::TokenEvent| {
        said.push(token.id);
        ControlFlow::Continue(())
    };
    session.generate(options).unwrap().run(keep).unwrap();
    said
}

#[test]
fn every_row_is_what_plain_decoding_says_there() {
    let engine = engine();
    let all = rows::read(&[fixture("rows.jsonl")]).unwrap();
    let chosen: Vec<&Row> = all.iter().filter(|row| row.task == all[0].task).take(3).collect();
    let without = record(&engine, &chosen, &settings(), OPTIONS, |_, _| {});
    assert!(matches!(without, Err(RecordError::NoModel)));
    let model = Checkpoint::open(fixture("target.gguf")).unwrap();
    engine.set_draft_model(&model, DraftModelOptions::default(), |_, _| {}).unwrap();
    let (trace, n_left_out) = record(&engine, &chosen, &settings(), OPTIONS, |_, _| {}).unwrap();
    assert_eq!((trace.rows.len(), n_left_out), (3, 0));
    let mut n_branches = 0;
    for row in &trace.rows {
        let rows = row.target.as_deref().unwrap();
        let text = [row.prompt.as_slice(), &row.response].concat();
        assert_eq!(says(&engine, &row.prompt, row.response.len()), row.response);
        assert_eq!(rows.text().len(), text.len());
        for (i, top) in rows.text().iter().enumerate().take(row.prompt.len()).step_by(16) {
            assert_eq!(
                says(&engine, &text[..=i], 1)[0],
                top.token(0).unwrap(),
                "after token {i} of the prompt"
            );
        }
        let branches = rows.branches();
        n_branches += branches.len();
        for branch in branches.iter().step_by(9) {
            let mut path = vec![branch.token];
            let mut place = branch.parent as usize;
            while let Some(above) = place.checked_sub(text.len()) {
                path.push(branches[above].token);
                place = branches[above].parent as usize;
            }
            path.reverse();
            let said = says(&engine, &[&text[..=place], &path].concat(), 1);
            assert_eq!(said[0], branch.top.token(0).unwrap(), "after {path:?} at token {place}");
            let shares: Vec<f32> = branch.top.iter().map(|likely| likely.1).collect();
            assert!(shares.is_sorted_by(|a, b| a >= b) && shares.iter().sum::<f32>() <= 1.001, "{shares:?}");
        }
    }
    assert!(n_branches > 200, "{n_branches}");
}
