//! Bounded caches of layers with a window have the bits of full caches, for batches, chunks, trees with any committed path,
//! truncations, forks, threads, instruction sets and types of cache, over texts that overwrite each ring several times.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use refrain::checkpoint::Checkpoint;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::{ForwardError, SessionProblem};
use refrain::internals::kernels::{IsaKind, Kernels, Pool};
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::kv_cache::{CacheSize, KvCache, WindowBound};
use refrain::internals::model::packed::pack;
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, Model, Workspace};
use refrain::state::{WINDOW_RESERVE, WindowCache};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, GenerateOptions, KvType, Quantize, Role, Session, SessionOptions,
    TokenId,
};

use crate::common::{self, Tiny, continuation, logits, plain, tokens};
use crate::model_files::golden;

/// Golden models with layers with a window: of 10 to 16 positions, some beside layers without one, one with layers that
/// share keys and values.
const FAMILIES: [&str; 6] = ["gemma3", "gemma3-multimodal", "gemma4", "gpt_oss", "ministral", "mistral"];

/// All layers have a window of two blocks of attention or less, and heads that every type of cache holds.
const TINY: Tiny = Tiny { head_dim: 32, window: Some(300), context_len: 32_768, ..Tiny::DEFAULT };

/// Rows of the longest pass of the caches below.
const ROWS: usize = 24;

fn load(checkpoint: &Checkpoint) -> Model {
    Model::load(checkpoint, LoadOptions { quantize: Quantize::F32, ..LoadOptions::default() }).unwrap()
}

fn tiny_model(tiny: Tiny) -> Model {
    load(&Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap())
}

/// The golden models, then [`TINY`].
static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let golden = FAMILIES.map(|family| load(&Checkpoint::open(golden(family)).unwrap()));
    golden.into_iter().chain([tiny_model(TINY)]).collect()
});

/// A sequence in one cache.
struct Sequence<'m> {
    model: &'m Model,
    compute: Compute<'m>,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
}

impl<'m> Sequence<'m> {
    fn new(model: &'m Model, compute: Compute<'m>, size: CacheSize) -> Self {
        let (kv, workspace) = (KvCache::sized(model.config(), size).unwrap(), Workspace::new(model.config()));
        Self { model, compute, kv, workspace, batch: Batch::new() }
    }

    fn fork(&self, size: CacheSize) -> Self {
        let mut fork = Self::new(self.model, self.compute, size);
        fork.kv.copy_from(&self.kv);
        fork
    }

    /// The bits of the logits of the batch's rows.
    fn run(&mut self) -> Vec<u32> {
        let Self { model, compute, kv, workspace, batch } = self;
        let n_rows = (batch.len() - batch.n_padding()) as u32;
        model.forward(*compute, batch, kv, workspace, PassEnd::Hidden, &AtomicBool::new(false)).unwrap();
        let (rows, mut logits): (Vec<u32>, _) = ((0..n_rows).collect(), Vec::new());
        model.logits(*compute, workspace, &rows, &mut logits).unwrap();
        logits.iter().map(|logit| logit.to_bits()).collect()
    }

    /// Commits tokens in passes of up to [`ROWS`] rows.
    fn extend(&mut self, tokens: &[TokenId]) -> Vec<u32> {
        let mut bits = Vec::new();
        for chunk in tokens.chunks(ROWS) {
            self.batch.set_chain(self.kv.len(), chunk);
            bits.extend(self.run());
            self.kv.commit_all(&self.batch);
        }
        bits
    }

    /// The rows of a tree, of which `path` is committed.
    fn tree(&mut self, tokens: &[TokenId], parents: &[u32], n_rows: usize, path: &[usize]) -> Vec<u32> {
        self.batch.set_tree(self.kv.len(), tokens, parents, n_rows);
        let bits = self.run();
        self.kv.commit(path.iter().copied());
        bits
    }
}

fn sizes(kv_type: KvType, n_slots: usize, reserve: usize) -> (CacheSize, CacheSize) {
    let full = CacheSize::full(kv_type, n_slots);
    (CacheSize { windows: Some(WindowBound { pass_rows_max: ROWS, reserve }), ..full }, full)
}

fn kernels() -> Kernels {
    common::isa().map_or_else(Kernels::detect, |isa| {
        Kernels::available().into_iter().find(|kernels| kernels.isa() == isa).expect("the instruction set")
    })
}

/// The path from the root to a row.
fn path_to(parents: &[u32], mut row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while row > 0 {
        row = parents[row] as usize;
        path.push(row);
    }
    path.reverse();
    path
}

