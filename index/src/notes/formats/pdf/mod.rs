//! The text layer of PDF (ISO 32000): a unit for each page. Images of text have none.
//!
//! Public readers of PDF recurse, panic or unpack without a limit on files that are made for it, and a phone has no child process that
//! could end instead. This one has a stack of its own for everything that nests, and budgets for everything that a few bytes can make
//! grow: values, unpacked bytes, forms, text. It reads no table of places, no encryption and no fonts but their maps.

mod file;
mod filter;
mod font;
mod object;
mod text;

use std::collections::HashSet;
use std::rc::Rc;

use self::file::{File, find};
use self::object::{Dict, Object};
use self::text::{Layout, Reader, note_unknown};
use super::limits::{PDF_OBJECTS_MAX, PDF_PAGES_MAX};
use super::parse_date;
use super::unit::{Body, Lines, Losses, Unit, spaced};
use crate::notes::report::SkipReason;
use crate::passage::short_title;

/// Bytes in which a file names its format.
const HEADER_BYTES: usize = 1024;

/// Reads the pages with text.
pub(super) fn read(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    if find(&bytes[..bytes.len().min(HEADER_BYTES)], 0, b"%PDF-").is_none() {
        return Err(SkipReason::Broken { what: "no header of a PDF", offset: 0 });
    }
    let file = File::open(bytes)?;
    let info = file.info.as_ref().map_or(Object::Null, |info| file.resolve(info));
    let info = if let Object::Dict(info) = info { info } else { Rc::default() };
    let title = file.entry(&info, b"Title").text().map(text_of).unwrap_or_default();
    let title = if title.is_empty() { name } else { &title };
    let date = file.entry(&info, b"CreationDate").text().and_then(date_of);
    let pages = pages(&file, losses);
    let mut reader = Reader::new(&file);
    let mut units = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        let mut layout = Layout::default();
        let read = contents(&file, &page.dict).and_then(|data| {
            reader.read(data, Rc::clone(&page.resources), &mut layout, file.offset(page.number))
        });
        let mut lines = Lines::default();
        for paragraph in layout.into_paragraphs() {
            lines.push(&paragraph, 0..bytes.len(), losses);
        }
        if !lines.is_empty() {
            units.push(Unit {
                // A long one is text of the first page.
                title: if units.is_empty() { title } else { short_title(title) }.to_owned(),
                body: Body::Decoded(lines.into_pieces()),
                date,
                tags: Vec::new(),
                page: Some(at as u64 + 1),
            });
        }
        if let Err(reason) = read {
            losses.add(reason);
            break;
        }
    }
    note_unknown(reader.n_unknown, losses);
    if let Some((what, limit)) = reader.lost {
        losses.add(SkipReason::Limit { what, limit: limit as u64, offset: 0 });
    }
    if let Some(limit) = file.exceeded() {
        losses.add(limit);
    }
    match units.is_empty() {
        true => Err(losses.first.take().unwrap_or(SkipReason::NoText)),
        false => Ok(units),
    }
}

struct Page {
    number: u32,
    dict: Rc<Dict>,
    resources: Rc<Dict>,
}

