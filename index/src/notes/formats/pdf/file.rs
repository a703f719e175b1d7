//! The objects of a file. They are found by their headings `7 0 obj`, not by the tables of places, which damaged files lack and hostile
//! ones forge; of several with one number, the last counts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::super::inflate::Budget;
use super::super::limits::{PDF_CODES_MAX, PDF_OBJECTS_MAX, PDF_UNPACKED_BYTES_MAX, PDF_VALUES_MAX};
use super::filter::{unfilter, unpredict};
use super::object::{Dict, Lexer, Object, is_space};
use crate::notes::report::SkipReason;

/// Filters of a stream, and references to references, at most.
const CHAIN_MAX: usize = 8;

/// Bytes that a stream takes of the budget besides its length.
const STREAM_BYTES: usize = 64;

/// Values that are in memory at the same time, and bytes of strings, names and comments that count as one.
const CACHED_VALUES_MAX: usize = 4 * PDF_VALUES_MAX;
const VALUE_BYTES: usize = 64;

/// Where an object is.
#[derive(Debug, Clone)]
enum Place {
    /// Its value in the file, and its stream.
    Own { at: usize, stream: Option<Range<usize>> },
    /// In a stream of objects.
    Packed { stream: usize, at: usize },
}

pub(super) struct File<'a> {
    bytes: &'a [u8],
    /// With the offset of the object or of the stream around it, by number.
    places: HashMap<u32, (usize, Place)>,
    /// Unpacked streams of objects.
    packed: Vec<Vec<u8>>,
    values: RefCell<HashMap<u32, Object>>,
    n_values: Cell<usize>,
    /// An object was not read for lack of room.
    is_full: Cell<bool>,
    /// Codes that fonts may still have.
    codes: Cell<usize>,
    pub(super) budget: Budget,
    pub(super) root: Option<Object>,
    pub(super) info: Option<Object>,
    /// Objects that say that they are pages, in the order of the file.
    pub(super) loose_pages: Vec<u32>,
}

