//! Documents of office programs: DOCX (ECMA-376) and ODT (OpenDocument), as archives of XML. Elements are read in the order of the file
//! and counted, not nested, so that the depth has no limit.

use std::collections::HashMap;

use html5gum::{StartTag, Token, Tokenizer};

use super::archive::Archive;
use super::limits::TEXT_BYTES_MAX;
use super::outline::{Block, Document};
use super::parse_date;
use super::unit::{Losses, Unit};
use crate::notes::report::SkipReason;

/// Maximum length of the id of a style, in bytes. Longer ones have no level.
const STYLE_BYTES_MAX: usize = 1024;

/// A format of office documents: the elements that matter, in lower case.
struct Names {
    paragraphs: &'static [&'static str],
    row: &'static str,
    /// The only element whose text counts; empty: all in paragraphs.
    run: &'static str,
    spaces: &'static [&'static str],
    /// Notes of reviewers, deleted text, and what repeats other text.
    hidden: &'static [&'static str],
}

const WORD: Names = Names {
    paragraphs: &["w:p"],
    row: "w:tr",
    run: "w:t",
    spaces: &["w:tab", "w:br", "w:cr", "w:tc"],
    hidden: &["mc:fallback", "w:del"],
};

const OPEN_DOCUMENT: Names = Names {
    paragraphs: &["text:p", "text:h"],
    row: "table:table-row",
    run: "",
    spaces: &["text:s", "text:tab", "text:line-break", "table:table-cell"],
    hidden: &["text:tracked-changes", "office:annotation", "office:binary-data"],
};

/// Reads a document of Word.
pub(super) fn read_docx(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let archive = Archive::open(bytes)?;
    let missing = SkipReason::Broken { what: "no word/document.xml in the archive", offset: 0 };
    let main = archive.text("word/document.xml")?.ok_or(missing)?;
    let styles = optional(&archive, "word/styles.xml", losses).map(|xml| styles(&xml)).unwrap_or_default();
    let core = optional(&archive, "docProps/core.xml", losses).unwrap_or_default();
    let mut walk = Walk::new(&WORD, styles, bytes.len());
    walk.read(&main, losses);
    for part in ["word/footnotes.xml", "word/endnotes.xml"] {
        let notes = optional(&archive, part, losses);
        notes.iter().for_each(|xml| walk.read(xml, losses));
    }
    finish(walk, &core, "dcterms:modified", name, losses)
}

/// Reads a text of LibreOffice.
pub(super) fn read_odt(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let archive = Archive::open(bytes)?;
    let manifest = optional(&archive, "META-INF/manifest.xml", losses).unwrap_or_default();
    if manifest.contains("encryption-data") {
        return Err(SkipReason::Encrypted);
    }
    let missing = SkipReason::Broken { what: "no content.xml in the archive", offset: 0 };
    let main = archive.text("content.xml")?.ok_or(missing)?;
    let meta = optional(&archive, "meta.xml", losses).unwrap_or_default();
    let mut walk = Walk::new(&OPEN_DOCUMENT, HashMap::new(), bytes.len());
    walk.read(&main, losses);
    finish(walk, &meta, "dc:date", name, losses)
}

/// A part without which a document can be read.
pub(super) fn optional(archive: &Archive<'_>, part: &str, losses: &mut Losses) -> Option<String> {
    archive.text(part).unwrap_or_else(|reason| {
        losses.add(reason);
        None
    })
}

fn finish(
    walk: Walk,
    properties: &str,
    date: &str,
    name: &str,
    losses: &mut Losses,
) -> Result<Vec<Unit>, SkipReason> {
    let [title, date] = elements(properties, ["dc:title", date]);
    let document = Document { title, date: date.and_then(|date| parse_date(&date)), ..walk.document };
    match document.blocks.is_empty() && document.title.is_none() {
        true => Err(SkipReason::NoText),
        false => Ok(document.into_units(name, losses)),
    }
}

