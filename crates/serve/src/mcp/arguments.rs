//! The arguments of the tools, read with limits. A refusal names the argument.

use std::time::{Duration, SystemTime};

use refrain_index::notes::parse_date;
use refrain_index::{NoteFilter, SourceKind};
use serde_json::Value;

use super::names::{self, Names};
use crate::error::{ApiError, ApiResult};
use crate::json::fields::{Fields, check_text};

/// Maximum length of a query, in bytes. A search reads 512 words of it.
pub(super) const QUERY_BYTES_MAX: usize = 8 << 10;
/// Maximum length of a question, in bytes, as on the page.
pub(super) const QUESTION_BYTES_MAX: usize = 32 << 10;
/// Maximum number of earlier questions. A search reads five of them.
pub(super) const EARLIER_MAX: usize = 16;
/// Maximum length of an instruction or a title, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 4 << 10;
/// Maximum length of a text that is summarised, in bytes: about 250,000 tokens, more than 32 parts of most contexts.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of hits of a search. A passage has at most 120 words.
pub(super) const HITS_MAX: i64 = 50;
/// Maximum number of passages of an answer. The context of the model is a limit of its own.
pub(super) const PASSAGES_MAX: i64 = 32;
/// Maximum number of names in a filter.
pub(super) const NAMES_MAX: usize = 32;
/// Maximum length of an output, in tokens. Half of the model's context is a limit of its own.
pub(super) const TOKENS_MAX: i64 = 4096;
/// Hits without `limit`.
pub(super) const HITS: usize = 8;

/// A call of a tool whose arguments are in their limits.
pub(super) enum Call {
    Search(SearchCall),
    Answer(AnswerCall),
    Summarize(SummarizeCall),
    Forget(ForgetCall),
}

pub(super) struct SearchCall {
    pub(super) query: String,
    pub(super) limit: usize,
    pub(super) filter: Filter,
}

/// Conditions on passages. Folders have names for people.
pub(super) struct Filter {
    pub(super) folders: Vec<String>,
    /// The others.
    pub(super) conditions: NoteFilter,
}

impl Filter {
    /// The conditions, with the paths of these names.
    ///
    /// # Errors
    /// As [`Names::paths`].
    pub(super) fn of(self, names: &Names) -> ApiResult<NoteFilter> {
        Ok(NoteFilter { folders: names.all_paths(&self.folders)?, ..self.conditions })
    }
}

pub(super) struct AnswerCall {
    pub(super) question: String,
    pub(super) earlier: Vec<String>,
    pub(super) limit: Option<usize>,
    pub(super) filter: Filter,
    pub(super) output: Output,
}

pub(super) struct SummarizeCall {
    pub(super) subject: Subject,
    pub(super) instruction: String,
    pub(super) output: Output,
}

pub(super) enum Subject {
    /// The id of a note.
    Note(String),
    Text {
        title: String,
        text: String,
    },
    Query(String),
}

pub(super) enum ForgetCall {
    /// The id of a note.
    Note(String),
    Folder(String),
    Before(SystemTime),
}

/// What calls of the model have in common.
pub(super) struct Output {
    pub(super) max_tokens: Option<usize>,
    pub(super) keep: bool,
}

impl Call {
    /// # Errors
    /// There is no such tool, or an argument is refused.
    pub(super) fn read(name: &str, arguments: &Value) -> ApiResult<Self> {
        let mut fields = Fields::of_request(arguments)?;
        let call = match name {
            "search_notes" => Self::Search(search(&mut fields)?),
            "answer_from_notes" => Self::Answer(answer(&mut fields)?),
            "summarize" => Self::Summarize(summarize(&mut fields)?),
            "forget" => Self::Forget(forget(&mut fields)?),
            // A name may be text that went astray, so it is not repeated.
            _ => {
                return Err(ApiError::field("name", "this server has no such tool").with_code("unknown_tool"));
            }
        };
        fields.finish()?;
        Ok(call)
    }
}

fn search(fields: &mut Fields<'_>) -> ApiResult<SearchCall> {
    let query = fields.required_text("query", QUERY_BYTES_MAX)?;
    let limit = count(fields, "limit", HITS_MAX)?.unwrap_or(HITS);
    Ok(SearchCall { query, limit, filter: filter(fields)? })
}

