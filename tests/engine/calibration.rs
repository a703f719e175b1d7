//! Calibration: the sources receive the target's own successors, also after further turns, truncation and forks.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use refrain::checkpoint::Checkpoint;
use refrain::drafting::{
    Anchor, Calibration, Candidates, Cursor, DraftPolicy, DraftRows, DraftSource, DraftTree, EchoConfig,
    EvidenceClass, NodeIdx, ReuseConfig, Successor, SuccessorLists, TargetListener,
};
use refrain::internals::draft::CostProfile;
use refrain::internals::engine::TARGET_READ_STEP_US_MIN;
use refrain::internals::error::SessionProblem;
use refrain::internals::kernels::{BlockType, Kernels, Pool};
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{
    CancelToken, Engine, EngineOptions, GenerateOptions, KvType, Quantize, Sampling, Session, SessionOptions,
    TokenId,
};

use crate::common::{self, Tiny, assert_turns_agree, options, plain, prompt, run_in, samplings};
use crate::model_files::golden;

/// Records the received lists, and drafts nothing.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<SuccessorLists>>);

impl Listener {
    fn lists(&self) -> Vec<Vec<Successor>> {
        let lists = self.0.lock().unwrap();
        (0..lists.len()).map(|position| lists.list(position).collect()).collect()
    }
}

impl TargetListener for Listener {
    fn calibrate(&mut self, committed: &[TokenId], first: usize, lists: &SuccessorLists) {
        assert!(first + lists.len() <= committed.len());
        self.0.lock().unwrap().write(first, lists);
    }
}

impl DraftSource for Listener {
    fn name(&self) -> &str {
        "listener"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }

    fn truncate(&mut self, len: usize) {
        self.0.lock().unwrap().truncate(len);
    }

    fn anchors(&mut self, _committed: &[TokenId], _out: &mut Vec<Anchor>) {}

    fn expand(&mut self, _frontier: &[Cursor], _out: &mut Candidates) {}

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Listener(Arc::new(Mutex::new(self.0.lock().unwrap().clone()))))
    }
}

fn session(engine: &Engine, calibration: Calibration, prefill_chunk: usize) -> (Session, Listener) {
    let options = SessionOptions { calibration, prefill_chunk, history: false, ..SessionOptions::default() };
    let mut session = engine.session(options).unwrap();
    let listener = Listener::default();
    session.add_source(Box::new(listener.clone())).unwrap();
    (session, listener)
}

fn generate(session: &mut Session, max_tokens: usize) -> Vec<TokenId> {
    let sampling = Sampling { temperature: 0.8, seed: Some(4), ..Sampling::default() };
    let options = GenerateOptions { max_tokens, sampling, ignore_eos: true, ..GenerateOptions::default() };
    common::run_in(session, options, usize::MAX).tokens
}

/// The likeliest tokens of each position, from the logits of a pass over all tokens.
fn expected(engine: &Engine, tokens: &[TokenId]) -> Vec<Vec<(u32, f32)>> {
    let mut session = engine.session(common::plain()).unwrap();
    session.append_tokens(tokens).unwrap();
    let mut lists = Vec::new();
    let mut list = |logits: &[f32]| {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = logits.iter().map(|x| (x - max).exp()).sum::<f32>().ln() + max;
        let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().map(|x| (x - total).exp())).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        lists.push(all);
    };
    session.score(&CancelToken::new(), Some(&mut list)).unwrap();
    lists
}

fn check(lists: &[Vec<Successor>], expected: &[Vec<(u32, f32)>], case: &str) {
    assert!(!lists.is_empty());
    for (position, (list, expected)) in lists.iter().zip(expected).enumerate() {
        let likely = expected.iter().take(8).take_while(|(_, probability)| *probability > 1.1e-3).count();
        assert!(list.len() >= likely, "{case}: {} successors at {position}, not {likely}", list.len());
        for (successor, (token, probability)) in list.iter().zip(expected) {
            assert_eq!(successor.token.0, *token, "{case}, position {position}");
            let ratio = successor.log_probability.exp() / probability;
            assert!(
                (0.95..1.05).contains(&ratio),
                "{case}, position {position}: {successor:?} {probability}"
            );
        }
    }
}

