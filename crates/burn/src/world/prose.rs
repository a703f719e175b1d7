//! Plain text: notes, small stories, and repeated lines.

use super::answer::{Span, notes};
use super::document::{Chat, Document};
use super::lexicon::Lexicon;
use super::note::Note;
use super::template::{fill, sentence};

/// Notes without a chat around them.
pub fn pages(words: &mut Lexicon, span: Span) -> Document {
    let notes = notes(words, span.at_most(2));
    let pages: Vec<String> = notes.iter().map(|note| format!("# {}\n{}", note.title, note.text)).collect();
    Document::prose(pages.join("\n\n"))
}

/// A diary entry: the events around a note, then the same facts in other words.
pub fn diary(words: &mut Lexicon) -> Document {
    let note = Note::draw(words, 4);
    let friend = words.person();
    let mut lines = vec![fill(
        &mut words.rng,
        "[Today I spoke with {f}.|{f} called this morning.|I met {f} in town.|A letter from {f} came today.] [We talked about {s}.|It was about {s}.|The main thing was {s}.]",
        &[('f', &friend), ('s', &note.subject)],
    )];
    for fact in &note.facts {
        let start = words.rng.pick(&["", "", "I heard that ", "It is clear that ", "I wrote down that "]);
        lines.push(sentence(&format!("{start}{}", fact.state(words, &note.subject))));
    }
    let listener = words.first_name();
    lines.push(fill(
        &mut words.rng,
        "[Later I told the same to {p}:|In the evening I read my notes again:|So, once more:|I must remember:]",
        &[('p', &listener)],
    ));
    for fact in &note.facts {
        lines.push(sentence(&fact.state(words, &note.subject)));
    }
    Document::prose(lines.join(" "))
}

/// A chat with a request to repeat some lines, which trains copying directly.
pub fn repeat(words: &mut Lexicon) -> Chat {
    let count = words.rng.range(1, 8);
    let lines: Vec<String> = (0..count)
        .map(|_| match words.rng.below(4) {
            0 => format!("{}, {}, {}", words.person(), words.place(), words.phone()),
            1 => {
                let note = Note::draw(words, 1);
                sentence(&note.facts[0].state(words, &note.subject))
            }
            2 => format!("{} {} {}", words.brand(), words.code(), words.money()),
            _ => format!("{}: {}, {}", words.company(), words.date(), words.time()),
        })
        .collect();
    let text = lines.join("\n");
    let request = words.rng.pick(&["Repeat this:", "Copy these lines:", "Write this again:"]);
    Chat::single(format!("{request}\n\n{text}"), text)
}

/// Small talk.
pub fn small_talk(words: &mut Lexicon) -> Chat {
    let name = words.first_name();
    let mut chat = Chat::default();
    chat.turn(
        fill(
            &mut words.rng,
            "[Hello, I am {n}.|Hi, my name is {n}.|Good morning, {n} here.]",
            &[('n', &name)],
        ),
        fill(
            &mut words.rng,
            "[Hello {n}, how can I help you?|Hi {n}, what can I do for you?]",
            &[('n', &name)],
        ),
    );
    if words.rng.percent(60) {
        chat.turn(
            fill(&mut words.rng, "[What is my name?|Do you remember my name?|Who am I?]", &[]),
            fill(&mut words.rng, "[Your name is {n}.|You are {n}.]", &[('n', &name)]),
        );
    }
    if words.rng.percent(40) {
        chat.turn(
            fill(&mut words.rng, "[Thank you.|Thanks!|Great, thanks.]", &[]),
            fill(&mut words.rng, "[You are welcome.|You are welcome, {n}.|Any time.]", &[('n', &name)]),
        );
    }
    chat
}