#[derive(Debug, Clone)]
enum Step {
    Extend(usize),
    Tree { picks: Vec<usize>, n_padding: usize, end: usize, cut: usize },
    Truncate(usize),
    Fork,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..90).prop_map(Step::Extend),
        6 => (proptest::collection::vec(0usize..1000, 0..ROWS - 4), 0usize..4, 0usize..1000, 0usize..1000)
            .prop_map(|(picks, n_padding, end, cut)| Step::Tree { picks, n_padding, end, cut }),
        3 => (0usize..40).prop_map(Step::Truncate),
        1 => (0usize..600).prop_map(Step::Truncate),
        1 => Just(Step::Fork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_steps_have_the_bits_of_a_full_cache(
        model in 0..FAMILIES.len() + 1,
        kv in 0..KvType::ALL.len(),
        reserve in 0usize..300,
        n_first in 0usize..900,
        isa in 0usize..100,
        n_threads in 1usize..4,
        steps in proptest::collection::vec(step(), 1..16),
    ) {
        let model = &MODELS[model];
        let holds = |kv_type: &KvType| {
            (0..model.config().n_layers())
                .all(|layer_idx| model.config().attention(layer_idx).is_none_or(|a| kv_type.holds(a.head_dim)))
        };
        let kv_types: Vec<KvType> = KvType::ALL.iter().copied().filter(holds).collect();
        let isas = Kernels::available();
        let pool = Pool::new(n_threads);
        let compute = Compute { kernels: isas[isa % isas.len()], pool: &pool };
        let (bounded_size, full_size) = sizes(kv_types[kv % kv_types.len()], 2800, reserve);
        let mut bounded = Sequence::new(model, compute, bounded_size);
        let mut full = Sequence::new(model, compute, full_size);
        prop_assert!(bounded.kv.is_bounded() && !full.kv.is_bounded());
        prop_assert!(bounded.kv.memory_usage() < full.kv.memory_usage());
        let all = tokens(2800);
        let mut text = all[..n_first].to_vec();
        prop_assert!(bounded.extend(&text) == full.extend(&text), "the first tokens");
        let mut written_end = text.len();
        for (i, step) in steps.iter().enumerate() {
            let new = |n: usize| tokens(7 * i + n)[7 * i..].to_vec();
            match step {
                Step::Extend(n) => {
                    text.extend(new(*n));
                    let tokens = &text[text.len() - n..];
                    prop_assert!(bounded.extend(tokens) == full.extend(tokens), "step {}: {:?}", i, step);
                }
                Step::Tree { picks, n_padding, end, cut } => {
                    let mut parents = vec![0];
                    picks.iter().for_each(|pick| parents.push((pick % parents.len()) as u32));
                    let tokens = new(parents.len());
                    let path = path_to(&parents, end % parents.len());
                    let path = &path[..1 + cut % path.len()];
                    let n_rows = parents.len() + n_padding;
                    let bits = bounded.tree(&tokens, &parents, n_rows, path);
                    prop_assert!(bits == full.tree(&tokens, &parents, n_rows, path), "step {}: {:?}", i, step);
                    written_end = written_end.max(text.len() + n_rows);
                    text.extend(path.iter().map(|&row| tokens[row]));
                }
                Step::Truncate(n) => {
                    text.truncate(text.len().saturating_sub(*n));
                    full.kv.truncate(text.len());
                    bounded.kv.truncate(text.len());
                    prop_assert!(bounded.kv.len() == text.len() || bounded.kv.is_empty());
                    if bounded.kv.len() < text.len() {
                        // The reserve counts from the committed tokens before the rows of a pass.
                        prop_assert!(text.len() + reserve + ROWS < written_end, "lost {} of {}", n, written_end);
                        bounded.extend(&text);
                        written_end = text.len();
                    }
                }
                Step::Fork => {
                    let fork = bounded.fork(bounded_size);
                    // What the first one writes afterwards is not seen by the fork.
                    bounded.extend(&new(ROWS));
                    bounded = fork;
                }
            }
            written_end = written_end.max(text.len());
            prop_assert_eq!(bounded.kv.len(), full.kv.len());
        }
        prop_assert!(bounded.extend(&all[..40]) == full.extend(&all[..40]), "the last tokens");
    }
}

