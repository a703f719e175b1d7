//! Times of loads and calls per block and graph: measured by a warm-up, or read from a file.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use refrain_files::open_regular;

/// The format version that this program writes and reads.
const VERSION: u32 = 1;
/// The largest accepted file of times, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of blocks; no published model has more layers.
const BLOCKS_MAX: usize = 512;
/// Maximum rows of a graph: its activations must stay small compared with the weights.
pub const GRAPH_ROWS_MAX: usize = 8192;
/// Maximum time, in µs: an hour, so that sums of times stay finite.
const US_MAX: f64 = 3.6e9;
/// The largest factor by which loads and computation slow each other down.
const SLOWDOWN_MAX: f64 = 100.0;

/// The two graphs of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphKind {
    /// For chunks of the prompt.
    Prefill,
    /// For verification batches.
    Verify,
}

impl GraphKind {
    /// Both graphs, in the order in which a request needs them.
    pub const ALL: [GraphKind; 2] = [GraphKind::Prefill, GraphKind::Verify];

    /// The name used in files.
    pub fn name(self) -> &'static str {
        match self {
            GraphKind::Prefill => "prefill",
            GraphKind::Verify => "verify",
        }
    }
}

impl fmt::Display for GraphKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Times of one graph, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphTimes {
    /// Time from the request of a load until the graph can compute.
    pub load_us: f64,
    /// Time of one call over all rows, at the start of a context.
    pub compute_us: f64,
    /// The additional time of a call per token of context.
    #[serde(default)]
    pub compute_us_per_token: f64,
}

/// Times of one block of layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockTimes {
    /// Its graph for prompt chunks.
    pub prefill: GraphTimes,
    /// Its graph for verification batches.
    pub verify: GraphTimes,
}

impl BlockTimes {
    /// The times of one of the two graphs.
    pub fn of(&self, graph: GraphKind) -> &GraphTimes {
        match graph {
            GraphKind::Prefill => &self.prefill,
            GraphKind::Verify => &self.verify,
        }
    }
}

/// The times that plans are based on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTimes {
    version: u32,
    /// The device and the model, and whether the times were measured or assumed.
    pub label: String,
    /// Rows of the prefill graphs.
    pub prefill_len: usize,
    /// Rows of the verify graphs.
    pub verify_len: usize,
    /// The factor by which computation is slower during a load; at least 1.
    #[serde(default = "one")]
    pub compute_beside_load: f64,
    /// The factor by which a load is slower during computation; at least 1.
    #[serde(default = "one")]
    pub load_beside_compute: f64,
    /// The blocks in the order in which they compute.
    pub blocks: Vec<BlockTimes>,
}

fn one() -> f64 {
    1.0
}

/// Times could not be read, or are invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TimesError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file exceeds the size limit.
    #[error("{}: more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The text is not valid JSON of this structure.
    #[error("{0}")]
    Json(serde_json::Error),
    /// An unknown version of the format.
    #[error("version {given} of graph times, this program reads {VERSION}")]
    Version {
        /// The version.
        given: u32,
    },
    /// A number is outside its range.
    #[error("{field} is {given}, outside {min}..={max}")]
    OutOfRange {
        /// Its name.
        field: String,
        /// Its value.
        given: f64,
        /// The least value.
        min: f64,
        /// The largest value.
        max: f64,
    },
}

impl SwitchTimes {
    /// Times for blocks that do not slow each other down.
    pub fn new(label: String, prefill_len: usize, verify_len: usize, blocks: Vec<BlockTimes>) -> Self {
        let (compute_beside_load, load_beside_compute) = (1.0, 1.0);
        Self {
            version: VERSION,
            label,
            prefill_len,
            verify_len,
            compute_beside_load,
            load_beside_compute,
            blocks,
        }
    }

