//! Evaluates a template's syntax tree.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Arguments;
use super::error::{Error, ErrorKind, Result, shortened};
use super::parser::{Args, Const, Filter, For, Kind, Macro, Node, Param, Stmt, StmtKind, Target, Template};
use super::value::{Builtin, Loop, Meter, Namespace, Outcome, Range, Value, push};
use super::{filters, methods};

/// Maximum nesting of evaluations: blocks, expressions and macros together. A level needs up to 3 kB of stack without
/// optimisation.
const EVAL_DEPTH_MAX: u32 = 220;

/// The limits of an evaluation.
pub struct Bounds {
    /// Steps: a part of an expression, a statement, 64 bytes read or written.
    pub fuel: u64,
    /// Bytes of all values together.
    pub bytes: u64,
    /// Bytes of the output.
    pub output: usize,
}

/// Evaluates a template. `variables` are the template's inputs; `strftime_now` formats `date`.
pub fn render(
    template: &Template,
    variables: Vec<(&str, Value)>,
    date: &dyn Fn(&str) -> String,
    bounds: &Bounds,
) -> Result<String> {
    let mut eval = Eval {
        template,
        meter: Meter::new(bounds.fuel, bounds.bytes),
        output_max: bounds.output,
        date,
        frames: vec![variables, Vec::new()],
        floor: 2,
        callers: Vec::new(),
        out: vec![String::new()],
        depth: 0,
        loops: 0,
    };
    eval.body(&template.body)?;
    Ok(eval.out.pop().unwrap_or_default())
}

type Frame<'t> = Vec<(&'t str, Value)>;

struct Eval<'t> {
    template: &'t Template,
    meter: Meter,
    output_max: usize,
    date: &'t dyn Fn(&str) -> String,
    /// Variables: the inputs, the template's own scope, then one frame per open block.
    frames: Vec<Frame<'t>>,
    /// The first frame of the running macro.
    floor: usize,
    callers: Vec<Caller<'t>>,
    /// The output, then the texts of open `set`, `filter` and macro blocks.
    out: Vec<String>,
    depth: u32,
    loops: usize,
}

/// The body of a `call` block, with its place in the frames.
#[derive(Clone, Copy)]
struct Caller<'t> {
    params: &'t [Param],
    body: &'t [Stmt],
    floor: usize,
    n_frames: usize,
}

enum Flow {
    Next,
    Break,
    Continue,
}

fn at<T>(line: u32, outcome: Outcome<T>) -> Result<T> {
    outcome.map_err(|kind| Box::new(Error { line, kind }))
}

fn fail<T>(line: u32, reason: impl Into<String>) -> Result<T> {
    at(line, Err(ErrorKind::Value(reason.into())))
}