#[test]
fn every_position_has_the_targets_successors() {
    // The shortlist contains the whole vocabulary of bytes, so both modes give the same lists.
    let prompt = prompt(3, 70);
    for calibration in [Calibration::InContext, Calibration::Full] {
        for prefill_chunk in [1, 7, 64, 512] {
            let engine = Tiny { ty: BlockType::Q8_0, ..Tiny::default() }.engine(2);
            let (mut session, listener) = session(&engine, calibration, prefill_chunk);
            session.append_tokens(&prompt).unwrap();
            generate(&mut session, 20);
            let lists = listener.lists();
            assert_eq!(lists.len(), session.tokens().len() - 1, "all but the newest token");
            let case = format!("{calibration:?}, chunks of {prefill_chunk}");
            check(&lists, &expected(&engine, session.tokens()), &case);
        }
    }
}

/// Short convolutions, the gated delta rule, Mamba-2 with experts and without.
const RECURRENT: [&str; 4] = ["lfm2", "qwen3_5", "granitemoehybrid", "granitemoehybrid-dense"];

/// An engine with a golden model, whose rows cost the same.
fn recurrent(model: &str, n_threads: usize) -> Engine {
    let cost_profile = Some(CostProfile::free_rows(100.0));
    let options = EngineOptions { n_threads: Some(n_threads), cost_profile, ..EngineOptions::default() };
    Engine::open(golden(model), options).unwrap()
}

#[test]
fn every_position_of_a_recurrent_model_has_its_successors() {
    let prompt = prompt(3, 70);
    for model in RECURRENT {
        let engine = recurrent(model, 2);
        for prefill_chunk in [1, 7, 512] {
            let (mut session, listener) = session(&engine, Calibration::Full, prefill_chunk);
            session.append_tokens(&prompt).unwrap();
            generate(&mut session, 20);
            let lists = listener.lists();
            assert_eq!(lists.len(), session.tokens().len() - 1, "all but the newest token");
            check(
                &lists,
                &expected(&engine, session.tokens()),
                &format!("{model}, chunks of {prefill_chunk}"),
            );
        }
    }
}

/// With everything that reads the target's rows. Turns, forks and truncations end anywhere between the checkpoints of states.
#[test]
fn calibrated_drafts_of_a_recurrent_model_change_no_bit() {
    for model in RECURRENT {
        let (engine, other) = (recurrent(model, 2), recurrent(model, 1));
        let mut n_drafted = 0;
        for (i, calibration) in [Calibration::InContext, Calibration::Full].into_iter().enumerate() {
            let drafting = SessionOptions {
                calibration,
                prefill_chunk: [16, 512][i],
                verify_rows_max: [5, 32][i],
                policy: DraftPolicy { rows: DraftRows::Fixed(8), ..DraftPolicy::default() },
                echo: Some(EchoConfig::default()),
                reuse: Some(ReuseConfig::default()),
                history: false,
                ..SessionOptions::default()
            };
            let sampling = &samplings()[i];
            let options = || GenerateOptions { sampling: sampling.clone(), ..options(24) };
            let mut session = engine.session(drafting).unwrap();
            let mut reference = other.session(plain()).unwrap();
            assert_turns_agree(&mut session, &mut reference, options);
            for cut in [1, 3, 30, 100] {
                for session in [&mut session, &mut reference] {
                    session.truncate(session.tokens().len() - cut).unwrap();
                    session.append_tokens(&prompt(cut as u64, 9)).unwrap();
                }
                let expected = run_in(&mut reference, options(), usize::MAX);
                let found = run_in(&mut session, options(), usize::MAX);
                found.assert_equal(&expected, &format!("{model}, {calibration:?}: {cut} less"));
                let of_target =
                    found.stats.sources.iter().filter(|source| source.evidence == EvidenceClass::TargetRows);
                n_drafted += of_target.map(|source| source.drafted).sum::<usize>();
            }
        }
        assert!(n_drafted > 0, "{model}: no calibrated draft was verified");
    }
}

