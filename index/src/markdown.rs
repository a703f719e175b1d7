//! The structure of Markdown: which lines are headings, and where `#` begins no tag.
//!
//! The parser is pulldown-cmark. Only headings of the document itself count: one inside a quotation or a list item is text of it.
//! Passages are bytes of the source, so nothing here changes the text.
//!
//! The parser takes memory and time for a text as a whole. A long text is therefore read in windows that end between blocks, and
//! a window that nests too deeply is text without structure.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// Maximum bytes of a title and of a heading in a passage: every passage has a copy of them.
pub(crate) const TITLE_BYTES_MAX: usize = 256;

/// Maximum length of a text that is parsed at once, in bytes. The parser takes up to 60 bytes of memory for one of text.
const WINDOW_BYTES: usize = 1 << 18;

/// Maximum number of quotations and list items around a line. For each line, the parser compares all open ones, so 100,000 of
/// them would take minutes. Quoted mail has about ten.
const NESTING_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    /// In the order of the text.
    pub(crate) headings: Vec<Heading>,
    /// Code, links, images and HTML with a `#`: ascending, disjoint.
    pub(crate) literal: Vec<Range<usize>>,
}

/// A heading: `## Title ##`, or a title above a line of `=` or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heading {
    /// 1 to 6.
    pub(crate) level: usize,
    /// Its lines with their ends.
    pub(crate) lines: Range<usize>,
    /// Its source without the marks of the heading, on one line.
    pub(crate) title: String,
}

/// The text between two headings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// The heading above, below those of its ancestors that have no text of their own; empty if there is none.
    pub(crate) heading: String,
    /// Its place; may be blank.
    pub(crate) body: Range<usize>,
}

impl Structure {
    /// The structure of `text[start..]`; `start` begins a line.
    pub(crate) fn read(text: &str, start: usize) -> Self {
        let mut structure = Self::default();
        let mut at = start;
        while at < text.len() {
            let end = window_end(text, at);
            at = structure.read_window(text, at..end);
        }
        structure
    }

    /// The text of the first heading of level one.
    pub(crate) fn title(&self) -> Option<&str> {
        let mut titles =
            self.headings.iter().filter(|heading| heading.level == 1).map(|heading| heading.title.as_str());
        titles.find(|title| !title.is_empty())
    }

