//! Named pipes where a file is expected: refused at once for models and what belongs to them, read where texts are read.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use crate::support::{arg, model, refrain};

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn models_and_their_files_are_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["m.gguf", "m.refrain", "m.safetensors", "other"];
    let paths = names.map(|name| folder.path().join(name));
    paths.iter().for_each(|path| pipe(path));
    let [gguf, packed, safetensors, other] = paths.each_ref().map(|path| arg(path));
    let (out, model) = (folder.path().join("out"), model());
    let (out, model) = (arg(&out), arg(&model));
    let cases: [&[&str]; 12] = [
        &["model", "inspect", gguf],
        &["model", "inspect", packed],
        &["model", "inspect", safetensors],
        &["model", "inspect", other],
        &["run", "--model", gguf, "hi"],
        &["run", "--model", packed, "hi"],
        &["run", "--model", other, "hi"],
        &["model", "score", gguf, "--text", "hi"],
        &["model", "pack", gguf, out],
        &["model", "pack", model, packed],
        &["run", "--draft", gguf, "hi"],
        &["run", "--pruning", other, "hi"],
    ];
    for case in cases {
        let ran = refrain(case);
        assert!(matches!(ran.code, Some(2 | 3)), "{case:?}: {ran:?}");
        assert!(ran.stderr.contains("named pipe") || ran.stderr.contains("neither"), "{case:?}: {ran:?}");
    }
}

#[test]
fn texts_may_come_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grammar");
    pipe(&path);
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::write(path, r#"{"const": "from a pipe"}"#).unwrap())
    };
    let answer = refrain(&["run", "--stats", "off", "--max-tokens", "20", "--json-schema", arg(&path), "hi"]);
    writer.join().unwrap();
    assert_eq!(answer.done().trim(), r#""from a pipe""#);
}
