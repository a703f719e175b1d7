//! Saved screens: accessibility XML, or a line of text per element.

use std::ops::Range;

use roxmltree::{Document, Error, Node, ParsingOptions};

use super::{Body, Piece, Unit, lines};
use crate::notes::report::SkipReason;

/// Maximum number of elements. A screen has a few hundred; each takes about 100 bytes of memory while it is read.
const NODES_MAX: u32 = 100_000;

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
/// [`SkipReason::Broken`]: the text is not well-formed XML, has a DTD, too many elements or too many attributes; the offset
/// is that of the place.
pub fn read_screen_xml(text: &str) -> Result<ScreenXml, SkipReason> {
    if let Some(offset) = tag_with_many_attributes(text) {
        return Err(SkipReason::Broken { what: "an element has too many attributes", offset: offset as u64 });
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
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

/// Maximum attributes of an element. The parser compares each with all before it.
const ATTRIBUTES_MAX: usize = 1000;

/// Maximum texts of an element.
const TEXTS_MAX: usize = 64;

/// The offset of the first tag with more than [`ATTRIBUTES_MAX`] equals signs.
fn tag_with_many_attributes(text: &str) -> Option<usize> {
    let (mut start, mut n_equals) = (0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => (start, n_equals) = (at, 0),
            b'=' => n_equals += 1,
            _ => {}
        }
        if n_equals > ATTRIBUTES_MAX {
            return Some(start);
        }
    }
    None
}

fn unit(title: String, pieces: Vec<Piece>) -> Unit {
    Unit { title, body: Body::Decoded(pieces), date: None, tags: Vec::new() }
}

fn element(node: Node<'_, '_>) -> Option<ScreenElement> {
    if !node.is_element() {
        return None;
    }
    let mut shown: Vec<&str> = Vec::new();
    let own_text = node.children().filter(Node::is_text).filter_map(|child| child.text());
    for text in TEXT.iter().filter_map(|&key| node.attribute(key)).chain(own_text).take(TEXTS_MAX) {
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
    let what = match error {
        Error::NodesLimitReached => "more elements than a screen has",
        Error::DtdDetected => "it has a DTD",
        _ => "not well-formed XML",
    };
    SkipReason::Broken { what, offset: (line_start + position.col as usize).saturating_sub(1) as u64 }
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
        let what = "an element has too many attributes";
        let refused = Err(SkipReason::Broken { what, offset: 3 });
        assert_eq!(read_xml("a", &format!("<h><a{attributes}/></h>")), refused);
        let refused = |xml: &str| match read_xml("a", xml) {
            Err(SkipReason::Broken { what, offset }) => (what, offset),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused("<a>\n<b></a>").0, "not well-formed XML");
        assert_eq!(refused("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>").0, "it has a DTD");
        assert_eq!(
            refused(&format!("<a>{}</a>", "<b/>".repeat(100_001))).0,
            "more elements than a screen has"
        );
    }

    #[test]
    fn lines_of_text_are_elements() {
        let units = read_text("a", "[1] button Save\n\n  [2] field\n").unwrap();
        assert_eq!(pieces(&units[0])[1], Piece { text: "[2] field".to_owned(), place: 17..28, date: None });
    }
}
