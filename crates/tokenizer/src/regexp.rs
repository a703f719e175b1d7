//! Regular expressions from tokenizer files, matched in counted steps.
//!
//! Some expressions take a time that grows with the square of a text, or faster: `(?=(a+))a*b` reads the rest of the text
//! at every letter. The engine of the `tokenizers` library limits the backtracking of each match, neither the number of
//! bytes that a step reads nor the sum over all matches, and it leaves the rest of a text unsplit when the limit is
//! reached. Here every character that is read and every choice counts, one [`Budget`] serves all expressions that run over
//! a text, and a spent budget is an error.
//!
//! `fancy_regex` parses an expression, `regex_syntax` its classes. A backtracking matcher runs the program. Matches are
//! those of `fancy_regex`, which `tests` compares. Back-references, conditions, `\G`, `\K`, and unbounded repetitions of what may
//! be empty, are refused: no tokenizer that we know of has them, and engines differ in the last.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fancy_regex::{Assertion, Expr, LookAround};
use regex_syntax::hir::{self, Hir, HirKind, Look};
use tokenizers::Offsets;
use tokenizers::tokenizer::pattern::Pattern;

/// Maximum operations of a program, and of the visits that compile it: `(a{1000}){1000}` is refused.
const OPS_MAX: usize = 1 << 16;
/// Steps allowed for one byte of text. Published expressions take up to 45 on their worst texts (`tests`).
const STEPS_PER_BYTE: u64 = 512;
/// Steps allowed for any text, however short: a third of a second. Published patterns (of SuperBPE, Cohere) read a number of thousands of
/// digits to its end at every third digit.
const STEPS_FREE: u64 = 1 << 26;
/// Choices that wait to be tried, for one byte of text. A choice takes 24 bytes of memory.
const CHOICES_PER_BYTE: usize = 2;
const CHOICES_FREE: usize = 1 << 12;

/// The steps that the expressions of a tokenizer may still take on a text. (One thread uses it; the library demands that a
/// normalizer can be shared.)
pub(super) struct Budget {
    left: AtomicU64,
    choices_max: usize,
    is_spent: AtomicBool,
}

impl Budget {
    /// The budget for a text of `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        let left = STEPS_PER_BYTE.saturating_mul(len as u64).saturating_add(STEPS_FREE);
        let choices_max = len.saturating_mul(CHOICES_PER_BYTE).saturating_add(CHOICES_FREE);
        Self { left: left.into(), choices_max, is_spent: false.into() }
    }

    /// Whether an expression was stopped.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.load(Relaxed)
    }
}

/// The budget is spent.
#[derive(Debug)]
pub(super) struct Spent;

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern takes too many steps")
    }
}

impl std::error::Error for Spent {}

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Regexp {
    ops: Vec<Op>,
    classes: Vec<Class>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// Reads a character of the class; `back`: the one before the place.
    One {
        class: usize,
        back: bool,
    },
    /// Reads up to `max` characters of the class, as many as possible first, and at least `min`.
    Run {
        class: usize,
        min: usize,
        max: usize,
    },
    /// Goes on at `first`, and if that fails at `second`.
    Split {
        first: usize,
        second: usize,
    },
    Jump(usize),
    Assert(Assertion),
    /// The operations up to `next` match here or not; the place stays.
    Look {
        negative: bool,
        next: usize,
    },
    /// The operations up to `next` match in one way only.
    Atomic {
        next: usize,
    },
    End,
}

/// A set of characters.
#[derive(Debug, PartialEq)]
struct Class {
    ascii: u128,
    /// Ranges of characters, in rising order.
    ranges: Vec<(char, char)>,
}

impl Class {
    fn new(ranges: Vec<(char, char)>) -> Self {
        let has = |c: char| ranges.iter().any(|&(first, last)| (first..=last).contains(&c));
        let ascii = (0..128u8).filter(|&byte| has(byte.into())).fold(0, |set, byte| set | 1 << byte);
        Self { ascii, ranges }
    }

    fn has(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.ascii >> u32::from(c) & 1 == 1;
        }
        let after = self.ranges.partition_point(|&(first, _)| first <= c);
        after > 0 && c <= self.ranges[after - 1].1
    }
}

