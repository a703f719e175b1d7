//! Replay through a model: everything is computed and times are real, but the walk follows the recorded tokens.
//!
//! At every visited node, the recorded token's logit is raised above all others before the greedy choice. So any
//! model, also one of random weights, decodes the recorded response at its true speed. For each row, all strategies
//! and plain decoding are timed in the same process, so other load on the machine affects all of them equally. Each
//! strategy has the same sources as in a replay without a model: history of the row's session, and passages. Each
//! strategy that weighs its claims has a reliability table of its own.

use refrain::drafting::{Calibration, DraftSource, StageTimes, VERIFY_ROWS_MAX};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong};
use refrain::internals::draft::{CostProfile, PassagesSource, ReliabilityTable};
use refrain::{
    Engine, GenerateError, GenerateOptions, LogitsProcessor, ProcessorError, Session, SessionOptions, Stats,
    TokenId,
};

use crate::rows::TokenRow;
use crate::strategy::{Sources, Strategy};

/// Projects all rows of a step at once, as other engines do: for comparison with projection on demand.
pub fn project_eagerly(engine: &Engine, options: &mut SessionOptions) {
    engine.set_projection_costs(CostProfile::free_rows(1.0));
    options.projection_rows = VERIFY_ROWS_MAX;
}

/// Makes the recorded tokens the most likely ones.
struct Recorded {
    prompt_len: usize,
    response: Vec<TokenId>,
}

impl LogitsProcessor for Recorded {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let position = tokens.len() - self.prompt_len;
        if let Some(logit) = self.response.get(position).and_then(|token| logits.get_mut(token.index())) {
            *logit = f32::MAX;
        }
        Ok(())
    }
}

/// The measurements of one subtask with one strategy.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// The task.
    pub task: String,
    /// The subtask.
    pub subtask: String,
    /// The strategy.
    pub strategy: Strategy,
    /// Number of decoded rows.
    pub n_rows: usize,
    /// Number of committed tokens.
    pub n_tokens: usize,
    /// Number of steps.
    pub n_steps: usize,
    /// Number of passes of the draft model, including those over the prompt.
    pub n_passes: usize,
    /// Time of decoding by stage, in µs, without prefill (also without the draft model's).
    pub stages: StageTimes,
    /// Time of plain decoding of the same rows, in µs.
    pub plain_us: f64,
}

impl Timing {
    fn new(task: &str, subtask: &str, strategy: Strategy) -> Self {
        Timing { task: task.to_owned(), subtask: subtask.to_owned(), strategy, ..Timing::default() }
    }

    /// Time of decoding, in µs.
    pub fn decode_us(&self) -> f64 {
        self.stages.decode()
    }

    /// Tokens committed per step, including the bonus token; 1 without steps.
    pub fn acceptance_length(&self) -> f64 {
        if self.n_steps == 0 { 1.0 } else { self.n_tokens as f64 / self.n_steps as f64 }
    }

    /// Tokens per second of decoding.
    pub fn tokens_per_s(&self) -> f64 {
        self.n_tokens as f64 * 1e6 / self.decode_us().max(1.0)
    }

    /// Passes of the draft model per step.
    pub fn passes_per_step(&self) -> f64 {
        self.n_passes as f64 / self.n_steps.max(1) as f64
    }

    /// Milliseconds per step.
    pub fn ms_per_step(&self) -> f64 {
        self.decode_us() / 1e3 / self.n_steps.max(1) as f64
    }

    /// Speed over plain decoding of the same rows in the same run.
    pub fn speed_up(&self) -> f64 {
        self.plain_us / self.decode_us().max(1.0)
    }

    fn add(&mut self, stats: &Stats, plain_us: f64) {
        self.n_rows += 1;
        self.n_tokens += stats.tokens;
        self.n_steps += stats.steps;
        let computed = stats.sources.iter().filter_map(|source| source.computed.as_ref());
        self.n_passes += computed.map(|computed| computed.passes).sum::<usize>();
        self.add_stages(&stats.time_us);
        self.plain_us += plain_us;
    }

