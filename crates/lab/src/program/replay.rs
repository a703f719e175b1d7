//! The commands that measure drafting on recorded text.

use std::io::Write as _;
use std::path::Path;

use crate::floor::{self, Terms};
use crate::replay::Wanted;
use crate::report::html::TracedRow;
use crate::report::{self, Report};
use crate::rows::Accepted;
use crate::sweep::SweepDraft;
use crate::trace::{Trace, TraceError};
use crate::{
    AblateError, Arm, Constants, Costs, CostsError, FleetBench, Half, Lane, RowsError, Setting, Sources,
    Strategy, Tally, TokenRow, rows,
};
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{DraftPolicy, PruningConfig};
use refrain::internals::draft::{CostProfile, VERIFY_ROWS_MAX};
use refrain::{EngineOptions, SessionOptions, Tokenizer};

use super::args::{AblateArgs, FleetArgs, FloorArgs, HalfArg, ProjectionArg, ReplayArgs, RowsArgs, TuneArgs};
use refrain_program::failure::{Exit, Failure};
use refrain_program::load::{self, Drafts, check_vocabulary, n_threads, open_tokenizer};
use refrain_program::progress::Progress;
use refrain_program::terminal::stdout;
use refrain_program::{print_line, profile};

pub(super) fn run(args: &ReplayArgs) -> Result<Exit, Failure> {
    match &args.model {
        Some(path) => replay_model(args, path),
        None => replay(args),
    }
}

fn replay(args: &ReplayArgs) -> Result<Exit, Failure> {
    let settings = settings(args, &costs(args.profile.as_deref())?)?;
    let set = RowSet::load(&args.rows_args)?;
    if let Some(strategy) = strategies(args).into_iter().find(|strategy| strategy.needs_accepted())
        && set.rows.iter().all(|row| row.accepted == Accepted::default())
    {
        let problem = format!("{strategy} drafts as a recorded drafter did, and the rows have no `accepted`");
        return Err(Failure::usage(problem, "name rows of `refrain-bench import specdecode-bench`"));
    }
    let n_known = set.tokenizer.vocab_size();
    if args.html.is_some() && (set.is_ids || n_known < set.vocab_size) {
        let problem = format!("{}: {n_known} tokens, the rows have {}", set.tokenizer_name, set.vocab_size);
        return Err(Failure::usage(problem, "name the recorded model's tokenizer with --tokenizer"));
    }
    let n_threads = n_threads(args.rows_args.threads);
    let started = std::time::Instant::now();
    let measurements =
        crate::run(&set.rows, args.rows_args.half.half(), &settings, set.vocab_size, n_threads);
    let mut conditions = set.conditions(&args.rows_args);
    conditions.push(match &args.profile {
        Some(path) => format!("cost profile: {}", path.display()),
        None => "rows are free: every strategy fills its batch".to_owned(),
    });
    conditions.push(format!("replayed in {:.1} s on {n_threads} threads", started.elapsed().as_secs_f64()));
    let report = Report { conditions: &conditions, settings: &settings, measurements: &measurements };
    let tables = report::markdown::write(&report);
    write!(stdout(), "{tables}")?;
    if let Some(path) = &args.csv {
        write_file(path, &report::csv::write(&report))?;
    }
    if let Some(path) = &args.html {
        let traced = set.trace(&settings, args);
        let page = report::html::write("Drafting, replayed", &tables, &traced, &set.tokenizer);
        write_file(path, &page)?;
    }
    Ok(Exit::Done)
}

