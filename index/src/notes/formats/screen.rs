//! Saved screens: accessibility XML, or a line of text per element.

use std::collections::HashSet;
use std::ops::Range;

use roxmltree::{Document, Error, Node, ParsingOptions};

use super::limits::{XML_ATTRIBUTES_MAX, XML_NODES_MAX, XML_PREFIXES_MAX, XML_TEXTS_MAX};
use super::unit::{Body, Piece, Unit, lines};
use crate::notes::report::SkipReason;

/// Attributes with text for the user, as Android, iOS, AT-SPI and UI Automation name them.
const TEXT: [&str; 12] = [
    "text",
    "content-desc",
    "label",
    "value",
    "name",
    "title",
    "hint",
    "description",
    "placeholder",
    "Name",
    "HelpText",
    "Value.Value",
];

/// Attributes that identify an element: of them, the part behind the last `/` or `.`.
const ROLE: [&str; 4] = ["class", "type", "role", "resource-id"];

/// Attributes with an id that no other element of the screen has. (`index` of Android counts among siblings.)
const ID: [&str; 4] = ["RuntimeId", "id", "uid", "ref"];

/// Attributes with a name for programs.
const NAME: [&str; 3] = ["resource-id", "AutomationId", "identifier"];

/// Reads a screen with a line per element.
pub(super) fn read_text(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let elements = lines(text).filter(|(_, line)| !line.trim().is_empty());
    let pieces =
        elements.map(|(place, line)| Piece { text: line.trim().to_owned(), place, date: None }).collect();
    Ok(vec![unit(name.to_owned(), pieces)])
}

/// A screen of accessibility XML.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScreenXml {
    /// The title, the package or the name of the root.
    pub title: Option<String>,
    /// All elements, in the order of the file: parents before their children.
    pub elements: Vec<ScreenElement>,
}

/// An element of a screen, and what the file says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScreenElement {
    /// Its class, type, role or resource id, else the name of its tag.
    pub role: String,
    /// Its distinct texts, joined by ` · `; may be empty.
    pub label: String,
    /// Its bytes in the file; the start tag alone if it has children.
    pub place: Range<usize>,
    /// The index of the element around it.
    pub parent: Option<usize>,
    /// Its id in the file (`RuntimeId`, `id`, `uid`, `ref`).
    pub id: Option<String>,
    /// Its name for programs: the last part of the resource id, the automation id, the identifier.
    pub name: Option<String>,
    /// Whether it is enabled.
    pub enabled: Option<bool>,
    /// Whether it is shown.
    pub shown: Option<bool>,
    /// Whether it, without those around it, can be tapped: it is clickable or checkable.
    pub clickable: Option<bool>,
    /// Whether it, without those around it, can be pressed for long.
    pub long_clickable: Option<bool>,
    /// Whether it can be scrolled.
    pub scrollable: Option<bool>,
}

/// Reads accessibility XML: every element, with its role, texts and id.
///
/// # Errors
/// [`SkipReason::Broken`]: the text is not well-formed XML, or has a DTD. [`SkipReason::Limit`]: it has too many elements,
/// namespaces, or attributes of an element. The offset is that of the place.
pub fn read_screen_xml(text: &str) -> Result<ScreenXml, SkipReason> {
    check(text)?;
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| refused(text, &error))?;
    let (mut elements, mut ends, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for node in document.descendants().filter(Node::is_element) {
        // The elements around it are those whose end is behind it.
        let start = node.range().start;
        while open.last().is_some_and(|&around| ends[around] <= start) {
            open.pop();
        }
        ends.push(node.range().end);
        let parent = open.last().copied();
        open.push(elements.len());
        elements.push(element(node, parent));
    }
    let root = document.root_element();
    let title = ["title", "package", "name", "Name"].iter().find_map(|&key| root.attribute(key));
    Ok(ScreenXml { title: title.map(str::to_owned), elements })
}

/// Reads accessibility XML. An element with text becomes a line: its role, then its texts.
pub(super) fn read_xml(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let ScreenXml { title, elements } = read_screen_xml(text)?;
    let elements = elements.into_iter().filter(|element| !element.label.is_empty());
    let line = |ScreenElement { role, label, place, .. }| Piece {
        text: format!("{role}: {label}"),
        place,
        date: None,
    };
    Ok(vec![unit(title.unwrap_or_else(|| name.to_owned()), elements.map(line).collect())])
}

