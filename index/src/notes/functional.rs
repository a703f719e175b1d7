//! Function words of requests, by language.

use std::collections::HashSet;

use tantivy::tokenizer::{SimpleTokenizer, StopWordFilter, TextAnalyzer};

use super::language::Language;
use super::words::{Word, WordKind};
use crate::stop_words::{BINDING_CHARACTERS, QUESTION_WORDS, STOP_WORDS};

/// Recognises function words.
pub(crate) struct Functional(Vec<Tongue>);

/// The function words of a language.
struct Tongue {
    listed: Option<TextAnalyzer>,
    own: HashSet<String>,
}

/// The number of words of a request that decides for a language: one alone may be a word of another, as `car` is in French.
const WORDS_OF_A_LANGUAGE: usize = 2;

impl Functional {
    pub(crate) fn new(languages: &[Language]) -> Self {
        let tongue = |&language: &Language| {
            let filter = language.stop_words().and_then(StopWordFilter::new);
            let listed =
                filter.map(|filter| TextAnalyzer::builder(SimpleTokenizer::default()).filter(filter).build());
            let questions = QUESTION_WORDS.iter().filter(|(of, _)| *of == language);
            let mut own: HashSet<String> = questions
                .flat_map(|(_, words)| words.split_ascii_whitespace())
                // As words are folded.
                .map(|word| word.replace('ς', "σ"))
                .collect();
            if language == Language::English {
                own.extend(STOP_WORDS.map(str::to_owned));
            }
            Tongue { listed, own }
        };
        Self(languages.iter().map(tongue).collect())
    }

    /// Which of the lower-case words of a request are function words: those of the language whose list has most of them, if it has two
    /// or more; of several such languages, those of each. Pairs of kana and of characters that bind are function words too.
    pub(super) fn of_request(&mut self, words: &[Word]) -> Vec<bool> {
        let runs: Vec<bool> = words.iter().map(|word| word.kind == WordKind::Run).collect();
        let of_tongues = self.0.iter_mut().map(|tongue| {
            let known: Vec<bool> = words
                .iter()
                .zip(&runs)
                .map(|(word, &is_run)| is_run && tongue.contains(&word.text))
                .collect();
            (known.iter().filter(|&&is_known| is_known).count(), known)
        });
        let of_tongues: Vec<(usize, Vec<bool>)> = of_tongues.collect();
        let n_most = of_tongues.iter().map(|&(n, _)| n).max().unwrap_or(0).max(WORDS_OF_A_LANGUAGE);
        let mut functional: Vec<bool> =
            words.iter().map(|word| word.kind == WordKind::Pair && word.text.chars().all(binds)).collect();
        for (_, known) in of_tongues.into_iter().filter(|&(n, _)| n == n_most) {
            functional.iter_mut().zip(known).for_each(|(is_functional, is_known)| *is_functional |= is_known);
        }
        functional
    }

    /// Whether a lower-case word is one of them in a language.
    #[cfg(test)]
    fn contains(&mut self, word: &str) -> bool {
        self.0.iter_mut().any(|tongue| tongue.contains(word))
    }
}

impl Tongue {
    fn contains(&mut self, word: &str) -> bool {
        // The analyzers see no word in an emoji.
        let is_word = word.contains(char::is_alphanumeric);
        let is_listed = |listed: &mut TextAnalyzer| is_word && !listed.token_stream(word).advance();
        self.own.contains(word) || self.listed.as_mut().is_some_and(is_listed)
    }
}

/// Whether a character of a script without spaces binds words, as the endings of Japanese words do.
fn binds(c: char) -> bool {
    matches!(c, '\u{3041}'..='\u{309f}') || BINDING_CHARACTERS.contains(c)
}

#[cfg(test)]
mod tests {
    use super::super::words::plain_words;
    use super::*;

    #[test]
    fn function_words_are_recognised() {
        let mut functional = Functional::new(&[Language::English, Language::German]);
        assert!(functional.contains("the") && functional.contains("und") && functional.contains("when"));
        assert!(!functional.contains("🚀") && !functional.contains("train") && !functional.contains("zug"));
    }

    #[test]
    fn function_words_are_those_of_the_request_s_language() {
        let mut functional = Functional::new(Language::ALL);
        let mut content = |text: &str| {
            let words = plain_words(text, None).filter(|word| word.kind != WordKind::Last);
            let words: Vec<Word> = words.collect();
            let is_functional = functional.of_request(&words);
            let rest = words.into_iter().zip(is_functional).filter(|(_, is_functional)| !is_functional);
            rest.map(|(word, _)| word.text).collect::<Vec<_>>().join(" ")
        };
        for (request, words) in [
            ("What am I allergic to?", "allergic"),
            ("Wogegen bin ich allergisch?", "allergisch"),
            ("À quoi suis-je allergique ?", "allergique"),
            ("¿A qué soy alérgica?", "alérgica"),
            ("A che cosa sono allergico?", "allergico"),
            ("A que é que sou alérgico?", "alérgico"),
            ("Waar ben ik allergisch voor?", "allergisch"),
            ("Na co jestem uczulony?", "uczulony"),
            ("我们在哪里", ""),
            // A word of French, and no language has two of these.
            ("car insurance", "car insurance"),
        ] {
            assert_eq!(content(request).trim(), words, "{request}");
        }
    }
}
