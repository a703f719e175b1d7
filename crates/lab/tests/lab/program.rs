//! The program `refrain-bench`.

#![cfg(feature = "program")]

use std::fs;
use std::path::{Path, PathBuf};

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain_program::testing::{Ran, arg, repository, run};
use serde_json::{Value, json};

fn bench(args: &[&str]) -> Ran {
    run(env!("CARGO_BIN_EXE_refrain-bench"), args, b"")
}

/// Two rows of one session and one row without a session, from two subtasks.
fn rows(folder: &Path) -> PathBuf {
    let note = "The train to Aniarda leaves at 08:15 from platform 4, and the ferry back at noon.";
    let row = |id: &str, subtask: &str, session: Option<&str>, response: &str| {
        json!({
            "id": id, "task": "summary", "subtask": subtask, "session": session,
            "prompt": format!("Summarise.\n{note}"), "context": [note], "response": response,
        })
    };
    let text = [
        row("1", "trip <one>", Some("s"), "The train to Aniarda leaves at 08:15 from platform 4."),
        row("2", "trip <one>", Some("s"), "It leaves from platform 4, and the ferry back leaves at noon."),
        row("3", "alone", None, "Trains and ferries."),
    ];
    let path = folder.join("rows.jsonl");
    fs::write(&path, text.map(|row| row.to_string()).join("\n")).unwrap();
    path
}

#[test]
fn a_replay_gives_tables_a_file_of_cells_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("costs.json"), "[[1, 1000], [8, 1500], [32, 4000]]").unwrap();
    let rows = rows(folder.path());
    let shown = bench(&[
        "replay",
        arg(&rows),
        "--rows",
        "8,16",
        "--profile",
        arg(&file("costs.json")),
        "--csv",
        arg(&file("cells.csv")),
        "--html",
        arg(&file("page.html")),
    ])
    .done();
    for part in
        ["### 8 rows, sources: passages", "### 16 rows", "sam-recycle", "always-wrong", "Refrain by subtask"]
    {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }

    let cells = fs::read_to_string(file("cells.csv")).unwrap();
    let mut lines = cells.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |name: &str| head.iter().position(|&column| column == name).unwrap();
    let (strategy, acceptance, n_tokens) =
        (column("strategy"), column("acceptance_length"), column("tokens"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2 * 2 * 11, "subtasks × budgets × strategies");
    let value = |name: &str, column: usize| -> f64 {
        lines.iter().find(|line| line[1] == "trip <one>" && line[strategy] == name).unwrap()[column]
            .parse()
            .unwrap()
    };
    assert_eq!(value("plain", acceptance), 1.0);
    assert_eq!(value("always-wrong", acceptance), 1.0);
    assert!(
        value("refrain", acceptance) > 1.5
            && value("always-right", acceptance) > value("refrain", acceptance)
    );
    let tokens_of = |subtask: &str| {
        let of_subtask = lines.iter().filter(|line| line[1] == subtask).map(|line| line[n_tokens]);
        of_subtask.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(tokens_of("trip <one>").len(), 1, "every strategy commits the recorded tokens");

    let page = fs::read_to_string(file("page.html")).unwrap();
    assert!(page.contains("<table>"));
    assert!(page.contains("trip &lt;one&gt;") && !page.contains("trip <one>"), "rows cannot become markup");
    assert!(
        page.contains("data-r=")
            && !page.contains("src=")
            && !page.contains("href=")
            && !page.contains("<script")
    );
}

#[test]
fn published_ids_replay_with_their_recorded_drafters() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    // The answer repeats the prompt's second half. The head knows one token in three, the rule nothing.
    let response: Vec<u32> = (1050..1100).chain(2000..2012).collect();
    let eagle: Vec<u32> = (0..response.len()).map(|i| if i % 3 == 1 { 2 } else { 1 }).collect();
    let line = json!({
        "id": "7", "prompt_token_ids": (1000..1100).collect::<Vec<u32>>(), "generated_token_ids": response,
        "acc_eagle": {"acc_len": eagle}, "acc_ngram": {"acc_len": vec![1; response.len()]},
    });
    fs::write(file("combined_copies.jsonl"), line.to_string()).unwrap();
    let rows = file("rows.jsonl");
    let import = |format: &str, from: &str| bench(&["import", format, arg(&file(from)), "-o", arg(&rows)]);
    let shown = import("specdecode-bench", "combined_copies.jsonl").done();
    assert!(shown.contains("1 rows in "), "{shown}");

    let strategies = "refrain,refrain-eagle,recorded-eagle,recorded-ngram,recorded-best,plain";
    let replay = ["replay", arg(&rows), "--rows", "16", "--strategy", strategies];
    let shown = bench(&[&replay[..], &["--csv", arg(&file("cells.csv"))]].concat()).done();
    assert!(shown.contains("token ids below 2012"), "{shown}");
    let cells = fs::read_to_string(file("cells.csv")).unwrap();
    let per_step = column(&cells, "acceptance_length");
    let of = |strategy: &str| per_step[strategy].parse::<f64>().unwrap();
    assert_eq!((of("plain"), of("recorded-ngram")), (1.0, 1.0));
    assert!(of("recorded-eagle") > 1.2 && of("recorded-best") == of("recorded-eagle"), "{cells}");
    assert!(of("refrain") > 2.0 && of("refrain-eagle") > 2.0, "{cells}");

    let floor = bench(&["floor", arg(&rows), "--threads", "1"]).done();
    assert!(floor.contains(" of 8 subtasks by machine"), "{floor}");
    let page = bench(&[&replay[..], &["--html", arg(&file("page.html"))]].concat()).refused(2);
    assert!(page.contains("--tokenizer"), "{page}");
    let answered = bench(&["ablate", arg(&rows), "--threads", "1"]).refused(3);
    assert!(answered.contains("row 7 has no text"), "{answered}");

    let error = import("canitedit", "combined_copies.jsonl").refused(3);
    assert!(error.contains("combined_copies.jsonl, line 1: missing field `before`"), "{error}");
    assert!(fs::read_to_string(&rows).unwrap().contains("combined_copies"), "the rows before stay");
    let edit = json!({
        "id": 1, "before": "a = 1", "after": "b = 1",
        "instruction_descriptive": "Rename a to b.", "instruction_lazy": "a to b",
    });
    fs::write(file("test.jsonl"), edit.to_string()).unwrap();
    assert!(import("canitedit", "test.jsonl").done().contains("2 rows in "));
    let none = bench(&["replay", arg(&rows), "--strategy", "refrain-eagle"]).refused(2);
    assert!(none.contains("specdecode-bench"), "{none}");
}