    /// Reads whole lines, and returns the offset to go on from.
    fn read_window(&mut self, text: &str, window: Range<usize>) -> usize {
        let source = &text[window.clone()];
        // (A window is only longer if it is one line.)
        if source.len() > WINDOW_BYTES || nests_too_deeply(source) {
            return window.end;
        }
        let (mut depth, mut last_block, mut is_fence) = (0_usize, window.start, false);
        let mut title: Option<Range<usize>> = None;
        for (event, place) in Parser::new(source).into_offset_iter() {
            let place = window.start + place.start..window.start + place.end;
            if depth == 0 && !matches!(event, Event::End(_)) {
                last_block = line_start(text, place.start);
                is_fence = matches!(event, Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))));
            }
            let is_literal = matches!(
                event,
                Event::Code(_)
                    | Event::InlineHtml(_)
                    | Event::Start(Tag::CodeBlock(_) | Tag::Link { .. } | Tag::Image { .. } | Tag::HtmlBlock)
            );
            let is_new = self.literal.last().is_none_or(|last| last.end <= place.start);
            if is_literal && is_new && text[place.clone()].contains('#') {
                self.literal.push(place.clone());
            }
            match event {
                Event::Start(Tag::Heading { level, .. }) if depth == 0 => {
                    let lines = last_block..line_end(text, place.end);
                    self.headings.push(Heading { level: level as usize, lines, title: String::new() });
                    title = Some(place.end..place.start);
                }
                Event::End(TagEnd::Heading(_)) if depth == 1 => {
                    let title = title.take().and_then(|title| text.get(title)).unwrap_or_default();
                    if let Some(heading) = self.headings.last_mut() {
                        heading.title = title.split_whitespace().collect::<Vec<_>>().join(" ");
                    }
                }
                _ => {
                    if let Some(title) = &mut title {
                        *title = title.start.min(place.start)..title.end.max(place.end);
                    }
                }
            }
            match event {
                Event::Start(_) => depth += 1,
                Event::End(_) => depth -= 1,
                _ => {}
            }
        }
        if window.end == text.len() {
            return window.end;
        }
        // The last block may go on behind the window.
        if last_block > window.start {
            while self.headings.pop_if(|heading| heading.lines.start >= last_block).is_some() {}
            while self.literal.pop_if(|place| place.start >= last_block).is_some() {}
            return last_block;
        }
        if is_fence { fence_end(text, last_block) } else { window.end }
    }

    /// The sections of `text[start..]`. All text outside of headings is in exactly one. The words of a heading are in the title
    /// of a passage, which is `title` and the section's heading, or in the text of a section.
    pub(crate) fn sections(&self, text: &str, start: usize, title: &str) -> Vec<Section> {
        let first = self.headings.first().map_or(text.len(), |heading| heading.lines.start);
        let mut sections = vec![Section { heading: String::new(), body: start..first }];
        // The headings above: level, title, and whether there is no text between it and the next heading.
        let mut above: Vec<(usize, String, bool)> = Vec::new();
        // The first of the headings right above that are in no section yet.
        let mut waiting: Option<usize> = None;
        // The last section is one of headings without text.
        let mut is_outline = false;
        for (at, Heading { level, lines, title: own }) in self.headings.iter().enumerate() {
            let next = self.headings.get(at + 1);
            let body = lines.end..next.map_or(text.len(), |next| next.lines.start);
            let is_bare = text[body.clone()].trim().is_empty();
            while above.pop_if(|(of, ..)| *of >= *level).is_some() {}
            // Every passage has the document's title, if it is short enough.
            let own = if own == title && own.len() <= TITLE_BYTES_MAX { "" } else { own };
            if !own.is_empty() {
                waiting.get_or_insert(lines.start);
            }
            let (parent, is_below_bare) =
                above.last().map_or(("", false), |(_, title, is_bare)| (title, *is_bare));
            let joined = match (is_below_bare && !parent.is_empty(), own) {
                (true, "") => parent.to_owned(),
                (true, own) => format!("{parent}: {own}"),
                (false, own) => own.to_owned(),
            };
            let fits = joined.len() <= TITLE_BYTES_MAX;
            if is_bare && fits && next.is_some_and(|next| next.level > *level) {
                // The titles of the sections below have it.
                above.push((*level, joined, true));
                is_outline = false;
                continue;
            }
            let first = waiting.take();
            if is_bare {
                if let Some(first) = first {
                    match sections.last_mut() {
                        Some(last) if is_outline && last.heading == parent => last.body.end = lines.end,
                        _ => sections.push(Section { heading: parent.to_owned(), body: first..lines.end }),
                    }
                    is_outline = true;
                }
            } else if fits {
                sections.push(Section { heading: joined.clone(), body });
                is_outline = false;
            } else {
                sections
                    .push(Section { heading: own.to_owned(), body: first.unwrap_or(lines.start)..body.end });
                is_outline = false;
            }
            above.push((*level, if fits { joined } else { own.to_owned() }, false));
        }
        if sections.iter().all(|section| text[section.body.clone()].trim().is_empty()) {
            sections = vec![Section { heading: String::new(), body: start..text.len() }];
        }
        sections
    }
}

/// The end of the lines from `at` that are parsed together: at most [`WINDOW_BYTES`], but at least one line.
fn window_end(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    match rest.get(..WINDOW_BYTES) {
        None => text.len(),
        Some(window) => {
            let last = window.iter().rposition(|&byte| byte == b'\n');
            let end = last.or_else(|| rest.iter().position(|&byte| byte == b'\n'));
            end.map_or(text.len(), |end| at + end + 1)
        }
    }
}