impl<'t> Eval<'t> {
    fn nest<T>(&mut self, line: u32, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        at(line, self.meter.work(0))?;
        if self.depth >= EVAL_DEPTH_MAX {
            return fail(line, format!("the template is nested deeper than {EVAL_DEPTH_MAX}"));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    // Statements

    fn body(&mut self, body: &'t [Stmt]) -> Result<Flow> {
        for stmt in body {
            match self.nest(stmt.line, |eval| eval.statement(stmt))? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &'t Stmt) -> Result<Flow> {
        let line = stmt.line;
        match &stmt.kind {
            StmtKind::Text(text) => self.emit(line, text)?,
            StmtKind::Print(node) => {
                let value = self.eval(node)?;
                let text = at(line, value.to_text(&self.meter))?;
                self.emit(line, &text)?;
            }
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            StmtKind::For(stmt) => self.for_loop(line, stmt)?,
            StmtKind::Set(target, node) => {
                let value = self.eval(node)?;
                self.assign(line, target, value)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let text = self.scoped(Vec::new(), |eval| eval.capture(body))?;
                let value = self.filtered(text, filters)?;
                self.assign(line, target, value)?;
            }
            StmtKind::FilterBlock(filters, body) => {
                let text = self.scoped(Vec::new(), |eval| eval.capture(body))?;
                let value = self.filtered(text, filters)?;
                let text = at(line, value.to_text(&self.meter))?;
                self.emit(line, &text)?;
            }
            StmtKind::Macro(index) => {
                let value = Value::Builtin(Builtin::Macro(*index as u32));
                self.set(line, &self.template.macros[*index].name, value)?;
            }
            StmtKind::Call(node, params, body) => {
                let Kind::Call(callee, args) = &node.kind else { return fail(line, "`call` calls nothing") };
                let caller = Caller { params, body, floor: self.floor, n_frames: self.frames.len() };
                let Value::Builtin(Builtin::Macro(index)) = self.eval(callee)? else {
                    return fail(line, format!("{} is no macro", describe(callee)));
                };
                let args = self.arguments(args)?;
                let value = self.call_macro(line, index, args, Some(caller))?;
                let text = at(line, value.to_text(&self.meter))?;
                self.emit(line, &text)?;
            }
            StmtKind::Scope(variables, body) => {
                at(line, self.meter.slots(2 * variables.len()))?;
                let mut frame = Vec::with_capacity(variables.len());
                for (name, node) in variables {
                    frame.push((name.as_str(), self.eval(node)?));
                }
                return self.scoped(frame, |eval| eval.body(body));
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn emit(&mut self, line: u32, text: &str) -> Result<()> {
        let is_output = self.out.len() == 1;
        let Some(out) = self.out.last_mut() else { return Ok(()) };
        if !is_output {
            return at(line, push(out, text, &self.meter));
        }
        // The output has a limit of its own.
        if text.len() > self.output_max - out.len() {
            return at(line, Err(ErrorKind::Output));
        }
        at(line, self.meter.work(text.len()))?;
        out.push_str(text);
        Ok(())
    }

    fn capture(&mut self, body: &'t [Stmt]) -> Result<Value> {
        self.out.push(String::new());
        let flow = self.body(body);
        let text = self.out.pop().unwrap_or_default();
        flow?;
        Ok(Value::text(text))
    }

    fn scoped<T>(&mut self, frame: Frame<'t>, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.frames.push(frame);
        let result = run(self);
        self.frames.pop();
        result
    }

    fn for_loop(&mut self, line: u32, stmt: &'t For) -> Result<()> {
        let mut over = self.eval(&stmt.over)?;
        if let Some(condition) = &stmt.condition {
            let items = at(line, over.items(&self.meter))?;
            let mut kept = Vec::new();
            for item in items {
                let frame = self.targets(line, &stmt.targets, item.clone())?;
                if self.scoped(frame, |eval| eval.eval(condition))?.is_true() {
                    kept.push(item);
                }
            }
            over = at(line, Value::list(kept))?;
        } else if !matches!(over, Value::List(_) | Value::Range(_)) {
            over = at(line, over.items(&self.meter).and_then(Value::list))?;
        }
        let len = at(line, over.len(&self.meter))?.unwrap_or(0);
        if len == 0 {
            return self.scoped(Vec::new(), |eval| eval.body(&stmt.otherwise)).map(|_| ());
        }
        let looped = Rc::new(Loop { over, len, index: Cell::new(0), depth: self.loops });
        self.loops += 1;
        for index in 0..len {
            at(line, self.meter.work(0))?;
            looped.index.set(index);
            let item = match &looped.over {
                Value::List(list) => list.items[index].clone(),
                Value::Range(range) => range.get(index),
                _ => Value::Undefined,
            };
            let mut frame = self.targets(line, &stmt.targets, item)?;
            frame.push(("loop", Value::Loop(Rc::clone(&looped))));
            if let Flow::Break = self.scoped(frame, |eval| eval.body(&stmt.body))? {
                break;
            }
        }
        self.loops -= 1;
        Ok(())
    }

    /// One name receives the value; several names receive its items.
    fn targets(&self, line: u32, names: &'t [String], value: Value) -> Result<Frame<'t>> {
        if let [name] = names {
            return Ok(vec![(name, value)]);
        }
        let items = at(line, value.items(&self.meter))?;
        if items.len() != names.len() {
            return fail(line, format!("{} names for {} values", names.len(), items.len()));
        }
        Ok(names.iter().map(String::as_str).zip(items).collect())
    }

    fn assign(&mut self, line: u32, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Names(names) => {
                for (name, value) in self.targets(line, names, value)? {
                    self.set(line, name, value)?;
                }
                Ok(())
            }
            Target::Attr(name, attr) => {
                let Value::Namespace(namespace) = self.lookup(line, name)? else {
                    return fail(line, format!("`{name}` is no namespace"));
                };
                at(line, self.set_in_namespace(&namespace, attr, value))
            }
        }
    }

    fn set_in_namespace(&self, namespace: &Namespace, attr: &str, value: Value) -> Outcome<()> {
        value.check_storable()?;
        let mut entries = namespace.entries.borrow_mut();
        self.meter.search(entries.len(), attr)?;
        match entries.iter_mut().find(|(name, _)| name == attr) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.text(attr.len())?;
                entries.push((attr.to_owned(), value));
            }
        }
        Ok(())
    }

    fn set(&mut self, line: u32, name: &'t str, value: Value) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        at(line, self.meter.search(frame.len(), name))?;
        match frame.iter_mut().find(|(have, _)| *have == name) {
            Some((_, old)) => *old = value,
            None => {
                at(line, self.meter.list(2))?;
                frame.push((name, value));
            }
        }
        Ok(())
    }

    fn lookup(&self, line: u32, name: &str) -> Result<Value> {
        let inner = self.frames[self.floor.min(self.frames.len())..].iter().rev();
        let mut n_seen = 0;
        for frame in inner.chain(self.frames[..2].iter().rev()) {
            // The step of the expression covers a few names; all others are paid for, in however many frames they are.
            n_seen += 1 + frame.len();
            if n_seen > 16 || name.len() > 64 {
                at(line, self.meter.search(n_seen, name))?;
                n_seen = 0;
            }
            if let Some((_, value)) = frame.iter().find(|(have, _)| *have == name) {
                return Ok(value.clone());
            }
        }
        Ok(match name {
            "range" => Value::Builtin(Builtin::Range),
            "namespace" => Value::Builtin(Builtin::Namespace),
            "dict" => Value::Builtin(Builtin::Dict),
            "raise_exception" => Value::Builtin(Builtin::Raise),
            "strftime_now" => Value::Builtin(Builtin::StrftimeNow),
            _ => Value::Undefined,
        })
    }

    // Expressions

    fn eval(&mut self, node: &'t Node) -> Result<Value> {
        self.nest(node.line, |eval| eval.expression(node))
    }

    fn expression(&mut self, node: &'t Node) -> Result<Value> {
        let line = node.line;
        match &node.kind {
            Kind::Const(value) => Ok(match value {
                Const::None => Value::None,
                Const::Bool(value) => Value::Bool(*value),
                Const::Int(n) => Value::Int(*n),
                Const::Float(n) => Value::Float(*n),
                Const::Str(text) => Value::Str(Arc::clone(text)),
            }),
            Kind::Name(name) => self.lookup(line, name),
            Kind::List(nodes) => {
                at(line, self.meter.list(nodes.len()))?;
                let items = nodes.iter().map(|node| self.eval(node)).collect::<Result<_>>()?;
                at(line, Value::list(items))
            }
            Kind::Dict(nodes) => {
                at(line, self.meter.slots(2 * nodes.len()))?;
                let mut entries = Vec::with_capacity(nodes.len());
                for (key, value) in nodes {
                    entries.push((self.eval(key)?, self.eval(value)?));
                }
                at(line, self.dict(entries))
            }
            Kind::Attr(object, name) => {
                let value = self.eval(object)?;
                self.attr(line, &value, name, object)
            }
            Kind::Item(object, index) => {
                let value = self.eval(object)?;
                let index = self.eval(index)?;
                self.item(line, &value, &index, object)
            }
            Kind::Slice(object, parts) => self.slice(line, object, parts),
            Kind::Call(callee, args) => self.call(line, callee, args),
            Kind::Filter(inner, filter) => {
                let value = self.eval(inner)?;
                self.filter(value, filter)
            }
            Kind::Test(inner, negated, name, args) => {
                let value = self.eval(inner)?;
                at(line, self.meter.slots(args.len()))?;
                let mut values = Vec::with_capacity(args.len());
                for arg in args {
                    values.push(self.eval(arg)?);
                }
                let passed = at(line, filters::test(&self.meter, name, &value, &values))?;
                Ok(Value::Bool(passed != *negated))
            }
            Kind::Not(inner) => Ok(Value::Bool(!self.eval(inner)?.is_true())),
            Kind::Negate(inner) => match self.eval(inner)? {
                Value::Float(n) => Ok(Value::Float(-n)),
                other => match other.as_int().and_then(i64::checked_neg) {
                    Some(n) => Ok(Value::Int(n)),
                    None => fail(line, format!("`-` of a {}", other.type_name())),
                },
            },
            Kind::Plus(inner) => {
                let value = self.eval(inner)?;
                match value.as_float() {
                    Some(_) => Ok(value),
                    None => fail(line, format!("`+` of a {}", value.type_name())),
                }
            }
            Kind::And(left, right) => {
                let left = self.eval(left)?;
                if left.is_true() { self.eval(right) } else { Ok(left) }
            }
            Kind::Or(left, right) => {
                let left = self.eval(left)?;
                if left.is_true() { Ok(left) } else { self.eval(right) }
            }
            Kind::Binary(operator, left, right) => {
                let (left_value, right_value) = (self.eval(left)?, self.eval(right)?);
                for (value, node) in [(&left_value, left), (&right_value, right)] {
                    if matches!(value, Value::Undefined) && *operator != "~" {
                        return fail(line, format!("{} is undefined", describe(node)));
                    }
                }
                at(line, self.binary(operator, &left_value, &right_value))
            }
            Kind::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (operator, node) in rest {
                    let right = self.eval(node)?;
                    if !at(line, self.compare(operator, &left, &right))? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Kind::Conditional(condition, value, otherwise) => {
                match (self.eval(condition)?.is_true(), otherwise) {
                    (true, _) => self.eval(value),
                    (false, Some(otherwise)) => self.eval(otherwise),
                    (false, None) => Ok(Value::Undefined),
                }
            }
        }
    }

    /// A mapping. The last of equal keys counts.
    fn dict(&self, entries: Vec<(Value, Value)>) -> Outcome<Value> {
        self.meter.list(2 * entries.len())?;
        let mut out: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if !matches!(
                key,
                Value::Str(_)
                    | Value::Safe(_)
                    | Value::Int(_)
                    | Value::Float(_)
                    | Value::Bool(_)
                    | Value::None
            ) {
                return Err(ErrorKind::Value(format!("a {} cannot be a key", key.type_name())));
            }
            let mut found = None;
            for (i, (have, _)) in out.iter().enumerate() {
                if have.equals(&key, &self.meter)? {
                    found = Some(i);
                }
            }
            match found {
                Some(i) => out[i].1 = value,
                None => out.push((key, value)),
            }
        }
        Value::dict(out)
    }

    fn attr(&mut self, line: u32, value: &Value, name: &str, object: &Node) -> Result<Value> {
        if let Value::Undefined = value {
            return fail(line, format!("{} is undefined", describe(object)));
        }
        at(line, value.attr(name, &self.meter))
    }

    fn item(&mut self, line: u32, value: &Value, index: &Value, object: &Node) -> Result<Value> {
        match (value, index) {
            (Value::Undefined, _) => fail(line, format!("{} is undefined", describe(object))),
            (Value::Dict(_), _) => Ok(at(line, value.get(index, &self.meter))?.unwrap_or(Value::Undefined)),
            (Value::Namespace(_) | Value::Loop(_), Value::Str(name) | Value::Safe(name)) => {
                at(line, value.attr(name, &self.meter))
            }
            (_, index) => match index.as_int() {
                Some(index) => at(line, value.item(index, &self.meter)),
                None => Ok(Value::Undefined),
            },
        }
    }

    fn slice(&mut self, line: u32, object: &'t Node, parts: &'t [Option<Box<Node>>; 3]) -> Result<Value> {
        let value = self.eval(object)?;
        let mut numbers = [None; 3];
        for (number, part) in numbers.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let evaluated = self.eval(part)?;
            if let Value::None = evaluated {
                continue;
            }
            *number = evaluated.as_int();
            if number.is_none() {
                return fail(line, format!("a {} as a bound of a slice", evaluated.type_name()));
            }
        }
        if !matches!(value, Value::List(_) | Value::Str(_) | Value::Safe(_) | Value::Range(_)) {
            return fail(line, format!("a slice of {}, a {}", describe(object), value.type_name()));
        }
        at(line, self.sliced(&value.unmarked(), numbers))
    }

    fn sliced(&self, value: &Value, [begin, end, step]: [Option<i64>; 3]) -> Outcome<Value> {
        let len = value.len(&self.meter)?.unwrap_or(0) as i64;
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(ErrorKind::Value("a slice with step 0".to_owned()));
        }
        // Python's rule: negative bounds count from the end, and bounds are clamped to the range that a step can
        // reach.
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |bound: Option<i64>, default: i64| match bound {
            None => default,
            Some(n) if n < 0 => n.saturating_add(len).clamp(low, high),
            Some(n) => n.clamp(low, high),
        };
        let (begin, end) = match step > 0 {
            true => (bound(begin, 0), bound(end, len)),
            false => (bound(begin, len - 1), bound(end, -1)),
        };
        let distance = if step > 0 { end - begin } else { begin - end };
        let n = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) as usize };
        let place = |i: usize| (begin + i as i64 * step) as usize;
        match value {
            Value::Str(text) if step == 1 => {
                let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
                let from = places.nth(begin as usize).unwrap_or(text.len());
                let to = if n == 0 { from } else { places.nth(n - 1).unwrap_or(text.len()) };
                self.meter.text(to - from)?;
                Ok(Value::text(&text[from..to]))
            }
            Value::Str(text) => {
                self.meter.allocate(text.len().saturating_mul(8))?;
                let chars: Vec<char> = text.chars().collect();
                Ok(Value::text((0..n).map(|i| chars[place(i)]).collect::<String>()))
            }
            Value::List(list) => {
                self.meter.list(n)?;
                Value::list((0..n).map(|i| list.items[place(i)].clone()).collect())
            }
            Value::Range(range) => {
                let start = if n == 0 { range.start } else { range.at(place(0)) };
                let step = range.step.saturating_mul(step);
                Ok(Value::Range(Rc::new(Range { start, step, len: n })))
            }
            _ => Ok(Value::Undefined),
        }
    }

