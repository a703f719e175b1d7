//! Ablation of drafting: one model answers the same requests with different parts of drafting.
//!
//! Unlike in a replay, the model generates its own answers. Calibration, echo and reuse draft from the target's own rows,
//! so a recorded response cannot replace the target. For each row, all arms answer one after another in the same
//! process, so other load on the machine affects all of them equally. Each arm has a reliability table and a history
//! of its own. Its answer is compared with that of plain decoding.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::borrow::Cow;

use refrain::drafting::{Calibration, EchoConfig, PruningConfig, PruningStats, Rejections, RowStats};
use refrain::internals::draft::ReliabilityTable;
use refrain::{
    Drafting, Engine, ErrorKind, GenerateError, GenerateOptions, Role, Session, SessionOptions,
    SpecialTokens, Stats, TokenId,
};
use thiserror::Error;

use crate::rows::{Row, RowsError};
use crate::rules::{Baseline, ModelRule};
use crate::strategy::Strategy;

/// The draft sources of an arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arm {
    /// None: plain decoding.
    #[default]
    Plain,
    /// The rule of SAM-Decoding, over prompt and output.
    Sam,
    /// Prompt and output.
    Context,
    /// Prompt, output, and earlier answers of the task.
    History,
    /// As `History`, with calibration of prompt and output by the tokens of the context.
    InContext,
    /// As `History`, with calibration of prompt and output by the whole vocabulary.
    Full,
    /// History, calibration by the tokens of the context, and reuse.
    Reuse,
    /// History, and echo of the steps' rows.
    EchoSteps,
    /// History, and echo with the rows of the prompt.
    Echo,
    /// History, echo, and reuse.
    EchoReuse,
    /// The draft model alone.
    DraftModel,
    /// Prompt, output, earlier answers of the task, and the draft model.
    WithDraftModel,
    /// A published rule that drafts with the draft model.
    ModelRule(ModelRule),
    /// Prompt, output, earlier answers of the task, and the draft model if there is one, with or without pruning.
    Pruning(Pruning),
}

/// The pruning of drafts half-way through the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pruning {
    /// No pruning.
    Off,
    /// As configured.
    On,
    /// As configured, but only siblings share a node's probability.
    NoShadows,
    /// As configured, but only rows above the threshold are kept.
    NoSafeguards,
}

impl Pruning {
    fn config(self, config: PruningConfig) -> Option<PruningConfig> {
        match self {
            Pruning::Off => None,
            Pruning::On => Some(config),
            Pruning::NoShadows => Some(PruningConfig { shadow_tokens: 0, ..config }),
            Pruning::NoSafeguards => Some(PruningConfig { safeguards: None, ..config }),
        }
    }
}

impl Arm {
    /// The arms that need no draft model, in the order of reports.
    pub const TEXT: [Arm; 10] = [
        Arm::Plain,
        Arm::Sam,
        Arm::Context,
        Arm::History,
        Arm::InContext,
        Arm::Full,
        Arm::Reuse,
        Arm::EchoSteps,
        Arm::Echo,
        Arm::EchoReuse,
    ];

    /// Retrieval, the draft model, both, and the rules that draft with a model, in the order of reports.
    pub const DRAFT_MODEL: [Arm; 10] = [
        Arm::Plain,
        Arm::Sam,
        Arm::History,
        Arm::DraftModel,
        Arm::WithDraftModel,
        Arm::ModelRule(ModelRule::ALL[0]),
        Arm::ModelRule(ModelRule::ALL[1]),
        Arm::ModelRule(ModelRule::ALL[2]),
        Arm::ModelRule(ModelRule::ALL[3]),
        Arm::ModelRule(ModelRule::ALL[4]),
    ];

    /// Whole drafts, and drafts pruned with and without the parts of pruning, in the order of reports.
    pub const PRUNING: [Arm; 5] = [
        Arm::Plain,
        Arm::Pruning(Pruning::Off),
        Arm::Pruning(Pruning::On),
        Arm::Pruning(Pruning::NoShadows),
        Arm::Pruning(Pruning::NoSafeguards),
    ];

