//! Python's methods of strings, mappings and lists. Methods that change the object are left out.

use super::arguments::{Arguments, Taken};
use super::error::{ErrorKind, shortened};
use super::value::{Meter, Outcome, Value, push};

pub(super) fn call(meter: &Meter, value: &Value, name: &str, args: Arguments<'_>) -> Outcome<Value> {
    let mut args = Taken::new(name, args);
    let result = match value {
        Value::Str(text) => string(meter, text, name, &mut args)?,
        // Methods of a safe text that give a text give a safe one.
        Value::Safe(text) => match string(meter, text, name, &mut args)? {
            Some(Value::Str(text)) => Some(Value::Safe(text)),
            other => other,
        },
        Value::Dict(_) => dict(meter, value, name, &mut args)?,
        Value::List(list) => match name {
            "index" | "count" => {
                let wanted = args.required("value")?;
                let mut places = Vec::new();
                for (i, item) in list.items.iter().enumerate() {
                    if item.equals(&wanted, meter)? {
                        places.push(i);
                    }
                }
                match (name, places.first()) {
                    ("count", _) => Some(Value::Int(places.len() as i64)),
                    (_, Some(&first)) => Some(Value::Int(first as i64)),
                    _ => return Err(ErrorKind::Value("the list has no such item".to_owned())),
                }
            }
            "copy" => Some(value.clone()),
            _ => None,
        },
        Value::Loop(looped) if name == "cycle" => {
            let mut values = Vec::new();
            while let Some(value) = args.value("") {
                values.push(value);
            }
            match values.len() {
                0 => return Err(ErrorKind::Value("`cycle` of nothing".to_owned())),
                n => Some(values.swap_remove(looped.index.get() % n)),
            }
        }
        _ => None,
    };
    let Some(result) = result else {
        let name = shortened(name);
        return Err(ErrorKind::Value(format!("a {} has no method `{name}`", value.type_name())));
    };
    args.finish()?;
    Ok(result)
}

/// Keys and values of a mapping, as a list of pairs.
pub(super) fn pairs(meter: &Meter, value: &Value) -> Outcome<Value> {
    let Value::Dict(dict) = value else {
        return Err(ErrorKind::Value(format!("a {} has no items", value.type_name())));
    };
    meter.list(dict.entries.len().saturating_mul(8))?;
    let pairs = dict.entries.iter().map(|(key, value)| Value::list(vec![key.clone(), value.clone()]));
    Value::list(pairs.collect::<Outcome<_>>()?)
}