/// A place to return to.
enum Choice {
    At {
        op: usize,
        place: usize,
    },
    /// A run of characters that ends at `place` may end earlier, but not before `min`.
    Shorter {
        op: usize,
        min: usize,
        place: usize,
    },
}

impl Regexp {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The reason: the expression is malformed, too large, or has a part that is not supported.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let tree = Expr::parse_tree(pattern).map_err(|error| error.to_string())?;
        let regexp = Self { ops: Vec::new(), classes: Vec::new() };
        let mut compiler = Compiler { regexp, n_visits: 0, classes_of: HashMap::new() };
        compiler.expr(&tree.expr, false)?;
        compiler.emit(Op::End)?;
        Ok(compiler.regexp)
    }

    /// The matches in a text, in order, without overlaps.
    fn find_all(&self, text: &str, budget: &Budget) -> Result<Vec<Offsets>, Spent> {
        let mut found = Vec::new();
        let left = budget.left.load(Relaxed);
        let mut run = Run { regexp: self, text, left, choices_max: budget.choices_max, choices: Vec::new() };
        let (mut from, mut last_end) = (0, None);
        while from <= text.len() {
            let next = run.find(from).inspect_err(|_| {
                budget.is_spent.store(true, Relaxed);
                // The library drops the errors of a normalizer and goes on with the next piece.
                budget.left.store(0, Relaxed);
            })?;
            let Some((start, end)) = next else { break };
            // An empty match behind another match is none.
            let is_match = start != end || last_end != Some(end);
            from = if start == end { end + char_at(text, end).map_or(1, char::len_utf8) } else { end };
            if is_match {
                last_end = Some(end);
                found.push((start, end));
            }
        }
        budget.left.store(run.left, Relaxed);
        Ok(found)
    }
}

/// An expression with the budget of the text that it splits.
pub(super) struct Counted<'a> {
    pub(super) regexp: &'a Regexp,
    pub(super) budget: &'a Budget,
}

impl Pattern for &Counted<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut parts = Vec::new();
        let mut end = 0;
        for found in self.regexp.find_all(inside, self.budget)? {
            if end != found.0 {
                parts.push(((end, found.0), false));
            }
            parts.push((found, true));
            end = found.1;
        }
        if end != inside.len() {
            parts.push(((end, inside.len()), false));
        }
        Ok(parts)
    }
}

fn char_at(text: &str, place: usize) -> Option<char> {
    text.get(place..)?.chars().next()
}

fn char_before(text: &str, place: usize) -> Option<char> {
    text.get(..place)?.chars().next_back()
}

/// A search in a text.
struct Run<'a> {
    regexp: &'a Regexp,
    text: &'a str,
    /// Steps that are left.
    left: u64,
    choices: Vec<Choice>,
    choices_max: usize,
}

