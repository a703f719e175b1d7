//! Words of texts as the index stores them: stems without accents, and pairs of characters where a script has no
//! spaces.
//!
//! A text is composed (NFKC) and converted to lower case before it is cut, so all forms of a text have the same words.
//! A word is a run of letters, digits and combining marks; invisible characters, such as soft hyphens, are no part of it and do
//! not end it. It is stemmed in the language of its passage, and its accents are removed. In scripts without spaces (Chinese,
//! Japanese, Thai, Lao, Khmer, Burmese and others) and in Korean, every two neighbouring characters form a word, as in Lucene's
//! `CJKAnalyzer`; the last character of a run is a word too, so each character of a text begins a word. A search for one
//! character is a search for words that begin with it. Emoji are words.
//!
//! UAX #29 keeps `can't`, `3.14`, `ada@example.org` and `snake_case` whole, and leaves the scripts without spaces to
//! dictionaries. A search must find the parts of the former, and a request and a text are cut alike only without dictionaries.
//! So words end here at every other character, also at apostrophes and hyphens of all kinds.

use std::collections::VecDeque;
use std::ops::Range;

use frostem::Stemmer;
use tantivy::tokenizer::{Token, TokenStream, Tokenizer};
use unicode_normalization::char::{canonical_combining_class, decompose_compatible, is_combining_mark};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

use super::language::Language;

/// Maximum length of a word, in characters. Of a longer one, the index has the beginning. German and Turkish compounds are shorter;
/// SHA-512 in hexadecimal has 128.
const WORD_CHARS_MAX: usize = 128;

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// Its form: composed and in lower case, or also stemmed and without accents.
    pub(crate) text: String,
    /// Its bytes in the text.
    pub(crate) range: Range<usize>,
    /// The end of its first character in the text.
    pub(crate) first_end: usize,
    pub(crate) kind: WordKind,
}

/// How a word was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordKind {
    /// A run of letters, a part of one, or an emoji.
    Run,
    /// Two neighbours of a script without spaces.
    Pair,
    /// One character of a script without spaces, alone.
    Single,
    /// The last character of several of a script without spaces, which ends a pair too.
    Last,
}

/// The words of a text in the forms of the index, in the given language.
pub(crate) fn words(text: &str, language: Option<Language>) -> impl Iterator<Item = Word> {
    let stems = Stems::new(language);
    plain_words(text, language).map(move |word| stems.stem(word))
}

/// Turns the words of a text into those of the index.
pub(crate) struct Stems {
    stemmer: Option<Stemmer>,
    /// The Greek stemmer knows the accents of today, and a text may have others or none.
    is_greek: bool,
}

impl Stems {
    pub(crate) fn new(language: Option<Language>) -> Self {
        let stemmer = language.map(|language| Stemmer::new(language.algorithm()));
        Self { stemmer, is_greek: language == Some(Language::Greek) }
    }

    /// The stem of one of [`plain_words`], without accents.
    pub(crate) fn stem(&self, mut word: Word) -> Word {
        if word.kind == WordKind::Run {
            if self.is_greek {
                word.text = without_accents(&word.text);
            }
            if let Some(stemmer) = &self.stemmer {
                word.text = stemmer.stem(&word.text).into_owned();
            }
            if !word.text.is_ascii() {
                word.text = without_accents(&word.text);
            }
        }
        word
    }
}

/// The words of a text, composed and in the lower case of its language. They ascend by the start of their ranges.
///
/// A word with a seam is given whole and in parts. A seam stands beside a symbol that is a letter or a number in another form, as in
/// `word¹`, `m²` or `Name™`, and at a zero-width non-joiner between Arabic letters, where Persian may also write a space or nothing.
pub(crate) fn plain_words(text: &str, language: Option<Language>) -> PlainWords<'_> {
    let is_turkish = language == Some(Language::Turkish);
    PlainWords { text, at: 0, is_turkish, open: Open::Nothing, found: VecDeque::new(), cluster: Vec::new() }
}

