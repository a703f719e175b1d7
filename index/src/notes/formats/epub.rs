//! EPUB: an archive whose package names the chapters, in XHTML.

use std::collections::{HashMap, HashSet};

use html5gum::{Token, Tokenizer};

use super::archive::Archive;
use super::html;
use super::limits::{ARCHIVE_ENTRIES_MAX, ARCHIVE_NAME_BYTES_MAX, CHAPTERS_MAX, TEXT_BYTES_MAX};
use super::outline::{Block, Document};
use super::package::{attribute, elements, joined, optional};
use super::parse_date;
use super::unit::{Losses, Unit};
use crate::notes::report::SkipReason;

/// Maximum length of a reference, in bytes: a name in an archive, with `%20` for a byte.
const HREF_BYTES_MAX: usize = 3 * ARCHIVE_NAME_BYTES_MAX;

/// Reads a book: its chapters in their order. A chapter that cannot be read is left out.
pub(super) fn read(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let archive = Archive::open(bytes)?;
    // Fonts are obscured in another way.
    let encryption = optional(&archive, "META-INF/encryption.xml", losses).unwrap_or_default();
    if encryption.contains("xmlenc#aes") {
        return Err(SkipReason::Encrypted);
    }
    let broken = |what| SkipReason::Broken { what, offset: 0 };
    let container =
        archive.text("META-INF/container.xml")?.ok_or(broken("no META-INF/container.xml in the archive"))?;
    let package_path = rootfile(&container).ok_or(broken("no package in META-INF/container.xml"))?;
    let package = archive.text(&package_path)?.ok_or(broken("the package is not in the archive"))?;
    let [title, date] = elements(&package, ["dc:title", "dc:date"]);
    let mut document = Document { title, date: date.and_then(|date| parse_date(&date)), blocks: Vec::new() };
    let mut n_text = 0;
    for path in chapters(&package_path, &package, losses) {
        let xhtml = match archive.text(&path) {
            Ok(Some(xhtml)) => xhtml,
            Ok(None) => {
                losses.add(broken("a chapter that is not in the archive"));
                continue;
            }
            Err(reason) => {
                losses.add(reason);
                continue;
            }
        };
        for block in html::document(&xhtml, true).blocks {
            n_text += block.text.len() + 1;
            if n_text > TEXT_BYTES_MAX {
                losses.add(SkipReason::Limit {
                    what: "bytes of text",
                    limit: TEXT_BYTES_MAX as u64,
                    offset: 0,
                });
                return Ok(document.into_units(name, losses));
            }
            document.push(Block { place: 0..bytes.len(), ..block });
        }
    }
    match document.blocks.is_empty() {
        true => Err(losses.first.take().unwrap_or(SkipReason::NoText)),
        false => Ok(document.into_units(name, losses)),
    }
}

fn rootfile(container: &str) -> Option<String> {
    for Ok(token) in Tokenizer::new(container) {
        if let Token::StartTag(tag) = token
            && tag.name.as_slice() == b"rootfile"
        {
            return attribute(&tag, "full-path");
        }
    }
    None
}

/// The paths of the chapters, in the order of the spine, each once.
fn chapters(package_path: &str, package: &str, losses: &mut Losses) -> Vec<String> {
    // Paths by the ids of their items.
    let mut files: HashMap<String, String> = HashMap::new();
    let mut seen = HashSet::new();
    let mut chapters = Vec::new();
    for Ok(token) in Tokenizer::new(package) {
        let Token::StartTag(tag) = token else { continue };
        match tag.name.as_slice() {
            b"item" | b"opf:item" => {
                if let (Some(id), Some(href)) = (attribute(&tag, "id"), attribute(&tag, "href"))
                    && href.len() <= HREF_BYTES_MAX
                    && files.len() < ARCHIVE_ENTRIES_MAX
                {
                    files.entry(id).or_insert_with(|| joined(package_path, &href));
                }
            }
            b"itemref" | b"opf:itemref" => {
                // A chapter may be named often, and counts once.
                let path = attribute(&tag, "idref").and_then(|id| files.remove(&id));
                let Some(path) = path.filter(|path| seen.insert(path.clone())) else { continue };
                if chapters.len() == CHAPTERS_MAX {
                    losses.add(SkipReason::Limit { what: "chapters", limit: CHAPTERS_MAX as u64, offset: 0 });
                    break;
                }
                chapters.push(path);
            }
            _ => {}
        }
    }
    chapters
}

#[cfg(test)]
mod tests {
    use super::super::archive::made::archive;
    use super::*;

    const CONTAINER: &[u8] =
        b"<container><rootfiles><rootfile full-path='OEBPS/a.opf'/></rootfiles></container>";

    fn book(chapter: &[u8]) -> Vec<u8> {
        let package = "<package><metadata><dc:title>Whales</dc:title><dc:date>2024-05-01</dc:date></metadata><manifest>\
            <item id='b' href='b.xhtml'/><item id='c' href='./b.xhtml#end'/><item id='a' href='../text/a%20a.xhtml'/></manifest>\
            <spine><itemref idref='a'/><itemref idref='missing'/><itemref idref='b'/><itemref idref='c'/><itemref idref='b'/></spine></package>";
        archive(&[
            ("META-INF/container.xml", CONTAINER),
            ("OEBPS/a.opf", package.as_bytes()),
            ("text/a a.xhtml", chapter),
            ("OEBPS/b.xhtml", b"<html><head><title/></head><body><h1>Two</h1><p>Second.</p></body></html>"),
        ])
    }

    #[test]
    fn chapters_are_read_in_their_order() {
        let bytes = book(b"<html><head><title>T</title></head><body><h1>One</h1><p>First.</p></body></html>");
        let mut losses = Losses::default();
        let units = read("a", &bytes, &mut losses).unwrap();
        let titles: Vec<_> = units.iter().map(|unit| unit.title.as_str()).collect();
        assert_eq!((titles, losses.n), (vec!["Whales: One", "Whales: Two"], 0));
        assert_eq!(units[0].date, Some(1_714_521_600));
    }

    #[test]
    fn a_bomb_in_a_chapter_loses_what_follows_only() {
        let mut losses = Losses::default();
        let read = read("a", &book(&vec![b'x'; 80 << 20]), &mut losses);
        assert!(read.is_err() && losses.n > 0, "{read:?}");
        let deep = read_deep();
        assert!(deep.is_ok(), "{deep:?}");
    }

    fn read_deep() -> Result<Vec<Unit>, SkipReason> {
        read("a", &book("<div><p>".repeat(200_000).as_bytes()), &mut Losses::default())
    }

    #[test]
    fn long_references_are_not_kept() {
        let item = |id: &str, href: &str| format!("<item id='{id}' href='{href}'/><itemref idref='{id}'/>");
        let package = item("a", &"x".repeat(HREF_BYTES_MAX + 1)) + &item("b", "b.xhtml");
        assert_eq!(chapters("OEBPS/a.opf", &package, &mut Losses::default()), ["OEBPS/b.xhtml"]);
    }

    #[test]
    fn encrypted_and_other_archives_are_refused() {
        let read = |files: &[(&str, &[u8])]| read("a", &archive(files), &mut Losses::default());
        let encryption: &[u8] =
            b"<EncryptionMethod Algorithm='http://www.w3.org/2001/04/xmlenc#aes128-cbc'/>";
        assert_eq!(read(&[("META-INF/encryption.xml", encryption)]), Err(SkipReason::Encrypted));
        assert!(matches!(read(&[("META-INF/container.xml", CONTAINER)]), Err(SkipReason::Broken { .. })));
    }
}
