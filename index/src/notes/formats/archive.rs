//! ZIP archives: the files of a document. Only what the central directory names is read, each part within the budget of the whole, so
//! that neither a packed bomb nor parts that overlap nor false lengths grow without bound.

use std::collections::HashMap;

use super::inflate::Budget;
use super::limits::{ARCHIVE_ENTRIES_MAX, ARCHIVE_NAME_BYTES_MAX, UNPACKED_BYTES_MAX};
use crate::notes::report::SkipReason;

/// Length of the record at the end, and of the comment behind it.
const END_BYTES: usize = 22;
const COMMENT_BYTES_MAX: usize = 0xffff;

/// An open archive.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    /// By name.
    entries: HashMap<&'a [u8], Entry>,
    pub(super) budget: Budget,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Of its local header.
    offset: usize,
    n_packed: usize,
    method: u16,
    is_encrypted: bool,
}

impl<'a> Archive<'a> {
    /// Reads the central directory.
    ///
    /// # Errors
    /// [`SkipReason::Broken`], [`SkipReason::Limit`]; [`SkipReason::Encrypted`]: the document is packed in another form with a password.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, SkipReason> {
        // Office programs store a document with a password as a compound file.
        if bytes.starts_with(&[0xd0, 0xcf, 0x11, 0xe0]) {
            return Err(SkipReason::Encrypted);
        }
        let broken = |what, offset: usize| SkipReason::Broken { what, offset: offset as u64 };
        let first = bytes.len().saturating_sub(END_BYTES + COMMENT_BYTES_MAX);
        let end = bytes[first..].windows(4).rposition(|window| window == b"PK\x05\x06");
        let end = first + end.ok_or(broken("no ZIP archive", 0))?;
        let (Some(n_entries), Some(start)) = (u16_at(bytes, end + 10), u32_at(bytes, end + 16)) else {
            return Err(broken("a cut ZIP archive", end));
        };
        if n_entries > ARCHIVE_ENTRIES_MAX {
            let limit = ARCHIVE_ENTRIES_MAX as u64;
            return Err(SkipReason::Limit { what: "files in an archive", limit, offset: start as u64 });
        }
        let mut entries = HashMap::new();
        let mut at = start;
        for _ in 0..n_entries {
            let fault = broken("a damaged directory of a ZIP archive", at);
            let field = |offset| u16_at(bytes, at.checked_add(offset)?);
            let long = |offset| u32_at(bytes, at.checked_add(offset)?);
            let entry = || {
                let is_entry = bytes.get(at..)?.starts_with(b"PK\x01\x02");
                let (flags, method) = (field(8)?, field(10)?);
                let (n_packed, n_name, n_extra, n_comment) = (long(20)?, field(28)?, field(30)?, field(32)?);
                let (offset, start) = (long(42)?, at + 46);
                let name = bytes.get(start..start + n_name)?;
                let is_encrypted = flags & 1 != 0;
                let entry = Entry { offset, n_packed, method: method as u16, is_encrypted };
                is_entry.then_some((name, entry, start + n_name + n_extra + n_comment))
            };
            let Some((name, entry, next)) = entry() else { return Err(fault) };
            // The first one of a name counts, as for most programs.
            if name.len() <= ARCHIVE_NAME_BYTES_MAX {
                entries.entry(name).or_insert(entry);
            }
            at = next;
        }
        Ok(Self { bytes, entries, budget: Budget::new(UNPACKED_BYTES_MAX) })
    }

    /// The bytes of a file; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`SkipReason`] with the offset of the file's header.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, SkipReason> {
        let Some(&entry) = self.entries.get(name.as_bytes()) else { return Ok(None) };
        let Entry { offset, n_packed, method, is_encrypted } = entry;
        if is_encrypted {
            return Err(SkipReason::Encrypted);
        }
        let data = || {
            let header = self.bytes.get(offset..)?.strip_prefix(b"PK\x03\x04")?;
            let start = 26 + u16_at(header, 22)? + u16_at(header, 24)?;
            header.get(start..start.checked_add(n_packed)?)
        };
        let broken = |what| SkipReason::Broken { what, offset: offset as u64 };
        let packed = data().ok_or(broken("a damaged file in an archive"))?;
        match method {
            0 => {
                self.budget.take(packed.len(), offset)?;
                Ok(Some(packed.to_vec()))
            }
            8 => match self.budget.inflate(packed, false, offset)? {
                (data, true) => Ok(Some(data)),
                (_, false) => Err(broken("a damaged file in an archive")),
            },
            _ => Err(broken("a file in an archive whose packing is unknown")),
        }
    }

    /// The text of a file of XML, in UTF-8 or UTF-16, without sections of unmarked text.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`SkipReason::Broken`]: it is missing or no text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, SkipReason> {
        let Some(data) = self.read(name)? else { return Ok(None) };
        let text = super::encoding::Decoded::new(&data);
        let offset = self.entries.get(name.as_bytes()).map_or(0, |entry| entry.offset as u64);
        let text = text
            .text()
            .map_err(|_| SkipReason::Broken { what: "a file in an archive that is no text", offset })?;
        let plain = escaped_sections(text);
        self.budget.take(plain.len().saturating_sub(text.len()), offset as usize)?;
        Ok(Some(plain))
    }
}