#[test]
fn a_simulated_fleet_has_a_line_for_every_number_of_workers_and_delay() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(folder.path());
    let shown = bench(&["fleet", arg(&rows), "--workers", "1,3", "--delays", "0,60"]).done();
    assert!(shown.contains("- 2 rows of sessions"), "{shown}");
    for line in ["| 1 | 0 s |", "| 1 | 1 min |", "| 3 | 0 s |", "| 3 | 1 min |"] {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
}

#[test]
fn the_floor_has_a_line_for_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, costs) = (rows(folder.path()), folder.path().join("costs.json"));
    let shown = bench(&["floor", arg(&rows), "--threads", "1"]).done();
    assert!(
        shown.contains("| fixture target, Zen 4 |") && shown.contains(" of 16 subtasks by machine"),
        "{shown}"
    );
    fs::write(&costs, "[[1, 1e9], [32, 2e9]]").unwrap();
    let shown = bench(&["floor", arg(&rows), "--profile", arg(&costs)]).done();
    assert!(shown.contains("costs.json |") && shown.contains(" of 2 subtasks by machine"), "{shown}");
    // A step takes 1000 s, so the time of drafting does not show, and a copied sentence pays.
    assert!(!shown.contains("costs.json | **"), "{shown}");
    let refused = bench(&["floor", arg(&rows), "--profile", arg(&rows)]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);

    let target = repository("fixtures/target.gguf");
    let through = ["floor", arg(&rows), "--model", arg(&target), "--threads", "1", "--turns", "4"];
    let shown = bench(&through).done();
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("---") && !line.contains("with the prompt"))
        .map(|line| line.split(" | ").collect())
        .collect();
    assert_eq!(lines.len(), 2, "a response of each subtask: {shown}");
    assert!(lines.iter().all(|line| line[3] == "4"), "{shown}");
    let refused = bench(&[&through[..], &["--unpaid"]].concat()).refused(2);
    assert!(refused.contains("--unpaid"), "{refused}");
    let refused = bench(&["floor", arg(&rows), "--turns", "3", "--model", arg(&target)]).refused(2);
    assert!(refused.contains("from 4 to 1000"), "{refused}");
}

