//! Reads GBNF.

use std::collections::HashMap;
use std::rc::Rc;

use super::set::Letters;
use super::{DEPTH_MAX, Expr, GbnfProblem, OPERATORS_MAX, PARTS_MAX, REPEAT_MAX, RULES_MAX, Rules};
use crate::error::GrammarError;

/// The rule that a text follows.
const ROOT: &str = "root";

/// Reads the rules. The last definition of a name counts, as in llama.cpp.
///
/// # Errors
/// [`GrammarError::Gbnf`].
pub(super) fn parse(text: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser { text, at: 0, n_parts: 0, names: HashMap::new(), rules: Vec::new() };
    let parsed = parser.all();
    parsed.map_err(|Refused { at, problem }| {
        let before = &text[..text.floor_char_boundary(at)];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
        GrammarError::Gbnf { offset: at, line, column, problem }
    })
}

pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// A problem at a byte of the text.
struct Refused {
    at: usize,
    problem: GbnfProblem,
}

type Parsed<T> = Result<T, Refused>;

/// A rule: where its name was first seen, and its right side.
struct Rule {
    at: usize,
    expr: Option<Expr>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    n_parts: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<Rule>,
}

impl<'a> Parser<'a> {
    fn all(&mut self) -> Parsed<Rules> {
        self.space(true);
        while self.peek().is_some() {
            self.rule()?;
        }
        let root = self.names.get(ROOT).copied().filter(|&root| self.rules[root].expr.is_some());
        let Some(root) = root else { return self.refuse(GbnfProblem::Expected("a rule `root`")) };
        let rules = self
            .rules
            .drain(..)
            .map(|Rule { at, expr }| expr.ok_or(Refused { at, problem: GbnfProblem::UnknownRule }));
        Ok(Rules { rules: rules.collect::<Parsed<_>>()?, root })
    }

    fn rule(&mut self) -> Parsed<()> {
        let rule = self.name()?;
        self.space(false);
        if !self.rest().starts_with("::=") {
            return self.refuse(GbnfProblem::Expected("`::=`"));
        }
        self.at += 3;
        self.space(true);
        let expr = self.alternatives(0)?;
        self.rules[rule].expr = Some(expr);
        match self.peek() {
            None | Some('\n') => {}
            Some('\r') if self.rest().starts_with("\r\n") => {}
            Some(_) => return self.refuse(GbnfProblem::Expected("the end of the line")),
        }
        self.space(true);
        Ok(())
    }

    /// The index of the rule with the name that stands here.
    fn name(&mut self) -> Parsed<usize> {
        let (at, rest) = (self.at, self.rest());
        let len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if len == 0 {
            return self.refuse(GbnfProblem::Expected("the name of a rule"));
        }
        self.at += len;
        let next = self.rules.len();
        let index = *self.names.entry(&rest[..len]).or_insert(next);
        if index == next {
            self.check("rules", next + 1, RULES_MAX)?;
            self.rules.push(Rule { at, expr: None });
        }
        Ok(index)
    }