/// See [`plain_words`].
pub(crate) struct PlainWords<'a> {
    text: &'a str,
    /// The end of what was read.
    at: usize,
    is_turkish: bool,
    open: Open,
    /// Words that were cut and not passed on.
    found: VecDeque<Word>,
    /// Memory for the characters of a cluster.
    cluster: Vec<char>,
}

/// What the next character may continue.
enum Open {
    Nothing,
    Run(Run),
    /// The last character of a script without spaces, its bytes, and whether it is the first one too.
    Spaceless {
        last: char,
        range: Range<usize>,
        is_first: bool,
    },
}

/// A run of letters and digits.
struct Run {
    text: String,
    n_chars: usize,
    range: Range<usize>,
    first_end: usize,
    seams: Vec<Seam>,
}

/// A place at which a run may be cut.
struct Seam {
    /// In the form of the run.
    at: usize,
    /// The end of the part before it in the text, and the start of the part behind it.
    end: usize,
    start: usize,
}

impl Iterator for PlainWords<'_> {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        while self.found.is_empty() && self.at < self.text.len() {
            self.read();
        }
        if self.found.is_empty() {
            self.close();
        }
        self.found.pop_front()
    }
}

impl PlainWords<'_> {
    /// Reads one cluster: a character, and those behind it that change with it when the text is composed. Or reads a run of ASCII.
    fn read(&mut self) {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let is_ascii = |at: usize| bytes.get(at).is_none_or(u8::is_ascii);
        if bytes[start].is_ascii() && is_ascii(start + 1) {
            let n = bytes[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            if n == 0 {
                self.at += 1;
                return self.close();
            }
            // The last one may combine with what follows.
            let end = if is_ascii(start + n) { start + n } else { start + n - 1 };
            self.at = end;
            return self.take_ascii(start..end);
        }
        let first = self.text[start..].chars().next().expect("not at the end");
        let mut end = start + first.len_utf8();
        self.at = end;
        if !is_stable(first) && is_ignorable(first) {
            return self.pass(first, start..end);
        }
        let mut others = self.text[end..].chars();
        let mut n_others = 0;
        while let Some(c) = others.next() {
            if continues(c) {
                n_others += 1;
                end = self.text.len() - others.as_str().len();
            } else if is_stable(c) || !is_ignorable(c) {
                break;
            }
        }
        let is_composed = is_stable(first) || is_nfkc_quick(std::iter::once(first)) == IsNormalized::Yes;
        if is_composed && n_others == 0 {
            // A number that no form writes with digits, such as `❶`, is a word.
            let is_number = first.is_numeric() && is_symbol(first);
            if is_number {
                self.close();
            }
            lower(first, self.is_turkish).for_each(|c| self.take(c, start..end));
            if is_number {
                self.close();
            }
            return;
        }
        let is_turkish = self.is_turkish;
        let cluster = self.text[start..end].chars().filter(|&c| !is_ignorable(c));
        let cluster = cluster.nfkc().flat_map(|c| lower(c, is_turkish)).nfkc();
        let mut characters = std::mem::take(&mut self.cluster);
        // Presentation forms of Arabic have the line that prolongs letters.
        characters.extend(cluster.filter(|&c| !is_ignorable(c)));
        self.at = end;
        let is_symbol = !is_composed && is_symbol(first);
        self.seam(is_symbol, start);
        characters.drain(..).for_each(|c| self.take(c, start..end));
        self.seam(is_symbol, end);
        self.cluster = characters;
    }

    /// Takes ASCII letters and digits.
    fn take_ascii(&mut self, range: Range<usize>) {
        if !matches!(self.open, Open::Run(_)) {
            self.close();
            let text = String::with_capacity(range.len());
            let (first_end, seams) = (range.start + 1, Vec::new());
            self.open = Open::Run(Run { text, n_chars: 0, range: range.clone(), first_end, seams });
        }
        let Open::Run(run) = &mut self.open else { return };
        let text = &self.text[range.clone()];
        let fits = text.len().min(WORD_CHARS_MAX.saturating_sub(run.n_chars));
        let from = run.text.len();
        match self.is_turkish {
            true => run.text.extend(text[..fits].chars().flat_map(|c| lower(c, true))),
            false => {
                run.text.push_str(&text[..fits]);
                run.text[from..].make_ascii_lowercase();
            }
        }
        run.n_chars += text.len();
        run.range.end = range.end;
    }

    /// Passes over an invisible character.
    fn pass(&mut self, c: char, range: Range<usize>) {
        let Open::Run(run) = &mut self.open else { return };
        match c {
            // Marks the ends of words where there are no spaces.
            ZERO_WIDTH_SPACE => self.close(),
            ZERO_WIDTH_NON_JOINER
                if run.n_chars <= WORD_CHARS_MAX
                    && run.text.ends_with(|c| matches!(c, '\u{600}'..='\u{8ff}')) =>
            {
                run.seams.push(Seam { at: run.text.len(), end: run.range.end, start: range.end });
            }
            _ => {}
        }
    }

    fn seam(&mut self, is_symbol: bool, at: usize) {
        if let Open::Run(run) = &mut self.open
            && is_symbol
            && run.n_chars <= WORD_CHARS_MAX
        {
            run.seams.push(Seam { at: run.text.len(), end: run.range.end, start: at });
        }
    }

    /// Takes a character of the composed text in lower case, with the bytes that it comes from.
    fn take(&mut self, c: char, range: Range<usize>) {
        if is_accent(c) {
            // It did not compose, so no stemmer knows its letter.
            match &mut self.open {
                Open::Nothing => {}
                Open::Run(Run { range: open, .. }) | Open::Spaceless { range: open, .. } => {
                    open.end = range.end
                }
            }
            return;
        }
        let c = digit(c).unwrap_or(c);
        let is_letter = c.is_alphanumeric();
        if is_apostrophe(c) || !is_letter && !is_combining_mark(c) {
            self.close();
            if is_pictograph(c) {
                let (text, first_end) = (c.to_string(), range.end);
                self.found.push_back(Word { text, range, first_end, kind: WordKind::Run });
            }
        } else if is_spaceless(c) {
            let is_first = match &self.open {
                Open::Spaceless { last, range: before, .. } => {
                    let word = Word {
                        text: [*last, c].iter().collect(),
                        range: before.start..range.end,
                        first_end: before.end,
                        kind: WordKind::Pair,
                    };
                    self.found.push_back(word);
                    false
                }
                _ => {
                    self.close();
                    true
                }
            };
            self.open = Open::Spaceless { last: c, range, is_first };
        } else {
            if !matches!(self.open, Open::Run(_)) {
                if !is_letter {
                    return;
                }
                self.close();
            }
            match &mut self.open {
                Open::Run(run) => run.push(c, range.end),
                _ => {
                    let first_end = range.end;
                    let text = String::from(c);
                    self.open = Open::Run(Run { text, n_chars: 1, range, first_end, seams: Vec::new() });
                }
            }
        }
    }

    /// Ends what is open.
    fn close(&mut self) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Run(run) => run.pass_on(&mut self.found),
            Open::Spaceless { last, range, is_first } => {
                let kind = if is_first { WordKind::Single } else { WordKind::Last };
                let (text, first_end) = (last.to_string(), range.end);
                self.found.push_back(Word { text, range, first_end, kind });
            }
        }
    }
}