    fn compare(&self, operator: &str, left: &Value, right: &Value) -> Outcome<bool> {
        let meter = &self.meter;
        Ok(match operator {
            "==" => left.equals(right, meter)?,
            "!=" => !left.equals(right, meter)?,
            "<" => left.compare(right, meter)?.is_lt(),
            "<=" => left.compare(right, meter)?.is_le(),
            ">" => left.compare(right, meter)?.is_gt(),
            ">=" => left.compare(right, meter)?.is_ge(),
            "in" => left.is_in(right, meter)?,
            _ => !left.is_in(right, meter)?,
        })
    }

    fn binary(&self, operator: &str, left: &Value, right: &Value) -> Outcome<Value> {
        let meter = &self.meter;
        let refused = || {
            let (left, right) = (left.type_name(), right.type_name());
            Err(ErrorKind::Value(format!("`{operator}` of a {left} and a {right}")))
        };
        let joined = |a: &str, b: &str| {
            meter.text(a.len().saturating_add(b.len()))?;
            let mut text = String::with_capacity(a.len() + b.len());
            text.push_str(a);
            text.push_str(b);
            Ok(Value::text(text))
        };
        let safe = |joined: Value| Ok(Value::Safe(joined.to_text(meter)?));
        match (operator, left, right) {
            ("~", ..) => return joined(&left.to_text(meter)?, &right.to_text(meter)?),
            ("+", Value::Str(a), Value::Str(b)) => return joined(a, b),
            ("+", Value::Safe(a), Value::Safe(b)) => return safe(joined(a, b)?),
            ("+", Value::Safe(a), Value::Str(b)) => return safe(joined(a, &filters::escaped(meter, b)?)?),
            ("+", Value::Str(a), Value::Safe(b)) => return safe(joined(&filters::escaped(meter, a)?, b)?),
            ("+", Value::List(a), Value::List(b)) => {
                meter.list(a.items.len() + b.items.len())?;
                return Value::list(a.items.iter().chain(&b.items).cloned().collect());
            }
            ("*", Value::Str(text) | Value::Safe(text), n)
            | ("*", n, Value::Str(text) | Value::Safe(text)) => {
                let Some(n) = n.as_int() else { return refused() };
                let n = usize::try_from(n).unwrap_or(0);
                meter.repeated(text.len(), n)?;
                return Ok(Value::text(text.repeat(n)));
            }
            ("*", Value::List(list), n) | ("*", n, Value::List(list)) => {
                let Some(n) = n.as_int() else { return refused() };
                let n = usize::try_from(n).unwrap_or(0);
                let len = list.items.len().checked_mul(n).ok_or(ErrorKind::Memory)?;
                meter.list(len)?;
                return Value::list(list.items.iter().cycle().take(len).cloned().collect());
            }
            _ => {}
        }
        let overflow = || ErrorKind::Value(format!("`{operator}` is out of range"));
        let zero = || ErrorKind::Value("division by zero".to_owned());
        match (left.as_int(), right.as_int()) {
            (Some(a), Some(b)) => {
                let whole = |n: Option<i64>| n.map(Value::Int).ok_or_else(overflow);
                match operator {
                    "+" => whole(a.checked_add(b)),
                    "-" => whole(a.checked_sub(b)),
                    "*" => whole(a.checked_mul(b)),
                    "/" | "//" | "%" if b == 0 => Err(zero()),
                    "/" => Ok(Value::Float(a as f64 / b as f64)),
                    // Rounded down, as in Python.
                    "//" => whole(
                        a.checked_div_euclid(b)
                            .map(|n| if b < 0 && a.rem_euclid(b) != 0 { n - 1 } else { n }),
                    ),
                    "%" => {
                        let rest = a.checked_rem_euclid(b).ok_or_else(overflow)?;
                        Ok(Value::Int(if b < 0 && rest != 0 { rest + b } else { rest }))
                    }
                    _ if b < 0 => Ok(Value::Float((a as f64).powf(b as f64))),
                    _ => whole(u32::try_from(b).ok().and_then(|b| a.checked_pow(b))),
                }
            }
            _ => {
                let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else { return refused() };
                Ok(Value::Float(match operator {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    "/" | "//" | "%" if b == 0.0 => return Err(zero()),
                    "/" => a / b,
                    "//" => (a / b).floor(),
                    "%" => a - b * (a / b).floor(),
                    _ => a.powf(b),
                }))
            }
        }
    }

