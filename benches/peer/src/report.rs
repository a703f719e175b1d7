//! The results as Markdown tables.

use std::fmt::Write;

use refrain_bench::tally::geometric_mean;

use crate::cells::{
    Cell, DECODE_CONTEXTS, LONG_CONTEXT, LONG_PREFILL_LEN, LONG_ROWS, PREFILL_LEN, STEPS, Times,
    VERIFY_CONTEXT, VERIFY_ROWS,
};
use crate::results::{FileResults, Group, Results, Side};

const SIDES: [Side; 2] = [Side::Refrain, Side::Llama];

/// All tables of a run.
pub fn markdown(results: &Results) -> String {
    let mut out = String::new();
    header(results, &mut out);
    for (title, columns) in tables() {
        times(results, &title, columns, &mut out);
    }
    settings(results, &mut out);
    groups(results, &mut out);
    shares(results, &mut out);
    out
}

/// Writing to a `String` cannot fail.
macro_rules! put {
    ($out:expr, $($format:tt)*) => { writeln!($out, $($format)*).expect("a string takes everything") };
}

fn header(results: &Results, out: &mut String) {
    let machine = &results.machine;
    put!(out, "- CPU: {}, {} threads", machine.cpu, machine.n_threads);
    let int8 = machine.int8_macs_per_s.map_or("not measured".to_owned(), |n| format!("{:.0} G/s", n / 1e9));
    let read = machine.read_bytes_per_s / 1e9;
    put!(out, "- limits, measured in the same run: reads {read:.1} GB/s; int8 multiply-adds {int8}");
    if let Some(load) = machine.load_before {
        put!(out, "- load average before the run: {load:.2}");
    }
    for (name, version) in &results.versions {
        put!(out, "- {name}: {version}");
    }
    put!(out, "- medians of {} alternations; KV cache in {}", results.alternations, results.kv.name());
    for file in &results.files {
        for agreement in &file.agreements {
            put!(
                out,
                "- {}: logits agree with {} to a cosine of {:.5} (least of {} rows), largest difference {:.3} of the \
                 largest logit, same first choice in {} rows",
                file.name,
                agreement.with,
                agreement.cosine_min,
                agreement.n_rows,
                agreement.relative_difference_max,
                agreement.same_argmax
            );
        }
    }
}

/// The tables of times: a title, and the columns.
fn tables() -> [(String, Vec<(String, Cell)>); 4] {
    let rows_name = |rows: usize| if rows == 1 { "1 row".to_owned() } else { rows.to_string() };
    let mut all: Vec<(String, Cell)> = Vec::new();
    all.extend(DECODE_CONTEXTS.map(|context| (format!("decode, ctx {context}"), Cell::Decode { context })));
    all.extend(VERIFY_ROWS.map(|rows| (rows_name(rows), Cell::verify(rows, true))));
    all.push((format!("prefill {PREFILL_LEN}"), Cell::Prefill { len: PREFILL_LEN }));
    let one = VERIFY_ROWS.map(|rows| (rows_name(rows), Cell::verify(rows, false)));
    let mut long = LONG_ROWS.map(|rows| (rows_name(rows), Cell::long_verify(rows))).to_vec();
    long.push((format!("prefill {LONG_PREFILL_LEN}"), Cell::Prefill { len: LONG_PREFILL_LEN }));
    let steps = STEPS.map(|(rows, kept)| (format!("{rows} rows, {kept} kept"), Cell::Step { rows, kept }));
    [
        (format!("rows at context {VERIFY_CONTEXT} with the logits of all rows"), all),
        (format!("rows at context {VERIFY_CONTEXT} with the logits of one row"), one.to_vec()),
        (format!("a step of drafting at context {VERIFY_CONTEXT}"), steps.to_vec()),
        (format!("rows at context {LONG_CONTEXT} with the logits of all rows"), long),
    ]
}

fn times(results: &Results, title: &str, mut columns: Vec<(String, Cell)>, out: &mut String) {
    // Columns of kinds without results are omitted.
    columns.retain(|&(_, cell)| results.files.iter().any(|file| file.cell(cell).is_some()));
    if columns.is_empty() {
        return;
    }
    put!(out, "\n### Milliseconds, {title}\n");
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    put!(out, "| file | | {} |", names.join(" | "));
    put!(out, "| --- | --- |{}", " --- |".repeat(columns.len()));
    for file in &results.files {
        for side in SIDES {
            let cells = columns.iter().map(|&(_, cell)| format_ms(file.ms(side, cell)));
            put!(out, "| {} | {} | {} |", file.name, side.name(), cells.collect::<Vec<_>>().join(" | "));
        }
        let ratios = columns.iter().map(|&(_, cell)| file.cell(cell).and_then(|results| results.ratio()));
        let ratios: Vec<String> = ratios.map(|ratio| format_number(ratio, 2)).collect();
        put!(out, "| | **ratio** | {} |", ratios.join(" | "));
    }
}

