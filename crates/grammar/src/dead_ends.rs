//! Dead ends of a grammar: rules that a text can begin and never end.
//!
//! A symbol is productive if it derives a text: a terminal whose expression matches something, or one with a rule of productive symbols. A
//! rule with an unproductive symbol is harmless if no byte can be written in it, because the lexer never begins an expression that matches
//! nothing. All others are dead ends.

use std::collections::{HashMap, HashSet};

use llguidance::earley::{CGrammar, CSymIdx};

/// The name of a symbol that leads into a dead end; `None` if the grammar has none. `is_empty` says for each lexeme whether it matches
/// nothing. The work is in proportion to the grammar.
pub(crate) fn find(grammar: &CGrammar, is_empty: &dyn Fn(usize) -> bool) -> Option<String> {
    let symbols = symbols(grammar);
    let is_terminal =
        |symbol: CSymIdx| grammar.sym_data(symbol).lexeme.is_some_and(|lexeme| !is_empty(lexeme.as_usize()));
    let is_nullable = |symbol: CSymIdx| {
        let data = grammar.sym_data(symbol);
        data.is_nullable || !data.cond_nullable.is_empty()
    };
    // Each rule waits until all of its symbols are productive.
    let productive = closure(grammar, &symbols, |symbol| is_terminal(symbol) || is_nullable(symbol));
    let start = grammar.start();
    if !productive.contains(&start) {
        return Some(grammar.sym_name(start).to_owned());
    }
    // The symbols of a rule up to the first that never ends.
    let entered = |rule: &[CSymIdx]| {
        let n_productive = rule.iter().take_while(|part| productive.contains(part)).count();
        rule.len().min(n_productive + 1)
    };
    // The symbols of which a byte can be written.
    let mut begun: HashSet<CSymIdx> = symbols.iter().copied().filter(|&symbol| is_terminal(symbol)).collect();
    let mut users: HashMap<CSymIdx, Vec<CSymIdx>> = HashMap::new();
    for &symbol in &symbols {
        for part in rules(grammar, symbol).flat_map(|rule| &rule[..entered(rule)]) {
            users.entry(*part).or_default().push(symbol);
        }
    }
    let mut waiting: Vec<CSymIdx> = begun.iter().copied().collect();
    while let Some(symbol) = waiting.pop() {
        let users = users.get(&symbol).into_iter().flatten().copied();
        waiting.extend(users.filter(|user| begun.insert(*user)));
    }
    let mut reached = HashSet::from([start]);
    let mut waiting = vec![start];
    while let Some(symbol) = waiting.pop() {
        for rule in rules(grammar, symbol) {
            let entered = &rule[..entered(rule)];
            match entered.last().filter(|part| !productive.contains(part)) {
                Some(part) if entered.iter().any(|part| begun.contains(part)) => {
                    return Some(grammar.sym_name(*part).to_owned());
                }
                Some(_) => {}
                None => waiting.extend(entered.iter().copied().filter(|part| reached.insert(*part))),
            }
        }
    }
    None
}

/// The symbols that rules reach.
fn symbols(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut seen = HashSet::from([grammar.start()]);
    let mut all = vec![grammar.start()];
    let mut at = 0;
    while let Some(&symbol) = all.get(at) {
        for rule in rules(grammar, symbol) {
            all.extend(rule.iter().copied().filter(|part| seen.insert(*part)));
        }
        at += 1;
    }
    all
}

/// The right sides of a symbol's rules. Those without symbols are not among them.
fn rules(grammar: &CGrammar, symbol: CSymIdx) -> impl Iterator<Item = &[CSymIdx]> {
    grammar.rules_of(symbol).iter().map(|&rule| grammar.rule_rhs(rule).0)
}

/// The symbols that hold at first, and those with a rule whose symbols all hold.
fn closure(grammar: &CGrammar, symbols: &[CSymIdx], holds: impl Fn(CSymIdx) -> bool) -> HashSet<CSymIdx> {
    // For each rule its symbol, and the symbols that it waits for.
    let mut waits: Vec<(CSymIdx, usize)> = Vec::new();
    let mut users: HashMap<CSymIdx, Vec<usize>> = HashMap::new();
    for &symbol in symbols {
        for rule in rules(grammar, symbol) {
            rule.iter().for_each(|part| users.entry(*part).or_default().push(waits.len()));
            waits.push((symbol, rule.len()));
        }
    }
    let mut set: HashSet<CSymIdx> = symbols.iter().copied().filter(|&symbol| holds(symbol)).collect();
    let mut new: Vec<CSymIdx> = set.iter().copied().collect();
    while let Some(symbol) = new.pop() {
        for &rule in users.get(&symbol).into_iter().flatten() {
            let (symbol, n_left) = &mut waits[rule];
            *n_left -= 1;
            if *n_left == 0 && set.insert(*symbol) {
                new.push(*symbol);
            }
        }
    }
    set
}
