//! Every word that a person wrote is found, wherever it stands in a note, its name or its folder.

use std::fs;
use std::ops::ControlFlow;

use proptest::prelude::*;
use refrain_index::notes::{Embedder, NotesWriter, Search};

use crate::notes_support::{Place, found, options, search, update};

/// A note, a request, and the title and text of the passage that it finds.
fn check(name: &str, note: &str, request: &str, title: &str, text: &str) {
    let place = Place::new();
    let path = place.write(name, note);
    place.write("other.md", "# Other\n\nSomething else.\n");
    let hits = search(&place.indexed(), request);
    assert_eq!(hits.len(), 1, "{request} in {note}");
    let passage = &hits[0].passage;
    assert_eq!(
        (&passage.path, passage.title.as_str(), passage.text.as_str()),
        (&path, title, text),
        "{note}"
    );
    if passage.is_verbatim {
        assert_eq!(
            &note.as_bytes()[passage.place.start as usize..passage.place.end as usize],
            text.as_bytes()
        );
    }
    assert_eq!(&passage.text[hits[0].snippet.range.clone()], hits[0].snippet.text);
}

#[test]
fn a_heading_without_text_is_found() {
    check("a.md", "# House\n\n## Boiler code 4410\n", "boiler 4410", "House", "## Boiler code 4410");
    check(
        "a.md",
        "# House\n\nOld.\n\n## Boiler code 4410\n\n## Roof\n\nNew.\n",
        "4410",
        "House",
        "## Boiler code 4410",
    );
    check("a.md", "## Boiler code 4410", "4410", "a", "## Boiler code 4410");
    check("a.md", "# Boiler code 4410\n", "4410", "Boiler code 4410", "# Boiler code 4410");
    check("a.md", "Boiler code 4410\n====\n", "4410", "Boiler code 4410", "Boiler code 4410\n====");
    check("a.md", "# House\n\n## Codes\n\n### Boiler\n\n4410\n", "codes", "House: Codes: Boiler", "4410");
    check(
        "a.md",
        "---\ntitle: House\n---\n# Codes\n## Boiler\n",
        "boiler",
        "House: Codes",
        "# Codes\n## Boiler",
    );
    check("a.md", "> # Boiler 4410\n", "4410", "a", "> # Boiler 4410");
    check("a.md", "<h2>Boiler 4410</h2>\n", "4410", "a", "<h2>Boiler 4410</h2>");
    let long = format!("## {}4410\n\ntext\n", "boiler ".repeat(60));
    check("a.md", &long, "4410", &format!("a: {}", &long[3..3 + 256]), long.trim_end());
}

#[test]
fn names_are_found() {
    check("Passport K4471.md", "", "passport K4471", "Passport K4471", "Passport K4471");
    check("Passport K4471.txt", " \r\n", "k4471", "Passport K4471", "Passport K4471");
    check("Passport K4471.md", "# Papers\n\nIn the drawer.\n", "passport", "Papers", "In the drawer.");
    check("insurance/2024/car.md", "# Papers\n\nIn the drawer.\n", "insurance", "Papers", "In the drawer.");
    check("a.eml", "Subject: Boiler 4410\n\n", "4410", "Boiler 4410", "Boiler 4410");
    check("4410.eml", "Subject: Boiler\n\ntext\n", "4410", "Boiler", "text");
    let event = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Boiler 4410\nEND:VEVENT\nEND:VCALENDAR\n";
    check("a.ics", event, "4410", "Boiler 4410", "Boiler 4410");
    // A title is cut in the passages of a message, so a long subject is text too.
    let subject = format!("{}4410", "boiler ".repeat(60));
    check(
        "a.eml",
        &format!("Subject: {subject}\n\ntext\n"),
        "4410",
        &subject[..256],
        &format!("{subject}\n\ntext"),
    );
}

