//! Documents, tables, values and source code: found with the line or the page, and refused with a reason where they are encrypted,
//! broken, endless or made to grow.

use std::path::Path;

use refrain_index::notes::{SkipReason, UpdateReport, read_texts};
use refrain_index::{Locator, SourceKind};

use crate::notes_support::made::{archive, docx, epub, odt, pdf};
use crate::notes_support::{Place, options, search, update};
use refrain_index::notes::{NotesOptions, NotesWriter};

/// A sound file of each format, with the word `quokka` where the locator says.
fn sound() -> Vec<(&'static str, Vec<u8>, Option<Locator>)> {
    let line = |line| Some(Locator::Line(line));
    vec![
        ("a.html", b"<title>Trip</title>\n<h1>Stay</h1>\n<p>A <b>quokka</b> lives here.".to_vec(), line(3)),
        ("a.csv", b"name,animal\nAda,wolf\n\"Bo\nCy\",quokka\n".to_vec(), line(1)),
        ("a.tsv", b"Ada\tquokka\n".to_vec(), line(1)),
        ("a.json", b"{\n \"animals\": [\n  {\"name\": \"quokka\"}]}".to_vec(), line(3)),
        ("a.yaml", b"animals:\n  - quokka\n".to_vec(), line(1)),
        ("a.rst", b"Trip\n====\n\nIntro.\n\nStay\n----\n\nA quokka.\n".to_vec(), line(9)),
        ("a.org", b"#+title: Trip\n* Stay :fauna:\nA quokka.\n".to_vec(), line(3)),
        ("a.rs", b"//! Animals.\n\nfn quokka() {}\n".to_vec(), line(1)),
        (
            "a.docx",
            docx(
                "<w:body><w:p><w:pPr><w:pStyle w:val='H1'/></w:pPr><w:r><w:t>Stay</w:t></w:r></w:p><w:p><w:r><w:t>A quokka.</w:t></w:r></w:p></w:body>",
            ),
            None,
        ),
        ("a.odt", odt("<text:h text:outline-level='1'>Stay</text:h><text:p>A quokka.</text:p>"), None),
        ("a.epub", epub(b"<html><body><h1>Stay</h1><p>A quokka.</p></body></html>"), None),
        (
            "a.pdf",
            pdf(&[b"BT /F 9 Tf (A wolf.) Tj ET", b"BT /F 9 Tf (A quokka.) Tj ET"], ""),
            Some(Locator::Page(2)),
        ),
    ]
}

fn reason<'a>(report: &'a UpdateReport, name: &str) -> Option<&'a SkipReason> {
    let skipped = report.skipped.iter().find(|skipped| skipped.path.ends_with(name));
    skipped.map(|skipped| &skipped.reason)
}

#[test]
fn every_format_is_found_with_its_line_or_page() {
    for (name, bytes, locator) in sound() {
        let place = Place::new();
        place.write(name, &bytes);
        let hits = search(&place.indexed(), "quokka");
        assert!(hits[0].passage.text.contains("quokka"), "{name}");
        assert_eq!(hits[0].passage.locator, locator, "{name}");
        let texts = read_texts(Path::new(name), &bytes).unwrap().texts;
        assert!(texts.iter().any(|text| text.text.contains("quokka")), "{name}");
    }
    let kind = |name: &str| SourceKind::of(Path::new(name));
    assert_eq!(kind("a.PDF"), Some(SourceKind::Document));
    assert_eq!(kind("a.org"), Some(SourceKind::Note));
    assert_eq!(kind("a.csv"), Some(SourceKind::Data));
    assert_eq!(kind("a.py"), Some(SourceKind::Code));
}

#[test]
fn other_files_are_counted_by_ending() {
    let place = Place::new();
    place.write("a.md", "A wombat.");
    for name in ["a.png", "b.PNG", "c.zip", "noending", ".hidden.png"] {
        place.write(name, "x");
    }
    let counts = update(&mut place.writer()).skipped_by_ending();
    assert_eq!(counts, [("png".to_owned(), 2), (String::new(), 1), ("zip".to_owned(), 1)]);
}

