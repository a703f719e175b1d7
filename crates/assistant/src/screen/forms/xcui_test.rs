//! The description of an application by XCUITest: `Button, 0x600003a4c1c0, {{16.0, 20.0}, {60.0, 44.0}}, label: 'Sign in'`.

use super::source::{Around, Form, Item, Line, join, push, source_lines};
use crate::screen::error::{ScreenError, ScreenForm};

const FORM: ScreenForm = ScreenForm::XcuiTest;

/// What an element has behind its address, with a text.
const KEYS: [&str; 5] = ["identifier", "label", "value", "placeholderValue", "title"];

/// What it may have behind its texts.
const ENDS: [&str; 6] = [", Disabled", ", Selected", ", Focused", ", Keyboard Focused", ", traits: ", ", {{"];

/// Type and address of a line, and what stands behind them.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim_start_matches('→').trim_start();
    let (role, rest) = text.split_once(", 0x")?;
    let n_digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
    let (address, rest) = (&text[role.len() + 2..role.len() + 4 + n_digits], &rest[n_digits..]);
    // `Window (Main)`.
    let role = role.split(" (").next().unwrap_or(role);
    let is_role = !role.is_empty() && role.chars().all(|c| c.is_ascii_alphanumeric());
    (is_role && n_digits > 0 && (rest.is_empty() || rest.starts_with(','))).then_some((role, address, rest))
}

/// Whether a line is an element of this form.
pub(super) fn is_line(text: &str) -> bool {
    parts(text).is_some()
}

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    // The application is described before the elements, and its way and queries behind them, with the same addresses.
    let begins = |line: &Line<'_>| line.text == "Element subtree:";
    let has_heading = source_lines(source).any(|line| begins(&line));
    let elements =
        source_lines(source).skip_while(|line| has_heading && !begins(line)).skip(usize::from(has_heading));
    let elements = elements.take_while(|line| {
        !line.text.starts_with("Path to element:") && !line.text.starts_with("Query chain:")
    });
    let (mut items, mut around): (Vec<Item>, Around) = (Vec::new(), Around::default());
    // A label may have several lines.
    let mut open: Option<(Line<'_>, String)> = None;
    for line in elements {
        match (parts(line.text), &mut open) {
            (Some(_), open) => {
                if let Some((first, text)) = open.replace((line.clone(), line.text.to_owned())) {
                    add(&first, &text, &mut items, &mut around)?;
                }
            }
            (None, Some((first, text))) if text.contains(": '") && !text.ends_with('\'') => {
                text.push(' ');
                text.push_str(line.text);
                first.place.end = line.place.end;
            }
            (None, _) => return Err(line.refused(FORM, "a line that is no element")),
        }
    }
    if let Some((first, text)) = open {
        add(&first, &text, &mut items, &mut around)?;
    }
    let title = items.iter().find(|item| item.role == "Application").map(|item| item.label.clone());
    Ok(Form { form: FORM, title: title.unwrap_or_default(), items })
}

fn add(line: &Line<'_>, text: &str, items: &mut Vec<Item>, around: &mut Around) -> Result<(), ScreenError> {
    let (role, address, rest) = parts(text).ok_or_else(|| line.refused(FORM, "a line that is no element"))?;
    let parent = around.parent(line.indent);
    let mut item = Item { parent, id: Some(address.to_owned()), role: role.to_owned(), ..line.item() };
    for key in KEYS {
        let Some(value) = value(rest, key) else { continue };
        match key {
            "identifier" => value.clone_into(&mut item.name),
            _ => join(&mut item.label, value, " · "),
        }
    }
    item.enabled = rest.contains(", Disabled").then_some(false);
    item.scrolls = is_scrolled(role).then_some(true);
    item.is_active = matches!(role, "Button" | "Switch" | "Cell" | "Link") || is_scrolled(role);
    around.enter(line.indent, items.len());
    push(items, item)
}

fn is_scrolled(role: &str) -> bool {
    matches!(role, "ScrollView" | "Table" | "CollectionView" | "WebView")
}

/// The text of a key, whose quotes may stand in the text too: it ends before the next key.
fn value<'a>(rest: &'a str, key: &str) -> Option<&'a str> {
    let start = rest.find(&format!(", {key}: "))? + key.len() + 4;
    let behind = &rest[start..];
    let others = KEYS.iter().map(|key| behind.find(&format!(", {key}: ")));
    let ends = ENDS.iter().map(|end| behind.find(end));
    let end = others.chain(ends).flatten().min().unwrap_or(behind.len());
    let value = behind[..end].trim();
    Some(value.strip_prefix('\'').map_or(value, |value| value.strip_suffix('\'').unwrap_or(value)))
}