fn dict(meter: &Meter, value: &Value, name: &str, args: &mut Taken<'_>) -> Outcome<Option<Value>> {
    let Value::Dict(dict) = value else { return Ok(None) };
    Ok(Some(match name {
        "get" => {
            let key = args.required("key")?;
            let default = args.value("default").unwrap_or(Value::None);
            value.get(&key, meter)?.unwrap_or(default)
        }
        "items" => pairs(meter, value)?,
        "keys" => Value::list(value.items(meter)?)?,
        "values" => {
            meter.list(dict.entries.len())?;
            Value::list(dict.entries.iter().map(|(_, value)| value.clone()).collect())?
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

/// The characters removed by `strip`, `lstrip` and `rstrip`.
fn strips<'a>(chars: Option<&'a Value>) -> impl Fn(char) -> bool + 'a {
    move |c| match chars.and_then(Value::as_str) {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    }
}

/// White space of Python.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn string(meter: &Meter, text: &str, name: &str, args: &mut Taken<'_>) -> Outcome<Option<Value>> {
    meter.work(text.len())?;
    match name {
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" | "replace" | "join"
        | "format" => {}
        "strip" | "lstrip" | "rstrip" | "split" | "rsplit" | "splitlines" | "removeprefix"
        | "removesuffix" => {
            meter.text(text.len())?;
        }
        // A character in another case needs at most three times its bytes.
        _ => meter.text(text.len().saturating_mul(3))?,
    }
    // A part needs a slot, its own allocation and, during the split, another slot.
    let pay = |n_parts: usize| meter.list(n_parts.saturating_mul(8));
    let list = |parts: Vec<&str>| Value::list(parts.into_iter().map(Value::text).collect());
    // A search reads the whole part first, several times, even if it is longer than the text.
    let prepare = |part: &str| meter.work(part.len().saturating_mul(4));
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.text("chars")?;
            meter.work(
                text.len()
                    .saturating_mul(chars.as_ref().and_then(Value::as_str).map_or(1, |c| c.len().max(1))),
            )?;
            let strips = strips(chars.as_ref());
            let mut rest = text;
            if name != "rstrip" {
                rest = rest.trim_start_matches(&strips);
            }
            if name != "lstrip" {
                rest = rest.trim_end_matches(&strips);
            }
            Value::text(rest)
        }
        "upper" => Value::text(text.to_uppercase()),
        "lower" | "casefold" => Value::text(text.to_lowercase()),
        "capitalize" => {
            let mut chars = text.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            Value::text(first + &chars.as_str().to_lowercase())
        }
        "title" => Value::text(titled(text)),
        "swapcase" => {
            let mut out = String::with_capacity(text.len());
            for c in text.chars() {
                if c.is_uppercase() { out.extend(c.to_lowercase()) } else { out.extend(c.to_uppercase()) }
            }
            Value::text(out)
        }
        "startswith" | "endswith" => {
            let wanted = args.required("prefix")?;
            let options = match &wanted {
                Value::Str(_) | Value::Safe(_) => vec![wanted],
                other => other.items(meter)?,
            };
            let is_at_end =
                |part: &str| if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) };
            let mut found = false;
            for part in options.iter().filter_map(Value::as_str) {
                meter.work(if part.len() <= text.len() { part.len() } else { 0 })?;
                if is_at_end(part) {
                    found = true;
                    break;
                }
            }
            Value::Bool(found)
        }
        "removeprefix" | "removesuffix" => {
            let part = args.required("prefix")?;
            let part = part.as_str().unwrap_or_default();
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::text(rest.unwrap_or(text))
        }
        "split" | "rsplit" => {
            let separator = args.text("sep")?;
            let max = args.int("maxsplit")?.unwrap_or(-1);
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            prepare(separator.as_ref().and_then(Value::as_str).unwrap_or_default())?;
            let n_cuts = match separator.as_ref().and_then(Value::as_str) {
                Some("") => 0,
                Some(separator) => text.matches(separator).count(),
                None => text.split_whitespace().count(),
            };
            pay(n_cuts.min(max) + 1)?;
            let parts = match separator.as_ref().and_then(Value::as_str) {
                Some("") => return Err(ErrorKind::Value("`split` at an empty separator".to_owned())),
                Some(separator) if name == "split" => text.splitn(max.saturating_add(1), separator).collect(),
                Some(separator) => {
                    let mut parts: Vec<&str> = text.rsplitn(max.saturating_add(1), separator).collect();
                    parts.reverse();
                    parts
                }
                None => split_at_spaces(text, max, name == "rsplit"),
            };
            list(parts)?
        }
        "splitlines" => {
            let keep = args.flag("keepends");
            pay(text.matches('\n').count() + 1)?;
            let lines = text.split_inclusive('\n');
            list(lines.map(|line| if keep { line } else { line.trim_end_matches(['\n', '\r']) }).collect())?
        }
        "partition" | "rpartition" => {
            let separator = args.required("sep")?;
            let separator = separator.as_str().unwrap_or_default();
            prepare(separator)?;
            let cut =
                if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            pay(3)?;
            list(match (cut, name) {
                (Some((before, after)), _) => vec![before, separator, after],
                (None, "partition") => vec![text, "", ""],
                (None, _) => vec!["", "", text],
            })?
        }
        "replace" => {
            let (old, new) = (args.required("old")?, args.required("new")?);
            let max = args.int("count")?.unwrap_or(-1);
            let (Some(old), Some(new)) = (old.as_str(), new.as_str()) else {
                return Err(ErrorKind::Value("`replace` takes texts".to_owned()));
            };
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            prepare(old)?;
            let n = text.matches(old).take(max).count();
            meter.text(text.len().saturating_sub(n.saturating_mul(old.len())))?;
            meter.repeated(new.len(), n)?;
            Value::text(text.replacen(old, new, n))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let part = args.required("sub")?;
            let part = part.as_str().unwrap_or_default();
            prepare(part)?;
            let found = if name.starts_with('r') { text.rfind(part) } else { text.find(part) };
            match (name, found) {
                ("count", _) => {
                    // Every match costs more than a byte that is read.
                    meter.work(text.len().saturating_mul(4))?;
                    Value::Int(text.matches(part).count() as i64)
                }
                (_, Some(at)) => Value::Int(text[..at].chars().count() as i64),
                ("find" | "rfind", None) => Value::Int(-1),
                _ => return Err(ErrorKind::Value("the text has no such part".to_owned())),
            }
        }
        "join" => {
            let mut out = String::new();
            for (i, item) in args.required("iterable")?.items(meter)?.iter().enumerate() {
                let Some(part) = item.as_str() else {
                    return Err(ErrorKind::Value(format!("`join` of a {}", item.type_name())));
                };
                push(&mut out, if i > 0 { text } else { "" }, meter)?;
                push(&mut out, part, meter)?;
            }
            Value::text(out)
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let width = args.int("width")?.unwrap_or(0);
            let fill = args.text("fillchar")?;
            let fill =
                fill.as_ref().and_then(Value::as_str).unwrap_or(if name == "zfill" { "0" } else { " " });
            let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
            meter.repeated(fill.len(), missing)?;
            let (left, right) = match name {
                "ljust" => (0, missing),
                "center" => (missing / 2, missing - missing / 2),
                _ => (missing, 0),
            };
            Value::text(fill.repeat(left) + text + &fill.repeat(right))
        }
        "format" => Value::text(formatted(meter, text, args)?),
        "isdigit" | "isdecimal" | "isnumeric" => {
            Value::Bool(!text.is_empty() && text.chars().all(char::is_numeric))
        }
        "isalpha" => Value::Bool(!text.is_empty() && text.chars().all(char::is_alphabetic)),
        "isalnum" => Value::Bool(!text.is_empty() && text.chars().all(char::is_alphanumeric)),
        "isspace" => Value::Bool(!text.is_empty() && text.chars().all(char::is_whitespace)),
        "isascii" => Value::Bool(text.is_ascii()),
        "isupper" | "islower" => {
            let mut letters = text.chars().filter(|c| c.is_uppercase() || c.is_lowercase()).peekable();
            let has_any = letters.peek().is_some();
            Value::Bool(
                has_any
                    && letters.all(|c| if name == "isupper" { c.is_uppercase() } else { c.is_lowercase() }),
            )
        }
        _ => return Ok(None),
    }))
}