impl Run<'_> {
    fn find(&mut self, from: usize) -> Result<Option<Offsets>, Spent> {
        let mut start = from;
        loop {
            if let Some(end) = self.run(0, start)? {
                return Ok(Some((start, end)));
            }
            match char_at(self.text, start) {
                Some(c) => start += c.len_utf8(),
                None => return Ok(None),
            }
        }
    }

    fn take(&mut self, n_steps: u64) -> Result<(), Spent> {
        self.left = self.left.checked_sub(n_steps).ok_or(Spent)?;
        Ok(())
    }

    fn push(&mut self, choice: Choice) -> Result<(), Spent> {
        if self.choices.len() == self.choices_max {
            return Err(Spent);
        }
        self.choices.push(choice);
        Ok(())
    }

    /// Runs the program from an operation to [`Op::End`], at a place. Returns the place where it ends; `None` if nothing
    /// matches. The recursion is as deep as the nesting of look-arounds, which the parser bounds.
    fn run(&mut self, op: usize, place: usize) -> Result<Option<usize>, Spent> {
        let base = self.choices.len();
        let mut at = Some((op, place));
        let end = loop {
            self.take(1)?;
            let Some((op, place)) = at else {
                if self.choices.len() == base {
                    break None;
                }
                at = self.return_to_choice()?;
                continue;
            };
            at = match self.regexp.ops[op] {
                Op::End => break Some(place),
                Op::One { class, back } => {
                    let c = if back { char_before(self.text, place) } else { char_at(self.text, place) };
                    c.filter(|&c| self.regexp.classes[class].has(c)).map(|c| {
                        let len = c.len_utf8();
                        (op + 1, if back { place - len } else { place + len })
                    })
                }
                Op::Run { class, min, max } => self.run_of(class, (min, max), (op + 1, place))?,
                Op::Split { first, second } => {
                    self.push(Choice::At { op: second, place })?;
                    Some((first, place))
                }
                Op::Jump(to) => Some((to, place)),
                Op::Assert(assertion) => self.holds(assertion, place).then_some((op + 1, place)),
                Op::Look { negative, next } => {
                    let is_match = self.run(op + 1, place)?.is_some();
                    (is_match != negative).then_some((next, place))
                }
                Op::Atomic { next } => self.run(op + 1, place)?.map(|place| (next, place)),
            };
        };
        self.choices.truncate(base);
        Ok(end)
    }

    fn return_to_choice(&mut self) -> Result<Option<(usize, usize)>, Spent> {
        Ok(match self.choices.pop() {
            Some(Choice::At { op, place }) => Some((op, place)),
            Some(Choice::Shorter { op, min, place }) => {
                let place = place - char_before(self.text, place).map_or(0, char::len_utf8);
                if place > min {
                    self.push(Choice::Shorter { op, min, place })?;
                }
                Some((op, place))
            }
            None => None,
        })
    }

    /// Reads characters of a class from a place on; `op` follows.
    fn run_of(
        &mut self,
        class: usize,
        (min, max): (usize, usize),
        (op, from): (usize, usize),
    ) -> Result<Option<(usize, usize)>, Spent> {
        let class = &self.regexp.classes[class];
        let (mut place, mut shortest, mut n) = (from, (min == 0).then_some(from), 0);
        for c in self.text[from..].chars().take(max) {
            if !class.has(c) {
                break;
            }
            place += c.len_utf8();
            n += 1;
            if n == min {
                shortest = Some(place);
            }
        }
        self.take(n as u64)?;
        let Some(shortest) = shortest else { return Ok(None) };
        if place > shortest {
            self.push(Choice::Shorter { op, min: shortest, place })?;
        }
        Ok(Some((op, place)))
    }

    fn holds(&self, assertion: Assertion, place: usize) -> bool {
        let (before, after) = (char_before(self.text, place), char_at(self.text, place));
        let is_word =
            |c: Option<char>| c.is_some_and(|c| regex_syntax::try_is_word_character(c).unwrap_or(false));
        let (word_before, word_after) = (is_word(before), is_word(after));
        match assertion {
            Assertion::StartText => before.is_none(),
            Assertion::EndText => after.is_none(),
            Assertion::StartLine { crlf: false } => matches!(before, None | Some('\n')),
            Assertion::EndLine { crlf: false } => matches!(after, None | Some('\n')),
            Assertion::StartLine { crlf: true } => {
                matches!(before, None | Some('\n')) || before == Some('\r') && after != Some('\n')
            }
            Assertion::EndLine { crlf: true } => {
                matches!(after, None | Some('\r')) || after == Some('\n') && before != Some('\r')
            }
            Assertion::LeftWordBoundary => !word_before && word_after,
            Assertion::LeftWordHalfBoundary => !word_before,
            Assertion::RightWordBoundary => word_before && !word_after,
            Assertion::RightWordHalfBoundary => !word_after,
            Assertion::WordBoundary => word_before != word_after,
            Assertion::NotWordBoundary => word_before == word_after,
        }
    }
}

/// Writes the program. `back`: the operations read backwards, inside a look-behind.
struct Compiler {
    regexp: Regexp,
    n_visits: usize,
    /// The classes of parts, by their text and whether letters of both cases match.
    classes_of: HashMap<(String, bool), usize>,
}

impl Compiler {
    fn emit(&mut self, op: Op) -> Result<usize, String> {
        self.visit()?;
        self.regexp.ops.push(op);
        Ok(self.regexp.ops.len() - 1)
    }

    fn visit(&mut self) -> Result<(), String> {
        self.n_visits += 1;
        if self.n_visits > 2 * OPS_MAX || self.regexp.ops.len() >= OPS_MAX {
            return Err(format!("the pattern has over {OPS_MAX} operations"));
        }
        Ok(())
    }

    fn here(&self) -> usize {
        self.regexp.ops.len()
    }

