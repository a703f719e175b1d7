//! A line per element: `4 button "Sign in"`, `[4] button Sign in`, `[e4] button "Sign in"`.

use super::source::{Form, Item, Line, push, source_lines};
use crate::screen::error::{ScreenError, ScreenForm};

/// What stands before an id in a form that is not known.
const IDS: [&str; 6] = ["id=", "ref=", "uid=", "bid=", "index=", "[ref"];

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    let (mut title, mut items): (String, Vec<Item>) = (String::new(), Vec::new());
    // The first lines without an id, and with one that may stand elsewhere.
    let (mut without, mut elsewhere) = (None, None);
    for line in source_lines(source) {
        match line.text.strip_prefix("# ") {
            Some(text) if items.is_empty() && title.is_empty() => text.trim().clone_into(&mut title),
            _ => {
                let item = element(&line);
                if item.id.is_none() {
                    without.get_or_insert(line.number);
                    if has_id_elsewhere(line.text) {
                        elsewhere.get_or_insert(line.number);
                    }
                }
                push(&mut items, item)?;
            }
        }
    }
    let has_ids = items.iter().any(|item| item.id.is_some());
    match (without, elsewhere) {
        (Some(line), _) if has_ids => Err(ScreenError::NoId { line }),
        (_, Some(line)) => {
            Err(ScreenError::UnknownForm { line, what: "a line with an id that is not its beginning" })
        }
        _ => Ok(Form { form: ScreenForm::Lines, title, items }),
    }
}

fn has_id_elsewhere(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    IDS.iter().any(|id| text.match_indices(id).any(|(at, _)| !text[..at].ends_with(is_word)))
}

/// The element of a line `[4] role "label"`, whose id, role and quotes may be missing.
fn element(line: &Line<'_>) -> Item {
    let (id, rest) = id(line.text);
    let (role, label) = match (rest.split_once('"'), rest.split_once(' ')) {
        (Some((role, label)), _) => (role, label.strip_suffix('"').unwrap_or(label)),
        (None, Some((role, label))) => (role, label),
        (None, None) => ("", rest),
    };
    let role = role.trim_end_matches([':', ' ']).to_owned();
    Item { id: id.map(str::to_owned), role, label: label.to_owned(), ..line.item() }
}

/// The id at the beginning of a line, and the text behind it.
fn id(text: &str) -> (Option<&str>, &str) {
    // In brackets, an id may have letters: `[e4]`. `[x]` and `[ ]` are boxes of a list.
    if let Some((id, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        let is_id = id.contains(|c: char| c.is_ascii_digit())
            && id.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'));
        if is_id && (rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            return (Some(id), rest.trim());
        }
    }
    let unmarked = text.trim_start_matches(['[', '(', '#']);
    let n_digits = unmarked.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = unmarked.split_at(n_digits);
    let after = rest.trim_start_matches([']', ')', ':', '.']);
    // `12:30 Lunch` and `3rd item` have no number.
    let ends = after.is_empty() || after.starts_with(char::is_whitespace);
    if digits.is_empty() || !ends { (None, text) } else { (Some(digits), after.trim()) }
}
