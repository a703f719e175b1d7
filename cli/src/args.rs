//! The command line. What an option means stands here; its range is checked by the library that uses it.

mod history;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refrain::draft::ReuseConfig;
use refrain::engine::{Calibration, Drafting, EngineOptions, GenerateOptions, SessionOptions};
use refrain::kernels::{IsaKind, KvType};
use refrain::model::graphs::Switching;
use refrain::model::weights::{PackedAccess, Quantize};
use refrain::task::Task;
use refrain::token::TokenId;
use refrain::verify::Sampling;
use refrain_bench::{Sources, Strategy};

pub(crate) use history::{FolderArgs, ForgetArgs, HistoryArgs, HistoryCommand, HistoryCommandArgs};

/// Generates text on this device from your own notes, by drafting from them: several times faster, bit for bit the same.
#[derive(Debug, Parser)]
#[command(name = "refrain", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// When to colour the output.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one request and end.
    Run(Box<RunArgs>),
    /// Talk over several turns; earlier answers draft later ones.
    Chat(Box<ChatArgs>),
    /// Show what a model file or folder holds, and what of it cannot be used.
    Inspect(InspectArgs),
    /// How likely a model finds a text: log-probability per token, and perplexity.
    Score(ScoreArgs),
    /// Measure what verification batches cost on this machine, and keep it beside the model.
    Profile(ProfileArgs),
    /// Pack a model into a file that loads by mapping: at once, whatever its size.
    Pack(PackArgs),
    /// Show or forget the answers that are kept to draft later ones.
    History(HistoryCommandArgs),
    /// Cut a model into static graphs, for backends with fixed batch lengths and little memory.
    Graphs(GraphsArgs),
    /// Measure drafting on recorded text.
    Bench(BenchArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    pub(crate) model: Option<PathBuf>,
    /// Where the profile goes, with a plot of it beside [default: beside the model, where `run` and `chat` look for it].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Tokens before the batch, besides 0; at most what the model was trained for, less a batch.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1024,4096")]
    pub(crate) contexts: Vec<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The request. `-`, or nothing where input is piped: read from standard input.
    pub(crate) prompt: Option<String>,
    /// Read the request from a file (`-`: standard input). With a task and a PROMPT: text to work on, as --context is.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long, conflicts_with_all = ["task", "context", "system"])]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// What is asked for, and of what.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// What to do: summarize, answer, ui or reply. With --context alone: answer.
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<Task>,
    /// Notes to work from: .md and .txt files, and folders of them. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) context: Vec<PathBuf>,
    /// Passages of the notes that the prompt may show.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) passages: usize,
    /// Instructions that stand before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// How text is generated: shared by run and chat.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Statistics after an answer: `text` on standard error, `json` as the last line of standard output.
    #[arg(long, value_enum, default_value_t = StatsFormat::Text)]
    pub(crate) stats: StatsFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    Text,
    Json,
    Off,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ComputeArgs {
    /// What float matrices become while loading; matrices that are quantised in the file, and packed files, stay as they
    /// are.
    #[arg(long, value_enum, default_value_t = QuantizeArg::Q8_0)]
    pub(crate) quantize: QuantizeArg,
    /// Read a packed file into memory instead of mapping it: a disk that fails is then an error message, and not the end of
    /// the program. Never changes the output.
    #[arg(long)]
    pub(crate) no_map: bool,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instruction set of the kernels [default: the widest that this CPU has]. Never changes the output.
    #[arg(long, value_name = "ISA", value_parser = isa)]
    pub(crate) isa: Option<IsaKind>,
    /// Of a folder of static graphs: bytes of weights in memory at a time. Less than needed is an error [default: what is
    /// needed].
    #[arg(long, value_name = "BYTES")]
    pub(crate) graph_memory: Option<u64>,
    /// Of a folder of static graphs: when blocks change from prefill to verify graphs. Never changes the output.
    #[arg(long, value_enum, default_value_t = SwitchingArg::Progressive)]
    pub(crate) graph_switching: SwitchingArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchingArg {
    /// As planned from measured times, beside the computation of other blocks.
    Progressive,
    /// Each block as soon as it has computed the last chunk.
    Asynchronous,
    /// All blocks when the prefill is over.
    Synchronous,
}

impl SwitchingArg {
    fn switching(self) -> Switching {
        match self {
            Self::Progressive => Switching::Progressive,
            Self::Asynchronous => Switching::Asynchronous,
            Self::Synchronous => Switching::Synchronous,
        }
    }
}

impl ModelArgs {
    /// The options of the engine, with the profile that is kept beside the model.
    pub(crate) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            profile: crate::profile::stored(self.model.as_deref()),
            ..self.compute.engine_options()
        }
    }
}

impl ComputeArgs {
    pub(crate) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            n_threads: self.threads,
            isa: self.isa,
            quantize: self.quantize.quantize(),
            packed_access: if self.no_map { PackedAccess::Read } else { PackedAccess::Map },
            graph_memory_max: self.graph_memory,
            graph_switching: self.graph_switching.switching(),
            ..EngineOptions::default()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    None,
}