/// Every setting of llama.cpp, for models that it rolls back in more than one way.
fn settings(results: &Results, out: &mut String) {
    const SETTINGS_OF_ATTENTION: usize = 2;
    let has_more =
        |file: &FileResults| file.cells.iter().any(|cell| cell.times.len() > 1 + SETTINGS_OF_ATTENTION);
    let columns: Vec<(String, Cell)> =
        tables().into_iter().flat_map(|(_, columns)| columns).filter(|(_, cell)| cell.rolls_back()).collect();
    for file in results.files.iter().filter(|file| has_more(file)) {
        let columns: Vec<&(String, Cell)> =
            columns.iter().filter(|&&(_, cell)| file.cell(cell).is_some()).collect();
        // The cell of the fewest rows has every engine.
        let all =
            columns.iter().filter_map(|&&(_, cell)| file.cell(cell)).max_by_key(|cell| cell.times.len());
        let Some(all) = all else { continue };
        put!(out, "\n### Milliseconds of each setting, {}\n", file.name);
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        put!(out, "| | {} |", names.join(" | "));
        put!(out, "| --- |{}", " --- |".repeat(columns.len()));
        for Times { engine, .. } in &all.times {
            let ms = |&&(_, cell): &&(String, Cell)| {
                format_ms(file.cell(cell).and_then(|results| results.ms_of(engine)))
            };
            put!(out, "| {} | {} |", engine, columns.iter().map(ms).collect::<Vec<_>>().join(" | "));
        }
    }
}

fn groups(results: &Results, out: &mut String) {
    put!(out, "\n### Ratios llama.cpp / Refrain, geometric mean (least)\n");
    let names: Vec<&str> = results.files.iter().map(|file| file.name.as_str()).collect();
    put!(out, "| group | {} | all files |", names.join(" | "));
    put!(out, "| --- |{}", " --- |".repeat(names.len() + 1));
    for group in Group::all() {
        let by_file: Vec<Vec<f64>> = results.files.iter().map(|file| group.ratios(file)).collect();
        let all = by_file.concat();
        let cells: Vec<String> = by_file.iter().chain([&all]).map(|ratios| format_group(ratios)).collect();
        put!(out, "| {} | {} |", group.name, cells.join(" | "));
    }
}

fn shares(results: &Results, out: &mut String) {
    let machine = &results.machine;
    put!(out, "\n### Shares of the machine's limits, cost of rows, memory\n");
    put!(
        out,
        "| file | | of read bandwidth, one row | of int8 peak, 32 rows | 8 rows / 1 row | 16 rows / 1 row | peak memory / file, \
         context 2048 | 8 rows / 1 row, context {LONG_CONTEXT} | 16 rows / 1 row, context {LONG_CONTEXT} |"
    );
    put!(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for file in &results.files {
        for side in SIDES {
            let percent =
                |share: Option<f64>| share.map_or("–".to_owned(), |s| format!("{:.0} %", 100.0 * s));
            put!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                file.name,
                side.name(),
                percent(file.bandwidth_share(side, machine)),
                percent(file.int8_share(side, 32, machine)),
                format_number(file.rows_over_one(side, 8), 2),
                format_number(file.rows_over_one(side, 16), 2),
                memory(file, side),
                format_number(file.long_rows_over_one(side, 8), 2),
                format_number(file.long_rows_over_one(side, 16), 2)
            );
        }
    }
}

fn memory(file: &FileResults, side: Side) -> String {
    let engines = file.memory.iter().map(|memory| memory.engine).filter(|name| name.starts_with(side.name()));
    let figures: Vec<String> = engines
        .map(|engine| {
            let detail = engine.strip_prefix(side.name()).unwrap_or_default();
            format!("{}{detail}", format_number(file.memory_over_file(engine), 2))
        })
        .collect();
    if figures.is_empty() { "–".to_owned() } else { figures.join("; ") }
}

/// Two decimals below 10 ms, one below 100 ms, none from there on.
fn format_ms(ms: Option<f64>) -> String {
    match ms {
        Some(ms) if ms >= 100.0 => format!("{ms:.0}"),
        Some(ms) if ms >= 10.0 => format!("{ms:.1}"),
        other => format_number(other, 2),
    }
}

fn format_number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

fn format_group(ratios: &[f64]) -> String {
    match ratios.iter().copied().reduce(f64::min) {
        Some(least) => format!("{:.2} ({least:.2})", geometric_mean(ratios.iter().copied())),
        None => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn tables_are_rectangular_and_hold_the_figures() {
        let text = markdown(&sample());
        for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
            let widths: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(widths.iter().all(|&width| width == widths[0]), "{widths:?} in\n{table}");
        }
        assert!(
            text.contains("| sample | llama.cpp | 20.0 | 20.0 | 20.0 | 20.0 | 30.0 | 50.0 | 90.0 |"),
            "{text}"
        );
        assert!(
            text.contains("| decode, one row, contexts 0, 1024, 4096 | 2.00 (2.00) | 2.00 (2.00) |"),
            "{text}"
        );
        assert!(text.contains("| sample | refrain | 50 % | 22 % |"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let mut results = sample();
        results.files[0].cells.retain(|results| results.cell == Cell::Prefill { len: PREFILL_LEN });
        results.files[0].cells[0].times.truncate(1);
        let text = markdown(&results);
        assert!(text.contains("| sample | llama.cpp | – |"), "{text}");
        assert!(!text.contains("decode, ctx 0"), "{text}");
    }
}
