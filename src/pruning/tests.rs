//! Cells of the KV cache without written values are never read.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use crate::kernels::{Kernels, KvType, Pool};
use crate::model::transformer::{Compute, Part, PassEnd};
use crate::model::weights::LoadOptions;
use crate::model::{Batch, Checkpoint, Hooks, Interlude, KvCache, Model, Workspace};
use refrain_trees::TokenId;

struct Keeps<'a> {
    layer_idx: usize,
    kept: &'a [u32],
    looked: bool,
}

impl Interlude for Keeps<'_> {
    fn layer_idx(&self) -> usize {
        self.layer_idx
    }

    fn look(&mut self, _: Compute<'_>, hidden: &[f32], kept: &mut Vec<u32>) {
        assert!(hidden.iter().all(|x| x.is_finite()));
        kept.retain(|row| self.kept.contains(row));
        self.looked = true;
    }
}

/// A model, a text, and a cache with NaN in every cell.
struct Poisoned<'m> {
    model: &'m Model,
    pool: &'m Pool,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
}

impl<'m> Poisoned<'m> {
    fn new(model: &'m Model, pool: &'m Pool, kv_type: KvType, poison: f32, text: &[TokenId]) -> Self {
        let config = model.config();
        let mut kv = KvCache::new(config, kv_type, 96).unwrap();
        kv.fill(Kernels::detect(), poison);
        let (workspace, batch) = (Workspace::new(config), Batch::new());
        let mut this = Self { model, pool, kv, workspace, batch };
        this.batch.set_chain(0, text);
        this.forward(None);
        this.kv.commit_all(&this.batch);
        this
    }

    fn forward(&mut self, interlude: Option<&mut dyn Interlude>) {
        let Self { model, pool, kv, workspace, batch } = self;
        let compute = Compute { kernels: Kernels::detect(), pool };
        let never = AtomicBool::new(false);
        let part = Part::new(batch, kv, workspace, &never);
        model
            .forward_through(compute, part, PassEnd::Hidden, Hooks { interlude, ..Hooks::default() })
            .unwrap();
    }

    /// The bits of the logits of `rows`.
    fn logits(&mut self, rows: &[u32]) -> Vec<u32> {
        let compute = Compute { kernels: Kernels::detect(), pool: self.pool };
        let mut logits = Vec::new();
        self.model.logits(compute, &mut self.workspace, rows, &mut logits).unwrap();
        logits.iter().map(|logit| logit.to_bits()).collect()
    }
}

fn fixture() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
    Model::load(&Checkpoint::open(path).expect("the fixture"), LoadOptions::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The kept rows of a batch, and a step after one of their paths, have the same bits as a pass over all
    /// rows in a cache with other content.
    #[test]
    fn what_was_not_written_is_not_read(
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..20),
        dropped in proptest::collection::vec(any::<bool>(), 20),
        layer_idx in 0usize..6,
        n_padding in 0usize..4,
        kv_type in prop_oneof![Just(KvType::F32), Just(KvType::F16), Just(KvType::Q8_0), Just(KvType::Q4_0)],
        end in any::<proptest::sample::Index>(),
    ) {
        let (model, pool) = (fixture(), Pool::new(2));
        let text: Vec<TokenId> = (0..30).map(|i| TokenId(300 + i * 7 % 60)).collect();
        // In 8 bits a NaN cell is a block with scale NaN and zero codes.
        let mut whole = Poisoned::new(&model, &pool, kv_type, 0.25, &text);
        let mut cut = Poisoned::new(&model, &pool, kv_type, f32::NAN, &text);
        let (mut parents, mut kept) = (vec![0u32], vec![0u32]);
        for (row, (pick, drop)) in (1u32..).zip(picks.iter().zip(dropped)) {
            parents.push(pick.index(parents.len()) as u32);
            if !drop && kept.contains(parents.last().unwrap()) {
                kept.push(row);
            }
        }
        let tokens: Vec<TokenId> = (0..parents.len() as u32).map(|i| TokenId(400 + i)).collect();
        let n_rows = tokens.len() + n_padding;
        for poisoned in [&mut whole, &mut cut] {
            poisoned.batch.set_tree(text.len(), &tokens, &parents, n_rows);
        }
        whole.forward(None);
        let mut interlude = Keeps { layer_idx, kept: &kept, looked: false };
        cut.forward(Some(&mut interlude));
        prop_assert!(interlude.looked);
        let logits = cut.logits(&kept);
        prop_assert_eq!(&logits, &whole.logits(&kept));
        prop_assert!(logits.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        let left: Vec<u32> = (0..tokens.len() as u32).filter(|row| !kept.contains(row)).collect();
        prop_assert!(cut.logits(&left).iter().all(|&bits| f32::from_bits(bits).is_nan()));

        let mut path = vec![kept[end.index(kept.len())] as usize];
        while *path.last().unwrap() != 0 {
            path.push(parents[*path.last().unwrap()] as usize);
        }
        path.reverse();
        for poisoned in [&mut whole, &mut cut] {
            poisoned.kv.commit(path.iter().copied());
            let base = poisoned.kv.len();
            // Two branches, so that slots of dropped rows are reused or lie between kept rows.
            poisoned.batch.set_tree(base, &[7, 8, 9, 10].map(TokenId), &[0, 0, 0, 1], 4);
            poisoned.forward(None);
        }
        prop_assert_eq!(cut.logits(&[0, 1, 2, 3]), whole.logits(&[0, 1, 2, 3]));
    }
}
