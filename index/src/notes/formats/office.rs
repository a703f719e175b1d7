//! Documents of office programs: DOCX (ECMA-376) and ODT (OpenDocument), as archives of XML. Elements are read in the order of the file
//! and counted, not nested, so that the depth has no limit.

use std::collections::HashMap;

use html5gum::{StartTag, Token, Tokenizer};

use super::archive::Archive;
use super::limits::TEXT_BYTES_MAX;
use super::outline::{Block, Document};
use super::package::{attribute, elements, joined, optional};
use super::parse_date;
use super::unit::{Losses, Unit, spaced};
use crate::notes::report::SkipReason;

/// Maximum length of the id of a style, in bytes. Longer ones have no level.
const STYLE_BYTES_MAX: usize = 1024;

/// Maximum depth of paragraphs whose text is put back together behind the one in them.
const PARAGRAPH_DEPTH_MAX: usize = 16;

/// A format of office documents: the elements that matter, in lower case.
struct Names {
    paragraphs: &'static [&'static str],
    row: &'static str,
    /// The only elements whose text counts; without one: all in paragraphs.
    runs: &'static [&'static str],
    spaces: &'static [&'static str],
    /// Notes of reviewers, deleted text, what repeats other text or stands for it, and marks of footnotes.
    hidden: &'static [&'static str],
}

const WORD: Names = Names {
    paragraphs: &["w:p"],
    row: "w:tr",
    runs: &["w:t", "m:t"],
    spaces: &["w:tab", "w:ptab", "w:br", "w:cr", "w:tc"],
    hidden: &["mc:fallback", "w:del", "w:movefrom"],
};

const OPEN_DOCUMENT: Names = Names {
    paragraphs: &["text:p", "text:h"],
    row: "table:table-row",
    runs: &[],
    spaces: &["text:s", "text:tab", "text:line-break", "table:table-cell"],
    hidden: &[
        "text:tracked-changes",
        "text:note-citation",
        "office:annotation",
        "office:binary-data",
        "svg:title",
        "svg:desc",
    ],
};

/// Reads a document of Word.
pub(super) fn read_docx(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let archive = Archive::open(bytes)?;
    let missing = SkipReason::Broken { what: "no main part of the document in the archive", offset: 0 };
    let parts = Relations::read(&archive, "", losses);
    let main_path = parts.part("officeDocument", "word/document.xml");
    let main = archive.text(&main_path)?.ok_or(missing)?;
    let parts = Relations::read(&archive, &main_path, losses);
    let styles = optional(&archive, &parts.part("styles", "word/styles.xml"), losses);
    let styles = styles.map(|xml| styles_of(&xml)).unwrap_or_default();
    let core = optional(&archive, "docProps/core.xml", losses).unwrap_or_default();
    let mut walk = Walk::new(&WORD, styles, bytes.len());
    walk.read(&main, losses);
    for (kind, path) in [("footnotes", "word/footnotes.xml"), ("endnotes", "word/endnotes.xml")] {
        let notes = optional(&archive, &parts.part(kind, path), losses);
        notes.iter().for_each(|xml| walk.read(xml, losses));
    }
    finish(walk, &core, "dcterms:modified", name, losses)
}

/// The parts to which a part of a document of Word leads (ECMA-376, part 2): their names are free.
struct Relations {
    /// Kinds and paths.
    targets: Vec<(String, String)>,
}

impl Relations {
    /// Those of a part, the first of each kind; of the document as a whole if the path is empty.
    fn read(archive: &Archive<'_>, part: &str, losses: &mut Losses) -> Self {
        let (folder, name) = part.rsplit_once('/').unwrap_or(("", part));
        let rels = optional(archive, &joined("", &format!("{folder}/_rels/{name}.rels")), losses);
        let mut targets = Vec::new();
        for Ok(token) in Tokenizer::new(&rels.unwrap_or_default()) {
            if let Token::StartTag(tag) = token
                && tag.name.as_slice() == b"relationship"
                && let (Some(kind), Some(target)) = (attribute(&tag, "type"), attribute(&tag, "target"))
                && let Some((_, kind)) = kind.rsplit_once('/')
                && matches!(kind, "officeDocument" | "styles" | "footnotes" | "endnotes")
                && targets.iter().all(|(of, _)| of != kind)
            {
                targets.push((kind.to_owned(), joined(part, &target)));
            }
        }
        Self { targets }
    }

