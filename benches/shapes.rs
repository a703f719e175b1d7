//! Whether the shape of a draft tree matters to the cost of verifying it, beside its number of rows: forward passes over
//! chains, stars and trees of the same number of rows behind the same context, in turn.
//!
//! ```sh
//! cargo bench --bench shapes                      # the fixture target
//! cargo bench --bench shapes -- MODEL CONTEXT     # another model, behind so many tokens
//! ```

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use refrain::kernels::{Kernels, KvType, Pool};
use refrain::model::transformer::{Compute, PassEnd};
use refrain::model::weights::LoadOptions;
use refrain::model::{Batch, Checkpoint, KvCache, Model, Workspace};
use refrain::token::TokenId;

/// Rounds over all shapes; the least of the times counts.
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
    println!("{}, {n_threads} threads, behind {context} tokens: µs by shape", path.display());
    println!("| rows | chain, 1 leaf | binary tree, half of them leaves | star, all but one leaves |");
    println!("| ---: | ---: | ---: | ---: |");
    for n_rows in [2u32, 4, 8, 16, 32, 64] {
        let tokens = vec![TokenId(1); n_rows as usize];
        let shapes: [Vec<u32>; 3] = [
            (0..n_rows).map(|row| row.saturating_sub(1)).collect(),
            (0..n_rows).map(|row| row.saturating_sub(1) / 2).collect(),
            vec![0; n_rows as usize],
        ];
        let mut least = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (parents, least) in shapes.iter().zip(&mut least) {
                let started = Instant::now();
                batch.set_tree(context, &tokens, parents, tokens.len());
                model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
                *least = least.min(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        println!("| {n_rows} | {:.0} | {:.0} | {:.0} |", least[0], least[1], least[2]);
    }
    Ok(())
}
