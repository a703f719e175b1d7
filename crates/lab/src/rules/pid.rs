//! The number of drafted rows, controlled by acceptance: the PID controller of draft-verify decoding on phones. The engine's
//! builder weighs the gain of each row against its cost instead ([`DraftRows::Auto`](refrain::drafting::DraftRows)).

/// A proportional-integral-derivative controller of the number of draft rows.
///
/// The error is `e = acceptance rate − set point`. The acceptance rate is an exponential mean over the steps
/// that drafted, and [`PidConfig::SMOOTHING`] is the weight of the newest step:
///
/// ```text
/// k = clamp(k₀ + proportional·e + integral·Σe + derivative·Δe, rows_min, rows_max), rounded
/// ```
///
/// A positive error lengthens the drafts. Later draft tokens are accepted less often, which closes the loop.
/// *Anti-windup* is conditional integration: while `k` is at a bound and the error pushes further, nothing is
/// integrated, so the controller leaves the bound at the first error of the other sign (K. J. Åström and L.
/// Rundqwist, "Integrator windup and how to avoid it", American Control Conference 1989).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PidConfig {
    /// The acceptance rate to hold (accepted ÷ drafted rows), 0..=1. Default 0.6: the last row of a draft is
    /// then accepted about half of the time. One more row gains as much as it costs if a row costs half a
    /// step.
    pub set_point: f32,
    /// Rows per unit of the error. Default 4: a fully accepted draft at the set point 0.6 adds 1.6 rows at
    /// once.
    pub proportional: f32,
    /// Rows per unit of the error and step. Default 1: a fully accepted draft adds 0.4 rows permanently.
    pub integral: f32,
    /// Rows per unit of change of the error. Default 1, a quarter of the proportional gain, because a single
    /// bad step is noise.
    pub derivative: f32,
    /// Rows of the first step. Default 4.
    pub rows_start: usize,
    /// Minimum rows, 1 or more: without a draft there is no acceptance rate to measure. Default 1.
    pub rows_min: usize,
    /// Maximum rows. Default 15: with the root, a batch of 16.
    pub rows_max: usize,
}

impl PidConfig {
    /// Weight of the newest step in the acceptance rate. The mean then covers about three steps, the length
    /// of a passage of uniform text.
    pub const SMOOTHING: f32 = 0.3;
}

impl Default for PidConfig {
    fn default() -> Self {
        Self {
            set_point: 0.6,
            proportional: 4.0,
            integral: 1.0,
            derivative: 1.0,
            rows_start: 4,
            rows_min: 1,
            rows_max: 15,
        }
    }
}

/// A running controller; [`PidConfig`] has the equation.
#[derive(Clone, Debug)]
pub(crate) struct Pid {
    config: PidConfig,
    /// Acceptance rate, smoothed; `None` before the first draft.
    rate: Option<f32>,
    /// `Σe`, over the integrated errors.
    integrated: f32,
    /// The error of the last step that drafted.
    error: f32,
    /// `k` before rounding, within its bounds.
    rows: f32,
}

impl Pid {
    pub(crate) fn new(config: PidConfig) -> Self {
        Self { config, rate: None, integrated: 0.0, error: 0.0, rows: config.rows_start as f32 }
    }

    /// Maximum draft rows of the next step.
    pub(crate) fn rows(&self) -> usize {
        self.rows.round() as usize
    }

