//! `refrain-bench trace`: records logit traces.

use std::collections::BTreeMap;

use crate::trace::{RecordError, RecordOptions, record};
use crate::{Costs, Row, Setting, Sources, Strategy, rows};
use refrain::EngineOptions;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::CostProfile;
use refrain_files::replace::{ReplaceError, create_private_folder};

use super::args::TraceArgs;
use super::replay::{check_rows, trace_failure};
use refrain_program::failure::{Exit, Failure};
use refrain_program::print_line;
use refrain_program::progress::Progress;
use refrain_program::{load, profile};

pub(super) fn bench(args: &TraceArgs) -> Result<Exit, Failure> {
    args.rows.iter().try_for_each(|&rows| check_rows(rows))?;
    let settings = settings(args)?;
    let rows = rows::read(&args.files)?;
    let tasks = by_task(&rows, args.task_rows)?;
    let checkpoint = load::checkpoint(args.model.model.as_deref())?;
    // Nothing is timed.
    let cost_profile = Some(CostProfile::free_rows(1.0));
    let options =
        EngineOptions { cost_profile: cost_profile.clone(), ..profile::engine_options(&args.model) };
    let engine = load::engine(&checkpoint, options)?;
    // The rows of trees are computed by the draft model's keys and values, so the target is loaded as one too.
    let options = DraftModelOptions { cost_profile, ..load::draft_model_options(&args.model.compute) };
    load::draft_model(&engine, &checkpoint, options)?;
    create_private_folder(&args.out).map_err(|source| ReplaceError {
        action: "create",
        path: args.out.clone(),
        source,
    })?;
    let options = RecordOptions {
        max_tokens: args.max_tokens as usize,
        prompt_tokens_max: args.prompt_tokens as usize,
    };
    print_line!("| task | requests | left out | tokens | rows of texts | rejected rows | bytes |");
    print_line!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (task, rows) in tasks {
        let (trace, n_left_out) = {
            let progress = Progress::tokens("recording");
            let report = |done, total| progress.set(done as u64, total as u64);
            record(&engine, &rows, &settings, options, report)?
        };
        let path = args.out.join(format!("{task}.trace"));
        trace.write(&path).map_err(|error| trace_failure(&path, &error))?;
        let of_rows = |n: fn(&crate::TokenRow) -> usize| trace.rows.iter().map(n).sum::<usize>();
        print_line!(
            "| {task} | {} | {n_left_out} | {} | {} | {} | {} |",
            trace.rows.len(),
            of_rows(|row| row.response.len()),
            of_rows(|row| row.prompt.len() + row.response.len()),
            of_rows(|row| row.target.as_ref().map_or(0, |rows| rows.branches().len())),
            std::fs::metadata(&path).map_or(0, |file| file.len()),
        );
    }
    Ok(Exit::Done)
}

fn settings(args: &TraceArgs) -> Result<Vec<Setting>, Failure> {
    let is_recorded = |strategy: &Strategy| {
        !(strategy.is_control() || strategy.needs_draft_model() || *strategy == Strategy::Plain)
    };
    let strategies = match args.strategy.is_empty() {
        true => Strategy::traced().into_iter().filter(is_recorded).collect(),
        false => args.strategy.clone(),
    };
    if let Some(strategy) = strategies.iter().copied().find(|strategy| !is_recorded(strategy)) {
        return Err(Failure::usage(
            format!("{strategy} has no trees to record"),
            "name strategies that draft",
        ));
    }
    // The largest batches first: they have most rows of the others.
    let mut all_rows = args.rows.clone();
    all_rows.sort_unstable_by(|a, b| b.cmp(a));
    let with_rows = |max_rows: usize| {
        let setting = move |&strategy| Setting::new(strategy, Sources::Passages, max_rows, Costs::free());
        strategies.iter().map(setting)
    };
    Ok(all_rows.into_iter().flat_map(with_rows).collect())
}

/// The rows of each task, at most `n_max`, from its subtasks in turn, in the order of the files.
fn by_task(rows: &[Row], n_max: Option<usize>) -> Result<BTreeMap<&str, Vec<&Row>>, Failure> {
    let mut tasks: BTreeMap<&str, Vec<(usize, usize, &Row)>> = BTreeMap::new();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if row.task.is_empty() || !row.task.chars().all(is_name) {
            let problem = format!("row {}: task {:?} is no name for a file", row.id, row.task);
            return Err(Failure::input(problem, "use ASCII letters, digits, - and _"));
        }
        let turn = counts.entry((row.task.as_str(), row.subtask.as_str())).or_default();
        tasks.entry(row.task.as_str()).or_default().push((*turn, place, row));
        *turn += 1;
    }
    let n_max = n_max.unwrap_or(usize::MAX);
    Ok(tasks.into_iter().map(|(task, rows)| (task, first(rows, n_max))).collect())
}

/// The first `n_max` rows by turn, in the order of their places.
fn first(mut rows: Vec<(usize, usize, &Row)>, n_max: usize) -> Vec<&Row> {
    rows.sort_by_key(|&(turn, place, _)| (turn, place));
    rows.truncate(n_max);
    rows.sort_by_key(|&(_, place, _)| place);
    rows.into_iter().map(|(_, _, row)| row).collect()
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Row(error) => error.into(),
            RecordError::Prompt { source, .. } => refrain::GenerateError::from(*source).into(),
            RecordError::Forward(error) => refrain::GenerateError::from(error).into(),
            other => Self::new(Exit::Failed, other.to_string()),
        }
    }
}
