//! The effect of a draft tree's shape on the cost of its verification, apart from its number of rows: forward passes
//! over chains, trees and stars of the same number of rows behind the same context, in turns. `CostProfile` learns the
//! price of a leaf from steps; without such steps it is a thousandth of a pass of one row.
//!
//! ```sh
//! cargo bench --bench shapes                      # the fixture target
//! cargo bench --bench shapes -- MODEL CONTEXT     # another model, with CONTEXT tokens before the tree
//! ```

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::{Kernels, Pool};
use refrain::internals::model::transformer::{Compute, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, KvCache, Model, Workspace};
use refrain::{KvType, TokenId};

/// Rounds over all shapes. The least time counts.
const ROUNDS: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo bench` adds an option of its own.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let path = args.first().map_or(fixture, PathBuf::from);
    let context: usize = args.get(1).map_or(Ok(512), |arg| arg.parse())?;
    let model = Model::load(&Checkpoint::open(&path)?, LoadOptions::default())?;
    let n_threads = std::thread::available_parallelism()?.get();
    let pool = Pool::try_new(n_threads)?;
    let compute = Compute { kernels: Kernels::detect(), pool: &pool };
    let mut kv = KvCache::new(model.config(), KvType::F16, context + 64)?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, never) = (Batch::new(), AtomicBool::new(false));
    for start in (0..context).step_by(256) {
        batch.set_chain(start, &vec![TokenId(1); 256.min(context - start)]);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::KeysAndValues, &never)?;
        kv.commit_all(&batch);
    }
    println!("{}, {n_threads} threads, behind {context} tokens", path.display());
    println!("| rows | shape | leaves | µs | of the chain | a leaf adds, in passes of one row |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    let mut one_row = f64::NAN;
    for n_rows in [1u32, 2, 4, 8, 16, 32, 64] {
        let tokens = vec![TokenId(1); n_rows as usize];
        let shapes: [(&str, Vec<u32>); 3] = [
            ("chain", (0..n_rows).map(|row| row.saturating_sub(1)).collect()),
            ("binary tree", (0..n_rows).map(|row| row.saturating_sub(1) / 2).collect()),
            ("star", vec![0; n_rows as usize]),
        ];
        let mut least = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for ((_, parents), least) in shapes.iter().zip(&mut least) {
                let started = Instant::now();
                batch.set_tree(context, &tokens, parents, tokens.len());
                model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
                *least = least.min(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        if n_rows == 1 {
            one_row = least[0];
        }
        for ((shape, parents), us) in shapes.iter().zip(least) {
            if *shape != "chain" && *parents == shapes[0].1 {
                continue; // this number of rows has one shape only
            }
            let n_leaves = n_leaves(parents);
            let added = match n_leaves {
                1 => "—".to_owned(),
                n => format!("{:+.4}", (us - least[0]) / one_row / (n - 1) as f64),
            };
            println!("| {n_rows} | {shape} | {n_leaves} | {us:.0} | {:.3} | {added} |", us / least[0]);
        }
    }
    Ok(())
}

/// Rows without children. The root is its own parent.
fn n_leaves(parents: &[u32]) -> usize {
    let is_leaf = |row: &u32| !parents.iter().skip(1).any(|parent| parent == row);
    (0..parents.len() as u32).filter(is_leaf).count()
}