impl<'a> File<'a> {
    /// Finds the objects.
    ///
    /// # Errors
    /// [`SkipReason::Encrypted`], [`SkipReason::Limit`]; [`SkipReason::Broken`]: it has no object.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, SkipReason> {
        let mut file = Self {
            bytes,
            places: HashMap::new(),
            packed: Vec::new(),
            values: RefCell::new(HashMap::new()),
            n_values: Cell::new(0),
            is_full: Cell::new(false),
            codes: Cell::new(PDF_CODES_MAX),
            budget: Budget::new(PDF_UNPACKED_BYTES_MAX),
            root: None,
            info: None,
            loose_pages: Vec::new(),
        };
        // Streams of objects, and what ends a file.
        let (mut packed, mut trailers) = (Vec::new(), Vec::new());
        let mut catalog = None;
        let mut at = 0;
        while let Some(found) = find(bytes, at, b"obj") {
            let Some((start, number)) = heading(bytes, found) else {
                at = found + 3;
                continue;
            };
            if file.places.len() == PDF_OBJECTS_MAX {
                let limit = PDF_OBJECTS_MAX as u64;
                return Err(SkipReason::Limit { what: "objects", limit, offset: start as u64 });
            }
            let value_at = found + 3;
            let mut lexer = Lexer { bytes, at: value_at };
            let value = lexer.next();
            at = lexer.at.max(value_at);
            let mut stream = None;
            if let Some(Object::Dict(dict)) = &value {
                stream = stream_behind(bytes, at, dict);
                at = stream.as_ref().map_or(at, |stream| stream.end);
                match dict.get(&b"Type"[..]).and_then(Object::name) {
                    Some(b"ObjStm") => packed.push(number),
                    Some(b"XRef") => trailers.push(Rc::clone(dict)),
                    Some(b"Catalog") => catalog = Some(number),
                    Some(b"Page") => file.loose_pages.push(number),
                    _ => {}
                }
            }
            file.places.insert(number, (start, Place::Own { at: value_at, stream }));
        }
        let mut at = 0;
        while let Some(found) = find(bytes, at, b"trailer") {
            let mut lexer = Lexer { bytes, at: found + 7 };
            if let Some(Object::Dict(dict)) = lexer.next() {
                trailers.push(dict);
            }
            at = lexer.at.max(found + 7);
        }
        for trailer in trailers {
            if trailer.contains_key(&b"Encrypt"[..]) {
                return Err(SkipReason::Encrypted);
            }
            file.root = trailer.get(&b"Root"[..]).cloned().or(file.root);
            file.info = trailer.get(&b"Info"[..]).cloned().or(file.info);
        }
        file.root = file.root.or(catalog.map(Object::Reference));
        for number in packed {
            file.unpack(number)?;
        }
        match file.places.is_empty() {
            true => Err(SkipReason::Broken { what: "no object of a PDF", offset: 0 }),
            false => Ok(file),
        }
    }

    /// Finds the objects in a stream of objects.
    fn unpack(&mut self, number: u32) -> Result<(), SkipReason> {
        let Some((start, Place::Own { .. })) = self.places.get(&number).cloned() else { return Ok(()) };
        let Object::Dict(dict) = self.get(number) else { return Ok(()) };
        let count = |key: &[u8]| self.entry(&dict, key).count();
        let (Some(n), Some(first)) = (count(b"N"), count(b"First")) else { return Ok(()) };
        let Some(data) = self.stream(number)? else { return Ok(()) };
        let mut lexer = Lexer { bytes: &data, at: 0 };
        let stream = self.packed.len();
        for _ in 0..n {
            let (Some(number), Some(at)) = (lexer.next(), lexer.next()) else { break };
            let (Some(number), Some(at)) = (number.count(), at.count()) else { break };
            let Ok(number) = u32::try_from(number) else { break };
            let place = (start, Place::Packed { stream, at: first.saturating_add(at) });
            let is_new = self.places.get(&number).is_none_or(|(known, _)| *known <= start);
            if is_new && self.places.len() < PDF_OBJECTS_MAX {
                self.places.insert(number, place);
            }
        }
        self.packed.push(data);
        Ok(())
    }

    /// The value of an object.
    pub(super) fn get(&self, number: u32) -> Object {
        if let Some(value) = self.values.borrow().get(&number) {
            return value.clone();
        }
        let (bytes, at) = match self.places.get(&number) {
            Some((_, Place::Own { at, .. })) => (self.bytes, *at),
            Some((_, Place::Packed { stream, at })) => match self.packed.get(*stream) {
                Some(data) => (&data[..], *at),
                None => return Object::Null,
            },
            None => return Object::Null,
        };
        // Objects in streams may share bytes: what they take is counted, and the rest is null.
        if self.n_values.get() >= CACHED_VALUES_MAX {
            self.is_full.set(true);
            return Object::Null;
        }
        let mut lexer = Lexer { bytes, at };
        let mut n_values = 1;
        let value = lexer.next_counted(&mut n_values).unwrap_or(Object::Null);
        self.n_values.set(self.n_values.get() + n_values + lexer.at.saturating_sub(at) / VALUE_BYTES);
        self.values.borrow_mut().insert(number, value.clone());
        value
    }

    /// The limit that made objects count as null, if one did.
    pub(super) fn exceeded(&self) -> Option<SkipReason> {
        let limit = CACHED_VALUES_MAX as u64;
        self.is_full.get().then_some(SkipReason::Limit { what: "values", limit, offset: 0 })
    }

    /// A value that is no reference.
    pub(super) fn resolve(&self, value: &Object) -> Object {
        let mut value = value.clone();
        for _ in 0..CHAIN_MAX {
            match value {
                Object::Reference(number) => value = self.get(number),
                value => return value,
            }
        }
        Object::Null
    }

    /// The value of an entry that is no reference; null without one.
    pub(super) fn entry(&self, dict: &Dict, key: &[u8]) -> Object {
        dict.get(key).map_or(Object::Null, |value| self.resolve(value))
    }

    /// An entry that is a dictionary, empty without one.
    pub(super) fn dict(&self, dict: &Dict, key: &[u8]) -> Rc<Dict> {
        match self.entry(dict, key) {
            Object::Dict(dict) => dict,
            _ => Rc::default(),
        }
    }

    /// Takes a code of a font. `false` if none is left.
    pub(super) fn take_code(&self) -> bool {
        let left = self.codes.get().checked_sub(1);
        self.codes.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The offset of an object, for reports.
    pub(super) fn offset(&self, number: u32) -> usize {
        self.places.get(&number).map_or(0, |(offset, _)| *offset)
    }

    /// The plain data of an object's stream; `None` if it has none, or one that is no text.
    ///
    /// # Errors
    /// [`SkipReason::Limit`].
    pub(super) fn stream(&self, number: u32) -> Result<Option<Vec<u8>>, SkipReason> {
        let Some((offset, Place::Own { stream: Some(range), .. })) = self.places.get(&number) else {
            return Ok(None);
        };
        // An empty stream may be read again and again.
        self.budget.take(STREAM_BYTES, *offset)?;
        let Object::Dict(dict) = self.get(number) else { return Ok(None) };
        let listed = |value: Object| match value {
            Object::List(list) => list.iter().take(CHAIN_MAX).map(|value| self.resolve(value)).collect(),
            Object::Null => Vec::new(),
            one => vec![one],
        };
        let either = |long: &[u8], short: &[u8]| {
            listed(self.resolve(dict.get(long).or(dict.get(short)).unwrap_or(&Object::Null)))
        };
        let (filters, parameters) = (either(b"Filter", b"F"), either(b"DecodeParms", b"DP"));
        let data = &self.bytes[range.clone()];
        if filters.is_empty() {
            self.budget.take(data.len(), *offset)?;
            return Ok(Some(data.to_vec()));
        }
        let mut plain: Option<Vec<u8>> = None;
        for (at, filter) in filters.iter().enumerate() {
            let Some(filter) = filter.name() else { return Ok(None) };
            let Some(mut next) = unfilter(filter, plain.as_deref().unwrap_or(data), &self.budget, *offset)?
            else {
                return Ok(None);
            };
            if let Some(Object::Dict(parameters)) = parameters.get(at) {
                let count = |key: &[u8], default| self.entry(parameters, key).count().unwrap_or(default);
                if count(b"Predictor", 1) >= 10 {
                    let n_bits = count(b"Colors", 1).min(32) * count(b"BitsPerComponent", 8).min(16);
                    let n_row = (count(b"Columns", 1).clamp(1, 1 << 20) * n_bits).div_ceil(8).max(1);
                    next = unpredict(&next, n_row, n_bits.div_ceil(8).max(1));
                }
            }
            plain = Some(next);
        }
        Ok(plain)
    }
}

