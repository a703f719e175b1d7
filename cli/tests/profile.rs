//! `refrain profile`.

mod support;

use std::fs;

use serde_json::Value;
use support::{arg, model, refrain};

#[test]
fn a_profile_is_measured_shown_stored_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    fs::copy(model(), &file).unwrap();
    let shown = refrain(&["profile", arg(&file), "--contexts", "64,0,100000", "--threads", "1"]).done();
    assert!(
        shown.contains("context 0") && shown.contains("context 64") && shown.contains("projection"),
        "{shown}"
    );
    assert!(!shown.contains("100000"), "the model was not trained for that context:\n{shown}");

    let path = folder.path().join("m.gguf.profile.json");
    let profile: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(profile["key"]["n_threads"], 1);
    let contexts: Vec<_> =
        profile["verify"].as_array().unwrap().iter().map(|cost| cost["context"].as_u64()).collect();
    assert_eq!((contexts.first(), contexts.last()), (Some(&Some(0)), Some(&Some(64))));
    let svg = fs::read_to_string(folder.path().join("m.gguf.profile.svg")).unwrap();
    assert!(svg.contains("context 64") && svg.trim_end().ends_with("</svg>"));

    let args = ["run", "--model", arg(&file), "--threads", "1", "--max-tokens", "4", "--raw", "A note."];
    let used = refrain(&args);
    assert!(!used.stderr.contains("profile"), "{}", used.stderr);
    let with_profile = used.done();
    fs::write(&path, "{").unwrap();
    let left_aside = refrain(&args);
    assert!(left_aside.stderr.contains("the stored profile is left aside"), "{}", left_aside.stderr);
    assert_eq!(left_aside.done(), with_profile, "a profile changes no token");
}

#[test]
fn the_model_inside_is_measured_for_a_named_file_only() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none").join("p.json");
    let line = refrain(&["profile", "--contexts", "0", "--out", arg(&nowhere)]);
    assert_eq!(line.code, Some(3), "{}", line.stderr);
    assert!(line.stderr.contains("--out"), "{}", line.stderr);
}
