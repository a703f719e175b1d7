//! A GGUF file that does not name its pre-tokenizer is refused by every command, until the user names it.

use std::fs;

use crate::support::{arg, model, refrain};

const INPUT: i32 = 3;

#[test]
fn a_file_without_a_pre_tokenizer_needs_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, packed) = (folder.path().join("m.gguf"), folder.path().join("m.refrain"));
    let mut bytes = fs::read(model()).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at + key.len() - 1] = b'x';
    fs::write(&path, bytes).unwrap();

    let file = arg(&path);
    for case in [
        &["run", "--model", file, "hi"][..],
        &["model", "score", file, "--text", "hi"],
        &["chat", "--model", file],
    ] {
        let message = refrain(case).refused(INPUT);
        assert!(
            message.contains("`tokenizer.ggml.pre` is missing") && message.contains("--pre-tokenizer"),
            "{message}"
        );
    }
    let shown = refrain(&["model", "inspect", file]).done();
    assert!(
        shown.contains("`tokenizer.ggml.pre` is missing") && shown.contains("--pre-tokenizer"),
        "{shown}"
    );

    let score = |args: &[&str]| {
        refrain(&[&["model", "score", "--text", "It's 12345 o'clock,  said the man."], args].concat()).done()
    };
    let expected = score(&[arg(&model())]);
    assert_eq!(score(&["--pre-tokenizer", PRE, file]), expected);
    assert_ne!(score(&["--pre-tokenizer", "default", file]), expected, "the name is of no effect");
    assert!(!refrain(&["model", "inspect", "--pre-tokenizer", PRE, file]).done().contains("is missing"));
    assert!(
        refrain(&["run", "--pre-tokenizer", "gpt-9", "--model", file, "hi"]).refused(INPUT).contains("gpt-9")
    );
    // A packed file keeps the name.
    refrain(&["model", "pack", "--pre-tokenizer", PRE, file, arg(&packed)]).done();
    let of_packed = score(&[arg(&packed)]);
    assert_eq!(of_packed.lines().last(), expected.lines().last());
    // A file that names one keeps it.
    assert_eq!(score(&["--pre-tokenizer", "default", arg(&model())]), expected);
}

/// The pre-tokenizer of the fixture model.
const PRE: &str = "qwen2";
