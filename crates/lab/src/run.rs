//! Replays whole collections on several threads.

use std::collections::BTreeMap;

use crate::replay::{Lane, Setting, Wanted};
use crate::rows::TokenRow;
use crate::tally::Tally;
use crate::threads;

/// The rows to measure. The other rows are only added to the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Half {
    /// Every row.
    #[default]
    All,
    /// Rows 0, 2, …, for fitting constants.
    Even,
    /// Rows 1, 3, …, for reports on fitted constants.
    Odd,
}

impl Half {
    /// Whether a row is measured.
    pub fn takes(self, row: &TokenRow) -> bool {
        match self {
            Half::All => true,
            Half::Even => row.index.is_multiple_of(2),
            Half::Odd => !row.index.is_multiple_of(2),
        }
    }
}

/// One cell of a report: a subtask by a setting.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The task.
    pub task: String,
    /// The subtask.
    pub subtask: String,
    /// Index of the setting.
    pub setting: usize,
    /// The counts.
    pub tally: Tally,
}

/// The rows of each subtask, in order, by (task, subtask).
pub fn by_subtask(rows: &[TokenRow]) -> BTreeMap<(&str, &str), Vec<&TokenRow>> {
    let mut subtasks: BTreeMap<(&str, &str), Vec<&TokenRow>> = BTreeMap::new();
    for row in rows {
        subtasks.entry((&row.task, &row.subtask)).or_default().push(row);
    }
    subtasks
}

/// Replays all rows by every setting on `n_threads` threads.
///
/// A subtask is one lane: its rows follow one another, so results do not depend on the number of threads (times do).
/// The result is sorted by task, subtask and setting.
pub fn run(
    rows: &[TokenRow],
    half: Half,
    settings: &[Setting],
    vocab_size: usize,
    n_threads: usize,
) -> Vec<Measurement> {
    let subtasks = by_subtask(rows);
    let mut jobs: Vec<(_, usize)> = subtasks
        .iter()
        .flat_map(|subtask| (0..settings.len()).map(move |setting| (subtask, setting)))
        .collect();
    // The longest first, so that no long subtask remains for one thread at the end.
    let n_tokens =
        |rows: &[&TokenRow]| rows.iter().map(|row| row.prompt.len() + 10 * row.response.len()).sum::<usize>();
    jobs.sort_by_cached_key(|((_, rows), _)| std::cmp::Reverse(n_tokens(rows)));
    let mut all = threads::map(n_threads, &jobs, |&((&(task, subtask), rows), setting)| {
        let tally = replay_all(rows, half, &settings[setting], vocab_size);
        Measurement { task: task.to_owned(), subtask: subtask.to_owned(), setting, tally }
    });
    all.sort_by(|a, b| (&a.task, &a.subtask, a.setting).cmp(&(&b.task, &b.subtask, b.setting)));
    all.retain(|measurement| measurement.tally.n_rows > 0);
    all
}

fn replay_all(rows: &[&TokenRow], half: Half, setting: &Setting, vocab_size: usize) -> Tally {
    let mut lane = Lane::new(setting, vocab_size);
    let mut tally = Tally::default();
    for row in rows {
        match half.takes(row) {
            true => lane.replay(row, &mut tally, Wanted::default()),
            false => lane.skip(row),
        }
    }
    tally
}
