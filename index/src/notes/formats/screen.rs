//! Saved screens: accessibility XML, or a line of text per element.

use std::collections::HashSet;
use std::ops::Range;

use roxmltree::{Document, Error, Node, ParsingOptions};

use super::limits::{XML_ATTRIBUTES_MAX, XML_NODES_MAX, XML_PREFIXES_MAX, XML_TEXTS_MAX};
use super::unit::{Body, Piece, Unit, lines};
use crate::notes::report::SkipReason;

/// Attributes with text for the user, as Android, iOS, AT-SPI and UI Automation name them.
const TEXT: [&str; 9] =
    ["text", "content-desc", "label", "value", "name", "title", "hint", "description", "placeholder"];

/// Attributes that identify an element: of them, the part behind the last `/` or `.`.
const ROLE: [&str; 4] = ["class", "type", "role", "resource-id"];

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
    /// The elements with text, in the order of the file.
    pub elements: Vec<ScreenElement>,
}

/// An element of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenElement {
    /// Its class, type, role or resource id, else the name of its tag.
    pub role: String,
    /// Its distinct texts, joined by ` · `; never empty.
    pub label: String,
    /// Its bytes in the file; the start tag alone if it has children.
    pub place: Range<usize>,
}

/// Reads accessibility XML: every element with text, with its role.
///
/// # Errors
/// [`SkipReason::Broken`]: the text is not well-formed XML, or has a DTD. [`SkipReason::Limit`]: it has too many elements,
/// namespaces, or attributes of an element. The offset is that of the place.
pub fn read_screen_xml(text: &str) -> Result<ScreenXml, SkipReason> {
    check(text)?;
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| refused(text, &error))?;
    let elements = document.descendants().filter_map(element).collect();
    let root = document.root_element();
    let title = ["title", "package", "name"].iter().find_map(|&key| root.attribute(key)).map(str::to_owned);
    Ok(ScreenXml { title, elements })
}

/// Reads accessibility XML. An element with text becomes a line: its role, then its texts.
pub(super) fn read_xml(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let ScreenXml { title, elements } = read_screen_xml(text)?;
    let line =
        |ScreenElement { role, label, place }| Piece { text: format!("{role}: {label}"), place, date: None };
    Ok(vec![unit(title.unwrap_or_else(|| name.to_owned()), elements.into_iter().map(line).collect())])
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

fn element(node: Node<'_, '_>) -> Option<ScreenElement> {
    if !node.is_element() {
        return None;
    }
    let mut shown: Vec<&str> = Vec::new();
    let own_text = node.children().filter(Node::is_text).filter_map(|child| child.text());
    for text in TEXT.iter().filter_map(|&key| node.attribute(key)).chain(own_text).take(XML_TEXTS_MAX) {
        let text = text.trim();
        if !text.is_empty() && !shown.contains(&text) {
            shown.push(text);
        }
    }
    if shown.is_empty() {
        return None;
    }
    let role = ROLE.iter().find_map(|&key| node.attribute(key)).unwrap_or(node.tag_name().name());
    let role = role.rsplit(['/', '.']).next().unwrap_or(role);
    // Children have lines of their own, so the place is the start tag alone if there are children.
    let range = node.range();
    let end = node.children().find(Node::is_element).map_or(range.end, |child| child.range().start);
    Some(ScreenElement { role: role.to_owned(), label: shown.join(" · "), place: range.start..end })
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
        assert_eq!(refused("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>").0, "it has a DTD");
    }

    #[test]
    fn lines_of_text_are_elements() {
        let units = read_text("a", "[1] button Save\n\n  [2] field\n").unwrap();
        assert_eq!(pieces(&units[0])[1], Piece { text: "[2] field".to_owned(), place: 17..28, date: None });
    }
}