    /// Alternatives inside so many brackets. Only inside do they go on behind the end of a line that has no `|`.
    fn alternatives(&mut self, depth: usize) -> Parsed<Expr> {
        self.check("levels of brackets", depth, DEPTH_MAX)?;
        let mut all = vec![self.sequence(depth)?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Alt(all) })
    }

    fn sequence(&mut self, depth: usize) -> Parsed<Expr> {
        let mut all = Vec::new();
        loop {
            self.part()?;
            let mut expr = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Expr::Letter(Rc::new(Letters::all()))
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.alternatives(depth + 1)?;
                    if self.peek() != Some(')') {
                        return self.refuse(GbnfProblem::Expected("`)`"));
                    }
                    self.at += 1;
                    inner
                }
                Some('<' | '!') => return self.refuse(GbnfProblem::Unsupported("a token")),
                Some(c) if is_name(c) => Expr::Rule(self.name()?),
                _ => break,
            };
            self.space(depth > 0);
            let mut n_operators = 0;
            while let Some((min, max)) = self.operator()? {
                n_operators += 1;
                self.part()?;
                self.check("operators behind one part", n_operators, OPERATORS_MAX)?;
                expr = Expr::Repeat(Box::new(expr), min, max);
                self.space(depth > 0);
            }
            all.push(expr);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Seq(all) })
    }

    /// The bounds of a repetition.
    fn operator(&mut self) -> Parsed<Option<(u32, Option<u32>)>> {
        let bounds = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.bounds().map(Some),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(bounds))
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn bounds(&mut self) -> Parsed<(u32, Option<u32>)> {
        self.at += 1;
        self.space(false);
        let min = self.count()?;
        self.space(false);
        let max = match self.peek() {
            Some(',') => {
                self.at += 1;
                self.space(false);
                if self.peek().is_some_and(|c| c.is_ascii_digit()) { Some(self.count()?) } else { None }
            }
            _ => Some(min),
        };
        self.space(false);
        if self.peek() != Some('}') {
            return self.refuse(GbnfProblem::Expected("`}`"));
        }
        if max.is_some_and(|max| max < min) {
            return self.refuse(GbnfProblem::Range);
        }
        self.at += 1;
        Ok((min, max))
    }

    fn count(&mut self) -> Parsed<u32> {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if len == 0 {
            return self.refuse(GbnfProblem::Expected("a number"));
        }
        let count = rest[..len].parse().unwrap_or(u32::MAX);
        self.check("repetitions", count as usize, REPEAT_MAX as usize)?;
        self.at += len;
        Ok(count)
    }

    fn literal(&mut self) -> Parsed<Expr> {
        self.at += 1;
        let mut letters = Vec::new();
        while self.peek() != Some('"') {
            self.part()?;
            let letter = self.letter()?;
            letters.push(Expr::Letter(Rc::new(Letters::of(vec![(letter, letter)]))));
        }
        self.at += 1;
        Ok(Expr::Seq(letters))
    }

    fn class(&mut self) -> Parsed<Expr> {
        let start = self.at;
        self.at += 1;
        let is_inverted = self.peek() == Some('^');
        self.at += usize::from(is_inverted);
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            self.part()?;
            let first = self.letter()?;
            let mut last = first;
            let is_range = self.peek() == Some('-') && !self.rest()[1..].starts_with(']');
            if is_range {
                self.at += 1;
                last = self.letter()?;
                if last < first {
                    return self.refuse(GbnfProblem::Range);
                }
            }
            ranges.push((first, last));
        }
        self.at += 1;
        let letters = Letters::of(ranges.clone());
        let letters = if is_inverted { letters.inverted() } else { letters };
        if ranges.is_empty() || letters.is_empty() {
            return Err(Refused { at: start, problem: GbnfProblem::EmptyClass });
        }
        Ok(Expr::Letter(Rc::new(letters)))
    }

    /// A letter of a literal or a class, maybe escaped.
    fn letter(&mut self) -> Parsed<u32> {
        let start = self.at;
        let Some(first) = self.peek() else {
            return self.refuse(GbnfProblem::Expected("the end of the literal or class"));
        };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok(first.into());
        }
        let escape = Refused { at: start, problem: GbnfProblem::Escape };
        let Some(kind) = self.peek() else { return Err(escape) };
        self.at += kind.len_utf8();
        let n_digits = match kind {
            't' => return Ok('\t'.into()),
            'r' => return Ok('\r'.into()),
            'n' => return Ok('\n'.into()),
            '\\' | '"' | '[' | ']' => return Ok(kind.into()),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(escape),
        };
        let digits =
            self.rest().get(..n_digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let letter = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some(letter) = letter.filter(|&letter| char::from_u32(letter).is_some()) else {
            return Err(escape);
        };
        self.at += n_digits;
        Ok(letter)
    }

    /// Skips white space and comments; line ends too if these may be skipped.
    fn space(&mut self, skips_lines: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\r' | '\n') if skips_lines => self.at += 1,
                Some('#') => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn part(&mut self) -> Parsed<()> {
        self.n_parts += 1;
        self.check("letters, classes, names and operators", self.n_parts, PARTS_MAX)
    }

    fn check(&self, what: &'static str, given: usize, max: usize) -> Parsed<()> {
        match given > max {
            true => self.refuse(GbnfProblem::Limit { what, given, max }),
            false => Ok(()),
        }
    }

    fn refuse<T>(&self, problem: GbnfProblem) -> Parsed<T> {
        Err(Refused { at: self.at, problem })
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}