/// Every path of trees of five rows, at every place around the end of a ring.
#[test]
fn every_path_of_a_tree_is_committed_where_a_ring_wraps_around() {
    let pool = Pool::new(2);
    let compute = Compute { kernels: kernels(), pool: &pool };
    for (model_idx, model) in MODELS.iter().enumerate() {
        let (bounded_size, full_size) = sizes(KvType::F16, 1200, 0);
        // One block, or two for the longer window.
        let ring_len = if model_idx < FAMILIES.len() { 256 } else { 512 };
        let mut bounded = Sequence::new(model, compute, bounded_size);
        let mut full = Sequence::new(model, compute, full_size);
        let text = tokens(2 * ring_len + 40);
        let start = 2 * ring_len - 6;
        assert!(bounded.extend(&text[..start]) == full.extend(&text[..start]));
        for base in start..start + 8 {
            for parents in
                [[0, 0, 1, 2, 3], [0, 0, 0, 1, 2], [0, 0, 1, 1, 0], [0, 0, 0, 2, 3], [0, 0, 0, 0, 0]]
            {
                for end in 0..5 {
                    let path = path_to(&parents, end);
                    let (mut bounded, mut full) = (bounded.fork(bounded_size), full.fork(full_size));
                    let drafts = tokens(5);
                    let case = format!("model {model_idx}, {parents:?} at {base}, path {path:?}");
                    let bits = bounded.tree(&drafts, &parents, 7, &path);
                    assert!(bits == full.tree(&drafts, &parents, 7, &path), "{case}: the tree");
                    let next = &text[..ROWS];
                    assert!(bounded.extend(next) == full.extend(next), "{case}: the tokens behind it");
                }
            }
            let next = &text[base..=base];
            assert!(bounded.extend(next) == full.extend(next));
        }
    }
}

/// A truncation within the reserve loses nothing, wherever the ring is. The ring has 256 slots, and the window needs 11 of them
/// beside the row's own, so that 245 tokens can be taken back.
#[test]
fn a_truncation_within_the_reserve_loses_nothing() {
    let pool = Pool::new(1);
    let compute = Compute { kernels: kernels(), pool: &pool };
    let model = &MODELS[0];
    let (size, _) = sizes(KvType::F16, 2000, 200);
    let mut sequence = Sequence::new(model, compute, size);
    for chunk in tokens(1800).chunks(ROWS) {
        sequence.extend(chunk);
        let len = sequence.kv.len();
        let mut fork = sequence.fork(size);
        fork.kv.truncate(len.saturating_sub(200));
        assert_eq!(fork.kv.len(), len.saturating_sub(200));
        // Extending does not bring lost slots back: the reserve counts from the newest slot that was written.
        fork.extend(&tokens(100));
        fork.kv.truncate(len.saturating_sub(200));
        assert_eq!(fork.kv.len(), len.saturating_sub(200));
        for (n, is_kept) in [(245, true), (246, len <= 256)] {
            let left = len.saturating_sub(n);
            fork.kv.truncate(left);
            assert_eq!(fork.kv.len(), if is_kept { left } else { 0 }, "{left} of {len}");
        }
    }
}

#[test]
fn a_pass_has_the_rows_that_the_cache_was_made_for() {
    let pool = Pool::new(1);
    let compute = Compute { kernels: kernels(), pool: &pool };
    let (bounded, full) = sizes(KvType::F16, 600, 0);
    for (size, fits) in [(bounded, false), (full, true)] {
        let Sequence { model, compute, mut kv, mut workspace, mut batch } =
            Sequence::new(&MODELS[0], compute, size);
        batch.set_chain(0, &tokens(ROWS + 1));
        let never = AtomicBool::new(false);
        let result = model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never);
        let expected = ForwardError::TooManyRows { n_rows: ROWS + 1, n_rows_max: ROWS };
        assert_eq!(result, if fits { Ok(()) } else { Err(expected) });
    }
}

fn engine(family: &str, options: EngineOptions) -> Engine {
    Engine::load(&Checkpoint::open(golden(family)).unwrap(), options, |_, _| {}).unwrap()
}

fn options() -> EngineOptions {
    EngineOptions {
        n_threads: Some(2),
        isa: common::isa(),
        quantize: Quantize::F32,
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    }
}

fn bounded(options: SessionOptions) -> SessionOptions {
    SessionOptions { window_cache: WindowCache::Bounded, ..options }
}

fn session(engine: &Engine, options: SessionOptions, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(SessionOptions { context_len: Some(2048), ..options }).unwrap();
    session.append_tokens(tokens).unwrap();
    session
}

