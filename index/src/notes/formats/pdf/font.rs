//! Fonts: the text and the width of the codes in a string.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::super::limits::{PDF_CODE_CHARS_MAX, PDF_VALUES_MAX};
use super::file::File;
use super::object::{Dict, Lexer, Object};
use crate::notes::report::SkipReason;

/// Length of the names of glyphs and encodings that are looked at, in bytes. Fonts may share a name.
const NAME_BYTES_MAX: usize = 128;

/// Widths are in thousandths of the size.
const WIDTH: f64 = 500.0;

#[derive(Debug)]
pub(super) struct Font {
    /// A code has two bytes.
    is_wide: bool,
    /// Codes are units of UTF-16.
    is_unicode: bool,
    /// By code.
    texts: HashMap<u32, String>,
    widths: HashMap<u32, f64>,
    width: f64,
    /// Codes without a text that are letters of the encoding.
    simple: Option<[char; 256]>,
}

/// A code of a string.
pub(super) struct Code<'a> {
    pub(super) text: Option<std::borrow::Cow<'a, str>>,
    /// Of the size.
    pub(super) width: f64,
    pub(super) is_space: bool,
}

impl Font {
    /// Reads a font.
    ///
    /// # Errors
    /// [`SkipReason::Limit`].
    pub(super) fn read(file: &File<'_>, font: &Dict) -> Result<Self, SkipReason> {
        let is_wide = file.entry(font, b"Subtype").name() == Some(b"Type0");
        let mut read = Self {
            is_wide,
            is_unicode: false,
            texts: HashMap::new(),
            widths: HashMap::new(),
            width: WIDTH,
            simple: None,
        };
        if is_wide {
            let encoding = file.entry(font, b"Encoding");
            let name = encoding.name().filter(|name| name.len() <= NAME_BYTES_MAX).unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            read.is_unicode = name.contains("UCS2") || name.contains("UTF16");
            if let Object::List(inner) = file.entry(font, b"DescendantFonts")
                && let Some(Object::Dict(inner)) = inner.first().map(|inner| file.resolve(inner))
            {
                read.width = file.entry(&inner, b"DW").number().unwrap_or(1000.0);
                read.read_wide_widths(file, &file.entry(&inner, b"W"));
            }
        } else {
            read.simple = Some(read.read_encoding(file, font));
            let first = file.entry(font, b"FirstChar").count().unwrap_or(0).min(255) as u32;
            let descriptor = file.dict(font, b"FontDescriptor");
            read.width = file
                .entry(&descriptor, b"MissingWidth")
                .number()
                .filter(|width| *width > 0.0)
                .unwrap_or(WIDTH);
            if let Object::List(widths) = file.entry(font, b"Widths") {
                let widths = widths.iter().take(256).filter_map(|width| file.resolve(width).number());
                read.widths.extend((first..).zip(widths).take_while(|_| file.take_code()));
            } else if let Some(widths) = file.entry(font, b"BaseFont").name().and_then(standard_widths) {
                let widths = widths.iter().map(|&width| width.into());
                read.widths.extend((32..).zip(widths).take_while(|_| file.take_code()));
            }
        }
        // The glyphs of such a font are drawings, in a space of their own.
        if file.entry(font, b"Subtype").name() == Some(b"Type3")
            && let Object::List(matrix) = file.entry(font, b"FontMatrix")
            && let Some(scale) = matrix.first().and_then(|scale| file.resolve(scale).number())
        {
            read.width *= scale * 1000.0;
            read.widths.values_mut().for_each(|width| *width *= scale * 1000.0);
        }
        if let Some(Object::Reference(number)) = font.get(&b"ToUnicode"[..])
            && let Some(map) = file.stream(*number)?
        {
            read.read_map(file, &map);
        }
        Ok(read)
    }

