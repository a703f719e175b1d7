//! HTML and XHTML: what a browser shows, with a block for each paragraph, list item, row and heading. Also the text of HTML parts of mail.
//!
//! Nothing is nested here: the tokenizer yields tags and texts in the order of the file, so the depth has no limit.

use std::borrow::Cow;
use std::ops::Range;

use html5gum::emitters::default::DefaultEmitter;
use html5gum::{StartTag, State, Token, Tokenizer};
use mail_parser::decoders::charsets::map::charset_decoder;

use super::encoding::Decoded;
use super::outline::{Block, Document};
use super::parse_date;
use super::unit::{Losses, Unit};
use crate::notes::report::SkipReason;

/// Blocks that are shorter share one with the next: a block takes more memory than a short paragraph.
const BLOCK_BYTES: usize = 120;

/// Length of the start of a file in which its character set is looked for, in bytes (HTML, 4.2.5.4).
const CHARSET_BYTES: usize = 1024;

/// Elements whose end tag browsers demand, so that one without it hides the rest there too.
const CLOSED: [&[u8]; 18] = [
    b"a",
    b"article",
    b"aside",
    b"button",
    b"div",
    b"dl",
    b"figure",
    b"footer",
    b"form",
    b"header",
    b"main",
    b"nav",
    b"ol",
    b"section",
    b"span",
    b"table",
    b"template",
    b"ul",
];

/// Elements that begin a line.
const BLOCKS: [&[u8]; 30] = [
    b"address",
    b"article",
    b"aside",
    b"blockquote",
    b"br",
    b"center",
    b"dd",
    b"div",
    b"dl",
    b"dt",
    b"fieldset",
    b"footer",
    b"form",
    b"h1",
    b"h2",
    b"h3",
    b"h4",
    b"h5",
    b"h6",
    b"header",
    b"hr",
    b"li",
    b"main",
    b"nav",
    b"ol",
    b"p",
    b"pre",
    b"section",
    b"table",
    b"tr",
];

/// The text of HTML in mail.
pub(super) fn to_text(html: &str) -> String {
    let blocks = document(html, false).blocks.into_iter().map(|block| block.text);
    blocks.collect::<Vec<_>>().join("\n")
}

pub(super) fn read(name: &str, text: &str, losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    Ok(document(text, false).into_units(name, losses))
}

/// A file that is not UTF-8, in the character set that it names, else that of Windows, as browsers read it.
pub(super) fn decoded(file: &[u8]) -> Result<Decoded<'_>, SkipReason> {
    let text = Decoded::new(file);
    if let Some(offset) = text.bytes.iter().position(|&byte| byte == 0) {
        return Err(text.in_file(SkipReason::NotText { offset: offset as u64 }));
    }
    if std::str::from_utf8(&text.bytes).is_ok() {
        return Ok(text);
    }
    let start = String::from_utf8_lossy(&file[..file.len().min(CHARSET_BYTES)]).to_ascii_lowercase();
    let named = start.split_once("charset").and_then(|(_, rest)| {
        let value = rest.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
        value.split(['"', '\'', ' ', ';', '>', '/']).next()
    });
    let decode = named.and_then(|name| charset_decoder(name.as_bytes()));
    let decode = decode.or_else(|| charset_decoder(b"windows-1252"));
    let decoded = decode.map_or_else(|| String::from_utf8_lossy(file).into_owned(), |decode| decode(file));
    Ok(Decoded::of_other(decoded, file.len()))
}

