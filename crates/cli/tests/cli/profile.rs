//! `refrain model profile`.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::support::{arg, model, refrain};

#[test]
fn a_profile_is_measured_shown_stored_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    fs::copy(model(), &file).unwrap();
    let shown =
        refrain(&["model", "profile", arg(&file), "--contexts", "64,0,100000", "--threads", "1"]).done();
    assert!(
        shown.contains("context 0") && shown.contains("context 64") && shown.contains("projection"),
        "{shown}"
    );
    assert!(!shown.contains("100000"), "the model was not trained for that context:\n{shown}");
    let inspected = refrain(&["model", "inspect", "--json", arg(&file)]).done();
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    let longest = inspected["config"]["context_len"].as_u64().unwrap() - 64;

    let path = folder.path().join("m.gguf.profile.json");
    let profile: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(profile["key"]["n_threads"], 1);
    let contexts = profile["verify"].as_array().unwrap().iter().map(|cost| cost["context"].as_u64().unwrap());
    let contexts: BTreeSet<u64> = contexts.collect();
    assert_eq!(contexts, BTreeSet::from([0, 64, longest]));

    let args = ["run", "--model", arg(&file), "--threads", "1", "--max-tokens", "4", "--raw", "A note."];
    let used = refrain(&args);
    assert!(!used.stderr.contains("profile"), "{}", used.stderr);
    let with_profile = used.done();
    // Another KV type has other costs.
    let other_kv = refrain(&[&args[..], &["--kv", "f32"]].concat());
    assert!(other_kv.stderr.contains("KV type f16, here it is f32"), "{}", other_kv.stderr);
    other_kv.done();
    // Learnt values are stored beside the profile.
    let learned = folder.path().join("m.gguf.learned");
    let first = fs::read(&learned).unwrap();
    assert!(first.starts_with(b"refrain-learned 1 "));
    assert_eq!(refrain(&args).done(), with_profile, "learnt values change no token");
    assert!(fs::read(&learned).unwrap() != first, "the next run adds to it");
    fs::write(&learned, "damaged").unwrap();
    let damaged = refrain(&args);
    assert!(damaged.stderr.contains("learnt is left aside"), "{}", damaged.stderr);
    assert_eq!(damaged.done(), with_profile);
    assert_eq!(fs::read(&learned).unwrap(), b"damaged", "nothing is deleted unasked");

    fs::write(&path, "{").unwrap();
    let left_aside = refrain(&args);
    assert!(left_aside.stderr.contains("the stored profile is not used"), "{}", left_aside.stderr);
    assert_eq!(left_aside.done(), with_profile, "a profile changes no token");
}

#[test]
fn the_model_inside_is_measured_for_a_named_file_only() {
    let folder = tempfile::tempdir().unwrap();
    let shown = refrain(&["model", "profile", "--contexts", "0", "--threads", "1"]);
    assert!(shown.stderr.contains("--out"), "{}", shown.stderr);
    assert!(shown.done().contains("context 0"));
    let nowhere = folder.path().join("none").join("p.json");
    let line = refrain(&["model", "profile", "--contexts", "0", "--out", arg(&nowhere)]);
    assert_eq!(line.code, Some(3), "{}", line.stderr);
    assert!(line.stderr.contains("--out"), "{}", line.stderr);
}

#[test]
fn nothing_but_profiles_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let profile = |out: &str| {
        let (model, out) = (at("m.gguf"), at(out));
        refrain(&["model", "profile", arg(&model), "--contexts", "0", "--threads", "1", "--out", arg(&out)])
    };
    fs::copy(model(), at("m.gguf")).unwrap();
    fs::write(at("notes.txt"), "mine").unwrap();
    fs::write(at("list.json"), "[1]").unwrap();
    fs::create_dir(at("folder")).unwrap();
    for (out, named) in
        [("m.gguf", "m.gguf"), ("notes.txt", "notes.txt"), ("list.json", "list.json"), ("folder", "folder")]
    {
        let message = profile(out).refused(2);
        assert!(message.contains(named), "{out}: {message}");
    }
    assert!(fs::read(at("m.gguf")).unwrap() == fs::read(model()).unwrap());
    assert_eq!(fs::read_to_string(at("notes.txt")).unwrap(), "mine");

    // Files of `refrain model profile` are replaced, also those of another version.
    profile("p.json").done();
    fs::write(at("p.json"), "{\"version\": 1}").unwrap();
    profile("p.json").done();
    assert!(fs::read_to_string(at("p.json")).unwrap().contains("\"cpu\""));
}