    fn add_stages(&mut self, other: &StageTimes) {
        let stages = &mut self.stages;
        stages.draft += other.draft;
        stages.forward += other.forward;
        stages.walk += other.walk;
        stages.commit += other.commit;
        stages.observe += other.observe;
    }

    fn add_timing(&mut self, other: &Timing) {
        self.n_rows += other.n_rows;
        self.n_tokens += other.n_tokens;
        self.n_steps += other.n_steps;
        self.n_passes += other.n_passes;
        self.add_stages(&other.stages);
        self.plain_us += other.plain_us;
    }
}

/// The timings, and the number of skipped rows, which do not fit the model's context.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// By task, subtask and strategy, in the order of the rows.
    pub timings: Vec<Timing>,
    /// Number of skipped rows.
    pub n_too_long: usize,
}

/// Decodes every row plainly and then with each strategy. `options` gives the sessions' limits; the strategies give
/// the draft sources. If `keeps_prompts`, the target computes a row's prompt once, and the strategies take its keys and values
/// from plain decoding; draft heads read more of a prompt than these. Calls `progress` with (rows done, rows to do).
///
/// # Errors
/// The model fails, or an option is out of its range.
pub fn replay<'a>(
    engine: &Engine,
    rows: impl ExactSizeIterator<Item = &'a TokenRow>,
    strategies: &[Strategy],
    sources: Sources,
    options: &SessionOptions,
    keeps_prompts: bool,
    mut progress: impl FnMut(usize, usize),
) -> Result<Timings, GenerateError> {
    let mut all = Timings::default();
    let n_rows = rows.len();
    let mut earlier = Earlier::default();
    let mut tables = vec![ReliabilityTable::new(); strategies.len()];
    for (n_done, row) in rows.enumerate() {
        progress(n_done, n_rows);
        earlier.enter(row, sources);
        let mut prompt = Prompt { is_kept: keeps_prompts, state: None };
        let Some(plain) = decode(engine, row, Strategy::Plain, sources, options, &earlier, &mut prompt)?
        else {
            all.n_too_long += 1;
            continue;
        };
        for (&strategy, table) in strategies.iter().zip(&mut tables) {
            engine.set_reliability(table.clone());
            let stats = match strategy {
                Strategy::Plain => Some(plain.clone()),
                _ => decode(engine, row, strategy, sources, options, &earlier, &mut prompt)?,
            };
            *table = engine.reliability();
            let Some(stats) = stats else { continue };
            all.timing(row, strategy).add(&stats, plain.time_us.decode());
        }
        earlier.leave(row, sources);
    }
    Ok(all)
}

/// A recorded response, decoded with and without drafts in turns.
#[derive(Clone, Debug)]
pub struct Response {
    /// Task and subtask.
    pub name: String,
    /// Number of its tokens.
    pub n_tokens: usize,
    /// Number of steps with drafts.
    pub n_steps: usize,
    /// Number of turns.
    pub n_turns: usize,
    /// Speed over plain decoding with the time of the prompt, the geometric mean of the turns.
    pub speed: f64,
    /// The same, of decoding alone.
    pub decoding: f64,
    /// Half of the 95 % interval of `speed`, as a share of it.
    pub half_width: f64,
}

/// How long [`floor`] measures a response.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Turns at least, and at most.
    pub bounds: [usize; 2],
    /// The measurement ends when half of the interval is below this share.
    pub half_width: f64,
}