fn filter(fields: &mut Fields<'_>) -> ApiResult<Filter> {
    let kinds = names_in(fields, "kinds")?;
    let kinds = kinds.iter().map(|kind| {
        let known = SourceKind::ALL.into_iter().find(|known| known.name() == kind);
        known.ok_or_else(|| {
            let names: Vec<String> =
                SourceKind::ALL.into_iter().map(|kind| format!("`{}`", kind.name())).collect();
            ApiError::field("kinds", format!("one of {} is expected", names.join(", ")))
        })
    });
    let conditions = NoteFilter {
        kinds: kinds.collect::<ApiResult<_>>()?,
        tags: names_in(fields, "tags")?,
        from: date(fields, "from")?.map(|(seconds, _)| seconds),
        // A day without a time counts as a whole.
        until: date(fields, "until")?
            .map(|(seconds, is_day)| if is_day { seconds + 86_399 } else { seconds }),
        ..NoteFilter::default()
    };
    Ok(Filter { folders: names_in(fields, "folders")?, conditions })
}

fn answer(fields: &mut Fields<'_>) -> ApiResult<AnswerCall> {
    Ok(AnswerCall {
        question: fields.required_text("question", QUESTION_BYTES_MAX)?,
        earlier: fields.texts("earlier", EARLIER_MAX, QUESTION_BYTES_MAX)?,
        limit: count(fields, "limit", PASSAGES_MAX)?,
        filter: filter(fields)?,
        output: output(fields)?,
    })
}

fn summarize(fields: &mut Fields<'_>) -> ApiResult<SummarizeCall> {
    let (note, query) = (note(fields)?, optional(fields, "query", QUERY_BYTES_MAX)?);
    let (text, title) =
        (optional(fields, "text", TEXT_BYTES_MAX)?, optional(fields, "title", LINE_BYTES_MAX)?);
    let subject = match (note, text, query) {
        (Some(id), None, None) => Subject::Note(id),
        (None, Some(text), None) => Subject::Text { title: title.clone().unwrap_or_default(), text },
        (None, None, Some(query)) => Subject::Query(query),
        _ => return Err(ApiError::field("note", "exactly one of `note`, `text` and `query` is expected")),
    };
    if title.is_some() && !matches!(subject, Subject::Text { .. }) {
        return Err(ApiError::field("title", "a title is for `text` only"));
    }
    let instruction = optional(fields, "instruction", LINE_BYTES_MAX)?.unwrap_or_default();
    Ok(SummarizeCall { subject, instruction, output: output(fields)? })
}

fn forget(fields: &mut Fields<'_>) -> ApiResult<ForgetCall> {
    let (note, folder) = (note(fields)?, optional(fields, "folder", LINE_BYTES_MAX)?);
    match (note, folder, date(fields, "before")?) {
        (Some(id), None, None) => Ok(ForgetCall::Note(id)),
        (None, Some(folder), None) => Ok(ForgetCall::Folder(folder)),
        (None, None, Some((seconds, _))) => {
            // Nothing was kept before 1970.
            let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            Ok(ForgetCall::Before(SystemTime::UNIX_EPOCH + since))
        }
        _ => Err(ApiError::field("note", "exactly one of `note`, `folder` and `before` is expected")),
    }
}

fn output(fields: &mut Fields<'_>) -> ApiResult<Output> {
    let max_tokens = count(fields, "max_tokens", TOKENS_MAX)?;
    Ok(Output { max_tokens, keep: fields.bool("keep")?.unwrap_or(true) })
}

fn optional(fields: &mut Fields<'_>, name: &'static str, bytes_max: usize) -> ApiResult<Option<String>> {
    Ok(fields.text(name, bytes_max)?.map(str::to_owned))
}

fn count(fields: &mut Fields<'_>, name: &'static str, max: i64) -> ApiResult<Option<usize>> {
    Ok(fields.integer(name, 1..=max)?.and_then(|n| usize::try_from(n).ok()))
}

fn names_in(fields: &mut Fields<'_>, name: &'static str) -> ApiResult<Vec<String>> {
    let items = fields.array(name)?.unwrap_or_default();
    if items.len() > NAMES_MAX {
        return Err(ApiError::field(name, format!("{} names exceed the limit of {NAMES_MAX}", items.len())));
    }
    let text = |item: &Value| {
        let text = item.as_str().ok_or_else(|| ApiError::field(name, "an array of strings is expected"))?;
        check_text(name, text, LINE_BYTES_MAX).map(str::to_owned)
    };
    items.iter().map(text).collect()
}

