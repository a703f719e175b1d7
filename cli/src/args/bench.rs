//! The commands of `refrain bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use refrain::PruningConfig;
use refrain::internals::engine::ProjectionMode;
use refrain_bench::{Sources, Strategy};

use super::draft::{DraftModelArg, PruningArg};
use super::engine::ModelArgs;
use super::session::ReuseArgs;
use super::streaming::StreamingArgs;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Replay recorded responses, as if the model had said them, and count what drafts get right.
    ///
    /// A row is a JSON object on a line of its own, with `id`, `task`, `prompt` and `response`, and perhaps `subtask`,
    /// `context` (a string or a list: the passages) and `session` (rows of one follow one another: earlier responses are
    /// history).
    Replay(ReplayArgs),
    /// Let a model answer with one part of drafting more at a time: what history, calibration and reuse are worth.
    ///
    /// Rows are those of `replay`; the prompt is the user's message, and the response is not used. `fixtures/rows.jsonl` of the
    /// repository has rows for the model inside this program. With --draft the parts are those of drafting with a model:
    /// retrieval, the draft model, both, and the published rules that draft with one. With --pruning they are those of pruning, over
    /// what the texts draft, and --draft if it is given.
    Ablate(AblateArgs),
    /// What cutting verification batches down half-way saves at a model's true shape; its weights may be random.
    Pruning(BenchPruningArgs),
    /// Fit the reliability table and the constants of drafting to the even rows, and report on the odd ones.
    Tune(TuneArgs),
    /// What changing static graphs adds to a prefill: synchronous, asynchronous and progressive switching, measured on a
    /// folder of graphs and simulated, or simulated from given times.
    Graphs(BenchGraphsArgs),
    /// How near streaming comes to the bandwidth of the disk: decoding without drafts at several shares of pinned layers, in turns
    /// with plain sequential reads of the same file. With --replay: what drafting is worth there.
    Stream(BenchStreamArgs),
    /// Decode from flash at a memory budget while memory is asked back again and again; fails where the process held more than the
    /// budget and 64 MiB, or an answer was not the same.
    Pressure(BenchPressureArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchPressureArgs {
    /// A packed file, larger than the budget.
    pub(crate) model: PathBuf,
    /// Bytes that the process is to hold.
    #[arg(long, value_name = "BYTES", value_parser = super::streaming::bytes, default_value = "1GiB")]
    pub(crate) memory: u64,
    /// How long, in seconds.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) seconds: u64,
    /// Reports of memory pressure in that time.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) reports: u32,
    /// Tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tokens: u32,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchPruningArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Nothing else should run meanwhile.
    pub(crate) model: PathBuf,
    /// Rows of the batches.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [8, 16, 32, 64], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) rows: Vec<u32>,
    /// Rows that go on, in percent.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) kept: u32,
    /// The layer before which batches are cut down [default: the middle one].
    #[arg(long, value_name = "N")]
    pub(crate) layer: Option<usize>,
    /// Rank of the predictor.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) rank: usize,
    /// Tokens of the predictor's shadow pool.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) shadow_pool: usize,
    /// Tokens before the batch.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,
    /// Passes of each kind; the median counts.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Threads of the forward pass [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// One JSON list instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchStreamArgs {
    /// A packed file. Nothing else should run meanwhile.
    pub(crate) model: PathBuf,
    /// Shares of the layers that stay in memory, in percent.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 25, 50, 75, 100], value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) pinned: Vec<u32>,
    /// Tokens that are decoded at each share in a round, 2 or more.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) tokens: u32,
    /// Rows of the verification batch whose cost is measured beside that of one row.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) rows: u32,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Model a slower disk, of so many bytes per second; the sequential reads go through it as well.
    #[arg(long, value_name = "BYTES", value_parser = super::streaming::bytes)]
    pub(crate) flash_bandwidth: Option<u64>,
    /// Replay these rows (JSON Lines) instead, at each share of pinned layers and each of --lengths, by each of --strategy beside
    /// plain decoding.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) replay: Vec<PathBuf>,
    /// With --replay: output tokens; rows with fewer are left out of that length [default: whole responses].
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "replay", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) lengths: Vec<u32>,
    /// With --replay: what drafts; see `bench replay` [default: refrain; with --draft also retrieval, draft-model, chain:8 and
    /// edgellm].
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "replay")]
    pub(crate) strategy: Vec<Strategy>,
    /// With --replay: a smaller model that drafts, with the same vocabulary; `fixture`: the one inside this program.
    #[arg(long, value_name = "fixture|PATH", requires = "replay")]
    pub(crate) draft: Option<DraftModelArg>,
    /// With --replay: a tokenizer.json, a GGUF file or a Hugging Face folder [default: the model's].
    #[arg(long, value_name = "PATH", requires = "replay")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// With --replay: rows of each task at each length at most.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "replay")]
    pub(crate) task_rows: usize,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchGraphsArgs {
    /// A folder that `refrain graphs` has written. Nothing else should run meanwhile.
    pub(crate) folder: Option<PathBuf>,
    /// Simulate from the times in this file (JSON, as in a folder's times.json) instead.
    #[arg(long, value_name = "FILE", conflicts_with = "folder")]
    pub(crate) times: Option<PathBuf>,
    /// Prompt tokens that are prefilled.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) tokens: u32,
    /// Measured runs of each way.
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub(crate) rounds: usize,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) rows_args: RowsArgs,
    /// What drafts: refrain, plain, pld, sam, sam-recycle, sam-only, suffix, recycle, always-right, always-wrong; with --draft
    /// also retrieval and draft-model (one half of refrain), chain:N, specinfer, opt-tree, edgellm [default: all; with --draft
    /// those that concern it].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) strategy: Vec<Strategy>,
    /// What may be drafted from: prompt, history (and earlier responses of the session), passages (both, and the
    /// passages as a source of their own).
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "passages")]
    pub(crate) sources: Vec<Sources>,
    /// Rows of a verification batch at most.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8, 16, 32])]
    pub(crate) rows: Vec<usize>,
    /// What a batch costs: what `refrain profile` has written, or a JSON list of [rows, microseconds]. Without it rows are
    /// free.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Forget after every row what drafts were worth.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Run this model: everything is computed and timed, while the walk follows the recorded tokens. Rows that do not fit
    /// its context are left out; of --rows and --sources the first values count. Rows become tokens by the model's own
    /// tokenizer, or by --tokenizer where it has none worth the name.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["profile", "fresh"])]
    pub(crate) model: Option<PathBuf>,
    /// With --model: a smaller model that drafts, with the same vocabulary; `fixture`: the one inside this program.
    #[arg(long, value_name = "fixture|PATH", requires = "model")]
    pub(crate) draft: Option<DraftModelArg>,
    /// With --model: which rows of a batch are projected onto the vocabulary.
    #[arg(long, value_enum, default_value_t = ProjectionArg::OnDemand, requires = "model")]
    pub(crate) projection: ProjectionArg,
    #[command(flatten)]
    pub(crate) streaming: StreamingArgs,
    /// With --model: rows of each subtask at most.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "model")]
    pub(crate) model_rows: usize,
    /// Also write every cell as a line of CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Also write the plots, as SVG files, into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
    /// Also write one page with all of it, and with rows coloured by who drafted each token.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Rows of each subtask on that page.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) html_rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectionArg {
    /// Those that the walk asks for, in waves.
    OnDemand,
    /// All of them.
    Eager,
}

