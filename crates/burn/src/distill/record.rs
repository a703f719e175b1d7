//! A target's predictions for passages: recorded once, used for many trainings.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::HiddenStates;
use refrain::internals::draft::CostProfile;
use refrain::internals::error::SessionProblem;
use refrain::{CancelToken, Engine, EngineOptions, SessionError, SessionOptions};

use super::text::Passage;
use crate::Error;

/// Likely next tokens recorded per position. All other tokens are one event: at the fixture target a
/// thousandth of the probability on average.
pub const TOP: usize = 16;

/// Epsilon of the mean square of a hidden state, the same as in the predictor's norm.
const NORM_EPS: f32 = 1e-6;

/// A loaded target.
pub struct Recorder {
    engine: Engine,
}

/// A target's predictions at positions of passages.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Width of the hidden states.
    pub hidden_dim: usize,
    /// Hidden states before the recorded layer, each divided by its root mean square: `[n, hidden_dim]`.
    /// Empty without a layer.
    pub hidden: Vec<f32>,
    /// Numbers of a token in `states`.
    pub state_dim: usize,
    /// Hidden states of every token of the recorded passages, `[n_tokens, state_dim]`. Empty unless they were asked for.
    pub states: Vec<f32>,
    /// The likeliest next tokens, best first: `[n, TOP]`.
    pub top: Vec<[u32; TOP]>,
    /// Their log-probabilities: `[n, TOP]`.
    pub log_p: Vec<[f32; TOP]>,
    /// The passage of each position: `[n]`.
    pub passage: Vec<u32>,
}

impl Record {
    /// Positions.
    pub fn len(&self) -> usize {
        self.top.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.top.is_empty()
    }

    /// The hidden state of a position.
    pub fn hidden_row(&self, position: usize) -> &[f32] {
        &self.hidden[position * self.hidden_dim..(position + 1) * self.hidden_dim]
    }

    /// The training positions and the held-out positions: every tenth recorded passage or, with fewer passages, the last
    /// tenth of the positions.
    pub fn split(&self) -> (Vec<usize>, Vec<usize>) {
        let n_passages = self.passage.chunk_by(|a, b| a == b).count();
        if n_passages < 10 {
            let n_learnt = self.len() - self.len() / 10;
            return ((0..n_learnt).collect(), (n_learnt..self.len()).collect());
        }
        let (mut learnt, mut held_out, mut first) = (Vec::new(), Vec::new(), 0);
        for (n, passage) in self.passage.chunk_by(|a, b| a == b).enumerate() {
            let positions = first..first + passage.len();
            if n % 10 == 9 {
                held_out.extend(positions)
            } else {
                learnt.extend(positions)
            }
            first += passage.len();
        }
        (learnt, held_out)
    }
}

impl Recorder {
    /// Loads the target.
    ///
    /// # Errors
    /// [`Error::Load`].
    pub fn open(checkpoint: &Checkpoint, n_threads: Option<usize>) -> Result<Self, Error> {
        let options = EngineOptions {
            n_threads,
            // There are no drafts, so there is nothing to measure.
            cost_profile: Some(CostProfile::free_rows(1.0)),
            ..EngineOptions::default()
        };
        Ok(Self { engine: Engine::load(checkpoint, options, |_, _| {})? })
    }

    /// The target.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Maximum number of tokens in a passage.
    pub fn len_max(&self, wanted: usize) -> usize {
        wanted.min(self.engine.config().context_len)
    }

    /// Runs the target over passages until `n_max` positions are recorded: all of them, or some from all parts of the
    /// text. With `layer_idx`, records the hidden states before that layer. Calls `progress` with (positions, maximum of positions).
    ///
    /// # Errors
    /// The target cannot be run, or has no such layer.
    pub fn record(
        &self,
        passages: &[Passage],
        layer_idx: Option<usize>,
        n_max: usize,
        progress: impl FnMut(usize, usize),
    ) -> Result<Record, Error> {
        let max = self.engine.config().n_layers() - 1;
        if let Some(given) = layer_idx.filter(|&layer_idx| layer_idx > max) {
            let error = SessionProblem::OutOfRange { option: "layer_idx", given, min: 0, max };
            return Err(SessionError::from(error).into());
        }
        self.run(passages, layer_idx, None, n_max, progress)
    }

    /// As [`record`](Self::record) without a layer, and with hidden states of all tokens.
    ///
    /// # Errors
    /// The target cannot be run.
    pub fn record_states(
        &self,
        passages: &[Passage],
        states: HiddenStates,
        n_max: usize,
        progress: impl FnMut(usize, usize),
    ) -> Result<Record, Error> {
        self.run(passages, None, Some(states), n_max, progress)
    }

