//! Generations whose rows share passes give the bits that each gives alone: hidden states and KV cache of the model, tokens, texts and
//! logits of the engine.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use refrain::checkpoint::Checkpoint;
use refrain::drafting::{Calibration, Predictor, ReuseConfig, SharedPasses};
use refrain::internals::draft::testing::{AlwaysRight, Random};
use refrain::internals::error::ForwardError;
use refrain::internals::kernels::{BlockType, Kernels, Pool};
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::transformer::{Compute, Part, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::internals::pruning::{PredictorParts, f16};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, ErrorKind, Event, FinishReason, GenerateError, GenerateOptions,
    KvType, LogitsProcessor, OwnedGeneration, ProcessorError, Quantize, Session, SessionOptions, TokenId,
    step_together,
};

use crate::common::{self, LogitsRecorder, Run, Tiny, VOCAB_SIZE, options, plain, prompt, run, samplings};
use crate::model_files::golden;

/// A sequence of the model: a committed prefix, then a tree.
struct Sequence {
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
}

impl Sequence {
    fn new(model: &Model, compute: Compute<'_>, kv_type: KvType, prefix: usize, picks: &[usize]) -> Self {
        let mut kv = KvCache::new(model.config(), kv_type, 160).unwrap();
        let mut workspace = Workspace::new(model.config());
        let mut batch = Batch::new();
        if prefix > 0 {
            batch.set_chain(0, &prompt(prefix as u64, prefix));
            let end = PassEnd::KeysAndValues;
            model.forward(compute, &batch, &mut kv, &mut workspace, end, &AtomicBool::new(false)).unwrap();
            kv.commit_all(&batch);
        }
        let mut parents = vec![0];
        picks.iter().for_each(|pick| parents.push((pick % parents.len()) as u32));
        let tokens: Vec<TokenId> =
            (0..parents.len()).map(|i| TokenId(((7 * i + prefix) % VOCAB_SIZE) as u32)).collect();
        batch.set_tree(prefix, &tokens, &parents, tokens.len());
        Self { kv, workspace, batch }
    }

    /// The bits of the rows' logits, and of all keys and values.
    fn bits(mut self, model: &Model, compute: Compute<'_>) -> (Vec<u32>, Vec<u8>) {
        let rows: Vec<u32> = (0..self.batch.len() as u32).collect();
        let mut logits = Vec::new();
        model.logits(compute, &mut self.workspace, &rows, &mut logits).unwrap();
        self.kv.commit(0..self.batch.len());
        let mut state = Vec::new();
        self.kv.write_state(0..self.kv.len(), &mut state);
        (logits.iter().map(|x| x.to_bits()).collect(), state)
    }
}

