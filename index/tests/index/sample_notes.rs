//! The sample notes and questions about them: the search for each question finds the note with the answer.

use std::fs;
use std::path::Path;

use refrain_index::{Passage, PassageIndex, ReadLimits, read_documents, split};
use serde::Deserialize;

#[derive(Deserialize)]
struct Question {
    question: String,
    note: String,
}

#[test]
fn every_question_finds_its_note() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let found = read_documents(&[fixtures.join("notes")], &ReadLimits::default()).unwrap();
    assert!(found.documents.len() > 5 && found.skipped.is_empty(), "{:?}", found.skipped);
    let index = PassageIndex::build(found.documents.iter().flat_map(split).collect()).unwrap();
    let text = fs::read_to_string(fixtures.join("questions.json")).unwrap();
    let questions: Vec<Question> = serde_json::from_str(&text).unwrap();

    let mut n_first = 0;
    for Question { question, note } in &questions {
        let is_asked = |passage: &Passage| passage.path.ends_with(note);
        let hits = index.search(question, 4).unwrap();
        let rank = hits.iter().position(|hit| is_asked(hit.passage));
        assert!(rank.is_some(), "`{question}` does not find {note}");
        n_first += usize::from(rank == Some(0));
    }
    assert!(n_first * 10 >= questions.len() * 9, "{n_first} of {} come first", questions.len());
}