    fn expr(&mut self, expr: &Expr, back: bool) -> Result<(), String> {
        self.visit()?;
        match expr {
            Expr::Empty => Ok(()),
            Expr::Any { newline } => {
                let ranges =
                    if *newline { vec![('\0', char::MAX)] } else { vec![('\0', '\t'), ('\u{b}', char::MAX)] };
                self.one(ranges, back)
            }
            Expr::Assertion(assertion) => self.emit(Op::Assert(*assertion)).map(drop),
            Expr::Literal { val, casei } => {
                let one = |compiler: &mut Self, c: char| match casei {
                    false => compiler.one(vec![(c, c)], back),
                    true => compiler.delegate(&regex_syntax::escape(c.encode_utf8(&mut [0; 4])), true, back),
                };
                match back {
                    false => val.chars().try_for_each(|c| one(self, c)),
                    true => val.chars().rev().try_for_each(|c| one(self, c)),
                }
            }
            Expr::Concat(parts) => match back {
                false => parts.iter().try_for_each(|part| self.expr(part, back)),
                true => parts.iter().rev().try_for_each(|part| self.expr(part, back)),
            },
            Expr::Alt(branches) => self.any_of(branches, |compiler, branch| compiler.expr(branch, back)),
            Expr::Group(inner) => self.expr(inner, back),
            Expr::LookAround(inner, kind) => {
                let negative = matches!(kind, LookAround::LookAheadNeg | LookAround::LookBehindNeg);
                let back = matches!(kind, LookAround::LookBehind | LookAround::LookBehindNeg);
                let look = self.emit(Op::Look { negative, next: 0 })?;
                self.expr(inner, back)?;
                self.emit(Op::End)?;
                self.regexp.ops[look] = Op::Look { negative, next: self.here() };
                Ok(())
            }
            // An atomic group chooses its way forwards.
            Expr::AtomicGroup(inner) if !back => {
                let atomic = self.emit(Op::Atomic { next: 0 })?;
                self.expr(inner, back)?;
                self.emit(Op::End)?;
                self.regexp.ops[atomic] = Op::Atomic { next: self.here() };
                Ok(())
            }
            Expr::Repeat { child, lo, hi, greedy } => {
                let hi = (*hi != usize::MAX).then_some(*hi);
                if hi.is_none() && can_be_empty(child) {
                    return Err("an unbounded repetition of what may be empty is not supported".to_owned());
                }
                let is_one = *greedy && !back && is_one(child);
                self.repeat((*lo, hi, *greedy), is_one, |compiler| compiler.expr(child, back))
            }
            Expr::Delegate { inner, casei, .. } => self.delegate(inner, *casei, back),
            Expr::AtomicGroup(_) => Err("an atomic group inside a look-behind is not supported".to_owned()),
            Expr::KeepOut => Err("`\\K` is not supported".to_owned()),
            Expr::ContinueFromPreviousMatchEnd => Err("`\\G` is not supported".to_owned()),
            Expr::Backref { .. } | Expr::BackrefWithRelativeRecursionLevel { .. } => {
                Err("back-references are not supported".to_owned())
            }
            _ => Err("conditions and calls of groups are not supported".to_owned()),
        }
    }

    fn one(&mut self, ranges: Vec<(char, char)>, back: bool) -> Result<(), String> {
        let class = Class::new(ranges);
        let known = self.regexp.classes.iter().position(|known| *known == class);
        let class = known.unwrap_or_else(|| {
            self.regexp.classes.push(class);
            self.regexp.classes.len() - 1
        });
        self.emit(Op::One { class, back }).map(drop)
    }

