//! Fits the shipped constants to recorded rows: the reliability prior, and the constants of the automata and the
//! builder.
//!
//! The prior is fitted to the even rows, with equal weight of every subtask, by the claims made with the shipped
//! constants. Then each constant in turn is set to another value if that has a higher score on the even rows
//! (coordinate descent, one round). The score is the speed over plain decoding according to the cost profile. If rows
//! are free, it is tokens per step, and the margin is not changed, because it has an effect only with costs. The
//! result is evaluated on the odd rows, which are not used for fitting. [`to_rust`] writes it as the shipped
//! constants.

use std::fmt;

use refrain::internals::draft::{BuilderConfig, Evidence, OrderConfig, Prior, PriorFit, ReliabilityConfig};

use crate::replay::{Constants, Lane, Setting, Wanted};
use crate::report::HARD_NEGATIVE;
use crate::rows::TokenRow;
use crate::run::{Half, by_subtask, run};
use crate::tally::{Tally, geometric_mean};
use crate::threads;

/// The result of a fit.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The constants.
    pub constants: Constants,
    /// The trials, in order.
    pub trials: Vec<Trial>,
}

/// A set of constants and its score on the even rows.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The difference to the best constants so far.
    pub change: String,
    /// Geometric mean over the subtasks of the speed over plain decoding, without the time of drafting. If rows are
    /// free, this is the mean of tokens per step.
    pub worth: f64,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36} {:.4}", self.change, self.worth)
    }
}