/// Decodes each row plainly and with drafts from prompt, output and passages, in turns, until the interval of the ratio is
/// narrow enough. The target computes a prompt once; its time is part of both. Nothing of a response is kept for the next turn
/// except what drafting has learned.
///
/// # Errors
/// As [`replay`].
pub fn floor<'a>(
    engine: &Engine,
    rows: impl ExactSizeIterator<Item = &'a TokenRow>,
    options: &SessionOptions,
    turns: Turns,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Response>, GenerateError> {
    let n_rows = rows.len();
    let mut responses = Vec::new();
    for (n_done, row) in rows.enumerate() {
        progress(n_done, n_rows);
        // Without its session, a row has no history: the second turn would draft the first one's answer.
        let row = TokenRow { session: None, ..row.clone() };
        let mut prompt = Prompt { is_kept: true, state: None };
        let (earlier, mut prompt_us) = (Earlier::default(), None);
        let mut logs: [Vec<f64>; 2] = Default::default();
        let mut n_steps = 0;
        while logs[0].len() < turns.bounds[1] {
            let mut us = [0.0; 2];
            let mut order = [(0, Strategy::Plain), (1, Strategy::Refrain)];
            if logs[0].len() % 2 == 1 {
                order.reverse();
            }
            for (place, strategy) in order {
                let stats =
                    decode(engine, &row, strategy, Sources::Passages, options, &earlier, &mut prompt)?;
                let Some(stats) = stats else { break };
                prompt_us.get_or_insert(stats.time_us.prefill);
                us[place] = stats.time_us.decode() + stats.time_us.prime;
                n_steps = if strategy == Strategy::Refrain { stats.steps } else { n_steps };
            }
            let Some(prompt_us) = prompt_us else { break };
            logs[0].push(((prompt_us + us[0]) / (prompt_us + us[1])).ln());
            logs[1].push((us[0] / us[1]).ln());
            if logs[0].len() >= turns.bounds[0] && half_width(&logs[0]) < turns.half_width {
                break;
            }
        }
        if logs[0].is_empty() {
            continue;
        }
        responses.push(Response {
            name: format!("{}/{}", row.task, row.subtask),
            n_tokens: row.response.len(),
            n_steps,
            n_turns: logs[0].len(),
            speed: mean(&logs[0]).exp(),
            decoding: mean(&logs[1]).exp(),
            half_width: half_width(&logs[0]),
        });
    }
    Ok(responses)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Half of the 95 % interval of the mean.
fn half_width(values: &[f64]) -> f64 {
    let (n, mean) = (values.len() as f64, mean(values));
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    1.96 * (variance / n).sqrt()
}

/// What the target computed of a row's prompt.
struct Prompt {
    is_kept: bool,
    /// Keys and values of all its tokens but the newest, which each generation computes.
    state: Option<Vec<u8>>,
}

impl Prompt {
    fn restore(&self, session: &mut Session, tokens: &[TokenId]) -> Result<(), GenerateError> {
        if let Some(state) = &self.state {
            session.state_mut().restore(0, &tokens[..tokens.len() - 1], state)?;
        }
        Ok(())
    }

    /// Keeps nothing where a session has no such state any more, as behind recurrent layers.
    fn keep(&mut self, session: &Session, n_tokens: usize) {
        if self.is_kept && self.state.is_none() && n_tokens > 1 {
            let mut state = Vec::new();
            self.state = session.state().write(0..n_tokens - 1, &mut state).is_ok().then_some(state);
        }
    }
}

/// The earlier answers of the newest row's session.
#[derive(Default)]
struct Earlier<'a> {
    session: Option<&'a str>,
    responses: Vec<&'a [TokenId]>,
}

impl<'a> Earlier<'a> {
    fn enter(&mut self, row: &'a TokenRow, sources: Sources) {
        if row.session.is_none() || row.session.as_deref() != self.session || sources == Sources::Prompt {
            (self.session, self.responses) = (row.session.as_deref(), Vec::new());
        }
    }

    fn leave(&mut self, row: &'a TokenRow, sources: Sources) {
        if row.session.is_some() && sources != Sources::Prompt {
            self.responses.push(&row.response);
        }
    }
}

impl Timings {
    fn timing(&mut self, row: &TokenRow, strategy: Strategy) -> &mut Timing {
        let is_it = |t: &Timing| t.strategy == strategy && t.task == row.task && t.subtask == row.subtask;
        let index = self.timings.iter().position(is_it).unwrap_or_else(|| {
            self.timings.push(Timing::new(&row.task, &row.subtask, strategy));
            self.timings.len() - 1
        });
        &mut self.timings[index]
    }