pub(super) fn floor(args: &FloorArgs) -> Result<Exit, Failure> {
    check_rows(args.rows)?;
    if let Some(path) = &args.model {
        return floor_model(args, path);
    }
    let machines = match args.profile.as_slice() {
        [] => floor::machines(),
        files => {
            let machine = |path: &std::path::PathBuf| Ok((path.display().to_string(), Costs::read(path)?));
            files.iter().map(machine).collect::<Result<_, CostsError>>()?
        }
    };
    let set = RowSet::load(&args.rows_args)?;
    let (half, n_threads) = (args.rows_args.half.half(), n_threads(args.rows_args.threads));
    let terms = Terms {
        max_rows: args.rows,
        stake: if args.unpaid { None } else { DraftPolicy::default().stake },
        draft_us_per_node: args.draft_us,
    };
    let measured = floor::measure(&set.rows, half, &machines, terms, set.vocab_size, n_threads);
    let mut conditions = set.conditions(&args.rows_args);
    let drafting = match args.draft_us {
        Some(us) => format!("{us} µs for each drafted node"),
        None => format!("drafting measured on {n_threads} threads"),
    };
    conditions.push(format!("at most {} rows a batch; {drafting}", args.rows));
    write!(stdout(), "{}", floor::write(&conditions, &measured))?;
    Ok(Exit::Done)
}

/// The floor of each response through a model.
fn floor_model(args: &FloorArgs, path: &Path) -> Result<Exit, Failure> {
    let checkpoint = load::checkpoint(Some(path))?;
    let options = EngineOptions { n_threads: args.rows_args.threads, ..EngineOptions::default() };
    let engine = load::engine(&checkpoint, options)?;
    let rows = rows::read(&args.rows_args.files)?;
    let rows = rows::encode(&rows, engine.tokenizer(), n_threads(args.rows_args.threads))?;
    let half = args.rows_args.half.half();
    let mut measured: Vec<&TokenRow> = Vec::new();
    for rows in crate::run::by_subtask(&rows).into_values() {
        measured.extend(rows.into_iter().filter(|row| half.takes(row)).take(args.model_rows));
    }
    let session = SessionOptions { verify_rows_max: args.rows, ..SessionOptions::default() };
    let turns = crate::model::Turns { bounds: [4, args.turns], half_width: 0.01 };
    let responses = {
        let progress = Progress::tokens("replaying");
        let report = |done, total| progress.set(done as u64, total as u64);
        crate::model::floor(&engine, measured.into_iter(), &session, turns, report)?
    };
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    let model = format!(
        "model: {} ({isa:?}, {n_threads} threads); the walk follows the recorded tokens",
        checkpoint.name()
    );
    let rows = format!("at most {} rows a batch; at most {} turns", args.rows, args.turns);
    write!(stdout(), "{}", floor::write_responses(&[model, rows], &responses))?;
    Ok(Exit::Done)
}

pub(super) fn fleet(args: &FleetArgs) -> Result<Exit, Failure> {
    check_rows(args.rows)?;
    let rows_args = RowsArgs {
        files: args.files.clone(),
        trace: Vec::new(),
        tokenizer: args.tokenizer.clone(),
        half: HalfArg::All,
        threads: args.threads,
    };
    let set = RowSet::load(&rows_args)?;
    let bench = FleetBench {
        n_workers: args.workers.iter().map(|&n| n as usize).collect(),
        delays: args.delays.iter().map(|&delay| delay.into()).collect(),
        interval: args.interval.into(),
        tokens_per_second: args.rate.into(),
        n_sessions: args.sessions as usize,
        max_rows: args.rows,
    };
    let n_threads = n_threads(args.threads);
    let cells = crate::fleet::simulate(&set.rows, &bench, set.vocab_size, n_threads);
    let conditions = set.conditions(&rows_args);
    write!(stdout(), "{}", crate::fleet::write(&conditions, &bench, &cells))?;
    Ok(Exit::Done)
}

