//! Costs as they are stored, and costs of several generations together.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::hidden::HiddenTime;
use super::{CostCorrection, CostProfile, Knot, LOG_CORRECTION_MAX, LOG_ERROR_MAX, US_MAX, US_MIN};
use refrain_trees::VERIFY_ROWS_MAX;

/// A [`CostProfile`] as stored: without the batch lengths, which belong to the backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::draft) struct StoredCosts {
    knots: Vec<StoredKnot>,
    free_rows: bool,
    /// Of versions whose steps had prices of leaves.
    #[serde(default, skip_serializing)]
    #[allow(dead_code, reason = "read and left out")]
    leaves: IgnoredAny,
    recent_error: Option<f32>,
    hidden_us: f32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredKnot {
    rows: usize,
    log_us: f32,
    n_young: u8,
}

/// A [`CostCorrection`] as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::draft) struct StoredCorrection {
    log_factors: Vec<f32>,
    /// Of versions whose steps had prices of leaves.
    #[serde(default, skip_serializing)]
    #[allow(dead_code, reason = "read and left out")]
    leaves: IgnoredAny,
    hidden_us: f32,
}

impl CostProfile {
    /// Whether every batch costs the same, by construction.
    pub(in crate::draft) fn is_free(&self) -> bool {
        self.free_rows
    }

    /// Moves towards `theirs` by `weight`, 0 to 1: a mean of the times' logarithms.
    pub(in crate::draft) fn blend(&mut self, theirs: &CostProfile, weight: f32) {
        if self.free_rows || theirs.free_rows {
            return;
        }
        let mut rows: Vec<usize> = self.knots().iter().chain(theirs.knots()).map(|knot| knot.rows).collect();
        rows.sort_unstable();
        rows.dedup();
        // Both stem from the same measurements, so only one number of rows is beyond the table.
        rows.truncate(self.knots.len());
        let mean = |rows: usize| {
            let [mine, theirs] = [&*self, theirs].map(|profile| profile.interpolate(rows).ln());
            (mine + weight * (theirs - mine)).clamp(US_MIN.ln(), US_MAX.ln())
        };
        let n_young = |rows: usize| {
            let both = self.knots().iter().chain(theirs.knots()).filter(|knot| knot.rows == rows);
            both.map(|knot| knot.n_young).min().unwrap_or(0)
        };
        let knots: Vec<Knot> =
            rows.into_iter().map(|rows| Knot { rows, log_us: mean(rows), n_young: n_young(rows) }).collect();
        self.n_knots = knots.len();
        self.knots[..knots.len()].copy_from_slice(&knots);
        self.hidden = self.hidden.blended(theirs.hidden, weight);
        self.recent_error = theirs.recent_error;
        self.plain = self.plain.blended(theirs.plain);
        self.fill_table();
        self.fill_added();
    }

    pub(in crate::draft) fn to_stored(&self) -> StoredCosts {
        let stored = |knot: &Knot| StoredKnot { rows: knot.rows, log_us: knot.log_us, n_young: knot.n_young };
        StoredCosts {
            knots: self.knots().iter().map(stored).collect(),
            free_rows: self.free_rows,
            leaves: IgnoredAny,
            recent_error: self.recent_error,
            hidden_us: self.hidden.us(),
        }
    }

    /// # Errors
    /// The reason why the costs are invalid.
    pub(in crate::draft) fn from_stored(stored: StoredCosts) -> Result<Self, &'static str> {
        let StoredCosts { knots, free_rows, recent_error, hidden_us, .. } = stored;
        let mut profile = CostProfile::from_measurements(&[(1, 1.0)]);
        if knots.is_empty() || knots.len() > profile.knots.len() {
            return Err("there are no times, or too many");
        }
        let rises = knots.is_sorted_by(|a, b| a.rows < b.rows);
        // One number of rows beyond the table is allowed, for the slope.
        let fits =
            knots[0].rows > 0 && knots[..knots.len() - 1].iter().all(|knot| knot.rows <= VERIFY_ROWS_MAX);
        if !rises || !fits {
            return Err("rows must rise from 1, and one number of them may be above 64");
        }
        let is_time = |log_us: f32| (US_MIN.ln()..=US_MAX.ln()).contains(&log_us);
        if !knots.iter().all(|knot| is_time(knot.log_us)) {
            return Err("a time is not in its range");
        }
        // Errors are sums of fractions of bounded errors.
        if recent_error.is_some_and(|error| !(-LOG_ERROR_MAX..=LOG_ERROR_MAX).contains(&error)) {
            return Err("the error of recent steps is not in its range");
        }
        if free_rows {
            return Ok(CostProfile::free_rows(knots[0].log_us.exp()));
        }
        for (knot, stored) in profile.knots.iter_mut().zip(&knots) {
            *knot = Knot { rows: stored.rows, log_us: stored.log_us, n_young: stored.n_young };
        }
        (profile.n_knots, profile.recent_error) = (knots.len(), recent_error);
        profile.hidden = hidden(hidden_us)?;
        profile.fill_table();
        profile.fill_added();
        Ok(profile)
    }
}

impl CostCorrection {
    /// As [`CostProfile::blend`].
    pub(in crate::draft) fn blend(&mut self, theirs: &CostCorrection, weight: f32) {
        for (mine, theirs) in self.log_factors.iter_mut().zip(&theirs.log_factors) {
            *mine += weight * (theirs - *mine);
        }
        self.hidden = self.hidden.blended(theirs.hidden, weight);
    }

    pub(in crate::draft) fn to_stored(&self) -> StoredCorrection {
        let log_factors = self.log_factors.to_vec();
        StoredCorrection { log_factors, leaves: IgnoredAny, hidden_us: self.hidden.us() }
    }

    /// # Errors
    /// The reason why the correction is invalid.
    pub(in crate::draft) fn from_stored(stored: StoredCorrection) -> Result<Self, &'static str> {
        let StoredCorrection { log_factors, hidden_us, .. } = stored;
        let log_factors: [f32; VERIFY_ROWS_MAX] =
            log_factors.try_into().map_err(|_| "there are not 64 factors")?;
        if !log_factors.iter().all(|factor| (-LOG_CORRECTION_MAX..=LOG_CORRECTION_MAX).contains(factor)) {
            return Err("a factor is not in its range");
        }
        Ok(Self { log_factors, hidden: hidden(hidden_us)? })
    }
}

fn hidden(us: f32) -> Result<HiddenTime, &'static str> {
    match (0.0..=US_MAX).contains(&us) {
        true => Ok(HiddenTime::of(us)),
        false => Err("the hidden time is not in its range"),
    }
}