#[test]
fn a_replay_through_a_model_follows_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("cells.csv");
    let shown = bench(&[
        "replay",
        arg(&rows(folder.path())),
        "--model",
        arg(&repository("fixtures/target.gguf")),
        "--threads",
        "1",
        "--strategy",
        "refrain,plain,suffix,always-right,always-wrong",
        "--csv",
        arg(&csv),
    ])
    .done();
    assert!(shown.contains("speed over plain") && shown.contains("| all | refrain |"), "{shown}");
    let cells = fs::read_to_string(&csv).unwrap();
    let steps = |strategy: &str| -> usize {
        let lines = cells.lines().map(|line| line.split(',').collect::<Vec<_>>());
        lines.filter(|line| line[2] == strategy).map(|line| line[5].parse::<usize>().unwrap()).sum()
    };
    assert_eq!(steps("always-wrong"), steps("plain"));
    assert!(steps("always-right") < steps("suffix") && steps("suffix") < steps("plain"), "{cells}");
}

/// The column of a file of cells, by strategy.
fn column<'a>(cells: &'a str, name: &str) -> std::collections::BTreeMap<&'a str, &'a str> {
    let mut lines = cells.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let place = |name: &str| head.iter().position(|&column| column == name).unwrap();
    let (strategy, wanted) = (place("strategy"), place(name));
    lines.map(|line| (line[strategy], line[wanted])).collect()
}

#[test]
fn a_recorded_trace_replays_every_rule_with_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let rows = rows(folder.path());
    let traces = file("traces");
    let record = ["trace", arg(&rows), "--out", arg(&traces), "--threads", "1"];
    let limits = ["--rows", "8", "--max-tokens", "20", "--task-rows", "2"];
    let shown = bench(&[&record[..], &limits].concat()).done();
    assert!(shown.contains("| summary | 2 | 0 |"), "{shown}");
    let trace = traces.join("summary.trace");
    // A trace has the user's text.
    #[cfg(unix)]
    for (path, mode) in [(&traces, 0o700), (&trace, 0o600)] {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{path:?}");
    }

    let replay = |rows: &str, csv: &str, more: &[&str]| {
        let cells = file(csv);
        let args = ["replay", "--trace", arg(&trace), "--rows", rows, "--csv", arg(&cells)];
        bench(&[&args[..], more].concat())
    };
    let page = file("page.html");
    let shown = replay("8", "8.csv", &["--explain", "--html", arg(&page)]).done();
    assert!(shown.contains("Every row of every tree is in the trace."), "{shown}");
    assert!(shown.contains("Why steps ended") && shown.contains("| under-weighted |"), "{shown}");
    assert!(fs::read_to_string(&page).unwrap().contains("<th>under-weighted</th>"));
    let cells = fs::read_to_string(file("8.csv")).unwrap();
    let tokens = column(&cells, "tokens");
    for rule in
        ["refrain", "retrieval", "recycle-logits", "sam-recycle-logits", "racer", "logitspec", "sam-coordgen"]
    {
        assert_eq!(tokens[rule], tokens["plain"], "{rule} commits the answer");
    }
    let accepted = column(&cells, "accepted");
    assert!(accepted["recycle-logits"].parse::<usize>().unwrap() > 0, "{cells}");
    replay("8", "unexplained.csv", &["--strategy", "refrain"]).done();
    let unexplained = fs::read_to_string(file("unexplained.csv")).unwrap();
    let by_len = |cells| column(cells, "steps_by_len")["refrain"].to_owned();
    assert_eq!(by_len(&unexplained), by_len(&cells), "explaining changes no draft");
    // Larger batches have rows that nobody computed.
    let shown = replay("24", "24.csv", &[]).done();
    assert!(shown.contains("Rows of trees that are not in the trace: "), "{shown}");
    let oracles = ["oracle-anchored", "oracle-jump", "oracle-pairs", "oracle-tokens"];
    replay("8", "oracles.csv", &["--strategy", &oracles.join(",")]).done();
    let cells = fs::read_to_string(file("oracles.csv")).unwrap();
    let steps = column(&cells, "steps");
    let [anchored, jump, pairs, tokens] = oracles.map(|oracle| steps[oracle].parse::<usize>().unwrap());
    assert!(anchored >= jump.max(pairs) && jump.min(pairs) >= tokens, "{cells}");

    let mut bytes = fs::read(&trace).unwrap();
    bytes[100] ^= 4;
    fs::write(&trace, bytes).unwrap();
    let refused = replay("8", "8.csv", &[]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("summary.trace: the checksum"), "{}", refused.stderr);
    let refused = bench(&["replay", arg(&rows), "--strategy", "racer"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("refrain-bench trace"), "{}", refused.stderr);
}

