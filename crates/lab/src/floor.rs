//! The floor: on no text and no machine may drafts cost more than a little.
//!
//! Recorded responses are replayed by the measured costs of several machines, from all sources and from prompt and output alone.
//! The time of drafting is part of both. It is that of this machine, so nothing else should run, or a given one.

use std::fmt::Write as _;

use refrain::internals::draft::CostProfile;

use crate::costs::Costs;
use crate::model::Response;
use crate::replay::Setting;
use crate::report::written;
use crate::rows::TokenRow;
use crate::run::{Half, Measurement, run};
use crate::strategy::{Sources, Strategy};
use crate::tally::Tally;

/// Minimum speed over plain decoding.
pub const OVER_PLAIN_MIN: f64 = 0.98;
/// Minimum speed over drafts from prompt and output alone.
pub const OVER_PROMPT_MIN: f64 = 0.99;

/// A machine: its name, and the time of a batch by its rows, in ms.
type Machine = (&'static str, &'static [(usize, f32)]);

/// The machines and models whose costs were measured: `benches/results/` has the conditions.
#[rustfmt::skip]
pub const MACHINES: [Machine; 8] = [
    ("fixture target, Zen 4", &[(1, 0.13), (2, 0.18), (4, 0.32), (8, 0.56), (16, 0.88), (32, 1.71), (64, 3.49)]),
    ("SmolLM2-135M Q4_1, Zen 4", &[(1, 4.46), (2, 6.23), (4, 6.39), (8, 9.60), (16, 15.1), (32, 26.8), (64, 58.0)]),
    ("0.5B Q4_0, Zen 5", &[(1, 8.52), (2, 8.92), (4, 9.70), (8, 11.4), (16, 17.6), (32, 33.6), (64, 64.6)]),
    ("0.5B Q4_0, Xeon, AVX2", &[(1, 14.1), (2, 16.8), (4, 21.3), (8, 31.9), (16, 57.4), (32, 115.0), (64, 223.0)]),
    ("0.5B Q4_0, Zen 4, AVX2", &[(1, 12.4), (2, 13.1), (4, 18.6), (8, 29.1), (16, 53.7), (32, 113.0), (64, 216.0)]),
    ("1.5B Q4_0, Zen 5", &[(1, 22.7), (4, 26.3), (8, 28.2), (16, 44.3), (32, 88.1)]),
    ("1.5B Q4_0, Zen 4", &[(1, 27.1), (4, 35.1), (8, 47.9), (16, 85.2), (32, 158.0)]),
    ("1.5B Q4_0, Xeon, AVX2", &[(1, 35.9), (2, 45.9), (4, 51.3), (8, 74.1), (16, 135.0), (32, 260.0), (64, 495.0)]),
];

/// A machine's part of the report: the rows of all sources and of prompt and output alone, both by subtask.
#[derive(Clone, Debug)]
pub struct OnMachine {
    /// The machine.
    pub name: String,
    /// From all sources.
    pub all: Vec<Measurement>,
    /// From prompt and output alone.
    pub prompt: Vec<Measurement>,
}

/// What drafts cost, and may cost: the fields of a [`Setting`].
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Maximum rows of a batch.
    pub max_rows: usize,
    /// Maximum share of the time of a response that drafts may lose; `None`: drafts need not be paid.
    pub stake: Option<f32>,
    /// Time of drafting a node, in µs; `None`: as measured.
    pub draft_us_per_node: Option<f32>,
}

/// Replays `rows` on each of these machines, one after the other; `n_threads` share the subtasks of one.
pub fn measure(
    rows: &[TokenRow],
    half: Half,
    machines: &[(String, Costs)],
    Terms { max_rows, stake, draft_us_per_node }: Terms,
    vocab_size: usize,
    n_threads: usize,
) -> Vec<OnMachine> {
    let on_machine = |(name, costs): &(String, Costs)| {
        let [all, prompt] = [Sources::Passages, Sources::Prompt].map(|sources| {
            let setting = Setting::new(Strategy::Refrain, sources, max_rows, costs.clone());
            let setting = Setting { stake, draft_us_per_node, ..setting };
            run(rows, half, &[setting], vocab_size, n_threads)
        });
        OnMachine { name: name.clone(), all, prompt }
    };
    machines.iter().map(on_machine).collect()
}

/// The built-in machines.
pub fn machines() -> Vec<(String, Costs)> {
    let costs = |of: &[(usize, f32)]| {
        let us: Vec<(usize, f32)> = of.iter().map(|&(rows, ms)| (rows, 1000.0 * ms)).collect();
        Costs::Fixed(Box::new(CostProfile::from_measurements(&us)))
    };
    MACHINES.iter().map(|&(name, of)| (name.to_owned(), costs(of))).collect()
}