#[test]
fn what_is_kept_is_still_true() {
    let engine = Tiny::default().engine(2);
    let (mut session, listener) = session(&engine, Calibration::InContext, 16);
    let check_all = |session: &Session, listener: &Listener, case: &str| {
        assert_eq!(listener.lists().len(), session.tokens().len() - 1, "{case}");
        check(&listener.lists(), &expected(&engine, session.tokens()), case);
    };
    session.append_tokens(&prompt(5, 60)).unwrap();
    generate(&mut session, 12);
    check_all(&session, &listener, "first turn");

    session.append_tokens(&prompt(6, 30)).unwrap();
    generate(&mut session, 12);
    check_all(&session, &listener, "second turn");

    // Prefilled and truncated before a source has observed the tokens.
    session.append_tokens(&prompt(7, 30)).unwrap();
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    session.truncate(100).unwrap();
    session.append_tokens(&prompt(8, 20)).unwrap();
    generate(&mut session, 12);
    check_all(&session, &listener, "truncated after a prefill");

    session.truncate(40).unwrap();
    assert_eq!(listener.lists().len(), 40);
    session.append_tokens(&prompt(9, 20)).unwrap();
    generate(&mut session, 12);
    check_all(&session, &listener, "truncated");

    // Dropped early: untaken tokens are rolled back.
    session.append_tokens(&prompt(10, 20)).unwrap();
    let options = GenerateOptions { ignore_eos: true, ..GenerateOptions::default() };
    let taken = session.generate(options).unwrap().take(3).count();
    assert_eq!(taken, 3);
    generate(&mut session, 12);
    check_all(&session, &listener, "dropped early");

    let mut fork = session.fork().unwrap();
    let tokens = generate(&mut session, 12);
    assert_eq!(generate(&mut fork, 12), tokens);
    check_all(&session, &listener, "forked");
}

/// A path of the target's text and a draft, and the successors of its last token.
type RejectedRow = (Vec<TokenId>, Vec<Successor>);

/// Records the rejected rows, and drafts nothing.
#[derive(Clone, Default)]
struct RejectionListener {
    /// The text before the step.
    committed: Vec<TokenId>,
    rows: Arc<Mutex<Vec<RejectedRow>>>,
}

impl TargetListener for RejectionListener {
    fn reject(&mut self, tree: &DraftTree, nodes: &[NodeIdx], lists: &SuccessorLists) {
        assert_eq!(nodes.len(), lists.len());
        for (i, &node) in nodes.iter().enumerate() {
            let up = std::iter::successors(Some(node), |&node| tree.parent(node));
            let mut path: Vec<TokenId> = up.map(|node| tree.token(node)).collect();
            assert_eq!(path.pop(), self.committed.last().copied(), "the root");
            path.reverse();
            self.rows.lock().unwrap().push(([&self.committed[..], &path].concat(), lists.list(i).collect()));
        }
    }
}

impl DraftSource for RejectionListener {
    refrain::stateless_source!("rejections", Plain);

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }

    fn anchors(&mut self, committed: &[TokenId], _out: &mut Vec<Anchor>) {
        self.committed = committed.to_vec();
    }

    fn expand(&mut self, _frontier: &[Cursor], _out: &mut Candidates) {}
}

#[test]
fn rejected_rows_have_the_targets_successors() {
    let engine = Tiny { ty: BlockType::Q8_0, ..Tiny::default() }.engine(2);
    for (calibration, rejected_rows) in
        [(Calibration::Off, 2), (Calibration::InContext, 64), (Calibration::Full, 64), (Calibration::Off, 0)]
    {
        for reuse in [None, Some(ReuseConfig::default())] {
            let options = SessionOptions {
                calibration,
                echo: Some(EchoConfig { rejected_rows, ..EchoConfig::default() }),
                reuse,
                policy: DraftPolicy { rows: DraftRows::Fixed(6), ..DraftPolicy::default() },
                history: false,
                ..SessionOptions::default()
            };
            let mut session = engine.session(options).unwrap();
            let listener = RejectionListener::default();
            session.add_source(Box::new(listener.clone())).unwrap();
            session.append_tokens(&prompt(3, 50)).unwrap();
            generate(&mut session, 8);
            let rows = listener.rows.lock().unwrap();
            let case = format!("{calibration:?}, {rejected_rows} rows, {reuse:?}");
            assert_eq!(rows.is_empty(), rejected_rows == 0, "{case}");
            for (tokens, list) in rows.iter() {
                // The score of one more token is the row of the last.
                let lists = expected(&engine, &[&tokens[..], &[TokenId(0)]].concat());
                check(std::slice::from_ref(list), &lists[tokens.len() - 1..], &case);
            }
        }
    }
}

#[test]
fn an_echo_out_of_range_is_refused() {
    let engine = Tiny::default().engine(1);
    for echo in [
        EchoConfig { rejected_rows: 65, ..EchoConfig::default() },
        EchoConfig { lists_max: 0, ..EchoConfig::default() },
        EchoConfig { lists_max: EchoConfig::LISTS_MAX + 1, ..EchoConfig::default() },
    ] {
        let options = SessionOptions { echo: Some(echo), ..SessionOptions::default() };
        assert!(
            matches!(engine.session(options).unwrap_err().detail(), Some(SessionProblem::OutOfRange { .. })),
            "{echo:?}"
        );
    }
}

