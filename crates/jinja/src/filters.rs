//! Filters and tests.

use std::cmp::Ordering;
use std::sync::Arc;

use super::arguments::{Arguments, Taken};
use super::error::{ErrorKind, shortened};
use super::json::{self, Style};
use super::methods;
use super::value::{Meter, Outcome, Value, push, refused};

pub(super) const FILTERS: [&str; 44] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "wordcount",
    "format",
    "truncate",
];

pub(super) const TESTS: [&str; 36] = [
    "None",
    "True",
    "False",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

pub(super) fn apply<'t>(meter: &Meter, name: &'t str, value: Value, args: Arguments<'t>) -> Outcome<Value> {
    let mut args = Taken::new(name, args);
    match name {
        "map" => return map(meter, &value, args),
        "select" | "reject" => {
            let test = args.text("test")?;
            let (rest, _) = args.rest();
            return select(meter, &value, None, test.as_ref(), &rest, name == "select");
        }
        "selectattr" | "rejectattr" => {
            let attribute = args.required("attribute")?;
            let test = args.text("test")?;
            let (rest, _) = args.rest();
            return select(meter, &value, Some(&attribute), test.as_ref(), &rest, name == "selectattr");
        }
        _ => {}
    }
    let result = match value {
        Value::Safe(_) if matches!(name, "safe" | "escape" | "e" | "default" | "d") => value,
        Value::Safe(text) => match by_name(meter, name, Value::Str(text), &mut args)? {
            Value::Str(text) if KEEPS_SAFE.contains(&name) => Value::Safe(text),
            other => other,
        },
        value => by_name(meter, name, value, &mut args)?,
    };
    args.finish()?;
    Ok(result)
}

/// Filters that make a safe text of a safe text.
const KEEPS_SAFE: [&str; 6] = ["capitalize", "indent", "lower", "string", "trim", "upper"];