/// One change of one constant.
type Change = (&'static str, f32, fn(&mut Constants, f32));

/// The tried changes, in this order.
#[rustfmt::skip]
const CHANGES: &[Change] = &[
    ("orders.match_len_min", 1.0, |c, v| c.orders.match_len_min = v as u32),
    ("orders.n_candidates_max", 16.0, |c, v| c.orders.n_candidates_max = v as usize),
    ("orders.n_candidates_max", 32.0, |c, v| c.orders.n_candidates_max = v as usize),
    ("orders.n_links_max", 8.0, |c, v| c.orders.n_links_max = v as usize),
    ("orders.n_links_max", 32.0, |c, v| c.orders.n_links_max = v as usize),
    ("orders.recency_weight", 0.1, |c, v| c.orders.recency_weight = v),
    ("orders.recency_weight", 0.4, |c, v| c.orders.recency_weight = v),
    ("reliability.prior_hits", 1.5, |c, v| c.reliability.prior_hits = v),
    ("reliability.prior_hits", 6.0, |c, v| c.reliability.prior_hits = v),
    ("reliability.hits_max", 64.0, |c, v| c.reliability.hits_max = v),
    ("reliability.hits_max", 512.0, |c, v| c.reliability.hits_max = v),
    ("builder.n_candidates_max", 24.0, |c, v| c.builder.n_candidates_max = v as usize),
    ("builder.n_candidates_max", 48.0, |c, v| c.builder.n_candidates_max = v as usize),
    ("builder.n_children_max", 16.0, |c, v| c.builder.n_children_max = v as usize),
    ("builder.n_children_max", 32.0, |c, v| c.builder.n_children_max = v as usize),
    ("builder.reach_min", 0.005, |c, v| c.builder.reach_min = v),
    ("builder.reach_min", 0.001, |c, v| c.builder.reach_min = v),
    ("builder.margin", 0.005, |c, v| c.builder.margin = v),
    ("builder.margin", 0.02, |c, v| c.builder.margin = v),
];

/// Minimum gain of a change, as a factor. Smaller gains would only overfit the even rows.
const GAIN_MIN: f64 = 1.0005;

/// Fits on the even rows with `setting`. Its constants are the start. Calls `progress` with each trial.
pub fn tune(
    rows: &[TokenRow],
    setting: &Setting,
    vocab_size: usize,
    n_threads: usize,
    mut progress: impl FnMut(&Trial),
) -> Tuned {
    let measure = |constants: &Constants| {
        let setting = Setting { constants: constants.clone(), ..setting.clone() };
        let cells = run(rows, Half::Even, &[setting], vocab_size, n_threads);
        let with_context = cells.iter().filter(|cell| cell.task != HARD_NEGATIVE);
        geometric_mean(with_context.map(|cell| cell.tally.speed_up(false)))
    };
    let mut trials = Vec::new();
    let mut record = |change: String, worth: f64| {
        let trial = Trial { change, worth };
        progress(&trial);
        trials.push(trial);
    };
    let mut best = setting.constants.clone();
    let mut best_worth = measure(&best);
    record("as shipped".to_owned(), best_worth);
    let mut consider = |name: String, constants: Constants| {
        let worth = measure(&constants);
        record(name, worth);
        if worth > GAIN_MIN * best_worth {
            (best, best_worth) = (constants, worth);
        }
        best.clone()
    };
    let fitted = fit_prior(rows, setting, vocab_size, n_threads);
    let mut current =
        consider("prior fitted".to_owned(), Constants { prior: fitted, ..setting.constants.clone() });
    for (name, value, change) in CHANGES {
        let mut constants = current.clone();
        change(&mut constants, *value);
        current = consider(format!("{name} = {value}"), constants);
    }
    Tuned { constants: current, trials }
}

/// The prior of the claims made on the even rows.
pub fn fit_prior(rows: &[TokenRow], setting: &Setting, vocab_size: usize, n_threads: usize) -> Prior {
    let subtasks: Vec<Vec<&TokenRow>> = by_subtask(rows).into_values().collect();
    let fits = threads::map(n_threads, &subtasks, |rows| fit_subtask(rows, setting, vocab_size));
    // Added in the order of the subtasks, so that rounding does not depend on threads.
    let mut total = PriorFit::default();
    fits.iter().for_each(|fit| total.merge(fit));
    total.prior()
}

/// The equal weight of all subtasks, in tokens.
const SUBTASK_WEIGHT: f64 = 1e4;

fn fit_subtask(rows: &[&TokenRow], setting: &Setting, vocab_size: usize) -> PriorFit {
    let n_tokens: usize = rows.iter().filter(|row| Half::Even.takes(row)).map(|row| row.response.len()).sum();
    let weight = SUBTASK_WEIGHT / n_tokens.max(1) as f64;
    let mut fit = PriorFit::default();
    let mut lane = Lane::new(setting, vocab_size);
    for row in rows {
        if !Half::Even.takes(row) {
            lane.skip(row);
            continue;
        }
        let mut judge = |evidence: &Evidence, hit: bool| {
            fit.add(evidence, hit, weight);
        };
        let wanted = Wanted { judge: Some(&mut judge), ..Wanted::default() };
        lane.replay(row, &mut Tally::default(), wanted);
    }
    fit
}

/// The constants as the source of `src/draft/fitted.rs`, for the next build. `comment` describes the data of the fit.
pub fn to_rust(constants: &Constants, comment: &str) -> String {
    let Constants { orders, builder, prior, reliability } = constants;
    let OrderConfig { match_len_min, n_candidates_max, n_links_max, recency_weight } = orders;
    let ReliabilityConfig { prior_hits, hits_max } = reliability;
    let BuilderConfig { n_candidates_max: of_source, n_children_max, reach_min, margin, .. } = builder;
    let comment: String = comment.lines().map(|line| format!("//! {line}\n")).collect();
    format!(
        "//! Fitted constants, written by `refrain-bench tune`.
//!
{comment}
use super::constants::{{OrderConfig, Permille, ReliabilityConfig}};

#[rustfmt::skip]
pub(super) const ORDERS: OrderConfig = OrderConfig {{
    match_len_min: {match_len_min},
    n_candidates_max: {n_candidates_max},
    n_links_max: {n_links_max},
    recency_weight: {recency_weight:?},
}};

#[rustfmt::skip]
pub(super) const RELIABILITY: ReliabilityConfig = ReliabilityConfig {{
    prior_hits: {prior_hits:?},
    hits_max: {hits_max:?},
}};

pub(super) const N_CANDIDATES_MAX: usize = {of_source};
pub(super) const N_CHILDREN_MAX: usize = {n_children_max};
pub(super) const REACH_MIN: f32 = {reach_min:?};
pub(super) const MARGIN: f32 = {margin:?};

{}",
        prior.to_rust()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_what_tuning_writes() {
        let shipped = include_str!("../../../src/draft/fitted.rs");
        let comment: Vec<&str> =
            shipped.lines().skip(2).map_while(|line| line.strip_prefix("//! ")).collect();
        assert!(!comment.is_empty(), "the file says what it was fitted to");
        assert_eq!(to_rust(&Constants::default(), &comment.join("\n")), shipped);
    }
}
