//! Rotary position embedding: frequencies, their scalings, and a table of rotations.
//!
//! Su et al. 2021 (RoFormer), eq. 15, with dimension `i` paired with `i + rotary_dim/2` (the layout of Hugging
//! Face checkpoints). GGUF llama files interleave the pairs; their rows are reordered when they are packed.
//!
//! The frequencies and angles are rounded to f32 where the reference implementation rounds them. Sine and
//! cosine come from `libm`, so the table has the same bits on every platform.

use crate::kernels::FloatEnv;
use crate::model::config::{RopeConfig, RopeScaling};

/// A table grows by this number of positions. Doubling would leave up to half of the memory unused. Growing a
/// table to 32 k positions in these steps copies it 32 times, about 10 ms in total.
const GROWTH_POSITIONS: usize = 1024;

/// Cosines and sines of the first positions, `[n_positions, rotary_dim / 2]` each. The table grows on demand.
#[derive(Debug, Clone)]
pub struct RopeTable {
    config: RopeConfig,
    /// The context that the table was made for; 0: none yet.
    context_len: usize,
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// An empty table.
    pub fn new(config: &RopeConfig) -> Self {
        let _env = FloatEnv::ieee();
        Self {
            config: config.clone(),
            context_len: 0,
            inverse_frequencies: Vec::new(),
            attention_factor: 1.0,
            cos: Vec::new(),
            sin: Vec::new(),
        }
    }

    /// Maximum bytes of a table of `n_positions` positions: cosines, sines, and the old copy of one of them
    /// while it grows.
    pub(crate) fn bytes(config: &RopeConfig, n_positions: usize) -> u64 {
        let row_bytes = (config.rotary_dim / 2 * size_of::<f32>()) as u64;
        row_bytes.saturating_mul(3 * n_positions.next_multiple_of(GROWTH_POSITIONS) as u64)
    }

    /// Computes the rows of all positions below `n_positions`, for a session that may fill `context_len` positions. A
    /// context on the other side of the original one empties the table first, if the rotation depends on it.
    pub fn grow(&mut self, n_positions: usize, context_len: usize) {
        let _env = FloatEnv::ieee();
        if self.context_len != context_len {
            let before = std::mem::replace(&mut self.context_len, context_len);
            if before == 0 || depends_on_context(&self.config.scaling) {
                self.inverse_frequencies = inverse_frequencies(&self.config, context_len);
                self.attention_factor = attention_factor(&self.config.scaling);
                self.cos.clear();
                self.sin.clear();
            }
        }
        let half = self.inverse_frequencies.len();
        let room = n_positions.next_multiple_of(GROWTH_POSITIONS) * half;
        if n_positions * half > self.cos.len() {
            for table in [&mut self.cos, &mut self.sin] {
                table.reserve_exact(room - table.len());
            }
        }
        for position in self.cos.len() / half..n_positions {
            for &frequency in &self.inverse_frequencies {
                let angle = f64::from(position as f32 * frequency);
                self.cos.push(libm::cos(angle) as f32 * self.attention_factor);
                self.sin.push(libm::sin(angle) as f32 * self.attention_factor);
            }
        }
    }

    /// `(cos, sin)` of one position, `[rotary_dim / 2]` each.
    ///
    /// # Panics
    /// If the table was not grown to the position.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.inverse_frequencies.len();
        let range = position * half..(position + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Whether the rotation differs between sessions with different contexts. (Keys of one cannot be used in the other.)
pub(crate) fn depends_on_context(scaling: &RopeScaling) -> bool {
    matches!(scaling, RopeScaling::LongRope { .. } | RopeScaling::Dynamic { .. })
}

/// The factor of cosines and sines.
fn attention_factor(scaling: &RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
            *attention_factor as f32
        }
        _ => 1.0,
    }
}

