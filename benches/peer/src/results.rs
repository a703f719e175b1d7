//! The results of a run, and the figures derived from them.

use serde::Serialize;

use crate::agreement::Agreement;
use crate::cells::{Cell, LONG_CONTEXT, LONG_PREFILL_LEN, PREFILL_LEN, Times, VERIFY_CONTEXT};
use crate::engines::KvKind;
use crate::machine::Machine;
use crate::weights::Weights;

/// All results of a run.
#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    /// Names and versions of the engines and the machine.
    pub versions: Vec<(String, String)>,
    /// The type of both engines' KV caches.
    pub kv: KvKind,
    pub alternations: usize,
    pub files: Vec<FileResults>,
}

/// One model file.
#[derive(Debug, Serialize)]
pub struct FileResults {
    pub name: String,
    pub weights: Weights,
    /// Refrain with each other engine.
    pub agreements: Vec<Agreement>,
    pub cells: Vec<CellResults>,
    pub memory: Vec<Memory>,
}

/// One cell: Refrain's times first, then llama.cpp's with each setting of flash attention.
#[derive(Debug, Serialize)]
pub struct CellResults {
    pub cell: Cell,
    pub times: Vec<Times>,
}

/// The peak of resident memory of a process that loads a file and fills its context.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub engine: &'static str,
    pub peak_bytes: u64,
}

impl CellResults {
    pub fn refrain_ms(&self) -> f64 {
        self.times.first().map_or(f64::NAN, Times::median_ms)
    }

    /// The time of this engine, if it was measured.
    pub fn ms_of(&self, engine: &str) -> Option<f64> {
        self.times.iter().find(|times| times.engine == engine).map(Times::median_ms)
    }

    /// llama.cpp with its faster setting for this cell.
    pub fn llama(&self) -> Option<&Times> {
        self.times.iter().skip(1).min_by(|a, b| a.median_ms().total_cmp(&b.median_ms()))
    }

    /// llama.cpp's time over Refrain's: above 1, Refrain is faster.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.llama()?.median_ms() / self.refrain_ms())
    }
}

/// One of the two engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Refrain,
    Llama,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Refrain => "refrain",
            Side::Llama => "llama.cpp",
        }
    }
}

impl FileResults {
    pub fn cell(&self, cell: Cell) -> Option<&CellResults> {
        self.cells.iter().find(|results| results.cell == cell)
    }

    pub fn ms(&self, side: Side, cell: Cell) -> Option<f64> {
        let results = self.cell(cell)?;
        match side {
            Side::Refrain => Some(results.refrain_ms()),
            Side::Llama => results.llama().map(Times::median_ms),
        }
    }

    fn verify_ms(&self, side: Side, rows: usize) -> Option<f64> {
        self.ms(side, Cell::verify(rows, true))
    }

    /// Share of the measured bandwidth that one row without context reaches, counting each matrix once.
    pub fn bandwidth_share(&self, side: Side, machine: &Machine) -> Option<f64> {
        let seconds = self.ms(side, Cell::Decode { context: 0 })? / 1e3;
        Some(self.weights.bytes_per_row as f64 / seconds / machine.read_bytes_per_s)
    }

    /// Share of the measured int8 peak that `rows` rows with all logits reach, counting the matrices' multiply-adds.
    pub fn int8_share(&self, side: Side, rows: usize, machine: &Machine) -> Option<f64> {
        let seconds = self.verify_ms(side, rows)? / 1e3;
        Some(self.weights.macs_per_row as f64 * rows as f64 / seconds / machine.int8_macs_per_s?)
    }

    /// The cost of `rows` rows relative to one row, with the logits of all rows.
    pub fn rows_over_one(&self, side: Side, rows: usize) -> Option<f64> {
        Some(self.verify_ms(side, rows)? / self.verify_ms(side, 1)?)
    }

    /// The same after a long prompt.
    pub fn long_rows_over_one(&self, side: Side, rows: usize) -> Option<f64> {
        Some(self.ms(side, Cell::long_verify(rows))? / self.ms(side, Cell::long_verify(1))?)
    }

    pub fn memory_over_file(&self, engine: &str) -> Option<f64> {
        let memory = self.memory.iter().find(|memory| memory.engine == engine)?;
        Some(memory.peak_bytes as f64 / self.weights.file_bytes as f64)
    }
}

/// Cells that one geometric mean summarises.
pub struct Group {
    pub name: String,
    holds: fn(Cell) -> bool,
}

