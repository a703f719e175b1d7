//! Notes in the encodings of editors: UTF-8 and UTF-16 with byte order marks, in every format.

use refrain_index::notes::SkipReason;
use refrain_index::{ReadLimits, read_documents};

use crate::notes_support::{Place, found, search, update};

/// A file of each format with the words `quokka` and `Zähne 語𝄞`.
const FILES: [(&str, &str); 7] = [
    ("note.md", "---\ntitle: T\n---\n# Title\r\n\r\nA quokka.\r\n\r\n## Below\r\n\r\nZähne 語𝄞 one.\r\n"),
    ("mail.eml", "Subject: s\r\n\r\nA quokka.\r\nZähne 語𝄞 one.\r\n"),
    ("box.mbox", "From a b\nSubject: s\n\nA quokka.\nZähne 語𝄞 one.\n"),
    ("chat.jsonl", "{\"from\":\"A\",\"text\":\"A quokka.\"}\n{\"from\":\"A\",\"text\":\"Zähne 語𝄞 one.\"}\n"),
    ("a.screen", "[1] A quokka.\n[2] Zähne 語𝄞 one.\n"),
    (
        "b.xml",
        "<?xml version=\"1.0\" encoding=\"UTF-16\"?><h><a text=\"A quokka.\"/><a text=\"Zähne 語𝄞 one.\"/></h>",
    ),
    (
        "c.ics",
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:A quokka.\r\nDESCRIPTION:Zähne 語\r\n 𝄞 one.\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
    ),
];

fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(bytes).collect()
}

fn decoded(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|&bytes| unit(bytes)).collect();
    String::from_utf16(&units).unwrap()
}

type Encode = fn(&str) -> Vec<u8>;
type Decode = fn(&[u8]) -> String;

#[test]
fn every_format_is_read_in_every_encoding_with_its_places() {
    let utf8: Decode = |bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let encodings: [(Encode, Decode, bool); 4] = [
        (|text| text.as_bytes().to_vec(), utf8, true),
        (|text| format!("\u{feff}{text}").into_bytes(), utf8, true),
        (|text| utf16(text, u16::to_le_bytes), |bytes| decoded(bytes, u16::from_le_bytes), false),
        (|text| utf16(text, u16::to_be_bytes), |bytes| decoded(bytes, u16::from_be_bytes), false),
    ];
    for (encode, decode, is_utf8) in encodings {
        let place = Place::new();
        for (name, text) in FILES {
            place.write(name, encode(text));
        }
        let mut writer = place.writer();
        let report = update(&mut writer);
        assert_eq!((report.n_added, report.skipped), (FILES.len(), Vec::new()));
        let mut names = found(&place.reader(), "quokka");
        names.sort();
        let mut expected = FILES.map(|(name, _)| name);
        expected.sort_unstable();
        assert_eq!(names, expected);
        for hit in search(&place.reader(), "Zähne") {
            let file = std::fs::read(&hit.passage.path).unwrap();
            let place = &file[hit.passage.place.start as usize..hit.passage.place.end as usize];
            let text = decode(place);
            assert!(text.replace("\r\n ", "").contains("Zähne 語𝄞 one."), "{text:?}");
            assert!(!text.contains('\u{feff}'));
            let is_note = hit.passage.path.ends_with("note.md");
            assert_eq!(hit.passage.is_verbatim, is_utf8 && is_note);
            assert!(!is_note || hit.passage.text == text);
        }
    }
}

#[test]
fn damaged_units_are_replaced_and_other_encodings_named() {
    let place = Place::new();
    let lone = [
        utf16("A quokka ", u16::to_le_bytes),
        vec![0, 0xd8],
        utf16("b", u16::to_le_bytes)[2..].to_vec(),
        vec![b'c'],
    ]
    .concat();
    place.write("lone.txt", lone);
    place.write("latin.txt", b"caf\xe9 quokka");
    place.write("no-mark.txt", &utf16("A quokka.", u16::to_le_bytes)[2..]);
    place.write("binary.txt", utf16("A\0quokka.", u16::to_be_bytes));
    place.write("utf-32.txt", b"\xff\xfe\0\0A\0\0\0");
    let report = update(&mut place.writer());
    let mut skipped: Vec<_> = report
        .skipped
        .iter()
        .map(|skipped| (skipped.path.file_name().unwrap(), skipped.reason.clone()))
        .collect();
    skipped.sort_by_key(|(path, _)| *path);
    let not_text = |name: &'static str, offset| (std::ffi::OsStr::new(name), SkipReason::NotText { offset });
    let expected = [
        not_text("binary.txt", 4),
        not_text("latin.txt", 3),
        not_text("no-mark.txt", 1),
        not_text("utf-32.txt", 2),
    ];
    assert_eq!(skipped, expected);
    let hits = search(&place.reader(), "quokka");
    assert_eq!(
        hits.iter().map(|hit| hit.passage.text.as_str()).collect::<Vec<_>>(),
        ["A quokka \u{fffd}b\u{fffd}"]
    );
    let read = read_documents(&[place.notes().join("lone.txt")], &ReadLimits::default()).unwrap();
    assert_eq!(read.documents[0].text, "A quokka \u{fffd}b\u{fffd}");
}
