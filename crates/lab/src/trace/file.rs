//! Files of logit traces.
//!
//! ```text
//! magic "rfntrace" │ version u32 │ vocab_size u32 │ model text │ n_rows u32 │ rows │ XXH3-64 of all before u64
//! row      id text │ task text │ subtask text │ prompt tokens │ n_passages u32 │ passages tokens │ response tokens
//!          │ tops [prompt + response] │ n_branches u32 │ branches
//! text     n_bytes u32 │ UTF-8          tokens   n u32 │ u32 each
//! top      8 tokens u32 (2³²−1: none) │ 8 probabilities u16, in 65,535ths
//! branch   parent u32 │ token u32 │ top
//! ```
//!
//! Numbers are little-endian. A file has one task, and a task has one session: the rows' order is that of the requests.
//! A row takes 48 bytes, so an answer of 128 tokens to a prompt of 1,000, with ten rejected rows a token, 130 KB.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use refrain::TokenId;
use refrain_files::open_regular;
use refrain_files::replace::{Manner, ReplaceError, replace_bytes};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::answer::{Branch, NONE, Rows, TOP_LEN, Top};
use crate::rows::{Accepted, TokenRow};

const MAGIC: &[u8; 8] = b"rfntrace";

/// Version of the format.
pub const VERSION: u32 = 1;

/// Maximum size of a file, which is read whole.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

const TOP_BYTES: u64 = TOP_LEN as u64 * 6;
const BRANCH_BYTES: u64 = 8 + TOP_BYTES;

/// A trace could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("a trace of {bytes} bytes is larger than {max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The file does not begin as a trace does.
    #[error("not a logit trace")]
    NotATrace,
    /// The file is of another version of the format.
    #[error("a trace of format version {found}; this version reads {VERSION}")]
    Version {
        /// The file's version.
        found: u32,
    },
    /// The content is not what was written.
    #[error("the checksum is {found:016x}, the content's is {computed:016x}")]
    Checksum {
        /// The checksum in the file.
        found: u64,
        /// The checksum of its content.
        computed: u64,
    },
    /// The file ends within a field.
    #[error("{what} takes {needed} bytes, {left} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Its size.
        needed: u64,
        /// The rest of the file.
        left: u64,
    },
    /// A text is not UTF-8.
    #[error("a name of row {row} is not UTF-8")]
    NotUtf8 {
        /// The row.
        row: usize,
    },
    /// A token is outside the vocabulary.
    #[error("row {row}: token {token} in a vocabulary of {vocab_size}")]
    Token {
        /// The row.
        row: usize,
        /// The token.
        token: u32,
        /// The vocabulary.
        vocab_size: usize,
    },
    /// The prompt is empty, so there is no root.
    #[error("row {row} has an empty prompt")]
    EmptyPrompt {
        /// The row.
        row: usize,
    },
    /// A branch begins where none can.
    #[error("row {row}: branch {branch} has parent {parent}")]
    Parent {
        /// The row.
        row: usize,
        /// The branch.
        branch: usize,
        /// Its parent's place.
        parent: u32,
    },
    /// There are bytes after the last row.
    #[error("{bytes} bytes after the last row")]
    Trailing {
        /// Their number.
        bytes: u64,
    },
}

