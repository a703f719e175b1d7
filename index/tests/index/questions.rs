//! Searches for questions in ten languages find the passages that answer. The numbers are printed with `--nocapture`.

use refrain_index::notes::Search;

#[path = "../../benches/notes/questions.rs"]
mod questions;

use questions::{Notes, follow_ups, notes, score, table};

#[test]
fn questions_find_the_passages_that_answer() {
    let notes = Notes::new(notes().unwrap()).unwrap();
    let index = notes.index().unwrap();
    let scores = score(&questions::questions().unwrap(), |question| {
        let hits = index.search(&Search::new(&question.text, 10))?;
        if !hits.first().is_some_and(|hit| question.is_answered_by(hit)) {
            let rank = hits.iter().position(|hit| question.is_answered_by(hit));
            println!("{:?} {}: first {:?}", rank, question.text, hits.first().map(|hit| (hit.passage.title.clone(), hit.passage.text.chars().take(60).collect::<String>())));
        }
        Ok(hits)
    }).unwrap();
    println!("{}", table("questions", &scores));
    let scores = score(&follow_ups().unwrap(), |question| Ok(index.search(&Search::new(&question.text, 10))?)).unwrap();
    println!("{}", table("follow-up questions, the last question alone", &scores));
}
