//! Reads a file and makes its passages. Files are independent, so several are read at the same time.

use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use refrain_files::catch_quietly;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::catalogue::Entry;
use super::documents::Metadata;
use super::formats::{self, Body, Contents, Unit};
use super::kind::{Format, SourceKind};
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

/// A text of a file: a note, a message, a chat, an event, the text of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileText {
    /// Its title: of a message its subject, of a text without a title the file's name.
    pub title: String,
    /// Its text, without its encoding.
    pub text: String,
    /// The bytes of the file from which it was read.
    pub place: Range<u64>,
    /// Whether these bytes are the text itself.
    pub is_verbatim: bool,
    /// The line or page on which it begins.
    pub locator: Option<Locator>,
}

/// The texts of a file as the index reads them, by its ending, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileTexts {
    /// The texts; those that are blank are left out.
    pub texts: Vec<FileText>,
    /// Why a part of the file was left out.
    pub lost: Option<SkipReason>,
}

/// Reads the texts of a file, as the index does.
///
/// # Errors
/// The reason why the file is no source or cannot be read.
pub fn read_texts(path: &Path, bytes: &[u8]) -> Result<FileTexts, SkipReason> {
    let format = Format::of(path).ok_or(SkipReason::NotASource)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let panicked = SkipReason::Broken { what: "the parser panicked", offset: 0 };
    let Contents { units, text, lost } =
        catch_quietly(|| formats::read(format, &name, bytes)).map_err(|_| panicked)??;
    let lines = format.has_lines().then(|| LineStarts::of(&text.bytes));
    let texts = units.into_iter().map(|unit| {
        let (own, place, is_verbatim) = match unit.body {
            Body::Verbatim(body) => {
                let own = std::str::from_utf8(&text.bytes[body.place.clone()]).unwrap_or_default();
                let start = own.len() - own.trim_start().len();
                let own = own.trim();
                let place = body.place.start + start..body.place.start + start + own.len();
                (own.to_owned(), place, text.is_verbatim())
            }
            Body::Decoded(pieces) => {
                let place = pieces.first().map_or(0, |first| first.place.start)
                    ..pieces.last().map_or(0, |last| last.place.end);
                let own: Vec<&str> = pieces.iter().map(|piece| piece.text.trim_end()).collect();
                (own.join("\n").trim().to_owned(), place, false)
            }
        };
        let line = || Some(Locator::Line(lines.as_ref()?.line(place.start)));
        let locator = unit.page.map(Locator::Page).or_else(line);
        let place = text.place(place);
        let place = place.start as u64..place.end as u64;
        FileText { title: unit.title, text: own, place, is_verbatim, locator }
    });
    Ok(FileTexts { texts: texts.filter(|text| !text.text.is_empty()).collect(), lost })
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
    let read = formats::read(found.format, &name, bytes)?;
    let about = About {
        path: &found.path,
        kind: found.format.kind(),
        has_lines: found.format.has_lines(),
        date: modified,
    };
    Ok(divided(&about, read, n_overlap, languages))
}

/// The passages and names of a document without a file: Markdown. `tags` are those of the metadata in their stored form, `now` is the date
/// of a document without one.
#[expect(clippy::too_many_arguments, reason = "what is known of a document, and how it is read")]
pub(super) fn document_contents(
    path: &Path,
    id: &[u8],
    text: &str,
    metadata: &Metadata,
    tags: &[String],
    now: i64,
    n_overlap: usize,
    languages: &Languages,
) -> Result<FileContents, SkipReason> {
    let mut read = formats::read(Format::Text, &String::from_utf8_lossy(id), text.as_bytes())?;
    for unit in &mut read.units {
        unit.title = metadata.title.clone().unwrap_or_else(|| std::mem::take(&mut unit.title));
        unit.date = metadata.date.or(unit.date);
        unit.tags = formats::tags_of(unit.tags.iter().chain(tags));
    }
    let about = About { path, kind: metadata.kind, has_lines: true, date: now };
    Ok(divided(&about, read, n_overlap, languages))
}

/// What passages have from their source.
struct About<'a> {
    path: &'a Path,
    kind: SourceKind,
    has_lines: bool,
    /// The date of a unit without one.
    date: i64,
}

/// The passages and names of what was read.
fn divided(about: &About<'_>, read: Contents<'_>, n_overlap: usize, languages: &Languages) -> FileContents {
    let Contents { units, text, lost } = read;
    let lines = about.has_lines.then(|| LineStarts::of(&text.bytes));
    let passages = units.iter().flat_map(|unit| {
        let language = languages.detect(sample(unit, &text.bytes));
        let chunks = chunks(unit, &text.bytes, n_overlap).into_iter();
        let (text, lines) = (&text, &lines);
        chunks.map(move |chunk| {
            let line = || Some(Locator::Line(lines.as_ref()?.line(chunk.place.start)));
            let locator = unit.page.map(Locator::Page).or_else(line);
            let place = text.place(chunk.place);
            NotePassage {
                path: about.path.to_owned(),
                kind: about.kind,
                key: xxh3_64(titled(&chunk.title, &chunk.text).as_bytes()),
                title: chunk.title,
                text: chunk.text,
                place: place.start as u64..place.end as u64,
                is_verbatim: chunk.is_verbatim && text.is_verbatim(),
                locator,
                date: chunk.date.or(unit.date).unwrap_or(about.date),
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
    FileContents { passages, names: names.collect(), lost }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, bytes: &[u8]) -> Vec<(String, String, String)> {
        let texts = read_texts(Path::new(name), bytes).unwrap().texts.into_iter();
        let locator = |text: &FileText| text.locator.map_or_else(String::new, |locator| locator.to_string());
        texts.map(|text| (locator(&text), text.title, text.text)).collect()
    }

    #[test]
    fn a_file_is_read_by_its_ending() {
        let of = |line: &str, title: &str, text: &str| (line.to_owned(), title.to_owned(), text.to_owned());
        let mailbox = b"From a Wed May 1\nSubject: One\nFrom: ada@x\n\nFirst.\n\nFrom b Thu\nSubject: Two\n\n> First.\n\nSecond.\n";
        assert_eq!(
            read("box.mbox", mailbox),
            [of("line 2", "One", "From: ada@x\n\nFirst."), of("line 8", "Two", "> First.\n\nSecond.")]
        );
        assert_eq!(read("a.md", b"\n\n# Trip\n\nAt nine.\n"), [of("line 3", "Trip", "# Trip\n\nAt nine.")]);
        assert_eq!(read("a.csv", b"name,age\nAda,36\n")[0].1, "a");
        assert_eq!(read("a.md", b" \n"), []);
        assert_eq!(read_texts(Path::new("a.png"), b"").unwrap_err(), SkipReason::NotASource);
        assert!(matches!(read_texts(Path::new("a.pdf"), b"no PDF"), Err(SkipReason::Broken { .. })));
    }

    #[test]
    fn the_place_of_a_text_is_the_text() {
        let bytes = "\u{feff}---\ntitle: Oslo\n---\n\n A trip.\n\n".as_bytes();
        let text = read_texts(Path::new("a.md"), bytes).unwrap().texts.remove(0);
        assert_eq!((text.title.as_str(), text.text.as_str(), text.is_verbatim), ("Oslo", "A trip.", true));
        assert_eq!(&bytes[text.place.start as usize..text.place.end as usize], b"A trip.");
    }
}
