//! Sets of numbers, and the texts that stand for them in a schema.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use llguidance::derivre::RegexAst;

/// The sets of numbers of a grammar. In its schemas stand texts instead, one for each set.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Random, so that no schema has it.
    pub(super) prefix: String,
    /// Of the same form, and nowhere.
    other_prefix: String,
    sets: Vec<RegexAst>,
    places: HashMap<String, usize>,
}

impl Numbers {
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let prefix = || format!("refrain-numbers-{:016x}{:016x}", random(), random());
        Self { prefix: prefix(), other_prefix: prefix(), sets: Vec::new(), places: HashMap::new() }
    }

    /// The beginning of the JSON texts of all sets. The number of the set follows, and the quotation mark.
    pub(crate) fn beginning(&self) -> String {
        format!("\"{}-", self.prefix)
    }

    /// The JSON text of each set, with one of the same form that stands for nothing.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (String, String)> {
        (0..self.sets.len())
            .map(|set| (format!("\"{}-{set}\"", self.prefix), format!("\"{}-{set}\"", self.other_prefix)))
    }

    /// A set by its number.
    pub(crate) fn set(&self, number: &str) -> Option<&RegexAst> {
        self.sets.get(number.parse::<usize>().ok()?)
    }

    pub(super) fn text(&self, set: usize) -> String {
        format!("{}-{set}", self.prefix)
    }

    pub(super) fn add(&mut self, set: RegexAst) -> usize {
        let mut key = String::new();
        set.write_to_str(&mut key, usize::MAX, None);
        *self.places.entry(key).or_insert_with(|| {
            self.sets.push(set);
            self.sets.len() - 1
        })
    }
}