    /// `[first [width …] first last width …]`.
    fn read_wide_widths(&mut self, file: &File<'_>, widths: &Object) {
        let Object::List(widths) = widths else { return };
        let mut widths = widths.iter().map(|value| file.resolve(value));
        while let (Some(first), Some(second)) = (widths.next(), widths.next()) {
            let Some(first) = first.count().and_then(|first| u32::try_from(first).ok()) else { return };
            match second {
                Object::List(list) => {
                    let widths = (first..=0xffff).zip(list.iter()).take_while(|_| file.take_code());
                    self.widths.extend(
                        widths.filter_map(|(code, width)| Some((code, file.resolve(width).number()?))),
                    );
                }
                last => {
                    let (Some(last), Some(width)) =
                        (last.count(), widths.next().and_then(|width| width.number()))
                    else {
                        return;
                    };
                    let last = u32::try_from(last.min(0xffff)).unwrap_or(0);
                    self.widths
                        .extend((first..=last).map(|code| (code, width)).take_while(|_| file.take_code()));
                }
            }
            if !file.take_code() {
                return;
            }
        }
    }

    /// The letters of a font whose codes have a byte.
    fn read_encoding(&mut self, file: &File<'_>, font: &Dict) -> [char; 256] {
        let (name, differences) = match file.entry(font, b"Encoding") {
            Object::Name(name) => (Object::Name(name), Object::Null),
            Object::Dict(dict) => (file.entry(&dict, b"BaseEncoding"), file.entry(&dict, b"Differences")),
            _ => (Object::Null, Object::Null),
        };
        let letters = match name.name() {
            Some(b"MacRomanEncoding") => latin(MAC_ROMAN),
            Some(b"WinAnsiEncoding") => latin(WIN_ANSI),
            _ => latin(STANDARD),
        };
        let Object::List(differences) = differences else { return letters };
        let mut code = 0_u32;
        for value in differences.iter().take(1024) {
            match value {
                Object::Name(name) => {
                    if !file.take_code() {
                        break;
                    }
                    if let Some(text) = glyph(name) {
                        self.texts.insert(code, text);
                    }
                    code = code.saturating_add(1);
                }
                value => code = value.count().map_or(code, |value| value.min(256) as u32),
            }
        }
        letters
    }

    /// A map of codes to Unicode (CMap).
    fn read_map(&mut self, file: &File<'_>, map: &[u8]) {
        let mut lexer = Lexer { bytes: map, at: 0 };
        let (mut operands, mut n_values) = (Vec::new(), 0);
        while let Some(object) = lexer.next_counted(&mut n_values) {
            let Object::Word(word) = &object else {
                // A part of a map has at most 100 entries.
                if n_values <= PDF_VALUES_MAX {
                    operands.push(object);
                }
                continue;
            };
            match &word[..] {
                b"endcodespacerange" => {
                    self.is_wide &=
                        !operands.iter().all(|bound| bound.text().is_some_and(|text| text.len() == 1))
                            || operands.is_empty();
                }
                b"endbfchar" => {
                    for pair in operands.chunks_exact(2) {
                        if let (Some(code), Some(text)) = (code_of(&pair[0]), pair[1].text()) {
                            self.map(file, code, utf16(text));
                        }
                    }
                }
                b"endbfrange" => operands.chunks_exact(3).for_each(|range| self.map_range(file, range)),
                _ => {}
            }
            operands.clear();
            n_values = 0;
        }
    }

