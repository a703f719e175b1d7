//! The elements of browser-use: `*[25]<button aria-label='Sign in' />`, with the texts of elements on lines of their own.

use super::source::{Around, Form, Item, Line, join, push, source_lines};
use super::tags::Tag;
use crate::screen::error::{ScreenError, ScreenForm};

const FORM: ScreenForm = ScreenForm::BrowserUse;

/// Whether a line is an element of this form.
pub(super) fn is_line(text: &str) -> bool {
    marked(text).is_some()
}

/// The id of an element, whether the line says that it scrolls, and the text from its tag on.
fn marked(text: &str) -> Option<(&str, bool, &str)> {
    let text = ["|SHADOW(open)|", "|SHADOW(closed)|"]
        .iter()
        .fold(text, |text, mark| text.strip_prefix(mark).unwrap_or(text));
    let text = text.strip_prefix('*').unwrap_or(text);
    let scrolls = text.strip_prefix("|SCROLL[").or_else(|| text.strip_prefix("|scroll element["));
    // An older form is `25[:]<button>`.
    let (id, rest) = match scrolls.or_else(|| text.strip_prefix('[')) {
        Some(rest) => rest.split_once(']')?,
        None => text.split_once("[:]")?,
    };
    let rest = rest.strip_prefix('|').unwrap_or(rest);
    let is_tag = rest.strip_prefix('<').is_some_and(|tag| tag.starts_with(|c: char| c.is_ascii_alphabetic()));
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && is_tag).then_some((id, scrolls.is_some(), rest))
}

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    let (mut items, mut around): (Vec<Item>, Around) = (Vec::new(), Around::default());
    for line in source_lines(source) {
        let parent = around.parent(line.indent);
        let Some((id, scrolls, rest)) = marked(line.text) else {
            text(&line, parent, &mut items)?;
            continue;
        };
        // Versions differ in what closes an element: `/>`, `</button>`, or nothing at the end of a long text.
        let (tag, behind) =
            Tag::read(rest).ok_or_else(|| line.refused(FORM, "an element whose tag has no end"))?;
        let item = Item {
            id: Some(id.to_owned()),
            role: tag.role().to_owned(),
            label: tag.label(behind),
            name: tag.get("id").unwrap_or_default().to_owned(),
            enabled: tag.enabled(),
            // Each element with an index can be clicked.
            is_active: true,
            scrolls: scrolls.then_some(true),
            parent,
            ..line.item()
        };
        around.enter(line.indent, items.len());
        push(&mut items, item)?;
    }
    Ok(Form { form: FORM, title: String::new(), items })
}

/// A line without an element: the text of the element around it, or text of the page.
fn text(line: &Line<'_>, parent: Option<usize>, items: &mut Vec<Item>) -> Result<(), ScreenError> {
    let text = line.text.strip_prefix("_[:]").unwrap_or(line.text);
    // Containers without an index, and marks of the page's ends.
    let is_mark =
        ["|", "[Start of page]", "[End of page]", "... ", "</"].iter().any(|mark| text.starts_with(mark));
    match parent.map(|parent| &mut items[parent]) {
        _ if is_mark => Ok(()),
        Some(around) => {
            join(&mut around.label, text, " ");
            Ok(())
        }
        None => push(items, Item { role: "text".to_owned(), label: text.to_owned(), ..line.item() }),
    }
}
