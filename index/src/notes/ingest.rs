//! Reads a file and makes its passages. Files are independent, so several are read at the same time.

use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use refrain_files::catch_quietly;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::catalogue::Entry;
use super::formats::{self, Body, Contents, Unit};
use super::kind::Format;
use super::language::Languages;
use super::passage::{Locator, NotePassage, chunks, titled};
use super::report::SkipReason;
use super::stamp::{Stamp, since_1970};
use super::walk::Found;
use crate::bounds::Bounds;

/// What reading a file found.
pub(super) enum Ingested {
    /// The contents are those of the entry.
    Same { stamp: Stamp, is_settled: bool },
    /// New contents.
    New { stamp: Stamp, is_settled: bool, hash: u128, contents: FileContents },
    /// The file cannot be read now; what is known of it stays.
    Unreadable(SkipReason),
    /// The file is gone, or its contents are no source.
    Refused(SkipReason),
}

/// What a file gives the index.
pub(super) struct FileContents {
    pub(super) passages: Vec<NotePassage>,
    /// Words that stand for the file as a whole.
    pub(super) names: Vec<String>,
    /// The reason why some passages are missing.
    pub(super) lost: Option<SkipReason>,
}

/// Reads a file. `old` is its entry in the catalogue.
pub(super) fn ingest(
    found: &Found,
    old: Option<&Entry>,
    bounds: &Bounds,
    bytes_max: u64,
    n_overlap: usize,
    languages: &Languages,
) -> Ingested {
    let now = since_1970(SystemTime::now());
    let (bytes, stamp, is_steady) = match read(&found.path, bounds, bytes_max) {
        Ok(read) => read,
        Err(Unread::TooLong(bytes)) => {
            return Ingested::Refused(SkipReason::TooLong { bytes, limit: bytes_max });
        }
        Err(Unread::Io(kind)) => {
            return match SkipReason::of_io(kind) {
                SkipReason::Vanished => Ingested::Refused(SkipReason::Vanished),
                reason => Ingested::Unreadable(reason),
            };
        }
    };
    let is_settled = is_steady && stamp.is_settled(now);
    let hash = xxh3_128(&bytes);
    if old.is_some_and(|old| old.hash == hash) {
        return Ingested::Same { stamp, is_settled };
    }
    // The parsers come from other projects, and their input from anyone.
    match catch_quietly(|| contents(found, &bytes, stamp.seconds(), n_overlap, languages)) {
        Ok(Ok(contents)) => Ingested::New { stamp, is_settled, hash, contents },
        Ok(Err(reason)) => Ingested::Refused(reason),
        Err(_) => Ingested::Refused(SkipReason::Broken { what: "the parser panicked", offset: 0 }),
    }
}

/// The text of a file as the index reads it, by its ending: a message or document without its encoding. The units of the file stand below
/// their titles.
///
/// # Errors
/// The reason why the file is no source or cannot be read.
pub fn read_text(path: &Path, bytes: &[u8]) -> Result<String, SkipReason> {
    let format = Format::of(path).ok_or(SkipReason::NotASource)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let panicked = SkipReason::Broken { what: "the parser panicked", offset: 0 };
    let Contents { units, text, .. } =
        catch_quietly(|| formats::read(format, &name, bytes)).map_err(|_| panicked)??;
    let mut whole = String::new();
    let mut above = "";
    for unit in &units {
        if unit.title != above {
            whole.push_str(&unit.title);
            whole.push_str("\n\n");
            above = &unit.title;
        }
        match &unit.body {
            Body::Verbatim(body) => {
                whole.push_str(std::str::from_utf8(&text.bytes[body.place.clone()]).unwrap_or_default())
            }
            Body::Decoded(pieces) => {
                for piece in pieces {
                    whole.push_str(piece.text.trim_end());
                    whole.push('\n');
                }
            }
        }
        whole.push('\n');
    }
    whole.truncate(whole.trim_end().len());
    Ok(whole)
}

/// The passages and names of a file.
pub(super) fn contents(
    found: &Found,
    bytes: &[u8],
    modified: i64,
    n_overlap: usize,
    languages: &Languages,
) -> Result<FileContents, SkipReason> {
    let name = found.path.file_stem().unwrap_or_default().to_string_lossy();
    let Contents { units, text, lost } = formats::read(found.format, &name, bytes)?;
    let lines = found.format.has_lines().then(|| LineStarts::of(&text.bytes));
    let passages = units.iter().flat_map(|unit| {
        let language = languages.detect(sample(unit, &text.bytes));
        let chunks = chunks(unit, &text.bytes, n_overlap).into_iter();
        let (found, text, lines) = (&found, &text, &lines);
        chunks.map(move |chunk| {
            let line = || Some(Locator::Line(lines.as_ref()?.line(chunk.place.start)));
            let locator = unit.page.map(Locator::Page).or_else(line);
            let place = text.place(chunk.place);
            NotePassage {
                path: found.path.clone(),
                kind: found.format.kind(),
                key: xxh3_64(titled(&chunk.title, &chunk.text).as_bytes()),
                title: chunk.title,
                text: chunk.text,
                place: place.start as u64..place.end as u64,
                is_verbatim: chunk.is_verbatim && text.is_verbatim(),
                locator,
                date: chunk.date.or(unit.date).unwrap_or(modified),
                tags: unit.tags.clone(),
                language,
            }
        })
    });
    let passages = passages.collect();
    let names = units.into_iter().flat_map(|unit| match unit.body {
        Body::Verbatim(text) => text.names,
        Body::Decoded(_) => Vec::new(),
    });
    Ok(FileContents { passages, names: names.collect(), lost })
}

/// The offsets at which the lines of a text begin. (A file has at most 1 GiB.)
struct LineStarts(Vec<u32>);

impl LineStarts {
    fn of(bytes: &[u8]) -> Self {
        let ends = bytes.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
        Self(ends.map(|(at, _)| at as u32 + 1).collect())
    }

    /// The line of an offset, from 1.
    fn line(&self, at: usize) -> u64 {
        self.0.partition_point(|&start| start as usize <= at) as u64 + 1
    }
}

/// A text of the unit that shows its language: the longest of the first pieces.
fn sample<'a>(unit: &'a Unit, bytes: &'a [u8]) -> &'a str {
    match &unit.body {
        Body::Verbatim(text) => std::str::from_utf8(&bytes[text.place.clone()]).unwrap_or_default(),
        Body::Decoded(pieces) => {
            let texts = pieces.iter().take(16).map(|piece| piece.text.as_str());
            texts.max_by_key(|text| text.len()).unwrap_or_default()
        }
    }
}

enum Unread {
    Io(io::ErrorKind),
    TooLong(u64),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

/// The bytes of a file, its stamp, and whether the stamp was the same before and after the reading.
fn read(path: &Path, bounds: &Bounds, bytes_max: u64) -> Result<(Vec<u8>, Stamp, bool), Unread> {
    let mut file = bounds.open(path)?;
    let before = file.metadata()?;
    let mut bytes = Vec::with_capacity(before.len().min(bytes_max) as usize);
    // A file may grow while it is read.
    (&mut file).take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Unread::TooLong(before.len().max(bytes.len() as u64)));
    }
    let (before, after) = (Stamp::of(&before), Stamp::of(&file.metadata()?));
    Ok((bytes, after, before == after))
}