/// What a browser shows. In XML, a tag may end its element too.
pub(super) fn document(html: &str, is_xml: bool) -> Document {
    let mut tokens = Tokenizer::new_with_emitter(html, DefaultEmitter::<usize>::new_with_span());
    let mut walk = Walk::default();
    // The element whose text is not shown, and how many of its name are open.
    let mut hidden: Option<(Vec<u8>, usize)> = None;
    while let Some(Ok(token)) = tokens.next() {
        match token {
            Token::String(shown) => {
                let place = shown.span.start.min(html.len())..shown.span.end.min(html.len());
                // The first word has the line, not the line end before it.
                let source = html.as_bytes().get(place.clone()).unwrap_or_default();
                let place = place.end - source.trim_ascii_start().len()..place.end;
                let shown = String::from_utf8_lossy(&shown);
                match &hidden {
                    None => walk.text(&shown, place),
                    Some((name, _)) if name == b"title" => walk.title(&shown),
                    Some(_) => {}
                }
            }
            Token::StartTag(tag) => {
                let name = tag.name.as_slice();
                let is_empty = is_xml && tag.self_closing;
                // Until its end tag, such an element has no tags.
                let state = match name {
                    b"script" => Some(State::ScriptData),
                    b"style" => Some(State::RawText),
                    b"title" | b"textarea" => Some(State::RcData),
                    _ => None,
                };
                state.into_iter().filter(|_| !is_empty).for_each(|state| tokens.set_state(state));
                match &mut hidden {
                    Some((open, n)) => *n += usize::from(!is_empty && open == name),
                    None if !is_empty && hides(&tag) => {
                        walk.is_title_open = name == b"title" && walk.document.title.is_none();
                        hidden = Some((name.to_vec(), 1));
                    }
                    None => walk.start(&tag),
                }
            }
            Token::EndTag(tag) => match &mut hidden {
                Some((open, n)) if open == tag.name.as_slice() => {
                    *n -= 1;
                    if *n == 0 {
                        walk.is_title_open = false;
                        hidden = None;
                    }
                }
                Some(_) => {}
                None => walk.end(&tag.name),
            },
            _ => {}
        }
    }
    walk.flush();
    walk.document
}

/// Whether the text of an element is not shown.
fn hides(tag: &StartTag<usize>) -> bool {
    let name = tag.name.as_slice();
    if matches!(name, b"script" | b"style" | b"title" | b"template") {
        return true;
    }
    let value =
        |key: &[u8]| tag.attributes.get(key).map(|value| String::from_utf8_lossy(value).to_ascii_lowercase());
    let is_styled = |style: String| {
        let style: String = style.split_whitespace().collect();
        style.contains("display:none") || style.contains("visibility:hidden")
    };
    CLOSED.contains(&name) && (value(b"hidden").is_some() || value(b"style").is_some_and(is_styled))
}

#[derive(Default)]
struct Walk {
    document: Document,
    is_title_open: bool,
    /// The open block.
    text: String,
    place: Option<Range<usize>>,
    level: Option<u8>,
    /// White space stands before the next word.
    is_apart: bool,
}

impl Walk {
    fn title(&mut self, text: &str) {
        if self.is_title_open {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            self.document.title.get_or_insert_default().push_str(&words);
        }
    }

    fn text(&mut self, shown: &str, place: Range<usize>) {
        let mut words = shown.split([' ', '\t', '\r', '\n', '\u{c}']);
        // White space stands between two words, also if one of them is empty.
        let mut has_words = self.push(words.next().unwrap_or_default());
        for word in words {
            self.is_apart = true;
            has_words |= self.push(word);
        }
        if has_words {
            self.place.get_or_insert(place.clone()).end = place.end;
        }
    }

    fn push(&mut self, word: &str) -> bool {
        if word.is_empty() {
            return false;
        }
        if self.is_apart && !self.text.is_empty() {
            self.text.push(' ');
        }
        self.is_apart = false;
        self.text.push_str(word);
        true
    }

    fn start(&mut self, tag: &StartTag<usize>) {
        let name = tag.name.as_slice();
        self.separate(name);
        match *name {
            [b'h', digit @ b'1'..=b'6'] => self.level = Some(digit - b'0'),
            _ if name == b"meta" => self.meta(tag),
            _ => {}
        }
    }

    fn end(&mut self, name: &[u8]) {
        self.separate(name);
    }

