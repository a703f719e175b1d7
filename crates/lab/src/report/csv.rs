//! The cells of a report as CSV, one line each.

use std::fmt::Write as _;

use super::Report;

const HEADER: &str = "task,subtask,strategy,sources,max_rows,rows,tokens,steps,acceptance_length,empty_share,rows_per_step,\
speed_up_verify,speed_up,draft_us_median,draft_us_p99,memory_bytes,drafted,accepted,by_source,steps_by_len";

/// All cells. `by_source` is a list of `name:drafted:accepted`. `steps_by_len` is the list of the numbers of steps
/// that committed 0, 1, 2, … tokens.
pub fn write(report: &Report<'_>) -> String {
    let mut out = format!("{HEADER}\n");
    for cell in report.measurements {
        let (setting, tally) = (&report.settings[cell.setting], &cell.tally);
        let drafted: usize = tally.sources.values().map(|source| source.drafted).sum();
        let accepted: usize = tally.sources.values().map(|source| source.accepted).sum();
        let by_source: Vec<String> = tally
            .sources
            .iter()
            .map(|(name, source)| format!("{name}:{}:{}", source.drafted, source.accepted))
            .collect();
        let by_len: Vec<String> = tally.steps_by_len.iter().map(usize::to_string).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{:.4},{:.4},{:.2},{:.4},{:.4},{:.2},{:.2},{},{drafted},{accepted},{},{}",
            quoted(&cell.task),
            quoted(&cell.subtask),
            setting.strategy,
            setting.sources,
            setting.max_rows,
            tally.n_rows,
            tally.n_tokens,
            tally.n_steps,
            tally.acceptance_length(),
            tally.empty_share(),
            tally.rows_per_step(),
            tally.speed_up(false),
            tally.speed_up(true),
            tally.draft_us_quantile(0.5),
            tally.draft_us_quantile(0.99),
            tally.memory_bytes_max,
            quoted(&by_source.join(" ")),
            by_len.join(" "),
        );
    }
    out
}

/// Quotes a field if it contains commas, quotes or line ends.
pub(super) fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
