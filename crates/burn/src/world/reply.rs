//! Mails and messages, and the replies to them.

use super::answer::{Span, between, passages, renamed};
use super::document::Chat;
use super::lexicon::Lexicon;
use super::note::Note;
use super::template::{fill, sentence};
use refrain::{PromptPassage, Task};

const GREETINGS: &str = "[Hi|Hello|Dear|Good morning]";
const CLOSINGS: &str = "[Best regards|Best|Kind regards|Thanks|See you|Cheers]";
const PLANS: &[&str] = &[
    "lunch",
    "a short call",
    "the planning session",
    "a walk",
    "dinner",
    "the kick-off",
    "a visit to the new office",
    "the interview",
    "a cup of coffee",
    "the handover",
    "the rehearsal",
    "the site visit",
];

/// A message with a request for a date, and a reply that accepts, declines or moves it.
fn invitation(words: &mut Lexicon) -> Chat {
    let (sender, me) = (words.first_name(), words.first_name());
    let (date, time, place, plan) = (words.date(), words.time(), words.place(), words.rng.pick(PLANS));
    let fields: &[(char, &str)] =
        &[('n', &sender), ('m', &me), ('d', &date), ('t', &time), ('p', &place), ('x', plan)];
    let text = fill(
        &mut words.rng,
        &format!(
            "{GREETINGS} {{m}},\n\n[I hope you are well. ||It was good to see you last week. ][Would {{d}} at {{t}} suit you for {{x}} in {{p}}?|\
             Can we meet for {{x}} on {{d}} at {{t}} in {{p}}?|I would like to invite you to {{x}} in {{p}} on {{d}} at {{t}}.] \
             [Please let me know.|Let me know if that works.|I look forward to hearing from you.]\n\n{CLOSINGS},\n{{n}}"
        ),
        fields,
    );
    let (request, body) = match words.rng.below(3) {
        0 => (
            fill(&mut words.rng, "[Accept.|Say yes.|Agree to the date.|Accept the invitation.]", &[]),
            fill(
                &mut words.rng,
                "[Thank you for your message. |Thanks for the invitation. |Thank you, {n}. ][{d} at {t} works well for me.|Yes, {d} at {t} in {p} is fine.|I would love to come to {x} in {p}.] \
                 [See you in {p} for {x}.|I will be in {p} at {t}.|I look forward to {x} on {d}.]",
                fields,
            ),
        ),
        1 => (
            fill(&mut words.rng, "[Decline.|Say no politely.|Decline kindly.|Say that I cannot come.]", &[]),
            fill(
                &mut words.rng,
                "[Thank you for your message. |Thanks for the invitation. |Thank you for thinking of me. ][Unfortunately I cannot come to {p} on {d}.|I am sorry, but {d} at {t} does not suit me.|Sadly I have to miss {x} on {d}.] \
                 [I hope {x} goes well.|Maybe we can find another day.|Have a good time in {p}.]",
                fields,
            ),
        ),
        _ => {
            let other = words.date();
            let extra: Vec<(char, &str)> = fields.iter().copied().chain([('o', other.as_str())]).collect();
            (
                fill(&mut words.rng, "[Propose {o} instead.|Ask for {o}.|Suggest {o}.]", &extra),
                fill(
                    &mut words.rng,
                    "[Thank you for your message. |Thanks for the invitation. |Thank you, {n}. ][{d} does not suit me, but {o} would be fine.|Could we move {x} to {o}?|Would {o} at {t} work as well?] \
                     [I can still come to {p}.|{p} is fine with me.|The time and {p} are fine.]",
                    &extra,
                ),
            )
        }
    };
    finish(words, &sender, &me, &text, &[], &request, &body)
}

/// A message with a request for a fact of a note, and a reply with the fact.
fn inquiry(words: &mut Lexicon, span: Span) -> Chat {
    let (sender, me) = (words.first_name(), words.first_name());
    let facts = between(words, span.facts);
    let note = Note::draw(words, facts);
    let fact = &note.facts[words.rng.below(note.facts.len())];
    let subject = renamed(words, &note);
    let question = fact.question(words, &subject);
    let fields: &[(char, &str)] = &[('n', &sender), ('m', &me), ('q', &question)];
    let text = fill(
        &mut words.rng,
        &format!(
            "{GREETINGS} {{m}},\n\n[I have a quick question. ||Sorry to bother you. |I could not find my notes. ]{{q}}? \
             [Thanks for your help.|Thank you in advance.|It would help me a lot.]\n\n{CLOSINGS},\n{{n}}"
        ),
        fields,
    );
    let told = sentence(&fact.state(words, &subject));
    let body = fill(
        &mut words.rng,
        "[Thank you for your message. |No problem. |Thanks for asking. |Happy to help. ]{a} [Let me know if you need more.|I hope this helps.|Just ask if anything is unclear.]",
        &[('a', &told)],
    );
    let request = if words.rng.percent(50) {
        ""
    } else {
        words.rng.pick(&["Answer the question.", "Use my notes.", "Help with the question."])
    };
    finish(words, &sender, &me, &text, &[note], request, &body)
}

fn finish(
    words: &mut Lexicon,
    sender: &str,
    me: &str,
    text: &str,
    notes: &[Note],
    request: &str,
    body: &str,
) -> Chat {
    let title = fill(&mut words.rng, "[Message from {n}|Mail from {n}]", &[('n', sender)]);
    let mut shown = vec![PromptPassage::new(&title, text)];
    shown.extend(passages(notes));
    let message = Task::Reply.user_message(&shown, request);
    let answer = fill(
        &mut words.rng,
        &format!("{GREETINGS} {{n}},\n\n{{b}}\n\n{CLOSINGS},\n{{m}}"),
        &[('n', sender), ('m', me), ('b', &super::template::capitalised(body))],
    );
    Chat::single(message, answer)
}

/// A chat with a request for a reply.
pub fn chat(words: &mut Lexicon, span: Span) -> Chat {
    if words.rng.percent(50) { invitation(words) } else { inquiry(words, span) }
}