/// XML whose sections `<![CDATA[a < b]]>` are text with escapes: the tokenizer is one of HTML, where they are comments.
fn escaped_sections(xml: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(xml.len()), xml);
    while let Some((before, section)) = rest.split_once("<![CDATA[") {
        let Some((text, behind)) = section.split_once("]]>") else { break };
        plain.push_str(before);
        for char in text.chars() {
            match char {
                '<' => plain.push_str("&lt;"),
                '&' => plain.push_str("&amp;"),
                char => plain.push(char),
            }
        }
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*field).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*field)).ok()
}

/// Archives for tests.
#[cfg(test)]
pub(super) mod made {
    use miniz_oxide::deflate::compress_to_vec;

    /// An archive of these files, packed.
    pub(in super::super) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in files {
            let packed = compress_to_vec(data, 6);
            let offset = bytes.len() as u32;
            let mut common = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0];
            for field in [0, packed.len() as u32, data.len() as u32] {
                common.extend(field.to_le_bytes());
            }
            common.extend((name.len() as u16).to_le_bytes());
            common.extend([0, 0]);
            bytes.extend(b"PK\x03\x04");
            bytes.extend(&common);
            bytes.extend(name.as_bytes());
            bytes.extend(&packed);
            directory.extend(b"PK\x01\x02\x14\x00");
            directory.extend(&common);
            directory.extend([0; 10]);
            directory.extend(offset.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let (start, n) = (bytes.len() as u32, files.len() as u16);
        bytes.extend(&directory);
        bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
        bytes.extend(n.to_le_bytes());
        bytes.extend(n.to_le_bytes());
        bytes.extend((directory.len() as u32).to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_by_name() {
        let bytes = made::archive(&[("a/b", b"one"), ("c", b"two")]);
        let archive = Archive::open(&bytes).unwrap();
        assert_eq!(archive.read("c").unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(archive.text("a/b").unwrap().as_deref(), Some("one"));
        assert_eq!(archive.read("d"), Ok(None));
        assert_eq!(escaped_sections("<a><![CDATA[b < &c]]></a><![CDATA["), "<a>b &lt; &amp;c</a><![CDATA[");
    }

    #[test]
    fn bombs_and_false_directories_are_refused() {
        let bomb = made::archive(&[("a", &vec![b' '; 24 << 20]), ("b", &vec![b' '; 24 << 20])]);
        let archive = Archive::open(&bomb).unwrap();
        assert_eq!(archive.read("a").unwrap().map(|data| data.len()), Some(24 << 20));
        let limit = UNPACKED_BYTES_MAX as u64;
        assert!(matches!(archive.read("b"), Err(SkipReason::Limit { limit: given, .. }) if given == limit));

        let sound = made::archive(&[("a", b"one")]);
        assert!(matches!(
            Archive::open(b"no archive"),
            Err(SkipReason::Broken { what: "no ZIP archive", .. })
        ));
        assert_eq!(Archive::open(b"\xd0\xcf\x11\xe0").unwrap_err(), SkipReason::Encrypted);
        let end = sound.len() - END_BYTES;
        let changed = |at: usize, byte: u8| {
            let mut changed = sound.clone();
            changed[at] = byte;
            changed
        };
        // A number of files, an offset of the directory, and lengths that are false.
        assert!(Archive::open(&changed(end + 10, 2)).is_err());
        assert!(matches!(Archive::open(&changed(end + 11, 0xff)), Err(SkipReason::Limit { .. })));
        assert!(Archive::open(&changed(end + 19, 0xff)).is_err());
        for at in 0..sound.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                if let Ok(archive) = Archive::open(&changed(at, byte)) {
                    let _ = archive.read("a");
                }
            }
            let _ = Archive::open(&sound[..at]);
        }
        let encrypted = changed(4 + 2, 1);
        assert!(Archive::open(&encrypted).unwrap().read("a").is_ok(), "the directory decides");
    }
}
