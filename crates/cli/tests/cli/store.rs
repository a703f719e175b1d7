//! `refrain store`.

use std::fs;

use serde_json::Value;

use crate::support::{arg, refrain};

const QUESTION: &str = "Who takes care of the repair of the car?";

#[test]
fn the_store_is_shown_by_kind_and_by_note() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let (notes, index, store) = (path("notes"), path("index"), path("store"));
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("car.md"), "# Car\n\nQulittus Works takes care of the repair of the car.\n")
        .unwrap();
    refrain(&["index", "add", arg(&notes), "--index", arg(&index)]).done();
    let folders = ["--store", arg(&store), "--notes", arg(&index)];
    let ask = ["ask", QUESTION, "--threads", "1", "--max-tokens", "24"];
    // A prompt is kept when it comes again.
    (0..2).for_each(|_| drop(refrain(&[&ask[..], &folders].concat()).done()));

    let show = |more: &[&str]| refrain(&[&["store"], &folders[..], more].concat());
    let json: Value = serde_json::from_str(&show(&["--json"]).done()).unwrap();
    let kind = |name: &str| {
        let kinds = json["kinds"].as_array().unwrap();
        kinds.iter().find(|kind| kind["kind"] == name).unwrap().clone()
    };
    assert_eq!(kind("answers")["n"], 2, "{json}");
    assert!(kind("prefix_tokens")["n"].as_u64().unwrap() > 0 && kind("prefix_tokens")["oldest"].is_u64());
    assert_eq!((&kind("typed_lines")["n"], &kind("typed_lines")["bytes"]), (&0.into(), &0.into()));
    assert!(json["by_note"][0]["path"].as_str().unwrap().ends_with("car.md"), "{json}");
    assert!(json["bytes"].as_u64().unwrap() > kind("prefix_tokens")["bytes"].as_u64().unwrap());
    let max = json["prefix_bytes_max"].as_u64().unwrap();
    assert!((1..=1 << 30).contains(&max), "{max}");
    let text = show(&[]).done();
    for part in ["answers", "computed prompts", " tokens", "the oldest of 2", "car.md", "all "] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }

    let forget = ["forget", "--all", "--store", arg(&store)];
    refrain(&forget).done();
    let json: Value = serde_json::from_str(&show(&["--json"]).done()).unwrap();
    assert!(json["by_note"].as_array().unwrap().is_empty(), "{json}");
}

#[test]
fn what_is_no_store_is_left_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("nowhere");
    assert!(refrain(&["store", "--store", arg(&nowhere)]).refused(3).contains("--store"));
    refrain(&["store", "--store", arg(place.path())]).done();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert!(refrain(&["store"]).refused(2).contains("--store"), "there is no home");
}
