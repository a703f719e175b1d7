//! Recorded rows: their files and their tokens.
//!
//! A file contains one JSON object per line. Empty lines are skipped, and unknown fields are ignored.
//!
//! | field | type | |
//! | --- | --- | --- |
//! | `id` | string | the row's name in reports |
//! | `task` | string | the kind of request; reports group by it |
//! | `subtask` | string, optional | the row's origin within the task; reports have a line for each |
//! | `prompt` | string | the whole input, including the context |
//! | `context` | string or list of strings, optional | the retrieved part of the prompt: the passages |
//! | `response` | string | the text to replay |
//! | `session` | string, optional | rows of the same session follow one another in order, and earlier answers may draft later ones |

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use refrain::{SpecialTokens, TokenId, Tokenizer, TokenizerError};
use serde::Deserialize;
use thiserror::Error;

use crate::threads;
use crate::trace::answer::Rows;

/// Maximum length of a line, in bytes: four times the longest text for a tokenizer.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of rows in all files.
pub const ROWS_MAX: usize = 1 << 20;

/// One recorded row.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Row {
    /// The row's name.
    pub id: String,
    /// The kind of request.
    pub task: String,
    /// The row's origin within the task.
    #[serde(default)]
    pub subtask: String,
    /// The conversation or run of the row.
    #[serde(default)]
    pub session: Option<String>,
    /// The whole input.
    pub prompt: String,
    /// The passages.
    #[serde(default, deserialize_with = "one_or_many")]
    pub context: Vec<String>,
    /// The text to replay.
    pub response: String,
}

/// One row in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// The row's index in its subtask. The halves of a collection are the even and the odd rows of each subtask.
    pub index: usize,
    /// The row's name.
    pub id: String,
    /// The kind of request.
    pub task: String,
    /// The row's origin within the task.
    pub subtask: String,
    /// The conversation or run of the row.
    pub session: Option<String>,
    /// The whole input; at least one token.
    pub prompt: Vec<TokenId>,
    /// The passages.
    pub passages: Vec<Vec<TokenId>>,
    /// The tokens to replay.
    pub response: Vec<TokenId>,
    /// The target's rows, if the response was recorded with them.
    pub target: Option<Box<Rows>>,
}

/// Rows could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RowsError {
    /// A file could not be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is not a valid row.
    #[error("{path}, line {line}: {source}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
    /// A line is too long.
    #[error("{path}, line {line} is longer than {max} bytes", path = path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The limit.
        max: u64,
    },
    /// There are too many rows.
    #[error("{path}, line {line}: more than {max} rows", path = path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The limit.
        max: usize,
    },
    /// A text could not be encoded.
    #[error("row {id}: {source}")]
    Tokenizer {
        /// The row.
        id: String,
        /// The reason.
        source: Box<TokenizerError>,
    },
    /// The prompt is empty, so there is no text to draft from.
    #[error("row {id} has an empty prompt")]
    EmptyPrompt {
        /// The row.
        id: String,
    },
}

/// Reads the rows of all files, in order.
///
/// # Errors
/// The error of the first invalid file or line.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Row>, RowsError> {
    let mut rows = Vec::new();
    for path in paths {
        read_file(path, &mut rows)?;
    }
    Ok(rows)
}

fn read_file(path: &Path, rows: &mut Vec<Row>) -> Result<(), RowsError> {
    let path = || path.to_owned();
    let io = |source| RowsError::Io { path: path(), source };
    let mut file = BufReader::new(File::open(path()).map_err(io)?);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let n_read = file.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text).map_err(io)?;
        if n_read == 0 {
            break;
        }
        if n_read as u64 > LINE_BYTES_MAX {
            return Err(RowsError::LineTooLong { path: path(), line, max: LINE_BYTES_MAX });
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        if rows.len() >= ROWS_MAX {
            return Err(RowsError::TooMany { path: path(), line, max: ROWS_MAX });
        }
        let row = serde_json::from_slice(&text);
        rows.push(row.map_err(|source| RowsError::Line { path: path(), line, source })?);
    }
    Ok(())
}

