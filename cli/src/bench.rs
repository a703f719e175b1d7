//! `refrain bench`: measures drafting on recorded text.

use std::path::Path;

use refrain::draft::{CostProfile, VERIFY_ROWS_MAX};
use refrain::model::Checkpoint;
use refrain::tokenizer::Tokenizer;
use refrain_bench::report::{self, Report};
use refrain_bench::{Constants, Half, RowsError, Setting, Strategy, TokenRow, rows};

use crate::args::{BenchArgs, BenchCommand, HalfArg, ReplayArgs, RowsArgs};
use crate::failure::{Exit, Failure};
use crate::load;

pub(crate) fn bench(args: &BenchArgs) -> Result<Exit, Failure> {
    match &args.command {
        BenchCommand::Replay(args) => replay(args),
    }
}

fn replay(args: &ReplayArgs) -> Result<Exit, Failure> {
    let costs = args.profile.as_deref().map_or_else(|| Ok(CostProfile::free_rows(1.0)), read_profile)?;
    let settings = settings(args, &costs)?;
    let set = RowSet::load(&args.rows_args)?;
    let n_threads = n_threads(args.rows_args.threads);
    let started = std::time::Instant::now();
    let measurements =
        refrain_bench::run(&set.rows, args.rows_args.half.half(), &settings, set.vocab_size, n_threads);
    let mut conditions = set.conditions(&args.rows_args);
    conditions.push(match &args.profile {
        Some(path) => format!("cost profile: {}", path.display()),
        None => "rows are free: every strategy fills its batch".to_owned(),
    });
    conditions.push(format!("replayed in {:.1} s on {n_threads} threads", started.elapsed().as_secs_f64()));
    let report = Report { conditions: &conditions, settings: &settings, measurements: &measurements };
    print!("{}", report::markdown::write(&report));
    Ok(Exit::Done)
}

fn settings(args: &ReplayArgs, costs: &CostProfile) -> Result<Vec<Setting>, Failure> {
    if let Some(rows) = args.rows.iter().find(|rows| !(1..=VERIFY_ROWS_MAX).contains(*rows)) {
        let problem = format!("--rows {rows} is outside 1..={VERIFY_ROWS_MAX}");
        return Err(Failure::usage(problem, "choose a value in the range"));
    }
    let strategies = if args.strategy.is_empty() { Strategy::all() } else { args.strategy.clone() };
    let mut settings = Vec::new();
    for &sources in &args.sources {
        for &max_rows in &args.rows {
            settings.extend(strategies.iter().map(|&strategy| Setting {
                strategy,
                sources,
                max_rows,
                costs: costs.clone(),
                constants: Constants::default(),
                fresh: args.fresh,
            }));
        }
    }
    Ok(settings)
}

/// Rows in tokens, and what made them.
struct RowSet {
    rows: Vec<TokenRow>,
    vocab_size: usize,
    tokenizer_name: String,
}

impl RowSet {
    fn load(args: &RowsArgs) -> Result<Self, Failure> {
        let rows = rows::read(&args.files)?;
        let (tokenizer, tokenizer_name) = open_tokenizer(args.tokenizer.as_deref())?;
        let rows = rows::encode(&rows, &tokenizer, n_threads(args.threads))?;
        Ok(RowSet { rows, vocab_size: tokenizer.vocab_size(), tokenizer_name })
    }

    fn conditions(&self, args: &RowsArgs) -> Vec<String> {
        let half = match args.half {
            HalfArg::All => "",
            HalfArg::Even => ", of which the even ones are measured",
            HalfArg::Odd => ", of which the odd ones are measured",
        };
        vec![
            format!("{} rows{half}", self.rows.len()),
            format!("tokenizer: {} ({} tokens)", self.tokenizer_name, self.vocab_size),
        ]
    }
}

/// The tokenizer of a `tokenizer.json`, a GGUF file or a folder; without a path, the embedded model's.
fn open_tokenizer(path: Option<&Path>) -> Result<(Tokenizer, String), Failure> {
    if let Some(path) = path.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let name = path.display().to_string();
        let advice = "name a tokenizer.json, a GGUF file or a folder";
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::input(format!("{name}: {error}"), advice))?;
        let tokenizer = Tokenizer::from_json(&text, &name).map_err(|error| Failure::input(error, advice))?;
        return Ok((tokenizer, name));
    }
    let checkpoint: Checkpoint = load::checkpoint(path)?;
    let tokenizer = checkpoint.tokenizer().map_err(refrain::engine::EngineError::from)?;
    Ok((tokenizer, checkpoint.name().to_owned()))
}

/// Reads a cost profile: a JSON list of pairs, rows and µs.
fn read_profile(path: &Path) -> Result<CostProfile, Failure> {
    let advice = "a cost profile is a JSON list of [rows, microseconds]";
    let fail = |problem: String| Failure::input(format!("{}: {problem}", path.display()), advice);
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let pairs: Vec<(usize, f32)> = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    if pairs.is_empty() {
        return Err(fail("no measurement".to_owned()));
    }
    Ok(CostProfile::from_measurements(&pairs))
}

fn n_threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).clamp(1, 256)
}

impl From<RowsError> for Failure {
    fn from(error: RowsError) -> Self {
        Self::input(error, "`refrain bench replay --help` names the fields of a row")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_a_list_of_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        std::fs::write(&path, "[[1, 100.0], [8, 200]]").unwrap();
        assert!((read_profile(&path).unwrap().verify_us(8) - 200.0).abs() < 0.1);
        for bad in ["[]", "{}", "[[1]]", "[[-1, 2]]"] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(read_profile(&path).unwrap_err().exit(), Exit::Input, "{bad}");
        }
    }
}
