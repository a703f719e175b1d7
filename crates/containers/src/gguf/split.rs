//! Split models: `name-00001-of-00003.gguf` and its siblings.
//!
//! Every part is a GGUF file with `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts
//! together); the first part holds the model's metadata.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::GgufError;
use super::part::Part;

/// Most parts of a split model accepted.
pub const SPLITS_MAX: u64 = 1024;

/// The split fields of one part.
pub(super) struct SplitPart {
    no: u64,
    pub(super) count: u64,
}

impl SplitPart {
    /// The split fields, or `None` for a model in one file.
    pub(super) fn of(part: &Part) -> Result<Option<Self>, GgufError> {
        let Some(count) = number(part, "split.count")? else { return Ok(None) };
        // Some writers state a count of 0 or 1 for a model that is not split.
        if count <= 1 {
            return Ok(None);
        }
        if count > SPLITS_MAX {
            return Err(GgufError::OverLimit {
                file: part.source.name().to_owned(),
                field: "split.count".to_owned(),
                offset: 0,
                value: count,
                limit: SPLITS_MAX,
            });
        }
        Ok(Some(Self { no: number(part, "split.no")?.unwrap_or(0), count }))
    }

    /// Opens the other parts in the folder of `path`. `given` is the part of `path` itself. Returns all parts
    /// in order.
    pub(super) fn open_all(
        &self,
        path: &Path,
        given: Part,
        open: impl Fn(&Path) -> Result<Part, GgufError>,
    ) -> Result<Vec<Part>, GgufError> {
        let name_error = || GgufError::SplitName { file: path.display().to_string(), count: self.count };
        let (prefix, no) = split_name(path, self.count).ok_or_else(name_error)?;
        expect(&given, "split.no", self.no, no)?;
        let mut parts = Vec::new();
        let mut given = Some(given);
        for i in 0..self.count {
            let part = match given.take_if(|_| i == no) {
                Some(part) => part,
                None => open(&part_path(path, prefix, i, self.count))?,
            };
            expect(&part, "split.no", number(&part, "split.no")?.unwrap_or(0), i)?;
            expect(&part, "split.count", number(&part, "split.count")?.unwrap_or(1), self.count)?;
            parts.push(part);
        }
        let n_tensors = parts.iter().map(|part| part.tensors.len() as u64).sum();
        for part in &parts {
            if let Some(stated) = number(part, "split.tensors.count")? {
                expect(part, "split.tensors.count", stated, n_tensors)?;
            }
        }
        Ok(parts)
    }
}

fn number(part: &Part, field: &'static str) -> Result<Option<u64>, GgufError> {
    let Some(value) = part.get(field) else { return Ok(None) };
    match value.as_u64() {
        Some(n) => Ok(Some(n)),
        None => Err(GgufError::SplitField {
            file: part.source.name().to_owned(),
            field,
            found: format!("a {} that is no count", value.type_name()),
            expected: "a whole number of at least 0".to_owned(),
        }),
    }
}

fn expect(part: &Part, field: &'static str, found: u64, expected: u64) -> Result<(), GgufError> {
    if found == expected {
        return Ok(());
    }
    let file = part.source.name().to_owned();
    Err(GgufError::SplitField { file, field, found: found.to_string(), expected: expected.to_string() })
}

/// The prefix of a part's file name and its number from 0, if the name has the right form for `count` parts.
fn split_name(path: &Path, count: u64) -> Option<(&OsStr, u64)> {
    let name = path.file_name()?;
    let bytes = name.as_encoded_bytes().strip_suffix(format!("-of-{count:05}.gguf").as_bytes())?;
    let dash = bytes.iter().rposition(|&byte| byte == b'-')?;
    let digits = &bytes[dash + 1..];
    if digits.len() < 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let no: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let no = no.checked_sub(1).filter(|&no| no < count)?;
    Some((first_bytes(name, dash)?, no))
}

/// The first `n` bytes of a file name, which end before an ASCII character.
#[cfg(unix)]
fn first_bytes(name: &OsStr, n: usize) -> Option<&OsStr> {
    use std::os::unix::ffi::OsStrExt;
    Some(OsStr::from_bytes(&name.as_bytes()[..n]))
}

/// The first `n` bytes of a file name, which end before an ASCII character. Only names in Unicode can be cut
/// without `unsafe`.
#[cfg(not(unix))]
fn first_bytes(name: &OsStr, n: usize) -> Option<&OsStr> {
    Some(OsStr::new(&name.to_str()?[..n]))
}

fn part_path(path: &Path, prefix: &OsStr, no: u64, count: u64) -> PathBuf {
    let mut name = OsString::from(prefix);
    name.push(format!("-{:05}-of-{count:05}.gguf", no + 1));
    path.with_file_name(name)
}