fn by_name(meter: &Meter, name: &str, value: Value, args: &mut Taken<'_>) -> Outcome<Value> {
    match name {
        "default" | "d" => {
            let other = args.value("default_value").unwrap_or_else(|| Value::text(""));
            let if_false = args.flag("boolean");
            let is_missing = matches!(value, Value::Undefined) || (if_false && !value.is_true());
            Ok(if is_missing { other } else { value })
        }
        "length" | "count" => match value.len(meter)? {
            Some(len) => Ok(Value::Int(len as i64)),
            None => refused(format!("a {} has no length", value.type_name())),
        },
        "first" => sequence(meter, value)?.item(0, meter),
        "last" => sequence(meter, value)?.item(-1, meter),
        "list" => Value::list(value.items(meter)?),
        "items" => match value {
            Value::Undefined => Value::list(Vec::new()),
            Value::Dict(_) => methods::pairs(meter, &value),
            other => refused(format!("`items` of a {}", other.type_name())),
        },
        "dictsort" => dictsort(meter, &value, args),
        "join" => {
            let separator = args.value("d").map(|d| d.to_text(meter)).transpose()?;
            let attribute = args.value("attribute");
            let mut out = String::new();
            for (i, item) in value.items(meter)?.iter().enumerate() {
                if let Some(separator) = separator.as_ref().filter(|_| i > 0) {
                    push(&mut out, separator, meter)?;
                }
                match &attribute {
                    Some(attribute) => path(meter, item, attribute)?.write(&mut out, meter)?,
                    None => item.write(&mut out, meter)?,
                }
            }
            Ok(Value::text(out))
        }
        "tojson" => tojson(meter, &value, args),
        "string" => Ok(Value::Str(value.to_text(meter)?)),
        "safe" => Ok(Value::Safe(value.to_text(meter)?)),
        "abs" => match value.as_int().and_then(i64::checked_abs) {
            Some(n) => Ok(Value::Int(n)),
            None => number(&value, "abs").map(|n| Value::Float(n.abs())),
        },
        "int" => {
            let default = args.int("default")?.unwrap_or(0);
            let parsed = match &value {
                Value::Str(text) => {
                    meter.work(text.len())?;
                    let text = text.trim();
                    text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|n| n as i64))
                }
                other => other.as_int().or_else(|| other.as_float().map(|n| n as i64)),
            };
            Ok(Value::Int(parsed.unwrap_or(default)))
        }
        "float" => {
            let default = args.value("default").and_then(|value| value.as_float()).unwrap_or(0.0);
            let parsed = match &value {
                Value::Str(text) => {
                    meter.work(text.len())?;
                    text.trim().parse().ok()
                }
                other => other.as_float(),
            };
            Ok(Value::Float(parsed.unwrap_or(default)))
        }
        "round" => {
            let n = number(&value, "round")?;
            let factor = 10f64.powi(args.int("precision")?.unwrap_or(0).clamp(-300, 300) as i32);
            let method = args.text("method")?;
            let scaled = n * factor;
            let rounded = match method.as_ref().and_then(Value::as_str) {
                None | Some("common") => scaled.round_ties_even(),
                Some("ceil") => scaled.ceil(),
                Some("floor") => scaled.floor(),
                Some(other) => {
                    return refused(format!("`round` has no method `{}`", shortened(other)));
                }
            };
            Ok(Value::Float(rounded / factor))
        }
        "sum" => {
            let attribute = args.value("attribute");
            let mut sum = args.value("start").unwrap_or(Value::Int(0));
            for item in value.items(meter)? {
                let item = match &attribute {
                    Some(attribute) => path(meter, &item, attribute)?,
                    None => item,
                };
                let whole = sum.as_int().zip(item.as_int());
                sum = match whole {
                    Some((a, b)) => {
                        Value::Int(a.checked_add(b).ok_or(ErrorKind::Value("`sum` is out of range".into()))?)
                    }
                    None => Value::Float(number(&sum, "sum")? + number(&item, "sum")?),
                };
            }
            Ok(sum)
        }
        "min" | "max" => {
            let mut best: Option<Value> = None;
            for item in value.items(meter)? {
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                let is_better = match &best {
                    Some(best) => item.compare(best, meter)? == wanted,
                    None => true,
                };
                if is_better {
                    best = Some(item);
                }
            }
            Ok(best.unwrap_or(Value::Undefined))
        }
        "sort" => {
            let reverse = args.flag("reverse");
            let case_sensitive = args.flag("case_sensitive");
            let attribute = args.value("attribute");
            let items = value.items(meter)?;
            let mut keyed = keyed(meter, items.len())?;
            for item in items {
                keyed.push((sort_key(meter, &item, attribute.as_ref(), case_sensitive)?, item));
            }
            Value::list(sorted(meter, &keyed, reverse)?)
        }
        "unique" => {
            let case_sensitive = args.flag("case_sensitive");
            let attribute = args.value("attribute");
            let (mut keys, mut kept): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
            for item in value.items(meter)? {
                let key = sort_key(meter, &item, attribute.as_ref(), case_sensitive)?;
                let mut is_new = true;
                for have in &keys {
                    if have.equals(&key, meter)? {
                        is_new = false;
                        break;
                    }
                }
                if is_new {
                    keys.push(key);
                    kept.push(item);
                }
            }
            Value::list(kept)
        }
        "groupby" => {
            let attribute = args.required("attribute")?;
            let items = value.items(meter)?;
            let mut keyed = keyed(meter, items.len())?;
            for item in items {
                keyed.push((path(meter, &item, &attribute)?, item));
            }
            let items = sorted(meter, &keyed, false)?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for item in items {
                let key = path(meter, &item, &attribute)?;
                match groups.last_mut() {
                    Some((have, items)) if have.equals(&key, meter)? => items.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            meter.list(groups.len().saturating_mul(8))?;
            let groups = groups.into_iter().map(|(key, items)| Value::list(vec![key, Value::list(items)?]));
            Value::list(groups.collect::<Outcome<_>>()?)
        }
        "reverse" => match value {
            Value::Str(text) => {
                meter.text(text.len())?;
                Ok(Value::text(text.chars().rev().collect::<String>()))
            }
            other => {
                let mut items = other.items(meter)?;
                items.reverse();
                Value::list(items)
            }
        },
        "batch" | "slice" => {
            let n = args.int(if name == "batch" { "linecount" } else { "slices" })?.unwrap_or(0);
            let Ok(n) = usize::try_from(n) else { return refused(format!("`{name}` of a negative number")) };
            if n == 0 {
                return refused(format!("`{name}` of 0"));
            }
            let fill = args.value("fill_with");
            let items = value.items(meter)?;
            let (len, mut at, mut rows) = (items.len(), 0, Vec::new());
            let n_rows = if name == "batch" { len.div_ceil(n) } else { n };
            meter.list(n_rows.saturating_mul(8).saturating_add(2 * len).saturating_add(n))?;
            for row in 0..n_rows {
                let size =
                    if name == "batch" { n.min(len - at) } else { len / n + usize::from(row < len % n) };
                let mut items = items[at..at + size].to_vec();
                at += size;
                if let Some(fill) = &fill {
                    let wanted = if name == "batch" { n } else { len.div_ceil(n) };
                    items.resize(wanted.max(items.len()), fill.clone());
                }
                rows.push(Value::list(items)?);
            }
            Value::list(rows)
        }
        "attr" => {
            let name = args.required("name")?;
            Ok(name.as_str().map_or(Ok(Value::Undefined), |name| value.attr(name, meter))?)
        }
        "escape" | "e" => Ok(Value::Safe(Arc::new(escaped(meter, &value.to_text(meter)?)?))),
        "indent" => {
            let width = args.value("width").unwrap_or(Value::Int(4));
            let (first, blank) = (args.flag("first"), args.flag("blank"));
            let indent = match (&width, width.as_int()) {
                (Value::Str(text) | Value::Safe(text), _) => Arc::clone(text),
                (_, Some(n)) if (0..=1000).contains(&n) => Arc::new(" ".repeat(n as usize)),
                _ => return refused("`indent` by neither a text nor a number up to 1000"),
            };
            let text = value.to_text(meter)?;
            let mut out = String::new();
            for (i, line) in text.split('\n').enumerate() {
                push(&mut out, if i > 0 { "\n" } else { "" }, meter)?;
                if (i > 0 || first) && (blank || !line.is_empty()) {
                    push(&mut out, &indent, meter)?;
                }
                push(&mut out, line, meter)?;
            }
            Ok(Value::text(out))
        }
        "truncate" => {
            let length = args.int("length")?.unwrap_or(255).max(0) as usize;
            let kill = args.flag("killwords");
            let end = args.value("end").unwrap_or_else(|| Value::text("...")).to_text(meter)?;
            let leeway = args.int("leeway")?.unwrap_or(5).max(0) as usize;
            let text = value.to_text(meter)?;
            meter.text(text.len().saturating_add(end.len()))?;
            if text.chars().count() <= length.saturating_add(leeway) {
                return Ok(Value::Str(text));
            }
            let cut: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
            let kept =
                if kill { &cut } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(before, _)| before) };
            Ok(Value::text(format!("{kept}{end}")))
        }
        "wordcount" => {
            let text = value.to_text(meter)?;
            // Letters outside ASCII are looked up in tables.
            meter.work(text.len().saturating_mul(8))?;
            let words =
                text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            Ok(Value::Int(words.count() as i64))
        }
        "trim" => {
            let chars = args.text("chars")?.map_or_else(Vec::new, |chars| vec![chars]);
            text_method(meter, &value, "strip", chars)
        }
        "replace" => {
            let mut given = vec![args.required("old")?, args.required("new")?];
            given.extend(args.value("count"));
            text_method(meter, &value, "replace", given)
        }
        "title" => {
            let text = value.to_text(meter)?;
            // A character in another case needs at most three times its bytes.
            meter.text(text.len().saturating_mul(3))?;
            Ok(Value::text(titled(&text)))
        }
        "upper" | "lower" | "capitalize" => text_method(meter, &value, name, Vec::new()),
        other => refused(format!("unknown filter `{}`", shortened(other))),
    }
}