#[test]
fn the_name_of_the_notes_folder_is_no_word_of_every_note() {
    let place = Place::new();
    place.write("a/b.md", "# A\n\ntext");
    place.write("c.md", "My notes.");
    assert_eq!(found(&place.indexed(), "notes"), ["c.md"]);
    // A folder above the root is one of its names when it is added too.
    let mut writer = place.writer();
    writer.add(&[place.notes().join("a")]).unwrap();
    update(&mut writer);
    assert_eq!(found(&place.reader(), "a b"), ["b.md"]);
    drop(writer);
    fs::remove_dir_all(place.index()).unwrap();
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    writer.add(&[place.notes().join("a")]).unwrap();
    update(&mut writer);
    assert_eq!(search(&place.reader(), "a").len(), 1, "the title");
    writer.add(&[place.notes().parent().unwrap()]).unwrap();
    update(&mut writer);
    assert_eq!(search(&place.reader(), "notes").len(), 2);
}

#[test]
fn front_matter_is_found() {
    for (front, request) in [
        ("title: >-\n  Boiler\n  4410", "4410"),
        ("tags: [boiler, 4410]", "4410"),
        ("aliases:\n- Boiler 4410\n- Heater", "4410"),
        ("title: Boiler # code 4410", "4410"),
        ("where: {room: cellar, code: '4410'}", "4410"),
        ("# code 4410\ntitle: Boiler", "4410"),
        ("date: in week 4410", "4410"),
        ("title: a: 4410", "4410"),
        ("\n4410\n", "4410"),
    ] {
        for body in ["", "text\n", "# Heading\n\ntext\n", "\n\n---\n\ntext\n"] {
            let place = Place::new();
            let note = format!("---\n{front}\n---\n{body}");
            place.write("a.md", &note);
            let index = place.indexed();
            assert!(!search(&index, request).is_empty(), "{note}");
            assert_eq!(body.is_empty(), search(&index, "text").is_empty(), "{note}");
        }
    }
    check("a.md", "---\naliases: [Heater]\n---\n# Boiler\n\ntext\n", "heater", "Boiler", "text");
    check(
        "a.md",
        "---\n\nA sentence.\n\n---\n\ntext\n",
        "sentence",
        "a",
        "---\n\nA sentence.\n\n---\n\ntext",
    );
}

#[test]
fn every_construct_is_found() {
    for note in [
        "![xyzzy](b.png)\n",
        "![a](b.png \"xyzzy\")\n",
        "[a](https://example.org/xyzzy)\n",
        "[xyzzy](a)\n",
        "[a]: https://example.org/xyzzy\n",
        "[[xyzzy]]\n",
        "[[a|xyzzy]]\n",
        "<https://example.org/xyzzy>\n",
        "| a | b |\n|---|---|\n| c | xyzzy |\n",
        "a[^1]\n\n[^1]: xyzzy\n",
        "<!-- xyzzy -->\n",
        "a <b title=\"xyzzy\">b</b>\n",
        "<div>\nxyzzy\n</div>\n",
        "```\nxyzzy\n```\n",
        "```xyzzy\na\n```\n",
        "    xyzzy\n",
        "`xyzzy`\n",
        "- [ ] xyzzy\n- [x] b\n",
        "1. a\n   - xyzzy\n",
        "> > xyzzy\n",
        "$$xyzzy$$\n",
        "%% xyzzy %%\n",
        "#xyzzy\n",
        "a\n: xyzzy\n",
        "a ```b``` c\n\n# xyzzy\n",
        "# A\n\n# [a](xyzzy)\n",
        "a\n\nxyzzy\n---\n",
    ] {
        let place = Place::new();
        place.write("a.md", note);
        assert_eq!(found(&place.indexed(), "xyzzy"), ["a.md"], "{note}");
    }
}

#[test]
fn a_note_too_deep_or_too_long_for_the_parser_is_text() {
    let place = Place::new();
    place.write("deep.md", format!("{}xyzzy\n{}\n# plugh\n", ">".repeat(5000), "a\n".repeat(5000)));
    place.write("long.md", format!("{}\n\n# plover\n\n## xyzzy\n", "*".repeat(1 << 20)));
    let index = place.indexed();
    let files = |request| {
        let mut files = found(&index, request);
        files.sort();
        files.dedup();
        files
    };
    assert_eq!(files("xyzzy"), ["deep.md", "long.md"]);
    assert_eq!(files("plugh"), ["deep.md"]);
    assert_eq!(files("plover"), ["long.md"]);
}

