//! Evaluated arguments of filters, methods and functions.

use super::value::{Outcome, Value, refused};

/// Evaluated arguments.
pub(super) struct Arguments<'t> {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(&'t str, Value)>,
}

/// Arguments read one by one, by position or by name.
pub(super) struct Taken<'t> {
    function: &'t str,
    positional: std::vec::IntoIter<Value>,
    named: Vec<(&'t str, Value)>,
}

impl<'t> Taken<'t> {
    pub(super) fn new(function: &'t str, args: Arguments<'t>) -> Self {
        Self { function, positional: args.positional.into_iter(), named: args.named }
    }

    /// The next positional argument, or the argument of this name.
    pub(super) fn value(&mut self, name: &str) -> Option<Value> {
        self.positional.next().or_else(|| self.named(name))
    }

    pub(super) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(have, _)| *have == name)?;
        Some(self.named.swap_remove(at).1)
    }

    pub(super) fn required(&mut self, name: &str) -> Outcome<Value> {
        match self.value(name) {
            Some(value) => Ok(value),
            None => refused(format!("`{}` needs the argument `{name}`", self.function)),
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Outcome<Option<Value>> {
        match self.value(name) {
            None | Some(Value::None) => Ok(None),
            Some(value @ (Value::Str(_) | Value::Safe(_))) => Ok(Some(value)),
            Some(other) => refused(format!("`{}`: `{name}` is a {}", self.function, other.type_name())),
        }
    }

    pub(super) fn int(&mut self, name: &str) -> Outcome<Option<i64>> {
        match self.value(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(n) => Ok(Some(n)),
                None => refused(format!("`{}`: `{name}` is a {}", self.function, value.type_name())),
            },
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.is_true())
    }

    pub(super) fn finish(mut self) -> Outcome<()> {
        match (self.positional.next(), self.named.first()) {
            (None, None) => Ok(()),
            (_, Some((name, _))) => refused(format!("`{}` takes no argument `{name}`", self.function)),
            (Some(_), None) => refused(format!("too many arguments for `{}`", self.function)),
        }
    }

    /// All named arguments that are left.
    pub(super) fn take_named(&mut self) -> Vec<(&'t str, Value)> {
        std::mem::take(&mut self.named)
    }

    pub(super) fn rest(self) -> (Vec<Value>, Vec<(&'t str, Value)>) {
        (self.positional.collect(), self.named)
    }
}