impl Run {
    fn push(&mut self, c: char, end: usize) {
        self.range.end = end;
        self.n_chars += 1;
        if self.n_chars <= WORD_CHARS_MAX {
            self.text.push(c);
        } else if self.n_chars == WORD_CHARS_MAX + 1 && is_combining_mark(c) {
            // No letter is cut from its marks.
            let letter = self.text.rfind(|c| !is_combining_mark(c)).unwrap_or(0);
            if letter > 0 {
                self.text.truncate(letter);
            }
        }
    }

    fn pass_on(mut self, found: &mut VecDeque<Word>) {
        let kind = WordKind::Run;
        let mut seams = std::mem::take(&mut self.seams);
        seams.dedup_by_key(|seam| seam.at);
        seams.retain(|seam| seam.at < self.text.len());
        if seams.is_empty() {
            found.push_back(Word { text: self.text, range: self.range, first_end: self.first_end, kind });
            return;
        }
        let end = Seam { at: self.text.len(), end: self.range.end, start: self.range.end };
        let (mut from, mut start) = (0, self.range.start);
        let whole = Word { text: self.text.clone(), range: self.range, first_end: self.first_end, kind };
        found.push_back(whole);
        for seam in seams.into_iter().chain([end]) {
            let text = self.text[from..seam.at].to_owned();
            found.push_back(Word { text, range: start..seam.end, first_end: seam.end, kind });
            (from, start) = (seam.at, seam.start);
        }
    }
}