/// The text of the first element of each name.
pub(super) fn elements<const N: usize>(xml: &str, names: [&str; N]) -> [Option<String>; N] {
    let mut texts = [const { None }; N];
    let mut open: Option<usize> = None;
    for Ok(token) in Tokenizer::new(xml) {
        match token {
            Token::StartTag(tag) if !tag.self_closing => {
                open = names
                    .iter()
                    .position(|name| name.as_bytes() == tag.name.as_slice())
                    .filter(|&at| texts[at].is_none());
            }
            Token::String(text) => {
                if let Some(open) = open {
                    texts[open].get_or_insert_with(String::new).push_str(&String::from_utf8_lossy(&text));
                }
            }
            Token::EndTag(_) => open = None,
            _ => {}
        }
    }
    texts.map(|text| Some(text?.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// An attribute of an element of XML.
pub(super) fn attribute(tag: &StartTag<()>, key: &str) -> Option<String> {
    Some(String::from_utf8_lossy(tag.attributes.get(key.as_bytes())?).into_owned())
}

/// Levels of headings by the ids of styles: the names of built-in styles are English in every language, their ids are not.
fn styles(xml: &str) -> HashMap<String, u8> {
    let mut levels = HashMap::new();
    let mut id = None;
    for Ok(token) in Tokenizer::new(xml) {
        let Token::StartTag(tag) = token else { continue };
        let value = || attribute(&tag, "w:val");
        let level = match tag.name.as_slice() {
            b"w:style" => {
                // It is repeated for each level.
                id = attribute(&tag, "w:styleid").filter(|id| id.len() <= STYLE_BYTES_MAX);
                continue;
            }
            b"w:name" => value().and_then(|name| match name.to_ascii_lowercase().as_str() {
                "title" => Some(1),
                name => name.strip_prefix("heading ")?.parse().ok(),
            }),
            b"w:outlinelvl" => outline_level(&tag),
            _ => None,
        };
        if let (Some(level @ 1..=9), Some(id)) = (level, &id) {
            levels.insert(id.clone(), level);
        }
    }
    levels
}

fn outline_level(tag: &StartTag<()>) -> Option<u8> {
    attribute(tag, "w:val")?.parse::<u8>().ok()?.checked_add(1)
}

struct Walk {
    names: &'static Names,
    styles: HashMap<String, u8>,
    /// The file as a whole is the place of each block.
    n_bytes: usize,
    document: Document,
    n_text: usize,
    text: String,
    level: Option<u8>,
}

impl Walk {
    fn new(names: &'static Names, styles: HashMap<String, u8>, n_bytes: usize) -> Self {
        Self {
            names,
            styles,
            n_bytes,
            document: Document::default(),
            n_text: 0,
            text: String::new(),
            level: None,
        }
    }

    fn read(&mut self, xml: &str, losses: &mut Losses) {
        let names = self.names;
        let (mut n_rows, mut n_paragraphs, mut n_runs) = (0_usize, 0_usize, 0_usize);
        // The element whose text does not count, and how many of its name are open.
        let mut hidden: Option<(String, usize)> = None;
        for Ok(token) in Tokenizer::new(xml) {
            match token {
                Token::StartTag(tag) => {
                    let name = String::from_utf8_lossy(&tag.name);
                    let n = usize::from(!tag.self_closing);
                    if let Some((open, n_open)) = &mut hidden {
                        *n_open += if *open == name { n } else { 0 };
                    } else if names.hidden.contains(&&*name) && n == 1 {
                        hidden = Some((name.into_owned(), 1));
                    } else if names.paragraphs.contains(&&*name) {
                        self.text.push(' ');
                        if n_rows == 0 {
                            self.flush(losses);
                        }
                        n_paragraphs += n;
                        self.level =
                            attribute(&tag, "text:outline-level").and_then(|level| level.parse().ok());
                    } else if *name == *names.row {
                        if n_rows == 0 {
                            self.flush(losses);
                        }
                        n_rows += n;
                    } else if *name == *names.run {
                        n_runs += n;
                    } else if names.spaces.contains(&&*name) {
                        self.text.push(' ');
                    } else if name == "w:pstyle" {
                        let style = attribute(&tag, "w:val").unwrap_or_default();
                        self.level = self.styles.get(&style).copied().or(self.level);
                    } else if name == "w:outlinelvl" {
                        self.level = outline_level(&tag).filter(|level| *level <= 9).or(self.level);
                    }
                }
                Token::EndTag(tag) => {
                    let name = String::from_utf8_lossy(&tag.name);
                    match &mut hidden {
                        Some((open, n_open)) => {
                            *n_open -= usize::from(*open == name);
                            if *n_open == 0 {
                                hidden = None;
                            }
                        }
                        None if names.paragraphs.contains(&&*name) => {
                            n_paragraphs = n_paragraphs.saturating_sub(1);
                            if n_rows == 0 {
                                self.flush(losses);
                            }
                        }
                        None if *name == *names.row => {
                            n_rows = n_rows.saturating_sub(1);
                            self.level = None;
                            if n_rows == 0 {
                                self.flush(losses);
                            }
                        }
                        None if *name == *names.run => n_runs = n_runs.saturating_sub(1),
                        None => {}
                    }
                }
                Token::String(text) if hidden.is_none() => {
                    let is_text = if names.run.is_empty() { n_paragraphs > 0 } else { n_runs > 0 };
                    if is_text {
                        self.text.push_str(&String::from_utf8_lossy(&text));
                    }
                }
                _ => {}
            }
        }
        self.flush(losses);
    }

    /// Ends the open block.
    fn flush(&mut self, losses: &mut Losses) {
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.text.clear();
        let level = self.level.take();
        if text.is_empty() {
            return;
        }
        self.n_text += text.len() + 1;
        if self.n_text > TEXT_BYTES_MAX {
            if self.n_text - text.len() <= TEXT_BYTES_MAX {
                losses.add(SkipReason::Limit {
                    what: "bytes of text",
                    limit: TEXT_BYTES_MAX as u64,
                    offset: 0,
                });
            }
            return;
        }
        self.document.push(Block { level, text, place: 0..self.n_bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::super::archive::made::archive;
    use super::super::unit::Body;
    use super::*;

    fn shown(units: Vec<Unit>) -> Vec<(String, Vec<String>)> {
        let texts = |unit: Unit| match unit.body {
            Body::Decoded(pieces) => (unit.title, pieces.into_iter().map(|piece| piece.text).collect()),
            Body::Verbatim(_) => unreachable!("documents are decoded"),
        };
        units.into_iter().map(texts).collect()
    }

    fn section(title: &str, texts: &[&str]) -> (String, Vec<String>) {
        (title.to_owned(), texts.iter().map(|&text| text.to_owned()).collect())
    }

    #[test]
    fn documents_of_word_have_headings_tables_and_notes() {
        let document = "<?xml version='1.0'?><w:document><w:body><w:p><w:pPr><w:pStyle w:val='berschrift1'/></w:pPr><w:r><w:t>Stay &amp; food</w:t></w:r></w:p>\
            <w:p><w:r><w:t xml:space='preserve'>The </w:t></w:r><w:r><w:t>Bris</w:t></w:r><w:r><w:t>tol</w:t><w:tab/><w:t>x</w:t></w:r>\
            <w:del><w:r><w:t>gone</w:t></w:r></w:del><w:instrText>PAGE</w:instrText></w:p><w:p/>\
            <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>";
        let styles =
            "<w:styles><w:style w:styleId='berschrift1'><w:name w:val='heading 1'/></w:style></w:styles>";
        let core = "<cp:coreProperties><dc:title>Trip</dc:title><dcterms:modified xsi:type='a'>2024-05-01T00:00:00Z</dcterms:modified></cp:coreProperties>";
        let bytes = archive(&[
            ("word/document.xml", document.as_bytes()),
            ("word/styles.xml", styles.as_bytes()),
            ("docProps/core.xml", core.as_bytes()),
            ("word/footnotes.xml", b"<w:footnote><w:p><w:r><w:t>note</w:t></w:r></w:p></w:footnote>"),
        ]);
        let units = read_docx("a", &bytes, &mut Losses::default()).unwrap();
        assert_eq!(units[0].date, Some(1_714_521_600));
        assert_eq!(shown(units), [section("Trip: Stay & food", &["The Bristol x", "a b", "note"])]);
    }

    #[test]
    fn long_ids_of_styles_are_not_kept() {
        let levels = "<w:outlineLvl w:val='1'/>".repeat(3);
        let style = |id: &str| format!("<w:style w:styleId='{id}'/>{levels}");
        let known = styles(&format!("{}{}", style(&"x".repeat(STYLE_BYTES_MAX + 1)), style("a")));
        assert_eq!(known, HashMap::from([("a".to_owned(), 2)]));
    }

    #[test]
    fn open_documents_have_headings() {
        let content = "<office:body><text:h text:outline-level='1'>Stay</text:h><text:p>The <text:span>Bris</text:span>tol<text:s/>x\
            <office:annotation><text:p>hidden</text:p></office:annotation></text:p> between <text:list><text:list-item><text:p>One</text:p></text:list-item></text:list></office:body>";
        let meta = "<office:meta><dc:title>Trip</dc:title></office:meta>";
        let bytes = archive(&[("content.xml", content.as_bytes()), ("meta.xml", meta.as_bytes())]);
        let units = read_odt("a", &bytes, &mut Losses::default()).unwrap();
        assert_eq!(shown(units), [section("Trip: Stay", &["The Bristol x", "One"])]);
        let manifest: &[u8] = b"<manifest:encryption-data/>";
        let bytes = archive(&[("content.xml", content.as_bytes()), ("META-INF/manifest.xml", manifest)]);
        assert_eq!(read_odt("a", &bytes, &mut Losses::default()), Err(SkipReason::Encrypted));
    }

    #[test]
    fn bombs_depth_and_other_archives_end_in_an_answer() {
        let read = |files: &[(&str, &[u8])]| read_docx("a", &archive(files), &mut Losses::default());
        let bomb = vec![b' '; 80 << 20];
        assert!(matches!(
            read(&[("word/document.xml", &bomb)]),
            Err(SkipReason::Limit { what: "unpacked bytes", .. })
        ));
        let deep = format!("{}<w:t>x", "<w:p><w:tbl><w:tr><mc:Fallback></mc:Fallback>".repeat(100_000));
        assert_eq!(
            read(&[("word/document.xml", deep.as_bytes())]).map(shown),
            Ok(vec![section("a", &["x"])])
        );
        assert_eq!(read(&[("word/document.xml", b"<w:p/>")]), Err(SkipReason::NoText));
        assert!(matches!(read(&[("a", b"b")]), Err(SkipReason::Broken { .. })));
    }
}
