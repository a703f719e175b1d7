//! Both engines must compute the same model; otherwise their times are not comparable.

use serde::Serialize;

use crate::engines::{Engine, Logits, Result};

/// Tokens before the compared rows, and the number of these rows.
const CONTEXT: usize = 48;
const N_ROWS: usize = 8;
/// Tokens that a comparison needs.
pub const TEXT_LEN: usize = CONTEXT + N_ROWS;
/// Engines round activations to 8 bits in different ways. A wrong model is far below this cosine.
const COSINE_MIN: f64 = 0.99;

/// The agreement of two engines' logits over all compared rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Agreement {
    /// The other engine.
    pub with: &'static str,
    /// The least cosine of the rows.
    pub cosine_min: f64,
    /// The largest difference of a logit.
    pub difference_max: f64,
    /// The same over the largest logit of its row.
    pub relative_difference_max: f64,
    /// Rows with the same most likely token.
    pub same_argmax: usize,
    pub n_rows: usize,
}

/// Compares two engines with empty caches on the start of `text`. Their caches are empty afterwards.
///
/// # Errors
/// When a row's cosine is below 0.99, or an engine fails.
pub fn check(a: &mut dyn Engine, b: &mut dyn Engine, text: &[u32]) -> Result<Agreement> {
    let agreement = compare(a, b, text)?;
    // This form fails for a cosine that is not a number.
    if agreement.cosine_min >= COSINE_MIN {
        return Ok(agreement);
    }
    Err(format!(
        "{} and {} compute different logits: {agreement:?}, but a cosine of {COSINE_MIN} is expected",
        a.name(),
        b.name()
    )
    .into())
}

/// As [`check`], whatever the result is.
///
/// # Errors
/// An engine fails.
pub fn compare(a: &mut dyn Engine, b: &mut dyn Engine, text: &[u32]) -> Result<Agreement> {
    start(a, text)?;
    start(b, text)?;
    let mut agreement = Agreement::new(b.name());
    for row in 0..N_ROWS {
        agreement.add(a.logits(row), b.logits(row));
    }
    a.clear()?;
    b.clear()?;
    Ok(agreement)
}

fn start(engine: &mut dyn Engine, text: &[u32]) -> Result<()> {
    engine.prefill(&text[..CONTEXT])?;
    engine.verify(&text[CONTEXT..TEXT_LEN], Logits::All)?;
    engine.keep(N_ROWS)
}

impl Agreement {
    /// Agreement over no rows.
    pub fn new(with: &'static str) -> Self {
        Self {
            with,
            cosine_min: 1.0,
            difference_max: 0.0,
            relative_difference_max: 0.0,
            same_argmax: 0,
            n_rows: 0,
        }
    }

    /// Compares a row's logits.
    pub fn add(&mut self, a: &[f32], b: &[f32]) {
        self.n_rows += 1;
        let dot = |x: &[f32], y: &[f32]| -> f64 {
            x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
        };
        let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let largest = a.iter().fold(0f32, |max, x| max.max(x.abs()));
        let difference = a.iter().zip(b).fold(0f32, |max, (x, y)| max.max((x - y).abs()));
        // `min` and `max` would ignore a value that is not a number.
        self.cosine_min = if cosine < self.cosine_min || cosine.is_nan() { cosine } else { self.cosine_min };
        self.difference_max = self.difference_max.max(f64::from(difference));
        self.relative_difference_max = self.relative_difference_max.max(f64::from(difference / largest));
        self.same_argmax += usize::from(argmax(a) == argmax(b));
    }
}

fn argmax(values: &[f32]) -> Option<usize> {
    (0..values.len()).max_by(|&i, &j| values[i].total_cmp(&values[j]))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<f32>);

    impl Engine for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        fn clear(&mut self) -> Result<()> {
            Ok(())
        }

        fn prefill(&mut self, _: &[u32]) -> Result<()> {
            Ok(())
        }

        fn verify(&mut self, _: &[u32], _: Logits) -> Result<()> {
            Ok(())
        }

        fn keep(&mut self, _: usize) -> Result<()> {
            Ok(())
        }

        fn logits(&self, _: usize) -> &[f32] {
            &self.0
        }

        fn mark(&mut self) -> Result<()> {
            Ok(())
        }

        fn rewind(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn equal_logits_pass_and_wrong_ones_are_refused() {
        let check = |a: &[f32], b: &[f32]| check(&mut Fixed(a.to_vec()), &mut Fixed(b.to_vec()), &[0; 64]);
        let good = check(&[1.0, 2.0, -3.0], &[1.0, 2.01, -3.0]).unwrap();
        assert!(good.cosine_min > 0.9999 && good.same_argmax == N_ROWS);
        assert!((good.relative_difference_max - 0.01 / 3.0).abs() < 1e-4);
        assert!(check(&[1.0, 2.0, -3.0], &[1.0, -2.0, -3.0]).is_err());
        assert!(check(&[1.0, 2.0], &[f32::NAN, 2.0]).is_err());
    }
}