/// The folded case of a character. Turkish has an `i` without a dot. A sigma at the end of a word is the same letter.
fn lower(c: char, is_turkish: bool) -> impl Iterator<Item = char> {
    let (c, second) = match c {
        'I' if is_turkish => ('ı', None),
        'İ' if is_turkish => ('i', None),
        'ς' => ('σ', None),
        'ß' | 'ẞ' => ('s', Some('s')),
        c => (c, None),
    };
    c.to_lowercase().chain(second)
}

/// A name, such as a tag, in the form in which names are compared: composed, in lower case, without invisible characters.
pub(crate) fn composed_lower(name: &str) -> String {
    name.chars().filter(|&c| !is_ignorable(c)).nfkc().flat_map(|c| lower(c, false)).nfkc().collect()
}

/// Whether a character may change with the ones before it when the text is composed.
pub(crate) fn continues(c: char) -> bool {
    if is_stable(c) {
        return false;
    }
    let mut first = None;
    decompose_compatible(c, |c| _ = first.get_or_insert(c));
    first.is_some_and(|first| {
        canonical_combining_class(first) != 0 || is_nfkc_quick(std::iter::once(first)) == IsNormalized::Maybe
    })
}

/// Whether a character is one of the most frequent ones that composing neither changes nor joins to the ones before. It saves most of the
/// look-ups.
fn is_stable(c: char) -> bool {
    matches!(c,
        '\0'..='\u{7f}' | '\u{c0}'..='\u{131}' | '\u{3ac}'..='\u{3ce}' | '\u{400}'..='\u{481}' | '\u{5d0}'..='\u{5ea}'
        | '\u{621}'..='\u{63a}' | '\u{904}'..='\u{939}' | '\u{93d}'..='\u{94c}' | '\u{e01}'..='\u{e32}'
        | '\u{2010}' | '\u{2013}'..='\u{2016}' | '\u{2018}'..='\u{2023}' | '\u{3001}'..='\u{3029}' | '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fe}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

/// Whether a character that composing replaces by letters or digits is neither one itself, such as `²`, `½`, `①` and `™`.
fn is_symbol(c: char) -> bool {
    !c.is_alphabetic() && digit(c).is_none() && !is_combining_mark(c)
}

const ZERO_WIDTH_SPACE: char = '\u{200b}';
const ZERO_WIDTH_NON_JOINER: char = '\u{200c}';

/// Whether a character is invisible and part of no word: `Default_Ignorable_Code_Point` of Unicode, and the line that prolongs
/// Arabic letters.
pub(crate) fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{640}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Whether a mark may be left out in writing: accents of Latin, Greek and Cyrillic letters, points of Hebrew, Arabic and Syriac
/// ones. The marks of all other scripts are letters: vowels, signs that silence a vowel, tones.
fn is_accent(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}'
        | '\u{483}'..='\u{489}'     // Cyrillic
        | '\u{591}'..='\u{5bd}'     // Hebrew
        | '\u{5bf}' | '\u{5c1}'..='\u{5c2}' | '\u{5c4}'..='\u{5c5}' | '\u{5c7}'
        | '\u{610}'..='\u{61a}'     // Arabic
        | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6dc}' | '\u{6df}'..='\u{6e4}'
        | '\u{6e7}'..='\u{6e8}' | '\u{6ea}'..='\u{6ed}'
        | '\u{711}' | '\u{730}'..='\u{74a}' // Syriac
        | '\u{897}'..='\u{89f}' | '\u{8ca}'..='\u{8e1}' | '\u{8e3}'..='\u{8ff}'
        | '\u{951}'..='\u{954}'     // Vedic
        | '\u{1ab0}'..='\u{1aff}'
        | '\u{1cd0}'..='\u{1cd2}' | '\u{1cd4}'..='\u{1ce0}'
        | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20f0}'
        | '\u{a66f}'..='\u{a672}' | '\u{a674}'..='\u{a67d}'
        | '\u{fb1e}'
        | '\u{fe20}'..='\u{fe2f}')
}