    /// Reads times from a file of JSON.
    ///
    /// # Errors
    /// [`TimesError`].
    pub fn read(path: &Path) -> Result<Self, TimesError> {
        let io = |source| TimesError::Io { path: path.to_owned(), source };
        let mut text = String::new();
        let file = open_regular(path).map_err(io)?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(TimesError::TooLarge { path: path.to_owned(), limit: FILE_BYTES_MAX });
        }
        Self::from_json(&text)
    }

    /// Reads times from JSON.
    ///
    /// # Errors
    /// [`TimesError::Json`], [`TimesError::Version`], [`TimesError::OutOfRange`].
    pub fn from_json(text: &str) -> Result<Self, TimesError> {
        let times: Self = serde_json::from_str(text).map_err(TimesError::Json)?;
        times.check()?;
        Ok(times)
    }

    /// The times as JSON, for [`SwitchTimes::from_json`].
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and a text have a JSON form")
    }

    /// Checks every number against its range.
    ///
    /// # Errors
    /// [`TimesError::Version`], [`TimesError::OutOfRange`].
    pub fn check(&self) -> Result<(), TimesError> {
        if self.version != VERSION {
            return Err(TimesError::Version { given: self.version });
        }
        let in_range = |field: &str, given: f64, min: f64, max: f64| {
            if (min..=max).contains(&given) {
                return Ok(());
            }
            Err(TimesError::OutOfRange { field: field.to_owned(), given, min, max })
        };
        in_range("the number of blocks", self.blocks.len() as f64, 1.0, BLOCKS_MAX as f64)?;
        in_range("prefill_len", self.prefill_len as f64, 1.0, GRAPH_ROWS_MAX as f64)?;
        in_range("verify_len", self.verify_len as f64, 1.0, GRAPH_ROWS_MAX as f64)?;
        in_range("compute_beside_load", self.compute_beside_load, 1.0, SLOWDOWN_MAX)?;
        in_range("load_beside_compute", self.load_beside_compute, 1.0, SLOWDOWN_MAX)?;
        for (block_idx, block) in self.blocks.iter().enumerate() {
            for graph in GraphKind::ALL {
                let times = block.of(graph);
                let field = |name| format!("{name} of the {graph} graph of block {block_idx}");
                in_range(&field("load_us"), times.load_us, 0.0, US_MAX)?;
                in_range(&field("compute_us"), times.compute_us, 0.0, US_MAX)?;
                in_range(&field("compute_us_per_token"), times.compute_us_per_token, 0.0, US_MAX)?;
            }
        }
        Ok(())
    }

    /// Rows of a call.
    pub fn graph_len(&self, graph: GraphKind) -> usize {
        match graph {
            GraphKind::Prefill => self.prefill_len,
            GraphKind::Verify => self.verify_len,
        }
    }

    /// The time of a block's part of a chunk, µs: as many calls as the rows need, each over all rows of its graph.
    pub fn chunk_us(&self, block_idx: usize, graph: GraphKind, context: usize, rows: usize) -> f64 {
        let (times, len) = (self.blocks[block_idx].of(graph), self.graph_len(graph));
        let n_calls = rows.div_ceil(len) as f64;
        // The calls' contexts are `context`, `context + len`, …
        let contexts = n_calls * context as f64 + len as f64 * n_calls * (n_calls - 1.0) / 2.0;
        n_calls * times.compute_us + times.compute_us_per_token * contexts
    }
}

/// A prefill: chunks of the prompt, one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefill {
    /// Tokens before the first chunk.
    pub context: usize,
    /// Rows of each chunk.
    pub chunks: Vec<usize>,
}

impl Prefill {
    /// `n_rows` rows in chunks of `chunk_len`; the last one may be shorter.
    ///
    /// # Panics
    /// If `chunk_len` is 0.
    pub fn new(context: usize, n_rows: usize, chunk_len: usize) -> Self {
        let chunks = (0..n_rows).step_by(chunk_len).map(|start| chunk_len.min(n_rows - start));
        Self { context, chunks: chunks.collect() }
    }

    /// The rows of each chunk, and the tokens before it.
    pub(super) fn with_contexts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.chunks.iter().scan(self.context, |context, &rows| {
            let before = *context;
            *context += rows;
            Some((before, rows))
        })
    }
}
