//! Traces that others published, as rows of recorded responses.
//!
//! | format | files | rows |
//! | --- | --- | --- |
//! | [`SpecdecodeBench`](Format::SpecdecodeBench) | `combined_….jsonl` of SpecDecode-Bench's simulator | token ids, with the accepted lengths of both drafters |
//! | [`Fastchat`](Format::Fastchat) | questions, then answers, of FastChat's `llm_judge` and what stands on it: MT-Bench, MT-Redundant, Spec-Bench | one for each turn of an answer, behind the turns before it. Without answers: one for the first turn of each question, with an empty response, for models that answer themselves |
//! | [`Canitedit`](Format::Canitedit) | `test.jsonl` of CanItEdit | two for each program: the descriptive and the lazy instruction; the response is the edited program |
//! | [`CodeifBench`](Format::CodeifBench) | `L_….jsonl` of CodeIF-Bench | one for each function; the response is the reference |
//!
//! A file is read line by line, and a row is written before the next line is read. Questions alone are kept.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use refrain::TokenId;
use refrain_files::replace::ReplaceError;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::rows::{self, Accepted, Content, ROWS_MAX, Row, RowsError, Texts, TokenIds};

/// Maximum bytes of the lines of all questions.
pub const QUESTIONS_BYTES_MAX: usize = 64 << 20;

/// A format of published files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// SpecDecode-Bench's simulator.
    SpecdecodeBench,
    /// Questions and answers of FastChat.
    Fastchat,
    /// CanItEdit.
    Canitedit,
    /// CodeIF-Bench.
    CodeifBench,
}

/// An import failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file could not be read, or a line is no JSON object.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// A field is missing.
    #[error("{at}: missing field `{field}`")]
    Missing {
        /// The line.
        at: Place,
        /// The field.
        field: &'static str,
    },
    /// A field has another type.
    #[error("{at}, field `{field}`: {source}")]
    Type {
        /// The line.
        at: Place,
        /// The field.
        field: &'static str,
        /// The reason.
        source: serde_json::Error,
    },
    /// A field has a value that is not possible.
    #[error("{at}, field `{field}`: {problem}")]
    Value {
        /// The line.
        at: Place,
        /// The field.
        field: &'static str,
        /// The reason.
        problem: String,
    },
    /// The questions do not fit the memory for them.
    #[error("{at}: the questions have more than {QUESTIONS_BYTES_MAX} bytes")]
    TooManyQuestions {
        /// The line.
        at: Place,
    },
    /// The rows could not be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
}

/// A line of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.path.display(), self.line)
    }
}

/// Reads `files` in order and gives each row to `put`. The task of a row is `task`, or else the name of its file without the
/// ending. Returns the number of rows.
///
/// # Errors
/// [`ImportError`] of the first line that is not as the format says, and the errors of `put`.
pub fn import(
    format: Format,
    files: &[PathBuf],
    task: Option<&str>,
    mut put: impl FnMut(&Row) -> Result<(), ImportError>,
) -> Result<usize, ImportError> {
    let mut n_rows = 0;
    let mut questions = Questions::default();
    for path in files {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let task = task.unwrap_or(&stem);
        rows::each_line(path, |line, text| {
            let line = Line { text, path, line, task };
            for row in line.rows(format, &mut questions)? {
                n_rows = count(n_rows, path, line.line)?;
                put(&row)?;
            }
            Ok::<_, ImportError>(())
        })?;
    }
    if n_rows == 0 {
        for (question, task, at) in questions.all {
            let prompt = question.turns.into_iter().next().unwrap_or_default();
            n_rows = count(n_rows, &at.path, at.line)?;
            put(&text_row(question.id, &task, question.category, prompt, String::new()))?;
        }
    }
    Ok(n_rows)
}

fn count(n_rows: usize, path: &Path, line: usize) -> Result<usize, RowsError> {
    match n_rows {
        ROWS_MAX.. => Err(RowsError::TooMany { path: path.to_owned(), line, max: ROWS_MAX }),
        n_rows => Ok(n_rows + 1),
    }
}