/// Whether a letter stands for an apostrophe, which ends a word in its other forms.
fn is_apostrophe(c: char) -> bool {
    matches!(c, '\u{2b9}'..='\u{2bf}' | '\u{2c8}' | '\u{2ee}' | '\u{a78b}'..='\u{a78c}')
}

/// Removes accents, and replaces letters that Unicode does not decompose.
fn without_accents(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    for character in word.chars() {
        match character {
            // No accents: letters of the alphabets.
            'й' | 'ї' | 'ў' => plain.push(character),
            _ if character.is_ascii() => plain.push(character),
            _ => {
                let letters = std::iter::once(character).nfd().filter(|&c| !is_accent(c));
                letters.for_each(|letter| push_plain(letter, &mut plain));
            }
        }
    }
    plain
}

fn push_plain(letter: char, plain: &mut String) {
    match letter {
        'æ' => plain.push_str("ae"),
        'œ' => plain.push_str("oe"),
        'þ' => plain.push_str("th"),
        'ø' => plain.push('o'),
        'đ' | 'ð' => plain.push('d'),
        'ł' => plain.push('l'),
        'ħ' => plain.push('h'),
        'ŋ' => plain.push('n'),
        'ŧ' => plain.push('t'),
        'ı' => plain.push('i'),
        // Letters of Persian and Urdu keyboards, and letters that are written for each other.
        'ی' | 'ى' => plain.push('ي'),
        'ک' => plain.push('ك'),
        'ة' => plain.push('ه'),
        other => plain.push(other),
    }
}

/// The code points of the zeros of all scripts but ASCII (`Nd` of Unicode 17). The other digits follow each.
const ZEROS: [u32; 75] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x10d40, 0x11066,
    0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x116d0, 0x116da, 0x11730,
    0x118e0, 0x11950, 0x11bf0, 0x11c50, 0x11d50, 0x11da0, 0x11de0, 0x11f50, 0x16a60, 0x16ac0, 0x16b50,
    0x16d70, 0x1ccf0, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e4f0, 0x1e5f1,
    0x1e950, 0x1fbf0,
];

/// The ASCII digit that a digit of another script stands for.
fn digit(c: char) -> Option<char> {
    if c.is_ascii_digit() {
        return Some(c);
    }
    if c.is_ascii() || !c.is_numeric() {
        return None;
    }
    let code = u32::from(c);
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= code)].last()?;
    char::from_digit(code - zero, 10)
}

/// Whether a character belongs to a script that is written without spaces between words. (Korean has spaces, but its
/// words have endings, and pairs find the stem.)
fn is_spaceless(character: char) -> bool {
    matches!(character,
        '\u{e01}'..='\u{eff}'       // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Burmese
        | '\u{1100}'..='\u{11ff}'   // Hangul Jamo
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{1950}'..='\u{19df}'   // Tai Le, New Tai Lue
        | '\u{1a20}'..='\u{1aad}'   // Tai Tham
        | '\u{1b00}'..='\u{1b7f}'   // Balinese
        | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{30ff}'   // Hiragana, Katakana
        | '\u{3131}'..='\u{318e}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'   // Han
        | '\u{4e00}'..='\u{9fff}'
        | '\u{a960}'..='\u{a97f}'
        | '\u{a980}'..='\u{a9ff}'   // Javanese, Burmese
        | '\u{aa60}'..='\u{aadf}'   // Burmese, Tai Viet
        | '\u{ac00}'..='\u{d7ff}'   // Hangul
        | '\u{f900}'..='\u{faff}'
        | '\u{11700}'..='\u{1174f}' // Ahom
        | '\u{16fe0}'..='\u{18cff}' // Tangut, Khitan
        | '\u{1aff0}'..='\u{1b2ff}' // Kana, Nushu
        | '\u{20000}'..='\u{3ffff}')
}

