//! Stop strings of a request that may call tools. The engine's own would cut a call in the middle, so these are looked for in the text outside
//! of calls only.

/// Looks for stop strings in a text that arrives in pieces.
#[derive(Debug)]
pub(crate) struct Stops {
    strings: Vec<String>,
    /// The end of the text that may begin a stop string.
    held: String,
    /// The string that was found; nothing follows it.
    found: Option<String>,
}

impl Stops {
    pub(super) fn new(strings: &[String]) -> Self {
        Self { strings: strings.to_vec(), held: String::new(), found: None }
    }

    /// The text that is certain to come before every stop string.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let found =
            self.strings.iter().filter_map(|string| self.held.find(string.as_str()).map(|at| (at, string)));
        if let Some((at, string)) = found.min_by_key(|(at, _)| *at) {
            self.found = Some(string.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let n_held = self.strings.iter().map(|string| overlap(&self.held, string)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - n_held);
        std::mem::replace(&mut self.held, rest)
    }

    /// The held text, which belongs to the output: a call or another text follows, or nothing.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    pub(super) fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }
}

/// Bytes at the end of the text that begin the string.
fn overlap(text: &str, string: &str) -> usize {
    let longest = text.len().min(string.len().saturating_sub(1));
    let begins =
        |&n: &usize| string.is_char_boundary(n) && text.as_bytes().ends_with(&string.as_bytes()[..n]);
    (1..=longest).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_ends_before_the_first_stop_string_however_it_is_cut(
            text in "[ab\u{e9}]{0,12}",
            strings in prop::collection::vec("[ab\u{e9}]{1,3}", 1..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut stops = Stops::new(&strings);
            let characters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(characters.len() + 1)).collect();
            cuts.extend([0, characters.len()]);
            cuts.sort_unstable();
            let mut out = String::new();
            for cut in cuts.windows(2) {
                out.push_str(&stops.push(&characters[cut[0]..cut[1]].iter().collect::<String>()));
            }
            out.push_str(&stops.flush());
            let first = strings.iter().filter_map(|string| text.find(string.as_str())).min();
            // A shorter string may be complete in a piece before a longer one that begins earlier.
            match stops.found() {
                None => prop_assert!(first.is_none() && out == text),
                Some(found) => {
                    prop_assert!(text.starts_with(&out) && text[out.len()..].starts_with(found));
                    prop_assert!(first.is_some_and(|first| first <= out.len()));
                }
            }
        }
    }

    #[test]
    fn text_that_may_become_a_stop_string_is_held() {
        let mut stops = Stops::new(&["Observation:".to_owned()]);
        assert_eq!(stops.push("So. Obs"), "So. ");
        assert_eq!(stops.push("erved."), "Observed.");
        assert_eq!(stops.push(" Observation: x"), " ");
        assert_eq!((stops.push("more"), stops.flush()), (String::new(), String::new()));
        assert_eq!(stops.found(), Some("Observation:"));
    }
}
