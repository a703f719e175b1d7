//! A model is read through the handles of its header: any file name works, and a later file with the same name changes
//! nothing.
#![cfg(target_os = "linux")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::{LoadOptions, PackedAccess};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{CancelToken, Engine, EngineOptions, Quantize};
use tempfile::TempDir;

use crate::common::{Tiny, plain, prompt};

const TINY: Tiny = Tiny { n_layers: 3, head_dim: 32, context_len: 128, seed: 7, ..Tiny::DEFAULT };
/// Another model of the same shape.
const OTHER: Tiny = Tiny { seed: 8, ..TINY };

const KEEP: LoadOptions<'static> = LoadOptions {
    quantize: Quantize::Keep,
    packed_access: PackedAccess::Map,
    graph_memory_max: None,
    streaming: None,
    progress: None,
    n_threads: None,
};

/// The container and access of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Gguf,
    Mapped,
    Read,
    Streamed,
    Graphs,
}

const KINDS: [Kind; 5] = [Kind::Gguf, Kind::Mapped, Kind::Read, Kind::Streamed, Kind::Graphs];

impl Kind {
    /// Writes the model to `path`, in place of an existing one.
    fn write(self, tiny: Tiny, path: &Path) {
        let source = || Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
        match self {
            Kind::Gguf => {
                let written = path.with_extension("new");
                fs::write(&written, tiny.gguf()).unwrap();
                fs::rename(written, path).unwrap();
            }
            Kind::Mapped | Kind::Read | Kind::Streamed => _ = pack(&source(), path, KEEP).unwrap(),
            Kind::Graphs => {
                if path.exists() {
                    fs::remove_dir_all(path).unwrap();
                }
                write_graphs(&source(), path, 2, 16, 8, KEEP).unwrap();
            }
        }
    }

    fn load(self, checkpoint: &Checkpoint) -> Engine {
        let streaming = (self == Kind::Streamed).then(|| StreamOptions::new(Pinned::Layers(1)));
        let packed_access = if self == Kind::Read { PackedAccess::Read } else { PackedAccess::Map };
        let options = EngineOptions { n_threads: Some(2), streaming, packed_access, ..TINY.options() };
        Engine::load(checkpoint, options, |_, _| {}).unwrap()
    }
}

/// The bits of all logits of a text.
fn logits(engine: &Engine) -> Vec<u32> {
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(1, 40)).unwrap();
    let mut bits = Vec::new();
    session
        .score(&CancelToken::new(), Some(&mut |row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()))))
        .unwrap();
    bits
}

/// A path with a folder and a file name that are not UTF-8.
fn odd_path() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(OsStr::from_bytes(b"folder \xff"));
    fs::create_dir(&folder).unwrap();
    let mut name = OsString::from(OsStr::from_bytes(b"m\xf6del \xfe"));
    name.push(".model");
    (dir, folder.join(name))
}

#[test]
fn paths_that_are_not_utf8_are_read() {
    let expected = logits(&TINY.engine(1));
    for kind in KINDS {
        let (_dir, path) = odd_path();
        kind.write(TINY, &path);
        assert!(logits(&kind.load(&Checkpoint::open(&path).unwrap())) == expected, "{kind:?}");
    }
}

#[test]
fn a_file_that_takes_the_name_after_the_header_was_read_changes_nothing() {
    let expected = logits(&TINY.engine(1));
    assert!(logits(&OTHER.engine(1)) != expected);
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        kind.write(TINY, &path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        kind.write(OTHER, &path);
        let engine = kind.load(&checkpoint);
        assert!(logits(&engine) == expected, "{kind:?}: replaced before the weights were read");
        // Streamed weights and graphs are read again in every pass.
        kind.write(OTHER, &path);
        assert!(logits(&engine) == expected, "{kind:?}: replaced again");
        assert!(logits(&kind.load(&Checkpoint::open(&path).unwrap())) != expected, "{kind:?}: opened anew");
    }
}

#[test]
fn a_deleted_file_is_still_read() {
    let expected = logits(&TINY.engine(1));
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        kind.write(TINY, &path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        drop(dir);
        assert!(!path.exists());
        assert!(logits(&kind.load(&checkpoint)) == expected, "{kind:?}");
    }
}