#[test]
fn encrypted_broken_and_textless_files_have_a_reason() {
    let place = Place::new();
    place.write("good.md", "A wombat.");
    place.write("locked.pdf", pdf(&[b"BT /F 9 Tf (x) Tj ET"], "/Encrypt 1 0 R"));
    place.write("image.pdf", pdf(&[b"/X Do"], ""));
    place.write("broken.pdf", "%PDF-1.7\nnothing");
    place.write("locked.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1");
    place.write("broken.epub", b"PK\x05\x06");
    place.write("bomb.docx", docx(&" ".repeat(64 << 20)));
    place.write("bomb.epub", epub(&vec![b'a'; 64 << 20]));
    place.write("bomb.pdf", pdf(&[&vec![b' '; 128 << 20]], ""));
    place.write("deep.json", "[".repeat(1 << 20));
    place.write("other.odt", archive(&[("a", b"b")]));
    let report = update(&mut place.writer());
    let is = |name: &str| reason(&report, name).unwrap_or_else(|| panic!("{name}: {report:?}"));
    assert_eq!((is("locked.pdf"), is("locked.docx")), (&SkipReason::Encrypted, &SkipReason::Encrypted));
    assert_eq!(is("image.pdf"), &SkipReason::NoText);
    for name in ["broken.pdf", "broken.epub", "other.odt"] {
        assert!(matches!(is(name), SkipReason::Broken { .. }), "{name}");
    }
    for name in ["bomb.docx", "bomb.epub", "bomb.pdf"] {
        assert!(
            matches!(is(name), SkipReason::Limit { what: "unpacked bytes", .. }),
            "{name}: {:?}",
            is(name)
        );
    }
    assert!(matches!(is("deep.json"), SkipReason::Limit { limit: 128, .. }));
    assert_eq!(search(&place.reader(), "wombat").len(), 1);
}

/// No reader recurses: the stack is that of a phone's thread.
#[test]
fn deep_and_endless_files_end_in_an_answer_on_a_small_stack() {
    let n = 200_000;
    let place = Place::new();
    place.write("good.md", "A wombat.");
    place.write("deep.html", format!("{}quokka", "<div><ul><li>".repeat(n)));
    place.write("attributes.html", format!("<a{}>quokka", " b='c'".repeat(n)));
    place.write("deep.yaml", format!("a: {}", "[".repeat(n)));
    place.write("deep.docx", docx(&format!("{}<w:t>quokka", "<w:p><w:tbl><w:tr><w:tc>".repeat(n))));
    place.write("deep.odt", odt(&format!("{}quokka", "<text:p><text:list>".repeat(n))));
    place.write("deep.pdf", pdf(&[&b"q [<<".repeat(n)], ""));
    place.write("quote.csv", format!("a,b\n\"{}", "quokka,x\n".repeat(n)));
    place.write("line.csv", "quokka,".repeat(n));
    place.write("marks.rst", "==\n".repeat(n));
    place.write("stars.org", "* a\n".repeat(n / 10));
    place.write("long.js", "quokka;".repeat(n));
    let pool = rayon::ThreadPoolBuilder::new().stack_size(512 << 10).num_threads(2).build().unwrap();
    let report = pool.install(|| update(&mut place.writer()));
    let panicked = report.skipped.iter().filter(|skipped| skipped.reason.to_string().contains("panicked"));
    assert_eq!(panicked.count(), 0, "{report:?}");
    assert!(matches!(reason(&report, "quote.csv"), Some(SkipReason::Partly { n: 1, .. })), "{report:?}");
    assert_eq!(search(&place.reader(), "wombat").len(), 1);
}

#[test]
fn a_page_of_100_megabytes_is_refused_by_its_length() {
    let place = Place::new();
    place.write("good.md", "A wombat.");
    place.write("long.html", "<p>quokka".repeat(100_000_000 / 9));
    let report = update(&mut place.writer());
    assert!(matches!(reason(&report, "long.html"), Some(SkipReason::TooLong { limit: 8_388_608, .. })));
    assert_eq!(search(&place.reader(), "wombat").len(), 1);
}

#[test]
fn cut_and_changed_files_end_in_an_answer() {
    let place = Place::new();
    place.write("good.md", "A wombat.");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for (name, bytes, _) in sound() {
        for i in 0..60 {
            let mut changed = bytes.clone();
            for _ in 0..=random(4) {
                let at = random(changed.len());
                changed[at] = [0, b'<', b'"', b'[', b'9', 0x80, 0xff][random(7)];
            }
            if i % 3 == 0 {
                changed.truncate(random(bytes.len()));
            }
            place.write(&format!("{i}{name}"), changed);
        }
    }
    let mut writer =
        NotesWriter::open(&place.index(), NotesOptions { n_entries_max: 2000, ..options() }).unwrap();
    writer.add(&[place.notes()]).unwrap();
    let report = update(&mut writer);
    let panicked = report.skipped.iter().filter(|skipped| skipped.reason.to_string().contains("panicked"));
    assert_eq!(panicked.count(), 0, "{report:?}");
    assert_eq!(search(&place.reader(), "wombat").len(), 1);
}

/// Writes the files that the fuzz target `document` starts from: the number of the format, then the file.
#[test]
#[ignore = "writes into fuzz/seeds; run it when a format changes"]
fn write_fuzz_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/document");
    std::fs::create_dir_all(&folder).unwrap();
    for (at, (name, bytes, _)) in sound().into_iter().enumerate() {
        std::fs::write(folder.join(&name[2..]), [&[at as u8], &bytes[..]].concat()).unwrap();
    }
}
