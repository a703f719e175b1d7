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
//! | `tokens` | object, optional | instead of `prompt` and `response`: [token ids](TokenIds), for a row whose text is unknown |

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use refrain::{SpecialTokens, TokenId, Tokenizer, TokenizerError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::threads;
use crate::trace::answer::Rows;

/// Maximum length of a line, in bytes: four times the longest text for a tokenizer.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of rows in all files.
pub const ROWS_MAX: usize = 1 << 20;

/// Token ids of rows are below this: sixteen times the largest vocabulary in use.
pub const IDS_MAX: u32 = 1 << 22;

/// One recorded row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RowFields")]
pub struct Row {
    /// The row's name.
    pub id: String,
    /// The kind of request.
    pub task: String,
    /// The row's origin within the task.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subtask: String,
    /// The conversation or run of the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Prompt and response.
    #[serde(flatten)]
    pub content: Content,
}

/// Prompt and response of a row, as they were published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// Texts.
    Text(Texts),
    /// Token ids of the model that answered.
    Tokens {
        /// The ids.
        tokens: TokenIds,
    },
}

/// Prompt and response as texts.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Texts {
    /// The whole input.
    pub prompt: String,
    /// The passages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// The text to replay.
    pub response: String,
}

/// Prompt and response as token ids.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenIds {
    /// The whole input.
    pub prompt: Vec<TokenId>,
    /// The tokens to replay.
    pub response: Vec<TokenId>,
    /// What the drafters of the recording predicted.
    #[serde(default)]
    pub accepted: Accepted,
}

/// How many tokens a step of the recorded drafters commits, by the number of response tokens before it. 1 is the bonus token
/// alone; positions behind the end of a list are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Accepted {
    /// A draft head (EAGLE-3).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eagle: Vec<u32>,
    /// An n-gram rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ngram: Vec<u32>,
}

impl Row {
    /// The texts.
    ///
    /// # Errors
    /// [`RowsError::NoText`] if only token ids are known.
    pub fn texts(&self) -> Result<&Texts, RowsError> {
        match &self.content {
            Content::Text(texts) => Ok(texts),
            Content::Tokens { .. } => Err(RowsError::NoText { id: self.id.clone() }),
        }
    }
}

/// The fields of a line.
#[derive(Deserialize)]
struct RowFields {
    id: String,
    task: String,
    #[serde(default)]
    subtask: String,
    #[serde(default)]
    session: Option<String>,
    prompt: Option<String>,
    #[serde(default, deserialize_with = "one_or_many")]
    context: Vec<String>,
    response: Option<String>,
    tokens: Option<TokenIds>,
}

impl TryFrom<RowFields> for Row {
    type Error = &'static str;

    fn try_from(fields: RowFields) -> Result<Self, Self::Error> {
        let RowFields { id, task, subtask, session, prompt, context, response, tokens } = fields;
        let content = match (prompt, response, tokens) {
            (Some(prompt), Some(response), None) => Content::Text(Texts { prompt, context, response }),
            (None, None, Some(tokens)) if context.is_empty() => Content::Tokens { tokens },
            (_, _, Some(_)) => return Err("`tokens` stands beside `prompt`, `context` or `response`"),
            (None, _, None) => return Err("missing field `prompt`"),
            (Some(_), None, None) => return Err("missing field `response`"),
        };
        Ok(Row { id, task, subtask, session, content })
    }
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
    /// What the drafters of the recording predicted.
    pub accepted: Accepted,
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
    /// A token id is outside the vocabulary.
    #[error("row {id}: token {token} in a vocabulary of {vocab_size}")]
    Token {
        /// The row.
        id: String,
        /// The token.
        token: u32,
        /// The limit.
        vocab_size: usize,
    },
    /// The row has token ids where a text is needed.
    #[error("row {id} has no text, only token ids")]
    NoText {
        /// The row.
        id: String,
    },
    /// The row has a text where token ids are needed.
    #[error("row {id} has no token ids, only a text")]
    NoTokens {
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
        each_line(path, |line, text| {
            if rows.len() >= ROWS_MAX {
                return Err(RowsError::TooMany { path: path.clone(), line, max: ROWS_MAX });
            }
            let row = serde_json::from_slice(text);
            rows.push(row.map_err(|source| RowsError::Line { path: path.clone(), line, source })?);
            Ok(())
        })?;
    }
    Ok(rows)
}

/// Calls `read` with the number, from 1, and the bytes of each line that is not empty.
pub(crate) fn each_line<E: From<RowsError>>(
    path: &Path,
    mut read: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
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
            return Err(RowsError::LineTooLong { path: path(), line, max: LINE_BYTES_MAX }.into());
        }
        if !text.trim_ascii().is_empty() {
            read(line, &text)?;
        }
    }
    Ok(())
}

