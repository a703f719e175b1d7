//! A decoding step does not allocate after its buffers have grown: forward pass, projection, KV commit, draft tree.

#![allow(unsafe_code, reason = "a counting allocator is unsafe by nature")]

mod common;
mod model_files;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicBool;

use common::Tiny;
use model_files::golden;
use refrain::checkpoint::Checkpoint;
use refrain::drafting::{DraftSource, DraftTree, NodeIdx, StepOutcome};
use refrain::internals::draft::{BuilderConfig, ContextSource, CostProfile, StepLimits, TreeBuilder};
use refrain::internals::kernels::{BlockType, Kernels, Pool};
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{KvType, Quantize, TokenId};

/// The system's allocator, counting this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller guarantees the requirements of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_in(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations_in(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
}

#[test]
fn forward_projection_and_commit_allocate_nothing_once_warm() {
    let tiny = [BlockType::F32, BlockType::Q8_0, BlockType::Q4_0].map(|ty| {
        let bytes = Tiny { ty, ..Tiny::default() }.gguf();
        Checkpoint::from_gguf_bytes(bytes.into(), ty.name()).unwrap()
    });
    let golden = ["qwen3_moe", "gpt_oss", "gemma3n"].map(|name| Checkpoint::open(golden(name)).unwrap());
    for checkpoint in tiny.into_iter().chain(golden) {
        let options = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
        let model = Model::load(&checkpoint, options).unwrap();
        let pool = Pool::new(2);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut kv = KvCache::new(model.config(), KvType::F16, 512).unwrap();
        let mut workspace = Workspace::new(model.config());
        let (mut batch, mut logits) = (Batch::new(), Vec::new());
        let never = AtomicBool::new(false);
        let tokens: Vec<TokenId> = (0..8).map(TokenId).collect();
        // Two branches, so that rows have ancestors beyond the prefix.
        let parents = [0, 0, 1, 2, 0, 4, 5, 6];
        let mut step = |restart: bool| {
            if restart {
                kv.truncate(0);
            }
            batch.set_tree(kv.len(), &tokens, &parents, 8);
            model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never).unwrap();
            model.logits(compute, &mut workspace, &[0, 4, 5, 6], &mut logits).unwrap();
            kv.commit([0, 4, 5]);
        };
        // Tables that grow with the context have already reached this length.
        (0..80).for_each(|i| step(i == 0));
        assert_eq!(allocations_in(|| (0..80).for_each(|i| step(i == 0))), 0, "{}", checkpoint.name());
    }
}

#[test]
fn building_and_learning_allocate_nothing_once_warm() {
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(ContextSource::new())];
    let mut builder = TreeBuilder::new(BuilderConfig::new(common::VOCAB_SIZE));
    let costs = CostProfile::free_rows(100.0);
    let mut learning = CostProfile::from_measurements(&[(1, 100.0), (64, 200.0)]);
    let mut tree = DraftTree::default();
    let mut committed = common::prompt(1, 400);
    sources[0].prime(&committed);
    let mut build = |committed: &[TokenId]| {
        builder.build(&mut sources, committed, StepLimits::NONE, &costs, &mut tree);
        assert!(tree.len() > 1, "there is something to draft");
    };
    (0..3).for_each(|_| build(&committed));
    assert_eq!(allocations_in(|| (0..5).for_each(|_| build(&committed))), 0);

    // Learning from a step may grow the automaton, which doubles: a few allocations in a hundred steps, not one per
    // step.
    let learned = allocations_in(|| {
        for i in 0..100 {
            builder.build(&mut sources, &committed, StepLimits::NONE, &costs, &mut tree);
            learning.observe(tree.len(), tree.n_leaves(), 100.0);
            committed.push(committed[i]);
            let new_tokens = [committed[i]];
            let accepted: &[NodeIdx] = &[];
            let outcome = StepOutcome { tree: &tree, accepted, new_tokens: &new_tokens };
            builder.observe(&mut sources, &committed, &outcome);
        }
    });
    assert!(learned < 30, "{learned} allocations in 100 steps");
}