    fn any_of<T>(
        &mut self,
        branches: &[T],
        mut compile: impl FnMut(&mut Self, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some((last, others)) = branches.split_last() else { return Ok(()) };
        let mut jumps = Vec::with_capacity(others.len());
        for branch in others {
            let split = self.emit(Op::Split { first: 0, second: 0 })?;
            compile(self, branch)?;
            jumps.push(self.emit(Op::Jump(0))?);
            self.regexp.ops[split] = Op::Split { first: split + 1, second: self.here() };
        }
        compile(self, last)?;
        let end = self.here();
        jumps.into_iter().for_each(|jump| self.regexp.ops[jump] = Op::Jump(end));
        Ok(())
    }

    fn repeat(
        &mut self,
        (min, max, greedy): (usize, Option<usize>, bool),
        is_one: bool,
        mut compile: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let split = |inner: usize, outer: usize| match greedy {
            true => Op::Split { first: inner, second: outer },
            false => Op::Split { first: outer, second: inner },
        };
        // One class, read forwards, is the usual case, and needs one operation.
        if is_one {
            compile(self)?;
            let Some(Op::One { class, .. }) = self.regexp.ops.pop() else {
                return Err("not a class".to_owned());
            };
            return self.emit(Op::Run { class, min, max: max.unwrap_or(usize::MAX) }).map(drop);
        }
        for _ in 0..min {
            self.visit()?;
            compile(self)?;
        }
        let Some(max) = max else {
            let head = self.emit(Op::Jump(0))?;
            compile(self)?;
            self.emit(Op::Jump(head))?;
            self.regexp.ops[head] = split(head + 1, self.here());
            return Ok(());
        };
        let mut heads = Vec::new();
        for _ in min..max {
            heads.push(self.emit(Op::Jump(0))?);
            compile(self)?;
        }
        let end = self.here();
        heads.into_iter().for_each(|head| self.regexp.ops[head] = split(head + 1, end));
        Ok(())
    }

    /// A part in the syntax of `regex_syntax`: most often a class.
    fn delegate(&mut self, pattern: &str, casei: bool, back: bool) -> Result<(), String> {
        let key = (pattern.to_owned(), casei);
        if let Some(&class) = self.classes_of.get(&key) {
            return self.emit(Op::One { class, back }).map(drop);
        }
        // Reading a class of Unicode takes as long as many operations.
        self.n_visits += 64;
        self.visit()?;
        let (start, mut parser) =
            (self.here(), regex_syntax::ParserBuilder::new().case_insensitive(casei).build());
        self.hir(&parser.parse(pattern).map_err(|error| error.to_string())?, back)?;
        if let &[Op::One { class, .. }] = &self.regexp.ops[start..] {
            self.classes_of.insert(key, class);
        }
        Ok(())
    }

    fn hir(&mut self, hir: &Hir, back: bool) -> Result<(), String> {
        self.visit()?;
        match hir.kind() {
            HirKind::Empty => Ok(()),
            HirKind::Literal(hir::Literal(bytes)) => {
                let text =
                    std::str::from_utf8(bytes).map_err(|_| "a byte that is no character".to_owned())?;
                self.expr(&Expr::Literal { val: text.to_owned(), casei: false }, back)
            }
            HirKind::Class(hir::Class::Unicode(class)) => {
                self.one(class.ranges().iter().map(|range| (range.start(), range.end())).collect(), back)
            }
            HirKind::Class(hir::Class::Bytes(class)) => match class.to_unicode_class() {
                Some(class) => self.hir(&Hir::class(hir::Class::Unicode(class)), back),
                None => Err("a class of bytes is not supported".to_owned()),
            },
            HirKind::Look(look) => {
                let assertion = match look {
                    Look::Start => Assertion::StartText,
                    Look::End => Assertion::EndText,
                    Look::StartLF => Assertion::StartLine { crlf: false },
                    Look::EndLF => Assertion::EndLine { crlf: false },
                    Look::StartCRLF => Assertion::StartLine { crlf: true },
                    Look::EndCRLF => Assertion::EndLine { crlf: true },
                    Look::WordUnicode => Assertion::WordBoundary,
                    Look::WordUnicodeNegate => Assertion::NotWordBoundary,
                    _ => return Err("word boundaries of ASCII are not supported".to_owned()),
                };
                self.emit(Op::Assert(assertion)).map(drop)
            }
            HirKind::Repetition(repeat) => {
                let bounds = (repeat.min as usize, repeat.max.map(|max| max as usize), repeat.greedy);
                self.repeat(bounds, false, |compiler| compiler.hir(&repeat.sub, back))
            }
            HirKind::Capture(capture) => self.hir(&capture.sub, back),
            HirKind::Concat(parts) => match back {
                false => parts.iter().try_for_each(|part| self.hir(part, back)),
                true => parts.iter().rev().try_for_each(|part| self.hir(part, back)),
            },
            HirKind::Alternation(branches) => {
                self.any_of(branches, |compiler, branch| compiler.hir(branch, back))
            }
        }
    }
}

/// Whether an expression may match nothing.
fn can_be_empty(expr: &Expr) -> bool {
    match expr {
        Expr::Any { .. } => false,
        Expr::Literal { val, .. } => val.is_empty(),
        Expr::Delegate { size, .. } => *size == 0,
        Expr::Concat(parts) => parts.iter().all(can_be_empty),
        Expr::Alt(branches) => branches.iter().any(can_be_empty),
        Expr::Group(inner) | Expr::AtomicGroup(inner) => can_be_empty(inner),
        Expr::Repeat { child, lo, .. } => *lo == 0 || can_be_empty(child),
        _ => true,
    }
}

/// Whether an expression is compiled to one operation that reads a character.
fn is_one(expr: &Expr) -> bool {
    match expr {
        Expr::Any { .. } => true,
        Expr::Literal { val, .. } => val.chars().count() == 1,
        Expr::Delegate { size, .. } => *size == 1,
        Expr::Group(inner) => is_one(inner),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pre;

    fn found(pattern: &str, text: &str) -> Vec<Offsets> {
        Regexp::new(pattern).unwrap().find_all(text, &Budget::new(text.len())).unwrap()
    }

    fn expected(pattern: &str, text: &str) -> Option<Vec<Offsets>> {
        let regex = fancy_regex::Regex::new(pattern).ok()?;
        regex.find_iter(text).map(|found| found.ok().map(|found| (found.start(), found.end()))).collect()
    }

    #[test]
    fn matches_are_those_of_the_library() {
        let patterns = [
            r"",
            "a",
            "a|",
            "|a",
            "(?:|a){0,3}",
            "(?:a?){3}",
            "a{2,3}",
            "a{2,3}?",
            "(?:ab){2,}",
            "a??b",
            r"\d+",
            r"[^\s\p{L}]+",
            r"(?i)straße|k",
            r"(?i:'S|'ll)",
            r"\bab\b",
            r"\Ba",
            r"^a|b$",
            r"(?m)^.|$",
            r".+",
            r"(?s).+",
            r"\Aa",
            r"b\z",
            r"a\Z",
            r"(?=(a+))a*b",
            r"(?!a)\w",
            r"(?<=a)b+",
            r"(?<!a|bb)b",
            r"(?<=\s|^)\w+",
            r"(?<=a{1,2}b)c",
            r"(?<!\S)a+(?!\S)",
            r"(?>a+)b",
            r"a++b",
            r"(?x) a \s+ b",
            r"[a-c&&[^b]]+",
            r"[[:alpha:]]+",
            r"\x61\u{62}",
            r"(?:\p{L}\p{M}*)+",
            r"\h+",
            r"(?<name>a)b",
        ];
        let texts = [
            "",
            "a",
            "aaab",
            "abab ab",
            "aab aaa\nb ab\r\nbcab",
            "Straße STRASSE \u{212a}kK'LL's",
            "  \u{a0}e\u{301}\u{300}x\u{1f600} 12\u{664}3",
            "bbb abb babc\n",
        ];
        for pattern in patterns {
            for text in texts {
                assert_eq!(Some(found(pattern, text)), expected(pattern, text), "{pattern:?} in {text:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn matches_of_random_expressions_are_those_of_the_library(
            pattern in pattern(),
            text in r"[ab \n\u{e9}\u{301}A1]{0,24}",
        ) {
            if let (Ok(regexp), Some(expected)) = (Regexp::new(&pattern), expected(&pattern, &text)) {
                prop_assert_eq!(regexp.find_all(&text, &Budget::new(text.len())).unwrap(), expected);
            }
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "a", "b", ".", r"\s", r"\S", r"\p{L}", r"\p{M}", r"[^a\s]", "[ab]", "(?i:a)", r"\d", "^", "$",
            r"\b", "(?!b)", "(?=a)", "(?<=a)", r"(?<!\s)",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(4, 24, 3, |inner| {
            let repeat = prop::sample::select(vec![
                "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}", "*+",
            ]);
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
                (inner.clone(), repeat).prop_map(|(a, repeat)| format!("(?:{a}){repeat}")),
                inner.clone().prop_map(|a| format!("(?={a})")),
                inner.clone().prop_map(|a| format!("(?!{a})")),
                inner.prop_map(|a| format!("(?>{a})")),
            ]
        })
    }

    #[test]
    fn the_steps_over_a_text_are_bounded() {
        let texts = ["a".repeat(20_000), "ab".repeat(10_000), " ".repeat(20_000), "\u{4e2d}".repeat(7_000)];
        // Each is quadratic or worse on one of the texts, in one match or over all.
        for pattern in [
            "(?=(a+))a*b",
            "a*c|a",
            r"(?=.*c)a",
            "(a+)+c",
            r"(?<=^.*)b",
            r"\s*x|\s",
            "(?:(?=(a+))a)*c",
            r"(?:.|..)*x",
            r".*x|.",
            // Steps of the repetition alone: nothing is tried again.
            r"(?=a*)[a-z]",
        ] {
            let regexp = Regexp::new(pattern).unwrap();
            let stopped = texts.iter().filter(|text| {
                let budget = Budget::new(text.len());
                let outcome = regexp.find_all(text, &budget);
                assert_eq!(outcome.is_err(), budget.is_spent());
                outcome.is_err()
            });
            assert!(stopped.count() > 0, "{pattern}");
        }
        // The pieces of a text have one budget.
        let (regexp, budget) = (Regexp::new("a*c|a").unwrap(), Budget::new(1000));
        let piece = "a".repeat(1000);
        let n = (0..1000).take_while(|_| regexp.find_all(&piece, &budget).is_ok()).count();
        assert!((1..200).contains(&n), "{n}");
        // The library goes on with the next piece, which has no steps of its own.
        assert!(regexp.find_all("a", &budget).is_err() && budget.is_spent());
    }

    #[test]
    fn long_numbers_are_split_as_published_patterns_split_them() {
        for pattern in [r"(?=(\d{3})+(?!\d))", r"\d{1,3}(?=(?:\d{3})*\b)"] {
            let regexp = Regexp::new(pattern).unwrap();
            let text = "7".repeat(5_000);
            let found = regexp.find_all(&text, &Budget::new(text.len())).unwrap();
            let expected = fancy_regex::Regex::new(pattern).unwrap();
            let expected: Vec<_> = expected.find_iter(&text).map(|found| found.unwrap().range()).collect();
            assert_eq!(found, expected.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>());
            let text = "7".repeat(200_000);
            assert!(regexp.find_all(&text, &Budget::new(text.len())).is_err(), "{pattern}");
        }
    }

    #[test]
    fn repeated_classes_are_read_once() {
        assert!(Regexp::new(r"(?i)(?:\p{L}a){10000}").is_ok());
        let classes: String =
            (0..3_000).map(|n| format!(r"[\p{{L}}{}]", char::from_u32(0x4e00 + n).unwrap())).collect();
        assert!(Regexp::new(&classes).is_err());
    }

    #[test]
    fn published_expressions_need_few_steps() {
        let texts = [
            " ",
            "\n",
            " \n",
            "a",
            "A",
            "Aa",
            "1",
            "\u{301}",
            "\u{4e2d}",
            "!",
            "'s",
            " a",
            "\t'",
            "/\r",
            "\u{1f600}",
        ];
        for (name, pattern) in pre::patterns() {
            let regexp = Regexp::new(pattern).unwrap();
            for text in texts {
                let text = text.repeat(20_000);
                let budget = Budget::new(text.len());
                let before = budget.left.load(Relaxed);
                regexp.find_all(&text, &budget).unwrap();
                let steps = (before - budget.left.load(Relaxed)) as f64 / text.len() as f64;
                assert!(steps <= 64.0, "{name}: {steps} steps for a byte of {:?}", &text[..4]);
            }
        }
    }

    #[test]
    fn what_is_not_supported_or_too_large_is_refused() {
        for pattern in [
            "(",
            "[a",
            r"(.)\1",
            "(|a)*",
            "(?:a?)+",
            "(?:a*)*?",
            r"(?:\b)*",
            r"a\Kb",
            r"\Ga",
            "(?:(?:ab){1000}){1000}",
            "(?:){1000000000}",
            "(?:(?:){60000}){60000}",
        ] {
            assert!(Regexp::new(pattern).is_err(), "{pattern}");
        }
    }
}