    fn map_range(&mut self, file: &File<'_>, range: &[Object]) {
        let (Some(first), Some(last)) = (code_of(&range[0]), code_of(&range[1])) else { return };
        let codes = first..=last.min(first.saturating_add(0xffff));
        match &range[2] {
            Object::List(texts) => {
                for (code, text) in codes.zip(texts.iter()) {
                    self.map(file, code, utf16(text.text().unwrap_or_default()));
                }
            }
            Object::Text(text) => {
                let mut text = text.to_vec();
                for code in codes {
                    if !self.map(file, code, utf16(&text)) {
                        return;
                    }
                    // The last unit counts on.
                    for byte in text.iter_mut().rev().take(2) {
                        *byte = byte.wrapping_add(1);
                        if *byte != 0 {
                            break;
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// `false` if the file has too many codes.
    fn map(&mut self, file: &File<'_>, code: u32, text: String) -> bool {
        let is_taken = file.take_code();
        if is_taken && !text.is_empty() {
            self.texts.insert(code, text);
        }
        is_taken
    }

    /// The codes of a string.
    pub(super) fn codes<'a>(&'a self, string: &'a [u8]) -> impl Iterator<Item = Code<'a>> {
        string.chunks(if self.is_wide { 2 } else { 1 }).map(move |bytes| {
            let code = bytes.iter().fold(0, |code, &byte| code << 8 | u32::from(byte));
            let known = self.texts.get(&code).map(|text| text.as_str().into());
            let letter = || {
                let letter = match &self.simple {
                    Some(letters) => letters[code as usize & 0xff],
                    None if self.is_unicode => char::from_u32(code)?,
                    None => return None,
                };
                (letter != '\0').then(|| letter.to_string().into())
            };
            let width = self.widths.get(&code).copied().unwrap_or(self.width) / 1000.0;
            Code { text: known.or_else(letter), width, is_space: !self.is_wide && code == 32 }
        })
    }
}

fn code_of(object: &Object) -> Option<u32> {
    let bytes = object.text().filter(|bytes| bytes.len() <= 4)?;
    Some(bytes.iter().fold(0, |code, &byte| code << 8 | u32::from(byte)))
}

/// A text of UTF-16, big-endian. Longer ones than a ligature are cut.
fn utf16(bytes: &[u8]) -> String {
    let units = bytes.chunks(2).take(PDF_CODE_CHARS_MAX);
    let units = units.map(|unit| unit.iter().fold(0, |value, &byte| value << 8 | u16::from(byte)));
    let text = char::decode_utf16(units).filter_map(Result::ok);
    text.filter(|char| !char.is_control()).collect()
}

/// The upper halves of the encodings; a hole is `\0`.
const WIN_ANSI: &str = "€\0‚ƒ„…†‡ˆ‰Š‹Œ\0Ž\0\0‘’“”•–—˜™š›œ\0žŸ\u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ";
const MAC_ROMAN: &str = "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™´¨≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ–—“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\0ÒÚÛÙıˆ˜¯˘˙˚¸˝˛ˇ";
const STANDARD: &str = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0¡¢£⁄¥ƒ§¤'“«‹›ﬁﬂ\0–†‡·\0¶•‚„”»…‰\0¿\0`´ˆ˜¯˘˙¨\0˚¸\0˝˛ˇ—\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0Æ\0ª\0\0\0\0ŁØŒº\0\0\0\0\0æ\0\0\0ı\0\0łøœß\0\0\0\0";

/// Widths of the codes from 32 to 126 in the fonts that a file need not describe (ISO 32000, 9.6.2.2).
const HELVETICA: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278,
    500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469,
    556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
    278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
const TIMES: [u16; 95] = [
    250, 333, 408, 500, 500, 833, 778, 180, 333, 333, 500, 564, 250, 333, 250, 278, 500, 500, 500, 500, 500,
    500, 500, 500, 500, 500, 278, 278, 564, 564, 564, 444, 921, 722, 667, 667, 722, 611, 556, 722, 722, 333,
    389, 722, 611, 889, 722, 722, 556, 722, 667, 556, 611, 722, 722, 944, 722, 722, 611, 333, 278, 333, 469,
    500, 333, 444, 500, 444, 500, 444, 333, 500, 500, 278, 278, 500, 278, 778, 500, 500, 500, 500, 333, 389,
    278, 500, 500, 722, 500, 500, 444, 480, 200, 480, 541,
];
const COURIER: [u16; 95] = [600; 95];

/// The widths of a font by its name. Those of bold and slanted letters are near enough to tell words apart.
fn standard_widths(name: &[u8]) -> Option<&'static [u16; 95]> {
    let families: [(&[u8], _); 4] =
        [(b"Helvetica", &HELVETICA), (b"Arial", &HELVETICA), (b"Times", &TIMES), (b"Courier", &COURIER)];
    families.into_iter().find_map(|(family, widths)| name.starts_with(family).then_some(widths))
}

fn latin(upper: &str) -> [char; 256] {
    let mut letters = ['\0'; 256];
    for (code, letter) in (32..127).zip(' '..) {
        letters[code] = letter;
    }
    upper.chars().zip(&mut letters[128..]).for_each(|(letter, place)| *place = letter);
    letters
}

/// Names of glyphs that are neither letters, letters with accents, nor codes.
const GLYPHS: &str = "space\u{20} exclam! quotedbl\" numbersign# dollar$ percent% ampersand& quotesingle' parenleft( parenright) asterisk* plus+ comma, hyphen- \
    period. slash/ zero0 one1 two2 three3 four4 five5 six6 seven7 eight8 nine9 colon: semicolon; less< equal= greater> question? at@ bracketleft[ \
    backslash\\ bracketright] asciicircum^ underscore_ grave` braceleft{ bar| braceright} asciitilde~ exclamdown¡ cent¢ sterling£ currency¤ yen¥ \
    brokenbar¦ section§ dieresis¨ copyright© ordfeminineª guillemotleft« logicalnot¬ registered® macron¯ degree° plusminus± acute´ mu\u{b5} \
    paragraph¶ periodcentered· cedilla¸ ordmasculineº guillemotright» onequarter¼ onehalf½ threequarters¾ questiondown¿ AEÆ Eth\u{d0} \
    multiply× OslashØ Thorn\u{de} germandbls\u{df} ae\u{e6} eth\u{f0} divide÷ oslash\u{f8} thorn\u{fe} dotlessi\u{131} Lslash\u{141} lslash\u{142} \
    OE\u{152} oe\u{153} florin\u{192} circumflex\u{2c6} tilde\u{2dc} endash– emdash— quoteleft‘ quoteright’ quotesinglbase‚ quotedblleft“ \
    quotedblright” quotedblbase„ dagger† daggerdbl‡ bullet• ellipsis… perthousand‰ guilsinglleft‹ guilsinglright› fraction⁄ Euro€ trademark™ \
    minus− infinity∞ lessequal≤ greaterequal≥ notequal≠ approxequal≈ summation∑ product∏ integral∫ radical√ partialdiff∂ lozenge◊ \
    arrowleft← arrowup↑ arrowright→ arrowdown↓ Dcroat\u{110} dcroat\u{111} Hbar\u{126} hbar\u{127} fi\u{66}i fl\u{66}l ff\u{66}f ffi\u{66}fi ffl\u{66}fl \
    AlphaΑ BetaΒ GammaΓ DeltaΔ EpsilonΕ ZetaΖ EtaΗ ThetaΘ IotaΙ KappaΚ LambdaΛ MuΜ NuΝ XiΞ OmicronΟ PiΠ RhoΡ SigmaΣ TauΤ UpsilonΥ PhiΦ ChiΧ \
    PsiΨ OmegaΩ alphaα betaβ gammaγ deltaδ epsilonε zetaζ etaη thetaθ iotaι kappaκ lambdaλ nuν xiξ omicronο piπ rhoρ sigmaσ tauτ upsilonυ phiφ \
    chiχ psiψ omegaω";

/// Names of accents behind a letter, and their marks.
const ACCENTS: [(&str, char); 13] = [
    ("grave", '\u{300}'),
    ("acute", '\u{301}'),
    ("circumflex", '\u{302}'),
    ("tilde", '\u{303}'),
    ("macron", '\u{304}'),
    ("breve", '\u{306}'),
    ("dotaccent", '\u{307}'),
    ("dieresis", '\u{308}'),
    ("ring", '\u{30a}'),
    ("hungarumlaut", '\u{30b}'),
    ("caron", '\u{30c}'),
    ("cedilla", '\u{327}'),
    ("ogonek", '\u{328}'),
];

/// The text of a glyph by its name.
fn glyph(name: &[u8]) -> Option<String> {
    let name = Some(name).filter(|name| name.len() <= NAME_BYTES_MAX)?;
    let name = std::str::from_utf8(name).ok()?;
    // A suffix names a form: `a.sc`.
    let name = name.split('.').next().filter(|name| !name.is_empty())?;
    if name.chars().count() == 1 {
        return Some(name.to_owned());
    }
    // Parts of a ligature.
    if name.contains('_') {
        return name.split('_').map(|part| glyph(part.as_bytes())).collect();
    }
    let of_code = |digits: &str| Some(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?.to_string());
    let digits = name.strip_prefix("uni").filter(|digits| digits.len() == 4);
    let digits = digits.or(name.strip_prefix('u').filter(|digits| (4..=6).contains(&digits.len())));
    if let Some(text) = digits.and_then(of_code) {
        return Some(text);
    }
    if let Some(number) = name.strip_prefix("afii").and_then(|number| number.parse().ok()) {
        return cyrillic(number).map(String::from);
    }
    let known = GLYPHS.split_ascii_whitespace().find_map(|entry| {
        let text = entry.strip_prefix(name)?;
        let is_name = match text.chars().next() {
            // `fi` and `f`, `ffi` and `ff`: the text of a ligature is letters too.
            Some('f') => matches!(
                (name, text),
                ("fi", "fi") | ("fl", "fl") | ("ff", "ff") | ("ffi", "ffi") | ("ffl", "ffl")
            ),
            Some(first) => !first.is_ascii_alphabetic(),
            None => false,
        };
        is_name.then(|| text.to_owned())
    });
    let accented = || {
        let letter = name.chars().next().filter(char::is_ascii_alphabetic)?;
        let (_, mark) = ACCENTS.iter().find(|(accent, _)| *accent == &name[1..])?;
        Some([letter, *mark].into_iter().nfc().collect::<String>())
    };
    if name == "space" { Some(" ".to_owned()) } else { known.or_else(accented) }
}

/// The letters of Russian among the names `afii10017` and so on.
fn cyrillic(number: u32) -> Option<char> {
    let letter = |first: u32, of: u32| match number - first {
        6 => char::from_u32(if of == 0x410 { 0x401 } else { 0x451 }),
        n @ 0..6 => char::from_u32(of + n),
        n => char::from_u32(of + n - 1),
    };
    match number {
        10017..=10049 => letter(10017, 0x410),
        10065..=10097 => letter(10065, 0x430),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glyphs_have_texts() {
        for (name, text) in [
            ("A", "A"),
            ("Aacute", "Á"),
            ("ccedilla", "ç"),
            ("fi", "fi"),
            ("ffl", "ffl"),
            ("space", " "),
            ("zero", "0"),
            ("uni20AC", "€"),
            ("u1F600", "😀"),
            ("afii10017", "А"),
            ("afii10071", "ё"),
            ("afii10072", "ж"),
            ("a.sc", "a"),
            ("eacute", "é"),
            ("ae", "æ"),
            ("hyphen", "-"),
            ("emdash", "—"),
            ("scaron", "š"),
            ("f", "f"),
            ("pi", "π"),
            ("period", "."),
            ("uacute", "ú"),
            ("ugrave", "ù"),
            ("uring", "ů"),
            ("upsilon", "υ"),
            ("f_i", "fi"),
        ] {
            assert_eq!(glyph(name.as_bytes()).as_deref(), Some(text), "{name}");
        }
        assert_eq!((glyph(b".notdef"), glyph(b"g42")), (None, None));
        assert_eq!(glyph(format!("a.{}", "x".repeat(200)).as_bytes()), None);
    }

    #[test]
    fn encodings_have_128_upper_letters() {
        assert_eq!(WIN_ANSI.chars().count(), 128);
        assert_eq!(MAC_ROMAN.chars().count(), 128);
        assert_eq!(STANDARD.chars().count(), 128);
        assert_eq!((latin(WIN_ANSI)[0xe9], latin(MAC_ROMAN)[0x8e], latin(STANDARD)[0xae]), ('é', 'é', 'ﬁ'));
    }
}
