//! The fields of a request that nothing reads: a header of the response names them, and the log does so once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names that a response lists.
const NAMES_MAX: usize = 16;
/// Bytes of a path that is shown.
const PATH_BYTES_MAX: usize = 96;
/// Stands for the names that are not shown.
const OTHERS: &str = "*";

/// The ignored fields of one request. Clones share them.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ignored(Arc<Mutex<Vec<String>>>);

impl Ignored {
    /// Adds the field at `path`. Indices are left out: a field of every message is named once. A path that has other characters than names
    /// have may be a text, and is not shown.
    pub(crate) fn add(&self, path: &str) {
        let is_shown = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
        let mut name: String = match path.len() <= PATH_BYTES_MAX && path.bytes().all(is_shown) {
            true => without_indices(path),
            false => OTHERS.to_owned(),
        };
        let mut names = self.lock();
        if names.len() >= NAMES_MAX {
            name = OTHERS.to_owned();
        }
        if names.len() <= NAMES_MAX && !names.contains(&name) {
            names.push(name);
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `messages[3].refusal` is `messages[].refusal`.
fn without_indices(path: &str) -> String {
    let mut is_index = false;
    let mut keep = |character: char| {
        is_index = character == '[' || is_index && character != ']';
        !is_index || character == '['
    };
    path.chars().filter(|character| keep(*character)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_few_and_no_texts() {
        let ignored = Ignored::default();
        for path in ["messages[0].refusal", "messages[12].refusal", "a text", "extra_body.x", "b\u{e9}"] {
            ignored.add(path);
        }
        assert_eq!(ignored.names(), ["messages[].refusal", "*", "extra_body.x"]);
        let ignored = Ignored::default();
        (0..100).for_each(|n| ignored.add(&format!("field_{n}")));
        let names = ignored.names();
        assert_eq!((names.len(), names.last().map(String::as_str)), (NAMES_MAX + 1, Some(OTHERS)));
    }
}