/// Whether a character is an emoji or a dingbat. Skin tones are none: they change the emoji before them.
fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{2b50}' | '\u{2b55}' | '\u{1f000}'..='\u{1f3fa}' | '\u{1f400}'..='\u{1faff}')
}

/// Gives [`words`] to tantivy. The first character of a text is the number of its language, since a tokenizer of
/// tantivy knows a field, not a passage.
#[derive(Clone, Default)]
pub(crate) struct MarkedTokenizer;

/// A text with its language in front.
pub(crate) fn marked(text: &str, language: Option<Language>) -> String {
    let number = Language::number(language) as u8;
    let mut marked = String::with_capacity(text.len() + 1);
    marked.push(char::from(number));
    marked.push_str(text);
    marked
}

impl Tokenizer for MarkedTokenizer {
    type TokenStream<'a> = MarkedStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> MarkedStream<'a> {
        let mut characters = text.chars();
        let language = characters.next().and_then(|mark| Language::of_number(u64::from(u32::from(mark))));
        let words = plain_words(characters.as_str(), language);
        MarkedStream { words, stems: Stems::new(language), token: Token::default() }
    }
}

/// See [`MarkedTokenizer`].
pub(crate) struct MarkedStream<'a> {
    words: PlainWords<'a>,
    stems: Stems,
    token: Token,
}