/// Encodes rows on `n_threads` threads. Prompt and response are encoded separately, as in the engine.
///
/// # Errors
/// The error of the first row that cannot be encoded or has no prompt.
pub fn encode(rows: &[Row], tokenizer: &Tokenizer, n_threads: usize) -> Result<Vec<TokenRow>, RowsError> {
    let placed: Vec<_> = places(rows).into_iter().zip(rows).collect();
    let encoded = threads::map(n_threads, &placed, |&(place, row)| encode_row(place, row, tokenizer));
    encoded.into_iter().collect()
}

/// Gives every prompt exactly `len` tokens, to measure at that context: the prompts of other rows stand before a shorter
/// one, and a longer one loses its first tokens.
pub fn set_prompt_len(rows: &mut [TokenRow], len: usize) {
    let prompts: Vec<_> = rows.iter().map(|row| row.prompt.clone()).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        // From the last token backwards; before the first row come the last ones.
        let backwards = prompts[..=i].iter().rev().chain(prompts.iter().rev().cycle());
        row.prompt = backwards.flat_map(|prompt| prompt.iter().rev().copied()).take(len).collect();
        row.prompt.reverse();
    }
}

/// The index of each row in its subtask.
fn places(rows: &[Row]) -> Vec<usize> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut places = Vec::with_capacity(rows.len());
    for row in rows {
        let count = counts.entry((&row.task, &row.subtask)).or_default();
        places.push(*count);
        *count += 1;
    }
    places
}

fn encode_row(index: usize, row: &Row, tokenizer: &Tokenizer) -> Result<TokenRow, RowsError> {
    let encode = |text: &str| {
        let tokens = tokenizer.encode(text, SpecialTokens::AsText);
        tokens.map_err(|source| RowsError::Tokenizer { id: row.id.clone(), source: Box::new(source) })
    };
    let prompt = encode(&row.prompt)?;
    if prompt.is_empty() {
        return Err(RowsError::EmptyPrompt { id: row.id.clone() });
    }
    Ok(TokenRow {
        index,
        id: row.id.clone(),
        task: row.task.clone(),
        subtask: row.subtask.clone(),
        session: row.session.clone(),
        passages: row.context.iter().map(|passage| encode(passage)).collect::<Result<_, _>>()?,
        response: encode(&row.response)?,
        target: None,
        prompt,
    })
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Option::<OneOrMany>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) if text.is_empty() => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Row>, RowsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        read(&[path])
    }

    #[test]
    fn context_is_a_string_a_list_or_nothing() {
        let row = |context: &str| format!(r#"{{"id":"1","task":"t","prompt":"p","response":"r"{context}}}"#);
        let text =
            [row(""), row(r#","context":"a""#), String::new(), row(r#","context":["a","b"]"#)].join("\n");
        let rows = read_text(&text).unwrap();
        assert_eq!(rows.iter().map(|row| row.context.len()).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn errors_name_file_and_line() {
        let error = read_text("\n{\"id\": 3}\n").unwrap_err();
        assert!(matches!(error, RowsError::Line { line: 2, .. }), "{error}");
        assert!(error.to_string().contains("rows.jsonl, line 2"), "{error}");
        assert!(matches!(read(&["nowhere.jsonl".into()]).unwrap_err(), RowsError::Io { .. }));
    }

    #[test]
    fn prompts_of_a_given_length() {
        let row = |prompt: &[u32]| TokenRow {
            index: 0,
            id: String::new(),
            task: String::new(),
            subtask: String::new(),
            session: None,
            prompt: prompt.iter().map(|&id| TokenId(id)).collect(),
            passages: Vec::new(),
            response: Vec::new(),
            target: None,
        };
        let mut rows = [row(&[1, 2]), row(&[3]), row(&[4, 5, 6, 7, 8])];
        set_prompt_len(&mut rows, 4);
        let prompts = rows.map(|row| row.prompt.iter().map(|token| token.0).collect::<Vec<_>>());
        assert_eq!(prompts, [vec![7, 8, 1, 2], vec![8, 1, 2, 3], vec![5, 6, 7, 8]]);
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let text = "x".repeat(LINE_BYTES_MAX as usize + 10);
        assert!(matches!(read_text(&text).unwrap_err(), RowsError::LineTooLong { line: 1, .. }));
    }
}
