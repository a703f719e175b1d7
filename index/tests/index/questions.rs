//! Searches for questions in ten languages find the passages that answer, and tell questions that no note answers.

use refrain_index::notes::{NotesIndex, Search};

#[path = "../../benches/notes/questions.rs"]
mod set;

use set::{Notes, Question, covered, follow_ups, notes, score, table};

/// The default of the assistant.
const COVERAGE_MIN: f32 = 0.3;

fn index() -> (Notes, NotesIndex) {
    let notes = Notes::new(notes().expect("the fixture")).expect("indexed");
    let index = notes.index().expect("opens");
    (notes, index)
}

#[test]
fn questions_find_the_passages_that_answer() {
    let (_notes, index) = index();
    let questions = set::questions().unwrap();
    let scores = score(&questions, |question| Ok(index.search(&Search::new(&question.text, 5))?)).unwrap();
    let all = scores[""];
    assert!(all.n_first >= 78 && all.n_among_five >= 84, "{}", table("questions", &scores));
    for (language, score) in &scores {
        assert!(score.among_five() >= 0.75, "{language}\n{}", table("questions", &scores));
    }
    let (n_refused, n_answered) = covered(&questions, &index, COVERAGE_MIN).unwrap();
    assert!(n_refused <= 3 && n_answered <= 5, "{n_refused} refused, {n_answered} answered");
}

#[test]
fn follow_up_questions_are_found_by_what_they_refer_to() {
    let (_notes, index) = index();
    let questions = follow_ups().unwrap();
    let alone = score(&questions, |question| Ok(index.search(&Search::new(&question.text, 5))?)).unwrap();
    let search = |question: &Question| {
        let mut search = Search::new(&question.text, 5);
        search.earlier = question.earlier.iter().map(String::as_str).collect();
        Ok(index.search(&search)?)
    };
    let with_earlier = score(&questions, search).unwrap();
    let tables = [table("alone", &alone), table("with earlier words", &with_earlier)].concat();
    assert!(with_earlier[""].n_among_five >= 58, "{tables}");
    assert!(with_earlier[""].n_among_five > alone[""].n_among_five, "{tables}");
}

#[test]
fn function_words_do_not_decide() {
    let english = notes().unwrap().into_iter().filter(|(name, _)| name.starts_with("en/"));
    let notes = Notes::new(english).unwrap();
    let index = notes.index().unwrap();
    let hits = index.search(&Search::new("What am I allergic to?", 1)).unwrap();
    assert!(hits[0].passage.path.ends_with("en/allergies.md"), "{hits:?}");
    assert!(hits[0].coverage > 0.7 && hits[0].snippet.matched.is_empty(), "the title has the word");
    let words = index.searched_words(&Search::new("What am I allergic to?", 1));
    assert_eq!(words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>(), ["allergic"]);
}