    fn run(
        &self,
        passages: &[Passage],
        layer_idx: Option<usize>,
        states: Option<HiddenStates>,
        n_max: usize,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Record, Error> {
        let hidden_dim = self.engine.config().hidden_dim;
        let (layers, state_dim) = match states {
            Some(HiddenStates::Before(layers)) => (layers, 3 * hidden_dim),
            Some(HiddenStates::Final) => ([0; 3], hidden_dim),
            None => ([layer_idx.unwrap_or(0); 3], 0),
        };
        let mut record = Record { hidden_dim, state_dim, ..Record::default() };
        let longest = passages.iter().map(|passage| passage.tokens.len()).max().unwrap_or(0).max(2);
        let options =
            SessionOptions { context_len: Some(longest), history: false, ..SessionOptions::default() };
        let mut session = self.engine.session(options)?;
        for number in spread(passages, n_max) {
            let passage = &passages[number as usize];
            session.truncate(0)?;
            session.append_tokens(&passage.tokens)?;
            let learnt = passage.first_learnt..passage.tokens.len() - 1;
            session.trace(&CancelToken::new(), layers, &mut |traced| {
                match states {
                    Some(HiddenStates::Before(_)) => record.states.extend(traced.hidden),
                    Some(HiddenStates::Final) => record.states.extend(traced.last_hidden),
                    None => {}
                }
                if !learnt.contains(&traced.position) || record.len() >= n_max {
                    return;
                }
                if layer_idx.is_some() {
                    let hidden = &traced.hidden[..hidden_dim];
                    let mean = hidden.iter().map(|x| x * x).sum::<f32>() / hidden_dim as f32;
                    let scale = 1.0 / (mean + NORM_EPS).sqrt();
                    record.hidden.extend(hidden.iter().map(|x| x * scale));
                }
                let (top, log_p) = likeliest(traced.logits);
                record.top.push(top);
                record.log_p.push(log_p);
                record.passage.push(number);
            })?;
            progress(record.len(), n_max);
        }
        Ok(record)
    }
}

/// The numbers of passages with `n_max` learnt positions, or all of them, spread evenly: the tasks of a file often follow one
/// another. The last one may go beyond `n_max`.
fn spread(passages: &[Passage], n_max: usize) -> Vec<u32> {
    let n_learnt = |passage: &Passage| passage.tokens.len() - 1 - passage.first_learnt;
    let total: usize = passages.iter().map(n_learnt).sum();
    let share = n_max as f64 / total.max(1) as f64;
    let (mut seen, mut taken, mut numbers) = (0, 0, Vec::new());
    for (number, passage) in (0..).zip(passages) {
        if taken as f64 <= seen as f64 * share && taken < n_max {
            numbers.push(number);
            taken += n_learnt(passage);
        }
        seen += n_learnt(passage);
    }
    numbers
}

/// The likeliest tokens and their log-probabilities, best first. A smaller vocabulary is padded with impossible
/// tokens.
fn likeliest(logits: &[f32]) -> ([u32; TOP], [f32; TOP]) {
    let mut best = [(f32::NEG_INFINITY, 0u32); TOP];
    for (token, &logit) in (0..).zip(logits) {
        if logit > best[TOP - 1].0 {
            let at = best.partition_point(|&(held, _)| held >= logit);
            best[at..].rotate_right(1);
            best[at] = (logit, token);
        }
    }
    let max = best[0].0;
    let total = max + logits.iter().map(|logit| (logit - max).exp()).sum::<f32>().ln();
    (best.map(|(_, token)| token), best.map(|(logit, _)| (logit - total).max(LOG_P_MIN)))
}

/// Log-probability of an impossible token: its probability adds nothing, and the product of both is a number.
pub(super) const LOG_P_MIN: f32 = -60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_tokens_have_their_share_of_the_whole() {
        let logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32 / 10.0).collect();
        let (top, log_p) = likeliest(&logits);
        assert_eq!(top[0], 27);
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        for (token, log_p) in top.iter().zip(log_p) {
            assert!((log_p.exp() - logits[*token as usize].exp() / total).abs() < 1e-5);
        }
        assert!(log_p.is_sorted_by(|a, b| a >= b));
        let (_, log_p) = likeliest(&[1.0, 2.0]);
        assert!((log_p[0].exp() + log_p[1].exp() - 1.0).abs() < 1e-5);
        assert_eq!(log_p[2], LOG_P_MIN);
    }

    #[test]
    fn a_part_of_the_passages_is_spread_over_all() {
        let passages: Vec<Passage> = (0..100)
            .map(|i| Passage { tokens: vec![refrain::TokenId(0); 12 + i % 3], first_learnt: 1 })
            .collect();
        assert_eq!(spread(&passages, usize::MAX), (0..100).collect::<Vec<_>>());
        assert!(spread(&passages, 0).is_empty());
        let numbers = spread(&passages, 110);
        assert!((9..=11).contains(&numbers.len()), "{numbers:?}");
        for third in [0..33, 33..66, 66..100] {
            assert!(numbers.iter().filter(|number| third.contains(*number)).count() >= 3, "{numbers:?}");
        }
        assert!(spread(&[], 10).is_empty());
    }

    #[test]
    fn a_tenth_is_held_out() {
        let record = |passages: Vec<u32>| Record {
            top: vec![[0; TOP]; passages.len()],
            passage: passages,
            ..Record::default()
        };
        let (learnt, held_out) = record((0..40).map(|i| i / 2).collect()).split();
        assert_eq!((learnt.len(), held_out), (36, vec![18, 19, 38, 39]));
        let (learnt, held_out) = record(vec![0; 30]).split();
        assert_eq!((learnt.len(), held_out), (27, vec![27, 28, 29]));
        assert_eq!(Record::default().split(), (vec![], vec![]));
        let (learnt, held_out) = record((0..20).map(|i| 10 * i).collect()).split();
        assert_eq!(
            (learnt.len(), held_out),
            (18, vec![9, 19]),
            "numbers of passages that were left out do not count"
        );
    }
}
