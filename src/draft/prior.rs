//! The seeded prior of the reliability table, for sources that match text.
//!
//! A suffix source's raw probability is a count's share; what that is worth depends on how long the match is and how often
//! it was seen. The table below is the share of such claims that came true when recorded responses of language models and
//! people (summaries, answers from passages, phone actions, mails, open chat) were replayed with the context source: the
//! even rows of a collection, every subtask with the same weight. Command (`replay_tests.rs`):
//!
//! ```text
//! FIT=1 REFRAIN_REPLAY=folder-of-jsonl cargo test --release --lib replay_tests -- --ignored --nocapture
//! ```
//!
//! With it the odd rows gave 1.77, 1.87 and 1.94 tokens per step at 8, 16 and 32 rows (geometric mean over the subtasks
//! with context), against 1.72, 1.82 and 1.88 with the formula `probability · (1 − 0.6^match_len)`, and 1.63, 1.66, 1.66
//! for prompt lookup.

/// Buckets of match lengths.
pub(super) const MATCH_LENS: usize = 8;
/// Buckets of raw probabilities.
pub(super) const PROBABILITIES: usize = 10;

pub(super) fn match_len_bucket(match_len: u32) -> usize {
    match match_len {
        0..=4 => match_len.saturating_sub(1) as usize,
        5..=6 => 4,
        7..=9 => 5,
        10..=16 => 6,
        _ => 7,
    }
}

/// Upper bounds of the buckets of raw probabilities but the last.
const PROBABILITY_BOUNDS: [f32; PROBABILITIES - 1] = [0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8];

pub(super) fn probability_bucket(probability: f32) -> usize {
    PROBABILITY_BOUNDS.partition_point(|&bound| bound <= probability)
}

/// Buckets of counts.
pub(super) const COUNTS: usize = 4;

pub(super) fn count_bucket(count: u32) -> usize {
    match count {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 3,
    }
}

/// The middle of a bucket.
pub(super) fn bucket_probability(bucket: usize) -> f32 {
    let below = if bucket == 0 { 0.0 } else { PROBABILITY_BOUNDS[bucket - 1] };
    0.5 * (below + PROBABILITY_BOUNDS.get(bucket).copied().unwrap_or(1.0))
}

/// The share of such claims that came true.
///
/// Within a bucket the share grows with the square root of the claim: between "as claimed" and "all alike", as measured.
pub(super) fn fitted(match_len: u32, probability: f32, count: u32) -> f32 {
    let bucket = probability_bucket(probability);
    let permille = ACCEPTED_PERMILLE[match_len_bucket(match_len)][bucket][count_bucket(count)];
    f32::from(permille) / 1000.0 * (probability / bucket_probability(bucket)).sqrt()
}

/// Share of claims that came true, in thousandths. Shape `[match length, probability, count]`.
#[rustfmt::skip]
const ACCEPTED_PERMILLE: [[[u16; COUNTS]; PROBABILITIES]; MATCH_LENS] = [
    [
        [6, 9, 7, 4],
        [12, 16, 20, 19],
        [27, 27, 42, 42],
        [44, 41, 58, 58],
        [72, 56, 95, 97],
        [57, 74, 130, 100],
        [99, 133, 289, 191],
        [369, 207, 437, 339],
        [525, 593, 710, 595],
        [675, 675, 734, 781],
    ],
    [
        [7, 3, 6, 0],
        [29, 20, 9, 2],
        [35, 37, 32, 21],
        [99, 58, 89, 39],
        [112, 120, 104, 98],
        [96, 143, 167, 159],
        [181, 111, 264, 258],
        [510, 342, 449, 299],
        [525, 719, 877, 702],
        [675, 675, 752, 659],
    ],
    [
        [4, 9, 1, 3],
        [11, 25, 5, 2],
        [35, 54, 4, 11],
        [85, 57, 42, 33],
        [115, 111, 102, 49],
        [116, 133, 308, 120],
        [195, 251, 289, 289],
        [649, 221, 525, 142],
        [525, 796, 879, 831],
        [675, 675, 889, 698],
    ],
    [
        [4, 0, 1, 1],
        [3, 0, 1, 2],
        [11, 6, 4, 2],
        [49, 15, 61, 32],
        [142, 52, 48, 10],
        [46, 154, 77, 94],
        [191, 160, 143, 135],
        [638, 325, 420, 355],
        [525, 767, 803, 684],
        [675, 675, 932, 786],
    ],
    [
        [0, 1, 3, 4],
        [8, 13, 6, 8],
        [40, 6, 11, 11],
        [41, 35, 15, 34],
        [144, 104, 136, 82],
        [128, 111, 123, 407],
        [191, 156, 174, 293],
        [734, 381, 397, 601],
        [525, 794, 878, 728],
        [675, 675, 916, 978],
    ],
    [
        [23, 1, 4, 4],
        [35, 44, 7, 15],
        [13, 39, 15, 34],
        [49, 47, 95, 50],
        [183, 90, 155, 186],
        [135, 174, 131, 332],
        [289, 154, 630, 746],
        [797, 526, 580, 896],
        [525, 864, 894, 871],
        [675, 675, 902, 991],
    ],
    [
        [1, 4, 4, 4],
        [8, 12, 15, 15],
        [31, 17, 32, 34],
        [137, 30, 41, 51],
        [84, 276, 335, 120],
        [86, 146, 162, 176],
        [501, 207, 322, 462],
        [874, 692, 708, 855],
        [525, 907, 962, 695],
        [675, 675, 976, 992],
    ],
    [
        [4, 4, 4, 4],
        [10, 12, 15, 15],
        [8, 27, 34, 34],
        [141, 34, 67, 67],
        [165, 54, 238, 120],
        [81, 98, 61, 413],
        [406, 169, 118, 604],
        [955, 506, 671, 612],
        [525, 953, 976, 883],
        [675, 675, 924, 976],
    ],
];
