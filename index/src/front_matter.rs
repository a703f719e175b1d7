//! Front matter: a YAML mapping between the first lines `---` and `---` (or `...`) of a note.
//!
//! Whatever does not parse as a mapping is text: a note may begin with a rule. The parser reports events, so nothing is
//! built from nested data and no alias is expanded.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::notes::parse_date;

/// Maximum length of front matter, in bytes. A longer block is text. Real ones have some hundred bytes; the parser takes 10 ms
/// for the worst block of this length.
const BYTES_MAX: usize = 1 << 16;

/// Maximum nesting of lists and mappings. Deeper front matter is text.
const DEPTH_MAX: usize = 32;

/// Maximum length of a value that an alias may repeat, in bytes: a tag, not a text.
const ALIAS_BYTES_MAX: usize = 256;

/// Maximum length of names, in bytes: every passage of the note is indexed with them. Longer lists are text.
pub(crate) const NAMES_BYTES_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FrontMatter {
    pub(crate) title: Option<String>,
    /// Seconds since 1970, UTC.
    pub(crate) date: Option<i64>,
    pub(crate) tags: Vec<String>,
    /// Tags and aliases: words that stand for the note as a whole. At most [`NAMES_BYTES_MAX`] bytes.
    pub(crate) names: Vec<String>,
    /// Offset of the first entry with words that are in neither title, date nor names; `content_end` if there is no such entry.
    pub(crate) text_start: usize,
    /// Offset of the closing line.
    pub(crate) content_end: usize,
    /// Offset of the text after the closing line.
    pub(crate) end: usize,
}

/// An entry of the mapping.
struct Entry {
    /// Offset of the key in the block.
    start: usize,
    key: String,
    value: Value,
}

enum Value {
    Text(String),
    List(Vec<String>),
    /// A mapping, or a list with one.
    Other,
}

impl FrontMatter {
    /// Reads the front matter of a text. A byte order mark may stand before it.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let mut lines = text[start..].split_inclusive('\n');
        let opening = lines.next().filter(|line| without_blanks(line) == "---")?;
        let content_start = start + opening.len();
        let mut content_end = content_start;
        let closing = lines.find(|line| {
            let is_closing = matches!(without_blanks(line), "---" | "...");
            content_end += if is_closing { 0 } else { line.len() };
            is_closing || content_end - content_start > BYTES_MAX
        })?;
        if content_end - content_start > BYTES_MAX {
            return None;
        }
        let content = &text[content_start..content_end];
        let entries = entries(content)?;
        let mut front = Self { end: content_end + closing.len(), content_end, ..Self::default() };
        let first = entries.first().map_or(0, |entry| entry.start);
        let mut text_start = (!words(&content[..first]).is_empty()).then_some(0);
        for (at, entry) in entries.iter().enumerate() {
            let end = entries.get(at + 1).map_or(content.len(), |next| next.start);
            let source = &content[entry.start..end];
            let taken = front.take(&entry.key, &entry.value, source);
            if !words(source).is_subset(&taken) {
                text_start.get_or_insert(entry.start);
            }
        }
        front.text_start = text_start.map_or(content_end, |start| content_start + start);
        Some(front)
    }

    /// Takes the value of an entry that is known. Returns the words that were taken, with the key.
    fn take(&mut self, key: &str, value: &Value, source: &str) -> HashSet<String> {
        let key = key.trim().to_lowercase();
        let mut taken = match (key.as_str(), value) {
            ("title", Value::Text(title)) if self.title.is_none() => {
                let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
                let taken = words(&title);
                self.title = Some(title).filter(|title| !title.is_empty());
                taken
            }
            ("date" | "created", Value::Text(text)) => match parse_date(text) {
                Some(date) if self.date.is_none() => {
                    self.date = Some(date);
                    words(text)
                }
                _ => HashSet::new(),
            },
            // To YAML, `tags: #a #b` is a comment.
            ("tags" | "tag" | "keywords", Value::Text(text)) if text.is_empty() => {
                let labels = source.split_whitespace().filter(|word| word.starts_with('#'));
                self.tags.extend(labels.map(str::to_owned));
                HashSet::new()
            }
            ("tags" | "tag" | "keywords", value) => {
                let labels = labels(value);
                self.tags.extend(labels.iter().cloned());
                self.take_names(labels)
            }
            ("aliases" | "alias", Value::Text(name)) => self.take_names(vec![name.clone()]),
            ("aliases" | "alias", Value::List(names)) => self.take_names(names.clone()),
            _ => return HashSet::new(),
        };
        taken.insert(key);
        taken
    }

    fn take_names(&mut self, names: Vec<String>) -> HashSet<String> {
        let mut room = NAMES_BYTES_MAX.saturating_sub(self.names.iter().map(String::len).sum());
        let mut taken = HashSet::new();
        for name in names.into_iter().filter(|name| !name.trim().is_empty()) {
            let Some(left) = room.checked_sub(name.len()) else { break };
            room = left;
            taken.extend(words(&name));
            self.names.push(name);
        }
        taken
    }
}

