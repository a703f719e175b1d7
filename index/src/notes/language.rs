//! Languages of passages: detected from the text, and used to stem its words.

use frostem::Algorithm;
use tantivy::tokenizer::Language as StopWords;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use whatlang::{Detector, Lang, Script};

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

            /// The list of its function words in tantivy.
            pub(super) fn stop_words(self) -> Option<StopWords> {
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

#[cfg(test)]
mod tests {
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
}
