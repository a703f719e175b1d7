//! Activations rounded to 8 bits, as the integer tiles read them: blocks of 32, and pairs of rows.

/// 32 activations as `scale · q`, `q` in −127..=127.
///
/// `scale = amax / 127` and `q = x · (1 / scale)`, to nearest, ties to even. A block of zeros, or of numbers
/// so small that `1 / scale` overflows, has scale 0. A block with a NaN or an infinity has scale NaN, so all
/// outputs that use it are NaN, on every instruction set.
///
/// A block is one cache line; the kernels broadcast its numbers as operands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// Eight groups of four signed bytes, the first in the low bits.
    pub(super) q: [i32; 8],
    pub(super) scale: f32,
    /// `scale · Σ q`: the factor of a format's minimum.
    pub(super) scaled_sum: f32,
    /// The same for the first and the last 16 `q`.
    pub(super) scaled_halves: [f32; 2],
    /// −8 and −128 times Σ q: the initial value of the dot product of a format with this bias.
    pub(super) starts: [i32; 2],
    /// −32 times the sums of the first and of the last 16 `q`.
    pub(super) split_starts: [i32; 2],
}

impl Block {
    /// The initial value of the dot product with codes that have the bias `bias`.
    #[inline(always)]
    pub(super) fn start(&self, bias: i32) -> i32 {
        match bias {
            0 => 0,
            1 => self.starts[0] >> 3,
            8 => self.starts[0],
            16 => self.starts[0] << 1,
            128 => self.starts[1],
            _ => unreachable!("no format has this bias"),
        }
    }

    /// The initial value for columns `16 · half ..`, for formats with a scale per 16 columns.
    #[inline(always)]
    pub(super) fn split_start(&self, bias: i32, half: usize) -> i32 {
        match bias {
            0 => 0,
            4 => self.split_starts[half] >> 3,
            32 => self.split_starts[half],
            _ => unreachable!("no split format has this bias"),
        }
    }
}

/// How a [`RowPair`] holds its two rows.
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "other tiles read blocks"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowOrder {
    /// Row after row: a register holds 16 columns of one row, or a start of one row in each lane.
    Apart,
    /// A register holds eight columns of each row, or the factors of both rows twice: the 2 × 2 form of `smmla`.
    Woven,
}

/// The [`Block`]s of two rows, in registers of 128 bits. Formats with 4 and 8 bits read the first two cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RowPair {
    /// Apart: columns 0..16 and 16..32 of the first row, then of the second. Woven: columns 8i..8i + 8 of both.
    codes: [[i32; 4]; 4],
    /// Apart: both scales, both scaled sums; the scaled halves of the first row, of the second. Woven: both scales twice;
    /// both scaled sums twice.
    factors: [[f32; 4]; 2],
    /// Woven: the first halves of both rows, scaled, twice; the second halves.
    halves: [[f32; 4]; 2],
    /// Initial values of dot products. Apart: bias 8 of each row, bias 16 of each row, the halves of the first row, of the
    /// second. Woven: biases 8, 128 and 16, the halves.
    starts: [[i32; 4]; 8],
}

impl RowPair {
    pub(super) fn new(order: RowOrder, rows: [Block; 2]) -> Self {
        let mut pair = RowPair::default();
        let [one, other] = rows;
        match order {
            RowOrder::Apart => {
                let ([a, b], [c, d]) = (one.scaled_halves, other.scaled_halves);
                pair.factors = [[one.scale, other.scale, one.scaled_sum, other.scaled_sum], [a, b, c, d]];
                for (r, row) in rows.iter().enumerate() {
                    let [first, second] = row.split_starts;
                    pair.starts[r] = [row.start(8); 4];
                    pair.starts[2 + r] = [row.start(16); 4];
                    pair.starts[4 + 2 * r] = [first; 4];
                    pair.starts[5 + 2 * r] = [second; 4];
                    pair.codes[2 * r..][..2].copy_from_slice(row.q.as_chunks().0);
                }
            }
            RowOrder::Woven => {
                pair.factors = [[one.scale, other.scale], [one.scaled_sum, other.scaled_sum]].map(twice);
                let starts = [8, 128, 16].map(|bias| [one.start(bias), other.start(bias)]);
                let split_starts = [0, 1].map(|half| [one.split_starts[half], other.split_starts[half]]);
                pair.starts[..3].copy_from_slice(&starts.map(twice));
                pair.starts[3..5].copy_from_slice(&split_starts.map(twice));
                pair.halves = [0, 1].map(|half| twice([one.scaled_halves[half], other.scaled_halves[half]]));
                for (part, codes) in pair.codes.iter_mut().enumerate() {
                    let columns = 2 * part..2 * part + 2;
                    codes[..2].copy_from_slice(&one.q[columns.clone()]);
                    codes[2..].copy_from_slice(&other.q[columns]);
                }
            }
        }
        pair
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(super) fn codes(&self) -> &[[i32; 4]; 4] {
        &self.codes
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(super) fn factors(&self) -> &[[f32; 4]; 2] {
        &self.factors
    }

    /// Woven: the factors of the minima of columns `16 · half`.. of both rows.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(super) fn woven_half(&self, half: usize) -> &[f32; 4] {
        &self.halves[half]
    }

    /// Apart: the initial value for codes with the bias, of columns `16 · half`.. if the format has a scale per 16.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(super) fn row_start(&self, bias: i32, row: usize, half: usize) -> &[i32; 4] {
        match bias {
            8 => &self.starts[row],
            16 => &self.starts[2 + row],
            32 => &self.starts[4 + 2 * row + half],
            _ => unreachable!("no format has this bias"),
        }
    }

    /// Woven: the same, of both rows.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(super) fn woven_start(&self, bias: i32, half: usize) -> &[i32; 4] {
        match bias {
            8 => &self.starts[0],
            128 => &self.starts[1],
            16 => &self.starts[2],
            32 => &self.starts[3 + half],
            _ => unreachable!("no format has this bias"),
        }
    }
}

fn twice<T: Copy>([one, other]: [T; 2]) -> [T; 4] {
    [one, other, one, other]
}