/// The number of characters, so that an empty text would have a vector too.
struct Length;

impl Embedder for Length {
    fn identity(&self) -> u64 {
        7
    }

    fn dimensions(&self) -> usize {
        2
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Box<dyn std::error::Error + Send + Sync>> {
        assert!(texts.iter().all(|text| !text.trim().is_empty()), "{texts:?}");
        Ok(texts.iter().map(|text| vec![text.len() as f32, 1.0]).collect())
    }
}

#[test]
fn an_empty_note_is_updated_embedded_and_forgotten() {
    let place = Place::new();
    let path = place.write("Passport K4471.md", "");
    let mut writer = place.writer();
    assert_eq!((update(&mut writer).n_passages, update(&mut writer).n_unchanged), (1, 1));
    writer.embed(&Length, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let index = place.reader();
    let mut request = Search::new("something", 5);
    request.embedder = Some(&Length);
    let hits = index.search(&request).unwrap();
    assert_eq!((hits.len(), hits[0].passage.place.clone(), hits[0].passage.is_verbatim), (1, 0..0, false));
    assert_eq!(index.passages_of(&path).unwrap().len(), 1);
    fs::write(&path, "text").unwrap();
    update(&mut writer);
    let hit = &search(&place.reader(), "K4471")[0];
    assert_eq!((hit.passage.text.as_str(), hit.passage.place.clone()), ("text", 0..4));
    fs::write(&path, "").unwrap();
    update(&mut writer);
    assert_eq!(search(&place.reader(), "K4471").len(), 1);
    writer.forget(&[&path]).unwrap();
    assert!(search(&place.reader(), "K4471").is_empty() && place.files_with("k4471").is_empty());
    assert!(place.files_with("K4471").is_empty());
}

/// A note of constructs with words of their own.
fn note() -> impl Strategy<Value = String> {
    let construct = prop_oneof![
        Just("# W W\n\n"),
        Just("## W\n"),
        Just("### W W\n\n"),
        Just("W\n===\n"),
        Just("W W\n---\n"),
        Just("W W. W\n\n"),
        Just("- W\n  - W\n"),
        Just("> # W\n> W\n"),
        Just("```W\n# W\n```\n"),
        Just("a ```W``` b\n"),
        Just("```\nW\n"),
        Just("<!-- W\n\n"),
        Just("-->\n"),
        Just("<b a=\"W\">W\n"),
        Just("[W](W \"W\") ![W](W)\n"),
        Just("[W]: W\n"),
        Just("| W | W |\n|---|---|\n| W | W |\n"),
        Just("#W `W`\n"),
        Just("    W\n"),
        Just("---\n"),
        Just("***\n\n"),
        Just("W: W\n"),
        Just("title: W\n"),
        Just("tags: [W, W] # W\n"),
        Just("aliases:\n- W\n"),
        Just("\r\n"),
        Just("1. W\n\n"),
        Just("\\# W\n"),
    ];
    let fenced = prop::bool::weighted(0.4).prop_map(|begins| if begins { "---\n" } else { "" });
    (fenced, prop::collection::vec(construct, 0..40)).prop_map(|(start, constructs)| {
        let mut n = 0;
        let text = [start, &constructs.concat()].concat();
        let words = text.split('W').map(|part| {
            n += 1;
            // Letters alone: no stem, no language, no number.
            let word: String =
                (0..4).map(|place| char::from(b'b' + (n / 5_u32.pow(place) % 5) as u8 * 3)).collect();
            format!("{part}zx{word}")
        });
        words.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_word_of_a_note_is_found(text in note()) {
        let place = Place::new();
        place.write("a.md", &text);
        let index = place.indexed();
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with("zx"));
        for word in words {
            prop_assert!(!found(&index, word).is_empty(), "{} in {}", word, text);
        }
    }
}
