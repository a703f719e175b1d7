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
use super::unit::{Losses, Unit, spaced};
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
const BLOCKS: [&[u8]; 42] = [
    b"address",
    b"article",
    b"aside",
    b"blockquote",
    b"body",
    b"br",
    b"caption",
    b"center",
    b"dd",
    b"details",
    b"dialog",
    b"div",
    b"dl",
    b"dt",
    b"fieldset",
    b"figcaption",
    b"figure",
    b"footer",
    b"form",
    b"h1",
    b"h2",
    b"h3",
    b"h4",
    b"h5",
    b"h6",
    b"header",
    b"hgroup",
    b"hr",
    b"legend",
    b"li",
    b"main",
    b"menu",
    b"nav",
    b"ol",
    b"optgroup",
    b"option",
    b"p",
    b"pre",
    b"section",
    b"summary",
    b"table",
    b"tr",
];

/// The text of HTML in mail.
pub(super) fn to_text(html: &str) -> String {
    let blocks = document(html, false).blocks.into_iter().map(|block| block.text);
    blocks.collect::<Vec<_>>().join("\n")
}

pub(super) fn read(
    name: &str,
    text: &str,
    is_xml: bool,
    losses: &mut Losses,
) -> Result<Vec<Unit>, SkipReason> {
    Ok(document(text, is_xml).into_units(name, losses))
}

/// A file that is not UTF-8, in the character set that it names, else that of Windows, as browsers read it. A file with more
/// letters than faults of UTF-8, or that names it, is read as UTF-8 with U+FFFD for the faults; so is one that names UTF-16, whose name could
/// not be read there.
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
    let lossy = String::from_utf8_lossy(&text.bytes);
    let n_wrong = lossy.matches(char::REPLACEMENT_CHARACTER).count();
    let n_right = lossy.chars().filter(|char| !char.is_ascii()).count() - n_wrong;
    let is_marked = file.len() > text.bytes.len();
    if is_marked || n_right > n_wrong || named.is_some_and(|name| name.starts_with("utf")) {
        return Ok(Decoded::of_other(lossy.into_owned(), file.len()));
    }
    let decode = named.and_then(|name| charset_decoder(name.as_bytes()));
    let decode = decode.or_else(|| charset_decoder(b"windows-1252"));
    let decoded = decode.map_or_else(|| String::from_utf8_lossy(file).into_owned(), |decode| decode(file));
    Ok(Decoded::of_other(decoded, file.len()))
}

