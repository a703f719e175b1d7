//! ARIA snapshots of Playwright: `- button "Sign in" [disabled] [ref=e25]: text`, a list of YAML whose keys have this form.

use super::source::{Around, Form, Item, Line, join, push, source_lines};
use crate::screen::error::{ScreenError, ScreenForm};

const FORM: ScreenForm = ScreenForm::Aria;

/// Roles that are of use without a name.
const ACTIVE: [&str; 9] =
    ["button", "link", "checkbox", "radio", "switch", "menuitem", "tab", "option", "treeitem"];

/// Whether a line is an element of this form.
pub(super) fn is_line(text: &str) -> bool {
    text.starts_with("- ") && text.contains("[ref=")
}

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    let (mut title, mut items, mut around) = (String::new(), Vec::<Item>::new(), Around::default());
    for line in source_lines(source) {
        let Some(content) = line.text.strip_prefix("- ") else {
            // What servers write around a snapshot: headings and fences.
            match line.text.starts_with(['#', '`']) {
                true => continue,
                false => return Err(line.refused(FORM, "a line that does not begin with `- `")),
            }
        };
        if let Some(text) = content.strip_prefix("Page Title:") {
            text.trim().clone_into(&mut title);
            continue;
        }
        if content.starts_with("Page ") || content.starts_with("Console: ") {
            continue;
        }
        let parent = around.parent(line.indent);
        let node = Node::read(content).map_err(|problem| line.refused(FORM, problem))?;
        match (node.role.as_str(), parent) {
            ("/placeholder", Some(parent)) => join(&mut items[parent].label, &node.value, " · "),
            (role, _) if role.starts_with('/') => {}
            // Text beside other elements; what is alone stands behind its element.
            ("text", _) => {
                let item = Item { role: node.role, label: node.value, parent, ..line.item() };
                push(&mut items, item)?;
            }
            _ => {
                around.enter(line.indent, items.len());
                push(&mut items, node.item(&line, parent))?;
            }
        }
    }
    Ok(Form { form: FORM, title, items })
}

/// The content of a line.
#[derive(Default)]
struct Node {
    role: String,
    name: String,
    reference: Option<String>,
    is_disabled: bool,
    is_pointed_at: bool,
    value: String,
}

impl Node {
    fn read(content: &str) -> Result<Self, &'static str> {
        // YAML quotes a key that has signs of its own.
        let quoted = match content.chars().next() {
            Some('\'') => Some(single_quoted(&content[1..]).ok_or("a key whose quote has no end")?),
            Some('"') => Some(double_quoted(&content[1..]).ok_or("a key whose quote has no end")?),
            _ => None,
        };
        let key = quoted.as_ref().map_or(content, |(key, _)| key);
        let key = key.strip_prefix("<changed> ").unwrap_or(key);
        let end = key.find(|c: char| c != '/' && c != '-' && !c.is_alphanumeric());
        let (role, rest) = key.split_at(end.unwrap_or(key.len()));
        match role {
            "ref" => return Err("an element of an earlier snapshot: give the whole one"),
            "" => return Err("a line without a role"),
            _ => {}
        }
        let mut node = Self { role: role.to_owned(), ..Self::default() };
        let rest = node.read_key(rest)?;
        let value = quoted.as_ref().map_or(rest, |&(_, behind)| behind);
        let value = value.trim().strip_prefix(':').unwrap_or_default().trim();
        node.value = match value.chars().next() {
            Some('\'') => single_quoted(&value[1..]).ok_or("a text whose quote has no end")?.0,
            Some('"') => double_quoted(&value[1..]).ok_or("a text whose quote has no end")?.0,
            _ => value.to_owned(),
        };
        Ok(node)
    }

    /// Reads name and attributes; the text behind them is returned.
    fn read_key<'b>(&mut self, key: &'b str) -> Result<&'b str, &'static str> {
        let mut rest = key;
        loop {
            let text = rest.trim_start();
            match text.chars().next() {
                Some('"') => {
                    let (name, behind) = double_quoted(&text[1..]).ok_or("a name whose quote has no end")?;
                    (self.name, rest) = (name, behind);
                }
                // A name as a regular expression.
                Some('/') => {
                    let (name, behind) = text[1..].split_once('/').ok_or("a name that has no end")?;
                    (self.name, rest) = (name.to_owned(), behind);
                }
                Some('[') => {
                    let (attribute, behind) =
                        text[1..].split_once(']').ok_or("an attribute whose bracket has no end")?;
                    match attribute.split_once('=').unwrap_or((attribute, "")) {
                        ("ref", id) => self.reference = Some(id.to_owned()),
                        ("disabled", value) => self.is_disabled = value != "false",
                        ("cursor", "pointer") => self.is_pointed_at = true,
                        _ => {}
                    }
                    rest = behind;
                }
                _ => return Ok(text),
            }
        }
    }

    fn item(self, line: &Line<'_>, parent: Option<usize>) -> Item {
        let mut label = self.name;
        join(&mut label, &self.value, " · ");
        Item {
            is_active: self.is_pointed_at || ACTIVE.contains(&self.role.as_str()),
            id: self.reference,
            role: self.role,
            label,
            parent,
            // An element that is not disabled can be clicked, whatever its cursor.
            enabled: self.is_disabled.then_some(false),
            ..line.item()
        }
    }
}

/// A text in single quotes, which stand doubled in it, from behind the first quote; and what stands behind it.
fn single_quoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut rest) = (String::new(), text);
    loop {
        let (part, behind) = rest.split_once('\'')?;
        out.push_str(part);
        match behind.strip_prefix('\'') {
            Some(behind) => {
                out.push('\'');
                rest = behind;
            }
            None => return Some((out, behind)),
        }
    }
}

/// A text in double quotes with backslashes, from behind the first quote; and what stands behind it.
fn double_quoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' | 't' | 'r' => out.push(' '),
                c => out.push(c),
            },
            c => out.push(c),
        }
    }
    None
}
