//! The time of choosing a token by the vocabulary and the options, beside the plain rule: scale all, sort all, sum in order.
//!
//! ```sh
//! cargo bench --bench sampling
//! ```
//!
//! Logits are drawn from a normal distribution, with a peak that every rule keeps. Each rule chooses with the same numbers in turns.

use std::hint::black_box;
use std::time::Instant;

use refrain::internals::kernels::{self, Kernels};
use refrain::internals::verify::{Breakers, Sampler};
use refrain::{Sampling, TokenId};

const VOCABULARIES: [usize; 4] = [2048, 49_152, 151_936, 262_144];
const ROUNDS: usize = 41;

fn main() {
    let kernels = Kernels::detect();
    println!("{:?}, µs for a choice, medians of {ROUNDS}: as it is / by the plain rule", kernels.isa());
    println!("\n| vocabulary | greedy | all | top-k 40 | top-k 40, top-p 0.95 | top-p 0.95 | min-p 0.05 |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut base = Sampling::default();
    base.seed = Some(7);
    let with = |change: fn(&mut Sampling)| {
        let mut sampling = base.clone();
        sampling.temperature = 0.8;
        change(&mut sampling);
        sampling
    };
    let rules = [
        base.clone(),
        with(|_| ()),
        with(|s| s.top_k = 40),
        with(|s| (s.top_k, s.top_p) = (40, 0.95)),
        with(|s| s.top_p = 0.95),
        with(|s| s.min_p = 0.05),
    ];
    for n in VOCABULARIES {
        let logits = logits(n);
        print!("| {n} |");
        for rule in &rules {
            let mut sampler = Sampler::new(kernels, rule.clone(), Breakers::default(), 0);
            let (mut own, mut plain_rule) = (Vec::new(), Vec::new());
            let mut row = logits.clone();
            for _ in 0..ROUNDS {
                for (is_plain, times) in [(false, &mut own), (true, &mut plain_rule)] {
                    row.copy_from_slice(&logits);
                    let start = Instant::now();
                    if is_plain {
                        black_box(plain(kernels, rule, &mut row, 0.4));
                    } else {
                        black_box(sampler.choose(&[TokenId(1)], &mut row).expect("there are candidates"));
                    }
                    times.push(1e6 * start.elapsed().as_secs_f64());
                }
            }
            let [own, plain_rule] = [own, plain_rule].map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[ROUNDS / 2]
            });
            print!(" {own:.0} / {plain_rule:.0} |");
        }
        println!();
    }
}

/// Numbers as those of a model: 98 % within two of zero, a few far above.
fn logits(n: usize) -> Vec<f32> {
    let mut state = 88_172_645_463_325_252u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f32 / (1u64 << 53) as f32
    };
    let mut logits: Vec<f32> = (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
    (0..60).for_each(|i| logits[i * 31 % n] = 14.0 - 0.15 * i as f32);
    logits
}

/// The obvious rule.
fn plain(kernels: Kernels, rule: &Sampling, logits: &mut [f32], u: f64) -> u32 {
    let best = kernels::argmax(kernels, logits);
    if rule.temperature == 0.0 {
        return best as u32;
    }
    let max = logits[best];
    logits.iter_mut().for_each(|logit| *logit = (*logit - max) / rule.temperature);
    let first = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let mut kept: Vec<(f32, u32)> = Vec::new();
    if rule.top_k > 0 {
        kept.extend(logits.iter().copied().zip(0..));
        kept.select_nth_unstable_by(rule.top_k, first);
        kept.truncate(rule.top_k);
        let mut probabilities: Vec<f32> = kept.iter().map(|c| c.0).collect();
        kernels::softmax(kernels, &mut probabilities);
        kept.iter_mut().zip(probabilities).for_each(|(c, p)| c.0 = p);
    } else {
        kernels::softmax(kernels, logits);
        kept.extend(logits.iter().copied().zip(0..));
    }
    if rule.top_p < 1.0 || rule.min_p > 0.0 {
        let floor = rule.min_p * kept.iter().fold(0.0, |max: f32, c| max.max(c.0));
        kept.retain(|c| c.0 >= floor);
        kept.sort_unstable_by(first);
        let mut sum = 0.0;
        let n = kept.iter().position(|c| {
            let reached = sum >= f64::from(rule.top_p);
            sum += f64::from(c.0);
            reached
        });
        kept.truncate(n.unwrap_or(kept.len()).max(1));
    }
    let threshold = u * kept.iter().map(|c| f64::from(c.0)).sum::<f64>();
    let mut sum = 0.0;
    let chosen = kept.iter().find(|c| {
        sum += f64::from(c.0);
        sum > threshold
    });
    chosen.map_or(0, |c| c.1)
}
