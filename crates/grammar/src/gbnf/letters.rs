//! Grammars whose lexemes are letters. Classes that overlap are split, so that each letter belongs to one lexeme.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use super::lexemes::reachable;
use super::set::Letters;
use super::{Expr, Rules};

pub(super) fn write(rules: &Rules) -> String {
    let is_reached = reachable(rules);
    let reached =
        || rules.rules.iter().zip(&is_reached).enumerate().filter(|(_, (_, is_reached))| **is_reached);
    // The letters at which a class begins, or the one behind its end.
    let mut edges = BTreeSet::new();
    for (_, (expr, _)) in reached() {
        add_edges(expr, &mut edges);
    }
    let mut writer = Writer {
        out: format!("start: r{}\n", rules.root),
        n_rules: 0,
        atoms: atoms(rules, &is_reached, &edges),
        classes: HashMap::new(),
    };
    for (rule, (expr, _)) in reached() {
        let body = writer.body(expr);
        let _ = writeln!(writer.out, "r{rule}: {body}");
    }
    for index in 0..writer.atoms.len() {
        let mut text = String::new();
        writer.atoms[index].write(&mut text);
        let _ = writeln!(writer.out, "L{index}: /{text}/");
    }
    writer.out
}

fn add_edges(expr: &Expr, edges: &mut BTreeSet<u32>) {
    match expr {
        Expr::Letter(letters) => {
            for &(start, end) in letters.ranges() {
                edges.extend([start, end + 1]);
            }
        }
        Expr::Seq(parts) | Expr::Alt(parts) => parts.iter().for_each(|part| add_edges(part, edges)),
        Expr::Repeat(part, ..) => add_edges(part, edges),
        Expr::Rule(_) => {}
    }
}

/// The letters between two edges that belong to some class.
fn atoms(rules: &Rules, is_reached: &[bool], edges: &BTreeSet<u32>) -> Vec<Letters> {
    let mut used = BTreeSet::new();
    for (expr, _) in rules.rules.iter().zip(is_reached).filter(|(_, is_reached)| **is_reached) {
        add_used(expr, edges, &mut used);
    }
    let end_of = |start: u32| edges.range(start + 1..).next().copied().expect("each range has an end");
    used.into_iter().map(|start| Letters::of(vec![(start, end_of(start) - 1)])).collect()
}

fn add_used(expr: &Expr, edges: &BTreeSet<u32>, used: &mut BTreeSet<u32>) {
    match expr {
        Expr::Letter(letters) => {
            for &(start, end) in letters.ranges() {
                used.extend(edges.range(start..=end));
            }
        }
        Expr::Seq(parts) | Expr::Alt(parts) => parts.iter().for_each(|part| add_used(part, edges, used)),
        Expr::Repeat(part, ..) => add_used(part, edges, used),
        Expr::Rule(_) => {}
    }
}

struct Writer {
    out: String,
    n_rules: usize,
    /// In ascending order.
    atoms: Vec<Letters>,
    /// The names of classes.
    classes: HashMap<Letters, String>,
}

impl Writer {
    /// The right side of a rule.
    fn body(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Alt(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.sequence(part)).collect();
                parts.join(" | ")
            }
            expr => self.sequence(expr),
        }
    }

    fn sequence(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Seq(parts) if parts.is_empty() => "\"\"".to_owned(),
            Expr::Seq(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.item(part)).collect();
                parts.join(" ")
            }
            expr => self.item(expr),
        }
    }

    /// One name, with an operator behind it.
    fn item(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Letter(letters) => self.letter(letters),
            Expr::Rule(rule) => format!("r{rule}"),
            // Lark has no repetition of this kind.
            Expr::Repeat(_, _, Some(0)) => "\"\"".to_owned(),
            Expr::Repeat(part, min, max) => {
                let part = match **part {
                    Expr::Repeat(..) => self.own_rule(part),
                    _ => self.item(part),
                };
                match (min, max) {
                    (0, None) => format!("{part}*"),
                    (1, None) => format!("{part}+"),
                    (0, Some(1)) => format!("{part}?"),
                    (min, None) => format!("{part}{{{min},}}"),
                    (min, Some(max)) => format!("{part}{{{min},{max}}}"),
                }
            }
            Expr::Seq(_) | Expr::Alt(_) => self.own_rule(expr),
        }
    }

    fn letter(&mut self, letters: &Letters) -> String {
        if let Some(name) = self.classes.get(letters) {
            return name.clone();
        }
        let of_class = |atom: &Letters| letters.has(atom.ranges()[0].0);
        let names: Vec<String> = (0..self.atoms.len())
            .filter(|&index| of_class(&self.atoms[index]))
            .map(|index| format!("L{index}"))
            .collect();
        let name = match &names[..] {
            [only] => only.clone(),
            several => self.named_rule(several.join(" | ")),
        };
        self.classes.insert(letters.clone(), name.clone());
        name
    }

    fn own_rule(&mut self, expr: &Expr) -> String {
        let body = self.body(expr);
        self.named_rule(body)
    }

    fn named_rule(&mut self, body: String) -> String {
        let name = format!("n{}", self.n_rules);
        self.n_rules += 1;
        let _ = writeln!(self.out, "{name}: {body}");
        name
    }
}
