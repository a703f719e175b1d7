//! The commands, with the small model of the fixtures.

use std::path::{Path, PathBuf};

use refrain_tauri::{Answers, Told};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

#[test]
fn a_question_is_answered_in_events_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    std::fs::create_dir(&notes).unwrap();
    std::fs::write(
        notes.join("kitchen.md"),
        "# Kitchen\n\nThe tap in the kitchen drips. Ada Voss repairs it on Friday.",
    )
    .unwrap();
    let mut told = Vec::new();
    let index = folder.path().join("index");
    let answers = Answers::open(&fixture("target.gguf"), &notes, &index, |event| told.push(event)).unwrap();
    for of in ["index", "load"] {
        assert!(
            told.iter().any(|event| matches!(event, Told::Progress { of: name, .. } if *name == of)),
            "{told:?}"
        );
    }
    let mut told = Vec::new();
    answers.ask("Who repairs the tap in the kitchen?", |event| told.push(event)).unwrap();
    let Some(Told::Done { sources }) = told.last() else { panic!("{told:?}") };
    assert_eq!((sources[0].number, sources[0].title.as_str()), (1, "Kitchen"));
    assert!(sources[0].path.ends_with("kitchen.md"));
    assert!(told.iter().any(|event| matches!(event, Told::Text { .. })));
    let json = serde_json::to_string(&told[0]).unwrap();
    assert!(json.starts_with(r#"{"type":"#), "{json}");

    let mut told = Vec::new();
    answers.ask("Who invented gunpowder?", |event| told.push(event)).unwrap();
    assert!(matches!(told[..], [Told::NotInNotes { .. }]), "{told:?}");

    let mut told = Vec::new();
    answers
        .ask("Who repairs the tap in the kitchen?", |event| {
            if matches!(event, Told::Text { .. }) {
                answers.stop();
            }
            told.push(event);
        })
        .unwrap();
    assert!(matches!(told.last(), Some(Told::Cancelled | Told::Done { .. })), "{told:?}");
    answers.stop();
}

#[test]
fn what_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        Answers::open(Path::new("/none.gguf"), &fixture("notes"), &folder.path().join("index"), drop);
    let message = refused.err().unwrap();
    assert!(message.contains("/none.gguf"), "{message}");
}
