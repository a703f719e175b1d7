//! Phrases with choices: `[a|b]` is one of its alternatives (nesting is possible), `{s}` the subject, `{v}`
//! the value.

use crate::rng::Rng;

/// Draws one wording of a template and inserts the names.
pub fn fill(rng: &mut Rng, template: &str, fields: &[(char, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + 32);
    expand(rng, template, fields, &mut out);
    out
}

fn expand(rng: &mut Rng, template: &str, fields: &[(char, &str)], out: &mut String) {
    let mut rest = template;
    while let Some(at) = rest.find(['[', '{']) {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        if let Some(inner) = tail.strip_prefix('{') {
            let name = inner.chars().next().expect("a field has a name");
            let value = fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value);
            out.push_str(value.unwrap_or_else(|| panic!("no field `{name}` for {template:?}")));
            rest = inner[name.len_utf8()..].strip_prefix('}').expect("a field name is one letter");
        } else {
            let end = matching_bracket(tail);
            let choices = alternatives(&tail[1..end]);
            let choice = choices[rng.below(choices.len())];
            expand(rng, choice, fields, out);
            rest = &tail[end + 1..];
        }
    }
    out.push_str(rest);
}

/// Byte offset of the bracket that closes the one at the start.
fn matching_bracket(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("no closing bracket in {text:?}")
}

fn alternatives(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            '|' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

/// The text with its first letter in upper case.
pub fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// A sentence: capitalised, with a full stop.
pub fn sentence(text: &str) -> String {
    format!("{}.", capitalised(text))
}

/// `a`, `a and b`, `a, b and c`.
pub fn joined(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_nest_and_fields_fill() {
        let mut rng = Rng::new(1, 1);
        for _ in 0..50 {
            let text = fill(&mut rng, "{s} [is|has [been|gone]] {v}", &[('s', "Ana"), ('v', "away")]);
            assert!(
                ["Ana is away", "Ana has been away", "Ana has gone away"].contains(&text.as_str()),
                "{text}"
            );
        }
    }

    #[test]
    fn lists_read_as_english() {
        let items: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        assert_eq!(joined(&items), "a, b and c");
        assert_eq!(joined(&items[..2]), "a and b");
        assert_eq!(sentence("the end"), "The end.");
    }
}
