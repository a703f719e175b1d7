//! Builds a tree from tokens.

use std::sync::Arc;

use super::error::{Error, ErrorKind, Result, shortened};
use super::filters;
use super::lexer::{Token, tokens};

/// Maximum nesting of expressions. A chain of `n` operators counts `n` (published: about 20).
const EXPR_DEPTH_MAX: u32 = 100;
/// Maximum nesting of brackets and prefixes, because the parser is recursive.
const BRACKET_DEPTH_MAX: u32 = 48;
/// Maximum nesting of blocks (published: about 12).
const BLOCK_DEPTH_MAX: u32 = 32;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    pub(super) body: Vec<Stmt>,
    pub(super) macros: Vec<Macro>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<Param>,
    pub(super) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) struct Param {
    pub(super) name: String,
    pub(super) default: Option<Node>,
}

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(String),
    Print(Node),
    /// Conditions with their blocks, and the block of `else`.
    If(Vec<(Node, Vec<Stmt>)>, Vec<Stmt>),
    For(Box<For>),
    Set(Target, Node),
    /// `{% set x %}…{% endset %}` with its filters.
    SetBlock(Target, Vec<Filter>, Vec<Stmt>),
    /// `{% filter upper %}…{% endfilter %}`.
    FilterBlock(Vec<Filter>, Vec<Stmt>),
    /// The index of a macro of the template.
    Macro(usize),
    /// The call, the parameters of `caller`, and the body.
    Call(Node, Vec<Param>, Vec<Stmt>),
    /// Variables of a new scope, and its body: `with`, `generation`.
    Scope(Vec<(String, Node)>, Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) targets: Vec<String>,
    pub(super) over: Node,
    pub(super) condition: Option<Node>,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) enum Target {
    Names(Vec<String>),
    /// `ns.name`.
    Attr(String, String),
}

#[derive(Debug)]
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) args: Args,
    pub(super) line: u32,
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Node>,
    /// `*list`, after the other arguments.
    pub(super) spread: Option<Box<Node>>,
    pub(super) named: Vec<(String, Node)>,
}

/// An expression.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    depth: u32,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Const {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<String>),
}

