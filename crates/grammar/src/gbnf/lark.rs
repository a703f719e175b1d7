//! Writes rules of lexemes in Lark.

use std::fmt::Write as _;

/// A part of a rule.
pub(super) enum Node {
    Lexeme(usize),
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// The grammar of rules; those that no text reaches are `None`. Alternatives and repetitions have rules of their own, so brackets are never
/// nested. The lexemes are regular expressions.
pub(super) fn write(nodes: &[Option<Node>], root: usize, lexemes: impl Iterator<Item = String>) -> String {
    let mut writer = Writer { out: format!("start: r{root}\n"), n_rules: 0 };
    for (rule, node) in nodes.iter().enumerate() {
        if let Some(node) = node {
            let body = writer.body(node);
            let _ = writeln!(writer.out, "r{rule}: {body}");
        }
    }
    for (index, text) in lexemes.enumerate() {
        let _ = writeln!(writer.out, "L{index}: /{text}/");
    }
    writer.out
}

struct Writer {
    out: String,
    n_rules: usize,
}

impl Writer {
    /// The right side of a rule.
    fn body(&mut self, node: &Node) -> String {
        match node {
            Node::Alt(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.sequence(part)).collect();
                parts.join(" | ")
            }
            node => self.sequence(node),
        }
    }

    fn sequence(&mut self, node: &Node) -> String {
        match node {
            Node::Seq(parts) if parts.is_empty() => "\"\"".to_owned(),
            Node::Seq(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.item(part)).collect();
                parts.join(" ")
            }
            node => self.item(node),
        }
    }

    /// One name, with an operator behind it.
    fn item(&mut self, node: &Node) -> String {
        match node {
            Node::Lexeme(lexeme) => format!("L{lexeme}"),
            Node::Rule(rule) => format!("r{rule}"),
            // Lark has no repetition of this kind.
            Node::Repeat(_, _, Some(0)) => "\"\"".to_owned(),
            Node::Repeat(part, min, max) => {
                let part = match **part {
                    Node::Repeat(..) => self.own_rule(part),
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
            Node::Seq(_) | Node::Alt(_) => self.own_rule(node),
        }
    }

    fn own_rule(&mut self, node: &Node) -> String {
        let body = self.body(node);
        let name = format!("n{}", self.n_rules);
        self.n_rules += 1;
        let _ = writeln!(self.out, "{name}: {body}");
        name
    }
}