/// Words begin behind white space, `-` and opening brackets. (Python's method of the same name ends them at every character
/// that is not a letter.)
fn titled(text: &str) -> String {
    let separates = |c: char| methods::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(separates) {
        let mut rest = word.chars();
        out.extend(rest.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&rest.as_str().to_lowercase());
    }
    out
}

/// A text for HTML.
pub(super) fn escaped(meter: &Meter, text: &str) -> Outcome<String> {
    meter.text(text.len().saturating_mul(5))?;
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// A filter that calls a string method, for any value.
fn text_method(meter: &Meter, value: &Value, method: &str, positional: Vec<Value>) -> Outcome<Value> {
    let text = Value::Str(value.to_text(meter)?);
    methods::call(meter, &text, method, Arguments { positional, named: Vec::new() })
}

fn sequence(meter: &Meter, value: Value) -> Outcome<Value> {
    match value {
        Value::Str(_) | Value::Safe(_) | Value::List(_) | Value::Range(_) => Ok(value),
        other => Value::list(other.items(meter)?),
    }
}

fn number(value: &Value, filter: &str) -> Outcome<f64> {
    match value.as_float() {
        Some(n) => Ok(n),
        None => refused(format!("`{filter}` of a {}", value.type_name())),
    }
}

/// The value of an attribute path such as `a.b.0`.
fn path(meter: &Meter, value: &Value, attribute: &Value) -> Outcome<Value> {
    if let Some(index) = attribute.as_int() {
        return value.item(index, meter);
    }
    let Some(names) = attribute.as_str() else { return refused("an attribute is a text or a number") };
    let mut value = value.clone();
    for name in names.split('.') {
        meter.work(name.len())?;
        value = match name.parse() {
            Ok(index) => value.item(index, meter)?,
            Err(_) => value.attr(name, meter)?,
        };
    }
    Ok(value)
}

/// The items of a value, none for a value that counts as false. (Jinja's `map` and `select` do not look further at such
/// a value, so `tools | selectattr(…)` works for `tools` that are `none`.)
fn items_if_true(meter: &Meter, value: &Value) -> Outcome<Vec<Value>> {
    if value.is_true() { value.items(meter) } else { Ok(Vec::new()) }
}

fn map(meter: &Meter, value: &Value, mut args: Taken<'_>) -> Outcome<Value> {
    let items = items_if_true(meter, value)?;
    let attribute = args.named("attribute");
    if let Some(attribute) = attribute {
        let default = args.named("default");
        args.finish()?;
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            let found = path(meter, &item, &attribute)?;
            out.push(match (&default, found) {
                (Some(default), Value::Undefined) => default.clone(),
                (_, found) => found,
            });
        }
        return Value::list(out);
    }
    let filter = args.required("filter")?;
    let known = FILTERS.into_iter().find(|name| Some(*name) == filter.as_str());
    let Some(name) =
        known.filter(|name| !["map", "select", "reject", "selectattr", "rejectattr"].contains(name))
    else {
        return refused("`map` of an unknown filter");
    };
    let (positional, named) = args.rest();
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        meter.list(positional.len() + 2 * named.len())?;
        let mut args = Taken::new(name, Arguments { positional: positional.clone(), named: named.clone() });
        out.push(by_name(meter, name, item, &mut args)?);
        args.finish()?;
    }
    Value::list(out)
}

