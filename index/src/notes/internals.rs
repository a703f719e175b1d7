//! The readers of the formats, for the fuzz targets.

use std::path::Path;

use super::ingest::{FileContents, contents};
use super::kind::Format;
use super::language::Languages;
use super::stamp::Stamp;
use super::walk::Found;

/// Reads a file of this name, and checks that its passages have a text and a place in the file.
///
/// # Panics
/// A reader has panicked, or a passage is wrong.
pub fn read(name: &str, bytes: &[u8]) {
    let path = Path::new(name).to_owned();
    let format = Format::of(&path).expect("the extension of a source");
    let stamp = Stamp { bytes: bytes.len() as u64, modified: 0, changed: 0, inode: 0 };
    let found = Found { path, format, stamp };
    let Ok(FileContents { passages, .. }) = contents(&found, bytes, 0, 24, &Languages::new(&[])) else {
        return;
    };
    for passage in passages {
        let place = &bytes[passage.place.start as usize..passage.place.end as usize];
        assert!(!passage.text.trim().is_empty());
        assert!(!passage.is_verbatim || place == passage.text.as_bytes());
    }
}
