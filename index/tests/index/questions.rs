//! Searches for questions in ten languages find the passages that answer. The numbers are printed with `--nocapture`.

use refrain_index::notes::{NotesIndex, Search};

#[path = "../../benches/notes/questions.rs"]
mod questions;

use questions::{Notes, Question, follow_ups, notes, score, table};

fn both(what: &str, index: &NotesIndex, questions: &[Question]) {
    let verbose = std::env::var("VERBOSE").is_ok();
    let mut cover = Vec::new();
    for earlier in [false, true] {
        cover.clear();
        let scores = score(questions, |question| {
            let mut search = Search::new(&question.text, 10);
            if earlier {
                search.earlier = question.earlier.iter().map(String::as_str).collect();
            }
            let hits = index.search(&search)?;
            if verbose && !hits.first().is_some_and(|hit| question.is_answered_by(hit)) {
                let rank = hits.iter().position(|hit| question.is_answered_by(hit));
                println!(
                    "{:?} {} [{}]: first {:?}",
                    rank,
                    question.text,
                    index
                        .searched_words(&search)
                        .iter()
                        .map(|w| format!("{} {:.2}", w.text, w.weight))
                        .collect::<Vec<_>>()
                        .join(","),
                    hits.first().map(|hit| (
                        hit.score,
                        hit.coverage,
                        hit.passage.title.clone(),
                        hit.passage.text.chars().take(60).collect::<String>()
                    ))
                );
            }
            Ok(hits)
        })
        .unwrap();
        for question in questions {
            let mut search = Search::new(&question.text, 4);
            if earlier {
                search.earlier = question.earlier.iter().map(String::as_str).collect();
            }
            let hits = index.search(&search).unwrap();
            let best = hits.iter().map(|hit| hit.coverage).fold(0.0, f32::max);
            if verbose && question.notes.is_empty() {
                println!("unanswered {best:.2} {}", question.text);
            }
            if verbose && !question.notes.is_empty() && best < 0.5 {
                println!("answered {best:.2} {}", question.text);
            }
            cover.push((best, !question.notes.is_empty()));
        }
        println!("{}", table(&format!("{what} earlier={earlier}"), &scores));
        for t in [0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8] {
            let n = |a: bool| cover.iter().filter(|c| c.1 == a).count();
            println!(
                "  t {t} false refusals {}/{} false answers {}/{}",
                cover.iter().filter(|c| c.1 && c.0 < t).count(),
                n(true),
                cover.iter().filter(|c| !c.1 && c.0 >= t).count(),
                n(false)
            );
        }
    }
}

#[test]
fn questions_find_the_passages_that_answer() {
    let notes = Notes::new(notes().unwrap()).unwrap();
    let index = notes.index().unwrap();
    both("questions", &index, &questions::questions().unwrap());
    both("follow-ups", &index, &follow_ups().unwrap());
}

#[test]
#[ignore]
fn published() {
    for folder in std::env::var("PUBLISHED").unwrap().split(',') {
        let (name, notes, questions) = questions::published(folder.as_ref()).unwrap().unwrap();
        let notes = Notes::new(notes).unwrap();
        let index = notes.index().unwrap();
        let (follow, first): (Vec<_>, Vec<_>) = questions.into_iter().partition(|q| !q.earlier.is_empty());
        both(name, &index, &first);
        both(&format!("{name} follow-ups"), &index, &follow);
    }
}
