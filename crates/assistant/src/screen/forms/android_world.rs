//! The elements of AndroidWorld: `UI element 4: UIElement(text='Sign in', class_name='android.widget.Button', is_enabled=True, …)`.

use super::source::{Form, Item, Line, join, push, source_lines};
use crate::screen::error::{ScreenError, ScreenForm};

const FORM: ScreenForm = ScreenForm::AndroidWorld;

/// Keys with text for the user.
const TEXT: [&str; 4] = ["text", "content_description", "hint_text", "tooltip"];

/// Whether a line is an element of this form.
pub(super) fn is_line(text: &str) -> bool {
    text.starts_with("UI element ") && text.contains(": UIElement(")
}

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    let mut items = Vec::new();
    for line in source_lines(source) {
        push(&mut items, element(&line).map_err(|problem| line.refused(FORM, problem))?)?;
    }
    Ok(Form { form: FORM, title: String::new(), items })
}

fn element(line: &Line<'_>) -> Result<Item, &'static str> {
    let rest = line.text.strip_prefix("UI element ").and_then(|rest| rest.split_once(": UIElement("));
    let (id, mut rest) = rest.ok_or("a line that is no element")?;
    let mut item = Item { id: Some(id.to_owned()), ..line.item() };
    while !rest.starts_with(')') {
        let (key, behind) = rest.split_once('=').ok_or("an element that has no end")?;
        let (value, behind) = value(behind).ok_or("a value that has no end")?;
        let is = match value.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        match key {
            _ if value == "None" => {}
            key if TEXT.contains(&key) => join(&mut item.label, &value, " · "),
            "class_name" => value.rsplit('.').next().unwrap_or_default().clone_into(&mut item.role),
            "resource_name" => value.rsplit('/').next().unwrap_or_default().clone_into(&mut item.name),
            "is_enabled" => item.enabled = is,
            "is_visible" => item.shown = is,
            "is_clickable" | "is_checkable" => item.tap = is.max(item.tap),
            "is_long_clickable" => item.long_press = is,
            "is_scrollable" => item.scrolls = is,
            _ => {}
        }
        rest = behind.strip_prefix(", ").unwrap_or(behind);
    }
    // The list has no tree: what is around an element may take its touches, so no element is left out.
    item.is_active = item.tap == Some(true) || item.scrolls == Some(true);
    (item.tap, item.long_press) = (None, None);
    Ok(item)
}

/// A value of Python at the beginning of a text, and the text behind it.
fn value(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    if matches!(quote, '\'' | '"') {
        let (mut out, mut chars) = (String::new(), text.char_indices().skip(1));
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => return Some((out, &text[at + 1..])),
                '\\' => match chars.next()?.1 {
                    'n' | 't' | 'r' => out.push(' '),
                    c => out.push(c),
                },
                c => out.push(c),
            }
        }
        return None;
    }
    // A box has commas in its brackets.
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            ')' => return Some((text[..at].to_owned(), &text[at..])),
            ',' if depth == 0 => return Some((text[..at].to_owned(), &text[at..])),
            _ => {}
        }
    }
    None
}
