//! `refrain model pack`, and the use of its files by other commands.

use std::fs;

use serde_json::Value;

use crate::support::{arg, model, refrain, repository};

#[test]
fn a_packed_model_works_wherever_its_source_does() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("target.refrain");
    let line = refrain(&["model", "pack", arg(&model()), arg(&out)]).done();
    assert!(line.contains("target.refrain") && line.contains("sections"), "{line}");

    let notes = repository("fixtures/notes");
    let run = |model: &str, more: &[&str]| {
        let mut args = vec!["ask", "--model", model, "--context", arg(&notes), "--max-tokens", "24"];
        args.extend(more);
        args.push("Who comes along on the trip to Aniarda?");
        refrain(&args).done()
    };
    let expected = run(arg(&model()), &[]);
    assert!(!expected.trim().is_empty());
    assert_eq!(run(arg(&out), &[]), expected);
    assert_eq!(run(arg(&out), &["--map"]), expected);

    let score = |model: &str| {
        refrain(&["model", "score", model, "--text", "The train leaves at noon.", "--json"]).done()
    };
    assert_eq!(score(arg(&out)), score(arg(&model())));

    let inspect = |path: &str, more: &[&str]| -> Value {
        let args = ["model", "inspect", "--json", path].iter().chain(more).copied().collect::<Vec<_>>();
        serde_json::from_str(&refrain(&args).done()).unwrap()
    };
    let (packed, source) = (inspect(arg(&out), &["--verify"]), inspect(arg(&model()), &[]));
    assert!(packed["format"].as_str().unwrap().starts_with("packed v2"), "{packed}");
    for field in ["name", "architecture", "config", "parameters", "tokenizer", "unsupported"] {
        assert_eq!(packed[field], source[field], "{field}");
    }
    assert!(packed["metadata"].to_string().contains("all verified"));
    assert!(!inspect(arg(&out), &[])["metadata"].to_string().contains("verified"));
    let text = refrain(&["model", "inspect", arg(&out)]).done();
    assert!(text.contains("nothing: this model runs") && text.contains("identity"), "{text}");
}

#[test]
fn packing_again_replaces_packed_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("target.refrain");
    let pack = |quantize: &str| -> Value {
        let ran = refrain(&["model", "pack", arg(&model()), arg(&out), "--quantize", quantize, "--json"]);
        serde_json::from_str(&ran.done()).unwrap()
    };
    let (first, second) = (pack("q8_0"), pack("none"));
    assert_eq!(first["file_bytes"].as_u64(), Some(fs::metadata(&out).unwrap().len()));
    // The fixture is quantised in its file, so both options leave it as it is.
    assert_eq!(first["identity"], second["identity"]);

    let notes = folder.path().join("notes.md");
    fs::write(&notes, "# Mine\n").unwrap();
    let message = refrain(&["model", "pack", arg(&model()), arg(&notes)]).refused(2);
    assert!(message.contains("notes.md"), "{message}");
    refrain(&["model", "pack", arg(&model()), arg(folder.path())]).refused(2);
    assert_eq!(fs::read_to_string(&notes).unwrap(), "# Mine\n");

    // A path that cannot be inspected is not free. (A link to itself cannot be opened by any user.)
    #[cfg(unix)]
    {
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let message = refrain(&["model", "pack", arg(&model()), arg(&circle)]).refused(2);
        assert!(message.contains("cannot be read"), "{message}");
        fs::remove_file(&circle).unwrap();
    }

    let message =
        refrain(&["model", "pack", arg(&out), arg(&folder.path().join("again.refrain"))]).refused(3);
    assert!(message.contains("packed already"), "{message}");
    let nowhere = folder.path().join("missing/target.refrain");
    let message = refrain(&["model", "pack", arg(&model()), arg(&nowhere)]).refused(1);
    assert!(message.contains("missing"), "{message}");
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["notes.md", "target.refrain"]);
}

#[test]
fn damage_is_refused_or_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("target.refrain");
    refrain(&["model", "pack", arg(&model()), arg(&out)]).done();
    let whole = fs::read(&out).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&out, bytes).unwrap();
    };
    with(&|bytes| bytes[100] ^= 1);
    let message = refrain(&["run", "--model", arg(&out), "hello"]).refused(3);
    assert!(message.contains("header is damaged"), "{message}");
    with(&|bytes| bytes[8] = 9);
    let message = refrain(&["model", "inspect", arg(&out)]).refused(3);
    assert!(message.contains("version 9") && message.contains("refrain model pack"), "{message}");
    with(&|bytes| bytes.truncate(bytes.len() - 1));
    refrain(&["model", "inspect", arg(&out)]).refused(3);
    // Only --verify reads all weights.
    with(&|bytes| *bytes.last_mut().unwrap() ^= 1);
    refrain(&["model", "inspect", arg(&out)]).done();
    let message = refrain(&["model", "inspect", "--verify", arg(&out)]).refused(3);
    assert!(message.contains("`output`") && message.contains("damaged"), "{message}");
    let message = refrain(&["model", "inspect", "--verify", arg(&model())]).refused(2);
    assert!(message.contains("checksums"), "{message}");
}