/// The offset behind a fenced code block that begins at `start`.
fn fence_end(text: &str, start: usize) -> usize {
    let opening = text[start..].trim_start_matches(' ');
    let mark = opening.chars().next().unwrap_or('`');
    let n_marks = opening.len() - opening.trim_start_matches(mark).len();
    let mut end = start;
    for (at, line) in text[start..].split_inclusive('\n').enumerate() {
        end += line.len();
        let content = line.trim_end();
        let marks = content.trim_start_matches(' ');
        let is_closing =
            content.len() - marks.len() <= 3 && marks.len() >= n_marks && marks.chars().all(|c| c == mark);
        if at > 0 && is_closing {
            break;
        }
    }
    end
}

/// Whether quotations and list items around a line could be more than [`NESTING_MAX`]. Each needs a mark on the line, or two
/// columns before one.
fn nests_too_deeply(text: &str) -> bool {
    text.split(['\n', '\r']).any(|line| {
        let (mut n_marks, mut n_columns, mut rest) = (0, 0, line.as_bytes());
        loop {
            let n_digits = rest.iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
            let (is_mark, n_columns_now, len) = match *rest {
                [b' ', ..] => (false, 1, 1),
                [b'\t', ..] => (false, 4, 1),
                [b'>', ..] => (true, 0, 1),
                [b'-' | b'*' | b'+', b' ' | b'\t', ..] | [b'-' | b'*' | b'+'] => (true, 0, 1),
                _ if n_digits > 0 && matches!(rest.get(n_digits), Some(b'.' | b')')) => {
                    (true, 0, n_digits + 1)
                }
                _ => break,
            };
            n_marks += usize::from(is_mark);
            n_columns += n_columns_now;
            rest = &rest[len..];
        }
        let is_rule = |mark: u8| line.bytes().all(|byte| byte == mark || byte.is_ascii_whitespace());
        n_marks > 0 && n_marks + n_columns / 2 > NESTING_MAX && !is_rule(b'*') && !is_rule(b'-')
    })
}

/// The offset of the line of a block that begins at `at`, behind spaces.
fn line_start(text: &str, at: usize) -> usize {
    text[..at].trim_end_matches([' ', '\t']).len()
}