#[test]
fn sessions_of_every_family_have_the_bits_of_full_caches() {
    for family in FAMILIES {
        let engine = engine(family, options());
        let text = tokens(2000);
        let expected = logits(&mut session(&engine, plain(), &text));
        for prefill_chunk in [1, 100, 256, 700] {
            let mut session = session(&engine, bounded(SessionOptions { prefill_chunk, ..plain() }), &text);
            assert!(logits(&mut session) == expected, "{family}: chunks of {prefill_chunk}");
        }
        // Decoding, with right and wrong drafts, across the end of the ring.
        let text = &text[..1270];
        let expected = continuation(&mut session(&engine, plain(), text), 60);
        for n_right in [60, 7, 0] {
            let options = bounded(SessionOptions { history: false, ..SessionOptions::default() });
            let mut session = session(&engine, options, text);
            let mut known = expected.0.clone();
            known[n_right..].iter_mut().for_each(|token| token.0 ^= 1);
            session.add_source(Box::new(AlwaysRight::new(text.len(), known))).unwrap();
            assert_eq!(continuation(&mut session, 60), expected, "{family}: {n_right} right drafts");
        }
    }
}

#[test]
fn sessions_go_back_and_fork_as_if_new() {
    for family in ["gemma3", "gemma4", "gpt_oss"] {
        let engine = engine(family, options());
        let text = tokens(1900);
        let mut long = session(&engine, bounded(plain()), &text);
        continuation(&mut long, 9);
        // (length, whether the cache still has its windows)
        for (len, is_kept) in
            [(1905, true), (1900, true), (1500, true), (1150, true), (500, false), (3, true)]
        {
            let all = long.tokens().to_vec();
            assert!(all.len() >= len);
            long.truncate(len).unwrap();
            assert_eq!(long.state().n_cached_tokens(), if is_kept { len } else { 0 }, "{family} at {len}");
            let expected = continuation(&mut session(&engine, plain(), &all[..len]), 5);
            let mut fork = long.fork().unwrap();
            assert_eq!(continuation(&mut fork, 5), expected, "{family}: a fork at {len}");
            assert_eq!(continuation(&mut long, 5), expected, "{family}: truncated to {len}");
        }
    }
}

/// A chat that grows, and answers that are taken back and given again, never compute the text before them again.
#[test]
fn a_chat_computes_its_new_turns_only() {
    let engine = TINY.engine(2);
    let options = SessionOptions { context_len: Some(8192), ..plain() };
    let mut sessions = [options.clone(), bounded(options)].map(|options| engine.session(options).unwrap());
    let answer = |session: &mut Session| {
        let options = GenerateOptions { max_tokens: 60, ignore_eos: true, ..GenerateOptions::default() };
        let mut generation = session.generate(options).unwrap();
        generation.by_ref().for_each(|event| drop(event.unwrap()));
        let stats = generation.stats();
        (stats.prompt_tokens, stats.prefilled_tokens)
    };
    for turn in 0..14 {
        let question = format!("{turn}, ").repeat(90);
        // The newest answer is read again if its bytes are no text: a replacement character has three bytes.
        let prefilled_max = question.len() + 4 * 60;
        let answers = sessions.each_mut().map(|session| {
            session.append_turn(Role::User, question.as_str()).unwrap();
            let first = answer(session);
            session.pop_turn();
            (first, answer(session))
        });
        assert_eq!(sessions[0].tokens(), sessions[1].tokens(), "turn {turn}");
        assert_eq!(answers[0], answers[1], "turn {turn}");
        let ((_, first), (_, again)) = answers[1];
        assert!(first <= prefilled_max && again <= 4 * 60, "turn {turn}: {first} and {again} tokens");
    }
    assert!(sessions[1].tokens().len() > 3 * 1536, "{} tokens", sessions[1].tokens().len());
}

#[test]
fn statistics_count_what_was_lost_as_prefilled() {
    let engine = engine("gemma3", options());
    let mut session = session(&engine, bounded(plain()), &tokens(1900));
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    for (len, n_cached) in [(1500, 1499), (600, 0)] {
        session.truncate(len).unwrap();
        let options = GenerateOptions { max_tokens: 1, ignore_eos: true, ..GenerateOptions::default() };
        let mut generation = session.generate(options).unwrap();
        generation.by_ref().for_each(|event| drop(event.unwrap()));
        let stats = generation.stats();
        assert_eq!((stats.cached_tokens, stats.prefilled_tokens), (n_cached, len - 1 - n_cached));
    }
}