    /// The path of the part of a kind, else the usual one.
    fn part(&self, kind: &str, usual: &str) -> String {
        let target = self.targets.iter().find(|(of, _)| of == kind);
        target.map_or_else(|| usual.to_owned(), |(_, path)| path.clone())
    }
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

/// Levels of headings by the ids of styles: the names of built-in styles are English in every language, their ids are not.
fn styles_of(xml: &str) -> HashMap<String, u8> {
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
        // The number of paragraphs around a paragraph, and the text and level of the innermost of them.
        let mut around: Vec<(usize, String, Option<u8>)> = Vec::new();
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
                        // A note or a box of text in a paragraph: the sentence around it goes on behind it.
                        let is_inner = n_paragraphs > 0 && n_rows == 0;
                        if is_inner && n == 1 && around.len() < PARAGRAPH_DEPTH_MAX {
                            let text = std::mem::take(&mut self.text);
                            around.push((n_paragraphs, text, self.level.take()));
                        }
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
                    } else if names.runs.contains(&&*name) {
                        n_runs += n;
                    } else if names.spaces.contains(&&*name) {
                        self.text.push(' ');
                    } else if name == "w:nobreakhyphen" {
                        self.text.push('-');
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
                            if let Some((_, text, level)) =
                                around.pop_if(|(n_around, ..)| *n_around >= n_paragraphs)
                            {
                                (self.text, self.level) = (text, level);
                            }
                        }
                        None if *name == *names.row => {
                            n_rows = n_rows.saturating_sub(1);
                            self.level = None;
                            if n_rows == 0 {
                                self.flush(losses);
                            }
                        }
                        None if names.runs.contains(&&*name) => n_runs = n_runs.saturating_sub(1),
                        None => {}
                    }
                }
                Token::String(text) if hidden.is_none() => {
                    let is_text = if names.runs.is_empty() { n_paragraphs > 0 } else { n_runs > 0 };
                    if is_text {
                        self.text.push_str(&String::from_utf8_lossy(&text));
                    }
                }
                _ => {}
            }
        }
        self.flush(losses);
        for (_, text, level) in around.into_iter().rev() {
            (self.text, self.level) = (text, level);
            self.flush(losses);
        }
    }

    /// Ends the open block.
    fn flush(&mut self, losses: &mut Losses) {
        let text = spaced(&self.text);
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
    fn parts_of_word_have_any_names() {
        let relation =
            |kind: &str, target: &str| format!("<Relationship Type='http://a/{kind}' Target='{target}'/>");
        let root = relation("officeDocument", "/word/document2.xml");
        let main = relation("styles", "styles3.xml");
        let bytes = archive(&[
            ("_rels/.rels", root.as_bytes()),
            ("word/_rels/document2.xml.rels", main.as_bytes()),
            ("word/styles3.xml", b"<w:style w:styleId='x'><w:name w:val='heading 1'/></w:style>"),
            (
                "word/document2.xml",
                b"<w:p><w:pStyle w:val='x'/><w:t>Stay</w:t></w:p><w:p><w:t>Bristol</w:t></w:p>",
            ),
        ]);
        let units = read_docx("a", &bytes, &mut Losses::default()).unwrap();
        assert_eq!(shown(units), [section("Stay", &["Bristol"])]);
    }

    #[test]
    fn sentences_go_on_behind_notes_and_marks() {
        let document = "<w:p><w:t>The co</w:t><w:noBreakHyphen/><w:t>op</w:t><w:ptab/><w:p><w:t>box</w:t></w:p><w:t><![CDATA[x < y]]></w:t>            <m:t>z</m:t></w:p><w:p><w:moveFrom><w:t>gone</w:t></w:moveFrom><w:moveTo><w:t>here</w:t></w:moveTo></w:p>";
        let bytes = archive(&[("word/document.xml", document.as_bytes())]);
        let units = read_docx("a", &bytes, &mut Losses::default()).unwrap();
        assert_eq!(shown(units), [section("a", &["box", "The co-op x < yz", "here"])]);
        let content = "<text:h text:outline-level='1'>Stay</text:h><text:p>The tap<text:note><text:note-citation>1</text:note-citation>\
            <text:note-body><text:p>Note.</text:p></text:note-body></text:note> drips<svg:title>a</svg:title>.</text:p>";
        let units =
            read_odt("a", &archive(&[("content.xml", content.as_bytes())]), &mut Losses::default()).unwrap();
        assert_eq!(shown(units), [section("Stay", &["Note.", "The tap drips."])]);
        // Without their ends, and too many.
        let deep = "<w:p><w:t>a</w:t>".repeat(100);
        let units =
            read_docx("a", &archive(&[("word/document.xml", deep.as_bytes())]), &mut Losses::default());
        assert_eq!(units.map(|units| shown(units)[0].1.len()), Ok(100));
    }

    #[test]
    fn long_ids_of_styles_are_not_kept() {
        let levels = "<w:outlineLvl w:val='1'/>".repeat(3);
        let style = |id: &str| format!("<w:style w:styleId='{id}'/>{levels}");
        let known = styles_of(&format!("{}{}", style(&"x".repeat(STYLE_BYTES_MAX + 1)), style("a")));
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