/// What a browser shows. In XML, a tag may end its element too.
pub(super) fn document(html: &str, is_xml: bool) -> Document {
    let mut tokens = Tokenizer::new_with_emitter(html, DefaultEmitter::<usize>::new_with_span());
    let mut walk = Walk::default();
    // How many of `CLOSED` are open; the element whose text is not shown, and how many were open around it.
    let mut n_open = [0_usize; CLOSED.len()];
    let mut hidden: Option<(Vec<u8>, [usize; CLOSED.len()])> = None;
    let mut n_foreign = 0_usize;
    while let Some(Ok(token)) = tokens.next() {
        match token {
            Token::String(shown) => {
                let start = shown.span.start.min(html.len());
                let source = html.as_bytes().get(start..shown.span.end.min(html.len())).unwrap_or_default();
                let shown = String::from_utf8_lossy(&shown);
                match &hidden {
                    None => walk.text(&shown, source, start),
                    Some((name, _)) if name == b"title" => walk.title(&shown),
                    Some(_) => {}
                }
            }
            Token::StartTag(tag) => {
                let name = tag.name.as_slice();
                let is_foreign = matches!(name, b"svg" | b"math");
                let is_empty = (is_xml || is_foreign || n_foreign > 0) && tag.self_closing;
                n_foreign += usize::from(is_foreign && !is_empty);
                let n_around = n_open;
                if let Some(at) = closed(name).filter(|_| !is_empty) {
                    n_open[at] += 1;
                }
                // Until its end tag, such an element has no tags.
                let state = match name {
                    b"script" => Some(State::ScriptData),
                    b"style" => Some(State::RawText),
                    b"title" | b"textarea" => Some(State::RcData),
                    _ => None,
                };
                state.into_iter().filter(|_| !is_empty).for_each(|state| tokens.set_state(state));
                match &hidden {
                    Some(_) => {}
                    None if !is_empty && hides(&tag) => {
                        walk.is_title_open =
                            name == b"title" && n_foreign == 0 && walk.document.title.is_none();
                        hidden = Some((name.to_vec(), n_around));
                    }
                    None => walk.start(&tag),
                }
            }
            Token::EndTag(tag) => {
                let name = tag.name.as_slice();
                n_foreign -= usize::from(matches!(name, b"svg" | b"math") && n_foreign > 0);
                let place = closed(name);
                if let Some(at) = place {
                    n_open[at] = n_open[at].saturating_sub(1);
                }
                let is_end = |(of, n_around): &(Vec<u8>, [usize; CLOSED.len()])| match place {
                    Some(at) if of == name => n_open[at] <= n_around[at],
                    // The end of an element around it. That of an inline element ends no block.
                    Some(at) => n_open[at] < n_around[at] && (is_inline(of) || !is_inline(name)),
                    None => of == name,
                };
                match hidden.take_if(|hidden| is_end(hidden)) {
                    Some((of, _)) if of == name => walk.is_title_open = false,
                    Some(_) => walk.end(name),
                    None if hidden.is_none() => walk.end(name),
                    None => {}
                }
            }
            _ => {}
        }
    }
    walk.flush();
    walk.document
}

/// The place of an element in [`CLOSED`].
fn closed(name: &[u8]) -> Option<usize> {
    CLOSED.iter().position(|&closed| closed == name)
}

fn is_inline(name: &[u8]) -> bool {
    matches!(name, b"a" | b"span")
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
    /// Of the open heading without text so far, or whose text is the open block.
    level: Option<u8>,
    /// Lines of the file are lines of the text.
    n_pre: usize,
    /// White space stands before the next word.
    is_apart: bool,
}

impl Walk {
    fn title(&mut self, text: &str) {
        if self.is_title_open {
            self.document.title.get_or_insert_default().push_str(&spaced(text));
        }
    }

    /// A text of the file, whose bytes there are `source`.
    fn text(&mut self, shown: &str, source: &[u8], start: usize) {
        let place = |line: &[u8], start: usize| {
            // The first word has the line, not the line end before it.
            start + line.len() - line.trim_ascii_start().len()..start + line.len()
        };
        if self.n_pre == 0 {
            return self.line(shown, place(source, start));
        }
        let mut start = start;
        let mut lines = source.split_inclusive(|&byte| byte == b'\n');
        for (at, line) in shown.split('\n').enumerate() {
            if at > 0 {
                self.flush();
            }
            let source = lines.next().unwrap_or_default();
            self.line(line, place(source, start));
            start += source.len();
        }
    }