/// Seconds since 1970, and whether it is a day without a time.
fn date(fields: &mut Fields<'_>, name: &'static str) -> ApiResult<Option<(i64, bool)>> {
    let Some(text) = fields.string(name)? else { return Ok(None) };
    let seconds = Some(text).filter(|text| text.len() <= 64).and_then(parse_date);
    let seconds = seconds.ok_or_else(|| {
        ApiError::field(name, "a date like `2024-05-01` or `2024-05-01T12:30:00Z` is expected")
    })?;
    Ok(Some((seconds, !text.contains([':', 'T', 't', ' ']))))
}

/// The id in the URI of a note.
fn note(fields: &mut Fields<'_>) -> ApiResult<Option<String>> {
    let Some(uri) = fields.string("note")? else { return Ok(None) };
    let id = names::id_of(uri);
    id.map(|id| Some(id.to_owned()))
        .ok_or_else(|| ApiError::field("note", format!("a URI like `{}…` is expected", names::SCHEME)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(name: &str, arguments: Value) -> ApiError {
        let error = Call::read(name, &arguments).err().unwrap_or_else(|| panic!("{name} {arguments}"));
        assert!(!error.message.contains("secret"), "{error:?}");
        error
    }

    #[test]
    fn refusals_name_the_argument_and_its_limit() {
        let note = format!("{}{}", names::SCHEME, "0".repeat(32));
        let long = |n: usize| "x".repeat(n + 1);
        let many = vec!["a"; NAMES_MAX + 1];
        for (name, arguments, param) in [
            ("search_notes", json!({}), "query"),
            ("search_notes", json!({ "query": " " }), "query"),
            ("search_notes", json!({ "query": long(QUERY_BYTES_MAX) }), "query"),
            ("search_notes", json!({ "query": "a", "limit": 0 }), "limit"),
            ("search_notes", json!({ "query": "a", "limit": HITS_MAX + 1 }), "limit"),
            ("search_notes", json!({ "query": "a", "limit": 1.5 }), "limit"),
            ("search_notes", json!({ "query": "a", "kinds": ["secret"] }), "kinds"),
            ("search_notes", json!({ "query": "a", "tags": many }), "tags"),
            ("search_notes", json!({ "query": "a", "folders": "secret" }), "folders"),
            ("search_notes", json!({ "query": "a", "from": "secret" }), "from"),
            ("search_notes", json!({ "query": "a", "other": "secret" }), "other"),
            ("answer_from_notes", json!({ "question": 1 }), "question"),
            ("answer_from_notes", json!({ "question": long(QUESTION_BYTES_MAX) }), "question"),
            ("answer_from_notes", json!({ "question": "a", "limit": PASSAGES_MAX + 1 }), "limit"),
            ("answer_from_notes", json!({ "question": "a", "max_tokens": TOKENS_MAX + 1 }), "max_tokens"),
            ("answer_from_notes", json!({ "question": "a", "keep": "secret" }), "keep"),
            ("summarize", json!({}), "note"),
            ("summarize", json!({ "note": note, "text": "a" }), "note"),
            ("summarize", json!({ "note": "file:///etc/passwd" }), "note"),
            ("summarize", json!({ "query": "a", "title": "b" }), "title"),
            ("summarize", json!({ "text": long(TEXT_BYTES_MAX) }), "text"),
            ("summarize", json!({ "text": "a", "instruction": long(LINE_BYTES_MAX) }), "instruction"),
            ("forget", json!({}), "note"),
            ("forget", json!({ "folder": "a", "before": "2024-05-01" }), "note"),
            ("forget", json!({ "before": "2024-13-01" }), "before"),
            ("forget", json!({ "note": format!("{}../../etc", names::SCHEME) }), "note"),
            ("secret", json!({}), "name"),
        ] {
            let error = refused(name, arguments.clone());
            assert_eq!(error.param.as_deref(), Some(param), "{name} {arguments}: {error:?}");
        }
    }

    #[test]
    fn a_day_ends_with_its_last_second() {
        let read = |until: &str| match Call::read("search_notes", &json!({ "query": "a", "until": until })) {
            Ok(Call::Search(search)) => search.filter.conditions.until,
            _ => panic!("{until}"),
        };
        assert_eq!(read("1970-01-02"), Some(2 * 86_400 - 1));
        assert_eq!(read("1970-01-02T00:00"), Some(86_400));
    }
}