impl Group {
    pub fn all() -> Vec<Group> {
        vec![
            Group {
                name: "decode, one row, contexts 0, 1024, 4096".to_owned(),
                holds: |cell| matches!(cell, Cell::Decode { .. }),
            },
            Group {
                name: format!("verification, 4–32 rows at context {VERIFY_CONTEXT}, logits of all"),
                holds: |cell| {
                    matches!(cell, Cell::Verify { context: VERIFY_CONTEXT, rows: 4 | 8 | 16 | 32, all_logits: true })
                },
            },
            Group {
                name: format!("verification, 4–32 rows at context {VERIFY_CONTEXT}, logits of one"),
                holds: |cell| matches!(cell, Cell::Verify { rows: 4 | 8 | 16 | 32, all_logits: false, .. }),
            },
            Group {
                name: format!("verification, 4–32 rows at context {LONG_CONTEXT}, logits of all"),
                holds: |cell| {
                    matches!(cell, Cell::Verify { context: LONG_CONTEXT, rows: 4 | 8 | 16 | 32, all_logits: true })
                },
            },
            Group {
                name: format!("steps of drafting at context {VERIFY_CONTEXT}"),
                holds: |cell| matches!(cell, Cell::Step { .. }),
            },
            Group {
                name: format!("prefill {PREFILL_LEN}"),
                holds: |cell| matches!(cell, Cell::Prefill { len: PREFILL_LEN }),
            },
            Group {
                name: format!("prefill {LONG_PREFILL_LEN}"),
                holds: |cell| matches!(cell, Cell::Prefill { len: LONG_PREFILL_LEN }),
            },
        ]
    }

    /// The ratios of the group's cells in a file.
    pub fn ratios(&self, file: &FileResults) -> Vec<f64> {
        let cells = file.cells.iter().filter(|results| (self.holds)(results.cell));
        cells.filter_map(CellResults::ratio).collect()
    }
}

#[cfg(test)]
pub(crate) fn sample() -> Results {
    use crate::cells::Kind;
    use clap::ValueEnum as _;
    let times = |engine, ms: f64| Times { engine, turns_ms: vec![ms, 3.0 * ms, 2.0 * ms] };
    let cells = Cell::of_kinds(Kind::value_variants()).into_iter().map(|cell| {
        let rows = if let Cell::Verify { rows, .. } = cell { rows as f64 } else { 1.0 };
        let times = vec![
            times("refrain", 4.0 + rows),
            times("llama.cpp", 5.0 * rows + 10.0),
            times("llama.cpp, flash attention", 5.0 * rows + 5.0),
        ];
        CellResults { cell, times }
    });
    Results {
        machine: Machine {
            cpu: "a CPU".to_owned(),
            n_threads: 2,
            read_bytes_per_s: 80e9,
            int8_macs_per_s: Some(1e12),
            load_before: Some(0.0),
        },
        versions: vec![("refrain".to_owned(), "0".to_owned())],
        kv: KvKind::F16,
        alternations: 3,
        files: vec![FileResults {
            name: "sample".to_owned(),
            weights: Weights {
                file_bytes: 1_000_000,
                bytes_per_row: 400_000_000,
                macs_per_row: 500_000_000,
                vocab_size: 10,
            },
            agreements: Vec::new(),
            cells: cells.collect(),
            memory: vec![Memory { engine: "refrain", peak_bytes: 1_500_000 }],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_medians() {
        let results = sample();
        let (file, machine) = (&results.files[0], &results.machine);
        let near = |value: Option<f64>, expected: f64| {
            assert!((value.unwrap() - expected).abs() < 1e-9, "{value:?}")
        };
        // Refrain's one row takes 2 · 5 ms, llama.cpp's faster setting 2 · 10 ms.
        near(file.cell(Cell::Decode { context: 0 }).unwrap().ratio(), 2.0);
        near(file.bandwidth_share(Side::Refrain, machine), 400e6 / 10e-3 / 80e9);
        near(file.int8_share(Side::Refrain, 32, machine), 32.0 * 500e6 / 72e-3 / 1e12);
        near(file.rows_over_one(Side::Llama, 8), 90.0 / 20.0);
        near(file.memory_over_file("refrain"), 1.5);
        assert_eq!(file.memory_over_file("llama.cpp"), None);
        let n_cells: Vec<usize> = Group::all().iter().map(|group| group.ratios(file).len()).collect();
        assert_eq!(n_cells, [3, 4, 4, 4, 4, 1, 1]);
    }
}