/// A model's answers to the rows of one task.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The model's name.
    pub model: String,
    /// Number of tokens of its vocabulary.
    pub vocab_size: usize,
    /// The answers; each has [`TokenRow::target`].
    pub rows: Vec<TokenRow>,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`]; lengths are checked before anything is allocated for them.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let file = open_regular(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(TraceError::TooLarge { bytes, max: FILE_BYTES_MAX });
        }
        let mut content = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(io)?;
        Self::from_bytes(&content)
    }

    /// Writes a file that its owner alone may read; an existing one is replaced.
    ///
    /// # Errors
    /// [`TraceError::Io`], and [`TraceError::TooLarge`] before anything is written.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let bytes = self.to_bytes();
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(TraceError::TooLarge { bytes: bytes.len() as u64, max: FILE_BYTES_MAX });
        }
        replace_bytes(path, Manner::Private, &bytes)
            .map_err(|ReplaceError { path, source, .. }| TraceError::Io { path, source })
    }

    /// The content of a file.
    ///
    /// # Panics
    /// A row has no [`TokenRow::target`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, [VERSION, self.vocab_size as u32]);
        put_text(&mut out, &self.model);
        put(&mut out, [self.rows.len() as u32]);
        for row in &self.rows {
            let rows = row.target.as_deref().expect("a trace's rows have their target's rows");
            [&row.id, &row.task, &row.subtask].into_iter().for_each(|text| put_text(&mut out, text));
            put_tokens(&mut out, &row.prompt);
            put(&mut out, [row.passages.len() as u32]);
            row.passages.iter().for_each(|passage| put_tokens(&mut out, passage));
            put_tokens(&mut out, &row.response);
            rows.text().iter().for_each(|top| put_top(&mut out, top));
            put(&mut out, [rows.branches().len() as u32]);
            for branch in rows.branches() {
                put(&mut out, [branch.parent, branch.token.0]);
                put_top(&mut out, &branch.top);
            }
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        let mut reader = Reader { left: bytes, vocab_size: 0, row: 0 };
        if reader.bytes("the magic", MAGIC.len() as u64).ok() != Some(&MAGIC[..]) {
            return Err(TraceError::NotATrace);
        }
        let found = reader.number("the version")?;
        if found != VERSION {
            return Err(TraceError::Version { found });
        }
        let Some((content, sum)) = bytes.split_last_chunk::<8>().filter(|_| reader.left.len() >= 8) else {
            let left = reader.left.len() as u64;
            return Err(TraceError::Truncated { what: "the checksum", needed: 8, left });
        };
        let (found, computed) = (u64::from_le_bytes(*sum), xxh3_64(content));
        if found != computed {
            return Err(TraceError::Checksum { found, computed });
        }
        reader.left = &reader.left[..reader.left.len() - 8];
        reader.vocab_size = reader.number("the vocabulary's size")? as usize;
        let model = reader.text()?;
        let n_rows = reader.number("the number of rows")?;
        let mut rows = Vec::new();
        for _ in 0..n_rows {
            let index = rows.len();
            rows.push(reader.row(index)?);
            reader.row += 1;
        }
        match reader.left.len() {
            0 => Ok(Trace { model, vocab_size: reader.vocab_size, rows }),
            bytes => Err(TraceError::Trailing { bytes: bytes as u64 }),
        }
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, numbers: [u32; N]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, [text.len() as u32]);
    out.extend_from_slice(text.as_bytes());
}

fn put_tokens(out: &mut Vec<u8>, tokens: &[TokenId]) {
    put(out, [tokens.len() as u32]);
    tokens.iter().for_each(|token| put(out, [token.0]));
}

fn put_top(out: &mut Vec<u8>, top: &Top) {
    put(out, top.tokens);
    top.shares.iter().for_each(|share| out.extend_from_slice(&share.to_le_bytes()));
}

/// The unread part of a file.
struct Reader<'a> {
    left: &'a [u8],
    vocab_size: usize,
    /// The row that is being read, for errors.
    row: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8], TraceError> {
        let left = self.left.len() as u64;
        if needed > left {
            return Err(TraceError::Truncated { what, needed, left });
        }
        let (bytes, rest) = self.left.split_at(needed as usize);
        self.left = rest;
        Ok(bytes)
    }

    fn number(&mut self, what: &'static str) -> Result<u32, TraceError> {
        Ok(numbers(self.bytes(what, 4)?).sum())
    }

    /// A number of items and their bytes, of `item_bytes` each.
    fn items(&mut self, what: &'static str, item_bytes: u64) -> Result<&'a [u8], TraceError> {
        let n = u64::from(self.number(what)?);
        self.bytes(what, n * item_bytes)
    }

    fn text(&mut self) -> Result<String, TraceError> {
        let bytes = self.items("a name", 1)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| TraceError::NotUtf8 { row: self.row })
    }

    fn token(&self, token: u32) -> Result<TokenId, TraceError> {
        let Reader { row, vocab_size, .. } = *self;
        let is_known = (token as usize) < vocab_size;
        if is_known { Ok(TokenId(token)) } else { Err(TraceError::Token { row, token, vocab_size }) }
    }

    fn tokens(&mut self, what: &'static str) -> Result<Vec<TokenId>, TraceError> {
        let bytes = self.items(what, 4)?;
        numbers(bytes).map(|token| self.token(token)).collect()
    }

    fn top(&self, bytes: &[u8]) -> Result<Top, TraceError> {
        let (tokens, shares) = bytes.split_at(4 * TOP_LEN);
        let mut top = Top::new([]);
        for (to, token) in top.tokens.iter_mut().zip(numbers(tokens)) {
            *to = if token == NONE { NONE } else { self.token(token)?.0 };
        }
        for (to, share) in top.shares.iter_mut().zip(shares.as_chunks::<2>().0) {
            *to = u16::from_le_bytes(*share);
        }
        Ok(top)
    }

    fn row(&mut self, index: usize) -> Result<TokenRow, TraceError> {
        let [id, task, subtask] = [self.text()?, self.text()?, self.text()?];
        let prompt = self.tokens("a prompt")?;
        if prompt.is_empty() {
            return Err(TraceError::EmptyPrompt { row: self.row });
        }
        let n_passages = self.number("the number of passages")?;
        let passages = (0..n_passages).map(|_| self.tokens("a passage")).collect::<Result<_, _>>()?;
        let response = self.tokens("a response")?;
        let n_text = (prompt.len() + response.len()) as u64;
        let text = self.bytes("the rows of a text", n_text * TOP_BYTES)?;
        let text = text.chunks_exact(TOP_BYTES as usize).map(|top| self.top(top));
        let mut rows = Rows::new(prompt.len(), text.collect::<Result<_, _>>()?);
        let branches = self.items("the rejected rows", BRANCH_BYTES)?;
        for (branch, bytes) in branches.chunks_exact(BRANCH_BYTES as usize).enumerate() {
            let (head, top) = bytes.split_at(8);
            let [parent, token] = [&head[..4], &head[4..]].map(|number| numbers(number).sum());
            let pushed = rows.push(Branch { parent, token: self.token(token)?, top: self.top(top)? });
            pushed.ok_or(TraceError::Parent { row: self.row, branch, parent })?;
        }
        let (session, target) = (Some(task.clone()), Some(Box::new(rows)));
        Ok(TokenRow {
            index,
            id,
            task,
            subtask,
            session,
            prompt,
            passages,
            response,
            target,
            accepted: Accepted::default(),
        })
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::answer::tests::row;
    use super::*;

    fn trace() -> Trace {
        let mut first = row(&[1, 2], &[3, 4]);
        let mut branches = first.target.take().unwrap();
        let top = Top::new([(TokenId(5), 0.5), (TokenId(6), 0.25)]);
        branches.push(Branch { parent: 1, token: TokenId(7), top }).unwrap();
        branches.push(Branch { parent: 4, token: TokenId(8), top }).unwrap();
        first.target = Some(branches);
        first.passages = vec![vec![TokenId(1)], Vec::new()];
        Trace {
            model: "m".to_owned(),
            vocab_size: 10,
            rows: vec![first, TokenRow { index: 1, ..row(&[9], &[]) }],
        }
    }

    /// Bytes with a valid checksum after a change of the content.
    fn resealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = trace().to_bytes();
        bytes.truncate(bytes.len() - 8);
        change(&mut bytes);
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn every_reason_has_its_error() {
        let read = |bytes: &[u8]| Trace::from_bytes(bytes).unwrap_err();
        assert!(matches!(read(b"jsonl"), TraceError::NotATrace));
        assert!(matches!(read(&resealed(|b| b[8] = 9)), TraceError::Version { found: 9 }));
        assert!(matches!(read(&resealed(|b| b.push(0))), TraceError::Trailing { bytes: 1 }));
        let small = |vocab: u8| resealed(|b| b[12] = vocab);
        assert!(matches!(read(&small(3)), TraceError::Token { row: 0, token: 3, vocab_size: 3 }));
        // The name of the model: its length at 16, its text at 20; the rows' number follows.
        assert!(matches!(read(&resealed(|b| b[20] = 0xFF)), TraceError::NotUtf8 { row: 0 }));
        let long = read(&resealed(|b| b[16..20].copy_from_slice(&u32::MAX.to_le_bytes())));
        assert!(matches!(long, TraceError::Truncated { what: "a name", needed: 0xFFFF_FFFF, .. }), "{long}");
        let more = read(&resealed(|b| b[21] = 200));
        assert!(matches!(more, TraceError::Truncated { .. }), "{more}");
        let mut loops = trace();
        let rows = loops.rows[0].target.as_mut().unwrap();
        rows.branches[1].parent = 5;
        let error = read(&loops.to_bytes());
        assert!(matches!(error, TraceError::Parent { row: 0, branch: 1, parent: 5 }), "{error}");
        let mut empty = trace();
        empty.rows[1].prompt.clear();
        empty.rows[1].target = Some(Box::default());
        assert!(matches!(read(&empty.to_bytes()), TraceError::EmptyPrompt { row: 1 }));
        assert!(matches!(Trace::read("nowhere.trace".as_ref()).unwrap_err(), TraceError::Io { .. }));
    }

    fn tops() -> impl Strategy<Value = Top> {
        prop::collection::vec((0u32..50, 0.0f32..1.0), 0..10)
            .prop_map(|likely| Top::new(likely.into_iter().map(|(id, p)| (TokenId(id), p))))
    }

    fn tokens(at_least: usize) -> impl Strategy<Value = Vec<TokenId>> {
        prop::collection::vec((0u32..50).prop_map(TokenId), at_least..12)
    }

    fn rows() -> impl Strategy<Value = TokenRow> {
        let names = [".{0,9}", "[a-z]{1,5}", ".{0,9}"];
        let texts = (tokens(1), prop::collection::vec(tokens(0), 0..3), tokens(0));
        let branches = prop::collection::vec((any::<prop::sample::Index>(), 0u32..50, tops()), 0..9);
        (names, texts, prop::collection::vec(tops(), 24), branches).prop_map(
            |(names, texts, text, branches)| {
                let [id, task, subtask] = names;
                let (prompt, passages, response) = texts;
                let n_text = prompt.len() + response.len();
                let mut rows = Rows::new(prompt.len(), text[..n_text].to_vec());
                for (parent, token, top) in branches {
                    let places = n_text + rows.branches().len() - (prompt.len() - 1);
                    let parent = (prompt.len() - 1 + parent.index(places)) as u32;
                    rows.push(Branch { parent, token: TokenId(token), top }).unwrap();
                }
                let (session, target) = (Some(task.clone()), Some(Box::new(rows)));
                let accepted = Accepted::default();
                TokenRow {
                    index: 0,
                    id,
                    task,
                    subtask,
                    session,
                    prompt,
                    passages,
                    response,
                    target,
                    accepted,
                }
            },
        )
    }

    fn traces() -> impl Strategy<Value = Trace> {
        prop::collection::vec(rows(), 0..4).prop_map(|mut rows| {
            rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
            Trace { model: "model".to_owned(), vocab_size: 50, rows }
        })
    }

    proptest! {
        #[test]
        fn a_trace_reads_back(trace in traces()) {
            prop_assert_eq!(Trace::from_bytes(&trace.to_bytes()).unwrap(), trace);
        }

        #[test]
        fn cut_and_flipped_bytes_are_refused(trace in traces(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = trace.to_bytes();
            let at = at.index(bytes.len());
            prop_assert!(Trace::from_bytes(&bytes[..at]).is_err(), "cut at {}", at);
            bytes[at] ^= 1 << bit;
            prop_assert!(Trace::from_bytes(&bytes).is_err(), "bit {} of byte {}", bit, at);
        }

        /// A valid checksum says nothing about the content: whatever the bytes are, reading ends with a result.
        #[test]
        fn resealed_bytes_never_panic(at in any::<prop::sample::Index>(), value in any::<u8>()) {
            let bytes = resealed(|bytes| {
                let at = at.index(bytes.len());
                bytes[at] = value;
            });
            let _ = Trace::from_bytes(&bytes);
        }
    }
}
