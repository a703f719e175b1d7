//! Grammars whose parts without recursion are lexemes.
//!
//! The lexer reads each lexeme as long as it can. That keeps the language if the next byte always tells what comes, as in a strong LL(1)
//! grammar (Rosenkrantz and Stearns 1970), and if no lexeme can go on with a byte that may follow it. Both are checked here; bytes stand for
//! letters, because letters that begin with the same byte are told apart too late.

use std::collections::HashMap;
use std::rc::Rc;

use super::lark::{self, Node};
use super::regular::{self, Regular};
use super::set::Bytes;
use super::{Expr, Rules};

/// The grammar of one expression; `None` if it is too large.
pub(super) fn whole(regular: &Rc<Regular>) -> Option<String> {
    if regular.is_only_empty() {
        return Some("start: \"\"\n".to_owned());
    }
    // A lexeme has a text.
    let some = regular.without_empty()?;
    let mark = if regular.is_nullable { "?" } else { "" };
    Some(format!("start: L0{mark}\nL0: /{}/\n", text(&some)))
}

fn text(regular: &Regular) -> String {
    let mut text = String::new();
    regular.write(&mut text);
    text
}

/// The grammar, if its language is kept.
pub(super) fn write(rules: &Rules, regular: &[Option<Rc<Regular>>]) -> Option<String> {
    let mut lowered = Lowered { lexemes: Vec::new(), places: HashMap::new() };
    let nodes: Vec<Option<Node>> = reachable(rules)
        .into_iter()
        .enumerate()
        // Rules without recursion are parts of the lexemes that name them.
        .map(|(rule, is_reached)| match is_reached && (rule == rules.root || regular[rule].is_none()) {
            true => lowered.node(&rules.rules[rule], regular).map(Some),
            false => Some(None),
        })
        .collect::<Option<_>>()?;
    let facts = Facts::of(&nodes, rules.root, &lowered.lexemes);
    for (node, follow) in nodes.iter().zip(&facts.follow) {
        if let Some(node) = node {
            facts.check(node, *follow)?;
        }
    }
    let lexemes = lowered.lexemes.into_iter().map(|lexeme| lexeme.text);
    Some(lark::write(&nodes, rules.root, lexemes))
}

/// The rules that a text may reach.
pub(super) fn reachable(rules: &Rules) -> Vec<bool> {
    let mut is_reached = vec![false; rules.rules.len()];
    let mut open = vec![rules.root];
    while let Some(rule) = open.pop() {
        if !std::mem::replace(&mut is_reached[rule], true) {
            open.extend(regular::named(&rules.rules[rule]));
        }
    }
    is_reached
}

struct Lexeme {
    text: String,
    starts: Bytes,
    goes_on: Bytes,
}

struct Lowered {
    lexemes: Vec<Lexeme>,
    places: HashMap<String, usize>,
}

/// A part: without recursion, or with it.
enum Part {
    Regular(Rc<Regular>),
    Other(Node),
}

impl Lowered {
    fn node(&mut self, expr: &Expr, rules: &[Option<Rc<Regular>>]) -> Option<Node> {
        let part = self.part(expr, rules)?;
        self.closed(part)
    }

    /// A part that is a lexeme of its own.
    fn closed(&mut self, part: Part) -> Option<Node> {
        let regular = match part {
            Part::Other(node) => return Some(node),
            Part::Regular(regular) if regular.is_only_empty() => return Some(Node::Seq(Vec::new())),
            Part::Regular(regular) => regular,
        };
        let some = regular.without_empty()?;
        let text = text(&some);
        let lexeme = match self.places.get(&text) {
            Some(&place) => place,
            None => {
                let (starts, goes_on) = some.edges()?;
                self.places.insert(text.clone(), self.lexemes.len());
                self.lexemes.push(Lexeme { text, starts, goes_on });
                self.lexemes.len() - 1
            }
        };
        let node = Node::Lexeme(lexeme);
        Some(if regular.is_nullable { Node::Repeat(Box::new(node), 0, Some(1)) } else { node })
    }

    fn part(&mut self, expr: &Expr, rules: &[Option<Rc<Regular>>]) -> Option<Part> {
        if let Some(regular) = regular::of(expr, rules) {
            return Some(Part::Regular(regular));
        }
        let node = match expr {
            Expr::Letter(_) => return None,
            Expr::Rule(rule) => Node::Rule(*rule),
            Expr::Repeat(part, min, max) => Node::Repeat(Box::new(self.node(part, rules)?), *min, *max),
            Expr::Seq(parts) => {
                // Neighbours without recursion are one lexeme.
                let (mut all, mut open): (Vec<Node>, Vec<Rc<Regular>>) = (Vec::new(), Vec::new());
                for part in parts {
                    match self.part(part, rules)? {
                        Part::Regular(regular) => open.push(regular),
                        Part::Other(node) => {
                            if !open.is_empty() {
                                let before = Part::Regular(regular::seq(std::mem::take(&mut open))?);
                                all.push(self.closed(before)?);
                            }
                            all.push(node);
                        }
                    }
                }
                if !open.is_empty() {
                    let last = Part::Regular(regular::seq(open)?);
                    all.push(self.closed(last)?);
                }
                Node::Seq(all)
            }
            Expr::Alt(parts) => {
                let (mut all, mut without): (Vec<Node>, Vec<Rc<Regular>>) = (Vec::new(), Vec::new());
                for part in parts {
                    match self.part(part, rules)? {
                        Part::Regular(regular) => without.push(regular),
                        Part::Other(node) => all.push(node),
                    }
                }
                if !without.is_empty() {
                    let one = Part::Regular(regular::alt(without)?);
                    all.push(self.closed(one)?);
                }
                Node::Alt(all)
            }
        };
        Some(Part::Other(node))
    }
}