    /// Observes a step with `drafted` draft rows and `accepted` accepted rows. A step without a draft is
    /// ignored.
    pub(crate) fn observe(&mut self, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        let PidConfig { set_point, proportional, integral, derivative, rows_start, .. } = self.config;
        let newest = accepted as f32 / drafted as f32;
        let rate = self.rate.map_or(newest, |rate| rate + PidConfig::SMOOTHING * (newest - rate));
        let error = rate - set_point;
        // The first error has no predecessor.
        let change = if self.rate.is_some() { error - self.error } else { 0.0 };
        (self.rate, self.error) = (Some(rate), error);
        let free = |integrated: f32| {
            rows_start as f32 + proportional * error + integral * integrated + derivative * change
        };
        let [min, max] = [self.config.rows_min, self.config.rows_max].map(|rows| rows as f32);
        let integrated = self.integrated + error;
        let wanted = free(integrated);
        let winds_up = (wanted > max && error > 0.0) || (wanted < min && error < 0.0);
        if !winds_up {
            self.integrated = integrated;
        }
        self.rows = free(self.integrated).clamp(min, max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid() -> Pid {
        Pid::new(PidConfig::default())
    }

    /// Steps until the controller reaches `rows`, at most 1000.
    fn steps_to(pid: &mut Pid, rows: usize, mut rate: impl FnMut(usize) -> f32) -> usize {
        let steps = (0..1000).take_while(|_| {
            let k = pid.rows();
            pid.observe(1000, (1000.0 * rate(k)) as usize);
            k != rows
        });
        steps.count()
    }

    #[test]
    fn rows_grow_while_drafts_are_right_and_fall_while_they_are_wrong() {
        let mut pid = pid();
        assert_eq!(pid.rows(), 4);
        let up = steps_to(&mut pid, 15, |_| 1.0);
        assert!((5..40).contains(&up), "{up} steps to the upper bound");
        let down = steps_to(&mut pid, 1, |_| 0.0);
        assert!((3..40).contains(&down), "{down} steps to the lower bound");
    }

    #[test]
    fn nothing_is_wound_up_at_a_bound() {
        for (bound, at_bound, after) in [(15, 1.0, 0.0), (1, 0.0, 1.0)] {
            let [mut short, mut long] = [pid(), pid()];
            steps_to(&mut short, bound, |_| at_bound);
            steps_to(&mut long, bound, |_| at_bound);
            (0..500).for_each(|_| long.observe(8, (8.0 * at_bound) as usize));
            let leave = |pid: &mut Pid| {
                let mut steps = 0;
                while pid.rows() == bound && steps < 1000 {
                    pid.observe(1000, (1000.0 * after) as usize);
                    steps += 1;
                }
                steps
            };
            let [short, long] = [leave(&mut short), leave(&mut long)];
            assert!(long <= short + 3 && long < 8, "{bound}: {long} steps after long, {short} after short");
        }
    }

    /// If acceptance falls with each further row, the controller settles at the number of rows whose rate is
    /// the set point.
    #[test]
    fn the_set_point_is_reached_and_held() {
        // Accepted share of a chain of k tokens, each accepted with probability 0.9: (0.9 + … + 0.9^k) / k.
        let chain = |k: usize| (1..=k).map(|i| 0.9f32.powi(i as i32)).sum::<f32>() / k as f32;
        let settled = (1..=15).min_by(|&a, &b| (chain(a) - 0.6).abs().total_cmp(&(chain(b) - 0.6).abs()));
        let mut pid = pid();
        let rows: Vec<usize> = (0..300)
            .map(|_| {
                let k = pid.rows();
                pid.observe(10_000, (10_000.0 * chain(k)) as usize);
                k
            })
            .collect();
        let last = &rows[200..];
        let (least, most) = (*last.iter().min().unwrap(), *last.iter().max().unwrap());
        assert!(most - least <= 1, "it swings from {least} to {most}");
        assert!(most.abs_diff(settled.unwrap()) <= 1, "{most}, not {settled:?}");
    }

    #[test]
    fn steps_without_a_draft_say_nothing() {
        let (mut asked, mut rested) = (pid(), pid());
        for _ in 0..10 {
            asked.observe(4, 3);
            rested.observe(4, 3);
            rested.observe(0, 0);
        }
        assert_eq!(asked.rows, rested.rows);
    }

    #[test]
    fn any_gains_stay_within_the_bounds() {
        for gain in [0.0, 1.0, 1000.0] {
            let config = PidConfig {
                proportional: gain,
                integral: gain,
                derivative: gain,
                rows_start: 7,
                rows_min: 3,
                rows_max: 9,
                ..PidConfig::default()
            };
            let mut pid = Pid::new(config);
            for i in 0..200usize {
                pid.observe(7, i * 5 % 8);
                assert!((3..=9).contains(&pid.rows()), "{} rows with gains of {gain}", pid.rows());
            }
            assert!(gain > 0.0 || pid.rows() == 7);
        }
    }
}