/// Refuses what would cost the parser more than its length: tags with many attributes, and many namespaces.
fn check(text: &str) -> Result<(), SkipReason> {
    let (mut start, mut n_attributes) = (0, 0);
    let mut prefixes: HashSet<&[u8]> = HashSet::new();
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' => (start, n_attributes) = (at, 0),
            // Only attributes have a quote behind the sign, except in rare texts.
            b'=' if bytes[at + 1..].trim_ascii_start().starts_with(b"\"") => n_attributes += 1,
            b'=' if bytes[at + 1..].trim_ascii_start().starts_with(b"'") => n_attributes += 1,
            b'x' if bytes[at..].starts_with(b"xmlns:") => {
                let prefix = &bytes[at + b"xmlns:".len()..];
                let end = prefix.iter().position(|byte| matches!(byte, b'=' | b' ' | b'\t' | b'\r' | b'\n'));
                prefixes.insert(&prefix[..end.unwrap_or(prefix.len())]);
            }
            _ => {}
        }
        let offset = start as u64;
        if n_attributes > XML_ATTRIBUTES_MAX {
            return Err(SkipReason::Limit {
                what: "attributes of an element",
                limit: XML_ATTRIBUTES_MAX as u64,
                offset,
            });
        }
        if prefixes.len() > XML_PREFIXES_MAX {
            return Err(SkipReason::Limit { what: "namespaces", limit: XML_PREFIXES_MAX as u64, offset });
        }
    }
    Ok(())
}

fn unit(title: String, pieces: Vec<Piece>) -> Unit {
    Unit { title, body: Body::Decoded(pieces), date: None, tags: Vec::new(), page: None }
}

fn element(node: Node<'_, '_>, parent: Option<usize>) -> ScreenElement {
    let mut texts: Vec<&str> = Vec::new();
    let own_text = node.children().filter(Node::is_text).filter_map(|child| child.text());
    for text in TEXT.iter().filter_map(|&key| node.attribute(key)).chain(own_text).take(XML_TEXTS_MAX) {
        let text = text.trim();
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    let last_part = |name: &str, ends: &[char]| name.rsplit(ends).next().unwrap_or(name).to_owned();
    let role = ROLE.iter().find_map(|&key| node.attribute(key)).unwrap_or(node.tag_name().name());
    let given = |keys: &[&str]| keys.iter().find_map(|&key| node.attribute(key)).filter(|id| !id.is_empty());
    let is = |keys: &[&str]| keys.iter().find_map(|&key| truth(node.attribute(key)?));
    // Of UI Automation, an element is shown that is not off the screen.
    let shown =
        is(&["visible", "displayed", "visible-to-user"]).or(is(&["IsOffscreen"]).map(|is_off| !is_off));
    // Children have lines of their own, so the place is the start tag alone if there are children.
    let range = node.range();
    let end = node.children().find(Node::is_element).map_or(range.end, |child| child.range().start);
    ScreenElement {
        role: last_part(role, &['/', '.']),
        label: texts.join(" · "),
        place: range.start..end,
        parent,
        id: given(&ID).map(str::to_owned),
        name: given(&NAME).map(|name| last_part(name, &['/'])),
        enabled: is(&["enabled", "IsEnabled"]),
        shown,
        clickable: match (is(&["clickable"]), is(&["checkable"])) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (clickable, _) => clickable,
        },
        long_clickable: is(&["long-clickable"]),
        scrollable: is(&["scrollable", "IsScrollPatternAvailable"]),
    }
}

fn truth(value: &str) -> Option<bool> {
    let is = |word| value.eq_ignore_ascii_case(word);
    if is("true") { Some(true) } else { is("false").then_some(false) }
}