/// Tags: the items of a list, or a text divided at commas, or at white space if it has none.
fn labels(value: &Value) -> Vec<String> {
    match value {
        Value::List(labels) => labels.clone(),
        Value::Text(text) if text.contains(',') => text.split(',').map(str::to_owned).collect(),
        Value::Text(text) => text.split_whitespace().map(str::to_owned).collect(),
        Value::Other => Vec::new(),
    }
}

/// The entries of a block that is one mapping; `None` for other text.
fn entries(content: &str) -> Option<Vec<Entry>> {
    // The parser counts characters.
    let offsets: Vec<usize> = content.char_indices().map(|(at, _)| at).chain([content.len()]).collect();
    let mut parser = Parser::new_from_str(content);
    let mut entries: Vec<Entry> = Vec::new();
    let mut short: HashMap<usize, String> = HashMap::new();
    let (mut depth, mut is_key, mut is_whole) = (0_usize, true, false);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.ok()?;
        let opens = matches!(event, Event::MappingStart(..) | Event::SequenceStart(..));
        let closes = matches!(event, Event::MappingEnd | Event::SequenceEnd);
        let is_list = matches!(event, Event::SequenceStart(..));
        let is_node = opens || matches!(event, Event::Scalar(..) | Event::Alias(_));
        if depth == 0 && is_node {
            // One document, and it is a mapping.
            if is_whole || !matches!(event, Event::MappingStart(..)) {
                return None;
            }
            is_whole = true;
        } else if is_node {
            let text = match event {
                Event::Scalar(text, style, anchor, _) => {
                    let is_null =
                        style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                    let text = if is_null { String::new() } else { text.into_owned() };
                    if anchor != 0 && text.len() <= ALIAS_BYTES_MAX {
                        short.insert(anchor, text.clone());
                    }
                    Some(text)
                }
                Event::Alias(anchor) => short.get(&anchor).cloned(),
                _ => None,
            };
            match (depth == 1, is_key, entries.last_mut().map(|entry| &mut entry.value)) {
                (true, true, _) => {
                    let start = *offsets.get(span.start.index())?;
                    entries.push(Entry { start, key: text.unwrap_or_default(), value: Value::Other });
                }
                (true, false, Some(value)) => {
                    *value = match text {
                        Some(text) => Value::Text(text),
                        None if is_list => Value::List(Vec::new()),
                        None => Value::Other,
                    };
                }
                // In a key, or in a value.
                (false, false, Some(value)) => match (value, text) {
                    (Value::List(items), Some(text)) => items.push(text),
                    (Value::List(_), None) if is_list => {}
                    (value, _) => *value = Value::Other,
                },
                _ => {}
            }
        }
        depth += usize::from(opens);
        depth -= usize::from(closes);
        if depth > DEPTH_MAX {
            return None;
        }
        // A node of the mapping has ended.
        if depth == 1 && (closes || is_node && !entries.is_empty()) {
            is_key = !is_key;
        }
    }
    (is_whole && !entries.is_empty()).then_some(entries)
}