    /// The arm's name in reports.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Arm::Plain => "plain",
            Arm::Sam => "sam",
            Arm::Context => "context",
            Arm::History => "+ history",
            Arm::InContext => "+ calibration in context",
            Arm::Full => "+ calibration in full",
            Arm::Reuse => "+ calibration in context + reuse",
            Arm::EchoSteps => "+ history + echo of steps",
            Arm::Echo => "+ history + echo",
            Arm::EchoReuse => "+ history + echo + reuse",
            Arm::DraftModel => "draft model",
            Arm::WithDraftModel => "+ history + draft model",
            Arm::ModelRule(rule) => return Cow::Owned(rule.to_string()),
            Arm::Pruning(Pruning::Off) => "whole drafts",
            Arm::Pruning(Pruning::On) => "pruned",
            Arm::Pruning(Pruning::NoShadows) => "pruned, no shadow tokens",
            Arm::Pruning(Pruning::NoSafeguards) => "pruned, no safeguards",
        })
    }

    /// The published rule of the arm, if it is one.
    fn rule(self) -> Option<Strategy> {
        match self {
            Arm::Sam => Some(Strategy::Baseline(Baseline::Sam)),
            Arm::ModelRule(rule) => Some(Strategy::ModelRule(rule)),
            _ => None,
        }
    }

    fn session(self, options: &SessionOptions, task: &str) -> SessionOptions {
        SessionOptions {
            drafting: match self {
                Arm::Plain => Drafting::Off,
                Arm::Sam | Arm::ModelRule(_) => Drafting::AsClaimed,
                Arm::DraftModel => Drafting::DraftModel,
                _ => Drafting::Auto,
            },
            history: !matches!(
                self,
                Arm::Plain | Arm::Sam | Arm::Context | Arm::DraftModel | Arm::ModelRule(_)
            ),
            draft_model: matches!(self, Arm::WithDraftModel | Arm::Pruning(_)),
            pruning: match self {
                Arm::Pruning(pruning) => options.pruning.and_then(|config| pruning.config(config)),
                _ => None,
            },
            namespace: format!("{} {task}", self.name()),
            calibration: match self {
                Arm::InContext | Arm::Reuse | Arm::Echo | Arm::EchoReuse => Calibration::InContext,
                Arm::Full => Calibration::Full,
                _ => Calibration::Off,
            },
            echo: matches!(self, Arm::EchoSteps | Arm::Echo | Arm::EchoReuse)
                .then(|| options.echo.unwrap_or(EchoConfig::AUTO)),
            reuse: options.reuse.filter(|_| matches!(self, Arm::Reuse | Arm::EchoReuse)),
            verify_rows_max: match self.rule() {
                Some(rule) => rule.rows_max(options.verify_rows_max),
                None => options.verify_rows_max,
            },
            ..options.clone()
        }
    }
}

/// An ablation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AblateError {
    /// A row has no text.
    #[error(transparent)]
    Row(#[from] RowsError),
    /// The model failed, or a request does not fit its context.
    #[error("row {id}: {source}")]
    Generate {
        /// The row.
        id: String,
        /// The error.
        source: Box<GenerateError>,
    },
    /// Drafting has changed an answer. This is a bug.
    #[error("row {id}: the answer with `{arm}` differs from that of plain decoding")]
    Differs {
        /// The row.
        id: String,
        /// The arm.
        arm: Cow<'static, str>,
    },
}

/// The measurements of one task with one arm.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The task.
    pub task: String,
    /// The arm.
    pub arm: Arm,
    /// Number of answered rows.
    pub n_rows: usize,
    /// Number of tokens of the answers.
    pub n_tokens: usize,
    /// Number of steps.
    pub n_steps: usize,
    /// Number of prefilled prompt tokens.
    pub n_prefilled: usize,
    /// Time of decoding, in µs.
    pub decode_us: f64,
    /// Part of it for drafting and learning, in µs.
    pub draft_us: f64,
    /// Time of prefill, including calibration's last layer and without its projections, in µs.
    pub prefill_us: f64,
    /// Time of calibration's projections, in µs.
    pub calibrate_us: f64,
    /// Time of the forward passes, in µs.
    pub forward_us: f64,
    /// Number of rows of the verification batches, by kind.
    pub rows: RowStats,
    /// Pruning of these batches.
    pub pruning: PruningStats,
    /// Number of rejected drafts by reason.
    pub rejections: Rejections,
    /// Per source: its name, tokens drafted, tokens accepted.
    pub sources: Vec<(String, usize, usize)>,
    /// Number of passes of the draft model.
    pub n_passes: usize,
    /// Time of these passes, including those over the prompt, in µs.
    pub passes_us: f64,
    /// Largest memory of drafting at the end of a row, in bytes.
    pub memory_bytes_max: usize,
}