/// A cell of the report.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// Task, or task and subtask.
    pub name: String,
    /// Number of replayed tokens.
    pub n_tokens: usize,
    /// Speed over plain decoding, from all sources.
    pub over_plain: f64,
    /// Speed over drafts from prompt and output alone.
    pub over_prompt: f64,
}

impl Cell {
    fn new(name: String, all: &Tally, prompt: &Tally) -> Self {
        let over_plain = all.speed_up(true);
        Cell { name, n_tokens: all.n_tokens, over_plain, over_prompt: over_plain / prompt.speed_up(true) }
    }

    /// Whether the cell is below the floor.
    pub fn is_below(&self) -> bool {
        self.over_plain < OVER_PLAIN_MIN || self.over_prompt < OVER_PROMPT_MIN
    }
}

/// The least of ascending speeds, the first percentile, and how many are below 0.98 and below 0.99.
fn lowest(speeds: &[f32]) -> [String; 4] {
    let at = |i: usize| speeds.get(i).map_or_else(String::new, |speed| format!("{speed:.3}"));
    let below = |min: f32| speeds.partition_point(|&speed| speed < min).to_string();
    [at(0), at(speeds.len() / 100), below(0.98), below(0.99)]
}

impl OnMachine {
    /// The speed of each response over plain decoding, ascending: of decoding, and with the time of its prompt.
    pub fn responses(&self) -> [Vec<f32>; 2] {
        [0, 1].map(|of| {
            let mut speeds: Vec<f32> = self
                .all
                .iter()
                .flat_map(|of_subtask| &of_subtask.tally.speeds)
                .map(|both| both[of])
                .collect();
            speeds.sort_by(f32::total_cmp);
            speeds
        })
    }

    /// One cell for each subtask, or for each task.
    pub fn cells(&self, by_task: bool) -> Vec<Cell> {
        let mut sums: Vec<(String, Tally, Tally)> = Vec::new();
        for (all, prompt) in self.all.iter().zip(&self.prompt) {
            let name = if by_task { all.task.clone() } else { format!("{}/{}", all.task, all.subtask) };
            if sums.last().is_none_or(|last| last.0 != name) {
                sums.push((name, Tally::default(), Tally::default()));
            }
            if let Some((_, sum_all, sum_prompt)) = sums.last_mut() {
                sum_all.add(&all.tally);
                sum_prompt.add(&prompt.tally);
            }
        }
        sums.into_iter().map(|(name, all, prompt)| Cell::new(name, &all, &prompt)).collect()
    }
}

/// The tables as Markdown: tasks by machine, and the subtasks below the floor.
pub fn write(conditions: &[String], measured: &[OnMachine]) -> String {
    written(|out| write_all(out, conditions, measured))
}

/// The table of the responses through a model as Markdown, the slowest first.
pub fn write_responses(conditions: &[String], responses: &[Response]) -> String {
    written(|out| {
        conditions.iter().try_for_each(|line| writeln!(out, "- {line}"))?;
        let mut sorted: Vec<&Response> = responses.iter().collect();
        sorted.sort_by(|a, b| a.speed.total_cmp(&b.speed));
        let mean = |of: fn(&Response) -> f64| {
            let logs = responses.iter().map(|response| of(response).ln());
            (logs.sum::<f64>() / responses.len().max(1) as f64).exp()
        };
        let (whole, decoding) = (mean(|response| response.speed), mean(|response| response.decoding));
        writeln!(
            out,
            "- {} responses, geometric mean {whole:.3} with the prompt, {decoding:.3} of decoding\n",
            sorted.len()
        )?;
        writeln!(out, "| response | tokens | per step | turns | with the prompt | ± | decoding |")?;
        writeln!(out, "| --- |{}", " ---: |".repeat(6))?;
        sorted.iter().try_for_each(|response| {
            let per_step = response.n_tokens as f64 / response.n_steps.max(1) as f64;
            let Response { name, n_tokens, n_turns, speed, decoding, half_width, .. } = response;
            writeln!(
                out,
                "| {name} | {n_tokens} | {per_step:.2} | {n_turns} | {speed:.3} | {half_width:.3} | {decoding:.3} |"
            )
        })
    })
}

