//! Parts of a grammar without recursion, as regular expressions.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::rc::Rc;

use super::set::{Bytes, Letters};
use super::{Expr, Rules};

/// Maximum bytes of an expression, as it is written.
const BYTES_MAX: usize = 24 << 10;
/// Maximum levels of an expression.
const DEPTH_MAX: usize = 400;
/// Maximum letters of an expression whose ends are looked at, with its repetitions written out.
const PLACES_MAX: usize = 2_000;
/// Maximum comparisons of places.
const WORK_MAX: usize = 4_000_000;

/// A regular expression.
#[derive(Debug)]
pub(super) struct Regular {
    kind: Kind,
    /// Bytes as it is written, at most.
    n_bytes: usize,
    depth: usize,
    pub(super) is_nullable: bool,
}

#[derive(Debug)]
enum Kind {
    Letter(Rc<Letters>),
    Seq(Vec<Rc<Regular>>),
    Alt(Vec<Rc<Regular>>),
    Repeat(Rc<Regular>, u32, Option<u32>),
}

/// The expressions of the rules that have one: those that reach no recursion, and are not too large.
pub(super) fn of_rules(rules: &Rules) -> Vec<Option<Rc<Regular>>> {
    let n = rules.rules.len();
    let mut all: Vec<Option<Rc<Regular>>> = vec![None; n];
    let (mut is_open, mut is_done) = (vec![false; n], vec![false; n]);
    for start in 0..n {
        // Each entry: a rule, and the rules that it names and that were not looked at yet.
        let mut path = vec![(start, named(&rules.rules[start]))];
        while let Some((rule, names)) = path.last_mut() {
            let rule = *rule;
            if is_done[rule] {
                path.pop();
                continue;
            }
            is_open[rule] = true;
            match names.pop() {
                Some(next) if !is_open[next] && !is_done[next] => {
                    path.push((next, named(&rules.rules[next])));
                }
                Some(_) => {}
                None => {
                    // A rule that is still open has none yet, so recursion leaves none.
                    all[rule] = of(&rules.rules[rule], &all);
                    (is_open[rule], is_done[rule]) = (false, true);
                    path.pop();
                }
            }
        }
    }
    all
}