#[test]
fn a_model_can_be_replayed_with_another_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let replay = |tokenizer: &std::path::Path| {
        let (rows, model) = (rows(folder.path()), repository("fixtures/target.gguf"));
        let files = ["replay", arg(&rows), "--model", arg(&model), "--tokenizer", arg(tokenizer)];
        bench(&[&files[..], &["--strategy", "plain", "--threads", "1"]].concat())
    };
    let same = replay(&repository("fixtures/draft.gguf")).done();
    assert!(same.contains("tokenizer: ") && same.contains("| all | plain |"), "{same}");
    let too_many = folder.path().join("tokenizer.json");
    // The 256 bytes in the spelling of byte-level BPE, and one more token.
    let mut others = 256..;
    let spelling = |byte: u32| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from_u32(byte),
        _ => others.next().and_then(char::from_u32),
    };
    let bytes = (0..256).filter_map(spelling).map(String::from);
    let tokens = bytes.chain((256..2049).map(|id| format!("token {id}")));
    let vocab: serde_json::Map<_, _> = tokens.zip(0..).map(|(token, id)| (token, id.into())).collect();
    let step =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let model = json!({"type": "BPE", "vocab": vocab, "merges": []});
    let json = json!({"added_tokens": [], "pre_tokenizer": step, "decoder": step, "model": model});
    fs::write(&too_many, json.to_string()).unwrap();
    let refused = replay(&too_many);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("2049 tokens, the model has 2048"), "{}", refused.stderr);
}