impl TokenStream for MarkedStream<'_> {
    fn advance(&mut self) -> bool {
        let Some(word) = self.words.next().map(|word| self.stems.stem(word)) else { return false };
        self.token.position = self.token.position.wrapping_add(1);
        self.token.text = word.text;
        // Behind the mark, which is one byte.
        (self.token.offset_from, self.token.offset_to) = (word.range.start + 1, word.range.end + 1);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str, language: Option<Language>) -> Vec<String> {
        words(text, language).map(|word| word.text).collect()
    }

    #[test]
    fn european_words_are_stems_without_accents() {
        assert_eq!(shown("Meetings, at the CAFÉ!", Some(Language::English)), ["meet", "at", "the", "cafe"]);
        assert_eq!(shown("die Häuser", Some(Language::German)), shown("die Haus", Some(Language::German)));
        assert_eq!(shown("größe Straße STRAẞE", None), ["grosse", "strasse", "strasse"]);
        assert_eq!(shown("cafe\u{301} ＡＢＣ Łódź ǿ", None), ["cafe", "abc", "lodz", "o"]);
        assert_eq!(shown("Οδός", None), shown("ΟΔΟΣ", None));
        let greek = Some(Language::Greek);
        assert_eq!(shown("τοῖς ἀνθρώποις", greek), shown("ΤΟΙΣ ΑΝΘΡΩΠΟΙΣ", greek));
        let english = Some(Language::English);
        assert_eq!(shown("Straße", english), shown("STRASSE", english));
        assert_eq!(shown("ﬁn ﬂuß Ⅳ ŉ", None), ["fin", "fluss", "iv", "n"]);
        assert_eq!(shown("мой мои ёлка", None), ["мой", "мои", "елка"]);
    }

    #[test]
    fn scripts_without_spaces_give_pairs() {
        assert_eq!(shown("東京都へ", None), ["東京", "京都", "都へ", "へ"]);
        assert_eq!(shown("茶 tea 회의", None), ["茶", "tea", "회의", "의"]);
        let kinds: Vec<_> = words("茶 東京", None).map(|word| word.kind).collect();
        assert_eq!(kinds, [WordKind::Single, WordKind::Pair, WordKind::Last]);
        // The number, the currency and the full stop are no letters.
        assert_eq!(shown("๒๕๖๗ ฿៛។ 3時", None), ["2567", "3", "時"]);
        assert_eq!(shown("ｶﾞ ガ か\u{3099}", None), ["ガ", "ガ", "が"]);
        // Marks of the ends of words, which not everybody types.
        assert_eq!(shown("ភាសា\u{200b}ខ្មែរ", None), shown("ភាសាខ្មែរ", None));
    }

    #[test]
    fn hangul_syllables_are_cut_after_they_are_composed() {
        let text = "회의";
        let decomposed: String = text.nfd().collect();
        assert_eq!(shown(&decomposed, None), ["회의", "의"]);
        let ranges: Vec<_> = words(&decomposed, None).map(|word| (word.range, word.first_end)).collect();
        assert_eq!(ranges, [(0..decomposed.len(), 6), (6..decomposed.len(), decomposed.len())]);
        assert_eq!(shown("ﾾￂ", None), ["하"]);
    }

    #[test]
    fn marks_are_letters_by_script() {
        assert_ne!(shown("दिन", None), shown("दान", None));
        assert_eq!(shown("हिन्दी", None), ["हिन्दी"]);
        assert_eq!(shown("שָׁלוֹם מֻحَمَّد محمّد مـحمد", None), ["שלום", "מحمد", "محمد", "محمد"]);
        assert_eq!(shown("за\u{301}мок", None), ["замок"]);
    }

    #[test]
    fn invisible_characters_are_no_part_of_words() {
        assert_eq!(
            shown("Bahn\u{ad}hof a\u{200d}b c\u{2060}d e\u{ad}\u{301} x\u{fe0f}", None),
            ["bahnhof", "ab", "cd", "e", "x"]
        );
        assert_eq!(shown("one\u{200b}two", None), ["one", "two"]);
        assert_eq!(shown("کتاب\u{200c}ها", None), ["كتابها", "كتاب", "ها"]);
        assert_eq!(shown("क्\u{200c}ष", None), ["क्ष"]);
    }

    #[test]
    fn symbols_beside_words_are_seams() {
        assert_eq!(
            shown("m² word¹ 1½ ①a", None),
            ["m2", "m", "2", "word1", "word", "1", "11", "1", "1", "2", "1a", "1", "a"]
        );
        assert_eq!(shown("❶one፩", None), ["❶", "one", "፩"]);
        assert_eq!(shown("Name™ １２", None), ["nametm", "name", "tm", "12"]);
        let ranges: Vec<_> = words("m²", None).map(|word| word.range).collect();
        assert_eq!(ranges, [0..3, 0..1, 1..3]);
    }

    #[test]
    fn apostrophes_hyphens_and_emoji() {
        for text in ["don't", "don’t", "don\u{2bc}t", "don＇t", "don-t", "don\u{2011}t", "don_t", "don.t"]
        {
            assert_eq!(shown(text, None), ["don", "t"], "{text}");
        }
        assert_eq!(shown("👩\u{200d}🚀 👍🏽 1\u{fe0f}\u{20e3} ☂\u{fe0f}", None), ["👩", "🚀", "👍", "1", "☂"]);
    }

    #[test]
    fn a_turkish_i_has_two_forms() {
        let turkish = Some(Language::Turkish);
        assert_eq!(shown("KAPININ", turkish), shown("kapının", turkish));
        assert_eq!(shown("İstanbul I\u{307}stanbul", turkish), shown("istanbul istanbul", turkish));
        assert_eq!(shown("İstanbul", None), ["istanbul"]);
    }

    #[test]
    fn of_a_long_word_the_index_has_the_beginning() {
        let [long, longer] = [128, 1000].map(|n| "x".repeat(n));
        assert_eq!(shown(&format!("a {longer} b"), None), ["a", &long, "b"]);
        assert_eq!(shown(&format!("{}{longer}", "é"), None), [format!("e{}", "x".repeat(127))]);
        // A letter that would lose its mark is left out.
        assert_eq!(shown(&"क\u{94d}".repeat(100), None), ["क\u{94d}".repeat(64)]);
        assert_eq!(
            shown(&format!("x{}", "क\u{94d}".repeat(100)), None),
            [format!("x{}", "क\u{94d}".repeat(63))]
        );
        assert_eq!(shown(&"e\u{301}\u{302}".repeat(10_000), None), ["e".repeat(128)]);
    }

    #[test]
    fn stable_characters_are_composed_and_stand_alone() {
        for c in ('\0'..=char::MAX).filter(|&c| is_stable(c)) {
            assert_eq!(is_nfkc_quick(std::iter::once(c)), IsNormalized::Yes, "{c:?}");
            assert!(canonical_combining_class(c) == 0 && !is_ignorable(c), "{c:?}");
        }
    }

    #[test]
    fn digits_are_those_of_ascii() {
        assert_eq!(shown("٢٠٢٤ २०२४ ２０２４ 𝟚𝟘𝟚𝟜", None), ["2024"; 4]);
        let n = ('\0'..=char::MAX).filter(|&c| digit(c).is_some()).count();
        assert_eq!(n, 10 * (1 + ZEROS.len()), "each is numeric");
    }

    /// Random text of all scripts, with what combines and what is invisible.
    fn any_script() -> impl Strategy<Value = String> {
        let character = prop_oneof![
            3 => any::<char>(),
            3 => prop::char::range('\0', '\u{ff}'),
            3 => prop::char::range('\u{100}', '\u{1fff}'),
            1 => prop::char::range('\u{1100}', '\u{11ff}'),
            2 => prop::char::range('\u{2000}', '\u{33ff}'),
            1 => prop::char::range('\u{ac00}', '\u{d7a3}'),
            1 => prop::char::range('\u{f900}', '\u{ffef}'),
            2 => prop::char::range('\u{300}', '\u{345}'),
            1 => prop::sample::select(vec!['\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{3099}', 'İ', 'ß', '²', '½', '™']),
        ];
        prop::collection::vec(character, 0..40).prop_map(|characters| characters.into_iter().collect())
    }

    proptest! {
        #[test]
        fn ranges_are_ascending_slices(text in any_script(), number in 0..30_u64) {
            let mut last_start = 0;
            for word in words(&text, Language::of_number(number)) {
                prop_assert!(word.range.start >= last_start && word.range.end <= text.len());
                prop_assert!(text.get(word.range.clone()).is_some_and(|slice| !slice.is_empty()));
                prop_assert!(text.is_char_boundary(word.first_end));
                prop_assert!(word.range.start < word.first_end && word.first_end <= word.range.end);
                prop_assert!(!word.text.is_empty() && word.text.chars().count() <= WORD_CHARS_MAX + 8);
                last_start = word.range.start;
            }
        }

        /// All forms of a text have its words; the compatible ones have no seams.
        #[test]
        fn words_do_not_depend_on_the_form_of_the_text(text in any_script(), number in 0..30_u64) {
            let language = Language::of_number(number);
            let expected = shown(&text, language);
            prop_assert_eq!(&shown(&text.nfc().collect::<String>(), language), &expected);
            prop_assert_eq!(&shown(&text.nfd().collect::<String>(), language), &expected);
            // With one kind of seams, as the parts between seams of two kinds differ.
            let text = text.replace(ZERO_WIDTH_NON_JOINER, "");
            let expected: BTreeSet<_> = shown(&text, language).into_iter().collect();
            for compatible in [text.nfkc().collect::<String>(), text.nfkd().collect::<String>()] {
                for word in shown(&compatible, language) {
                    prop_assert!(expected.contains(&word), "{:?} of {:?}", word, compatible);
                }
            }
        }

        /// Every letter of a text is in a word.
        #[test]
        fn no_letter_is_lost(text in any_script()) {
            let mut covered = vec![false; text.len()];
            words(&text, None).for_each(|word| covered[word.range].fill(true));
            for (at, c) in text.char_indices().filter(|&(_, c)| c.is_alphabetic() && !is_combining_mark(c)) {
                let is_letter = |c: char| c.is_alphabetic() && !is_combining_mark(c) && !is_ignorable(c) && !is_apostrophe(c);
                prop_assert!(covered[at] || !std::iter::once(c).nfkc().any(is_letter), "{:?} at {}", c, at);
            }
        }
    }
}