impl Cell {
    fn new(task: &str, arm: Arm) -> Self {
        Cell { task: task.to_owned(), arm, ..Cell::default() }
    }

    /// Tokens committed per step, including the bonus token; 1 without steps.
    pub fn acceptance_length(&self) -> f64 {
        if self.n_steps == 0 { 1.0 } else { self.n_tokens as f64 / self.n_steps as f64 }
    }

    /// Draft tokens accepted per step; 0 without steps.
    pub fn accepted_per_step(&self) -> f64 {
        self.acceptance_length() - 1.0
    }

    /// Tokens per second of decoding.
    pub fn tokens_per_s(&self) -> f64 {
        self.n_tokens as f64 * 1e6 / self.decode_us.max(1.0)
    }

    fn add(&mut self, stats: &Stats, memory_bytes: usize) {
        let time = &stats.time_us;
        self.n_rows += 1;
        self.n_tokens += stats.tokens;
        self.n_steps += stats.steps;
        self.n_prefilled += stats.prefilled_tokens;
        self.decode_us += time.decode();
        self.draft_us += time.draft + time.observe;
        self.prefill_us += time.prefill;
        self.calibrate_us += time.calibrate;
        self.forward_us += time.forward;
        self.memory_bytes_max = self.memory_bytes_max.max(memory_bytes);
        self.rows += stats.rows;
        self.pruning += stats.pruning.unwrap_or_default();
        self.rejections += stats.rejections;
        for source in &stats.sources {
            self.add_source(source.name.as_str(), source.drafted, source.accepted);
            if let Some(computed) = &source.computed {
                self.n_passes += computed.passes;
                self.passes_us += computed.time_us;
            }
        }
    }

    fn add_source(&mut self, name: &str, drafted: usize, accepted: usize) {
        match self.sources.iter_mut().find(|known| known.0 == name) {
            Some(known) => {
                known.1 += drafted;
                known.2 += accepted;
            }
            None => self.sources.push((name.to_owned(), drafted, accepted)),
        }
    }

    /// Adds another task of the same arm.
    pub fn add_cell(&mut self, other: &Cell) {
        self.n_rows += other.n_rows;
        self.n_tokens += other.n_tokens;
        self.n_steps += other.n_steps;
        self.n_prefilled += other.n_prefilled;
        self.decode_us += other.decode_us;
        self.draft_us += other.draft_us;
        self.prefill_us += other.prefill_us;
        self.calibrate_us += other.calibrate_us;
        self.forward_us += other.forward_us;
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.rows += other.rows;
        self.pruning += other.pruning;
        self.rejections += other.rejections;
        self.n_passes += other.n_passes;
        self.passes_us += other.passes_us;
        other.sources.iter().for_each(|(name, drafted, accepted)| self.add_source(name, *drafted, *accepted));
    }
}

/// The result of an ablation.
#[derive(Clone, Debug, Default)]
pub struct Ablation {
    /// The arms, in order.
    pub arms: Vec<Arm>,
    /// By task and arm, in the order of the rows and of the arms.
    pub cells: Vec<Cell>,
    /// Number of skipped rows, which do not fit the model's context.
    pub n_too_long: usize,
}

impl Ablation {
    /// The tasks, in the order of the rows.
    pub fn tasks(&self) -> Vec<&str> {
        let mut tasks: Vec<&str> = self.cells.iter().map(|cell| cell.task.as_str()).collect();
        tasks.dedup();
        tasks
    }