    /// Separates what stands before and behind a tag.
    fn separate(&mut self, name: &[u8]) {
        if BLOCKS.contains(&name) {
            self.flush();
        } else if matches!(name, b"td" | b"th") {
            self.is_apart = true;
        }
    }

    fn flush(&mut self) {
        self.is_apart = false;
        let level = self.level.take();
        let Some(place) = self.place.take() else { return };
        let text = std::mem::take(&mut self.text);
        match self.document.blocks.last_mut() {
            Some(last) if last.level.is_none() && level.is_none() && last.text.len() < BLOCK_BYTES => {
                last.text.push('\n');
                last.text.push_str(&text);
                last.place.end = place.end;
            }
            _ => self.document.push(Block { level, text, place }),
        }
    }

    /// The date of an article.
    fn meta(&mut self, tag: &StartTag<usize>) {
        let value = |key: &[u8]| tag.attributes.get(key).map(|value| String::from_utf8_lossy(value));
        let name: Option<Cow<'_, str>> = value(b"name").or_else(|| value(b"property"));
        let is_date = |name: Cow<'_, str>| {
            matches!(
                name.to_ascii_lowercase().as_str(),
                "date" | "dc.date" | "dcterms.created" | "article:published_time"
            )
        };
        if self.document.date.is_none() && name.is_some_and(is_date) {
            self.document.date = value(b"content").and_then(|date| parse_date(&date));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_text_is_left() {
        let shown = |html: &str| to_text(html);
        assert_eq!(
            shown("<p>Hello <b>A</b>da,</p>\n<p>2 &lt; 3&nbsp;&euro;</p>"),
            "Hello Ada,\n2 < 3\u{a0}€"
        );
        assert_eq!(
            shown("<head><title>t</title><style>p{a:'</p>'}</style></head>one<script>2</script>"),
            "one"
        );
        assert_eq!(shown("a<br>b<td>c</td><td>d</td>"), "a\nb c d");
        // Comments as newsletters write them.
        assert_eq!(shown("<!------- x ------->one<!-- a --->two<!-->three<!--->four"), "onetwothreefour");
        assert_eq!(shown("<head>unclosed<p>one"), "unclosed\none");
        assert_eq!(shown("a < b and c > d, <3"), "a < b and c > d, <3");
        assert_eq!(shown("<title>a<title>b</title>c"), "c");
    }

    #[test]
    fn headings_titles_and_hidden_elements_are_told_apart() {
        let html = "<title>A &amp; B</title><meta name=date content=2024-05-01><h1>Oslo</h1><p>One<div hidden>x<div>y</div>z</div>\
            <span style='DISPLAY: none'>x</span><h2>Hotel</h2><ul><li>The <b>Bristol</b><li>Two</ul><template>x</template>";
        let Document { title, date, blocks } = document(html, false);
        assert_eq!((title.as_deref(), date), (Some("A & B"), Some(1_714_521_600)));
        let shown: Vec<_> = blocks.iter().map(|block| (block.level, block.text.as_str())).collect();
        assert_eq!(shown, [(Some(1), "Oslo"), (None, "One"), (Some(2), "Hotel"), (None, "The Bristol\nTwo")]);
        assert_eq!(&html[blocks[0].place.clone()], "Oslo");
        // In XML, a tag that ends itself hides nothing.
        assert_eq!(document("<title/><script src='a'/>one", true).blocks[0].text, "one");
    }

    #[test]
    fn other_character_sets_are_decoded() {
        let text = |file: &[u8]| decoded(file).unwrap().text().unwrap().to_owned();
        assert_eq!(text(b"<meta charset=\"iso-8859-2\">\xb1"), "<meta charset=\"iso-8859-2\">\u{105}");
        assert_eq!(text(b"Gr\xfc\xdfe"), "Gr\u{fc}\u{df}e");
        assert!(matches!(decoded(b"a\0\xff"), Err(SkipReason::NotText { offset: 1 })));
    }
}
