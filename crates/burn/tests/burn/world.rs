//! The generator: the same seed gives the same text, notes contain their facts, and answers follow from facts.

use refrain::Task;
use refrain_burn::evaluate;
use refrain_burn::rng::Rng;
use refrain_burn::world::document::{MESSAGE_END, MESSAGE_START};
use refrain_burn::world::lexicon::Lexicon;
use refrain_burn::world::note::{Note, kinds};
use refrain_burn::world::{FULL, Stage, answer, document, reply, sample, summary, ui};

fn words(number: u64) -> Lexicon {
    Lexicon::new(Rng::new(11, number), false)
}

#[test]
fn a_document_depends_on_its_number_alone() {
    let forwards: Vec<_> = (0..50).map(|number| document(1, number, Stage::Full)).collect();
    let backwards: Vec<_> = (0..50).rev().map(|number| document(1, number, Stage::Full)).collect();
    assert!(forwards.iter().eq(backwards.iter().rev()));
    assert_ne!(document(1, 0, Stage::Full), document(2, 0, Stage::Full));
}

#[test]
fn a_note_says_each_of_its_facts() {
    for number in 0..300 {
        let note = Note::draw(&mut words(number), 6);
        let text = note.text.to_lowercase();
        for fact in &note.facts {
            assert!(text.contains(&fact.value.to_lowercase()), "{} lacks {}", note.text, fact.value);
        }
        // A title begins with a capital, and so may its name.
        assert!(note.title.to_lowercase().contains(&note.name.to_lowercase()), "{}", note.title);
        assert!(!note.text.contains(['{', '}', '[', ']', '|']), "{}", note.text);
    }
}

#[test]
fn a_question_is_answered_by_its_notes_and_not_by_itself() {
    for number in 0..200 {
        let asked = evaluate::question(number);
        let fact = asked.fact.to_lowercase();
        assert!(asked.question.ends_with('?'));
        assert!(asked.message.to_lowercase().contains(&fact), "{}", asked.message);
        assert!(!asked.question.to_lowercase().contains(&fact), "{}", asked.question);
        assert!(asked.message.ends_with(&asked.question));
    }
}

#[test]
fn sentences_begin_and_end_as_sentences() {
    for number in 0..300 {
        let chat = summary::chat(&mut words(number), answer::Span { notes: [1, 2], facts: [2, 5], ..FULL });
        let text = &chat.turns()[0].1;
        assert!(text.ends_with('.') && text.starts_with(|c: char| !c.is_lowercase()), "{text}");
        assert!(!text.contains("  ") && !text.contains(" a a") && !text.contains(" an b"), "{text}");
    }
}

#[test]
fn replies_greet_the_sender_and_commands_name_an_element() {
    for number in 0..200 {
        let chat = reply::chat(&mut words(number), answer::Span { notes: [1, 1], facts: [2, 4], ..FULL });
        let (message, text) = &chat.turns()[0];
        let sender = message.split(" from ").nth(1).and_then(|rest| rest.lines().next()).expect("a sender");
        assert!(text.lines().next().is_some_and(|line| line.contains(sender)), "{text}");
        let chat = ui::chat(&mut words(number));
        let (message, text) = &chat.turns()[0];
        let command = text.lines().next().expect("a command");
        if let Some(rest) = command.strip_prefix("tap ") {
            let (index, label) = rest.split_once(' ').expect("an element and its label");
            let line =
                message.lines().find(|line| line.starts_with(&format!("{index} "))).expect("the element");
            assert!(line.ends_with(label), "{message} {command}");
        }
    }
}

#[test]
fn chats_are_laid_out_as_the_program_lays_them_out() {
    let chat = answer::chat(&mut words(1), answer::Span { notes: [1, 1], facts: [2, 3], ..FULL });
    let text = chat.document().text();
    let opening = format!("{MESSAGE_START}user\n{}", Task::Answer.user_message(&[], ""));
    assert!(text.starts_with(&opening), "{text}");
    assert!(text.ends_with(&format!("{MESSAGE_END}\n")));
}

#[test]
fn sample_notes_hold_the_answers_to_their_questions() {
    let (notes, questions) = sample::notes(7, 14);
    assert_eq!(notes.len(), 14);
    assert!((6..=8).contains(&questions.len()), "{}", questions.len());
    for question in questions {
        let note = notes.iter().find(|note| note.file == question.note).expect("the note exists");
        assert!(note.text.contains(&question.answer), "{}", note.text);
    }
    assert_eq!(kinds().count(), 11);
}
