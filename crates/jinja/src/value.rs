//! Values of templates, and Python's rules to write and compare them.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::error::ErrorKind;

/// The result of an operation on values. The evaluator adds the line.
pub(super) type Outcome<T> = Result<T, ErrorKind>;

/// Refuses an operation on values.
pub(super) fn refused<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(ErrorKind::Value(reason.into()))
}

/// Maximum nesting of lists and mappings, because comparing, writing and dropping them is recursive.
const VALUE_DEPTH_MAX: u32 = 64;
/// Bytes of a slot in a list, and of a value's own allocation with its reference counts.
const SLOT_BYTES: usize = 16;
const HEAD_BYTES: usize = 64;
/// Bytes written or read per step of fuel.
const BYTES_PER_STEP: usize = 64;
/// Slots that a step may use without paying for them.
const FREE_SLOTS: usize = 16;

/// A value of a template. Lists, mappings and strings are shared and never change.
#[derive(Debug, Clone)]
pub enum Value {
    /// A name without a value.
    Undefined,
    /// `none`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer. Those beyond 64 bits are errors.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text.
    Str(Arc<String>),
    /// A text of the filters `safe` and `escape`: `+` escapes what it joins to it. Otherwise a text.
    Safe(Arc<String>),
    /// A list or tuple.
    List(Rc<List>),
    /// A mapping.
    Dict(Rc<Dict>),
    /// The result of `range`, without its items.
    Range(Rc<Range>),
    /// The result of `namespace`, whose fields a template may set.
    Namespace(Rc<Namespace>),
    /// `loop`.
    Loop(Rc<Loop>),
    /// A function.
    Builtin(Builtin),
}

/// Built-in functions of every template, and the functions of `macro` and `call`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Builtin {
    Range,
    Namespace,
    Dict,
    Raise,
    StrftimeNow,
    Macro(u32),
    Caller(u32),
}

#[derive(Debug)]
pub struct List {
    pub(super) items: Vec<Value>,
    nesting: Nesting,
}

/// A mapping in order of insertion.
#[derive(Debug)]
pub struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    nesting: Nesting,
}

/// What a list or a mapping contains, at any depth.
#[derive(Debug, Clone, Copy, Default)]
struct Nesting {
    /// Lists and mappings in each other, with this one.
    depth: u32,
    /// A namespace, which could come to contain itself if it were stored in one.
    has_namespace: bool,
}

#[derive(Debug, PartialEq)]
pub struct Range {
    pub(super) start: i64,
    pub(super) step: i64,
    pub(super) len: usize,
}

/// The only mutable object of a template.
#[derive(Debug, Default)]
pub struct Namespace {
    pub(super) entries: RefCell<Vec<(String, Value)>>,
}

/// The variable `loop`.
#[derive(Debug)]
pub struct Loop {
    pub(super) over: Value,
    pub(super) len: usize,
    pub(super) index: Cell<usize>,
    pub(super) depth: usize,
}

/// The remaining steps and bytes.
#[derive(Debug)]
pub(super) struct Meter {
    fuel: Cell<u64>,
    bytes: Cell<u64>,
}

impl Meter {
    pub(super) fn new(fuel: u64, bytes: u64) -> Self {
        Self { fuel: Cell::new(fuel), bytes: Cell::new(bytes) }
    }

    /// Charges one step that reads `n` bytes.
    pub(super) fn work(&self, n: usize) -> Outcome<()> {
        let steps = 1 + (n / BYTES_PER_STEP) as u64;
        self.fuel.set(self.fuel.get().checked_sub(steps).ok_or(ErrorKind::Fuel)?);
        Ok(())
    }

    /// Charges `n` bytes. Called before they are allocated.
    pub(super) fn allocate(&self, n: usize) -> Outcome<()> {
        self.bytes.set(self.bytes.get().checked_sub(n as u64).ok_or(ErrorKind::Memory)?);
        self.work(n)
    }