impl ProjectionArg {
    pub(crate) fn mode(self) -> ProjectionMode {
        match self {
            Self::OnDemand => ProjectionMode::OnDemand,
            Self::Eager => ProjectionMode::Eager,
        }
    }

    /// How a report says it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::OnDemand => "on demand",
            Self::Eager => "eagerly",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AblateArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A smaller model that drafts, with the same vocabulary; `fixture`: the one for the model inside this program.
    #[arg(long, value_name = "fixture|PATH")]
    pub(crate) draft: Option<DraftModelArg>,
    /// Prune by this predictor, or by `fixture`, the one for the model inside this program.
    #[arg(long, value_name = "fixture|PATH")]
    pub(crate) pruning: Option<PruningArg>,
    /// With --pruning: nodes of at least this chance go on.
    #[arg(long, value_name = "P", default_value_t = PruningConfig::default().threshold, requires = "pruning")]
    pub(crate) pruning_threshold: f32,
    /// Rows of a verification batch at most.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) rows: usize,
    /// Fill every batch, as if rows cost nothing: acceptance lengths then do not depend on the machine. Without it each step
    /// drafts what pays here.
    #[arg(long)]
    pub(crate) free_rows: bool,
    /// Output tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 160)]
    pub(crate) max_tokens: usize,
    /// Rows of each task at most [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) task_rows: Option<usize>,
    /// What is kept of rejected drafts.
    #[command(flatten)]
    pub(crate) reuse: ReuseArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) rows_args: RowsArgs,
    /// Rows of a verification batch while fitting.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) rows: usize,
    /// What a batch costs: what `refrain profile` has written, or a JSON list of [rows, microseconds]. Without it rows are
    /// free.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Write the fitted constants as Rust, for `src/draft/fitted.rs`.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Recorded rows.
#[derive(Debug, Args)]
pub(crate) struct RowsArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// A tokenizer.json, a GGUF file or a Hugging Face folder [default: the model inside this program].
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Rows to measure; the others are history only.
    #[arg(long, value_enum, default_value_t = HalfArg::All)]
    pub(crate) half: HalfArg,
    /// Threads [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HalfArg {
    All,
    Even,
    Odd,
}