fn text_row(id: String, task: &str, subtask: String, prompt: String, response: String) -> Row {
    let content = Content::Text(Texts { prompt, context: Vec::new(), response });
    Row { id, task: task.to_owned(), subtask, session: None, content }
}

#[derive(Default)]
struct Questions {
    /// Each with its task and its line.
    all: Vec<(Question, String, Place)>,
    by_id: BTreeMap<String, usize>,
    n_bytes: usize,
}

struct Question {
    id: String,
    category: String,
    turns: Vec<String>,
}

/// The fields of all formats, unread.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    prompt_token_ids: Option<&'a RawValue>,
    generated_token_ids: Option<&'a RawValue>,
    acc_eagle: Option<&'a RawValue>,
    acc_ngram: Option<&'a RawValue>,
    question_id: Option<&'a RawValue>,
    category: Option<&'a RawValue>,
    turns: Option<&'a RawValue>,
    choices: Option<&'a RawValue>,
    before: Option<&'a RawValue>,
    after: Option<&'a RawValue>,
    instruction_descriptive: Option<&'a RawValue>,
    instruction_lazy: Option<&'a RawValue>,
    task_id: Option<&'a RawValue>,
    namespace: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    context: Option<&'a RawValue>,
    code: Option<&'a RawValue>,
}

/// A name: a string or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
struct Lengths {
    acc_len: Vec<u32>,
}

#[derive(Deserialize)]
struct Choice {
    turns: Vec<String>,
}

/// A line of a file.
struct Line<'a> {
    text: &'a [u8],
    path: &'a Path,
    line: usize,
    task: &'a str,
}