/// The words of a text, in lower case.
fn words(text: &str) -> HashSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn without_blanks(line: &str) -> &str {
    line.trim_end_matches([' ', '\t', '\r', '\n'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(content: &str) -> Option<FrontMatter> {
        FrontMatter::read(&format!("---\n{content}---\ntext\n"))
    }

    /// Title, tags, and what stays text.
    fn shown(content: &str) -> (Option<String>, Vec<String>, &str) {
        let front = read(content).expect("a mapping");
        (front.title, front.tags, &content[front.text_start - 4..])
    }

    #[test]
    fn titles_are_what_yaml_says() {
        for (content, title) in [
            ("title: >-\n  A folded\n  title\n", "A folded title"),
            ("title: |\n  Two\n  lines\n", "Two lines"),
            ("title: \"Boiler: \\\"4410\\\"\" # which one?\n", "Boiler: \"4410\""),
            ("title: 'it''s # one'\n", "it's # one"),
            ("title: A plain\n  one\n", "A plain one"),
            ("title: 2024-05-01\n", "2024-05-01"),
            ("title: 007\n", "007"),
            ("TITLE: a#b\n", "a#b"),
            ("? title\n: explicit\n", "explicit"),
            ("{title: flow, tags: [a]}\n", "flow"),
            ("t: &a Anchored\ntitle: *a\n", "Anchored"),
            ("title: first\ntitle: second\n", "first"),
            ("\ntitle: after a blank line\n\n", "after a blank line"),
        ] {
            assert_eq!(read(content).and_then(|front| front.title).as_deref(), Some(title), "{content}");
        }
        for content in
            ["title:\n", "title: ~\n", "title: null\n", "title: ''\n", "title: [a]\n", "title: {a: b}\n"]
        {
            assert_eq!(read(content).expect("a mapping").title, None, "{content}");
        }
    }

    #[test]
    fn tags_are_lists_texts_and_marked_words() {
        for (content, tags) in [
            ("tags: [kitchen] # food\n", &["kitchen"][..]),
            ("tags: [kitchen, \"#living room\", 'a, b']\n", &["kitchen", "#living room", "a, b"]),
            ("tags:\n  - kitchen # food\n  - 'house/roof'\n", &["kitchen", "house/roof"]),
            ("tags:\n- kitchen\n- [a, [b]]\n", &["kitchen", "a", "b"]),
            ("tags: living room\n", &["living", "room"]),
            ("keywords: living room, garden\n", &["living room", " garden"]),
            ("tags: #a #b/c\n", &["#a", "#b/c"]),
            ("tags: \"#a #b\"\n", &["#a", "#b"]),
            ("tag: 2024\n", &["2024"]),
            ("tags: [2024, 1.50, true, ~]\n", &["2024", "1.50", "true", ""]),
            ("tags: [a]\ntags: [b]\n", &["a", "b"]),
            ("tags: {a: 1}\n", &[]),
        ] {
            assert_eq!(read(content).expect("a mapping").tags, tags, "{content}");
        }
    }

    #[test]
    fn dates_may_have_zones_of_their_own() {
        for content in
            ["date: 2024-05-01\n", "created: '2024-05-01'\n", "x: 1\ncreated: 2024-05-01 02:00:00 +0200\n"]
        {
            assert_eq!(read(content).expect("a mapping").date, parse_date("2024-05-01"), "{content}");
        }
        assert_eq!(
            read("date: soon\ncreated: 2024-05-01\n").expect("a mapping").date,
            parse_date("2024-05-01")
        );
    }

    #[test]
    fn other_values_and_comments_stay_text() {
        for content in
            ["title: a\ntags: [b, c]\naliases:\n- d e\ndate: 2024-05-01\n", "alias: a\ntag: b # b\n"]
        {
            assert_eq!(shown(content).2, "", "{content}");
        }
        for (content, text) in [
            ("title: a\nauthor: Ada\ntags: [b]\n", "author: Ada\ntags: [b]\n"),
            ("title: a # or b?\n", "title: a # or b?\n"),
            ("# Call Bo\ntitle: a\n", "# Call Bo\ntitle: a\n"),
            ("title: a\ndate: next week\n", "date: next week\n"),
            ("title: a\ntitle: b\n", "title: b\n"),
            ("date: 2024-05-01\ncreated: 2023-01-07\n", "created: 2023-01-07\n"),
            ("tags: [a]\nDear Ada: see you\n", "Dear Ada: see you\n"),
            ("tags: [a]\nShopping:\n", "Shopping:\n"),
        ] {
            assert_eq!(shown(content).2, text, "{content}");
        }
        let long = format!("aliases: [{}]\n", "alias, ".repeat(100));
        assert_eq!(shown(&long).2, "", "repeated words");
        let long = format!("aliases: [{}]\n", (0..100).map(|i| format!("alias {i}, ")).collect::<String>());
        assert_eq!(shown(&long).2, long);
    }

    #[test]
    fn everything_else_is_no_front_matter() {
        for text in [
            "---\n\nA sentence.\n\n---\nmore",
            "---\n---\nmore",
            "---\n\n---\nmore",
            "---\n# A heading\n---\nmore",
            "---\n- a\n- b\n---\nmore",
            "---\ntitle: a\n",
            "---\ntitle: a\n ---\n",
            "----\ntitle: a\n---\n",
            " ---\ntitle: a\n---\n",
            "\n---\ntitle: a\n---\n",
            "+++\ntitle = \"a\"\n+++\n",
            "---\ntitle: a: b\n---\n",
            "---\n%YAML 1.2\n---\n",
            "",
            "---",
        ] {
            assert_eq!(FrontMatter::read(text), None, "{text}");
        }
        assert_eq!(read(&format!("a: {}{}\n", "[".repeat(40), "]".repeat(40))), None);
        assert_eq!(read(&format!("title: a\nb: {}\n", "c ".repeat(BYTES_MAX / 2))), None);
        for text in ["\u{feff}---\r\ntitle: a\r\n---\r\nb", "--- \ntitle: a\n...\nb", "---\ntitle: a\n---"] {
            let front = FrontMatter::read(text).expect("a mapping");
            assert_eq!(
                (front.title.as_deref(), &text[front.end..]),
                (Some("a"), text.rsplit('\n').next().filter(|end| *end == "b").unwrap_or(""))
            );
        }
    }

    #[test]
    fn aliases_of_yaml_do_not_multiply() {
        let text = "x".repeat(10_000);
        let front =
            |tags: &str| read(&format!("a: &a {text}\nb: &b short\ntags: [{tags}]\n")).expect("a mapping");
        assert_eq!(front("*b, c, *b").tags, ["short", "c", "short"]);
        assert_eq!(front(&"*a, ".repeat(10_000)).tags, [""; 0], "it stays text");
        assert_eq!(read("a: *a\n"), None);
    }

    proptest! {
        #[test]
        fn any_block_is_a_mapping_or_text(content in "(title|tags|date|: |- |\\[|\\]|\\{|\\}|#|\"|'|&a|\\*a|!|\\||>|,|\\?|%|\r|\t| |\n|a|é|\\PC){0,60}") {
            let text = format!("---\n{content}\n---\ntext");
            if let Some(front) = FrontMatter::read(&text) {
                prop_assert!(4 <= front.text_start && front.text_start <= front.content_end && front.content_end < front.end);
                prop_assert!(text.is_char_boundary(front.text_start) && text.is_char_boundary(front.end));
                // No word is lost.
                let kept = [front.title.iter().cloned().collect(), front.names, vec![text[front.text_start..].to_owned()]].concat().join(" ");
                let kept = words(&format!("{kept} title tags date created"));
                prop_assert!(front.date.is_some() || words(&text[4..front.content_end]).is_subset(&kept));
            }
        }
    }
}