    /// The sum over all subtasks of each strategy, in the order of the strategies' first rows.
    pub fn by_strategy(&self) -> Vec<Timing> {
        let mut totals: Vec<Timing> = Vec::new();
        for timing in &self.timings {
            let index = totals.iter().position(|total| total.strategy == timing.strategy);
            let index = index.unwrap_or_else(|| {
                totals.push(Timing::new("all", "", timing.strategy));
                totals.len() - 1
            });
            totals[index].add_timing(timing);
        }
        totals
    }

    /// Speed of a strategy over plain decoding of a task's rows; 1 without rows.
    pub fn task_speed_up(&self, task: &str, strategy: Strategy) -> f64 {
        let mut total = Timing::new(task, "", strategy);
        let of_task = self.timings.iter().filter(|timing| timing.task == task && timing.strategy == strategy);
        of_task.for_each(|timing| total.add_timing(timing));
        if total.n_rows == 0 { 1.0 } else { total.speed_up() }
    }
}

/// Decodes one row. `None` if it does not fit the context.
fn decode(
    engine: &Engine,
    row: &TokenRow,
    strategy: Strategy,
    sources: Sources,
    options: &SessionOptions,
    earlier: &Earlier<'_>,
    prompt: &mut Prompt,
) -> Result<Option<Stats>, GenerateError> {
    let context_len = row.prompt.len() + row.response.len() + 1;
    if context_len > engine.config().context_len || row.response.is_empty() {
        return Ok(None);
    }
    let retrieves = strategy.retrieves();
    let has_history = retrieves && sources != Sources::Prompt && row.session.is_some();
    let options =
        &SessionOptions { verify_rows_max: strategy.rows_max(options.verify_rows_max), ..options.clone() };
    let mut session = engine.session(SessionOptions {
        context_len: Some(context_len),
        drafting: strategy.drafting(),
        draft_model: matches!(strategy, Strategy::Refrain | Strategy::Lever),
        // Each strategy learns its answers once.
        namespace: format!("{strategy} {}", row.session.as_deref().unwrap_or_default()),
        history: has_history,
        // The model's own answer would differ from the recorded one.
        calibration: Calibration::Off,
        reuse: None,
        ..options.clone()
    })?;
    if let Strategy::ModelRule(_) = strategy {
        strategy.add_rule(engine, &mut session, options)?;
    }
    for source in own_sources(row, strategy, sources, options.verify_rows_max, &earlier.responses) {
        session.add_source(source)?;
    }
    session.append_tokens(&row.prompt)?;
    prompt.restore(&mut session, &row.prompt)?;
    let recorded = Recorded { prompt_len: row.prompt.len(), response: row.response.clone() };
    let generation = session.generate(GenerateOptions {
        max_tokens: row.response.len(),
        ignore_eos: true,
        processors: vec![Box::new(recorded)],
        ..GenerateOptions::default()
    })?;
    let mut said = Vec::with_capacity(row.response.len());
    let summary = generation.run(|token| {
        said.push(token.id);
        std::ops::ControlFlow::Continue(())
    })?;
    assert_eq!(said, row.response, "the walk follows the recorded tokens");
    prompt.keep(&session, row.prompt.len());
    Ok(Some(summary.stats))
}

fn own_sources(
    row: &TokenRow,
    strategy: Strategy,
    sources: Sources,
    max_rows: usize,
    earlier: &[&[TokenId]],
) -> Vec<Box<dyn DraftSource>> {
    let (prompt_len, response) = (row.prompt.len(), row.response.clone());
    match strategy {
        Strategy::Baseline(baseline) => vec![baseline.source(max_rows, earlier)],
        Strategy::AlwaysRight => vec![Box::new(AlwaysRight::new(prompt_len, response))],
        Strategy::AlwaysWrong => vec![Box::new(AlwaysWrong::new(prompt_len, response))],
        Strategy::Refrain | Strategy::Lever | Strategy::Retrieval
            if sources == Sources::Passages && !row.passages.is_empty() =>
        {
            vec![Box::new(PassagesSource::new(row.passages.iter().map(Vec::as_slice)))]
        }
        _ => Vec::new(),
    }
}