    /// The cell of a task and an arm.
    pub fn cell(&self, task: &str, arm: Arm) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.task == task && cell.arm == arm)
    }

    /// The sum over all tasks of an arm.
    pub fn total(&self, arm: Arm) -> Cell {
        let mut total = Cell::new("all", arm);
        self.cells.iter().filter(|cell| cell.arm == arm).for_each(|cell| total.add_cell(cell));
        total
    }

    fn cell_mut(&mut self, task: &str, arm: Arm) -> &mut Cell {
        let index = self.cells.iter().position(|cell| cell.task == task && cell.arm == arm);
        let index = index.unwrap_or_else(|| {
            // The cells of a task are adjacent, also if its rows are not.
            let end =
                self.cells.iter().rposition(|cell| cell.task == task).map_or(self.cells.len(), |at| at + 1);
            self.cells.insert(end, Cell::new(task, arm));
            end
        });
        &mut self.cells[index]
    }
}

/// Answers every row with every arm, greedily. The first arm is plain decoding. The prompt of a row becomes the
/// user's message, in the model's chat template if there is one. The row's response is not used. Calls `progress`
/// with (rows done, rows to do).
///
/// `options` gives the sessions' limits; the arms give the draft sources. The engine's learnt reliability is restored
/// afterwards. Its history keeps the answers, in namespaces of this module.
///
/// # Errors
/// [`AblateError`].
///
/// # Panics
/// The first arm is not plain decoding.
pub fn ablate(
    engine: &Engine,
    rows: &[Row],
    arms: &[Arm],
    options: &SessionOptions,
    max_tokens: usize,
    mut progress: impl FnMut(usize, usize),
) -> Result<Ablation, AblateError> {
    assert_eq!(arms.first(), Some(&Arm::Plain), "every arm is compared with plain decoding");
    let before = engine.reliability();
    let mut tables = vec![ReliabilityTable::new(); arms.len()];
    let mut ablation = Ablation { arms: arms.to_vec(), ..Ablation::default() };
    let mut result = Ok(());
    for (n_done, row) in rows.iter().enumerate() {
        progress(n_done, rows.len());
        result = answer_row(engine, row, options, max_tokens, &mut tables, &mut ablation);
        if result.is_err() {
            break;
        }
    }
    engine.set_reliability(before);
    result.map(|()| ablation)
}

fn answer_row(
    engine: &Engine,
    row: &Row,
    options: &SessionOptions,
    max_tokens: usize,
    tables: &mut [ReliabilityTable],
    ablation: &mut Ablation,
) -> Result<(), AblateError> {
    let prompt = row.texts()?.prompt.as_str();
    let mut plain = Vec::new();
    for (arm, table) in ablation.arms.clone().into_iter().zip(tables) {
        engine.set_reliability(table.clone());
        let answered = answer(engine, prompt, (arm, arm.session(options, &row.task)), max_tokens)
            .map_err(|source| AblateError::Generate { id: row.id.clone(), source: Box::new(source) })?;
        let Some(Answer { tokens, stats, memory_bytes }) = answered else {
            ablation.n_too_long += 1;
            return Ok(());
        };
        *table = engine.reliability();
        if arm == Arm::Plain {
            plain = tokens;
        } else if tokens != plain {
            return Err(AblateError::Differs { id: row.id.clone(), arm: arm.name() });
        }
        ablation.cell_mut(&row.task, arm).add(&stats, memory_bytes);
    }
    Ok(())
}

struct Answer {
    tokens: Vec<TokenId>,
    stats: Stats,
    memory_bytes: usize,
}

/// `None` if the row does not fit the session's context.
fn answer(
    engine: &Engine,
    prompt: &str,
    (arm, options): (Arm, SessionOptions),
    max_tokens: usize,
) -> Result<Option<Answer>, GenerateError> {
    let mut session: Session = engine.session(options.clone())?;
    if let Some(rule) = arm.rule() {
        rule.add_rule(engine, &mut session, &options)?;
    }
    let appended = match engine.tokenizer().chat_template() {
        Some(_) => session.append_turn(Role::User, prompt),
        None => session.append_text(prompt, SpecialTokens::AsText),
    };
    let options = GenerateOptions { max_tokens, ..GenerateOptions::default() };
    let generation = match appended.map_err(GenerateError::from).and_then(|()| session.generate(options)) {
        Err(error) if error.kind() == ErrorKind::ContextFull => return Ok(None),
        generation => generation?,
    };
    let mut tokens = Vec::new();
    let summary = generation.run(|token| {
        tokens.push(token.id);
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(Some(Answer { tokens, stats: summary.stats, memory_bytes: session.draft_memory_usage() }))
}