/// The rules that an expression names.
pub(super) fn named(expr: &Expr) -> Vec<usize> {
    let (mut names, mut rest) = (Vec::new(), vec![expr]);
    while let Some(expr) = rest.pop() {
        match expr {
            Expr::Letter(_) => {}
            Expr::Seq(parts) | Expr::Alt(parts) => rest.extend(parts),
            Expr::Repeat(part, ..) => rest.push(part),
            Expr::Rule(rule) => names.push(*rule),
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The expression of a part; `None` if it names a rule without one, or is too large.
pub(super) fn of(expr: &Expr, rules: &[Option<Rc<Regular>>]) -> Option<Rc<Regular>> {
    match expr {
        Expr::Letter(letters) => letter(Rc::clone(letters)),
        Expr::Seq(parts) => seq(parts.iter().map(|part| of(part, rules)).collect::<Option<_>>()?),
        Expr::Alt(parts) => alt(parts.iter().map(|part| of(part, rules)).collect::<Option<_>>()?),
        Expr::Repeat(part, min, max) => repeat(of(part, rules)?, *min, *max),
        Expr::Rule(rule) => rules[*rule].clone(),
    }
}

fn letter(letters: Rc<Letters>) -> Option<Rc<Regular>> {
    // A letter has at most 10 bytes.
    let n_bytes = 2 + 21 * letters.ranges().len();
    checked(Regular { kind: Kind::Letter(letters), n_bytes, depth: 1, is_nullable: false })
}

pub(super) fn seq(parts: Vec<Rc<Regular>>) -> Option<Rc<Regular>> {
    let is_nullable = parts.iter().all(|part| part.is_nullable);
    of_parts(parts, is_nullable, Kind::Seq)
}

pub(super) fn alt(parts: Vec<Rc<Regular>>) -> Option<Rc<Regular>> {
    let is_nullable = parts.iter().any(|part| part.is_nullable);
    of_parts(parts, is_nullable, Kind::Alt)
}

fn of_parts(
    mut parts: Vec<Rc<Regular>>,
    is_nullable: bool,
    kind: impl FnOnce(Vec<Rc<Regular>>) -> Kind,
) -> Option<Rc<Regular>> {
    if parts.len() == 1 {
        return parts.pop();
    }
    let n_bytes = parts.iter().map(|part| part.n_bytes + 1).sum::<usize>() + 4;
    let depth = 1 + parts.iter().map(|part| part.depth).max().unwrap_or(0);
    checked(Regular { kind: kind(parts), n_bytes, depth, is_nullable })
}

pub(super) fn repeat(part: Rc<Regular>, min: u32, max: Option<u32>) -> Option<Rc<Regular>> {
    if max == Some(0) || part.is_only_empty() {
        return seq(Vec::new());
    }
    let (n_bytes, depth) = (part.n_bytes + 16, part.depth + 1);
    let is_nullable = min == 0 || part.is_nullable;
    checked(Regular { kind: Kind::Repeat(part, min, max), n_bytes, depth, is_nullable })
}

fn checked(regular: Regular) -> Option<Rc<Regular>> {
    (regular.n_bytes <= BYTES_MAX && regular.depth <= DEPTH_MAX).then(|| Rc::new(regular))
}

impl Regular {
    /// The same texts without the empty one. `None`: there is no other, or the expression is too large.
    pub(super) fn without_empty(self: &Rc<Self>) -> Option<Rc<Self>> {
        if !self.is_nullable {
            return Some(Rc::clone(self));
        }
        match &self.kind {
            Kind::Letter(_) => None,
            Kind::Alt(parts) => {
                let parts: Vec<_> = parts.iter().filter(|part| !part.is_only_empty()).collect();
                let parts = parts.into_iter().map(Self::without_empty).collect::<Option<Vec<_>>>()?;
                if parts.is_empty() { None } else { alt(parts) }
            }
            // The first part that is not empty, with those behind it.
            Kind::Seq(parts) => {
                let begun = parts.iter().enumerate().filter(|(_, part)| !part.is_only_empty());
                let begun = begun.map(|(index, part)| {
                    let first = part.without_empty()?;
                    seq([&[first][..], &parts[index + 1..]].concat())
                });
                let begun = begun.collect::<Option<Vec<_>>>()?;
                if begun.is_empty() { None } else { alt(begun) }
            }
            Kind::Repeat(part, _, max) => {
                // Repetitions of the empty text count as well.
                repeat(part.without_empty()?, 1, *max)
            }
        }
    }

    /// Whether the empty text is the only one.
    pub(super) fn is_only_empty(&self) -> bool {
        match &self.kind {
            Kind::Letter(_) => false,
            Kind::Seq(parts) | Kind::Alt(parts) => parts.iter().all(|part| part.is_only_empty()),
            // A repetition of nothing is no repetition.
            Kind::Repeat(..) => false,
        }
    }

    /// Appends the expression in the syntax of the crate `regex`.
    pub(super) fn write(&self, out: &mut String) {
        match &self.kind {
            Kind::Letter(letters) => letters.write(out),
            Kind::Seq(parts) => parts.iter().for_each(|part| match part.kind {
                Kind::Alt(_) => part.write_group(out),
                _ => part.write(out),
            }),
            Kind::Alt(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { "|" });
                    part.write(out);
                }
            }
            Kind::Repeat(part, min, max) => {
                match part.kind {
                    Kind::Letter(_) => part.write(out),
                    _ => part.write_group(out),
                }
                match (min, max) {
                    (0, None) => out.push('*'),
                    (1, None) => out.push('+'),
                    (0, Some(1)) => out.push('?'),
                    (min, None) => drop(write!(out, "{{{min},}}")),
                    (min, Some(max)) => drop(write!(out, "{{{min},{max}}}")),
                }
            }
        }
    }

    fn write_group(&self, out: &mut String) {
        out.push_str("(?:");
        self.write(out);
        out.push(')');
    }

    /// The bytes with which texts begin, and those that may go on behind a whole text. `None`: the expression has too many places.
    pub(super) fn edges(&self) -> Option<(Bytes, Bytes)> {
        let mut places = Places::default();
        let whole = places.add(self)?;
        let bytes = |places: &Places, of: &[usize]| {
            of.iter().fold(Bytes::default(), |bytes, &place| bytes.with(&places.letters[place].first_bytes()))
        };
        let starts = bytes(&places, &whole.first);
        let is_last: HashSet<usize> = whole.last.iter().copied().collect();
        // Pairs of places that the same text may reach.
        let mut pairs = Pairs::default();
        pairs.reach(&places, &whole.first, &whole.first)?;
        let mut goes_on = Bytes::default();
        while let Some((a, b)) = pairs.open.pop() {
            if is_last.contains(&a) {
                goes_on = goes_on.with(&bytes(&places, &places.follow[b]));
            }
            pairs.reach(&places, &places.follow[a], &places.follow[b])?;
        }
        Some((starts, goes_on))
    }
}

#[derive(Default)]
struct Pairs {
    seen: HashSet<(usize, usize)>,
    open: Vec<(usize, usize)>,
    n_compared: usize,
}

impl Pairs {
    /// Adds the pairs that have a letter in common. `None`: there is too much to compare.
    fn reach(&mut self, places: &Places, left: &[usize], right: &[usize]) -> Option<()> {
        self.n_compared += left.len() * right.len();
        if self.n_compared > WORK_MAX {
            return None;
        }
        for &a in left {
            for &b in right {
                if places.letters[a].meets(&places.letters[b]) && self.seen.insert((a, b)) {
                    self.open.push((a, b));
                }
            }
        }
        Some(())
    }
}

/// The places of letters in an expression, and which may follow which (Glushkov 1961).
#[derive(Default)]
struct Places {
    letters: Vec<Rc<Letters>>,
    follow: Vec<Vec<usize>>,
}

/// The places at the edges of a part.
#[derive(Clone)]
struct Edges {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Places {
    fn add(&mut self, regular: &Regular) -> Option<Edges> {
        match &regular.kind {
            Kind::Letter(letters) => {
                let place = self.letters.len();
                if place >= PLACES_MAX {
                    return None;
                }
                self.letters.push(Rc::clone(letters));
                self.follow.push(Vec::new());
                Some(Edges { first: vec![place], last: vec![place], is_nullable: false })
            }
            Kind::Seq(parts) => {
                let mut whole = Edges { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for part in parts {
                    let part = self.add(part)?;
                    whole = self.joined(whole, &part);
                }
                Some(whole)
            }
            Kind::Alt(parts) => {
                let mut whole = Edges { first: Vec::new(), last: Vec::new(), is_nullable: false };
                for part in parts {
                    let part = self.add(part)?;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                    whole.is_nullable |= part.is_nullable;
                }
                Some(whole)
            }
            Kind::Repeat(part, min, max) => {
                let n_copies = max.unwrap_or(*min).max(1);
                let mut whole = Edges { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for copy in 1..=n_copies {
                    let mut edges = self.add(part)?;
                    if copy == n_copies && max.is_none() {
                        self.connect(&edges.last.clone(), &edges.first);
                    }
                    edges.is_nullable |= copy > *min;
                    whole = self.joined(whole, &edges);
                }
                Some(whole)
            }
        }
    }

    /// A part behind others.
    fn joined(&mut self, before: Edges, part: &Edges) -> Edges {
        self.connect(&before.last, &part.first);
        let mut whole = before;
        if whole.is_nullable {
            whole.first.extend_from_slice(&part.first);
        }
        match part.is_nullable {
            true => whole.last.extend_from_slice(&part.last),
            false => whole.last.clone_from(&part.last),
        }
        whole.is_nullable &= part.is_nullable;
        whole
    }

    fn connect(&mut self, from: &[usize], to: &[usize]) {
        for &place in from {
            self.follow[place].extend_from_slice(to);
        }
    }
}
