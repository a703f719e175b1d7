//! Files that nobody wrote by hand: nested, giant, cut and mutated ones. Each is an entry of the report at most, on the
//! stacks that threads have on phones, and the notes beside it are found.

use std::fs;
use std::time::Duration;

use refrain::CancelToken;
use refrain_index::notes::{NotesIndex, NotesWriter, SkipReason, UpdateReport};

use crate::notes_support::{Place, found, options, update};

const EXTENSIONS: [&str; 7] = ["md", "eml", "mbox", "jsonl", "screen", "xml", "ics"];

const MAIL: &str = "From: Ada <ada@example.org>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nDate: Wed, 1 May 2024 12:00:00 +0200\r\n\
    Content-Type: multipart/mixed; boundary=\"b\"\r\n\r\n--b\r\nContent-Type: multipart/alternative; boundary=c\r\n\r\n--c\r\n\
    Content-Transfer-Encoding: quoted-printable\r\n\r\nquokka =C3=A9\r\n--c\r\nContent-Type: text/html\r\n\r\n<p>quokka &eacute;</p>\r\n--c--\r\n\
    --b\r\nContent-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nquokka\r\n--b--\r\n";

const CALENDAR: &str = "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:quokka\\, Dr. Vo\r\n ss\r\nDTSTART:20240501T123000Z\r\n\
    ATTENDEE;CN=\"a:b\":mailto:ada@example.org\r\nBEGIN:VALARM\r\nEND:VALARM\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";

/// A sound file of each format.
fn sound(extension: &str) -> String {
    match extension {
        "md" => {
            "---\ntitle: a\ntags: [b]\n---\n# Title\n\n- quokka **é** #tag\n\n```\ncode\n```\n".to_owned()
        }
        "eml" => MAIL.to_owned(),
        "mbox" => format!("From a Wed May  1 12:00:00 2024\n{MAIL}\nFrom b Wed May  1 12:00:00 2024\n{MAIL}"),
        "jsonl" => "{\"role\":\"user\",\"content\":[{\"text\":\"quokka é\"}],\"ts\":1714521600}\n".repeat(3),
        "screen" => "[1] button quokka\n[2] field é\n".to_owned(),
        "xml" => "<?xml version=\"1.0\"?><h><node text=\"quokka &amp; é\" class=\"a.B\"><b>c</b></node></h>"
            .to_owned(),
        "ics" => CALENDAR.to_owned(),
        _ => unreachable!("an extension of this test"),
    }
}

/// Files whose structure is deep or long.
fn nested() -> Vec<(&'static str, String)> {
    let n = 200_000;
    let boundaries: String =
        (0..20_000).map(|i| format!("Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n")).collect();
    let namespaces: String = (0..20_000).map(|i| format!("<a xmlns:n{i}='u'>")).collect();
    let attributes: String = (0..50_000).map(|i| format!(" a{i}=''")).collect();
    let html = |body: String| format!("Subject: s\nContent-Type: text/html\n\n{body}");
    let parameters: String = (0..50_000).map(|i| format!(";a*{i}=x")).collect();
    vec![
        ("eml", format!("{}x", "Content-Type: message/rfc822\n\n".repeat(n))),
        (
            "eml",
            format!(
                "{}x",
                "Content-Type: Message/RFC822\r\nContent-Transfer-Encoding: 8bit\r\n\r\n".repeat(n)
            ),
        ),
        ("eml", format!("{}x", "content-type : message/(x)rfc822;\r\n\ta=b\r\n\r\n".repeat(n))),
        ("eml", "Content-Type: multipart/mixed; boundary=a\n\n--a\n".repeat(n)),
        ("eml", "Content-Type: multipart/digest; boundary=a\n\n--a\n\n".repeat(n)),
        ("eml", boundaries.clone()),
        ("eml", format!("Subject: s\nContent-Type: multipart/mixed{parameters}\n\nx")),
        (
            "eml",
            format!(
                "Subject: s\nContent-Type: multipart/mixed; boundary=\"{}\"\n\n{}",
                "-".repeat(n),
                "-".repeat(n)
            ),
        ),
        ("eml", format!("Subject: {}\n\nx", "=?ab?q? ".repeat(n))),
        ("eml", format!("To: {}\n\nx", "((\"<a@b>, ".repeat(n))),
        ("eml", format!("Subject: s\n{}\nx", " folded\n".repeat(n))),
        ("eml", html("<b>".repeat(n))),
        ("eml", html("<!--<!".repeat(n))),
        ("eml", html(format!("<a{attributes}>x"))),
        ("eml", html("&amp".repeat(n))),
        ("eml", html("<script></style".repeat(n))),
        ("mbox", "From a Wed May  1 12:00:00 2024\n\n".repeat(10_000)),
        ("mbox", format!("From a\nSubject: s\n\n{}", "From b\nX\n\n".repeat(n))),
        ("mbox", format!("From a\n{boundaries}")),
        ("jsonl", "[".repeat(n)),
        ("jsonl", "{\"content\":".repeat(n)),
        ("jsonl", format!("{}{{\"text\":\"quokka\"}}\n", "{\"a\":[\n".repeat(n))),
        ("xml", "<a>".repeat(n)),
        ("xml", format!("{}{}", "<a>".repeat(90_000), "</a>".repeat(90_000))),
        ("xml", namespaces),
        ("xml", format!("<a{attributes}/>")),
        ("xml", "<!DOCTYPE a [<!ENTITY b \"&c;\"><!ENTITY c \"&b;\">]><a>&b;</a>".to_owned()),
        ("xml", format!("<a>{}</a>", "<![CDATA[x]]>".repeat(50_000))),
        ("ics", "BEGIN:VEVENT\r\n".repeat(n)),
        ("ics", format!("BEGIN:VCALENDAR\n{}END:VEVENT\n", "BEG\n IN:VEVENT\n".repeat(n))),
        ("ics", format!("BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:quokka{}\nEND:VEVENT", "\n x".repeat(n))),
        ("ics", format!("BEGIN:VEVENT\nATTENDEE{}:x\nEND:VEVENT", ";CN=\"".repeat(n))),
        ("md", "> ".repeat(n)),
        ("md", "- ".repeat(n)),
        ("md", "[".repeat(n)),
        ("md", format!("---\na: {}\n---\nquokka", "[".repeat(n))),
        ("md", format!("---\n{}\n---\nquokka", "a:\n ".repeat(2000))),
        ("md", "#".repeat(n)),
        ("md", "*_`".repeat(n)),
        ("screen", "[".repeat(n)),
    ]
}