/// An instruction set by its name.
fn isa(name: &str) -> Result<IsaKind, String> {
    let names: Vec<&str> = IsaKind::ALL.iter().map(|isa| isa.name()).collect();
    let found = IsaKind::ALL.into_iter().find(|isa| isa.name() == name);
    found.ok_or_else(|| format!("possible values: {}", names.join(", ")))
}

impl QuantizeArg {
    pub(crate) fn quantize(self) -> Quantize {
        match self {
            Self::Q8_0 => Quantize::Q8_0,
            Self::Q4_0 => Quantize::Q4_0,
            Self::None => Quantize::Keep,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    /// Whether to draft. Never changes the output.
    #[arg(long, value_enum, default_value_t = DraftArg::Auto)]
    pub(crate) draft: DraftArg,
    /// What drafts: refrain, plain, or a published rule to compare with: pld, sam, sam-recycle, sam-only, suffix,
    /// recycle. Never changes the output.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Refrain, value_parser = parse_strategy, conflicts_with = "draft")]
    pub(crate) strategy: Strategy,
    /// Whether what the model would say after each token of the text drafts too, and how much of its vocabulary is looked at.
    /// Never changes the output.
    #[arg(long, value_enum, default_value_t = CalibrationArg::Off)]
    pub(crate) calibration: CalibrationArg,
    /// Draft again what the model still finds likely of rejected drafts. Never changes the output.
    #[arg(long)]
    pub(crate) reuse: bool,
    #[command(flatten)]
    pub(crate) reuse_args: ReuseArgs,
    /// Tokens of prompt and output together [default: what the model was trained for, at most 4096].
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// Rows of a verification batch at most. Never changes the output.
    #[arg(long, value_name = "N", conflicts_with = "verify_len")]
    pub(crate) verify_rows: Option<usize>,
    /// Pad every verification batch to this many rows, as a static-shape backend needs. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) verify_len: Option<usize>,
    /// Prompt tokens per forward pass. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) prefill_chunk: Option<usize>,
}

impl SessionArgs {
    pub(crate) fn session_options(&self, namespace: &str) -> SessionOptions {
        let defaults = SessionOptions::default();
        SessionOptions {
            context_len: self.ctx,
            kv_type: self.kv.kv_type(),
            drafting: match (self.draft, self.strategy) {
                (DraftArg::Off, _) | (_, Strategy::Plain) => Drafting::Off,
                (_, Strategy::Baseline(baseline)) => Drafting::Baseline(baseline),
                _ => Drafting::Auto,
            },
            calibration: self.calibration.calibration(),
            reuse: self.reuse.then(|| self.reuse_args.config()),
            namespace: namespace.to_owned(),
            verify_rows_max: self.verify_len.or(self.verify_rows).unwrap_or(defaults.verify_rows_max),
            verify_lens: self.verify_len.into_iter().collect(),
            prefill_chunk: self.prefill_chunk.unwrap_or(defaults.prefill_chunk),
            ..defaults
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum DraftArg {
    /// Draft wherever it pays.
    Auto,
    /// Plain decoding.
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CalibrationArg {
    /// It does not.
    Off,
    /// After each token of the answer only, which costs nothing while the prompt is read.
    Output,
    /// The tokens of the prompt and the most frequent ones.
    InContext,
    /// All of it: what the papers do, and many times slower.
    Full,
}

impl CalibrationArg {
    fn calibration(self) -> Calibration {
        match self {
            Self::Off => Calibration::Off,
            Self::Output => Calibration::Output,
            Self::InContext => Calibration::InContext,
            Self::Full => Calibration::Full,
        }
    }
}

/// The controls know the response in advance, which only a replay can.
fn parse_strategy(name: &str) -> Result<Strategy, String> {
    match name.parse() {
        Ok(Strategy::AlwaysRight | Strategy::AlwaysWrong) => Err(format!("`{name}` is for `refrain bench`")),
        Ok(strategy) => Ok(strategy),
        Err(unknown) => Err(unknown.to_string()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum KvArg {
    F16,
    F32,
    /// About half the memory of f16; the output may differ from it.
    #[value(name = "q8_0")]
    Q8,
}

impl KvArg {
    pub(crate) fn kv_type(self) -> KvType {
        match self {
            Self::F16 => KvType::F16,
            Self::F32 => KvType::F32,
            Self::Q8 => KvType::Q8_0,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Output tokens at most.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) max_tokens: usize,
    /// Keys the random numbers: the same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// 0 takes the most likely token; larger values vary more.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Keep the most likely tokens that reach this probability together.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make tokens that were seen less likely, by division; 1 is off.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Subtract from tokens that were seen; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract from tokens for each time they were seen; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Add to a token's logit; `-inf` forbids it. May be repeated.
    #[arg(long, value_name = "ID=V", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
    /// End before this text. May be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after the model's end token.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    pub(crate) fn generate_options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling: Sampling {
                temperature: self.temp,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repeat_penalty,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                logit_bias: self.logit_bias.clone(),
                seed: self.seed,
                ..Sampling::default()
            },
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..GenerateOptions::default()
        }
    }
}

fn parse_logit_bias(text: &str) -> Result<(TokenId, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("write TOKEN_ID=BIAS, for example 42=-inf")?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("`{bias}` is not a number"))?;
    Ok((TokenId(id), bias))
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, a safetensors file, a Hugging Face folder, or a packed file. Without it: the model inside this program.
    pub(crate) path: Option<PathBuf>,
    /// Read all of a packed file and compare it with its checksums. (Loading verifies the header only.)
    #[arg(long)]
    pub(crate) verify: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A GGUF file or a Hugging Face folder.
    pub(crate) model: PathBuf,
    /// The packed file; `.refrain` by custom. A packed file of that name is replaced.
    pub(crate) out: PathBuf,
    /// What float matrices become; matrices that are quantised in the file stay as they are.
    #[arg(long, value_enum, default_value_t = QuantizeArg::Q8_0)]
    pub(crate) quantize: QuantizeArg,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GraphsArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file.
    pub(crate) model: PathBuf,
    /// The folder of graphs, which must not be there yet.
    pub(crate) out: PathBuf,
    /// Blocks of layers; one graph of each is in memory at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) blocks: usize,
    /// Rows of the prefill graphs.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) prefill: usize,
    /// Rows of the verify graphs.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) verify: usize,
    /// Do not measure loads and calls; whoever opens the folder does then.
    #[arg(long)]
    pub(crate) no_times: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) input: ScoreInput,
    /// Also write the logits of every position: f32 `[tokens, vocab]`, named `logits`.
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) logits: Option<PathBuf>,
    /// `f32` widens all weights and the KV cache, for checks against a reference.
    #[arg(long, value_enum, conflicts_with_all = ["quantize", "kv"])]
    pub(crate) weights: Option<WeightsArg>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ScoreInput {
    /// The text of a file (`-`: standard input).
    #[arg(long, value_name = "TEXT")]
    pub(crate) file: Option<PathBuf>,
    /// The text itself.
    #[arg(long, value_name = "T")]
    pub(crate) text: Option<String>,
    /// Token ids, taken as they are.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
}

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
    /// repository has rows for the model inside this program.
    Ablate(AblateArgs),
    /// Fit the reliability table and the constants of drafting to the even rows, and report on the odd ones.
    Tune(TuneArgs),
    /// What changing static graphs adds to a prefill: synchronous, asynchronous and progressive switching, measured on a
    /// folder of graphs and simulated, or simulated from given times.
    Graphs(BenchGraphsArgs),
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
    /// What drafts: refrain, plain, pld, sam, sam-recycle, sam-only, suffix, recycle, always-right, always-wrong [default:
    /// all]. Rules that need a draft model are not there yet.
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

#[derive(Debug, Args)]
pub(crate) struct AblateArgs {
    /// Files of rows, JSON Lines.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
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

/// What is kept of rejected drafts, and for how long. Never changes the output.
#[derive(Debug, Args)]
pub(crate) struct ReuseArgs {
    /// Probability that the model must give each token of a rejected draft to draft it again.
    #[arg(long, value_name = "P", default_value_t = ReuseConfig::default().threshold)]
    pub(crate) reuse_threshold: f32,
    /// Steps in which it may be drafted again.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().lifetime)]
    pub(crate) reuse_steps: u32,
    /// Tokens kept at most.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().tokens_max)]
    pub(crate) reuse_tokens: u32,
}

impl ReuseArgs {
    pub(crate) fn config(&self) -> ReuseConfig {
        ReuseConfig {
            threshold: self.reuse_threshold,
            lifetime: self.reuse_steps,
            tokens_max: self.reuse_tokens,
        }
    }
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsArg {
    F32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let Command::Run(args) = Cli::parse_from(["refrain", "run", "hello"]).command else { unreachable!() };
        let (options, defaults) = (args.common.sampling.generate_options(), GenerateOptions::default());
        assert_eq!(options.sampling, defaults.sampling);
        assert_eq!(options.max_tokens, defaults.max_tokens);
        let session = args.common.session.session_options(&SessionOptions::default().namespace);
        assert_eq!(format!("{session:?}"), format!("{:?}", SessionOptions::default()));
    }

    #[test]
    fn logit_bias_names_a_token_and_a_number() {
        assert_eq!(parse_logit_bias("7=-inf"), Ok((TokenId(7), f32::NEG_INFINITY)));
        assert_eq!(parse_logit_bias(" 7 = 1.5"), Ok((TokenId(7), 1.5)));
        assert!(
            parse_logit_bias("7").is_err()
                && parse_logit_bias("-1=0").is_err()
                && parse_logit_bias("7=x").is_err()
        );
    }
}
