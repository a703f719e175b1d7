//! What a token has taken, as measured.

use refrain::Stats;

/// The weight of the newest generation in a rate.
const NEWEST: f64 = 0.5;

/// Generations with fewer tokens are not measured: half of their time is that of the first pass.
const TOKENS_MIN: usize = 8;

/// The time of a token in µs, as measured; `None`: not yet.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) read_us: Option<f64>,
    pub(crate) alone_us: Option<f64>,
    pub(crate) together_us: Option<f64>,
}

fn observe(rate: &mut Option<f64>, us: f64, n_tokens: usize) {
    if n_tokens >= TOKENS_MIN && us.is_finite() && us > 0.0 {
        let new = us / n_tokens as f64;
        *rate = Some(rate.map_or(new, |old| old + NEWEST * (new - old)));
    }
}

impl Rates {
    /// The prompt and the output of a generation.
    pub(crate) fn observe(&mut self, stats: &Stats) {
        observe(&mut self.read_us, stats.time_us.prefill, stats.prefilled_tokens);
        observe(&mut self.alone_us, stats.time_us.decode(), stats.tokens);
    }

    /// A prompt.
    pub(crate) fn observe_reading(&mut self, us: f64, n_tokens: usize) {
        observe(&mut self.read_us, us, n_tokens);
    }

    /// Steps that generations have made together.
    pub(crate) fn observe_together(&mut self, us: f64, n_tokens: usize) {
        observe(&mut self.together_us, us, n_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_was_measured() {
        let mut rates = Rates::default();
        let mut stats = Stats { tokens: 7, prefilled_tokens: 100, ..Stats::default() };
        stats.time_us.prefill = 1000.0;
        stats.time_us.forward = 700.0;
        rates.observe(&stats);
        assert_eq!((rates.read_us, rates.alone_us), (Some(10.0), None), "too few tokens");
        stats.prefilled_tokens = 50;
        rates.observe(&stats);
        assert_eq!(rates.read_us, Some(15.0));
        rates.observe_together(f64::NAN, 100);
        assert_eq!(rates.together_us, None);
    }
}
