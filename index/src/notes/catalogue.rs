//! The catalogue: the files in the index, with what tells whether they have changed.
//!
//! A catalogue is a file of its own per commit, `catalogue-N`. The commit of the inverted index names `N`, so both
//! change in one step: a catalogue that no commit names is a leftover of a crash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Encoder};
use super::documents::Documents;
use super::error::{NotesError, io_error};
use super::files::{self, Folder};
use super::language::Language;
use super::paths;
use super::stamp::Stamp;

/// The version of the format of catalogue and inverted index. An index of another version is built again.
const VERSION: u32 = 4;

/// A file in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the file's passages in the inverted index. New contents get a new number.
    pub(super) file: u64,
    pub(super) stamp: Stamp,
    /// Whether an equal stamp proves equal contents.
    pub(super) is_settled: bool,
    /// XXH3 of the contents.
    pub(super) hash: u128,
    pub(super) n_passages: u32,
}

impl Entry {
    /// Lets the next update read the file and make its passages again.
    pub(super) fn outdate(&mut self) {
        (self.is_settled, self.hash) = (false, 0);
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Catalogue {
    pub(super) entries: BTreeMap<PathBuf, Entry>,
    /// The number of the next file.
    pub(super) next_file: u64,
    /// The languages among which those of the passages were detected.
    pub(super) languages: Vec<Language>,
    /// The documents without files.
    pub(super) documents: Documents,
}

impl Catalogue {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { documents: Documents::new(), ..Self::default() }
    }

    pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
        folder.join(format!("catalogue-{number}"))
    }

    /// The number of a file name; `None` for other names.
    pub(super) fn parse(name: &str) -> Option<u64> {
        let number = name.strip_prefix("catalogue-")?.parse().ok()?;
        (format!("catalogue-{number}") == name).then_some(number)
    }

    pub(super) fn write(&self, folder: &Folder, number: u64) -> Result<(), NotesError> {
        let path = Self::path(folder, number);
        files::replace(&folder.seal, &path, &self.encode(), true).map_err(io_error("write", &path))
    }

    /// # Errors
    /// [`NotesError::Damaged`] also if the file is missing, because a commit names it.
    pub(super) fn read(folder: &Folder, number: u64) -> Result<Self, NotesError> {
        let path = Self::path(folder, number);
        let damaged = |what| NotesError::damaged(&path, what);
        let bytes = files::read_whole(&folder.seal, &path)?.ok_or_else(|| damaged("the file is missing"))?;
        Self::decode(&bytes).ok_or_else(|| damaged("not a catalogue of this version"))
    }

    /// The number for a file's new passages.
    pub(super) fn new_file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file
    }

    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder(Vec::with_capacity(self.entries.len() * 160));
        encoder.u32(VERSION);
        encoder.u64(self.next_file);
        encoder.languages(&self.languages);
        encoder.u32(self.entries.len() as u32);
        for (path, entry) in &self.entries {
            encoder.bytes(paths::to_bytes(path).unwrap_or_default());
            encoder.u64(entry.file);
            encoder.u64(entry.stamp.bytes);
            encoder.i64(entry.stamp.modified);
            encoder.i64(entry.stamp.changed);
            encoder.u64(entry.stamp.inode);
            encoder.u32(u32::from(entry.is_settled));
            encoder.u128(entry.hash);
            encoder.u32(entry.n_passages);
        }
        self.documents.encode(&mut encoder);
        encoder.0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut decoder = Decoder(bytes);
        if decoder.u32()? != VERSION {
            return None;
        }
        let next_file = decoder.u64()?;
        let languages = decoder.languages()?;
        let mut entries = BTreeMap::new();
        for _ in 0..decoder.u32()? {
            let path = paths::from_bytes(decoder.bytes()?)?;
            let file = decoder.u64()?;
            let stamp = Stamp {
                bytes: decoder.u64()?,
                modified: decoder.i64()?,
                changed: decoder.i64()?,
                inode: decoder.u64()?,
            };
            let is_settled = decoder.u32()? != 0;
            let (hash, n_passages) = (decoder.u128()?, decoder.u32()?);
            entries.insert(path, Entry { file, stamp, is_settled, hash, n_passages });
        }
        let documents = Documents::decode(&mut decoder)?;
        decoder.0.is_empty().then_some(Self { entries, next_file, languages, documents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_comes_back_and_cut_ones_are_refused() {
        let mut catalogue = Catalogue { languages: vec![Language::Greek], ..Catalogue::default() };
        for i in 0..3 {
            let stamp = Stamp { bytes: i, modified: -5, changed: i64::MAX, inode: 7 };
            let entry = Entry { file: i, stamp, is_settled: i == 1, hash: u128::MAX - 1, n_passages: 4 };
            catalogue.entries.insert(format!("/a/{i}.md").into(), entry);
        }
        catalogue.documents = Documents::sample();
        let bytes = catalogue.encode();
        assert_eq!(Catalogue::decode(&bytes), Some(catalogue));
        assert!((0..bytes.len()).all(|end| Catalogue::decode(&bytes[..end]).is_none()));
    }

    #[test]
    fn numbers_come_back_from_names() {
        assert_eq!(Catalogue::parse("catalogue-12"), Some(12));
        assert_eq!(
            (Catalogue::parse("catalogue-012"), Catalogue::parse("catalogue-1.partial")),
            (None, None)
        );
    }
}
