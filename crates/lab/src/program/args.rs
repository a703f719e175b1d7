//! The command line of `refrain-bench`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refrain::device::IsaKind;
use refrain::drafting::PruningConfig;
use refrain_program::args::{
    DraftModelArg, ModelArgs, PruningArg, ReuseArgs, StreamingArgs, bandwidth, bytes, isa,
};
use refrain_program::start::GlobalArgs;

use crate::import::Format;
use crate::{Sources, Strategy};

/// Measures drafting: replays recorded text with Refrain and published rules, records traces, lets models answer with parts of
/// drafting, and measures graphs, streams and costs. Models have paths.
#[derive(Debug, Parser)]
#[command(name = "refrain-bench", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) globals: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Replay recorded responses as the output of a model, and count the accepted draft tokens.
    ///
    /// A row is a JSON object on one line with `id`, `task`, `prompt` and `response`. Optional fields are
    /// `subtask`, `context` (the passages: a string or a list) and `session` (rows of one session are
    /// consecutive, and its earlier responses are history). `tokens` has token ids instead of texts.
    Replay(ReplayArgs),
    /// Write the rows of traces that others published, from the files of their repositories.
    ///
    /// Rows of texts are encoded by `replay --tokenizer`, rows of token ids need no tokenizer.
    Import(ImportArgs),
    /// Check the floor: on each machine of the built-in list, drafts from all sources must be at least 0.98 times as fast as
    /// plain decoding and 0.99 times as fast as drafts from prompt and output alone.
    ///
    /// Rows are those of `replay`. The costs of batches are those of the list or of --profile, the time of drafting is
    /// measured here. Nothing else should run during the measurement.
    Floor(FloorArgs),
    /// Record logit traces: a model answers the requests, and the 8 likeliest tokens after every row of the prompt,
    /// the answer and the given strategies' drafts are kept, one file per task. `replay --trace` reads them.
    ///
    /// Rows are those of `replay`; the prompt is the user's message, and the response is not used. The requests of
    /// a task are one session, in order.
    Trace(TraceArgs),
    /// Measure each part of drafting: a model answers with history, calibration and reuse added in turn.
    ///
    /// Rows are those of `replay`; the prompt is the user's message, and the response is not used.
    /// `fixtures/rows.jsonl` of the repository has rows for the model inside this program. With --draft the
    /// arms are retrieval, the draft model, both, and the published rules that use a draft model. With
    /// --pruning the arms are those of pruning, with --draft if it is given.
    Ablate(AblateArgs),
    /// Measure the time saved by pruning verification batches half-way through the layers, at a model's
    /// shape. The weights may be random.
    Pruning(BenchPruningArgs),
    /// Fit the reliability table and the constants of drafting to the even rows, and evaluate them on the odd rows.
    Tune(TuneArgs),
    /// Measure the time that switching static graphs adds to a prefill, for synchronous, asynchronous and
    /// progressive switching, on a folder of graphs or simulated from given times.
    Graphs(BenchGraphsArgs),
    /// Compare streaming with the bandwidth of the disk: plain decoding at several shares of pinned layers,
    /// alternating with sequential reads of the same file. With --replay, measure drafting at these shares.
    Stream(BenchStreamArgs),
    /// Simulate workers that share their answers with a delay: hits, tokens per step and bytes by the number of workers and
    /// the delay.
    ///
    /// Rows are those of `replay`; only rows with a session count, and only earlier answers of a row's session are
    /// its history.
    Fleet(FleetArgs),
    /// Decode from flash within a memory budget under repeated memory pressure. Fails if the process holds
    /// more than the budget and 64 MiB, or if an answer changes.
    Pressure(BenchPressureArgs),
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The format of the files.
    #[arg(value_enum)]
    pub(super) format: FormatArg,
    /// The files. Questions come before their answers.
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
    /// The file for the rows, JSON Lines.
    #[arg(short, long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// The task of the rows [default: the name of their file].
    #[arg(long, value_name = "NAME")]
    pub(super) task: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatArg {
    /// SpecDecode-Bench's simulator: token ids, with the accepted lengths of EAGLE-3 and an n-gram rule.
    SpecdecodeBench,
    /// Questions and answers of FastChat: MT-Bench, MT-Redundant, Spec-Bench. Questions alone are prompts for `trace` and `ablate`.
    Fastchat,
    /// CanItEdit: programs and their edits.
    Canitedit,
    /// CodeIF-Bench: functions and their references.
    CodeifBench,
}