    /// Charges a new text of `len` bytes.
    pub(super) fn text(&self, len: usize) -> Outcome<()> {
        self.allocate(len.saturating_add(HEAD_BYTES))
    }

    /// Charges `n` times `len` bytes.
    pub(super) fn repeated(&self, len: usize, n: usize) -> Outcome<()> {
        self.text(len.checked_mul(n).ok_or(ErrorKind::Memory)?)
    }

    /// Charges a new list of `len` slots. (Twice the bytes, as lists grow by doubling.)
    pub(super) fn list(&self, len: usize) -> Outcome<()> {
        self.allocate(len.saturating_mul(2 * SLOT_BYTES).saturating_add(HEAD_BYTES))
    }

    /// Pays for a list of `len` slots that exists during one step. Up to [`FREE_SLOTS`] are part of the step.
    pub(super) fn slots(&self, len: usize) -> Outcome<()> {
        if len > FREE_SLOTS { self.list(len) } else { Ok(()) }
    }

    /// Pays for comparing a name with `n` others.
    pub(super) fn search(&self, n: usize, name: &str) -> Outcome<()> {
        self.work(n.saturating_mul(4 + name.len() / 8))
    }
}

fn bounded_nesting<'v>(values: impl Iterator<Item = &'v Value>) -> Outcome<Nesting> {
    let mut nesting = Nesting::default();
    for value in values {
        let inner = match value {
            Value::List(list) => list.nesting,
            Value::Dict(dict) => dict.nesting,
            Value::Namespace(_) => Nesting { depth: 0, has_namespace: true },
            Value::Loop(_) => {
                return Err(ErrorKind::Value("a loop cannot be stored in another value".to_owned()));
            }
            _ => continue,
        };
        nesting.depth = nesting.depth.max(inner.depth);
        nesting.has_namespace |= inner.has_namespace;
    }
    if nesting.depth >= VALUE_DEPTH_MAX {
        return Err(ErrorKind::Value(format!("values are nested deeper than {VALUE_DEPTH_MAX}")));
    }
    nesting.depth += 1;
    Ok(nesting)
}