impl Line<'_> {
    fn at(&self) -> Place {
        Place { path: self.path.to_owned(), line: self.line }
    }

    fn value(&self, field: &'static str, problem: impl Into<String>) -> ImportError {
        ImportError::Value { at: self.at(), field, problem: problem.into() }
    }

    fn optional<'b, T: Deserialize<'b>>(
        &self,
        field: &'static str,
        value: Option<&'b RawValue>,
    ) -> Result<Option<T>, ImportError> {
        let read = |value: &'b RawValue| serde_json::from_str(value.get());
        let of_type = |source| ImportError::Type { at: self.at(), field, source };
        Ok(value.map(read).transpose().map_err(of_type)?.flatten())
    }

    fn required<'b, T: Deserialize<'b>>(
        &self,
        field: &'static str,
        value: Option<&'b RawValue>,
    ) -> Result<T, ImportError> {
        self.optional(field, value)?.ok_or_else(|| ImportError::Missing { at: self.at(), field })
    }

    fn name(&self, field: &'static str, value: Option<&RawValue>) -> Result<String, ImportError> {
        Ok(match self.required(field, value)? {
            Name::Text(name) => name,
            Name::Number(number) => number.to_string(),
        })
    }

    fn rows(&self, format: Format, questions: &mut Questions) -> Result<Vec<Row>, ImportError> {
        let read = serde_json::from_slice(self.text);
        let fields: Fields<'_> =
            read.map_err(|source| RowsError::Line { path: self.path.to_owned(), line: self.line, source })?;
        match format {
            Format::SpecdecodeBench => Ok(vec![self.recorded(&fields)?]),
            Format::Fastchat if fields.choices.is_some() => self.answers(&fields, questions),
            Format::Fastchat => self.question(&fields, questions).map(|()| Vec::new()),
            Format::Canitedit => self.edits(&fields),
            Format::CodeifBench => Ok(vec![self.function(&fields)?]),
        }
    }

    fn recorded(&self, fields: &Fields<'_>) -> Result<Row, ImportError> {
        let id = self.name("id", fields.id)?;
        let prompt = self.ids("prompt_token_ids", fields.prompt_token_ids)?;
        if prompt.is_empty() {
            return Err(self.value("prompt_token_ids", "no token"));
        }
        let response = self.ids("generated_token_ids", fields.generated_token_ids)?;
        let accepted = Accepted {
            eagle: self.lengths("acc_eagle", fields.acc_eagle, response.len())?,
            ngram: self.lengths("acc_ngram", fields.acc_ngram, response.len())?,
        };
        let content = Content::Tokens { tokens: TokenIds { prompt, response, accepted } };
        Ok(Row { id, task: self.task.to_owned(), subtask: String::new(), session: None, content })
    }

    fn ids(&self, field: &'static str, value: Option<&RawValue>) -> Result<Vec<TokenId>, ImportError> {
        let ids: Vec<TokenId> = self.required(field, value)?;
        match ids.iter().find(|id| id.0 >= rows::IDS_MAX) {
            Some(id) => Err(self.value(field, format!("token {} is not below {}", id.0, rows::IDS_MAX))),
            None => Ok(ids),
        }
    }

    /// Accepted lengths for at most `n` tokens. A drafter was recorded in a run of its own, whose answer may have another length.
    fn lengths(
        &self,
        field: &'static str,
        value: Option<&RawValue>,
        n: usize,
    ) -> Result<Vec<u32>, ImportError> {
        let Some(Lengths { mut acc_len }) = self.optional(field, value)? else { return Ok(Vec::new()) };
        acc_len.truncate(n);
        match acc_len.iter().position(|&length| length == 0) {
            Some(i) => Err(self.value(field, format!("`acc_len` {i} is 0; a step commits a token or more"))),
            None => Ok(acc_len),
        }
    }

    fn question(&self, fields: &Fields<'_>, questions: &mut Questions) -> Result<(), ImportError> {
        let id = self.name("question_id", fields.question_id)?;
        let category = self.optional("category", fields.category)?.unwrap_or_default();
        let turns: Vec<String> = self.required("turns", fields.turns)?;
        if turns.is_empty() {
            return Err(self.value("turns", "no turn"));
        }
        questions.n_bytes += self.text.len();
        if questions.n_bytes > QUESTIONS_BYTES_MAX {
            return Err(ImportError::TooManyQuestions { at: self.at() });
        }
        if questions.by_id.insert(id.clone(), questions.all.len()).is_some() {
            return Err(self.value("question_id", format!("question {id} occurs twice")));
        }
        questions.all.push((Question { id, category, turns }, self.task.to_owned(), self.at()));
        Ok(())
    }

    /// A row for each turn of the first choice.
    fn answers(&self, fields: &Fields<'_>, questions: &Questions) -> Result<Vec<Row>, ImportError> {
        let id = self.name("question_id", fields.question_id)?;
        let Some(&place) = questions.by_id.get(&id) else {
            return Err(self.value("question_id", format!("no question {id} in the files before")));
        };
        let Question { category, turns: asked, .. } = &questions.all[place].0;
        let choices: Vec<Choice> = self.required("choices", fields.choices)?;
        let Some(Choice { turns }) = choices.into_iter().next() else {
            return Err(self.value("choices", "no choice"));
        };
        if turns.len() > asked.len() {
            let problem = format!("{} turns to a question of {}", turns.len(), asked.len());
            return Err(self.value("choices", problem));
        }
        let mut prompt = String::new();
        let rows = turns.into_iter().zip(asked).enumerate().map(|(turn, (response, asked))| {
            prompt.push_str(asked);
            let id = format!("{id}-{}", turn + 1);
            let row = text_row(id, self.task, category.clone(), prompt.clone(), response);
            if let Content::Text(texts) = &row.content {
                prompt.push_str("\n\n");
                prompt.push_str(&texts.response);
                prompt.push_str("\n\n");
            }
            row
        });
        Ok(rows.collect())
    }

    fn edits(&self, fields: &Fields<'_>) -> Result<Vec<Row>, ImportError> {
        let id = self.name("id", fields.id)?;
        let before: String = self.required("before", fields.before)?;
        let after: String = self.required("after", fields.after)?;
        let instructions = [
            (
                "descriptive",
                self.required::<String>("instruction_descriptive", fields.instruction_descriptive)?,
            ),
            ("lazy", self.required("instruction_lazy", fields.instruction_lazy)?),
        ];
        let row = |(kind, instruction): (&str, String)| {
            let prompt = format!("{instruction}\n\n{before}\n\n");
            text_row(format!("{id}-{kind}"), self.task, kind.to_owned(), prompt, after.clone())
        };
        Ok(instructions.into_iter().map(row).collect())
    }

    fn function(&self, fields: &Fields<'_>) -> Result<Row, ImportError> {
        let id = match fields.task_id {
            Some(_) => self.name("task_id", fields.task_id)?,
            None => self.name("namespace", fields.namespace)?,
        };
        let request: String = self.required("prompt", fields.prompt)?;
        let context: Option<String> = self.optional("context", fields.context)?;
        let code: String = self.required("code", fields.code)?;
        let (kind, prompt) = match context {
            Some(context) => ("in a file", format!("{context}\n\n{request}\n\n")),
            None => ("alone", format!("{request}\n\n")),
        };
        Ok(text_row(id, self.task, kind.to_owned(), prompt, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(format: Format, files: &[(&str, &str)]) -> Result<Vec<Row>, ImportError> {
        let folder = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let paths: Vec<_> = files.iter().map(write).collect();
        let mut rows = Vec::new();
        import(format, &paths, None, |row| {
            rows.push(row.clone());
            Ok(())
        })?;
        Ok(rows)
    }

    fn refused(format: Format, files: &[(&str, &str)]) -> String {
        imported(format, files).unwrap_err().to_string()
    }

    const RECORDED: &str = r#"{"id":"a","prompt_token_ids":[1,2],"generated_token_ids":[3,4,5],
        "acc_eagle":{"acc_len":[1,2,1,7]},"acc_ngram":{"acc_len":[1,1]}}"#;

    #[test]
    fn recorded_ids_keep_their_lists() {
        let line = RECORDED.replace('\n', "");
        let rows = imported(Format::SpecdecodeBench, &[("combined_notes.jsonl", &line)]).unwrap();
        let Content::Tokens { tokens } = &rows[0].content else { panic!("{rows:?}") };
        assert_eq!((rows[0].task.as_str(), tokens.prompt.len()), ("combined_notes", 2));
        assert_eq!(tokens.accepted, Accepted { eagle: vec![1, 2, 1], ngram: vec![1, 1] });
        let alone = line.split_once(r#""acc_eagle""#).unwrap().0.replace(r#""a""#, "7") + r#""new":[[]]}"#;
        assert_eq!(imported(Format::SpecdecodeBench, &[("a", &alone)]).unwrap()[0].id, "7");
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let line = RECORDED.replace('\n', "");
        for (from, to, part) in [
            ("[1,2,1,7]", "[1,0]", "field `acc_eagle`: `acc_len` 1 is 0"),
            ("[1,2,1,7]", "[1,-2]", "field `acc_eagle`: invalid value"),
            ("[1,2,1,7]", "true", "field `acc_eagle`: invalid type"),
            ("[1,2],", "[],", "field `prompt_token_ids`: no token"),
            ("[1,2],", "[4194304],", "token 4194304 is not below 4194304"),
            ("\"generated_token_ids\":[3,4,5],", "", "missing field `generated_token_ids`"),
            ("\"a\"", "null", "missing field `id`"),
            ("{\"id\"", "[\"id\"", "line 2"),
        ] {
            let text = format!("{line}\n{}", line.replacen(from, to, 1));
            let error = refused(Format::SpecdecodeBench, &[("set.jsonl", &text)]);
            assert!(error.contains("set.jsonl, line 2") && error.contains(part), "{part}: {error}");
        }
        let nowhere = import(Format::Canitedit, &["nowhere.jsonl".into()], None, |_| Ok(()));
        assert!(matches!(nowhere, Err(ImportError::Rows(RowsError::Io { .. }))));
    }

    const QUESTIONS: &str = "{\"question_id\":1,\"category\":\"writing\",\"turns\":[\"Write.\",\"Again.\"]}\n{\"question_id\":2,\"turns\":[\"Say.\"]}\n";

    #[test]
    fn a_turn_stands_behind_the_turns_before_it() {
        let answers = r#"{"question_id":1,"choices":[{"index":0,"turns":["Sea.","Sea, sea."]}]}"#;
        let rows = imported(Format::Fastchat, &[("q.jsonl", QUESTIONS), ("model.jsonl", answers)]).unwrap();
        let shown: Vec<_> =
            rows.iter().map(|row| (row.id.as_str(), row.texts().unwrap().prompt.as_str())).collect();
        assert_eq!(shown, [("1-1", "Write."), ("1-2", "Write.\n\nSea.\n\nAgain.")]);
        assert_eq!((rows[1].task.as_str(), rows[1].subtask.as_str()), ("model", "writing"));
        let alone = imported(Format::Fastchat, &[("q.jsonl", QUESTIONS)]).unwrap();
        let shown: Vec<_> = alone.iter().map(|row| row.texts().unwrap()).collect();
        assert_eq!((shown[1].prompt.as_str(), shown[1].response.as_str(), alone.len()), ("Say.", "", 2));
    }

    #[test]
    fn answers_need_their_question() {
        let answer =
            |id: u32, turns: &str| format!(r#"{{"question_id":{id},"choices":[{{"turns":{turns}}}]}}"#);
        for (text, part) in [
            (answer(3, "[]"), "field `question_id`: no question 3"),
            (answer(2, r#"["a","b"]"#), "field `choices`: 2 turns to a question of 1"),
            (r#"{"question_id":2,"choices":[]}"#.to_owned(), "no choice"),
            (r#"{"question_id":2,"turns":["again"]}"#.to_owned(), "question 2 occurs twice"),
            (r#"{"question_id":4,"turns":[]}"#.to_owned(), "no turn"),
            (r#"{"question_id":4}"#.to_owned(), "missing field `turns`"),
        ] {
            let error = refused(Format::Fastchat, &[("q.jsonl", QUESTIONS), ("more.jsonl", &text)]);
            assert!(error.contains("more.jsonl, line 1") && error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn edits_and_functions_have_their_reference_as_response() {
        let edit = r#"{"id":4,"before":"a = 1","after":"b = 1","instruction_descriptive":"Rename a to b.","instruction_lazy":"a to b"}"#;
        let rows = imported(Format::Canitedit, &[("test.jsonl", edit)]).unwrap();
        let texts: Vec<_> = rows.iter().map(|row| row.texts().unwrap()).collect();
        assert_eq!((texts[1].prompt.as_str(), texts[1].response.as_str()), ("a to b\n\na = 1\n\n", "b = 1"));
        assert_eq!((rows[0].id.as_str(), rows[0].subtask.as_str()), ("4-descriptive", "descriptive"));
        let functions = "{\"task_id\":1,\"prompt\":\"Add.\",\"code\":\"x\"}\n{\"namespace\":\"a.b\",\"prompt\":\"Add.\",\"context\":\"import a\",\"code\":\"x\"}";
        let rows = imported(Format::CodeifBench, &[("L.jsonl", functions)]).unwrap();
        assert_eq!(rows[1].texts().unwrap().prompt, "import a\n\nAdd.\n\n");
        assert_eq!((rows[0].subtask.as_str(), rows[1].id.as_str()), ("alone", "a.b"));
        let error = refused(Format::CodeifBench, &[("L.jsonl", r#"{"prompt":"Add.","code":"x"}"#)]);
        assert!(error.contains("missing field `namespace`"), "{error}");
    }
}