/// Bytes of the sound files, cut and changed in a fixed random order.
fn mutated(extension: &str) -> Vec<Vec<u8>> {
    let sound = sound(extension).into_bytes();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let odd = [0, b'\n', b'\r', b' ', b'"', b'<', b'>', b'-', b':', b'=', b'?', b'[', b'{', 0x80, 0xc3, 0xff];
    let mut files = Vec::new();
    for i in 0..60 {
        let mut bytes = sound.clone();
        for _ in 0..=random(8) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = odd[random(odd.len())],
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, odd[random(odd.len())]),
                _ => {
                    let part = bytes[at..(at + random(60)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        if i % 3 == 0 {
            bytes.truncate(random(bytes.len()));
        }
        files.push(bytes);
    }
    files
}

/// Runs `work` on a thread, and the readers on a pool of threads, whose stacks have `bytes`.
fn on_stacks_of<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().stack_size(bytes).num_threads(2).build().unwrap();
    pool.install(work)
}

fn panics(report: &UpdateReport) -> Vec<String> {
    let reasons =
        report.skipped.iter().map(|skipped| format!("{}: {}", skipped.path.display(), skipped.reason));
    reasons.filter(|reason| reason.contains("panicked")).collect()
}

fn use_everywhere(place: &Place, stack: usize) -> UpdateReport {
    let report = on_stacks_of(stack, || {
        let mut writer = place.writer();
        let report = update(&mut writer);
        assert_eq!(update(&mut writer).n_added, 0);
        // As `serve --notes`, `mcp` and `index watch` begin.
        let cancel = CancelToken::new();
        let mut n_reports = 0;
        writer
            .watch(&cancel, &mut |_, _| {
                n_reports += 1;
                cancel.cancel();
                Ok(())
            })
            .unwrap();
        assert_eq!(n_reports, 1);
        writer.close(&mut |_, _| std::ops::ControlFlow::Continue(()), &mut |_| {}).unwrap();
        report
    });
    assert_eq!(panics(&report), [""; 0]);
    assert_eq!(found(&NotesIndex::open(&place.index()).unwrap(), "wombat"), ["good.md"]);
    report
}

#[test]
fn nested_files_end_in_an_answer_on_small_stacks() {
    for stack in [2 << 20, 512 << 10] {
        let place = Place::new();
        place.write("good.md", "A wombat.");
        for (i, (extension, text)) in nested().into_iter().enumerate() {
            place.write(&format!("{i}.{extension}"), text);
        }
        let report = use_everywhere(&place, stack);
        let limit = |name: &str| {
            let skipped = report.skipped.iter().find(|skipped| skipped.path.ends_with(name));
            match skipped.map(|skipped| &skipped.reason) {
                Some(SkipReason::Partly { first, .. }) => first.as_ref().clone(),
                reason => panic!("{name}: {reason:?}"),
            }
        };
        let what = "parts and messages in each other";
        assert_eq!(limit("0.eml"), SkipReason::Limit { what, limit: 16, offset: 17 * 30 });
    }
}

#[test]
fn cut_and_mutated_files_end_in_an_answer() {
    let place = Place::new();
    place.write("good.md", "A wombat.");
    for extension in EXTENSIONS {
        place.write(&format!("sound.{extension}"), sound(extension));
        for (i, bytes) in mutated(extension).into_iter().enumerate() {
            place.write(&format!("{i}.{extension}"), bytes);
        }
    }
    let report = use_everywhere(&place, 512 << 10);
    assert!(
        report.skipped.iter().all(|skipped| !skipped.path.to_string_lossy().contains("sound")),
        "{report:?}"
    );
    let mut names = found(&place.reader(), "quokka");
    names.sort();
    names.dedup();
    assert!(!names.is_empty());
}

#[test]
fn a_bad_file_that_comes_to_a_watched_folder_is_an_entry_of_the_report() {
    let place = Place::new();
    place.write("good.md", "A wombat.");
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    writer.add(&[place.notes()]).unwrap();
    let (cancel, mut reasons) = (CancelToken::new(), Vec::new());
    let ends = cancel.clone();
    let notes = place.notes();
    let deadline = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        ends.cancel();
    });
    writer
        .watch(&cancel, &mut |_, report| {
            match fs::exists(notes.join("bad.eml")).unwrap() {
                false => fs::write(notes.join("bad.eml"), "Content-Type: message/rfc822\n\n".repeat(100_000))
                    .unwrap(),
                true => cancel.cancel(),
            }
            reasons.extend(report.skipped.iter().map(|skipped| skipped.reason.clone()));
            Ok(())
        })
        .unwrap();
    drop(deadline);
    assert!(matches!(reasons[..], [SkipReason::Partly { .. }]), "{reasons:?}");
}
