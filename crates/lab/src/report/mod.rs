//! Reports of measurements, as tables and CSV, and a page of coloured rows.

pub mod ablation;
pub mod csv;
pub mod html;
pub mod markdown;
pub mod timing;

use crate::replay::Setting;
use crate::run::Measurement;
use crate::strategy::{Sources, Strategy};
use crate::tally::{Tally, geometric_mean};

/// What `write` writes.
pub(crate) fn written(write: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out);
    out
}

/// A finished measurement with its conditions.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The conditions: command, rows, tokenizer, machine. One line each.
    pub conditions: &'a [String],
    /// The columns.
    pub settings: &'a [Setting],
    /// The cells, sorted by task, subtask and setting.
    pub measurements: &'a [Measurement],
}

/// The task without context. It is left out of means, because it offers no text to draft from.
pub const HARD_NEGATIVE: &str = "chat";

impl<'a> Report<'a> {
    /// Tasks and subtasks, in order.
    pub fn subtasks(&self) -> Vec<(&'a str, &'a str)> {
        let mut names: Vec<_> =
            self.measurements.iter().map(|m| (m.task.as_str(), m.subtask.as_str())).collect();
        names.dedup();
        names
    }

    /// The tally of one cell.
    pub fn tally(&self, (task, subtask): (&str, &str), setting: usize) -> Option<&'a Tally> {
        let found =
            self.measurements.iter().find(|m| m.setting == setting && m.task == task && m.subtask == subtask);
        found.map(|m| &m.tally)
    }

    /// The sum over all cells of a setting.
    pub fn total(&self, setting: usize) -> Tally {
        let mut total = Tally::default();
        self.measurements.iter().filter(|m| m.setting == setting).for_each(|m| total.add(&m.tally));
        total
    }

    /// The sum over all cells of a setting and a task.
    pub fn task_total(&self, task: &str, setting: usize) -> Tally {
        let mut total = Tally::default();
        let of_task = self.measurements.iter().filter(|m| m.setting == setting && m.task == task);
        of_task.for_each(|m| total.add(&m.tally));
        total
    }

    /// Tasks, in order.
    pub fn tasks(&self) -> Vec<&'a str> {
        let mut tasks: Vec<_> = self.measurements.iter().map(|m| m.task.as_str()).collect();
        tasks.dedup();
        tasks
    }

    /// Groups of settings that differ only by strategy: (sources, rows) and the indices of the settings.
    pub fn groups(&self) -> Vec<((Sources, usize), Vec<usize>)> {
        let mut groups: Vec<((Sources, usize), Vec<usize>)> = Vec::new();
        for (index, setting) in self.settings.iter().enumerate() {
            let key = (setting.sources, setting.max_rows);
            match groups.iter_mut().find(|group| group.0 == key) {
                Some(group) => group.1.push(index),
                None => groups.push((key, vec![index])),
            }
        }
        groups
    }

    /// Whether rows have a cost in a setting.
    pub fn is_weighed(&self, setting: usize) -> bool {
        let costs = self.settings[setting].costs.behind(0);
        costs.verify_us(self.settings[setting].max_rows, 1) > costs.verify_us(1, 1)
    }

    /// `value` of Refrain's cell divided by the best value of the rival rules in a group. `None` if either side is
    /// missing.
    pub fn ratio(
        &self,
        subtask: (&str, &str),
        group: &[usize],
        value: impl Fn(&Tally) -> f64,
    ) -> Option<f64> {
        let of = |wanted: &dyn Fn(Strategy) -> bool| {
            let settings = group.iter().filter(|&&setting| wanted(self.settings[setting].strategy));
            settings.filter_map(|&setting| self.tally(subtask, setting)).map(&value).reduce(f64::max)
        };
        let ours = of(&|strategy| strategy == Strategy::Refrain)?;
        Some(ours / of(&Strategy::is_rival)?)
    }

    /// Geometric mean over the subtasks, without the hard negative, of a setting's speed over plain decoding, without
    /// the time of drafting. If rows are free, this is the mean of tokens per step.
    pub fn mean_speed_up(&self, setting: usize) -> f64 {
        let cells = self.measurements.iter().filter(|m| m.setting == setting && m.task != HARD_NEGATIVE);
        geometric_mean(cells.map(|m| m.tally.speed_up(false)))
    }
}