/// Encodes rows on `n_threads` threads. Prompt and response are encoded separately, as in the engine. Token ids stay as they are,
/// and are those of `tokenizer`.
///
/// # Errors
/// The error of the first row that cannot be encoded or has no prompt.
pub fn encode(rows: &[Row], tokenizer: &Tokenizer, n_threads: usize) -> Result<Vec<TokenRow>, RowsError> {
    let placed: Vec<_> = places(rows).into_iter().zip(rows).collect();
    let encoded = threads::map(n_threads, &placed, |&(place, row)| encode_row(place, row, tokenizer));
    encoded.into_iter().collect()
}

/// The rows of token ids, without their tokenizer, and the smallest vocabulary with all ids.
///
/// # Errors
/// The error of the first row that has a text, a token at [`IDS_MAX`] or above, or no prompt.
pub fn of_tokens(rows: &[Row]) -> Result<(Vec<TokenRow>, usize), RowsError> {
    let of_row = |(&index, row): (&usize, &Row)| match &row.content {
        Content::Tokens { tokens } => token_row(index, row, tokens.clone(), Vec::new(), IDS_MAX as usize),
        Content::Text(_) => Err(RowsError::NoTokens { id: row.id.clone() }),
    };
    let rows: Vec<_> = places(rows).iter().zip(rows).map(of_row).collect::<Result<_, _>>()?;
    let vocab_size = rows.iter().flat_map(TokenRow::tokens).max().map_or(0, |token| token.0 as usize + 1);
    Ok((rows, vocab_size))
}

impl TokenRow {
    fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.prompt.iter().chain(&self.response).chain(self.passages.iter().flatten()).copied()
    }
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
    let (tokens, passages) = match &row.content {
        Content::Text(Texts { prompt, context, response }) => {
            let passages = context.iter().map(|passage| encode(passage)).collect::<Result<_, _>>()?;
            let (prompt, response) = (encode(prompt)?, encode(response)?);
            (TokenIds { prompt, response, accepted: Accepted::default() }, passages)
        }
        Content::Tokens { tokens } => (tokens.clone(), Vec::new()),
    };
    token_row(index, row, tokens, passages, tokenizer.vocab_size())
}

fn token_row(
    index: usize,
    row: &Row,
    tokens: TokenIds,
    passages: Vec<Vec<TokenId>>,
    vocab_size: usize,
) -> Result<TokenRow, RowsError> {
    let TokenIds { prompt, response, accepted } = tokens;
    let row = TokenRow {
        index,
        id: row.id.clone(),
        task: row.task.clone(),
        subtask: row.subtask.clone(),
        session: row.session.clone(),
        prompt,
        passages,
        response,
        target: None,
        accepted,
    };
    if row.prompt.is_empty() {
        return Err(RowsError::EmptyPrompt { id: row.id });
    }
    let outside = row.tokens().find(|token| token.0 as usize >= vocab_size);
    match outside {
        Some(TokenId(token)) => Err(RowsError::Token { id: row.id, token, vocab_size }),
        None => Ok(row),
    }
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
        assert_eq!(rows.iter().map(|row| row.texts().unwrap().context.len()).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn token_ids_stand_instead_of_texts() {
        let line =
            r#"{"id":"1","task":"t","tokens":{"prompt":[7,1],"response":[2,9],"accepted":{"eagle":[1,2]}}}"#;
        let rows = read_text(line).unwrap();
        assert_eq!(serde_json::to_string(&rows[0]).unwrap(), line, "a row is written as it is read");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let tokenizer = refrain::checkpoint::Checkpoint::open(fixture).unwrap().tokenizer().unwrap();
        assert!(
            matches!(encode(&rows, &tokenizer, 1), Ok(encoded) if encoded[0].response == [TokenId(2), TokenId(9)])
        );
        let (of_tokens_alone, vocab_size) = of_tokens(&rows).unwrap();
        assert_eq!((of_tokens_alone[0].accepted.eagle.as_slice(), vocab_size), (&[1, 2][..], 10));
        let far = read_text(&line.replace("[2,9]", "[4194304]")).unwrap();
        for refused in [encode(&far, &tokenizer, 1).unwrap_err(), of_tokens(&far).unwrap_err()] {
            assert!(matches!(refused, RowsError::Token { token: 4_194_304, .. }), "{refused}");
        }
        let text = read_text(r#"{"id":"1","task":"t","prompt":"p","response":"r"}"#).unwrap();
        assert!(matches!(of_tokens(&text), Err(RowsError::NoTokens { .. })));
        assert!(matches!(rows[0].texts(), Err(RowsError::NoText { .. })));
        for (bad, problem) in [
            (r#"{"id":"1","task":"t","response":"r"}"#, "missing field `prompt`"),
            (r#"{"id":"1","task":"t","prompt":"p"}"#, "missing field `response`"),
            (r#"{"id":"1","task":"t","prompt":"p","tokens":{"prompt":[1],"response":[]}}"#, "stands beside"),
        ] {
            let error = read_text(bad).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("line 1"), "{error}");
        }
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
            accepted: Accepted::default(),
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