/// Words separated by white space, with at most `max` splits. `rsplit` counts splits from the end.
fn split_at_spaces(text: &str, max: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(at) = cut.filter(|_| parts.len() < max) else {
            parts.push(rest);
            break;
        };
        let (before, after) = rest.split_at(at);
        if from_end {
            parts.push(after.trim_start());
            rest = before.trim_end();
        } else {
            parts.push(before);
            rest = after.trim_start();
        }
    }
    if from_end {
        parts.reverse();
    }
    parts
}

fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// `'{} {0} {name}'.format(…)`, without format specifications.
fn formatted(meter: &Meter, text: &str, args: &mut Taken<'_>) -> Outcome<String> {
    let mut positional = Vec::new();
    while let Some(value) = args.value("") {
        positional.push(value);
    }
    let named = args.take_named();
    let (mut out, mut rest, mut next) = (String::new(), text, 0);
    while let Some(at) = rest.find(['{', '}']) {
        push(&mut out, &rest[..at], meter)?;
        let doubled = rest[at..].starts_with("{{") || rest[at..].starts_with("}}");
        if doubled {
            push(&mut out, &rest[at..at + 1], meter)?;
            rest = &rest[at + 2..];
            continue;
        }
        let Some(end) = rest[at..].find('}').filter(|_| rest[at..].starts_with('{')) else {
            return Err(ErrorKind::Value("`format` of a text with a single brace".to_owned()));
        };
        let field = &rest[at + 1..at + end];
        let value = match (field.is_empty(), field.parse::<usize>()) {
            (true, _) => {
                next += 1;
                positional.get(next - 1).cloned()
            }
            (false, Ok(index)) => positional.get(index).cloned(),
            (false, Err(_)) => {
                meter.search(named.len(), field)?;
                named.iter().find(|(name, _)| *name == field).map(|(_, value)| value.clone())
            }
        };
        let Some(value) = value else {
            let field = shortened(field);
            return Err(ErrorKind::Value(format!("`format` has nothing for `{{{field}}}`")));
        };
        value.write(&mut out, meter)?;
        rest = &rest[at + end + 1..];
    }
    push(&mut out, rest, meter)?;
    Ok(out)
}
