//! The possible facts about a subject, with their wordings as statement and question. `kinds.json` has them.

use std::sync::LazyLock;

use serde::Deserialize;

use super::lexicon::Lexicon;

/// All kinds of notes: of work, of home, of shared events and faults.
pub static KINDS: LazyLock<Vec<Kind>> =
    LazyLock::new(|| serde_json::from_str(include_str!("kinds.json")).expect("a test reads the file"));

/// The kind of a value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// A first and a last name.
    Person,
    /// A town.
    Place,
    /// A company.
    Company,
    /// A made-up product or venue name.
    Brand,
    /// A day.
    Date,
    /// A time of the day.
    Time,
    /// An amount of money.
    Money,
    /// A booking code.
    Code,
    /// A telephone number.
    Phone,
    /// A number between the bounds, then the unit.
    Count(usize, usize, &'static str),
    /// One of the phrases.
    Choice(Vec<&'static str>),
    /// Two or three of the phrases.
    List(Vec<&'static str>),
}

impl Value {
    /// Draws a value.
    pub fn draw(&self, words: &mut Lexicon) -> String {
        match self {
            Self::Person => words.person(),
            Self::Place => words.place(),
            Self::Company => words.company(),
            Self::Brand => words.brand(),
            Self::Date => words.date(),
            Self::Time => words.time(),
            Self::Money => words.money(),
            Self::Code => words.code(),
            Self::Phone => words.phone(),
            Self::Count(low, high, unit) => format!("{}{unit}", words.rng.range(*low, *high)),
            Self::Choice(items) => words.rng.pick(items).to_owned(),
            Self::List(items) => {
                let mut items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
                words.rng.shuffle(&mut items);
                items.truncate(words.rng.range(2, 3));
                super::template::joined(&items)
            }
        }
    }
}

/// One possible fact about a subject. All phrases are templates in lower case without a full stop.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relation {
    /// The name in a bullet list.
    pub label: &'static str,
    /// The kind of its value.
    pub value: Value,
    /// The predicate.
    pub predicate: &'static str,
    /// Whole statements in other words.
    pub say: &'static str,
    /// Questions, without the question mark.
    pub ask: &'static str,
}

/// A kind of note: its subject and the possible facts about it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// The subject's full name; `{n}` is the name.
    pub subject: &'static str,
    /// The subject's short name for later mentions.
    pub pronoun: &'static str,
    /// The source of the name.
    pub name: Value,
    /// Title of the note; `{n}` is the name.
    pub title: &'static str,
    /// A sentence that opens the note.
    pub opening: &'static str,
    /// Sentences without a fact, as filler.
    pub filler: Vec<&'static str>,
    /// The possible facts.
    pub relations: Vec<Relation>,
}

#[cfg(test)]
mod tests {
    use super::super::template::fill;
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_phrase_is_a_template() {
        let mut rng = Rng::new(1, 1);
        for kind in KINDS.iter() {
            for phrase in [kind.subject, kind.title] {
                fill(&mut rng, phrase, &[('n', "Ana")]);
            }
            fill(&mut rng, kind.opening, &[('s', "it")]);
            for Relation { predicate, say, ask, .. } in &kind.relations {
                for phrase in [predicate, say, ask] {
                    fill(&mut rng, phrase, &[('s', "it"), ('v', "so")]);
                }
            }
        }
    }
}