/// Replays through a model: the strategies and plain decoding, row by row.
fn replay_model(args: &ReplayArgs, path: &Path) -> Result<Exit, Failure> {
    if !args.rows_args.trace.is_empty() {
        return Err(Failure::usage("a trace is replayed without a model", "leave out --model or --trace"));
    }
    let strategies = strategies(args);
    if let Some(strategy) = strategies.iter().find(|strategy| strategy.is_replayed()) {
        return Err(Failure::usage(format!("{strategy} drafts in replays only"), "leave out --model"));
    }
    if let (None, Some(&strategy)) = (&args.draft, strategies.iter().find(|s| s.needs_draft_model())) {
        return Err(needs_draft_model(strategy));
    }
    let checkpoint = load::checkpoint(Some(path))?;
    let draft = args.draft.as_ref().map(|model| Drafts::open(model, Some(path))).transpose()?;
    let mut streaming = args.streaming.stream_options();
    if let (Some(draft), Some(streaming)) = (&draft, &mut streaming) {
        draft.pin(streaming);
    }
    let options = EngineOptions {
        n_threads: args.rows_args.threads,
        isa: args.isa,
        streaming,
        ..EngineOptions::default()
    };
    let engine = load::engine(&checkpoint, options)?;
    let keeps_prompts = !draft.as_ref().is_some_and(|draft| SweepDraft::from(draft).reads_states());
    if let Some(draft) = draft {
        draft.load(&engine, DraftModelOptions::default())?;
    }
    let given = args.rows_args.tokenizer.as_deref().map(|path| open_tokenizer(Some(path))).transpose()?;
    let (tokenizer, tokenizer_name) =
        given.as_ref().map_or((engine.tokenizer(), "the model's"), |(tokenizer, name)| (tokenizer, name));
    check_vocabulary(tokenizer_name, tokenizer.vocab_size(), engine.config().vocab_size)?;
    let rows = &rows::read(&args.rows_args.files)?;
    let mut rows = rows::encode(rows, tokenizer, n_threads(args.rows_args.threads))?;
    if let Some(n_tokens) = args.prompt_tokens {
        rows::set_prompt_len(&mut rows, n_tokens as usize);
    }
    let half = args.rows_args.half.half();
    let mut measured: Vec<&TokenRow> = Vec::new();
    for rows in crate::run::by_subtask(&rows).into_values() {
        measured.extend(rows.into_iter().filter(|row| half.takes(row)).take(args.model_rows));
    }
    let (Some(&max_rows), Some(&sources)) = (args.rows.first(), args.sources.first()) else {
        return Err(Failure::usage("--rows and --sources are empty", "name a value for each"));
    };
    let mut session = SessionOptions { verify_rows_max: max_rows, ..SessionOptions::default() };
    if args.projection == ProjectionArg::Eager {
        crate::model::project_eagerly(&engine, &mut session);
    }
    let timings = {
        let progress = Progress::tokens("replaying");
        let rows = measured.into_iter();
        let report = |done, total| progress.set(done as u64, total as u64);
        crate::model::replay(&engine, rows, &strategies, sources, &session, keeps_prompts, report)?
    };
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    let conditions = [
        format!(
            "model: {} ({isa:?}, {n_threads} threads); the walk follows the recorded tokens",
            checkpoint.name()
        ),
        format!("tokenizer: {tokenizer_name}"),
        format!("rows are projected {}", args.projection.text()),
        format!("{max_rows} rows, sources: {sources}; plain decoding of each row in the same run"),
        match args.prompt_tokens {
            Some(n_tokens) => {
                format!("prompts of {n_tokens} tokens: other rows' prompts before them, or cut")
            }
            None => "prompts as recorded".to_owned(),
        },
    ];
    let tables = report::timing::write(&conditions, &timings);
    write!(stdout(), "{tables}")?;
    if let Some(path) = &args.csv {
        write_file(path, &report::timing::write_csv(&timings))?;
    }
    if let Some(path) = &args.html {
        let title = "Drafting, replayed through a model";
        write_file(path, &report::html::write(title, &tables, &[], tokenizer))?;
    }
    Ok(Exit::Done)
}

fn strategies(args: &ReplayArgs) -> Vec<Strategy> {
    match (&args.strategy, &args.draft) {
        (given, _) if !given.is_empty() => given.clone(),
        (_, Some(_)) => Strategy::with_draft_model(),
        (_, None) if args.rows_args.trace.is_empty() => Strategy::all(),
        (_, None) => Strategy::traced(),
    }
}