/// The pages in their order, each once. Without a tree, those that the file has.
fn pages(file: &File<'_>, losses: &mut Losses) -> Vec<Page> {
    let root = file.root.as_ref().map_or(Object::Null, |root| file.resolve(root));
    let mut waiting: Vec<(u32, Rc<Dict>)> = Vec::new();
    if let Object::Dict(root) = root
        && let Some(Object::Reference(number)) = root.get(&b"Pages"[..])
    {
        waiting.push((*number, Rc::default()));
    }
    let (mut seen, mut pages, mut n_kids) = (HashSet::new(), Vec::new(), 0_usize);
    let loose = file.loose_pages.iter().map(|&number| (number, Rc::default()));
    if waiting.is_empty() {
        waiting.extend(loose.clone().rev());
    }
    let mut has_tree = true;
    loop {
        let Some((number, above)) = waiting.pop() else {
            // A tree that leads to no page is damaged.
            if pages.is_empty() && std::mem::take(&mut has_tree) {
                waiting.extend(loose.clone().rev());
                seen.clear();
                continue;
            }
            return pages;
        };
        let Object::Dict(dict) = file.get(number) else { continue };
        if !seen.insert(number) {
            continue;
        }
        let resources = match file.entry(&dict, b"Resources") {
            Object::Dict(resources) => resources,
            _ => above,
        };
        if let Object::List(kids) = file.entry(&dict, b"Kids") {
            // Nodes may share a list.
            n_kids += kids.len();
            if n_kids > PDF_OBJECTS_MAX {
                let (limit, offset) = (PDF_OBJECTS_MAX as u64, file.offset(number) as u64);
                losses.add(SkipReason::Limit { what: "kids of pages", limit, offset });
                return pages;
            }
            let kids = kids.iter().rev().filter_map(|kid| match kid {
                Object::Reference(number) if !seen.contains(number) => Some((*number, Rc::clone(&resources))),
                _ => None,
            });
            waiting.extend(kids);
        } else if pages.len() == PDF_PAGES_MAX {
            let (limit, offset) = (PDF_PAGES_MAX as u64, file.offset(number) as u64);
            losses.add(SkipReason::Limit { what: "pages", limit, offset });
            return pages;
        } else {
            pages.push(Page { number, dict, resources });
        }
    }
}

/// The operators of a page.
fn contents(file: &File<'_>, page: &Dict) -> Result<Vec<u8>, SkipReason> {
    let contents = page.get(&b"Contents"[..]).cloned().unwrap_or(Object::Null);
    let parts = match (&contents, file.resolve(&contents)) {
        (_, Object::List(parts)) => parts,
        _ => Rc::new(vec![contents]),
    };
    // Pages may share a list.
    file.budget.take(parts.len(), 0)?;
    let mut data = Vec::new();
    for part in parts.iter() {
        if let Object::Reference(number) = part
            && let Some(part) = file.stream(*number)?
        {
            data.extend(part);
            data.push(b'\n');
        }
    }
    Ok(data)
}

/// A text of the file's properties: UTF-16 or UTF-8 with a mark, else nearly Latin-1.
fn text_of(bytes: &[u8]) -> String {
    let text = match bytes {
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] | [0xef, 0xbb, 0xbf, ..] => {
            String::from_utf8_lossy(&super::Decoded::new(bytes).bytes).into_owned()
        }
        bytes => bytes.iter().map(|&byte| char::from(byte)).collect(),
    };
    spaced(&text).replace('\0', "")
}

