//! The text of an HTML part of a message: what a browser shows, with a line for each block.

use html5gum::{State, Token, Tokenizer};

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

/// The text. Nothing is nested here: the tokenizer yields tags and texts in the order of the file.
pub(super) fn to_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len() / 2);
    let mut tokens = Tokenizer::new(html);
    // The element whose text is not shown.
    let mut hidden: Option<&[u8]> = None;
    // What separates the next word: nothing, a space or a line.
    let mut gap = "";
    while let Some(Ok(token)) = tokens.next() {
        match token {
            Token::String(shown) if hidden.is_none() => {
                let shown = String::from_utf8_lossy(&shown);
                let mut words = shown.split([' ', '\t', '\r', '\n', '\u{c}']);
                // A separator stands between two words, also if one of them is empty.
                let first = words.next().unwrap_or_default();
                push(&mut text, &mut gap, first);
                for word in words {
                    if gap.is_empty() {
                        gap = " ";
                    }
                    push(&mut text, &mut gap, word);
                }
            }
            Token::StartTag(tag) => {
                let name = tag.name.as_slice();
                let (state, hides): (_, Option<&[u8]>) = match name {
                    b"script" => (Some(State::ScriptData), Some(b"script")),
                    b"style" => (Some(State::RawText), Some(b"style")),
                    b"title" => (Some(State::RcData), Some(b"title")),
                    b"textarea" => (Some(State::RcData), None),
                    _ => (None, None),
                };
                // Until its end tag, such an element has no tags.
                state.into_iter().for_each(|state| tokens.set_state(state));
                hidden = hidden.or(hides);
                separate(&mut gap, name);
            }
            Token::EndTag(tag) => {
                if hidden == Some(tag.name.as_slice()) {
                    hidden = None;
                }
                separate(&mut gap, &tag.name);
            }
            _ => {}
        }
    }
    text
}

fn push(text: &mut String, gap: &mut &str, word: &str) {
    if word.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push_str(gap);
    }
    *gap = "";
    text.push_str(word);
}

/// Separates what stands before and behind a tag.
fn separate(gap: &mut &str, tag: &[u8]) {
    if BLOCKS.contains(&tag) {
        *gap = "\n";
    } else if matches!(tag, b"td" | b"th") && gap.is_empty() {
        *gap = " ";
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
}