/// What is known of the rules: whether a text may be empty, and the bytes that may begin and follow it.
struct Facts<'a> {
    lexemes: &'a [Lexeme],
    is_nullable: Vec<bool>,
    first: Vec<Bytes>,
    follow: Vec<Bytes>,
}

impl<'a> Facts<'a> {
    fn of(nodes: &[Option<Node>], root: usize, lexemes: &'a [Lexeme]) -> Self {
        let n = nodes.len();
        let mut facts = Self {
            lexemes,
            is_nullable: vec![false; n],
            first: vec![Bytes::default(); n],
            follow: vec![Bytes::default(); n],
        };
        debug_assert!(nodes[root].is_some(), "the root is reached");
        // Sets only grow.
        loop {
            let before = (facts.is_nullable.clone(), facts.first.clone(), facts.follow.clone());
            for (rule, node) in nodes.iter().enumerate() {
                let Some(node) = node else { continue };
                (facts.is_nullable[rule], facts.first[rule]) = (facts.nullable(node), facts.first(node));
                let follow = facts.follow[rule];
                facts.spread(node, follow);
            }
            if before == (facts.is_nullable.clone(), facts.first.clone(), facts.follow.clone()) {
                return facts;
            }
        }
    }

    fn nullable(&self, node: &Node) -> bool {
        match node {
            Node::Lexeme(_) => false,
            Node::Rule(rule) => self.is_nullable[*rule],
            Node::Seq(parts) => parts.iter().all(|part| self.nullable(part)),
            Node::Alt(parts) => parts.iter().any(|part| self.nullable(part)),
            Node::Repeat(part, min, _) => *min == 0 || self.nullable(part),
        }
    }

    fn first(&self, node: &Node) -> Bytes {
        match node {
            Node::Lexeme(lexeme) => self.lexemes[*lexeme].starts,
            Node::Rule(rule) => self.first[*rule],
            Node::Seq(parts) => {
                parts.iter().rev().fold(Bytes::default(), |behind, part| self.begun(part, behind))
            }
            Node::Alt(parts) => parts.iter().fold(Bytes::default(), |all, part| all.with(&self.first(part))),
            Node::Repeat(_, _, Some(0)) => Bytes::default(),
            Node::Repeat(part, ..) => self.first(part),
        }
    }

    /// The bytes that may begin a part with these behind it.
    fn begun(&self, part: &Node, behind: Bytes) -> Bytes {
        let first = self.first(part);
        if self.nullable(part) { first.with(&behind) } else { first }
    }

    /// The bytes behind the repeated part, but for those behind the whole.
    fn again(&self, part: &Node, max: Option<u32>) -> Bytes {
        if max.is_none_or(|max| max > 1) { self.first(part) } else { Bytes::default() }
    }

    /// Adds what may follow the rules in a part.
    fn spread(&mut self, node: &Node, follow: Bytes) {
        match node {
            Node::Lexeme(_) => {}
            Node::Rule(rule) => self.follow[*rule] = self.follow[*rule].with(&follow),
            Node::Seq(parts) => {
                let mut behind = follow;
                for part in parts.iter().rev() {
                    self.spread(part, behind);
                    behind = self.begun(part, behind);
                }
            }
            Node::Alt(parts) => parts.iter().for_each(|part| self.spread(part, follow)),
            Node::Repeat(part, _, max) => {
                let behind = follow.with(&self.again(part, *max));
                self.spread(part, behind);
            }
        }
    }

    /// `None`: the next byte does not tell what comes, or a lexeme may swallow what follows it.
    fn check(&self, node: &Node, follow: Bytes) -> Option<()> {
        let holds = |condition: bool| condition.then_some(());
        match node {
            Node::Lexeme(lexeme) => holds(!self.lexemes[*lexeme].goes_on.meets(&follow)),
            Node::Rule(_) => Some(()),
            Node::Seq(parts) => {
                let mut behind = follow;
                parts.iter().rev().try_for_each(|part| {
                    self.check(part, behind)?;
                    behind = self.begun(part, behind);
                    Some(())
                })
            }
            Node::Alt(parts) => {
                let mut taken = Bytes::default();
                let mut has_nullable = false;
                for part in parts {
                    let is_nullable = self.nullable(part);
                    let mut chosen_by = self.first(part);
                    if is_nullable {
                        chosen_by = chosen_by.with(&follow);
                        holds(!std::mem::replace(&mut has_nullable, true))?;
                    }
                    holds(!chosen_by.meets(&taken))?;
                    taken = taken.with(&chosen_by);
                    self.check(part, follow)?;
                }
                Some(())
            }
            Node::Repeat(part, min, max) => {
                holds(!self.nullable(part))?;
                holds(*max == Some(*min) || !self.first(part).meets(&follow))?;
                self.check(part, follow.with(&self.again(part, *max)))
            }
        }
    }
}