/// `D:20240501120000+02'00'`: its day.
fn date_of(bytes: &[u8]) -> Option<i64> {
    let day = bytes.strip_prefix(b"D:").unwrap_or(bytes).get(..8)?;
    parse_date(std::str::from_utf8(day).ok()?)
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::super::limits::TEXT_BYTES_MAX;
    use super::super::unit::Piece;
    use super::*;

    /// A file of objects, numbered from 1; the first one is the catalog.
    fn made(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
        let mut bytes = b"%PDF-1.7\n".to_vec();
        for (at, object) in objects.iter().enumerate() {
            bytes.extend(format!("{} 0 obj\n", at + 1).into_bytes());
            bytes.extend(object);
            bytes.extend(b"\nendobj\n");
        }
        bytes.extend(format!("trailer <</Root 1 0 R {trailer}>>\n%%EOF").into_bytes());
        bytes
    }

    fn stream(entries: &str, data: &[u8]) -> Vec<u8> {
        [format!("<<{entries} /Length {}>>\nstream\n", data.len()).as_bytes(), data, b"\nendstream"].concat()
    }

    fn packed(entries: &str, data: &[u8]) -> Vec<u8> {
        stream(&format!("{entries} /Filter /FlateDecode"), &compress_to_vec_zlib(data, 6))
    }

    /// A file with a page of these operators.
    fn page(operators: &[u8], more: &[Vec<u8>]) -> Vec<u8> {
        let mut objects = vec![
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            b"<</Type /Pages /Kids [3 0 R 2 0 R] /Resources <</Font <</F 5 0 R>> /XObject <</X 6 0 R>>>>>>".to_vec(),
            b"<</Type /Page /Contents [4 0 R]>>".to_vec(),
            packed("", operators),
            b"<</Type /Font /Subtype /Type1 /Encoding <</BaseEncoding /WinAnsiEncoding /Differences [1 /Aacute /fi]>>>>".to_vec(),
        ];
        objects.extend_from_slice(more);
        made(&objects, "")
    }

    fn texts(bytes: &[u8]) -> Result<Vec<(Option<u64>, String)>, SkipReason> {
        let units = read("name", bytes, &mut Losses::default())?;
        let text = |unit: Unit| match unit.body {
            Body::Decoded(pieces) => {
                let texts: Vec<_> = pieces.into_iter().map(|Piece { text, .. }| text).collect();
                (unit.page, texts.join("\n"))
            }
            Body::Verbatim(_) => unreachable!("pages are decoded"),
        };
        Ok(units.into_iter().map(text).collect())
    }

    fn one(operators: &str) -> String {
        texts(&page(operators.as_bytes(), &[])).unwrap().remove(0).1
    }

    #[test]
    fn words_lines_and_paragraphs_are_told_apart() {
        assert_eq!(
            one("BT /F 10 Tf 1 0 0 1 50 700 Tm (The tap) Tj 0 -12 Td (drips.) Tj 0 -30 Td (New.) Tj ET"),
            "The tap drips.\nNew."
        );
        assert_eq!(one("BT /F 10 Tf [(Th) 20 (e) -300 (tap)] TJ ET"), "The tap");
        assert_eq!(one("BT /F 10 Tf 12 TL (a divi-) Tj T* (ded word) Tj (and) ' ET"), "a divided word and");
        assert_eq!(
            one(
                "BT /F 1 Tf 10 0 0 10 0 0 Tm (\\001\\002\\351) Tj ET q 1 0 0 1 0 -500 cm BT /F 10 Tf (x) Tj ET Q"
            ),
            "Áfié\nx"
        );
        assert_eq!(one("BI /W 1 ID (Tj EIx) \x01 EI BT /F 10 Tf (after) Tj ET"), "after");
    }

    #[test]
    fn forms_maps_and_packed_objects_are_read() {
        let map = "1 begincodespacerange <0000> <ffff> endcodespacerange 1 beginbfchar <0001> <00660069> endbfchar \
            2 beginbfrange <0010> <0012> <0410> <0020> <0021> [<0061> <0062>] endbfrange";
        let inner = "8 0 9 40 <</Type /Font /Subtype /CIDFontType2 /W [1 [500]]>> <</A 1>>     ";
        let objects = [
            packed("/Subtype /Form /Resources <</Font <</G 7 0 R>>>>", b"BT /G 10 Tf <00010010001200200099> Tj ET"),
            b"<</Type /Font /Subtype /Type0 /Encoding /Identity-H /DescendantFonts [8 0 R] /ToUnicode 10 0 R>>".to_vec(),
            packed("/Type /ObjStm /N 2 /First 9", inner.as_bytes()),
            b"null".to_vec(),
            packed("", map.as_bytes()),
        ];
        // (The stream of objects, number 8, holds its successor: the later one of a number counts.)
        let bytes = page(b"BT /F 10 Tf (before) Tj ET 1 0 0 1 0 -100 cm /X Do", &objects);
        let mut losses = Losses::default();
        let unit = read("a", &bytes, &mut losses).unwrap().remove(0);
        let Body::Decoded(pieces) = unit.body else { unreachable!("pages are decoded") };
        assert_eq!(pieces[0].text, "before\nfiАВa");
        assert_eq!(losses.n, 1, "a code without a text");
    }

    #[test]
    fn pages_have_numbers_titles_and_a_date() {
        let objects = [
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            b"<</Kids [3 0 R 4 0 R 5 0 R]>>".to_vec(),
            b"<</Contents 6 0 R /Resources 7 0 R>>".to_vec(),
            b"<</Resources 7 0 R>>".to_vec(),
            b"<</Contents 6 0 R /Resources 7 0 R>>".to_vec(),
            stream("", b"BT /F 9 Tf (quokka) Tj ET"),
            b"<</Font <</F <</Subtype /TrueType>>>>>>".to_vec(),
            b"<</Title <feff00540072> /CreationDate (D:20240501120000Z)>>".to_vec(),
        ];
        let units = read("a", &made(&objects, "/Info 8 0 R"), &mut Losses::default()).unwrap();
        let shown: Vec<_> = units.iter().map(|unit| (unit.title.as_str(), unit.page, unit.date)).collect();
        assert_eq!(shown, [("Tr", Some(1), Some(1_714_521_600)), ("Tr", Some(3), Some(1_714_521_600))]);
    }

    #[test]
    fn parts_of_a_page_that_are_left_out_are_reported() {
        let lost = |operators: &str, more: &[Vec<u8>]| {
            let mut losses = Losses::default();
            let units = read("a", &page(format!("{operators} /F 9 Tf (a) Tj").as_bytes(), more), &mut losses);
            (units.is_ok(), losses.first)
        };
        assert_eq!(lost("", &[]), (true, None));
        assert_eq!(lost(&"q Q".repeat(300), &[]), (true, None));
        // No font.
        assert!(matches!(lost("(x) Tj", &[]), (true, Some(SkipReason::Broken { .. }))));
        let limit = |lost, of| matches!(lost, (true, Some(SkipReason::Limit { what, .. })) if what == of);
        assert!(limit(lost(&"q ".repeat(300), &[]), "saved states in each other"));
        assert!(limit(lost("/X Do", &[stream("/Subtype /Form", b"/X Do")]), "forms in each other"));
        // Images are no forms, and a form without text is read once.
        let icons = "/X Do ".repeat(25_000);
        assert_eq!(lost(&icons, &[stream("/Subtype /Image", b"x")]), (true, None));
        assert_eq!(lost(&icons, &[stream("/Subtype /Form", &[b' '; 4000])]), (true, None));
        assert!(limit(lost(&icons, &[stream("/Subtype /Form", b"() Tj")]), "forms"));
    }

    #[test]
    fn glyphs_that_are_drawings_have_widths_in_their_own_space() {
        let font = b"<</Subtype /Type3 /FontMatrix [0.01 0 0 0.01 0 0] /FirstChar 65 /Widths [60 60 60]>>";
        let form =
            stream("/Subtype /Form /Resources <</Font <</G 7 0 R>>>>", b"/G 10 Tf (A) Tj 6 0 Td (B) Tj");
        assert_eq!(texts(&page(b"/X Do", &[form, font.to_vec()])).unwrap().remove(0).1, "AB");
    }

    #[test]
    fn standard_fonts_have_widths() {
        let font = b"<</Subtype /Type1 /BaseFont /Helvetica-Oblique>>".to_vec();
        let shown = b"BT /G 10 Tf (illi) Tj 8.88 0 Td (x) Tj 8 0 Td (y) Tj ET";
        let form = stream("/Subtype /Form /Resources <</Font <</G 7 0 R>>>>", shown);
        assert_eq!(texts(&page(b"/X Do", &[form, font])).unwrap().remove(0).1, "illix y");
    }

    #[test]
    fn encrypted_empty_and_broken_files_are_refused() {
        let sound = page(b"BT /F 10 Tf (quokka) Tj ET", &[]);
        let encrypted = made(&[b"<</Type /Catalog>>".to_vec()], "/Encrypt 9 0 R");
        assert_eq!(texts(&encrypted), Err(SkipReason::Encrypted));
        assert_eq!(texts(&page(b"0 0 m 1 1 l S", &[])), Err(SkipReason::NoText));
        assert!(matches!(texts(b"no PDF"), Err(SkipReason::Broken { .. })));
        assert!(matches!(texts(b"%PDF-1.4\n"), Err(SkipReason::Broken { .. })));
        // Without its end, a file has no trailer.
        let end = find(&sound, 0, b"trailer").unwrap();
        assert_eq!(texts(&sound[..end]), texts(&sound));
        for at in 0..sound.len() {
            let _ = texts(&sound[..at]);
            let mut changed = sound.clone();
            changed[at] ^= 0x15;
            let _ = texts(&changed);
        }
    }

    #[test]
    fn bombs_loops_and_depth_end_in_an_answer() {
        let limit = |bytes: &[u8]| matches!(texts(bytes), Err(SkipReason::Limit { .. }));
        assert!(limit(&page(&vec![b' '; 100 << 20], &[])));
        // Filters in each other.
        let twice = compress_to_vec_zlib(&vec![0; 60 << 20], 9);
        let bomb = stream("/Filter [/FlateDecode /FlateDecode]", &compress_to_vec_zlib(&twice, 9));
        let _ = texts(&page(b"/X Do", &[bomb]));
        // A form that shows itself, and many of them.
        let form = stream("/Subtype /Form", &b"/X Do ".repeat(1000));
        let _ = texts(&page(b"/X Do", &[form]));
        let _ = texts(&page("[".repeat(1 << 20).as_bytes(), &[]));
        let _ = texts(&page("q ".repeat(1 << 20).as_bytes(), &[]));
        let _ = texts(&page("(".repeat(1 << 20).as_bytes(), &[]));
        let _ = texts(&[b"%PDF-1.4\n".to_vec(), b"1 0 obj <<".repeat(100_000)].concat());
        let _ = texts(&[b"%PDF-1.4\n".to_vec(), b"1 0 obj 1 0 R stream\n".repeat(100_000)].concat());
        // An empty stream that each page shows often.
        let pages: String = (0..1000).map(|at| format!("{} 0 R ", at + 5)).collect();
        let mut objects = vec![
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            format!("<</Kids [{pages}]>>").into_bytes(),
            stream("", b""),
            format!("[{}]", "3 0 R ".repeat(50_000)).into_bytes(),
        ];
        objects.resize(1004, b"<</Contents 4 0 R>>".to_vec());
        assert!(limit(&made(&objects, "")));
        // A range of codes that multiplies its text.
        let map = format!("1 beginbfrange <0000> <ffff> <{}> endbfrange", "0041".repeat(1000));
        let font = b"<</Subtype /Type0 /ToUnicode 8 0 R>>".to_vec();
        let objects = [
            stream("/Subtype /Form /Resources <</Font <</G 7 0 R>>>>", b"BT /G 1 Tf (ab) Tj ET"),
            font,
            stream("", map.as_bytes()),
        ];
        let text = texts(&page(b"/X Do", &objects)).unwrap().remove(0).1;
        assert!(text.len() <= 64, "{}", text.len());
        // A comment without an end behind each object.
        assert_eq!(
            texts(&[b"%PDF-1.4\n".to_vec(), b"1 0 obj<<>>%".repeat(100_000)].concat()),
            Err(SkipReason::NoText)
        );
        // Pages that share a long list of no contents.
        let pages: String = (0..300).map(|at| format!("{} 0 R ", at + 4)).collect();
        let mut objects = vec![
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            format!("<</Kids [{pages}]>>").into_bytes(),
            format!("[{}]", "null ".repeat(260_000)).into_bytes(),
        ];
        objects.resize(303, b"<</Contents 3 0 R>>".to_vec());
        assert!(limit(&made(&objects, "")));
        // Operands of many values: those before the last are not kept.
        let list = format!("[{}] ", "0 ".repeat(200_000));
        assert!(texts(&page(format!("/F {list}{list} 9 Tf (a) Tj").as_bytes(), &[])).is_err());
        let map = format!("{list}{list}<61> <0062> endbfchar <62> <0063> endbfchar");
        let font = b"<</Subtype /TrueType /ToUnicode 8 0 R>>".to_vec();
        let form = stream("/Subtype /Form /Resources <</Font <</G 7 0 R>>>>", b"/G 1 Tf (ab) Tj");
        let read = texts(&page(b"/X Do", &[form, font, stream("", map.as_bytes())]));
        assert_eq!(read.unwrap().remove(0).1, "ac");
        // More fonts than any file has.
        let fonts: String = (0..40_000).map(|at| format!("/a{at} <<>> ")).collect();
        let shown: String = (0..40_000).map(|at| format!("/a{at} 1 Tf ")).collect();
        let form = packed(&format!("/Subtype /Form /Resources <</Font <<{fonts}>>>>"), shown.as_bytes());
        assert!(limit(&page(b"/X Do", &[form])));
    }

    #[test]
    fn a_string_ends_at_the_limit_of_text() {
        let map = format!("1 beginbfchar <41> <{}> endbfchar", "20ac".repeat(16));
        let bytes = made(
            &[
                b"<</Font <</F 2 0 R>>>>".to_vec(),
                b"<</Subtype /TrueType /ToUnicode 3 0 R>>".to_vec(),
                stream("", map.as_bytes()),
            ],
            "",
        );
        let file = File::open(&bytes).unwrap();
        let Object::Dict(resources) = file.get(1) else { unreachable!("it is a dictionary") };
        let mut reader = Reader::new(&file);
        let operators = format!("/F 1 Tf ({}) Tj", "A".repeat(1_000_000)).into_bytes();
        let read = reader.read(operators, resources, &mut Layout::default(), 9);
        assert!(matches!(read, Err(SkipReason::Limit { offset: 9, .. })), "{read:?}");
        assert!(reader.n_text <= TEXT_BYTES_MAX + 48, "{}", reader.n_text);
    }

    #[test]
    fn a_long_title_is_text_of_the_first_page_alone() {
        let title = "quokka ".repeat(1000);
        let objects = [
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            b"<</Kids [3 0 R 4 0 R] /Resources <</Font <</F <<>>>>>>>>".to_vec(),
            b"<</Contents 5 0 R>>".to_vec(),
            b"<</Contents 5 0 R>>".to_vec(),
            stream("", b"BT /F 9 Tf (text) Tj ET"),
            format!("<</Title ({title})>>").into_bytes(),
        ];
        let units = read("a", &made(&objects, "/Info 6 0 R"), &mut Losses::default()).unwrap();
        let lens: Vec<_> = units.iter().map(|unit| unit.title.len()).collect();
        assert_eq!(lens, [title.trim().len(), 256]);
    }

    #[test]
    fn values_count_once_and_those_behind_the_limit_are_reported() {
        // Objects at the same offset of a stream, on a long string.
        let numbers: String = (0..1000).map(|at| format!("{} 0 ", at + 10)).collect();
        let data = format!("{numbers}({})", "x".repeat(1 << 20));
        let entries = format!("/Type /ObjStm /N 1000 /First {}", numbers.len());
        let bytes = made(&[packed(&entries, data.as_bytes())], "");
        let file = File::open(&bytes).unwrap();
        let n_read = (10..1010).filter(|&number| file.get(number).text().is_some()).count();
        assert!((1..100).contains(&n_read), "{n_read}");
        assert!(matches!(file.exceeded(), Some(SkipReason::Limit { what: "values", .. })));
        // Many pages with long dictionaries.
        let n_pages = 4000;
        let kids: String = (0..n_pages).map(|at| format!("{} 0 R ", at + 4)).collect();
        let mut objects = vec![
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            format!("<</Kids [{kids}] /Resources <</Font <</F <<>>>>>>>>").into_bytes(),
            stream("", b"/F 9 Tf (a) Tj"),
        ];
        let page = format!("<</Contents 3 0 R /Annots [{}]>>", "1 0 R ".repeat(100));
        objects.resize(n_pages + 3, page.into_bytes());
        let mut losses = Losses::default();
        let units = read("a", &made(&objects, ""), &mut losses).unwrap();
        assert_eq!((units.len(), losses.n), (n_pages, 0));
    }

    #[test]
    fn widths_count_and_end_with_the_codes() {
        let font = |widths: &str, more: &[u8]| {
            let objects = [
                b"<</Subtype /Type0 /DescendantFonts [2 0 R]>>".to_vec(),
                format!("<</W [{widths}]>>").into_bytes(),
                more.to_vec(),
            ];
            let bytes = made(&objects, "");
            let file = File::open(&bytes).unwrap();
            let Object::Dict(font) = file.get(1) else { unreachable!("it is a dictionary") };
            let widths: Vec<f64> = font::Font::read(&file, &font)
                .unwrap()
                .codes(b"\0\x01\0\x02")
                .map(|code| code.width)
                .collect();
            (widths, file.take_code())
        };
        assert_eq!(font("1 [null 250]", b"null"), (vec![1.0, 0.25], true));
        assert_eq!(font("4294967295 [500 500]", b"null"), (vec![1.0, 1.0], true));
        // A shared list without a width.
        let nulls = format!("[{}]", "null ".repeat(1000));
        assert_eq!(font(&"0 3 0 R ".repeat(1000), nulls.as_bytes()), (vec![1.0, 1.0], false));
    }
}
