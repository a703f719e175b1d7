//! Requests of the four tasks for `refrain-bench`, with names that training never used.

use std::ops::Range;

use refrain::Task;
use serde::Serialize;

use super::answer;
use super::lexicon::Lexicon;
use super::{FULL, reply, summary, ui};
use crate::rng::Rng;

/// A request with the generator's answer, in the format of `refrain-bench`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The id of the row.
    pub id: String,
    /// Name of the task.
    pub task: &'static str,
    /// The user's message.
    pub prompt: String,
    /// The answer.
    pub response: String,
}

/// The rows of these numbers, for each task.
pub fn rows(seed: u64, numbers: Range<u64>) -> Vec<Row> {
    let tasks = Task::ALL.iter().copied().zip(0..);
    tasks.flat_map(|(task, stream)| numbers.clone().map(move |n| row(seed, task, stream, n))).collect()
}

fn row(seed: u64, task: Task, stream: u64, n: u64) -> Row {
    let mut words = Lexicon::new(Rng::new(seed, stream << 32 | n), true);
    let chat = match task {
        Task::Summarize => summary::chat(&mut words, FULL),
        Task::Answer => answer::chat(&mut words, FULL),
        Task::Ui => ui::chat(&mut words),
        Task::Reply => reply::chat(&mut words, FULL),
    };
    let (prompt, response) = chat.turns()[0].clone();
    Row { id: format!("{task}-{n}"), task: task.name(), prompt, response }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_its_rows_and_they_are_always_the_same() {
        let first = rows(3, 0..5);
        assert_eq!(first, rows(3, 0..5));
        for &task in Task::ALL {
            let of_task: Vec<_> = first.iter().filter(|row| row.task == task.name()).collect();
            assert_eq!(of_task.len(), 5);
            assert!(of_task.iter().all(|row| !row.prompt.is_empty() && !row.response.is_empty()));
        }
        assert_ne!(first, rows(4, 0..5));
        assert!(rows(3, 2..9).iter().filter(|row| first.contains(row)).count() == 3 * Task::ALL.len());
    }
}