/// `θ^(-2i/rotary_dim)` for each pair, scaled as the checkpoint states.
fn inverse_frequencies(config: &RopeConfig, context_len: usize) -> Vec<f32> {
    let RopeConfig { theta, rotary_dim, scaling } = config;
    let half = rotary_dim / 2;
    let of_base = |theta: f64, i: usize| {
        let exponent = (2 * i) as f32 / *rotary_dim as f32;
        (1.0 / libm::pow(theta, f64::from(exponent))) as f32
    };
    let plain = (0..half).map(|i| of_base(*theta, i));
    match scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
        // A frequency of 0 leaves its pair as it is.
        RopeScaling::Proportional { n_pairs } => {
            plain.enumerate().map(|(i, f)| if i < *n_pairs { f } else { 0.0 }).collect()
        }
        RopeScaling::Factors(factors) => plain.zip(factors).map(|(f, factor)| f / factor).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_len } => {
            let original = *original_context_len as f64;
            let divisor =
                |f| llama3_divisor(f64::from(f), *factor, *low_freq_factor, *high_freq_factor, original);
            plain.map(|f| f / divisor(f) as f32).collect()
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context_len, truncate, .. } => {
            let turns = [*beta_fast, *beta_slow];
            let [low, high] = yarn_ramp(turns, *theta, *rotary_dim, *original_context_len, *truncate);
            plain
                .enumerate()
                .map(|(i, f)| {
                    let kept = 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    f / *factor as f32 * (1.0 - kept) + f * kept
                })
                .collect()
        }
        RopeScaling::Dynamic { factor, original_context_len } => {
            let (context, original) = (context_len as f64, *original_context_len as f64);
            if context <= original {
                return plain.collect();
            }
            // bloc97's rule, with the session's context as the length of the text.
            let growth = factor * context / original - (factor - 1.0);
            let exponent = *rotary_dim as f64 / (*rotary_dim as f64 - 2.0);
            let theta = theta * libm::pow(growth, exponent);
            (0..half).map(|i| of_base(theta, i)).collect()
        }
        RopeScaling::LongRope { short, long, original_context_len, .. } => {
            let factors = if context_len > *original_context_len { long } else { short };
            plain.zip(factors).map(|(f, factor)| f / factor).collect()
        }
    }
}

/// The ends of YaRN's ramp (Peng et al. 2023, eq. 17), in pairs of dimensions: frequencies that turn more than the first
/// of `turns` over the original context are kept, those that turn less than the second are divided.
fn yarn_ramp(
    turns: [f64; 2],
    theta: f64,
    rotary_dim: usize,
    original_context_len: usize,
    truncate: bool,
) -> [f32; 2] {
    let pair = |turns: f64| {
        let wave = original_context_len as f64 / (turns * 2.0 * std::f64::consts::PI);
        rotary_dim as f64 * libm::log(wave) / (2.0 * libm::log(theta))
    };
    let (mut low, mut high) = (pair(turns[0]), pair(turns[1]));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(rotary_dim as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    [low as f32, high as f32]
}

/// The frequency scaling of Llama 3.1 and later: low frequencies are divided by `factor`, high ones are kept,
/// and the band between is interpolated. The result is a divisor, as in GGUF files, so that both containers
/// give the same bits.
fn llama3_divisor(frequency: f64, factor: f64, low: f64, high: f64, original_context_len: f64) -> f64 {
    let wave_len = 2.0 * std::f64::consts::PI / frequency;
    if wave_len < original_context_len / high {
        1.0
    } else if wave_len > original_context_len / low {
        factor
    } else {
        let smooth = (original_context_len / wave_len - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10_000.0, rotary_dim: 8, scaling }
    }

    #[test]
    fn rows_are_rotations() {
        let mut table = RopeTable::new(&config(RopeScaling::None));
        table.grow(100, 100);
        assert_eq!(table.row(0), (&[1.0; 4][..], &[0.0; 4][..]));
        let (cos, sin) = table.row(7);
        assert!((f64::from(cos[0]) - 7f64.cos()).abs() < 1e-7);
        assert!((f64::from(sin[1]) - 0.7f64.sin()).abs() < 1e-6);
    }

    #[test]
    fn growing_in_steps_gives_the_same_rows() {
        let mut steps = RopeTable::new(&config(RopeScaling::None));
        let mut once = steps.clone();
        (0..50).step_by(7).for_each(|n| steps.grow(n, 50));
        once.grow(50, 50);
        steps.grow(50, 50);
        assert_eq!((steps.cos, steps.sin), (once.cos, once.sin));
    }

    #[test]
    fn scalings_change_the_bands_they_name() {
        let plain = inverse_frequencies(&config(RopeScaling::None), 99);
        let linear = inverse_frequencies(&config(RopeScaling::Linear { factor: 4.0 }), 99);
        assert!(plain.iter().zip(&linear).all(|(p, l)| l * 4.0 == *p));
        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_len: 64,
        };
        let llama3 = inverse_frequencies(&config(scaling), 99);
        assert_eq!(llama3[0], plain[0], "a wave of 6 positions is short");
        assert_eq!(llama3[3], plain[3] / 32.0, "a wave of 6283 positions is long");
        let factors = inverse_frequencies(&config(RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0])), 99);
        assert_eq!(factors[3], plain[3] / 8.0);
        let proportional = inverse_frequencies(&config(RopeScaling::Proportional { n_pairs: 1 }), 99);
        assert_eq!(proportional, [plain[0], 0.0, 0.0, 0.0]);
    }
}