#[test]
fn packed_streamed_static_graphs_and_every_instruction_set() {
    let dir = tempfile::tempdir().unwrap();
    let keep = || LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    for family in ["gemma3", "gpt_oss"] {
        let checkpoint = Checkpoint::open(golden(family)).unwrap();
        let engine_options = || EngineOptions { quantize: Quantize::Keep, ..options() };
        let text = tokens(1600);
        let engine = Engine::load(&checkpoint, engine_options(), |_, _| {}).unwrap();
        let expected = logits(&mut session(&engine, plain(), &text));
        let [path, graphs] = ["packed", "graphs"].map(|kind| dir.path().join(format!("{family}.{kind}")));
        pack(&checkpoint, &path, keep()).unwrap();
        let packed = Checkpoint::open(&path).unwrap();
        for &isa in IsaKind::ALL {
            for n_threads in [1, 3] {
                let options =
                    EngineOptions { isa: Some(isa), n_threads: Some(n_threads), ..engine_options() };
                // Not every machine has every instruction set.
                let Ok(engine) = Engine::load(&packed, options, |_, _| {}) else { continue };
                let found = logits(&mut session(&engine, bounded(plain()), &text));
                assert!(found == expected, "{family}: packed, {isa:?}, {n_threads} threads");
            }
        }
        let streaming = Some(StreamOptions::new(Pinned::Layers(1)));
        let engine =
            Engine::load(&packed, EngineOptions { streaming, ..engine_options() }, |_, _| {}).unwrap();
        assert!(logits(&mut session(&engine, bounded(plain()), &text)) == expected, "{family}: streamed");
        if family == "gpt_oss" {
            continue; // Static graphs have no experts.
        }
        write_graphs(&checkpoint, &graphs, 2, 64, 8, keep()).unwrap();
        let engine = Engine::open(&graphs, engine_options()).unwrap();
        assert!(
            logits(&mut session(&engine, bounded(plain()), &text)) == expected,
            "{family}: static graphs"
        );
    }
}

/// Bytes follow the window, not the context, and are those that options and allocators state.
#[test]
fn memory_is_bounded_by_the_window() {
    let config = tiny_model(TINY).config().clone();
    let engine = TINY.engine(1);
    let (window, chunk) = (300, 256);
    for &kv_type in KvType::ALL {
        let bytes = |window_cache, context_len| {
            let options = SessionOptions { window_cache, kv_type, context_len: Some(context_len), ..plain() };
            let stated = options.memory_bytes(&config);
            let session = engine.session(options).unwrap();
            (session.memory_usage() - session.draft_memory_usage() as u64, stated)
        };
        let slot = KvCache::bytes_per_slot(&config, kv_type);
        let (used, stated) = bytes(WindowCache::Bounded, 32_768);
        // Whole blocks of 256 slots.
        let n_slots = (window + WINDOW_RESERVE + chunk - 1).next_multiple_of(256) as u64;
        assert_eq!(used, n_slots * slot, "{kv_type}");
        assert_eq!(bytes(WindowCache::Bounded, 4096).0, used, "{kv_type}");
        let (full, stated_full) = bytes(WindowCache::Full, 32_768);
        assert!((32_768 * slot..33_000 * slot).contains(&full), "{kv_type}: {full}");
        assert_eq!(stated_full - stated, (32_768 + 32 - n_slots) * slot, "{kv_type}");
        // A context that is no longer than a ring has a full cache.
        let (short, _) = bytes(WindowCache::Bounded, 1000);
        assert_eq!(short, bytes(WindowCache::Full, 1000).0, "{kv_type}");
    }
}

#[test]
fn the_state_of_bounded_windows_is_not_kept() {
    let engine = TINY.engine(1);
    let mut full = session(&engine, plain(), &tokens(1800));
    let mut bounded_session = session(&engine, bounded(plain()), &tokens(1800));
    for session in [&mut full, &mut bounded_session] {
        session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    }
    let mut state = vec![7];
    let refused = bounded_session.state().write(1790..1795, &mut state);
    assert!(
        matches!(refused.as_ref().unwrap_err().detail(), Some(SessionProblem::BoundedWindows)),
        "{refused:?}"
    );
    assert_eq!(state, [7]);
    state.clear();
    full.state().write(0..1799, &mut state).unwrap();
    assert_eq!(bounded_session.state().key(), full.state().key());
    let mut new = session(&engine, bounded(plain()), &tokens(1800));
    assert_eq!(new.state_mut().restore(0, &tokens(1799), &state).unwrap(), 0);
    assert_eq!(continuation(&mut new, 9), continuation(&mut full, 9));
    // A session without a ring keeps its state as before.
    let short = SessionOptions { context_len: Some(200), ..bounded(plain()) };
    let mut short = engine.session(short).unwrap();
    short.append_tokens(&tokens(100)).unwrap();
    short.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    short.state().write(0..99, &mut Vec::new()).unwrap();
}
