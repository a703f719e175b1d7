//! The user's text as passages of tokens.
//!
//! A file of rows (`.jsonl`, an object with `prompt` and `response` per line) gives one passage per row: the request
//! in the model's chat template, then the response. Only the response is learnt. Any other file is text, divided into
//! passages that are learnt completely.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use refrain::{ChatOptions, Message, Role, SpecialTokens, TokenId, Tokenizer};
use serde::Deserialize;

use crate::Error;

/// Maximum size of a file.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A token sequence that the target processes from its first token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// The first position whose next token is learnt.
    pub first_learnt: usize,
}

#[derive(Deserialize)]
struct Row {
    prompt: String,
    response: String,
}

/// The passages of all files, in order, each of up to `len_max` tokens. Longer rows are left out.
///
/// # Errors
/// A file cannot be read, is too long or not text, or a line of it is not a row.
pub fn read(paths: &[PathBuf], tokenizer: &Tokenizer, len_max: usize) -> Result<Vec<Passage>, Error> {
    let mut passages = Vec::new();
    for path in paths {
        let text = read_file(path)?;
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.trim().is_empty()) {
                let row: Row = serde_json::from_str(row).map_err(|source| Error::Row {
                    path: path.clone(),
                    line,
                    source,
                })?;
                passages.extend(of_row(&row.prompt, &row.response, tokenizer, len_max)?);
            }
        } else {
            passages.extend(of_text(&text, tokenizer, len_max)?);
        }
    }
    Ok(passages)
}

fn read_file(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Text { path: path.to_owned(), source };
    let mut text = String::new();
    let n_read = File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(failed)?;
    if n_read as u64 > FILE_BYTES_MAX {
        return Err(Error::TextTooLong { path: path.to_owned(), max: FILE_BYTES_MAX });
    }
    Ok(text)
}

/// The passage of a request and its response. `None` if it is longer than `len_max` or has no learnt token.
///
/// # Errors
/// The texts cannot be encoded.
pub fn of_row(
    prompt: &str,
    response: &str,
    tokenizer: &Tokenizer,
    len_max: usize,
) -> Result<Option<Passage>, Error> {
    let mut tokens = match tokenizer.chat_template() {
        Some(_) => {
            tokenizer.encode_chat(&[Message::new(Role::User, prompt)], &ChatOptions::default(), true)?
        }
        None => tokenizer.encode(prompt, SpecialTokens::AsText)?,
    };
    let Some(first_learnt) = tokens.len().checked_sub(1) else { return Ok(None) };
    tokens.extend(tokenizer.encode(response, SpecialTokens::AsText)?);
    tokens.extend(tokenizer.eos().first());
    Ok((tokens.len() <= len_max && tokens.len() > first_learnt + 1)
        .then_some(Passage { tokens, first_learnt }))
}

fn of_text(text: &str, tokenizer: &Tokenizer, len_max: usize) -> Result<Vec<Passage>, Error> {
    let mut passages = Vec::new();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut tokens = Vec::new();
    for part in parts(text) {
        tokens.extend(tokenizer.encode(part, SpecialTokens::AsText)?);
    }
    for part in tokens.chunks(len_max.saturating_sub(1).max(1)) {
        let tokens: Vec<TokenId> = bos.into_iter().chain(part.iter().copied()).collect();
        if tokens.len() > 1 {
            passages.push(Passage { tokens, first_learnt: 0 });
        }
    }
    Ok(passages)
}

/// Bytes of text per encoding, below the tokenizer's limit.
const PART_BYTES: usize = 1 << 20;

/// The text in parts of about [`PART_BYTES`], divided after line ends if there are any.
fn parts(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let most = text.floor_char_boundary(PART_BYTES);
        let end = match text[..most].rfind('\n') {
            Some(at) if most < text.len() => at + 1,
            _ => most,
        };
        let (part, rest) = text.split_at(end);
        text = rest;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_lines_and_nothing_is_lost() {
        let lines = "a line of some length\n".repeat(120_000);
        let cut: Vec<&str> = parts(&lines).collect();
        assert!(cut.len() > 2 && cut.iter().all(|part| part.len() <= PART_BYTES && part.ends_with('\n')));
        assert_eq!(cut.concat(), lines);
        let one = "é".repeat(PART_BYTES);
        let cut: Vec<&str> = parts(&one).collect();
        assert_eq!((cut.len(), cut.concat()), (2, one.clone()));
        assert_eq!(parts("").count(), 0);
    }
}
