//! Text that is not decided yet, and a cursor over its beginning.

/// Maximum bytes of the structure around arguments that are held: names have at most 64.
pub(super) const HEAD_BYTES_MAX: usize = 1 << 10;

/// Text that is not decided yet. Taking from its beginning does not move the rest.
#[derive(Debug, Default)]
pub(crate) struct Held {
    text: String,
    at: usize,
}

impl Held {
    pub(super) fn push(&mut self, text: &str) {
        if self.at > 0 {
            self.text.drain(..self.at);
            self.at = 0;
        }
        self.text.push_str(text);
    }

    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Drops the first `n_bytes` of the rest, which end a character.
    pub(super) fn skip(&mut self, n_bytes: usize) {
        self.at += n_bytes;
    }

    /// Takes the first `n_bytes` of the rest, which end a character.
    pub(super) fn take(&mut self, n_bytes: usize) -> String {
        let taken = self.rest()[..n_bytes].to_owned();
        self.skip(n_bytes);
        taken
    }

    pub(super) fn take_all(&mut self) -> String {
        self.take(self.rest().len())
    }
}

/// Why a cursor has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// More text decides.
    More,
    /// The text is of another form.
    Bad,
}

/// Reads the beginning of a text that arrives in pieces: at most [`HEAD_BYTES_MAX`], so that every cut of a text gives the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    pub(super) at: usize,
    is_full: bool,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let is_full = text.len() >= HEAD_BYTES_MAX;
        Self { text: &text[..text.floor_char_boundary(HEAD_BYTES_MAX)], at: 0, is_full }
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// The text has ended in the middle of what is read.
    pub(super) fn end(&self) -> Stop {
        if self.is_full { Stop::Bad } else { Stop::More }
    }

    /// The white space of JSON, which is also that of grammars.
    pub(super) fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    pub(super) fn peek(&self) -> Result<char, Stop> {
        self.rest().chars().next().ok_or_else(|| self.end())
    }

    pub(super) fn literal(&mut self, literal: &str) -> Result<(), Stop> {
        if self.rest().starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(if literal.starts_with(self.rest()) { self.end() } else { Stop::Bad })
    }

    /// Reads a literal if it is there.
    pub(super) fn maybe(&mut self, literal: &str) -> Result<bool, Stop> {
        match self.literal(literal) {
            Ok(()) => Ok(true),
            Err(Stop::Bad) if !literal.starts_with(self.rest()) => Ok(false),
            Err(stop) => Err(stop),
        }
    }

    /// The longest run of such characters, which another character ends.
    pub(super) fn run(&mut self, is_part: impl Fn(char) -> bool) -> Result<&'t str, Stop> {
        let rest = self.rest();
        let n_bytes = rest.find(|c| !is_part(c)).ok_or_else(|| self.end())?;
        self.at += n_bytes;
        Ok(&rest[..n_bytes])
    }

    /// A string of JSON.
    pub(super) fn json_string(&mut self) -> Result<String, Stop> {
        self.literal("\"")?;
        let mut is_escaped = false;
        for (at, byte) in self.rest().bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    let text = &self.text[self.at - 1..=self.at + at];
                    self.at += at + 1;
                    return serde_json::from_str(text).map_err(|_| Stop::Bad);
                }
                _ => {}
            }
        }
        Err(self.end())
    }
}
