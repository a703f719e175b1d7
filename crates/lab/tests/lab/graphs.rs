//! The comparison of ways to switch graphs: on the small model, and from given times.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::schedule::SwitchTimes;
use refrain::{Engine, EngineOptions};
use refrain_bench::BenchError;
use refrain_bench::graphs::{measured, simulated, write};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

#[test]
fn given_times_are_simulated() {
    let times = SwitchTimes::read(&fixture("graph_times/phone.json")).unwrap();
    assert!(times.label.starts_with("made up"), "nobody has measured these: {}", times.label);
    let report = simulated(&times, 1024);
    let ms = |name| report.ways.iter().find(|way| way.name == name).unwrap().simulated_ms;
    // Four chunks in six blocks of 52 ms, a little more behind a context; then six loads of 100 ms.
    assert!((1248.0..1300.0).contains(&report.prefill_simulated_ms), "{}", report.prefill_simulated_ms);
    assert!((ms("synchronous") - report.prefill_simulated_ms - 600.0).abs() < 1.0);
    assert!(ms("progressive") < ms("asynchronous") && ms("asynchronous") < ms("synchronous"));
    let table = write(&report);
    assert!(table.contains("| progressive |") && !table.contains("memory"), "{table}");
}

#[test]
fn a_model_of_graphs_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    let source = Checkpoint::open(fixture("target.gguf")).unwrap();
    write_graphs(&source, &path, 2, 32, 8, LoadOptions::default()).unwrap();
    let engine = Engine::open(&path, EngineOptions::default()).unwrap();
    let report = measured(&engine, 96, 2, |_, _| {}).unwrap();
    assert_eq!(
        report.ways.iter().map(|way| way.name).collect::<Vec<_>>(),
        ["synchronous", "asynchronous", "progressive", "exact"]
    );
    for way in &report.ways {
        assert_eq!(way.measured_ms.len(), 2, "{}", way.name);
        assert!(way.measured_ms[0] <= way.measured_ms[1] && way.median_ms().unwrap() > 0.0);
    }
    let memory = report.memory.unwrap();
    assert!(memory.peak_bytes > 0 && memory.peak_bytes <= memory.limit_bytes);
    assert!(write(&report).contains("at most"));
    let resident = Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap();
    assert!(matches!(measured(&resident, 96, 2, |_, _| {}), Err(BenchError::NoGraphs)));
}