    fn line(&mut self, shown: &str, place: Range<usize>) {
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
            _ if name == b"pre" && !tag.self_closing => self.n_pre += 1,
            _ => {}
        }
    }

    fn end(&mut self, name: &[u8]) {
        self.separate(name);
        match name {
            [b'h', b'1'..=b'6'] => self.level = None,
            b"pre" => self.n_pre = self.n_pre.saturating_sub(1),
            _ => {}
        }
    }

    /// Separates what stands before and behind a tag.
    fn separate(&mut self, name: &[u8]) {
        let is_in_heading = name == b"br" && self.level.is_some();
        if BLOCKS.contains(&name) && !is_in_heading {
            self.flush();
        } else if is_in_heading || matches!(name, b"td" | b"th") {
            self.is_apart = true;
        }
    }

    /// Ends the open block. A heading without an end has one block.
    fn flush(&mut self) {
        self.is_apart = false;
        let Some(place) = self.place.take() else { return };
        let level = self.level.take();
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
        let Document { title, blocks, .. } =
            document("<svg><title/><style/><title>x</title></svg>one", false);
        assert_eq!((title, blocks[0].text.as_str()), (None, "one"));
    }

    #[test]
    fn headings_have_blocks_and_line_ends_in_them() {
        let blocks = |html: &str| {
            let blocks = document(html, false).blocks.into_iter();
            blocks.map(|block| (block.level, block.text)).collect::<Vec<_>>()
        };
        let block = |level, text: &str| (level, text.to_owned());
        assert_eq!(
            blocks("<h1><div>Oslo</div></h1>a<h2>One<br>Two</h2>b<h3></h3>c"),
            [block(Some(1), "Oslo"), block(None, "a"), block(Some(2), "One Two"), block(None, "b\nc")]
        );
        assert_eq!(blocks("<h1>Oslo<p>a<p>b"), [block(Some(1), "Oslo"), block(None, "a\nb")]);
        assert_eq!(
            to_text("<summary>More</summary>Text<select><option>a<option>b</select>"),
            "More\nText\na\nb"
        );
    }

    #[test]
    fn lines_of_preformatted_text_have_places() {
        let long = "word ".repeat(30);
        let html = format!("<pre>\n{long}&amp;\r\n<b>two</b> {long}\nthree</pre>four\nfive");
        let blocks = document(&html, false).blocks;
        let shown: Vec<_> =
            blocks.iter().map(|block| (block.text.as_str(), &html[block.place.clone()])).collect();
        let (first, second) = (format!("{long}&"), format!("two {}", long.trim()));
        assert_eq!((shown[0].0, shown[0].1.trim_end()), (first.as_str(), format!("{long}&amp;").as_str()));
        assert_eq!(shown[1].0, second);
        assert!(shown[1].1.starts_with("two</b>"), "{}", shown[1].1);
        assert_eq!((shown[2].0, shown[2].1), ("three\nfour five", "three</pre>four\nfive"));
    }

    #[test]
    fn hidden_elements_end_where_browsers_end_them() {
        assert_eq!(to_text("<div><span hidden>x</div><p>rest"), "rest");
        assert_eq!(to_text("<div><span hidden>x<div>y</div>z</div><p>rest"), "rest");
        assert_eq!(to_text("<span>a<div hidden>x</span>y</div>b"), "ab");
        assert_eq!(to_text("<div hidden>x</section>y</div>b"), "b");
        assert_eq!(to_text("<a><span hidden>x</a>b"), "b");
    }

    #[test]
    fn other_character_sets_are_decoded() {
        let text = |file: &[u8]| decoded(file).unwrap().text().unwrap().to_owned();
        assert_eq!(text(b"<meta charset=\"iso-8859-2\">\xb1"), "<meta charset=\"iso-8859-2\">\u{105}");
        assert_eq!(text(b"Gr\xfc\xdfe"), "Gr\u{fc}\u{df}e");
        // Damaged UTF-8.
        assert_eq!(text("<meta charset=utf-8>a".as_bytes()), "<meta charset=utf-8>a");
        assert_eq!(text(b"<meta charset=utf-8>Gr\xc3\xbc\xdfe"), "<meta charset=utf-8>Gr\u{fc}\u{fffd}e");
        assert_eq!(text(b"<meta charset=utf-16>a\xff"), "<meta charset=utf-16>a\u{fffd}");
        assert_eq!(text(b"\xef\xbb\xbfa\xff"), "a\u{fffd}");
        assert_eq!(text(b"\xc3\xbc,\xc3\xb6\n\xc3"), "\u{fc},\u{f6}\n\u{fffd}");
        assert!(matches!(decoded(b"a\0\xff"), Err(SkipReason::NotText { offset: 1 })));
    }
}