fn model(ty: BlockType) -> Model {
    let bytes = Tiny { ty, head_dim: 32, ..Tiny::default() }.gguf();
    let checkpoint = Checkpoint::from_gguf_bytes(bytes.into(), "tiny").unwrap();
    Model::load(&checkpoint, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn parts_in_any_order_have_the_bits_of_passes_of_their_own(
        shapes in proptest::collection::vec(
            (0usize..3, 0usize..90, proptest::collection::vec(0usize..100, 0..12)), 1..5),
        n_threads in 1usize..4,
        integer in any::<bool>(),
    ) {
        let model = model(if integer { BlockType::Q8_0 } else { BlockType::F32 });
        let pool = Pool::new(n_threads);
        let kernels = common::isa().map_or_else(Kernels::detect, |isa| {
            Kernels::available().into_iter().find(|kernels| kernels.isa() == isa).expect("the instruction set")
        });
        let compute = Compute { kernels, pool: &pool };
        let never = AtomicBool::new(false);
        let make = || shapes.iter().map(|(ty, prefix, picks)| {
            Sequence::new(&model, compute, KvType::ALL[*ty], *prefix, picks)
        }).collect::<Vec<_>>();
        let alone: Vec<_> = make().into_iter().map(|mut one| {
            let Sequence { kv, workspace, batch } = &mut one;
            model.forward(compute, batch, kv, workspace, PassEnd::Hidden, &never).unwrap();
            one.bits(&model, compute)
        }).collect();
        for reversed in [false, true] {
            let mut sequences = make();
            let mut parts: Vec<Part<'_>> = sequences
                .iter_mut()
                .map(|Sequence { kv, workspace, batch }| Part::new(batch, kv, workspace, &never))
                .collect();
            if reversed {
                parts.reverse();
            }
            model.forward_together(compute, &mut parts, PassEnd::Hidden).unwrap();
            drop(parts);
            for (sequence, alone) in sequences.into_iter().zip(&alone) {
                prop_assert!(sequence.bits(&model, compute) == *alone, "bits differ");
            }
        }
    }
}

/// The flag of one part ends that part only; the bits of the others are those of passes of their own.
#[test]
fn a_cancelled_part_ends_alone() {
    let model = model(BlockType::Q8_0);
    let pool = Pool::new(2);
    let compute = Compute { kernels: Kernels::detect(), pool: &pool };
    let (never, always) = (AtomicBool::new(false), AtomicBool::new(true));
    let make = |i: usize| Sequence::new(&model, compute, KvType::F16, 20 + 9 * i, &[0, 1, 0]);
    let mut alone = make(1);
    let Sequence { kv, workspace, batch } = &mut alone;
    model.forward(compute, batch, kv, workspace, PassEnd::Hidden, &never).unwrap();
    let alone = alone.bits(&model, compute);

    let mut sequences: Vec<Sequence> = (0..3).map(make).collect();
    let flags = [&always, &never, &always];
    let mut parts: Vec<Part<'_>> = sequences
        .iter_mut()
        .zip(flags)
        .map(|(Sequence { kv, workspace, batch }, cancel)| Part::new(batch, kv, workspace, cancel))
        .collect();
    model.forward_together(compute, &mut parts, PassEnd::Hidden).unwrap();
    assert_eq!(parts.iter().map(Part::is_cancelled).collect::<Vec<_>>(), [true, false, true]);
    parts.swap(1, 2);
    let refused = model.forward_together(compute, &mut parts[..2], PassEnd::Hidden);
    assert_eq!(refused, Err(ForwardError::Cancelled), "nobody is left");
    drop(parts);
    assert!(sequences.remove(1).bits(&model, compute) == alone, "bits differ");
}

/// One generation of a test, and what it gives.
struct Case {
    generation: OwnedGeneration,
    recorder: LogitsRecorder,
    tokens: Vec<TokenId>,
    texts: Vec<String>,
    finish: Option<FinishReason>,
}

impl Case {
    fn new(mut session: Session, prompt: &[TokenId], mut options: GenerateOptions) -> Self {
        let recorder = LogitsRecorder::default();
        options.processors.insert(0, Box::new(recorder.clone()));
        session.append_tokens(prompt).unwrap();
        let generation = OwnedGeneration::new(session, options).unwrap();
        Self { generation, recorder, tokens: Vec::new(), texts: Vec::new(), finish: None }
    }

    /// Takes all events that are there.
    fn take(&mut self) -> Result<(), GenerateError> {
        while self.finish.is_none() && !self.generation.awaits_pass() {
            match self.generation.next().expect("an event")? {
                Event::Token(token) => {
                    self.tokens.push(token.id);
                    self.texts.push(token.text);
                }
                Event::Done(summary) => {
                    self.texts.push(summary.text);
                    self.finish = Some(summary.finish);
                }
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    fn assert_equal(&self, alone: &Run, case: &str) {
        assert_eq!(self.tokens, alone.tokens, "tokens: {case}");
        assert_eq!(self.texts, alone.texts, "texts: {case}");
        assert_eq!(self.finish, Some(alone.finish), "finish: {case}");
        assert_eq!(*self.recorder.0.lock().unwrap(), alone.logits, "bits of the logits: {case}");
    }
}

fn step_all(cases: &mut [Case]) -> SharedPasses {
    step_together(&mut cases.iter_mut().map(|case| &mut case.generation).collect::<Vec<_>>())
}

/// Prompts, lengths, KV types, samplings and drafts differ; each output equals plain decoding of its own.
#[test]
fn generations_together_equal_each_alone() {
    for ty in [BlockType::F32, BlockType::Q8_0] {
        let engine = Tiny { ty, head_dim: 32, ..Tiny::default() }.engine(2);
        let mut n_passes = 0;
        for n in 2..=4 {
            let mut cases = Vec::new();
            let mut alone = Vec::new();
            for i in 0..n {
                let prompt = prompt(20 + i as u64, 10 + 35 * i);
                let sampling = samplings()[i % 2].clone();
                let kv_type = KvType::ALL[i % KvType::ALL.len()];
                let options = || GenerateOptions { sampling: sampling.clone(), ..options(12 + 7 * i) };
                let reference =
                    run(&engine, SessionOptions { kv_type, ..plain() }, Vec::new(), &prompt, options());
                let base = if i == 1 {
                    plain()
                } else {
                    SessionOptions { history: false, ..SessionOptions::default() }
                };
                let mut session = engine.session(SessionOptions { kv_type, ..base }).unwrap();
                match i {
                    0 => session
                        .add_source(Box::new(AlwaysRight::new(prompt.len(), reference.tokens.clone())))
                        .unwrap(),
                    2 => session.add_source(Box::new(Random::new(5, 2 * VOCAB_SIZE as u32))).unwrap(),
                    _ => {}
                }
                cases.push(Case::new(session, &prompt, options()));
                alone.push(reference);
            }
            let shared = step_to_the_end(&mut cases);
            assert!(shared.passes > 0 && shared.generations > shared.passes, "{shared:?}");
            n_passes += shared.passes;
            for (i, (case, alone)) in cases.iter().zip(&alone).enumerate() {
                case.assert_equal(alone, &format!("{ty:?}, {i} of {n}"));
            }
        }
        assert!(n_passes > 20, "{n_passes}");
    }
}

/// Steps all cases until they end.
fn step_to_the_end(cases: &mut [Case]) -> SharedPasses {
    let mut shared = SharedPasses::default();
    while cases.iter().any(|case| case.finish.is_none()) {
        shared += step_all(cases);
        cases.iter_mut().for_each(|case| case.take().unwrap());
    }
    shared
}

/// Prompts that come while others decode join their steps, a few rows at a time. Each output equals plain decoding of its own; one prompt
/// is cancelled in the middle.
#[test]
fn prompts_join_the_steps_of_others() {
    for name in ["tiny", "lfm2", "qwen3_5", "gemma3", "gpt_oss", "granitemoehybrid"] {
        let tiny = Tiny { ty: BlockType::Q8_0, head_dim: 32, ..Tiny::default() };
        let engine = match name {
            "tiny" => tiny.engine(2),
            family => {
                let checkpoint = Checkpoint::open(golden(family)).unwrap();
                Engine::load(&checkpoint, tiny.options(), |_, _| {}).unwrap()
            }
        };
        for (i, session) in readers().into_iter().chain([plain()]).enumerate() {
            let session = SessionOptions { prefill_chunk: 16, ..session };
            let prompts = [prompt(90, 20), prompt(91, 25), prompt(92, 140), prompt(93, 80), prompt(94, 140)];
            let n_tokens = [120, 100, 12, 10, 8];
            let alone = [0, 1, 2, 3]
                .map(|case| run(&engine, plain(), Vec::new(), &prompts[case], options(n_tokens[case])));
            let case = |number: usize, cancel: &CancelToken| {
                let options = GenerateOptions { cancel: cancel.clone(), ..options(n_tokens[number]) };
                Case::new(engine.session(session.clone()).unwrap(), &prompts[number], options)
            };
            let (never, cancel) = (CancelToken::new(), CancelToken::new());
            let mut cases = vec![case(0, &never), case(1, &never)];
            step_all(&mut cases);
            cases.iter_mut().for_each(|case| case.take().unwrap());
            let n_before = [cases[0].tokens.len(), cases[1].tokens.len()];
            assert!(cases.iter().all(|case| case.finish.is_none()), "{name}: both decode");
            cases.extend([case(2, &never), case(3, &never), case(4, &cancel)]);
            let mut shared = step_all(&mut cases);
            cases.iter_mut().for_each(|case| case.take().unwrap());
            let of_case = |case: &Case| case.generation.prompt_progress();
            assert!(of_case(&cases[2]).is_some_and(|(done, total)| 0 < done && done < total), "{name}");
            let gets_on = |(case, n_before): (&Case, usize)| case.tokens.len() > n_before;
            assert!(cases[..2].iter().zip(n_before).all(gets_on), "{name}: nobody waits for a prompt");
            cancel.cancel();
            shared += step_to_the_end(&mut cases);
            for (case, alone) in cases.iter().zip(&alone) {
                case.assert_equal(alone, &format!("{name}, session {i}"));
            }
            assert_eq!(
                (cases[4].finish, cases[4].tokens.len()),
                (Some(FinishReason::Cancelled), 0),
                "{name}"
            );
            assert!(shared.prompt_rows > 0 && shared.prompt_rows < shared.rows, "{name}: {shared:?}");
        }
    }
}

/// Every way to read the target's rows, whose hidden states come from a shared pass.
fn readers() -> [SessionOptions; 3] {
    let base = SessionOptions { history: false, projection_rows: 3, ..SessionOptions::default() };
    let reuse = Some(ReuseConfig::default());
    [
        SessionOptions { calibration: Calibration::InContext, reuse, ..base.clone() },
        SessionOptions { calibration: Calibration::Full, ..base.clone() },
        base,
    ]
}

/// A shared pass reads each streamed layer once, and the output matrix too.
#[test]
fn streamed_models_share_passes() {
    let tiny = Tiny { ty: BlockType::Q4_0, n_layers: 4, ..Tiny::default() };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.refrain");
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    let in_memory = tiny.engine(1);
    let prompts: Vec<_> = (0..3).map(|i| prompt(60 + i, 25 + 10 * i as usize)).collect();
    let alone: Vec<Run> =
        prompts.iter().map(|prompt| run(&in_memory, plain(), Vec::new(), prompt, options(16))).collect();
    for n_pinned in [0, 2, 4] {
        let streaming = Some(StreamOptions::new(Pinned::Layers(n_pinned)));
        let engine = Engine::open(&path, EngineOptions { streaming, ..tiny.options() }).unwrap();
        for session in readers() {
            let mut cases: Vec<Case> = prompts
                .iter()
                .map(|prompt| Case::new(engine.session(session.clone()).unwrap(), prompt, options(16)))
                .collect();
            let shared = step_to_the_end(&mut cases);
            assert!(shared.passes > 0, "{n_pinned} pinned: {shared:?}");
            for (case, alone) in cases.iter().zip(&alone) {
                case.assert_equal(alone, &format!("{n_pinned} pinned, {:?}", session.calibration));
            }
        }
    }
}

/// A model of static graphs, a pruned session, two engines: all step, and what may share a pass does.
#[test]
fn generations_that_cannot_share_a_pass_step_alone() {
    let tiny = Tiny { n_layers: 4, ..Tiny::default() };
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    let keep = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    write_graphs(&checkpoint, &path, 2, 16, 8, keep).unwrap();
    let graphs = Engine::open(&path, tiny.options()).unwrap();
    let (one, other) = (tiny.engine(1), tiny.engine(2));
    let pruned = tiny.engine(1);
    let (hidden_dim, vocab_size) = (pruned.config().hidden_dim, pruned.config().vocab_size);
    let predictor = PredictorParts {
        model: pruned.model_identity(),
        layer_idx: 1,
        hidden_dim,
        rank: 2,
        vocab_size,
        down: vec![0.1; 2 * hidden_dim],
        up: vec![f16::from_f32(0.1); vocab_size * 2],
        shadow_pool: Vec::new(),
    };
    pruned.set_predictor(Predictor::new(predictor).unwrap()).unwrap();

    let engines = [&graphs, &one, &pruned, &other, &one, &graphs, &pruned, &other];
    let prompts: Vec<_> = (0..engines.len() as u64).map(|i| prompt(80 + i, 30)).collect();
    let alone: Vec<Run> =
        prompts.iter().map(|prompt| run(&one, plain(), Vec::new(), prompt, options(14))).collect();
    let mut cases: Vec<Case> = engines
        .iter()
        .zip(&prompts)
        .map(|(engine, prompt)| {
            let mut session =
                engine.session(SessionOptions { history: false, ..SessionOptions::default() }).unwrap();
            session.add_source(Box::new(Random::new(5, 2 * VOCAB_SIZE as u32))).unwrap();
            Case::new(session, prompt, options(14))
        })
        .collect();
    let shared = step_to_the_end(&mut cases);
    assert!(shared.passes > 0);
    for (i, (case, alone)) in cases.iter().zip(&alone).enumerate() {
        case.assert_equal(alone, &format!("case {i}"));
        let may_share = [1, 3, 4, 7].contains(&i);
        assert_eq!(case.generation.stats().shared_steps > 0, may_share, "case {i}");
    }
}

/// Panics, fails or cancels at a position.
enum Disturbs {
    Panics(usize),
    Fails(usize),
    Cancels(usize, CancelToken),
}

impl LogitsProcessor for Disturbs {
    fn process(&mut self, tokens: &[TokenId], _: &mut [f32]) -> Result<(), ProcessorError> {
        match self {
            Self::Panics(at) if tokens.len() == *at => panic!("a processor of the app"),
            Self::Fails(at) if tokens.len() == *at => Err("no mask".into()),
            Self::Cancels(at, cancel) if tokens.len() == *at => {
                cancel.cancel();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_generation_that_panics_fails_or_is_cancelled_disturbs_no_other() {
    let engine = Tiny::default().engine(2);
    let prompts: Vec<_> = (0..4).map(|i| prompt(40 + i, 30)).collect();
    let alone: Vec<Run> =
        prompts.iter().map(|prompt| run(&engine, plain(), Vec::new(), prompt, options(20))).collect();
    let mut cases: Vec<Case> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let cancel = CancelToken::new();
            let processors: Vec<Box<dyn LogitsProcessor>> = match i {
                0 => vec![Box::new(Disturbs::Panics(35))],
                1 => vec![Box::new(Disturbs::Fails(37))],
                2 => vec![Box::new(Disturbs::Cancels(39, cancel.clone()))],
                _ => Vec::new(),
            };
            let options = GenerateOptions { processors, cancel, ..options(20) };
            Case::new(engine.session(plain()).unwrap(), prompt, options)
        })
        .collect();
    let (mut panicked, mut failed) = (false, false);
    while cases.iter().any(|case| case.generation.awaits_pass()) {
        step_all(&mut cases);
        for (i, case) in cases.iter_mut().enumerate() {
            match (i, std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.take()))) {
                (0, Err(_)) => {
                    panicked = true;
                    case.finish = Some(FinishReason::Cancelled);
                }
                (1, Ok(Err(error))) if error.kind() == ErrorKind::Processor => {
                    failed = true;
                    case.finish = Some(FinishReason::Cancelled);
                }
                (_, Ok(Ok(()))) => {}
                (i, other) => panic!("{i}: {other:?}"),
            }
        }
    }
    assert!(panicked && failed);
    assert_eq!(cases[2].finish, Some(FinishReason::Cancelled));
    for (case, (n, alone)) in cases.iter().zip([5, 7, 10].into_iter().zip(&alone)) {
        assert_eq!(case.tokens, alone.tokens[..n]);
    }
    cases[3].assert_equal(&alone[3], "the undisturbed one");
    for (case, n) in cases.into_iter().zip([5, 7, 10, 20]) {
        assert_eq!(
            case.generation.into_session().tokens().len(),
            30 + n,
            "the session keeps the taken tokens"
        );
    }
}