impl FormatArg {
    pub(super) fn format(self) -> Format {
        match self {
            Self::SpecdecodeBench => Format::SpecdecodeBench,
            Self::Fastchat => Format::Fastchat,
            Self::Canitedit => Format::Canitedit,
            Self::CodeifBench => Format::CodeifBench,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct BenchPressureArgs {
    /// A packed file, larger than the budget.
    pub(super) model: PathBuf,
    /// Memory budget of the process.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1GiB")]
    pub(super) memory: u64,
    /// Duration in seconds.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) seconds: u64,
    /// Number of memory pressure reports during the measurement.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) reports: u32,
    /// Tokens per answer.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) tokens: u32,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct BenchPruningArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Nothing else should run during the measurement.
    pub(super) model: PathBuf,
    /// Rows of the batches.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [8, 16, 32, 64], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) rows: Vec<u32>,
    /// Share of kept rows, in percent.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) kept: u32,
    /// The layer before which batches are pruned [default: the middle one].
    #[arg(long, value_name = "N")]
    pub(super) layer: Option<usize>,
    /// Rank of the predictor.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) rank: usize,
    /// Tokens of the predictor's shadow pool.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) shadow_pool: usize,
    /// Context length before the batch.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) context: usize,
    /// Number of passes of each kind; the median is reported.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Threads of the forward pass [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// One JSON list instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct BenchStreamArgs {
    /// A packed file. Nothing else should run during the measurement.
    pub(super) model: PathBuf,
    /// Shares of the layers that stay in memory, in percent.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 25, 50, 75, 100], value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) pinned: Vec<u32>,
    /// Tokens decoded at each share in a round, 2 or more.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(super) tokens: u32,
    /// Rows of the verification batch compared with a single row.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(super) rows: u32,
    /// Number of rounds; the median is reported.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Limit all reads to BYTES per second, to simulate a slower disk.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    pub(super) flash_bandwidth: Option<u64>,
    /// Instead, replay these rows (JSON Lines) for each share of pinned layers, each of --lengths and each of
    /// --strategy, against plain decoding.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) replay: Vec<PathBuf>,
    /// With --replay: numbers of output tokens; shorter responses are left out [default: whole responses].
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "replay", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) lengths: Vec<u32>,
    /// With --replay: drafting strategies, as in `bench replay` [default: refrain; with --draft also
    /// retrieval, draft-model, chain:8, edgellm and best-first].
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "replay")]
    pub(super) strategy: Vec<Strategy>,
    /// With --replay: a draft model with the same vocabulary; `fixture` is the one inside this program.
    #[arg(long, value_name = "fixture|mtp|mtp:PATH|self|self:PATH|PATH", requires = "replay")]
    pub(super) draft: Option<DraftModelArg>,
    /// With --replay: a tokenizer.json, a GGUF file or a Hugging Face folder [default: the model's].
    #[arg(long, value_name = "PATH", requires = "replay")]
    pub(super) tokenizer: Option<PathBuf>,
    /// With --replay: maximum number of rows of each task at each length.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "replay")]
    pub(super) task_rows: usize,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct BenchGraphsArgs {
    /// A folder written by `refrain model graphs`. Nothing else should run during the measurement.
    pub(super) folder: Option<PathBuf>,
    /// Simulate from the times in this file (JSON, as a folder's times.json) instead.
    #[arg(long, value_name = "FILE", conflicts_with = "folder")]
    pub(super) times: Option<PathBuf>,
    /// Length of the prompt in tokens.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) tokens: u32,
    /// Number of measured runs of each switching method.
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub(super) rounds: usize,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The folder for the traces, `TASK.trace`.
    #[arg(long, value_name = "FOLDER")]
    pub(super) out: PathBuf,
    /// Strategies whose trees are recorded, with all sources [default: those of `replay --trace` that draft].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) strategy: Vec<Strategy>,
    /// Maximum rows of a verification batch: the trees of each are recorded.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [16])]
    pub(super) rows: Vec<usize>,
    /// Maximum number of tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub(super) max_tokens: u32,
    /// Maximum number of tokens of a prompt; requests with longer ones are left out.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) prompt_tokens: u32,
    /// Maximum number of rows of each task, from all of its subtasks alike [default: all].
    #[arg(long, value_name = "N")]
    pub(super) task_rows: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    pub(super) rows_args: RowsArgs,
    /// Drafting strategies: refrain, plain, pld, pld-2, sam, sam-recycle, sam-only, suffix, recycle,
    /// always-right, always-wrong; with --draft also retrieval and draft-model (one half of refrain), chain:N,
    /// specinfer, opt-tree, edgellm, best-first; with --trace also retrieval (refrain without the target's rows),
    /// refrain-echo (also with rejected rows and those of earlier requests),
    /// recycle-logits, sam-recycle-logits, racer, logitspec, pld-coordgen, sam-coordgen [default: all; with
    /// --draft those that use a draft model]. Without --model also refrain-pid (rows by a PID controller), and
    /// oracle-anchored, oracle-jump, oracle-pairs, oracle-tokens: upper bounds of drafts from text. With the accepted lengths of
    /// recorded drafters also recorded-eagle, recorded-ngram, recorded-best (the better of both in each step), and
    /// refrain-eagle (refrain with the recorded draft head as one more source).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) strategy: Vec<Strategy>,
    /// Texts to draft from: prompt; history (prompt and earlier responses of the session); passages (both,
    /// and the passages as a separate source).
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "passages")]
    pub(super) sources: Vec<Sources>,
    /// Maximum rows of a verification batch.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8, 16, 32])]
    pub(super) rows: Vec<usize>,
    /// Cost of a verification batch: a file written by `refrain model profile`, or a JSON list of [rows,
    /// microseconds] [default: rows are free].
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Reset the reliability table after every row.
    #[arg(long)]
    pub(super) fresh: bool,
    /// Count why the steps of refrain and retrieval end: the next token is absent from the sources, a jump within
    /// them, under-weighted, or below the budget of rows. Builds each draft twice.
    #[arg(long, conflicts_with = "model")]
    pub(super) explain: bool,
    /// Run this model: everything is computed and timed, but the walk follows the recorded tokens. Rows that
    /// do not fit the context are left out. Only the first values of --rows and --sources are used. Rows are
    /// encoded by the model's tokenizer, or by --tokenizer.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["profile", "fresh"])]
    pub(super) model: Option<PathBuf>,
    /// With --model: a draft model with the same vocabulary; `fixture` is the one inside this program.
    #[arg(long, value_name = "fixture|mtp|mtp:PATH|self|self:PATH|PATH", requires = "model")]
    pub(super) draft: Option<DraftModelArg>,
    /// With --model: instruction set of the kernels [default: the widest of this CPU]. Never changes the output.
    #[arg(long, value_name = "ISA", value_parser = isa, requires = "model")]
    pub(super) isa: Option<IsaKind>,
    /// With --model: the rows of a batch that are projected onto the vocabulary.
    #[arg(long, value_enum, default_value_t = ProjectionArg::OnDemand, requires = "model")]
    pub(super) projection: ProjectionArg,
    #[command(flatten)]
    pub(super) streaming: StreamingArgs,
    /// With --model: maximum number of rows of each subtask.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "model")]
    pub(super) model_rows: usize,
    /// With --model: give every prompt exactly N tokens. Prompts of other rows are put before a shorter one, and a
    /// longer one loses its first tokens.
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) prompt_tokens: Option<u32>,
    /// Also write every cell as a line of CSV.
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Also write an HTML page with the tables, and rows whose tokens are coloured by draft source.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Rows of each subtask on the HTML page.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) html_rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ProjectionArg {
    /// The rows that the walk visits, in waves.
    OnDemand,
    /// All rows.
    Eager,
}