/// The offset behind the line that ends at or after `at`. A line ends with `\n`, `\r\n` or `\r`.
fn line_end(text: &str, at: usize) -> usize {
    let end = match text[..at].chars().next_back() {
        Some('\n' | '\r') => at,
        _ => text[at..].find(['\n', '\r']).map_or(text.len(), |end| at + end + 1),
    };
    if text[..end].ends_with('\r') && text[end..].starts_with('\n') { end + 1 } else { end }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headings(text: &str) -> Vec<(usize, String)> {
        Structure::read(text, 0).headings.into_iter().map(|heading| (heading.level, heading.title)).collect()
    }

    fn titles(text: &str) -> Vec<String> {
        headings(text).into_iter().map(|(_, title)| title).collect()
    }

    #[test]
    fn headings_are_those_of_commonmark() {
        for (text, expected) in [
            ("# A\n## B ##\n   ###\tC #\n", &[(1, "A"), (2, "B"), (3, "C")][..]),
            ("Oslo\n===\n\nThe\nhotel\n---\n", &[(1, "Oslo"), (2, "The hotel")]),
            ("#hashtag\n####### seven\n    # code\n\\# escaped\n", &[]),
            ("a ```code``` b\n# A\n", &[(1, "A")]),
            ("```one line```\n# A\n", &[(1, "A")]),
            ("~~~ ```\n# no\n```\n# no\n~~~\n# A\n", &[(1, "A")]),
            ("````\n```\n# no\n````\n# A\n", &[(1, "A")]),
            ("```\n# no\n", &[]),
            ("- ```\n  # no\n\n# A\n", &[(1, "A")]),
            ("> # Quoted\n\n- # Item\n\n1. x\n   # Item\n", &[]),
            ("<!--\n# no\n-->\n# A\n", &[(1, "A")]),
            ("<h2>no</h2>\n\n# A\n", &[(1, "A")]),
            ("#\n# \n## [a](b) `c` *d*\n", &[(1, ""), (1, ""), (2, "[a](b) `c` *d*")]),
            ("# A\r\nB\r\n---\r\n", &[(1, "A"), (2, "B")]),
            ("-\r## A\rtext\r\rB\r===\r", &[(2, "A"), (1, "B")]),
            ("\n---\n\n***\n", &[]),
        ] {
            let expected: Vec<_> = expected.iter().map(|&(level, title)| (level, title.to_owned())).collect();
            assert_eq!(headings(text), expected, "{text}");
        }
    }

    fn sections(text: &str) -> Vec<(String, &str)> {
        let structure = Structure::read(text, 0);
        let sections = structure.sections(text, 0, structure.title().unwrap_or("name")).into_iter();
        let sections = sections.map(|section| (section.heading, text[section.body].trim()));
        sections.filter(|(_, body)| !body.is_empty()).collect()
    }

    #[test]
    fn headings_without_text_are_text_or_in_titles() {
        let check = |text: &str, expected: &[(&str, &str)]| {
            let expected: Vec<_> =
                expected.iter().map(|&(heading, body)| (heading.to_owned(), body)).collect();
            assert_eq!(sections(text), expected, "{text}");
        };
        check("# A\n\n## Boiler code 4410\n", &[("", "## Boiler code 4410")]);
        check("# A\n", &[("", "# A")]);
        check("A\n===\n", &[("", "A\n===")]);
        check("## B\n## C\n\n", &[("", "## B\n## C")]);
        check("# A\n## B\ntext\n", &[("B", "text")]);
        check("# A\n## B\n### C\ntext\n### D\nmore\n", &[("B: C", "text"), ("B: D", "more")]);
        check("# A\n## B\n### C\n### D\n## E\ntext\n", &[("B", "## B\n### C\n### D"), ("E", "text")]);
        check("## B\nx\n### C\n### D\n## E\n", &[("B", "x"), ("B", "### C\n### D"), ("", "## E")]);
        check("## B\n# A\n", &[("", "## B")]);
        let long = "long ".repeat(60);
        let long = long.trim();
        check(&format!("## {long}\ntext\n"), &[(long, &format!("## {long}\ntext"))]);
        check(&format!("## B\n### {long}\ntext\n"), &[(long, &format!("## B\n### {long}\ntext"))]);
    }

    #[test]
    fn a_long_text_is_read_in_windows_between_blocks() {
        let part = "# A\n\ntext `#` [b](c#d)\n\nB\n---\n\n- one\n- two\n\n```\n# no\n```\n\n";
        let text = part.repeat(3 * WINDOW_BYTES / part.len());
        let n_parts = text.len() / part.len();
        let structure = Structure::read(&text, 0);
        assert_eq!(structure.headings.len(), 2 * n_parts);
        assert_eq!(structure.literal.len(), 3 * n_parts);
        // Blocks longer than a window.
        let fenced = format!("# A\n~~~~\n{}~~~\n# no\n~~~~\n# B\n", "# no\n".repeat(WINDOW_BYTES));
        assert_eq!(titles(&fenced), ["A", "B"]);
        assert_eq!(titles(&format!("# A\n```\n{}", "# no\n".repeat(WINDOW_BYTES))), ["A"]);
        assert_eq!(titles(&format!("# A\n{}\n\n# B\n", "text\n".repeat(WINDOW_BYTES))), ["A", "B"]);
        assert_eq!(titles(&format!("# A\n{}\n\n# B\n", "- a\n  - b\n".repeat(WINDOW_BYTES / 4))), ["A", "B"]);
        assert_eq!(titles(&format!("# A\n{}\n# B\n", "text ".repeat(WINDOW_BYTES))), ["A", "B"]);
    }

    /// Each of these would take the parser minutes or gigabytes.
    #[test]
    fn hostile_texts_are_text() {
        let n = 2 * WINDOW_BYTES;
        for text in [
            ">".repeat(n / 4) + &"\na".repeat(n / 2),
            "> ".repeat(n / 8) + &"\na".repeat(n / 2),
            "+ ".repeat(n / 8) + "a" + &"\n".repeat(n),
            "1. ".repeat(n / 12) + "a" + &"\n".repeat(n),
            "*".repeat(n),
            "[".repeat(n),
            "*a **b ".repeat(n / 7),
            "![[]()".repeat(n / 6),
            "a\r".to_owned() + &">".repeat(n / 4) + &"\ra".repeat(n / 2),
        ] {
            assert_eq!(titles(&format!("{text}\n\n# A\n")), ["A"], "{text:.9}");
        }
        let deep: String = (0..600).map(|i| format!("{}- a\n", "  ".repeat(i))).collect();
        assert!(
            nests_too_deeply(&deep)
                && nests_too_deeply(&">".repeat(NESTING_MAX + 1))
                && nests_too_deeply(&"- ".repeat(33).replace('-', "+").repeat(2))
        );
        for text in [
            ">".repeat(NESTING_MAX),
            "* ".repeat(99),
            "- ".repeat(99),
            " ".repeat(999) + "x",
            "> > - 1. a".to_owned(),
            "-".repeat(99),
        ] {
            assert!(!nests_too_deeply(&text), "{text}");
        }
    }

    /// Markdown in the making.
    fn source() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("# "),
            Just("## "),
            Just("#### "),
            Just("#"),
            Just("\n"),
            Just("\n\n"),
            Just("===\n"),
            Just("---\n"),
            Just("```"),
            Just("~~~\n"),
            Just("`"),
            Just("> "),
            Just("- "),
            Just("1. "),
            Just("    "),
            Just("word "),
            Just("é"),
            Just("語"),
            Just("\r\n"),
            Just("\r"),
            Just("<!--"),
            Just("-->"),
            Just("<div>\n"),
            Just("[a](b#c)"),
            Just("[a]: b\n"),
            Just("*"),
            Just("\\"),
            Just("\t"),
            Just("#tag "),
            Just("* * *\n"),
        ];
        prop::collection::vec(part, 0..80).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn headings_equal_those_of_the_parser(text in source()) {
            let (mut depth, mut levels) = (0, Vec::new());
            for event in Parser::new(&text) {
                match event {
                    Event::Start(tag) => {
                        if let (0, Tag::Heading { level, .. }) = (depth, tag) {
                            levels.push(level as usize);
                        }
                        depth += 1;
                    }
                    Event::End(_) => depth -= 1,
                    _ => {}
                }
            }
            prop_assert_eq!(headings(&text).into_iter().map(|(level, _)| level).collect::<Vec<_>>(), levels);
        }

        #[test]
        fn sections_have_all_text_once_and_all_headings(text in source()) {
            let structure = Structure::read(&text, 0);
            let title = structure.title().unwrap_or("name");
            let sections = structure.sections(&text, 0, title);
            let mut n_times = vec![0; text.len()];
            let mut end = 0;
            for section in &sections {
                prop_assert!(end <= section.body.start && section.body.start <= section.body.end);
                end = section.body.end;
                n_times[section.body.clone()].iter_mut().for_each(|n| *n += 1);
            }
            let is_heading = |at: usize| structure.headings.iter().any(|heading| heading.lines.contains(&at));
            for (at, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
                prop_assert!(n_times[at] == 1 || is_heading(at), "{} at {}", c, at);
            }
            let is_blank = |section: &Section| text[section.body.clone()].trim().is_empty();
            for heading in structure.headings.iter().filter(|heading| heading.title != title) {
                let is_text = n_times[heading.lines.clone()].iter().all(|&n| n == 1);
                let is_title = |section: &Section| !is_blank(section) && section.heading.contains(&heading.title);
                prop_assert!(is_text || sections.iter().any(is_title), "{:?} in {:?}", heading, sections);
            }
        }
    }
}