#[derive(Debug)]
pub(super) enum Kind {
    Const(Const),
    Name(String),
    List(Vec<Node>),
    Dict(Vec<(Node, Node)>),
    Attr(Box<Node>, String),
    Item(Box<Node>, Box<Node>),
    /// Begin, end, step.
    Slice(Box<Node>, [Option<Box<Node>>; 3]),
    Call(Box<Node>, Args),
    Filter(Box<Node>, Box<Filter>),
    /// Negation, the test's name, its arguments.
    Test(Box<Node>, bool, String, Vec<Node>),
    Not(Box<Node>),
    Negate(Box<Node>),
    Plus(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    /// `a < b <= c`: the first operand, then each operator with its operand.
    Compare(Box<Node>, Vec<(&'static str, Node)>),
    /// Condition, value, alternative.
    Conditional(Box<Node>, Box<Node>, Option<Box<Node>>),
}

/// Parses a source.
pub fn parse(source: &str) -> Result<Template> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        nested: 0,
        blocks: 0,
        loops: 0,
        macros: Vec::new(),
        unknown: None,
    };
    let body = parser.body(&[])?;
    if let Some(error) = parser.unknown {
        return Err(error);
    }
    Ok(Template { body, macros: parser.macros })
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    /// Nested calls of [`Parser::expr`] and [`Parser::unary`].
    nested: u32,
    blocks: u32,
    /// Loops around the current position, in the current macro.
    loops: u32,
    macros: Vec<Macro>,
    /// The first filter or test that does not exist and that every rendering reaches.
    unknown: Option<Box<Error>>,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Box::new(Error { line: self.line(), kind: ErrorKind::Syntax(reason.into()) }))
    }

    /// A filter or a test that does not exist. As in Jinja, it is an error of the template, but inside `if` only once a
    /// rendering reaches it: templates ask there for filters of some engines.
    fn unknown(&mut self, reason: String) {
        if self.unknown.is_none() {
            self.unknown = self.error::<()>(reason).err();
        }
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.peek() {
            Token::End => "the end of the template".to_owned(),
            Token::Text(_) => "text".to_owned(),
            Token::BlockBegin => "`{%`".to_owned(),
            Token::BlockEnd => "`%}`".to_owned(),
            Token::PrintBegin => "`{{`".to_owned(),
            Token::PrintEnd => "`}}`".to_owned(),
            Token::Name(name) => format!("`{}`", shortened(name)),
            Token::Str(text) => format!("the string '{}'", shortened(text)),
            Token::Int(n) => format!("`{n}`"),
            Token::Float(n) => format!("`{n}`"),
            Token::Op(op) => format!("`{op}`"),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let found = matches!(self.peek(), Token::Op(found) if *found == op);
        if found {
            self.at += 1;
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Token::Name(found) if found == name);
        if found {
            self.at += 1;
        }
        found
    }

    fn is_name(&self, names: &[&str]) -> bool {
        matches!(self.peek(), Token::Name(name) if names.contains(&name.as_str()))
    }

    fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("`{op}`")) }
    }

    fn expect(&mut self, token: &Token, what: &str) -> Result<()> {
        if self.peek() != token {
            return self.unexpected(what);
        }
        self.at += 1;
        Ok(())
    }

    fn block_end(&mut self) -> Result<()> {
        self.expect(&Token::BlockEnd, "`%}`")
    }

    fn name(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Token::Name(name) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected(what),
        }
    }

    // Statements

    /// Statements up to a tag named in `ends`. Its name is then the next token. With an empty `ends`, all statements.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        if self.blocks > BLOCK_DEPTH_MAX {
            return self.error(format!("blocks are nested deeper than {BLOCK_DEPTH_MAX}"));
        }
        self.blocks += 1;
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.peek() {
                Token::End if ends.is_empty() => break,
                Token::Text(_) => match self.next() {
                    Token::Text(text) => StmtKind::Text(text),
                    _ => return self.unexpected("text"),
                },
                Token::PrintBegin => {
                    self.at += 1;
                    let node = self.tuple()?;
                    self.expect(&Token::PrintEnd, "`}}`")?;
                    StmtKind::Print(node)
                }
                Token::BlockBegin => {
                    self.at += 1;
                    if self.is_name(ends) {
                        break;
                    }
                    self.statement()?
                }
                _ => {
                    let end = ends.last().map_or("a tag".to_owned(), |end| format!("`{{% {end} %}}`"));
                    return self.unexpected(&end);
                }
            };
            body.push(Stmt { line, kind });
        }
        self.blocks -= 1;
        Ok(body)
    }

    /// A body and its end tag.
    fn body_to(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let body = self.body(&[end])?;
        self.at += 1;
        // `endmacro` and similar tags may repeat the name.
        if end == "endmacro" && matches!(self.peek(), Token::Name(_)) {
            self.at += 1;
        }
        self.block_end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<StmtKind> {
        let tag = self.name("the name of a tag")?;
        match tag.as_str() {
            "if" => {
                let unknown = self.unknown.take();
                let statement = self.if_statement();
                self.unknown = unknown;
                statement
            }
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => self.macro_statement(),
            "call" => {
                let params = if self.skip_op("(") { self.params()? } else { Vec::new() };
                let call = self.expr()?;
                if !matches!(call.kind, Kind::Call(..)) {
                    return self.unexpected("a call");
                }
                self.block_end()?;
                Ok(StmtKind::Call(call, params, self.body_to("endcall")?))
            }
            "filter" => {
                let first = self.filter()?;
                let filters = self.filters(vec![first])?;
                self.block_end()?;
                Ok(StmtKind::FilterBlock(filters, self.body_to("endfilter")?))
            }
            "generation" => {
                self.block_end()?;
                Ok(StmtKind::Scope(Vec::new(), self.body_to("endgeneration")?))
            }
            "with" => {
                let mut variables = Vec::new();
                while *self.peek() != Token::BlockEnd {
                    if !variables.is_empty() {
                        self.expect_op(",")?;
                    }
                    let name = self.name("a name")?;
                    self.expect_op("=")?;
                    variables.push((name, self.expr()?));
                }
                self.block_end()?;
                Ok(StmtKind::Scope(variables, self.body_to("endwith")?))
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.error(format!("`{tag}` outside a loop"));
                }
                self.block_end()?;
                Ok(if tag == "break" { StmtKind::Break } else { StmtKind::Continue })
            }
            "include" | "import" | "from" | "extends" | "block" | "do" | "trans" | "autoescape" => {
                self.error(format!("the tag `{tag}` is not supported"))
            }
            other => self.error(format!("unknown tag `{}`", shortened(other))),
        }
    }

    fn if_statement(&mut self) -> Result<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple()?;
            self.block_end()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match self.name("a tag")?.as_str() {
                "elif" => {}
                "else" => {
                    self.block_end()?;
                    return Ok(StmtKind::If(branches, self.body_to("endif")?));
                }
                _ => {
                    self.block_end()?;
                    return Ok(StmtKind::If(branches, Vec::new()));
                }
            }
        }
    }

    fn for_statement(&mut self) -> Result<StmtKind> {
        let targets = self.names()?;
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let over = self.tuple_without_condition()?;
        let condition = if self.skip_name("if") { Some(self.expr()?) } else { None };
        if self.is_name(&["recursive"]) {
            return self.error("recursive loops are not supported");
        }
        self.block_end()?;
        self.loops += 1;
        let body = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if self.skip_name("else") {
            self.block_end()?;
            self.body_to("endfor")?
        } else {
            self.at += 1;
            self.block_end()?;
            Vec::new()
        };
        Ok(StmtKind::For(Box::new(For { targets, over, condition, body, otherwise })))
    }

    /// One or several names, with or without brackets.
    fn names(&mut self) -> Result<Vec<String>> {
        let bracket = self.skip_op("(");
        let mut names = vec![self.name("a name")?];
        while self.skip_op(",") {
            if !matches!(self.peek(), Token::Name(name) if name != "in") {
                break;
            }
            names.push(self.name("a name")?);
        }
        if bracket {
            self.expect_op(")")?;
        }
        Ok(names)
    }

    fn set_statement(&mut self) -> Result<StmtKind> {
        let mut names = self.names()?;
        let target = match self.skip_op(".") {
            true => Target::Attr(names.swap_remove(0), self.name("a name")?),
            false => Target::Names(names),
        };
        if self.skip_op("=") {
            let value = self.tuple()?;
            self.block_end()?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = self.filters(Vec::new())?;
        self.block_end()?;
        Ok(StmtKind::SetBlock(target, filters, self.body_to("endset")?))
    }

    fn macro_statement(&mut self) -> Result<StmtKind> {
        let name = self.name("the macro's name")?;
        self.expect_op("(")?;
        let params = self.params()?;
        self.block_end()?;
        let loops = std::mem::take(&mut self.loops);
        let body = self.body_to("endmacro")?;
        self.loops = loops;
        self.macros.push(Macro { name, params, body });
        Ok(StmtKind::Macro(self.macros.len() - 1))
    }

    /// Parameters up to the closing bracket.
    fn params(&mut self) -> Result<Vec<Param>> {
        let mut params = Vec::new();
        while !self.skip_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let name = self.name("a parameter")?;
            let default = if self.skip_op("=") { Some(self.expr()?) } else { None };
            params.push(Param { name, default });
        }
        Ok(params)
    }

    // Expressions

    fn node(&self, line: u32, inner_depth: u32, kind: Kind) -> Result<Node> {
        if inner_depth >= EXPR_DEPTH_MAX {
            return self.error(format!("an expression is nested deeper than {EXPR_DEPTH_MAX}"));
        }
        Ok(Node { line, depth: inner_depth + 1, kind })
    }

    fn binary(
        &self,
        line: u32,
        left: Node,
        right: Node,
        kind: impl FnOnce(Box<Node>, Box<Node>) -> Kind,
    ) -> Result<Node> {
        let depth = left.depth.max(right.depth);
        self.node(line, depth, kind(Box::new(left), Box::new(right)))
    }

    fn unary_node(&self, line: u32, inner: Node, kind: impl FnOnce(Box<Node>) -> Kind) -> Result<Node> {
        let depth = inner.depth;
        self.node(line, depth, kind(Box::new(inner)))
    }

    /// One expression, or a list of several separated by commas.
    fn tuple(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.expr()?;
        self.rest_of_tuple(line, first, Self::expr)
    }

    /// As [`Parser::tuple`], but an `if` is not part of the expression: it begins a condition of the tag.
    fn tuple_without_condition(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.or()?;
        self.rest_of_tuple(line, first, Self::or)
    }

    fn rest_of_tuple(
        &mut self,
        line: u32,
        first: Node,
        item: impl Fn(&mut Self) -> Result<Node>,
    ) -> Result<Node> {
        if *self.peek() != Token::Op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            if matches!(self.peek(), Token::BlockEnd | Token::PrintEnd | Token::Op(")")) {
                break;
            }
            items.push(item(self)?);
        }
        self.list(line, items)
    }

    fn list(&self, line: u32, items: Vec<Node>) -> Result<Node> {
        let depth = items.iter().map(|item| item.depth).max().unwrap_or(0);
        self.node(line, depth, Kind::List(items))
    }

    /// Counts one level of nesting around `parse`, to limit the parser's stack.
    fn nest<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nested >= BRACKET_DEPTH_MAX {
            return self.error(format!("brackets are nested deeper than {BRACKET_DEPTH_MAX}"));
        }
        self.nested += 1;
        let parsed = parse(self);
        self.nested -= 1;
        parsed
    }

    fn expr(&mut self) -> Result<Node> {
        self.nest(|parser| {
            let unknown = parser.unknown.take();
            let mut value = parser.or()?;
            let is_conditional = parser.is_name(&["if"]);
            while parser.is_name(&["if"]) {
                let line = parser.line();
                parser.at += 1;
                let condition = parser.or()?;
                let otherwise = if parser.skip_name("else") { Some(Box::new(parser.expr()?)) } else { None };
                let depth =
                    value.depth.max(condition.depth).max(otherwise.as_ref().map_or(0, |node| node.depth));
                let kind = Kind::Conditional(Box::new(condition), Box::new(value), otherwise);
                value = parser.node(line, depth, kind)?;
            }
            if unknown.is_some() || is_conditional {
                parser.unknown = unknown;
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Result<Node> {
        let mut left = self.and()?;
        while self.is_name(&["or"]) {
            let line = self.line();
            self.at += 1;
            let right = self.and()?;
            left = self.binary(line, left, right, Kind::Or)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node> {
        let mut left = self.not()?;
        while self.is_name(&["and"]) {
            let line = self.line();
            self.at += 1;
            let right = self.not()?;
            left = self.binary(line, left, right, Kind::And)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Node> {
        let line = self.line();
        if self.skip_name("not") {
            let inner = self.nest(Self::not)?;
            return self.unary_node(line, inner, Kind::Not);
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Node> {
        let line = self.line();
        let first = self.arithmetic(0)?;
        let mut depth = first.depth;
        let mut rest = Vec::new();
        loop {
            let operator = match self.peek() {
                Token::Op(op @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => op,
                Token::Name(name) if name == "in" => "in",
                Token::Name(name)
                    if name == "not"
                        && matches!(self.tokens.get(self.at + 1), Some((Token::Name(next), _)) if next == "in") =>
                {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            self.at += 1;
            let operand = self.arithmetic(0)?;
            depth = depth.max(operand.depth);
            rest.push((operator, operand));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => self.node(line, depth, Kind::Compare(Box::new(first), rest)),
        }
    }

    /// Operators of the same or a higher level: `+ -`, `~`, `* / // %`, `**`.
    fn arithmetic(&mut self, level: usize) -> Result<Node> {
        const LEVELS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];
        let Some(operators) = LEVELS.get(level) else { return self.unary(true) };
        let mut left = self.arithmetic(level + 1)?;
        loop {
            let operator = match self.peek() {
                Token::Op(op) if operators.contains(op) => *op,
                _ => return Ok(left),
            };
            let line = self.line();
            self.at += 1;
            let right = self.arithmetic(level + 1)?;
            left = self.binary(line, left, right, |left, right| Kind::Binary(operator, left, right))?;
        }
    }

    fn unary(&mut self, with_filters: bool) -> Result<Node> {
        let line = self.line();
        let node = if self.skip_op("-") {
            let inner = self.nest(|parser| parser.unary(false))?;
            self.unary_node(line, inner, Kind::Negate)?
        } else if self.skip_op("+") {
            let inner = self.nest(|parser| parser.unary(false))?;
            self.unary_node(line, inner, Kind::Plus)?
        } else {
            let primary = self.primary()?;
            self.postfix(primary)?
        };
        if with_filters { self.filters_and_tests(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Result<Node> {
        let (line, at) = (self.line(), self.at);
        let kind = match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Kind::Const(Const::Bool(true)),
                "false" | "False" => Kind::Const(Const::Bool(false)),
                "none" | "None" => Kind::Const(Const::None),
                _ => Kind::Name(name),
            },
            Token::Str(mut text) => {
                while let Token::Str(more) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Kind::Const(Const::Str(Arc::new(text)))
            }
            Token::Int(n) => Kind::Const(Const::Int(n)),
            Token::Float(n) => Kind::Const(Const::Float(n)),
            Token::Op("(") => {
                if self.skip_op(")") {
                    return self.list(line, Vec::new());
                }
                let node = self.tuple()?;
                self.expect_op(")")?;
                return Ok(node);
            }
            Token::Op("[") => {
                let mut items = Vec::new();
                while !self.skip_op("]") {
                    if !items.is_empty() {
                        self.expect_op(",")?;
                        if self.skip_op("]") {
                            break;
                        }
                    }
                    items.push(self.expr()?);
                }
                return self.list(line, items);
            }
            Token::Op("{") => {
                let mut entries: Vec<(Node, Node)> = Vec::new();
                while !self.skip_op("}") {
                    if !entries.is_empty() {
                        self.expect_op(",")?;
                        if self.skip_op("}") {
                            break;
                        }
                    }
                    let key = self.expr()?;
                    self.expect_op(":")?;
                    entries.push((key, self.expr()?));
                }
                let depth = entries.iter().map(|(key, value)| key.depth.max(value.depth)).max().unwrap_or(0);
                return self.node(line, depth, Kind::Dict(entries));
            }
            _ => {
                self.at = at;
                return self.unexpected("an expression");
            }
        };
        self.node(line, 0, kind)
    }

    fn postfix(&mut self, mut node: Node) -> Result<Node> {
        loop {
            let line = self.line();
            if self.skip_op(".") {
                node = match self.next() {
                    Token::Name(name) => self.unary_node(line, node, |node| Kind::Attr(node, name))?,
                    Token::Int(n) => {
                        let index = self.node(line, 0, Kind::Const(Const::Int(n)))?;
                        self.binary(line, node, index, Kind::Item)?
                    }
                    _ => return self.error("expected a name after `.`"),
                };
            } else if self.skip_op("[") {
                node = self.subscript(line, node)?;
            } else if self.skip_op("(") {
                node = self.call(line, node)?;
            } else {
                return Ok(node);
            }
        }
    }

    fn subscript(&mut self, line: u32, node: Node) -> Result<Node> {
        let mut parts: [Option<Box<Node>>; 3] = [None, None, None];
        let (mut n_colons, mut depth) = (0, node.depth);
        loop {
            if self.skip_op(":") {
                n_colons += 1;
                if n_colons > 2 {
                    return self.unexpected("`]`");
                }
            } else if self.skip_op("]") {
                break;
            } else if parts[n_colons].is_some() {
                return self.unexpected("`]`");
            } else {
                let part = self.expr()?;
                depth = depth.max(part.depth);
                parts[n_colons] = Some(Box::new(part));
            }
        }
        match (n_colons, parts) {
            (0, [Some(index), None, None]) => self.node(line, depth, Kind::Item(Box::new(node), index)),
            (0, _) => self.error("an empty subscript"),
            (_, parts) => self.node(line, depth, Kind::Slice(Box::new(node), parts)),
        }
    }

    fn call(&mut self, line: u32, node: Node) -> Result<Node> {
        let args = self.args()?;
        let depth = node.depth.max(args.depth());
        self.node(line, depth, Kind::Call(Box::new(node), args))
    }

    /// Arguments up to the closing bracket.
    fn args(&mut self) -> Result<Args> {
        let mut args = Args::default();
        let mut is_first = true;
        while !self.skip_op(")") {
            if !is_first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            is_first = false;
            if matches!(self.peek(), Token::Op("**")) {
                return self.error("`**kwargs` is not supported");
            }
            if args.spread.is_none() && self.skip_op("*") {
                args.spread = Some(Box::new(self.expr()?));
                continue;
            }
            let is_named = matches!(self.peek(), Token::Name(_))
                && matches!(self.tokens.get(self.at + 1), Some((Token::Op("="), _)));
            if is_named {
                let name = self.name("a name")?;
                self.at += 1;
                args.named.push((name, self.expr()?));
            } else if args.named.is_empty() && args.spread.is_none() {
                args.positional.push(self.expr()?);
            } else {
                return self.error("a positional argument after a named one");
            }
        }
        Ok(args)
    }

    fn filter(&mut self) -> Result<Filter> {
        let line = self.line();
        let name = self.name("the name of a filter")?;
        if !filters::FILTERS.contains(&name.as_str()) {
            self.unknown(format!("unknown filter `{}`", shortened(&name)));
        }
        let args = if self.skip_op("(") { self.args()? } else { Args::default() };
        Ok(Filter { name, args, line })
    }

    fn filters(&mut self, mut filters: Vec<Filter>) -> Result<Vec<Filter>> {
        while self.skip_op("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn filters_and_tests(&mut self, mut node: Node) -> Result<Node> {
        loop {
            let line = self.line();
            if self.skip_op("|") {
                let filter = self.filter()?;
                let depth = node.depth.max(filter.args.depth());
                node = self.node(line, depth, Kind::Filter(Box::new(node), Box::new(filter)))?;
            } else if self.skip_name("is") {
                node = self.test(line, node)?;
            } else if self.skip_op("(") {
                node = self.call(line, node)?;
            } else {
                return Ok(node);
            }
        }
    }

    fn test(&mut self, line: u32, node: Node) -> Result<Node> {
        let negated = self.skip_name("not");
        let name = self.name("the name of a test")?;
        if !filters::TESTS.contains(&name.as_str()) {
            self.unknown(format!("unknown test `{}`", shortened(&name)));
        }
        let args = match self.peek() {
            Token::Op("(") => {
                self.at += 1;
                let args = self.args()?;
                if !args.named.is_empty() || args.spread.is_some() {
                    return self.error("a test takes positional arguments only");
                }
                args.positional
            }
            Token::Op("[" | "{") | Token::Str(_) | Token::Int(_) | Token::Float(_) => vec![self.operand()?],
            Token::Name(next) if !["else", "or", "and", "if", "is", "in", "not"].contains(&next.as_str()) => {
                vec![self.operand()?]
            }
            _ => Vec::new(),
        };
        let depth = args.iter().map(|arg| arg.depth).max().unwrap_or(0).max(node.depth);
        self.node(line, depth, Kind::Test(Box::new(node), negated, name, args))
    }

    fn operand(&mut self) -> Result<Node> {
        let primary = self.primary()?;
        self.postfix(primary)
    }
}

impl Args {
    fn depth(&self) -> u32 {
        let named = self.named.iter().map(|(_, node)| node.depth);
        let spread = self.spread.iter().map(|node| node.depth);
        self.positional.iter().map(|node| node.depth).chain(spread).chain(named).max().unwrap_or(0)
    }
}