impl ProjectionArg {
    /// The adverb of the report.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::OnDemand => "on demand",
            Self::Eager => "eagerly",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct AblateArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// A draft model with the same vocabulary; `fixture` is the one inside this program.
    #[arg(long, value_name = "fixture|mtp|mtp:PATH|self|self:PATH|PATH")]
    pub(super) draft: Option<DraftModelArg>,
    /// Prune by this predictor; `fixture` is the one inside this program.
    #[arg(long, value_name = "fixture|PATH")]
    pub(super) pruning: Option<PruningArg>,
    /// With --pruning: minimum predicted probability of a kept node.
    #[arg(long, value_name = "P", default_value_t = PruningConfig::default().threshold, requires = "pruning")]
    pub(super) pruning_threshold: f32,
    /// Maximum rows of a verification batch.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) rows: usize,
    /// Fill every batch as if rows were free, so that acceptance lengths do not depend on the machine
    /// [default: draft by the measured cost of rows].
    #[arg(long)]
    pub(super) free_rows: bool,
    /// Maximum number of output tokens.
    #[arg(long, value_name = "N", default_value_t = 160)]
    pub(super) max_tokens: usize,
    /// Maximum number of rows of each task [default: all].
    #[arg(long, value_name = "N")]
    pub(super) task_rows: Option<usize>,
    /// Only plain decoding and these parts, named as in the report [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(super) arm: Vec<String>,
    /// The reuse of rejected drafts.
    #[command(flatten)]
    pub(super) reuse: ReuseArgs,
}