#[test]
fn an_ablation_has_every_task_and_every_part() {
    let rows = repository("fixtures/rows.jsonl");
    let args = ["ablate", arg(&rows), "--task-rows", "2", "--max-tokens", "40", "--free-rows"];
    let shown = bench(&args).done();
    let line = |start: &str| {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{start} in {shown}")).split('|').map(str::trim).collect::<Vec<_>>()
    };
    for task in ["summarize", "answer", "ui", "reply", "all"] {
        let cells = line(&format!("| {task} |"));
        let lens: Vec<f64> =
            cells[4..12].iter().map(|cell| cell.split(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(lens[0], 1.0, "plain decoding: {cells:?}");
        assert!(lens[1..].iter().all(|&len| len >= 1.0) && lens[7] > 1.1, "{cells:?}");
    }
    let sources = line("| + calibration in context + reuse |");
    assert_eq!(sources.len(), line("| context |").len());
    for part in
        ["calibration", "reuse", "history", "missing | synonym | redundant", "calibration µs per token"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let named = bench(&[&args[..], &["--arm", "+ history + echo + reuse,context"]].concat()).done();
    assert!(
        named.contains("| task | rows | tokens | plain | context | + history + echo + reuse |\n"),
        "{named}"
    );
    let unknown = bench(&[&args[..], &["--arm", "context,everything"]].concat());
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.stderr.contains("`everything`") && unknown.stderr.contains("sam, context"),
        "{}",
        unknown.stderr
    );
    assert_eq!(bench(&["ablate", arg(&rows), "--rows", "0"]).code, Some(2));
    assert_eq!(bench(&["ablate", arg(&rows), "--reuse-threshold", "7"]).code, Some(2));
}

#[test]
fn tuning_writes_constants_and_reports_on_rows_that_took_no_part() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("fitted.rs");
    let shown = bench(&["tune", arg(&rows(folder.path())), "--out", arg(&out)]).done();
    assert!(shown.contains("as shipped") && shown.contains("odd rows, which took no part"), "{shown}");
    let written = fs::read_to_string(&out).unwrap();
    assert!(written.contains("3 rows") && written.contains("MATCHED_PERMILLE"), "{written}");
}

#[test]
fn what_cannot_be_replayed_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.jsonl");
    fs::write(&bad, "{\"id\": 1}\n").unwrap();
    let refused = bench(&["replay", arg(&bad)]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("bad.jsonl, line 1"), "{}", refused.stderr);
    let rows = rows(folder.path());
    let refused = bench(&["replay", arg(&rows), "--profile", arg(&bad)]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    let refused = bench(&["replay", arg(&rows), "--rows", "0"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}

#[test]
fn switching_is_measured_and_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("graphs");
    let model = repository("fixtures/target.gguf");
    let checkpoint = Checkpoint::open(&model).unwrap();
    write_graphs(&checkpoint, &folder, 2, 32, 8, LoadOptions::default()).unwrap();
    let report = bench(&["graphs", arg(&folder), "--tokens", "64", "--rounds", "2", "--json"]).done();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["ways"][2]["name"], "progressive");
    assert_eq!(report["ways"][2]["measured_ms"].as_array().unwrap().len(), 2);
    assert!(
        report["memory"]["peak_bytes"].as_u64().unwrap() <= report["memory"]["limit_bytes"].as_u64().unwrap()
    );

    let times = repository("fixtures/graph_times/phone.json");
    let table = bench(&["graphs", "--times", arg(&times)]).done();
    assert!(table.starts_with("made up") && table.contains("| synchronous | 0 |"), "{table}");
    bench(&["graphs", "--times", arg(&model)]).refused(3);
    bench(&["graphs"]).refused(2);
}

#[test]
fn the_parts_of_pruning_are_compared_in_one_run() {
    let rows = repository("fixtures/rows.jsonl");
    let args = ["ablate", arg(&rows), "--pruning", "fixture", "--task-rows", "2", "--free-rows"];
    let shown = bench(&[&args[..], &["--max-tokens", "32", "--rows", "32"]].concat()).done();
    for arm in ["whole drafts", "pruned", "pruned, no shadow tokens", "pruned, no safeguards"] {
        assert!(shown.contains(&format!("| {arm} |")), "{arm} in {shown}");
    }
    let model = repository("fixtures/target.gguf");
    let args = ["pruning", arg(&model), "--threads", "1", "--rounds", "2", "--context", "32"];
    let shown = bench(&[&args[..], &["--rows", "8,16"]].concat()).done();
    assert!(shown.contains("| 16 | 8 |"), "{shown}");
    let refused = bench(&[&args[..], &["--layer", "6"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}

/// The fixture model, packed.
fn packed() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    let checkpoint = Checkpoint::open(repository("fixtures/target.gguf")).unwrap();
    pack(&checkpoint, &path, LoadOptions::default()).unwrap();
    (dir, path)
}

#[test]
fn streaming_is_measured_beside_the_disk() {
    let (_dir, path) = packed();
    let args = ["stream", arg(&path), "--tokens", "4", "--rounds", "2", "--pinned", "0,50,100"];
    let table = bench(&args).done();
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains(" % |")).count();
    assert_eq!(rows, 3, "{table}");
    let json: Value = serde_json::from_str(&bench(&[&args[..], &["--json"]].concat()).done()).unwrap();
    assert_eq!(json["shares"][0]["rounds"].as_array().unwrap().len(), 2);
    assert_eq!(json["shares"][2]["pass_bytes"], 0);
    assert!(json["shares"][0]["rounds"][0]["sequential"].as_f64().unwrap() > 0.0);
}

#[test]
fn drafting_is_measured_where_the_model_comes_from_flash() {
    let (_dir, path) = packed();
    let rows = repository("fixtures/rows.jsonl");
    let args =
        ["stream", arg(&path), "--replay", arg(&rows), "--flash-bandwidth", "100MB", "--task-rows", "1"];
    let args = [&args[..], &["--pinned", "0,100", "--lengths", "8,24", "--draft", "fixture", "--rows", "8"]]
        .concat();
    let cells: Vec<Value> = serde_json::from_str(&bench(&[&args[..], &["--json"]].concat()).done()).unwrap();
    assert_eq!(cells.len(), 2 * 2 * 6, "{cells:?}");
    for cell in &cells {
        assert!(cell["n_rows"].as_u64().unwrap() > 0 && cell["speed_up"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["acceptance_length"].as_f64().unwrap() >= 1.0, "{cell}");
    }
    let table = bench(&[&args[..], &["--strategy", "refrain"]].concat()).done();
    assert_eq!(table.lines().filter(|line| line.contains("| refrain |")).count(), 4, "{table}");
    assert!(table.contains("a slowed reader models a disk of 100 MB/s"), "{table}");
    let whole = ["stream", arg(&path), "--replay", arg(&rows), "--task-rows", "1", "--pinned", "50"];
    assert_eq!(
        bench(&whole)
            .done()
            .lines()
            .filter(|line| line.starts_with("| 50 % | whole | refrain | 4 |"))
            .count(),
        1
    );
    let without = ["stream", arg(&path), "--replay", arg(&rows), "--strategy", "chain:8"];
    assert!(bench(&without).refused(2).contains("--draft"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_budget_is_kept_while_memory_is_asked_back() {
    let (_dir, path) = packed();
    let args = ["pressure", arg(&path), "--memory", "0", "--seconds", "2", "--reports", "100"];
    let ran = bench(&[&args[..], &["--tokens", "12", "--json"]].concat());
    let json: Value = serde_json::from_str(ran.stdout.trim()).unwrap_or_else(|_| panic!("{ran:?}"));
    // A busy machine answers fewer reports.
    assert!(json["n_reports"].as_u64().unwrap() > 50 && json["n_answered"].as_u64().unwrap() > 10, "{json}");
    assert!(
        json["n_answers"].as_u64().unwrap() > 2 && json["peak_bytes"].as_u64().unwrap() > 1 << 20,
        "{json}"
    );
    // The exit code agrees with the report, for any size of this build's own pages.
    assert_eq!(ran.code == Some(0), json["is_within"].as_bool().unwrap(), "{json}");
    let fits = ["pressure", arg(&path), "--memory", "1GiB", "--seconds", "1"];
    assert!(bench(&fits).refused(2).contains("--memory"));
}

#[test]
fn the_ways_of_drafting_with_a_model_are_compared_in_one_run() {
    let rows = repository("fixtures/rows.jsonl");
    let args = ["ablate", arg(&rows), "--draft", "fixture", "--task-rows", "1", "--max-tokens", "24"];
    let shown = bench(&[&args[..], &["--free-rows"]].concat()).done();
    for part in
        ["| draft model |", "| + history + draft model |", "| chain:8 |", "| edgellm |", "| best-first |"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let model = repository("fixtures/target.gguf");
    let args = ["replay", arg(&rows), "--model", arg(&model), "--threads", "1", "--model-rows", "1"];
    for projection in ["on-demand", "eager"] {
        let strategies = ["--strategy", "refrain,retrieval,draft-model,chain:4", "--draft", "fixture"];
        let shown = bench(&[&args[..], &strategies, &["--projection", projection]].concat()).done();
        for strategy in ["refrain", "retrieval", "draft-model", "chain:4"] {
            assert!(shown.contains(&format!("| all | {strategy} |")), "{strategy} in {shown}");
        }
    }
    let refused = bench(&[&args[..], &["--strategy", "specinfer"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let refused = bench(&["replay", arg(&rows), "--strategy", "opt-tree"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}

#[cfg(unix)]
#[test]
fn a_tokenizer_is_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("tokenizer.json");
    let made = std::process::Command::new("mkfifo").arg(&json).status().unwrap();
    assert!(made.success());
    let refused = bench(&["replay", "--tokenizer", arg(&json), arg(&repository("fixtures/rows.jsonl"))]);
    assert!(refused.refused(3).contains("named pipe"));
}