/// Answers the rows with one part of drafting added at a time.
pub(super) fn ablate(args: &AblateArgs) -> Result<Exit, Failure> {
    check_rows(args.rows)?;
    let mut rows = rows::read(&args.files)?;
    if let Some(task_rows) = args.task_rows {
        let mut taken: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
        rows.retain(|row| {
            let n = taken.entry(row.task.clone()).or_default();
            *n += 1;
            *n <= task_rows
        });
    }
    let checkpoint = load::checkpoint(args.model.model.as_deref())?;
    let mut options = profile::engine_options(&args.model);
    let target = args.model.model.as_deref();
    let draft = args.draft.as_ref().map(|model| Drafts::open(model, target)).transpose()?;
    if let (Some(draft), Some(streaming)) = (&draft, &mut options.streaming) {
        draft.pin(streaming);
    }
    if args.free_rows {
        options.cost_profile = Some(CostProfile::free_rows(1.0));
    }
    let engine = load::engine(&checkpoint, options)?;
    let mut arms = Arm::TEXT.to_vec();
    if let Some(draft) = draft {
        let mut options = load::draft_model_options(&args.model.compute);
        if args.free_rows {
            // A hundredth of a target step, which takes 1 µs.
            options.cost_profile = Some(CostProfile::free_rows(0.01));
        }
        draft.load(&engine, options)?;
        arms = Arm::DRAFT_MODEL.to_vec();
    }
    if let Some(predictor) = &args.pruning {
        engine.set_predictor(load::predictor(predictor)?)?;
        arms = Arm::PRUNING.to_vec();
    }
    if let Some(unknown) = args.arm.iter().find(|name| arms.iter().all(|arm| arm.name() != **name)) {
        let names: Vec<_> = arms.iter().map(|arm| arm.name()).collect();
        return Err(Failure::usage(
            format!("no part is called `{unknown}`"),
            &format!("choose from: {}", names.join(", ")),
        ));
    }
    let is_named = |arm: &Arm| args.arm.iter().any(|name| arm.name() == *name);
    arms.retain(|arm| args.arm.is_empty() || *arm == Arm::Plain || is_named(arm));
    let session = SessionOptions {
        verify_rows_max: args.rows,
        reuse: Some(args.reuse.config()),
        pruning: Some(PruningConfig { threshold: args.pruning_threshold, ..PruningConfig::default() }),
        ..SessionOptions::default()
    };
    let ablation = {
        let progress = Progress::tokens("answering");
        let report = |done, total| progress.set(done as u64, total as u64);
        crate::ablate(&engine, &rows, &arms, &session, args.max_tokens, report)?
    };
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    let conditions = [
        format!("model: {} ({isa:?}, {n_threads} threads), greedy", checkpoint.name()),
        format!(
            "{} rows a batch at most, {}; answers of {} tokens at most",
            args.rows,
            if args.free_rows { "rows are free" } else { "as many as pay by their measured cost" },
            args.max_tokens
        ),
        "every answer is that of plain decoding".to_owned(),
    ];
    write!(stdout(), "{}", report::ablation::write(&conditions, &ablation))?;
    Ok(Exit::Done)
}

pub(super) fn tune(args: &TuneArgs) -> Result<Exit, Failure> {
    check_rows(args.rows)?;
    let set = RowSet::load(&args.rows_args)?;
    let n_threads = n_threads(args.rows_args.threads);
    let costs = costs(args.profile.as_deref())?;
    let setting = Setting::new(Strategy::Refrain, Sources::Passages, args.rows, costs);
    match args.profile {
        Some(_) => {
            print_line!("speed over plain decoding on the even rows, geometric mean over the subtasks:")
        }
        None => print_line!("tokens per step on the even rows, geometric mean over the subtasks:"),
    }
    let tuned =
        crate::tune::tune(&set.rows, &setting, set.vocab_size, n_threads, |trial| print_line!("{trial}"));
    let both = [setting.clone(), Setting { constants: tuned.constants.clone(), ..setting }];
    let measurements = crate::run(&set.rows, Half::Odd, &both, set.vocab_size, n_threads);
    let report = Report { conditions: &[], settings: &both, measurements: &measurements };
    let [shipped, fitted] = [0, 1].map(|setting| report.mean_speed_up(setting));
    print_line!("odd rows, which took no part: {shipped:.4} as shipped, {fitted:.4} fitted");
    let Constants { orders, builder, reliability, .. } = &tuned.constants;
    print_line!("{orders:#?}\n{builder:#?}\n{reliability:#?}");
    if let Some(path) = &args.out {
        let comment = format!(
            "{}\nThe even rows of each subtask, {} rows a batch.",
            set.conditions(&args.rows_args).join("; "),
            args.rows
        );
        write_file(path, &crate::tune::to_rust(&tuned.constants, &comment))?;
    }
    Ok(Exit::Done)
}