#[derive(Debug, Args)]
pub(super) struct FloorArgs {
    #[command(flatten)]
    pub(super) rows_args: RowsArgs,
    /// Costs of verification batches instead of the built-in list: files written by `refrain model profile`, or JSON lists of
    /// [rows, microseconds].
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Vec<PathBuf>,
    /// Maximum rows of a verification batch.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(super) rows: usize,
    /// Draft whatever promises a gain, also before drafts have saved the time that this may cost.
    #[arg(long)]
    pub(super) unpaid: bool,
    /// Time of drafting a node, so that the numbers are the same everywhere; 0 to 1,000,000 µs [default: as measured].
    #[arg(long, value_name = "MICROSECONDS", value_parser = draft_us)]
    pub(super) draft_us: Option<f32>,
    /// Run this model instead: everything is computed and timed, plainly and with drafts in turns, but the walk follows the
    /// recorded tokens.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["profile", "unpaid", "draft_us"])]
    pub(super) model: Option<PathBuf>,
    /// With --model: maximum number of rows of each subtask.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model")]
    pub(super) model_rows: usize,
    /// With --model: turns of each response at most; fewer when the 95 % interval of its ratio is below ±1 %.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = turns, requires = "model")]
    pub(super) turns: usize,
}

fn turns(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (4..=1000).contains(&n) => Ok(n),
        _ => Err("a number from 4 to 1000 is expected".to_owned()),
    }
}

fn draft_us(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(us) if (0.0..=1e6).contains(&us) => Ok(us),
        _ => Err("a number of microseconds from 0 to 1000000 is expected".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
    /// A tokenizer.json, a GGUF file or a Hugging Face folder [default: the model inside this program].
    #[arg(long, value_name = "PATH")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Threads [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Numbers of workers.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) workers: Vec<u32>,
    /// Delays until an answer reaches the other workers, in seconds.
    #[arg(long, value_name = "SECONDS,…", value_delimiter = ',', default_values_t = [0, 10, 60, 300, 900, 3600])]
    pub(super) delays: Vec<u32>,
    /// Time between two requests to the whole fleet, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(super) interval: u32,
    /// Speed of a worker, in tokens per second.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) rate: u32,
    /// Number of sessions that take turns.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) sessions: u32,
    /// Maximum rows of a verification batch; rows are free.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) rows: usize,
}

#[derive(Debug, Args)]
pub(super) struct TuneArgs {
    #[command(flatten)]
    pub(super) rows_args: RowsArgs,
    /// Rows of a verification batch while fitting.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) rows: usize,
    /// Cost of a verification batch: a file written by `refrain model profile`, or a JSON list of [rows,
    /// microseconds] [default: rows are free].
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
    /// Write the fitted constants as Rust, for `src/draft/fitted.rs`.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

/// Recorded rows.
#[derive(Debug, Args)]
pub(super) struct RowsArgs {
    /// Files of rows, JSON Lines.
    #[arg(required_unless_present = "trace")]
    pub(super) files: Vec<PathBuf>,
    /// Instead of rows: files of `refrain-bench trace`. Rules with logits need them.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "files")]
    pub(super) trace: Vec<PathBuf>,
    /// A tokenizer.json, a GGUF file or a Hugging Face folder [default: the model inside this program].
    #[arg(long, value_name = "PATH")]
    pub(super) tokenizer: Option<PathBuf>,
    /// The measured rows; the others are history only.
    #[arg(long, value_enum, default_value_t = HalfArg::All)]
    pub(super) half: HalfArg,
    /// Threads [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum HalfArg {
    /// Every row.
    All,
    /// Rows with even numbers.
    Even,
    /// Rows with odd numbers.
    Odd,
}