impl Value {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Str(Arc::new(text.into()))
    }

    /// A list. The caller charges it first.
    pub fn list(items: Vec<Self>) -> Outcome<Self> {
        let nesting = bounded_nesting(items.iter())?;
        Ok(Self::List(Rc::new(List { items, nesting })))
    }

    /// A mapping with distinct keys. The caller charges it first.
    pub fn dict(entries: Vec<(Self, Self)>) -> Outcome<Self> {
        let nesting = bounded_nesting(entries.iter().map(|(_, value)| value))?;
        Ok(Self::Dict(Rc::new(Dict { entries, nesting })))
    }

    /// Whether a namespace may contain the value. A value that could make it contain itself is refused.
    pub(super) fn check_storable(&self) -> Outcome<()> {
        match bounded_nesting(std::iter::once(self))?.has_namespace {
            true => Err(ErrorKind::Value("a namespace cannot be stored in a namespace".to_owned())),
            false => Ok(()),
        }
    }

    /// The value, a safe text as a text.
    pub(super) fn unmarked(&self) -> Cow<'_, Self> {
        match self {
            Self::Safe(text) => Cow::Owned(Self::Str(Arc::clone(text))),
            other => Cow::Borrowed(other),
        }
    }

    /// Converts a JSON value.
    pub fn from_json(json: &serde_json::Value) -> Outcome<Self> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(n) => match n.as_i64() {
                Some(n) => Self::Int(n),
                None => Self::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text(text.as_str()),
            Json::Array(items) => Self::list(items.iter().map(Self::from_json).collect::<Outcome<_>>()?)?,
            Json::Object(entries) => {
                let entries = entries.iter();
                let entries =
                    entries.map(|(key, value)| Ok((Self::text(key.as_str()), Self::from_json(value)?)));
                Self::dict(entries.collect::<Outcome<_>>()?)?
            }
        })
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined value",
            Self::None => "none",
            Self::Bool(_) => "boolean",
            Self::Int(_) | Self::Float(_) => "number",
            Self::Str(_) | Self::Safe(_) => "string",
            Self::List(_) => "list",
            Self::Dict(_) => "mapping",
            Self::Range(_) => "range",
            Self::Namespace(_) => "namespace",
            Self::Loop(_) => "loop",
            Self::Builtin(_) => "function",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(n) => *n != 0,
            Self::Float(n) => *n != 0.0,
            Self::Str(text) | Self::Safe(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            Self::Range(range) => range.len > 0,
            Self::Namespace(_) | Self::Loop(_) | Self::Builtin(_) => true,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) | Self::Safe(text) => Some(text),
            _ => None,
        }
    }

    /// Integers, including `true` and `false`.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(n) => Some(*n),
            _ => self.as_int().map(|n| n as f64),
        }
    }

    /// The number of characters or items.
    pub(super) fn len(&self, meter: &Meter) -> Outcome<Option<usize>> {
        Ok(Some(match self {
            Self::Undefined => 0,
            Self::Str(text) | Self::Safe(text) => {
                meter.work(text.len())?;
                text.chars().count()
            }
            Self::List(list) => list.items.len(),
            Self::Dict(dict) => dict.entries.len(),
            Self::Range(range) => range.len,
            Self::Loop(looped) => looped.len,
            _ => return Ok(None),
        }))
    }

    /// The items of an iteration: the characters of a string, the keys of a mapping.
    pub(super) fn items(&self, meter: &Meter) -> Outcome<Vec<Self>> {
        let len = self.len(meter)?;
        let Some(len) = len else {
            return Err(ErrorKind::Value(format!("a {} has no items", self.type_name())));
        };
        meter.list(len)?;
        Ok(match self {
            Self::Str(text) | Self::Safe(text) => {
                meter.allocate(len.saturating_mul(HEAD_BYTES))?;
                text.chars().map(Self::text).collect()
            }
            Self::List(list) => list.items.clone(),
            Self::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Self::Range(range) => (0..range.len).map(|i| range.get(i)).collect(),
            Self::Loop(looped) => looped.over.items(meter)?,
            _ => Vec::new(),
        })
    }

    /// The value of a key in a mapping.
    pub(super) fn get(&self, key: &Self, meter: &Meter) -> Outcome<Option<Self>> {
        let Self::Dict(dict) = self else { return Ok(None) };
        for (have, value) in &dict.entries {
            if have.equals(key, meter)? {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    /// An attribute or a key; undefined if it does not exist.
    pub(super) fn attr(&self, name: &str, meter: &Meter) -> Outcome<Self> {
        Ok(match self {
            Self::Dict(dict) => {
                meter.search(dict.entries.len(), name)?;
                let mut entries = dict.entries.iter();
                let found = entries.find(|(key, _)| key.as_str() == Some(name));
                found.map_or(Self::Undefined, |(_, value)| value.clone())
            }
            Self::Namespace(namespace) => {
                let entries = namespace.entries.borrow();
                meter.search(entries.len(), name)?;
                let found = entries.iter().find(|(have, _)| have == name);
                found.map_or(Self::Undefined, |(_, value)| value.clone())
            }
            Self::Loop(looped) => {
                let (index, len) = (looped.index.get(), looped.len);
                let at = |index: Option<usize>| match (&looped.over, index) {
                    (Self::List(list), Some(index)) => list.items.get(index).cloned(),
                    (Self::Range(range), Some(index)) if index < range.len => Some(range.get(index)),
                    _ => None,
                };
                let int = |n: usize| Self::Int(n as i64);
                match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "revindex" => int(len - index),
                    "revindex0" => int(len - index - 1),
                    "first" => Self::Bool(index == 0),
                    "last" => Self::Bool(index + 1 == len),
                    "length" => int(len),
                    "depth" => int(looped.depth + 1),
                    "depth0" => int(looped.depth),
                    "previtem" => at(index.checked_sub(1)).unwrap_or(Self::Undefined),
                    "nextitem" => at(Some(index + 1)).unwrap_or(Self::Undefined),
                    _ => Self::Undefined,
                }
            }
            _ => Self::Undefined,
        })
    }

    /// The item or character at an index. A negative index counts from the end.
    pub(super) fn item(&self, index: i64, meter: &Meter) -> Outcome<Self> {
        let len = self.len(meter)?.unwrap_or(0) as i64;
        let index = if index < 0 { index.saturating_add(len) } else { index };
        let Some(index) = usize::try_from(index).ok().filter(|&index| (index as i64) < len) else {
            return Ok(Self::Undefined);
        };
        Ok(match self {
            Self::List(list) => list.items.get(index).cloned().unwrap_or(Self::Undefined),
            Self::Range(range) => range.get(index),
            Self::Str(text) | Self::Safe(text) => text.chars().nth(index).map_or(Self::Undefined, Self::text),
            _ => Self::Undefined,
        })
    }

    pub(super) fn equals(&self, other: &Self, meter: &Meter) -> Outcome<bool> {
        let (this, other) = (&*self.unmarked(), &*other.unmarked());
        // Every pair takes a step, lists too: a list that contains another one twice doubles the pairs at each level.
        meter.work(match (this, other) {
            (Self::Str(a), Self::Str(b)) if a.len() == b.len() => a.len(),
            _ => 0,
        })?;
        Ok(match (this, other) {
            (Self::Undefined, Self::Undefined) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match other.get(key, meter)? {
                        Some(found) if found.equals(value, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Range(a), Self::Range(b)) => a == b,
            (Self::Namespace(a), Self::Namespace(b)) => Rc::ptr_eq(a, b),
            (Self::Loop(a), Self::Loop(b)) => Rc::ptr_eq(a, b),
            (Self::Builtin(a), Self::Builtin(b)) => a == b,
            _ => this.compare_numbers(other) == Some(Ordering::Equal),
        })
    }

    /// The exact order of two numbers; none for NaN and for other values.
    fn compare_numbers(&self, other: &Self) -> Option<Ordering> {
        match (self.as_int(), other.as_int()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            (Some(a), None) => compare_int_float(a, other.as_float()?),
            (None, Some(b)) => compare_int_float(b, self.as_float()?).map(Ordering::reverse),
            (None, None) => self.as_float()?.partial_cmp(&other.as_float()?),
        }
    }

    pub(super) fn compare(&self, other: &Self, meter: &Meter) -> Outcome<Ordering> {
        let (this, other) = (&*self.unmarked(), &*other.unmarked());
        let unordered = || {
            let (a, b) = (this.type_name(), other.type_name());
            ErrorKind::Value(format!("a {a} cannot be compared with a {b}"))
        };
        meter.work(match (this, other) {
            (Self::Str(a), Self::Str(b)) => a.len().min(b.len()),
            _ => 0,
        })?;
        match (this, other) {
            (Self::Str(a), Self::Str(b)) => Ok(a.cmp(b)),
            (Self::List(a), Self::List(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return a.compare(b, meter);
                    }
                }
                Ok(a.items.len().cmp(&b.items.len()))
            }
            _ => this.compare_numbers(other).ok_or_else(unordered),
        }
    }

    /// Whether `self` is in `container`.
    pub(super) fn is_in(&self, container: &Self, meter: &Meter) -> Outcome<bool> {
        match (&*container.unmarked(), &*self.unmarked()) {
            (Self::Str(text), Self::Str(part)) => {
                meter.work(text.len().saturating_add(part.len().saturating_mul(4)))?;
                Ok(text.contains(part.as_str()))
            }
            (Self::Dict(_), _) => Ok(container.get(self, meter)?.is_some()),
            (Self::Range(range), _) => Ok(self.as_int().is_some_and(|n| range.contains(n))),
            (Self::List(list), _) => {
                for item in &list.items {
                    if item.equals(self, meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Self::Undefined, _) => Ok(false),
            _ => {
                let (part, whole) = (self.type_name(), container.type_name());
                Err(ErrorKind::Value(format!("cannot look for a {part} in a {whole}")))
            }
        }
    }

    /// Appends Python's `str` to `out`.
    pub(super) fn write(&self, out: &mut String, meter: &Meter) -> Outcome<()> {
        match self {
            Self::Undefined => Ok(()),
            Self::Str(text) | Self::Safe(text) => push(out, text, meter),
            _ => self.write_repr(out, meter),
        }
    }

    /// Appends Python's `repr` to `out`.
    fn write_repr(&self, out: &mut String, meter: &Meter) -> Outcome<()> {
        match self {
            Self::Undefined => push(out, "Undefined", meter),
            Self::None => push(out, "None", meter),
            Self::Bool(value) => push(out, if *value { "True" } else { "False" }, meter),
            Self::Int(n) => push(out, &n.to_string(), meter),
            Self::Float(n) => push(out, &float_text(*n), meter),
            Self::Str(text) | Self::Safe(text) => {
                // Each character may become four.
                meter.text(text.len().saturating_mul(4))?;
                write_quoted(out, text);
                Ok(())
            }
            Self::List(list) => {
                push(out, "[", meter)?;
                for (i, item) in list.items.iter().enumerate() {
                    push(out, if i > 0 { ", " } else { "" }, meter)?;
                    item.write_repr(out, meter)?;
                }
                push(out, "]", meter)
            }
            Self::Dict(dict) => {
                push(out, "{", meter)?;
                for (i, (key, value)) in dict.entries.iter().enumerate() {
                    push(out, if i > 0 { ", " } else { "" }, meter)?;
                    key.write_repr(out, meter)?;
                    push(out, ": ", meter)?;
                    value.write_repr(out, meter)?;
                }
                push(out, "}", meter)
            }
            Self::Range(range) => {
                push(out, &format!("range({}, {})", range.start, range.at(range.len)), meter)
            }
            Self::Namespace(_) | Self::Loop(_) | Self::Builtin(_) => {
                push(out, &format!("<{}>", self.type_name()), meter)
            }
        }
    }

    /// Python's `str` as a new text.
    pub(super) fn to_text(&self, meter: &Meter) -> Outcome<Arc<String>> {
        if let Self::Str(text) | Self::Safe(text) = self {
            return Ok(Arc::clone(text));
        }
        let mut out = String::new();
        self.write(&mut out, meter)?;
        Ok(Arc::new(out))
    }
}

impl Range {
    pub(super) fn get(&self, index: usize) -> Value {
        Value::Int(self.at(index))
    }

    /// The number at an index. The product of step and index can exceed `i64` although the number does not.
    pub(super) fn at(&self, index: usize) -> i64 {
        let n = i128::from(self.start) + i128::from(self.step).saturating_mul(index as i128);
        n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    fn contains(&self, n: i64) -> bool {
        let from_start = i128::from(n) - i128::from(self.start);
        let step = i128::from(self.step);
        from_start % step == 0 && (0..self.len as i128).contains(&(from_start / step))
    }
}

/// Compares without rounding: above 2^53, several integers round to the same float.
fn compare_int_float(a: i64, b: f64) -> Option<Ordering> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if b.is_nan() {
        return None;
    }
    if b >= LIMIT {
        return Some(Ordering::Less);
    }
    if b < -LIMIT {
        return Some(Ordering::Greater);
    }
    Some(a.cmp(&(b as i64)).then(0.0.partial_cmp(&b.fract())?))
}

/// Appends a text. A string that grows by doubling holds up to twice its length, and as much again while it is copied.
pub(super) fn push(out: &mut String, text: &str, meter: &Meter) -> Outcome<()> {
    meter.allocate(text.len().saturating_mul(4))?;
    out.push_str(text);
    Ok(())
}

/// Python's `repr` of a float.
pub(super) fn float_text(n: f64) -> String {
    if n.is_nan() {
        return "nan".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{n:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // `{:?}` writes an exponent from 1e16 and below 1e-5.
        return format!("{n:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}
