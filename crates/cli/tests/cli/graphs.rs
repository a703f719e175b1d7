//! `refrain model graphs`, and the use of its folders by other commands.

use std::fs;

use serde_json::Value;

use crate::support::{arg, model, refrain, repository};

#[test]
fn graphs_answer_as_their_model_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("graphs");
    let source = model();
    let cut =
        ["model", "graphs", arg(&source), arg(&folder), "--blocks", "2", "--prefill", "64", "--verify", "16"];
    let line = refrain(&cut).done();
    assert!(line.contains("2 blocks for 64 and 16 rows") && line.contains("to load"), "{line}");
    assert!(folder.join("times.json").exists());

    let notes = repository("fixtures/notes");
    let run = |model: &str, more: &[&str]| {
        let mut args = vec!["ask", "--model", model, "--context", arg(&notes), "--max-tokens", "24"];
        args.extend(more);
        args.push("Who comes along on the trip to Aniarda?");
        refrain(&args)
    };
    let expected = run(arg(&model()), &[]).done();
    assert!(!expected.trim().is_empty());
    assert_eq!(run(arg(&folder), &[]).done(), expected);
    let refused = run(arg(&folder), &["--graph-memory", "1000"]).refused(2);
    assert!(refused.contains("the limit is 1000") && refused.contains("--graph-memory"), "{refused}");

    let inspected = refrain(&["model", "inspect", "--json", arg(&folder)]).done();
    let [graphs, source]: [Value; 2] =
        [inspected, refrain(&["model", "inspect", "--json", arg(&model())]).done()]
            .map(|text| serde_json::from_str(&text).unwrap());
    assert!(graphs["format"].as_str().unwrap().starts_with("static graphs: 2 blocks"), "{graphs}");
    for field in ["name", "architecture", "config", "parameters", "tokenizer", "unsupported"] {
        assert_eq!(graphs[field], source[field], "{field}");
    }

    // An existing folder stays as it is, and a damaged file is named.
    let again = refrain(&cut).refused(2);
    assert!(again.contains("exists"), "{again}");
    let file = folder.join("block-001-verify.refrain");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let damaged = run(arg(&folder), &[]).refused(3);
    assert!(damaged.contains("block-001-verify") && damaged.contains("damaged"), "{damaged}");
}
