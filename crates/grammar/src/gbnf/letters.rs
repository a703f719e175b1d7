//! Grammars whose lexemes are letters. Classes that overlap are split, so that each letter belongs to one lexeme.

use std::collections::{BTreeSet, HashMap};

use super::lark::{self, Node};
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
    let atoms = atoms(rules, &is_reached, &edges);
    let mut lowered =
        Lowered { atoms: &atoms, classes: Vec::new(), places: HashMap::new(), n_rules: rules.rules.len() };
    let mut nodes: Vec<Option<Node>> = rules
        .rules
        .iter()
        .zip(&is_reached)
        .map(|(expr, is_reached)| is_reached.then(|| lowered.node(expr)))
        .collect();
    nodes.extend(lowered.classes.into_iter().map(Some));
    let text = |atom: &Letters| {
        let mut text = String::new();
        atom.write(&mut text);
        text
    };
    lark::write(&nodes, rules.root, atoms.iter().map(text))
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

struct Lowered<'a> {
    /// In ascending order.
    atoms: &'a [Letters],
    /// The rules of classes with several atoms, behind those of the grammar.
    classes: Vec<Node>,
    /// The atom or the rule of each class.
    places: HashMap<&'a Letters, Class>,
    n_rules: usize,
}

#[derive(Clone, Copy)]
enum Class {
    Atom(usize),
    Rule(usize),
}

impl<'a> Lowered<'a> {
    fn node(&mut self, expr: &'a Expr) -> Node {
        match expr {
            Expr::Letter(letters) => match self.class(letters) {
                Class::Atom(atom) => Node::Lexeme(atom),
                Class::Rule(rule) => Node::Rule(rule),
            },
            Expr::Rule(rule) => Node::Rule(*rule),
            Expr::Repeat(part, min, max) => Node::Repeat(Box::new(self.node(part)), *min, *max),
            Expr::Seq(parts) => Node::Seq(parts.iter().map(|part| self.node(part)).collect()),
            Expr::Alt(parts) => Node::Alt(parts.iter().map(|part| self.node(part)).collect()),
        }
    }

    fn class(&mut self, letters: &'a Letters) -> Class {
        if let Some(&class) = self.places.get(letters) {
            return class;
        }
        let is_inside = |atom: &usize| letters.has(self.atoms[*atom].ranges()[0].0);
        let atoms: Vec<usize> = (0..self.atoms.len()).filter(is_inside).collect();
        let class = match atoms[..] {
            [only] => Class::Atom(only),
            _ => {
                self.classes.push(Node::Alt(atoms.into_iter().map(Node::Lexeme).collect()));
                Class::Rule(self.n_rules + self.classes.len() - 1)
            }
        };
        self.places.insert(letters, class);
        class
    }
}