fn select(
    meter: &Meter,
    value: &Value,
    attribute: Option<&Value>,
    name: Option<&Value>,
    args: &[Value],
    wanted: bool,
) -> Outcome<Value> {
    let mut kept = Vec::new();
    for item in items_if_true(meter, value)? {
        let subject = match attribute {
            Some(attribute) => path(meter, &item, attribute)?,
            None => item.clone(),
        };
        let passed = match name.and_then(Value::as_str) {
            Some(name) => test(meter, name, &subject, args)?,
            None => subject.is_true(),
        };
        if passed == wanted {
            kept.push(item);
        }
    }
    Value::list(kept)
}

fn sort_key(meter: &Meter, item: &Value, attribute: Option<&Value>, case_sensitive: bool) -> Outcome<Value> {
    let key = match attribute {
        Some(attribute) => path(meter, item, attribute)?,
        None => item.clone(),
    };
    match &key {
        Value::Str(text) | Value::Safe(text) if !case_sensitive => {
            meter.text(text.len().saturating_mul(3))?;
            Ok(Value::text(text.to_lowercase()))
        }
        _ => Ok(key),
    }
}

/// Room for `n` items with their keys and for sorting them, paid for.
fn keyed(meter: &Meter, n: usize) -> Outcome<Vec<(Value, Value)>> {
    meter.list(n.saturating_mul(4))?;
    Ok(Vec::with_capacity(n))
}

/// Items in the order of their keys, stable. A merge sort of its own, because [`slice::sort_by`] may panic if the comparison
/// is not a total order, and cannot stop at a comparison that fails.
fn sorted(meter: &Meter, keyed: &[(Value, Value)], reverse: bool) -> Outcome<Vec<Value>> {
    let before = if reverse { Ordering::Greater } else { Ordering::Less };
    let mut order: Vec<usize> = (0..keyed.len()).collect();
    let mut merged = Vec::with_capacity(keyed.len());
    let mut width = 1;
    while width < keyed.len() {
        merged.clear();
        for run in order.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some((&a, after_a)), Some((&b, after_b))) = (left.split_first(), right.split_first()) {
                if keyed[b].0.compare(&keyed[a].0, meter)? == before {
                    merged.push(b);
                    right = after_b;
                } else {
                    merged.push(a);
                    left = after_a;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut order, &mut merged);
        width *= 2;
    }
    Ok(order.into_iter().map(|i| keyed[i].1.clone()).collect())
}