/// The offset of some bytes behind an offset.
pub(super) fn find(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    Some(from + rest.windows(wanted.len()).position(|window| window == wanted)?)
}

/// The start and the number of an object whose word `obj` is at an offset: `7 0 obj`.
fn heading(bytes: &[u8], at: usize) -> Option<(usize, u32)> {
    let before = |at: usize, is_part: fn(u8) -> bool| {
        let n = bytes[..at].iter().rev().take(12).take_while(|&&byte| is_part(byte)).count();
        (n > 0).then_some(at - n)
    };
    let is_digit = |byte: u8| byte.is_ascii_digit();
    let generation = before(before(at, is_space)?, is_digit)?;
    let end = before(generation, is_space)?;
    let start = before(end, is_digit)?;
    Some((start, std::str::from_utf8(&bytes[start..end]).ok()?.parse().ok()?))
}

/// The data of a stream that begins behind a dictionary.
fn stream_behind(bytes: &[u8], at: usize, dict: &Dict) -> Option<Range<usize>> {
    // No comments: the search for objects goes on behind the dictionary, and would skip each again.
    let start = at + bytes[at..].iter().take_while(|&&byte| is_space(byte)).count();
    let rest = bytes[start..].strip_prefix(b"stream")?;
    let start = start + 6;
    let start = match rest {
        [b'\r', b'\n', ..] => start + 2,
        [b'\r' | b'\n', ..] => start + 1,
        _ => start,
    };
    let given = dict.get(&b"Length"[..]).and_then(Object::count).and_then(|len| start.checked_add(len));
    let is_end = |end: &usize| {
        bytes.get(*end..).is_some_and(|rest| {
            let rest = &rest[rest.iter().take(2).take_while(|&&byte| is_space(byte)).count()..];
            rest.starts_with(b"endstream")
        })
    };
    let end = given.filter(is_end).or_else(|| find(bytes, start, b"endstream"));
    Some(start..end.unwrap_or(bytes.len()))
}