    // Calls and filters

    fn arguments(&mut self, args: &'t Args) -> Result<Arguments<'t>> {
        if let Some(first) = args.positional.first().or(args.named.first().map(|(_, node)| node)) {
            at(first.line, self.meter.slots(args.positional.len() + 2 * args.named.len()))?;
        }
        let mut out = Arguments {
            positional: Vec::with_capacity(args.positional.len()),
            named: Vec::with_capacity(args.named.len()),
        };
        for node in &args.positional {
            out.positional.push(self.eval(node)?);
        }
        if let Some(node) = &args.spread {
            let items = self.eval(node)?;
            out.positional.extend(at(node.line, items.items(&self.meter))?);
        }
        for (name, node) in &args.named {
            out.named.push((name, self.eval(node)?));
        }
        Ok(out)
    }

    fn filter(&mut self, value: Value, filter: &'t Filter) -> Result<Value> {
        let args = self.arguments(&filter.args)?;
        at(filter.line, filters::apply(&self.meter, &filter.name, value, args))
    }

    fn filtered(&mut self, value: Value, filters: &'t [Filter]) -> Result<Value> {
        filters.iter().try_fold(value, |value, filter| self.filter(value, filter))
    }

    fn call(&mut self, line: u32, callee: &'t Node, args: &'t Args) -> Result<Value> {
        if let Kind::Attr(object, name) = &callee.kind {
            let value = self.eval(object)?;
            let held = match &value {
                Value::Namespace(_) => at(line, value.attr(name, &self.meter))?,
                _ => Value::Undefined,
            };
            if let Value::Undefined = held {
                if let Value::Undefined = value {
                    return fail(line, format!("{} is undefined", describe(object)));
                }
                let args = self.arguments(args)?;
                return at(line, methods::call(&self.meter, &value, name, args));
            }
            let args = self.arguments(args)?;
            return self.call_value(line, &held, callee, args);
        }
        let value = self.eval(callee)?;
        let args = self.arguments(args)?;
        self.call_value(line, &value, callee, args)
    }

    fn call_value(&mut self, line: u32, value: &Value, callee: &Node, args: Arguments<'t>) -> Result<Value> {
        match value {
            Value::Builtin(Builtin::Macro(index)) => self.call_macro(line, *index, args, None),
            Value::Builtin(Builtin::Caller(index)) => self.call_caller(line, *index, args),
            Value::Builtin(builtin) => at(line, self.call_builtin(*builtin, args)),
            Value::Undefined => fail(line, format!("{} is undefined", describe(callee))),
            other => {
                fail(line, format!("{} is a {}, which cannot be called", describe(callee), other.type_name()))
            }
        }
    }

    fn call_builtin(&mut self, builtin: Builtin, args: Arguments<'t>) -> Outcome<Value> {
        let wrong = |function: &str| ErrorKind::Value(format!("wrong arguments for `{function}`"));
        match (builtin, args.positional.as_slice()) {
            (Builtin::Range, numbers @ ([_] | [_, _] | [_, _, _])) => {
                let numbers: Option<Vec<i64>> = numbers.iter().map(Value::as_int).collect();
                let numbers = numbers.ok_or_else(|| wrong("range"))?;
                let (start, end, step) = match numbers.as_slice() {
                    [end] => (0, *end, 1),
                    [start, end] => (*start, *end, 1),
                    [start, end, step, ..] => (*start, *end, *step),
                    [] => return Err(wrong("range")),
                };
                if step == 0 {
                    return Err(wrong("range"));
                }
                let distance = i128::from(end) - i128::from(start);
                let distance = if step > 0 { distance } else { -distance };
                let len = distance.max(0).unsigned_abs().div_ceil(step.unsigned_abs().into());
                // Indices are computed in `i64`.
                let len = i64::try_from(len).ok().and_then(|len| usize::try_from(len).ok());
                let len = len.ok_or_else(|| ErrorKind::Value("`range` has too many items".to_owned()))?;
                Ok(Value::Range(Rc::new(Range { start, step, len })))
            }
            (Builtin::Namespace, positional @ ([] | [Value::Dict(_)])) => {
                let namespace = Namespace::default();
                if let [Value::Dict(dict)] = positional {
                    for (key, value) in &dict.entries {
                        let key = key.to_text(&self.meter)?;
                        self.set_in_namespace(&namespace, &key, value.clone())?;
                    }
                }
                for (name, value) in args.named {
                    self.set_in_namespace(&namespace, name, value)?;
                }
                self.meter.list(4)?;
                Ok(Value::Namespace(Rc::new(namespace)))
            }
            (Builtin::Dict, positional @ ([] | [Value::Dict(_)])) => {
                let mut entries = match positional {
                    [Value::Dict(dict)] => {
                        self.meter.list(2 * dict.entries.len())?;
                        dict.entries.clone()
                    }
                    _ => Vec::new(),
                };
                entries.extend(args.named.into_iter().map(|(name, value)| (Value::text(name), value)));
                self.dict(entries)
            }
            (Builtin::Raise, [message]) => {
                Err(ErrorKind::Raised(message.to_text(&self.meter)?.chars().take(1000).collect()))
            }
            (Builtin::StrftimeNow, [Value::Str(format) | Value::Safe(format)]) => {
                // A directive of two letters expands to at most 40.
                self.meter.repeated(format.len(), 20)?;
                Ok(Value::text((self.date)(format)))
            }
            (builtin, _) => Err(wrong(match builtin {
                Builtin::Range => "range",
                Builtin::Namespace => "namespace",
                Builtin::Dict => "dict",
                Builtin::Raise => "raise_exception",
                _ => "strftime_now",
            })),
        }
    }

    fn call_macro(
        &mut self,
        line: u32,
        index: u32,
        args: Arguments<'t>,
        caller: Option<Caller<'t>>,
    ) -> Result<Value> {
        let Macro { name, params, body } = &self.template.macros[index as usize];
        // A macro sees the template's own scope, not the blocks around the call.
        let floor = std::mem::replace(&mut self.floor, self.frames.len());
        let loops = std::mem::take(&mut self.loops);
        let frame = self.bind(line, name, params, args);
        let result = frame.and_then(|mut frame| {
            let has_caller = caller.is_some();
            if let Some(caller) = caller {
                frame.push(("caller", Value::Builtin(Builtin::Caller(self.callers.len() as u32))));
                self.callers.push(caller);
            }
            let result = self.nest(line, |eval| eval.scoped(frame, |eval| eval.capture(body)));
            if has_caller {
                self.callers.pop();
            }
            result
        });
        self.floor = floor;
        self.loops = loops;
        result
    }

    /// Runs the body of a `call` block in its own place in the frames.
    fn call_caller(&mut self, line: u32, index: u32, args: Arguments<'t>) -> Result<Value> {
        let caller = self.callers.get(index as usize).copied();
        let Some(caller) = caller.filter(|caller| caller.n_frames <= self.frames.len()) else {
            return fail(line, "`caller` outside its `call`");
        };
        let inner = self.frames.split_off(caller.n_frames);
        let floor = std::mem::replace(&mut self.floor, caller.floor);
        let result = self
            .bind(line, "caller", caller.params, args)
            .and_then(|frame| self.nest(line, |eval| eval.scoped(frame, |eval| eval.capture(caller.body))));
        self.floor = floor;
        self.frames.truncate(caller.n_frames);
        self.frames.extend(inner);
        result
    }

    /// Parameters with their arguments or defaults.
    fn bind(&mut self, line: u32, name: &str, params: &'t [Param], args: Arguments<'t>) -> Result<Frame<'t>> {
        if args.positional.len() > params.len() {
            return fail(
                line,
                format!("`{name}` takes {} arguments, {} given", params.len(), args.positional.len()),
            );
        }
        at(line, self.meter.slots(2 * params.len()))?;
        let mut frame: Frame<'t> = Vec::with_capacity(params.len() + 1);
        let mut positional = args.positional.into_iter();
        let mut named = args.named;
        for param in params {
            if !named.is_empty() {
                at(line, self.meter.search(named.len(), &param.name))?;
            }
            let by_name = named.iter().position(|(name, _)| *name == param.name);
            let value = match (positional.next(), by_name, &param.default) {
                (Some(value), _, _) => value,
                (None, Some(at), _) => named.swap_remove(at).1,
                (None, None, Some(default)) => self.eval(default)?,
                (None, None, None) => Value::Undefined,
            };
            frame.push((&param.name, value));
        }
        match named.first() {
            Some((unknown, _)) => fail(line, format!("`{name}` takes no argument `{unknown}`")),
            None => Ok(frame),
        }
    }
}

/// The name of an expression in error messages.
fn describe(node: &Node) -> String {
    match &node.kind {
        Kind::Name(name) => format!("`{name}`"),
        Kind::Attr(_, name) => format!("`.{name}`"),
        Kind::Item(_, index) => match &index.kind {
            Kind::Const(Const::Str(key)) => format!("`['{}']`", shortened(key)),
            Kind::Const(Const::Int(n)) => format!("`[{n}]`"),
            _ => "an item".to_owned(),
        },
        _ => "a value".to_owned(),
    }
}