pub(super) fn check_rows(rows: usize) -> Result<(), Failure> {
    match rows {
        1..=VERIFY_ROWS_MAX => Ok(()),
        _ => {
            let problem = format!("--rows {rows} is outside 1..={VERIFY_ROWS_MAX}");
            Err(Failure::usage(problem, "choose a value in the range"))
        }
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::write(path, text);
    written.map_err(|error| {
        Failure::input(format!("{}: {error}", path.display()), "name a file that can be written")
    })
}

/// The costs in a file; without one, rows are free.
fn costs(profile: Option<&Path>) -> Result<Costs, CostsError> {
    profile.map_or_else(|| Ok(Costs::free()), Costs::read)
}

fn settings(args: &ReplayArgs, costs: &Costs) -> Result<Vec<Setting>, Failure> {
    args.rows.iter().try_for_each(|&rows| check_rows(rows))?;
    let strategies = strategies(args);
    if let Some(&strategy) = strategies.iter().find(|strategy| strategy.needs_draft_model()) {
        let problem = format!("{strategy} drafts with a model");
        return Err(Failure::usage(problem, "replay through a model, with --model and --draft"));
    }
    if let Some(&strategy) = strategies.iter().find(|strategy| strategy.needs_trace())
        && args.rows_args.trace.is_empty()
    {
        let problem = format!("{strategy} drafts from logits");
        return Err(Failure::usage(
            problem,
            "record a trace with `refrain-bench trace`, and name it with --trace",
        ));
    }
    let mut settings = Vec::new();
    for &sources in &args.sources {
        for &max_rows in &args.rows {
            settings.extend(strategies.iter().map(|&strategy| {
                let setting = Setting::new(strategy, sources, max_rows, costs.clone());
                Setting { fresh: args.fresh, explain: args.explain, ..setting }
            }));
        }
    }
    Ok(settings)
}

/// Encoded rows, and their tokenizer.
struct RowSet {
    rows: Vec<TokenRow>,
    vocab_size: usize,
    tokenizer: Tokenizer,
    tokenizer_name: String,
    /// Whether the rows are ids of another tokenizer, which is not known.
    is_ids: bool,
    /// The models of the traces, and the traces' size in bytes.
    traced: Option<(Vec<String>, u64)>,
}

impl RowSet {
    fn load(args: &RowsArgs) -> Result<Self, Failure> {
        if !args.trace.is_empty() {
            return Self::load_traces(args);
        }
        let rows = rows::read(&args.files)?;
        let (tokenizer, tokenizer_name) = open_tokenizer(args.tokenizer.as_deref())?;
        if args.tokenizer.is_none() && !rows.is_empty() && rows.iter().all(|row| row.texts().is_err()) {
            let (rows, vocab_size) = rows::of_tokens(&rows)?;
            return Ok(RowSet { rows, vocab_size, tokenizer, tokenizer_name, is_ids: true, traced: None });
        }
        let rows = rows::encode(&rows, &tokenizer, n_threads(args.threads))?;
        let vocab_size = tokenizer.vocab_size();
        Ok(RowSet { rows, vocab_size, tokenizer, tokenizer_name, is_ids: false, traced: None })
    }

    /// The rows of traces. The subtasks of a task are one: its requests are one session.
    fn load_traces(args: &RowsArgs) -> Result<Self, Failure> {
        let (tokenizer, tokenizer_name) = open_tokenizer(args.tokenizer.as_deref())?;
        let (mut rows, mut models, mut vocab_size, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        for path in &args.trace {
            let trace = Trace::read(path).map_err(|error| trace_failure(path, &error))?;
            bytes += std::fs::metadata(path).map_or(0, |file| file.len());
            vocab_size = trace.vocab_size.max(vocab_size);
            models.push(trace.model);
            rows.extend(trace.rows.into_iter().map(|row| TokenRow { subtask: String::new(), ..row }));
        }
        models.dedup();
        let traced = Some((models, bytes));
        Ok(RowSet { rows, vocab_size, tokenizer, tokenizer_name, is_ids: false, traced })
    }

    /// The first measured rows of each subtask, by the first setting with Refrain, or otherwise the first
    /// setting.
    fn trace(&self, settings: &[Setting], args: &ReplayArgs) -> Vec<TracedRow> {
        let setting =
            settings.iter().find(|setting| setting.strategy == Strategy::Refrain).or(settings.first());
        let Some(setting) = setting else { return Vec::new() };
        let mut traced = Vec::new();
        for rows in crate::run::by_subtask(&self.rows).into_values() {
            let mut lane = Lane::new(setting, self.vocab_size);
            let measured = rows.into_iter().filter(|row| args.rows_args.half.half().takes(row));
            for row in measured.take(args.html_rows) {
                let mut steps = Vec::new();
                let wanted = Wanted { trace: Some(&mut steps), ..Wanted::default() };
                lane.replay(row, &mut Tally::default(), wanted);
                let about =
                    format!("{}, {} rows, sources: {}", setting.strategy, setting.max_rows, setting.sources);
                traced.push(TracedRow {
                    title: format!("{}/{}: {} ({about})", row.task, row.subtask, row.id),
                    steps,
                });
            }
        }
        traced
    }

    fn conditions(&self, args: &RowsArgs) -> Vec<String> {
        let half = match args.half {
            HalfArg::All => "",
            HalfArg::Even => ", of which the even ones are measured",
            HalfArg::Odd => ", of which the odd ones are measured",
        };
        let rows = format!("{} rows{half}", self.rows.len());
        match &self.traced {
            Some((models, bytes)) => {
                let (files, megabytes) = (args.trace.len(), *bytes as f64 / 1e6);
                let answers =
                    format!("answers of {}, greedy ({} tokens)", models.join(", "), self.vocab_size);
                vec![rows, answers, format!("{files} traces, {megabytes:.1} MB")]
            }
            None if self.is_ids => vec![rows, format!("token ids below {}", self.vocab_size)],
            None => vec![rows, format!("tokenizer: {} ({} tokens)", self.tokenizer_name, self.vocab_size)],
        }
    }
}

/// The failure of a strategy without its draft model.
pub(super) fn needs_draft_model(strategy: Strategy) -> Failure {
    Failure::usage(format!("{strategy} drafts with a model"), "name one with --draft")
}

/// The failure of a trace's file.
pub(super) fn trace_failure(path: &Path, error: &TraceError) -> Failure {
    let advice = "name a file that `refrain-bench trace` of this version has written";
    match error {
        TraceError::Io { .. } => Failure::input(error, advice),
        _ => Failure::input(format!("{}: {error}", path.display()), advice),
    }
}

impl From<CostsError> for Failure {
    fn from(error: CostsError) -> Self {
        Self::input(
            error,
            "name a file that `refrain model profile` has written, or a JSON list of [rows, microseconds]",
        )
    }
}

impl From<AblateError> for Failure {
    fn from(error: AblateError) -> Self {
        match error {
            AblateError::Generate { source, .. } => (*source).into(),
            AblateError::Row(error) => error.into(),
            differs => {
                Self::input(differs, "this is a fault of Refrain: please report the model and the row")
            }
        }
    }
}

impl From<RowsError> for Failure {
    fn from(error: RowsError) -> Self {
        Self::input(error, "`refrain-bench replay --help` names the fields of a row")
    }
}

impl HalfArg {
    fn half(self) -> Half {
        match self {
            HalfArg::All => Half::All,
            HalfArg::Even => Half::Even,
            HalfArg::Odd => Half::Odd,
        }
    }
}