fn dictsort(meter: &Meter, value: &Value, args: &mut Taken<'_>) -> Outcome<Value> {
    let case_sensitive = args.flag("case_sensitive");
    let by = args.text("by")?;
    let reverse = args.flag("reverse");
    let by_value = by.as_ref().and_then(Value::as_str) == Some("value");
    let pairs = methods::pairs(meter, value)?;
    let pairs = pairs.items(meter)?;
    let mut keyed = keyed(meter, pairs.len())?;
    for pair in pairs {
        let key = pair.item(i64::from(by_value), meter)?;
        keyed.push((sort_key(meter, &key, None, case_sensitive)?, pair));
    }
    Value::list(sorted(meter, &keyed, reverse)?)
}

/// `json.dumps` with `ensure_ascii=False` by default, as in Hugging Face's own filter.
fn tojson(meter: &Meter, value: &Value, args: &mut Taken<'_>) -> Outcome<Value> {
    let ascii = args.flag("ensure_ascii");
    let indent = args.int("indent")?.map(|n| n.clamp(0, 16) as usize);
    let separators = args.value("separators");
    let sort_keys = args.flag("sort_keys");
    let separators = match separators {
        None | Some(Value::None) => {
            [if indent.is_some() { "," } else { ", " }, ": "].map(|text| Arc::new(text.to_owned()))
        }
        Some(pair) => {
            let mut texts = Vec::new();
            for item in pair.items(meter)? {
                texts.push(item.to_text(meter)?);
            }
            match <[Arc<String>; 2]>::try_from(texts) {
                Ok(separators) => separators,
                Err(_) => return refused("`separators` are two texts"),
            }
        }
    };
    let mut out = String::new();
    json::write(value, &Style { indent, separators, sort_keys, ascii }, &mut out, meter)?;
    Ok(Value::text(out))
}

pub(super) fn test(meter: &Meter, name: &str, value: &Value, args: &[Value]) -> Outcome<bool> {
    let arg = || match args {
        [arg] => Ok(arg),
        _ => refused(format!("the test `{name}` takes one argument")),
    };
    let int = || match value.as_int() {
        Some(n) => Ok(n),
        None => refused(format!("the test `{name}` of a {}", value.type_name())),
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" | "None" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" | "True" => matches!(value, Value::Bool(true)),
        "false" | "False" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_) | Value::Safe(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => {
            matches!(
                value,
                Value::Str(_)
                    | Value::Safe(_)
                    | Value::List(_)
                    | Value::Dict(_)
                    | Value::Range(_)
                    | Value::Undefined
            )
        }
        "iterable" => value.len(meter)?.is_some(),
        "callable" => matches!(value, Value::Builtin(_)),
        "odd" => int()?.rem_euclid(2) == 1,
        "even" => int()?.rem_euclid(2) == 0,
        "divisibleby" => match arg()?.as_int() {
            Some(n) if n != 0 => int()?.checked_rem(n).unwrap_or(0) == 0,
            _ => return refused("`divisibleby` needs a number other than 0"),
        },
        "lower" | "upper" => {
            let text = value.to_text(meter)?;
            meter.work(text.len().saturating_mul(2))?;
            let mut letters = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
            letters.peek().is_some()
                && letters.all(|c| if name == "lower" { c.is_lowercase() } else { c.is_uppercase() })
        }
        "eq" | "equalto" | "==" => value.equals(arg()?, meter)?,
        "ne" | "!=" => !value.equals(arg()?, meter)?,
        "lt" | "lessthan" | "<" => value.compare(arg()?, meter)?.is_lt(),
        "le" | "<=" => value.compare(arg()?, meter)?.is_le(),
        "gt" | "greaterthan" | ">" => value.compare(arg()?, meter)?.is_gt(),
        "ge" | ">=" => value.compare(arg()?, meter)?.is_ge(),
        "in" => value.is_in(arg()?, meter)?,
        "sameas" => {
            let other = arg()?;
            std::mem::discriminant(value) == std::mem::discriminant(other) && value.equals(other, meter)?
        }
        "filter" => value.as_str().is_some_and(|name| FILTERS.contains(&name)),
        "test" => value.as_str().is_some_and(|name| TESTS.contains(&name)),
        "escaped" => matches!(value, Value::Safe(_)),
        other => return refused(format!("unknown test `{}`", shortened(other))),
    })
}
