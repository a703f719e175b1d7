//! Named pipes, sockets, devices and folders in the place of files: each is refused by its kind, and nothing waits for it.
#![cfg(unix)]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::MachineProfile;
use refrain::drafting::Predictor;
use refrain::internals::schedule::SwitchTimes;
use refrain::internals::stream::sequential_read;
use refrain::streaming::{Pinned, StreamOptions};

use crate::model_files::{Gguf, golden};

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The error of an attempt, which must end without anybody writing to a pipe.
fn error_of<T>(name: &str, open: impl FnOnce() -> Result<T, String> + Send + 'static) -> String {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(open().err()));
    // The bound only ends a test that would wait for ever.
    let ended = receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{name}: it waits"));
    ended.unwrap_or_else(|| panic!("{name}: it is opened"))
}

fn open(path: PathBuf) -> impl FnOnce() -> Result<(), String> + Send + 'static {
    move || {
        let opened = Checkpoint::open(path).map_err(|error| error.to_string())?;
        opened.tokenizer().map(drop).map_err(|error| error.to_string())
    }
}

#[test]
fn a_model_is_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["m.gguf", "m.refrain", "model"] {
        let path = folder.path().join(name);
        pipe(&path);
        let error = error_of(name, open(path.clone()));
        let is_by_kind = error.contains("a named pipe, not a regular file");
        assert!(is_by_kind || name == "model" && error.contains("neither"), "{name}: {error}");
        let error = error_of(name, move || Checkpoint::open_mtp(path).map_err(|e| e.to_string()));
        assert!(
            error.contains("named pipe") || error.contains("neither") || error.contains("head"),
            "{error}"
        );
    }
    let path = folder.path().join("socket.gguf");
    let _socket = UnixListener::bind(&path).unwrap();
    assert!(error_of("socket", open(path)).contains("a socket, not a regular file"));
    let path = folder.path().join("device.gguf");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(error_of("device", open(path)).contains("a device, not a regular file"));
}

#[test]
fn every_file_of_a_folder_is_a_regular_file() {
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
    ] {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(golden("llama")).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_dir() {
                continue;
            }
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let path = folder.path().join(name);
        let _ = fs::remove_file(&path);
        pipe(&path);
        let error = error_of(name, open(folder.path().to_owned()));
        // Weights are looked for among several names, so a pipe is none.
        let reason = match name {
            "model.safetensors" => "no `model.safetensors`",
            _ => "a named pipe, not a regular file",
        };
        assert!(error.contains(reason) && error.contains(name), "{name}: {error}");
    }
}

#[test]
fn every_part_of_a_split_file_is_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Gguf::tiny();
    let n_tensors = first.tensors.len() as i32;
    first.set("split.no", 0u16).set("split.count", 2u16).set("split.tensors.count", n_tensors);
    let path = folder.path().join("m-00001-of-00002.gguf");
    fs::write(&path, first.bytes()).unwrap();
    pipe(&folder.path().join("m-00002-of-00002.gguf"));
    let error = error_of("part", open(path));
    assert!(error.contains("m-00002-of-00002.gguf") && error.contains("named pipe"), "{error}");
}

#[test]
fn files_beside_a_model_are_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    pipe(&path);
    let file = path.clone();
    let error = error_of("predictor", move || Predictor::read(file).map_err(|e| e.to_string()));
    assert!(error.contains("named pipe"), "{error}");
    let file = path.clone();
    let error = error_of("profile", move || MachineProfile::read(file).map_err(|e| e.to_string()));
    assert!(error.contains("named pipe"), "{error}");
    let file = path.clone();
    let error = error_of("times", move || SwitchTimes::read(&file).map_err(|e| e.to_string()));
    assert!(error.contains("named pipe"), "{error}");
    let options = StreamOptions::new(Pinned::Layers(0));
    let error =
        error_of("disk", move || sequential_read(&path, 1 << 20, 1, &options).map_err(|e| e.to_string()));
    assert!(error.contains("named pipe"), "{error}");
}