fn write_all(out: &mut String, conditions: &[String], measured: &[OnMachine]) -> std::fmt::Result {
    conditions.iter().try_for_each(|line| writeln!(out, "- {line}"))?;
    let tasks: Vec<Vec<Cell>> = measured.iter().map(|machine| machine.cells(true)).collect();
    let names: Vec<&str> = tasks.first().into_iter().flatten().map(|cell| cell.name.as_str()).collect();
    let bold = |value: f64, min: f64| {
        if value < min { format!("**{value:.3}**") } else { format!("{value:.3}") }
    };
    writeln!(
        out,
        "\nSpeed over plain decoding (over drafts from prompt and output alone), drafting included; bold below {OVER_PLAIN_MIN} ({OVER_PROMPT_MIN})\n"
    )?;
    writeln!(out, "| machine | {} |", names.join(" | "))?;
    writeln!(out, "| --- |{}", " ---: |".repeat(names.len()))?;
    for (machine, cells) in measured.iter().zip(&tasks) {
        write!(out, "| {} |", machine.name)?;
        for cell in cells {
            let plain = bold(cell.over_plain, OVER_PLAIN_MIN);
            write!(out, " {plain} ({}) |", bold(cell.over_prompt, OVER_PROMPT_MIN))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "\nEach response by itself, of decoding (with the time of its prompt)\n")?;
    writeln!(out, "| machine | least | 1 in 100 below | below 0.98 | below 0.99 | all |")?;
    writeln!(out, "| --- |{}", " ---: |".repeat(5))?;
    for machine in measured {
        let mut all = Tally::default();
        machine.all.iter().for_each(|of| all.add(&of.tally));
        let [decoding, whole] = machine.responses();
        let cells = lowest(&decoding).into_iter().zip(lowest(&whole));
        let cells = cells.map(|(alone, whole)| format!("{alone} ({whole})"));
        let cells = cells.collect::<Vec<_>>().join(" | ");
        writeln!(out, "| {} | {cells} | {:.3} |", machine.name, all.speed_up(true))?;
    }
    let subtasks: Vec<Vec<Cell>> = measured.iter().map(|machine| machine.cells(false)).collect();
    let n_all: usize = subtasks.iter().map(Vec::len).sum();
    let below = || {
        measured.iter().zip(&subtasks).flat_map(|(machine, cells)| {
            cells.iter().filter(|cell| cell.is_below()).map(move |cell| (machine, cell))
        })
    };
    writeln!(out, "\n{} of {n_all} subtasks by machine are below the floor\n", below().count())?;
    if below().next().is_some() {
        writeln!(out, "| machine | subtask | tokens | over plain | over prompt and output |")?;
        writeln!(out, "| --- | --- | ---: | ---: | ---: |")?;
    }
    for (machine, Cell { name, n_tokens, over_plain, over_prompt }) in below() {
        let (plain, prompt) = (bold(*over_plain, OVER_PLAIN_MIN), bold(*over_prompt, OVER_PROMPT_MIN));
        writeln!(out, "| {} | {name} | {n_tokens} | {plain} | {prompt} |", machine.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(task: &str, subtask: &str, plain_us: f64, verify_us: f64, draft_us: f32) -> Measurement {
        let tally = Tally { n_tokens: 10, plain_us, verify_us, draft_us: vec![draft_us], ..Tally::default() };
        Measurement { task: task.to_owned(), subtask: subtask.to_owned(), setting: 0, tally }
    }

    #[test]
    fn cells_below_the_floor_are_named() {
        let all = vec![
            measurement("answer", "short", 100.0, 50.0, 0.0),
            measurement("answer", "long", 100.0, 100.0, 10.0),
            measurement("ui", "press", 100.0, 90.0, 5.0),
        ];
        let prompt = vec![
            measurement("answer", "short", 100.0, 60.0, 0.0),
            measurement("answer", "long", 100.0, 100.0, 0.0),
            measurement("ui", "press", 100.0, 80.0, 5.0),
        ];
        let measured = [OnMachine { name: "laptop".to_owned(), all, prompt }];
        let cells = measured[0].cells(false);
        assert_eq!(cells.iter().map(Cell::is_below).collect::<Vec<_>>(), [false, true, true]);
        let shown = write(&["rows".to_owned()], &measured);
        for line in [
            "| laptop | 1.250 (1.000) | 1.053 (**0.895**) |",
            "2 of 3 subtasks by machine",
            "| laptop | answer/long | 10 | **0.909** | **0.909** |",
            "| laptop | ui/press | 10 | 1.053 | **0.895** |",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        assert!(!shown.contains("answer/short"));
    }

    #[test]
    fn larger_batches_are_dearer_on_every_machine() {
        for (name, costs) in machines() {
            let costs = costs.behind(0);
            let us: Vec<f32> = [1, 4, 8, 16, 32].map(|rows| costs.verify_us(rows, 1)).to_vec();
            assert!(us.is_sorted() && us[0] < us[4], "{name}: {us:?}");
        }
    }
}