fn refused(text: &str, error: &Error) -> SkipReason {
    let position = error.pos();
    let line_start: usize =
        text.split_inclusive('\n').take((position.row as usize).saturating_sub(1)).map(str::len).sum();
    let offset = (line_start + position.col as usize).saturating_sub(1) as u64;
    match error {
        Error::NodesLimitReached => {
            SkipReason::Limit { what: "elements of a screen", limit: XML_NODES_MAX.into(), offset }
        }
        Error::DtdDetected => SkipReason::Broken { what: "it has a DTD", offset },
        Error::UnexpectedEndOfStream | Error::UnclosedRootNode => {
            SkipReason::Broken { what: "it ends within an element", offset: text.len() as u64 }
        }
        _ => SkipReason::Broken { what: "not well-formed XML", offset },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(unit: &Unit) -> &[Piece] {
        match &unit.body {
            Body::Decoded(pieces) => pieces,
            Body::Verbatim(_) => unreachable!("screens are decoded"),
        }
    }

    #[test]
    fn elements_with_text_become_lines_with_places() {
        let xml = "<hierarchy><node class=\"android.widget.Button\" text=\"Save\" content-desc=\"Save\">\
            <node resource-id=\"app:id/hint\" hint=\"Name &amp; place\"/></node><label>Wi-Fi</label></hierarchy>";
        let units = read_xml("a", xml).unwrap();
        let shown: Vec<_> =
            pieces(&units[0]).iter().map(|p| (p.text.as_str(), &xml[p.place.clone()])).collect();
        assert_eq!(shown[0].0, "Button: Save");
        assert!(shown[0].1.starts_with("<node class") && shown[0].1.ends_with('>'));
        assert_eq!(
            shown[1],
            ("hint: Name & place", "<node resource-id=\"app:id/hint\" hint=\"Name &amp; place\"/>")
        );
        assert_eq!(shown[2].0, "label: Wi-Fi");
    }

    #[test]
    fn elements_have_what_the_file_says_of_them() {
        let xml = "<Window Name=\"App\" RuntimeId=\"42.1\"><Pane IsEnabled=\"False\"><Edit AutomationId=\"box\" IsOffscreen=\"True\"/></Pane>\
            <node clickable=\"false\" checkable=\"true\" long-clickable=\"false\" scrollable=\"true\" resource-id=\"a.b:id/list\"/></Window>";
        let ScreenXml { title, elements } = read_screen_xml(xml).unwrap();
        assert_eq!((title.as_deref(), elements.len()), (Some("App"), 4));
        assert_eq!(elements.iter().map(|e| e.parent).collect::<Vec<_>>(), [None, Some(0), Some(1), Some(0)]);
        assert_eq!((elements[0].id.as_deref(), elements[0].label.as_str()), (Some("42.1"), "App"));
        assert_eq!((elements[1].enabled, elements[0].enabled), (Some(false), None));
        assert_eq!((elements[2].name.as_deref(), elements[2].shown), (Some("box"), Some(false)));
        let last = &elements[3];
        assert_eq!(
            (last.clickable, last.long_clickable, last.scrollable),
            (Some(true), Some(false), Some(true))
        );
        assert_eq!((last.role.as_str(), last.name.as_deref()), ("list", Some("list")));
    }

    #[test]
    fn broken_and_hostile_files_are_refused_with_the_offset() {
        let attributes: String = (0..200_000).map(|i| format!(" a{i}=\"\"")).collect();
        let limit = |what, limit, offset| Err(SkipReason::Limit { what, limit, offset });
        let attributes = format!("<h><a{attributes}/></h>");
        assert_eq!(read_xml("a", &attributes), limit("attributes of an element", 256, 3));
        // Nested namespaces cost the third power of their number.
        let namespaces: String = (0..5000).map(|i| format!("<a xmlns:n{i}='u'>")).collect();
        assert_eq!(read_xml("a", &namespaces), limit("namespaces", 64, 1078));
        let again = format!("{}{}", "<a xmlns:n='u' b='='>".repeat(20_000), "</a>".repeat(20_000));
        assert!(read_xml("a", &again).is_ok());
        let signs = format!("<a>{}</a>", "=".repeat(5000));
        assert!(read_xml("a", &signs).is_ok());
        let elements = format!("<a>{}</a>", "<b/>".repeat(100_001));
        assert!(matches!(
            read_xml("a", &elements),
            Err(SkipReason::Limit { what: "elements of a screen", .. })
        ));
        let refused = |xml: &str| match read_xml("a", xml) {
            Err(SkipReason::Broken { what, offset }) => (what, offset),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused("<a>\n<b></a>").0, "not well-formed XML");
        assert_eq!(refused("<a>\n<b/>"), ("it ends within an element", 8));
        assert_eq!(refused("<a>\n<b c=\"d"), ("it ends within an element", 11));
        assert_eq!(refused("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>").0, "it has a DTD");
    }

    #[test]
    fn lines_of_text_are_elements() {
        let units = read_text("a", "[1] button Save\n\n  [2] field\n").unwrap();
        assert_eq!(pieces(&units[0])[1], Piece { text: "[2] field".to_owned(), place: 17..28, date: None });
    }
}
