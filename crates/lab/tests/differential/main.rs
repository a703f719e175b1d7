//! Whatever an app combines, the text is that of plain decoding: random targets, draft models, heads, grammars, caches and options, in
//! conversations with forks, truncations, restored states, cancellations, heat and memory pressure, alone and in shared passes. The
//! reference is a new session of a model in memory, on one thread, with `Drafting::Off`.
//!
//! `tools/differential` runs as many generations as it is told to. Each case is a function of its seed, except that measured times
//! decide what is drafted.

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod conversation;
#[path = "../../../grammar/tests/grammars/mod.rs"]
mod grammars;
#[path = "../../../../tests/heads/mod.rs"]
mod heads;
#[path = "../../../../tests/model_files/mod.rs"]
mod model_files;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use common::Rng;
use conversation::Tally;
use world::{KINDS, World};

/// Conversations in a world.
const CONVERSATIONS: usize = 3;

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is not a number"))
}

#[test]
fn no_combination_changes_a_bit() {
    let n_generations = number("REFRAIN_DIFFERENTIAL_GENERATIONS", 100) as usize;
    let first_seed = number("REFRAIN_DIFFERENTIAL_SEED", 1);
    let time_max = Duration::from_secs(60 * number("REFRAIN_DIFFERENTIAL_MINUTES", 1 << 20));
    let start = Instant::now();
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut seed = first_seed;
    let n_compared =
        |tallies: &BTreeMap<&str, Tally>| tallies.values().map(|tally| tally.generations).sum::<usize>();
    // A short run has each kind once.
    let is_enough = |tallies: &BTreeMap<&str, Tally>, seed: u64| {
        n_compared(tallies) >= n_generations
            && (n_generations < 100 || seed - first_seed >= KINDS.len() as u64)
    };
    while !is_enough(&tallies, seed) && start.elapsed() < time_max {
        let kind = KINDS[seed as usize % KINDS.len()];
        let tally = tallies.entry(kind).or_default();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut rng = Rng(seed);
            let mut world = World::new(kind, &mut rng);
            (0..CONVERSATIONS).for_each(|_| conversation::hold(&mut world, &mut rng, tally));
        }));
        if let Err(panic) = outcome {
            eprintln!("the case of `tools/differential 1 {seed}` ({kind}) differs");
            resume_unwind(panic);
        }
        seed += 1;
    }
    println!("{:26} {:>11} {:>8} {:>8} {:>9}", "target", "generations", "tokens", "steps", "accepted");
    for (kind, tally) in &tallies {
        let Tally { generations, tokens, steps, accepted, .. } = tally;
        println!("{kind:26} {generations:>11} {tokens:>8} {steps:>8} {accepted:>9}");
    }
    let mut all = Tally::default();
    tallies.values().for_each(|tally| all.add(tally));
    println!(
        "{} generations equal plain decoding, {} of them with a grammar, {} in shared passes, {} taken in part; seeds {first_seed}..{seed}",
        all.generations, all.with_grammar, all.in_shared_passes, all.in_part
    );
    // Drafts that never come true would prove little.
    if all.generations >= 100 && seed - first_seed >= KINDS.len() as u64 {
        assert_eq!(tallies.len(), KINDS.len());
        assert!(all.accepted > 100, "only {} draft tokens were accepted", all.accepted);
        assert!(all.with_grammar > 0 && all.in_shared_passes > 0 && all.in_part > 0);
    }
}
