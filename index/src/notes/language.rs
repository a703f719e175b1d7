//! Languages of passages: detected from the text, and used to stem its words.

use std::collections::HashSet;

use frostem::Algorithm;
use tantivy::tokenizer::{Language as StopWords, SimpleTokenizer, StopWordFilter, TextAnalyzer};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use whatlang::{Detector, Lang, Script};

use super::words::{Word, WordKind};
use crate::stop_words::{BINDING_CHARACTERS, QUESTION_WORDS, STOP_WORDS};

/// Declares the languages once, with their codes and their names in the other crates.
macro_rules! languages {
    ($($name:ident $code:literal $lang:ident $stop_words:expr;)*) => {
        /// A language whose words are stemmed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Language {
            $(#[doc = concat!(stringify!($name), ", `", $code, "`.")] $name,)*
        }

        impl Language {
            /// All languages.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code of ISO 639-1.
            pub fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            pub(super) fn algorithm(self) -> Algorithm {
                match self { $(Self::$name => Algorithm::$name,)* }
            }

            fn lang(self) -> Lang {
                match self { $(Self::$name => Lang::$lang,)* }
            }

            fn stop_words(self) -> Option<StopWords> {
                match self { $(Self::$name => $stop_words,)* }
            }
        }
    };
}

languages! {
    Catalan "ca" Cat None;
    Czech "cs" Ces None;
    Danish "da" Dan Some(StopWords::Danish);
    German "de" Deu Some(StopWords::German);
    Greek "el" Ell None;
    English "en" Eng Some(StopWords::English);
    Spanish "es" Spa Some(StopWords::Spanish);
    Estonian "et" Est None;
    Finnish "fi" Fin Some(StopWords::Finnish);
    French "fr" Fra Some(StopWords::French);
    Hungarian "hu" Hun Some(StopWords::Hungarian);
    Italian "it" Ita Some(StopWords::Italian);
    Lithuanian "lt" Lit None;
    Dutch "nl" Nld Some(StopWords::Dutch);
    Norwegian "no" Nob Some(StopWords::Norwegian);
    Polish "pl" Pol None;
    Portuguese "pt" Por Some(StopWords::Portuguese);
    Romanian "ro" Ron None;
    Russian "ru" Rus Some(StopWords::Russian);
    Swedish "sv" Swe Some(StopWords::Swedish);
    Turkish "tr" Tur None;
}

impl Language {
    /// The language with this code.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|language| language.code() == code)
    }

    /// The number in the index; 0 stands for no language.
    pub(super) fn number(language: Option<Self>) -> u64 {
        language.map_or(0, |language| language as u64 + 1)
    }

    pub(super) fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
    }
}

/// Bytes of a text that are examined. Detection takes time per byte, and a paragraph is enough.
const SAMPLE_BYTES: usize = 1024;

/// Detects the language of texts among the given ones.
pub(super) struct Languages {
    detector: Detector,
    /// The language of all texts.
    only: Option<Language>,
    /// The language of short texts in Latin script.
    usual: Language,
}

impl Languages {
    pub(super) fn new(languages: &[Language]) -> Self {
        let only = match languages {
            [only] => Some(*only),
            _ => None,
        };
        let detector = match languages {
            [] => Detector::new(),
            some => Detector::with_allowlist(some.iter().map(|language| language.lang()).collect()),
        };
        Self { detector, only, usual: languages.first().copied().unwrap_or(Language::English) }
    }

    /// The language of a text; `None` if it has no stemmer. A text in Latin script whose trigrams are of no language
    /// clearly, such as a line or a list of names, is in the usual one.
    pub(super) fn detect(&self, text: &str) -> Option<Language> {
        if self.only.is_some() {
            return self.only;
        }
        let mut end = text.len().min(SAMPLE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let sample = &text[..end];
        let info = match is_nfc_quick(sample.chars()) {
            IsNormalized::Yes => self.detector.detect(sample),
            // Trigrams are of composed letters.
            _ => self.detector.detect(&sample.nfc().collect::<String>()),
        }?;
        if info.script() == Script::Latin && !info.is_reliable() {
            return Some(self.usual);
        }
        Language::ALL.iter().copied().find(|language| language.lang() == info.lang())
    }
}

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
    fn languages_are_detected() {
        let languages = Languages::new(&[]);
        for (text, language) in [
            ("The train leaves at a quarter past eight from platform four.", Some(Language::English)),
            ("Der Zug fährt um Viertel nach acht von Gleis vier ab.", Some(Language::German)),
            ("Le train part à huit heures et quart du quai numéro quatre.", Some(Language::French)),
            ("Поезд отправляется в четверть девятого с четвёртого пути.", Some(Language::Russian)),
            ("列車は八時十五分に四番線から出発します。", None),
            ("", None),
        ] {
            assert_eq!(languages.detect(text), language, "{text}");
            assert_eq!(languages.detect(&text.nfd().collect::<String>()), language, "{text}");
        }
        assert_eq!(Languages::new(&[Language::Dutch]).detect("x"), Some(Language::Dutch));
    }

    #[test]
    fn languages_come_back_from_codes_and_numbers() {
        for &language in Language::ALL {
            assert_eq!(Language::of_code(language.code()), Some(language));
            assert_eq!(Language::of_number(Language::number(Some(language))), Some(language));
        }
        assert_eq!((Language::of_number(0), Language::of_number(99)), (None, None));
    }

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
