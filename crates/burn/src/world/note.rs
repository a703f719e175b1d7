//! Notes: a subject, facts about it, and a text that states them.

use super::lexicon::Lexicon;
use super::relation::{KINDS, Kind, Relation, Value};
use super::template::{capitalised, fill, joined, sentence};

/// One fact of a note.
#[derive(Debug, Clone)]
pub struct Fact {
    /// Its wordings as statement and question.
    pub relation: &'static Relation,
    /// The value, as written in the note.
    pub value: String,
}

/// A note of the assistant's world.
#[derive(Debug, Clone)]
pub struct Note {
    /// The kind.
    pub kind: &'static Kind,
    /// The name of the subject.
    pub name: String,
    /// The subject's name in this note.
    pub subject: String,
    /// Title.
    pub title: String,
    /// The text under the title.
    pub text: String,
    /// The facts of the text, in its order.
    pub facts: Vec<Fact>,
}

/// All kinds of notes.
pub fn kinds() -> impl Iterator<Item = &'static Kind> + Clone {
    KINDS.iter()
}

/// Corrects "a accountant" and "an designer": a template does not contain the first letter of its value.
pub fn with_article(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (i, word) in text.split(' ').enumerate() {
        if i > 0 {
            let vowel = word.starts_with(['a', 'e', 'i', 'o', 'u']);
            if out.ends_with(" a") && vowel {
                out.push('n');
            } else if out.ends_with(" an") && !vowel {
                out.pop();
            }
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

impl Fact {
    /// A statement of this fact about `subject`, without a full stop.
    pub fn state(&self, words: &mut Lexicon, subject: &str) -> String {
        let text = if words.rng.percent(50) {
            format!("{subject} {}", self.predicate(words))
        } else {
            fill(&mut words.rng, self.relation.say, &[('s', subject), ('v', &self.value)])
        };
        with_article(&text)
    }

    /// The predicate.
    pub fn predicate(&self, words: &mut Lexicon) -> String {
        with_article(&fill(&mut words.rng, self.relation.predicate, &[('v', &self.value)]))
    }

    /// A question with this fact as its answer, without the question mark.
    pub fn question(&self, words: &mut Lexicon, subject: &str) -> String {
        capitalised(&fill(&mut words.rng, self.relation.ask, &[('s', subject)]))
    }
}

impl Note {
    /// Draws a note of any kind with `facts` facts, or all facts of the kind if it has fewer.
    pub fn draw(words: &mut Lexicon, facts: usize) -> Self {
        let all: Vec<_> = kinds().collect();
        let kind = all[words.rng.below(all.len())];
        Self::of_kind(words, kind, facts)
    }

    /// Draws a note of one kind.
    pub fn of_kind(words: &mut Lexicon, kind: &'static Kind, facts: usize) -> Self {
        let name = kind.name.draw(words);
        let subject = fill(&mut words.rng, kind.subject, &[('n', &name)]);
        let title = capitalised(&fill(&mut words.rng, kind.title, &[('n', &name)]));
        let mut relations: Vec<&'static Relation> = kind.relations.iter().collect();
        words.rng.shuffle(&mut relations);
        relations.truncate(facts);
        let facts: Vec<Fact> = relations
            .into_iter()
            .map(|relation| Fact { relation, value: relation.value.draw(words) })
            .collect();
        let mut note = Self { kind, name, subject, title, text: String::new(), facts };
        note.text = note.write(words);
        note
    }

    fn write(&self, words: &mut Lexicon) -> String {
        let mut sentences = Vec::new();
        let mut bullets = Vec::new();
        let bulleted = words.rng.percent(35);
        if words.rng.percent(30) {
            sentences.push(sentence(&fill(&mut words.rng, self.kind.opening, &[('s', &self.subject)])));
        }
        let mut at = 0;
        while at < self.facts.len() {
            let fact = &self.facts[at];
            let subject = if at > 0 && words.rng.percent(45) {
                fill(&mut words.rng, self.kind.pronoun, &[])
            } else {
                self.subject.clone()
            };
            if bulleted && words.rng.percent(75) {
                let line = match words.rng.below(3) {
                    0 => sentence(&fact.state(words, &subject)),
                    _ => format!("{}: {}", fact.relation.label, fact.value),
                };
                bullets.push(format!("- {line}"));
            } else if at + 1 < self.facts.len() && words.rng.percent(25) {
                let both = [fact.predicate(words), self.facts[at + 1].predicate(words)];
                sentences.push(sentence(&format!("{subject} {}", joined(&both))));
                at += 1;
            } else {
                sentences.push(sentence(&fact.state(words, &subject)));
            }
            at += 1;
            if words.rng.percent(12) {
                let filler = words.rng.pick(&self.kind.filler);
                sentences.push(sentence(filler));
            }
        }
        let mut text = sentences.join(" ");
        if !bullets.is_empty() {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&bullets.join("\n"));
        }
        text
    }

    /// A relation of this kind that is not in the note.
    pub fn unknown(&self, words: &mut Lexicon) -> Option<&'static Relation> {
        let known = |relation: &Relation| self.facts.iter().any(|fact| fact.relation.label == relation.label);
        let open: Vec<_> = self.kind.relations.iter().filter(|relation| !known(relation)).collect();
        (!open.is_empty()).then(|| open[words.rng.below(open.len())])
    }
}

/// Whether values of this kind are names or numbers that occur in the note only.
pub fn is_open(value: &Value) -> bool {
    !matches!(value, Value::Choice(_) | Value::List(_))
}