#[test]
fn without_calibration_nothing_is_told() {
    let engine = Tiny::default().engine(1);
    let (mut session, listener) = session(&engine, Calibration::Off, 64);
    session.append_tokens(&prompt(5, 60)).unwrap();
    generate(&mut session, 12);
    assert!(listener.lists().iter().all(Vec::is_empty));
}

#[test]
fn automatic_calibration_asks_what_a_step_costs() {
    let tiny = Tiny::default();
    for (step_us, sources) in
        [(TARGET_READ_STEP_US_MIN - 1.0, &[][..]), (TARGET_READ_STEP_US_MIN, &["predictions"])]
    {
        let cost_profile = Some(CostProfile::free_rows(step_us));
        let engine = tiny.engine_with(EngineOptions { cost_profile, ..tiny.options() });
        let (mut session, listener) = session(&engine, Calibration::Auto, 64);
        session.append_tokens(&prompt(5, 60)).unwrap();
        let run = common::run_in(&mut session, GenerateOptions::default(), 4);
        let lists = listener.lists();
        let is_told = lists.iter().any(|list| !list.is_empty());
        assert_eq!(is_told, !sources.is_empty(), "{step_us} µs a step");
        assert!(lists.iter().take(4).all(Vec::is_empty), "weights in memory: the prompt's rows are not read");
        let names = run.stats.sources.iter().map(|source| source.name.as_str());
        assert_eq!(
            names.filter(|name| *name == "predictions").collect::<Vec<_>>(),
            sources,
            "{step_us} µs a step"
        );
        // Echo leaves lists to the sessions of the namespace.
        let mut session = engine.session(SessionOptions::default()).unwrap();
        session.append_tokens(&prompt(5, 60)).unwrap();
        generate(&mut session, 4);
        let echoes = !engine.history().echo(&SessionOptions::default().namespace).is_empty();
        assert_eq!(echoes, step_us >= TARGET_READ_STEP_US_MIN, "{step_us} µs a step");
    }
    // What the app asks for is not replaced.
    let cost_profile = Some(CostProfile::free_rows(TARGET_READ_STEP_US_MIN));
    let engine = tiny.engine_with(EngineOptions { cost_profile, ..tiny.options() });
    let options = SessionOptions { calibration: Calibration::Off, ..SessionOptions::default() };
    let session = engine.session(options).unwrap();
    assert!(!session.source_names().iter().any(|name| *name == *"predictions"));
}

/// The bits of the whole product, for every tensor type.
#[test]
fn logits_of_a_shortlist_are_those_of_the_vocabulary() {
    for ty in [BlockType::F32, BlockType::Q8_0, BlockType::Q4_0, BlockType::Q4K] {
        let hidden_dim = if ty == BlockType::Q4K { 256 } else { 64 };
        let bytes = Tiny { ty, hidden_dim, n_layers: 1, ..Tiny::default() }.gguf();
        let checkpoint = Checkpoint::from_gguf_bytes(bytes.into(), "tiny").unwrap();
        let options = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
        let model = Model::load(&checkpoint, options).unwrap();
        let pool = Pool::new(2);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut kv = KvCache::new(model.config(), KvType::F16, 64).unwrap();
        let mut workspace = Workspace::new(model.config());
        let (mut batch, mut whole, mut short) = (Batch::new(), Vec::new(), Vec::new());
        batch.set_chain(0, &prompt(1, 9));
        let never = AtomicBool::new(false);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never).unwrap();
        let mut shortlist = model.shortlist(40).unwrap();
        let wanted = [200, 3, 3, 17, 256, 0, 200].map(TokenId);
        model.extend_shortlist(&mut shortlist, wanted);
        assert_eq!(shortlist.tokens(), [200, 3, 17, 256, 0].map(TokenId));
        model.extend_shortlist(&mut shortlist, (90..250).map(TokenId));
        assert_eq!(shortlist.tokens().len(), 40, "as many as there is room for");
        let rows = [0, 8, 3];
        model.logits(compute, &mut workspace, &rows, &mut whole).unwrap();
        model.shortlist_logits(compute, &mut workspace, &rows, &shortlist, &mut short);
        for (whole, short) in whole.chunks_exact(common::VOCAB_SIZE).zip(short.chunks_exact(40)) {
            for (row, token) in shortlist.tokens().iter().enumerate() {
                assert_eq!(short[row].to_bits(), whole[token.index()].to_bits(), "{ty:?}, token {token}");
                assert_eq!(shortlist.row(*token), Some(row));
            }
        }
        assert_eq!((shortlist.row(TokenId(1)), shortlist.row(TokenId(9999))), (None, None));
    }
}
