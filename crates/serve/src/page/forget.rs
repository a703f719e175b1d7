//! The history of the page, and deletion.

use std::time::{Duration, SystemTime};

use axum::extract::{Request, State};
use axum::response::Response;
use refrain_assistant::{Assistant, Forget, ForgetError, Forgotten};
use serde_json::{Value, json};

use super::shown::Entry;
use super::state::Page;
use crate::blocking::blocking;
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::response;

pub(super) async fn history(State(page): State<Page>) -> Response {
    let shown = page.shown();
    let entries: Vec<&Entry> = shown.entries().collect();
    response::json(&json!({ "entries": entries }))
}

/// What a request wants to be deleted; a note by its id.
pub(super) enum What {
    Note(String),
    Before(SystemTime),
    Everything,
}

impl What {
    pub(super) fn read(value: &Value) -> ApiResult<Self> {
        let mut fields = Fields::of_request(value)?;
        fields.required("what")?;
        let what = match fields.choice("what", &["note", "before", "everything"])? {
            Some(0) => Self::Note(fields.required_string("id")?.to_owned()),
            Some(1) => {
                fields.required("at_ms")?;
                // Up to the year 9999: no time that a clock shows overflows.
                let at_ms = fields.integer("at_ms", 0..=253_402_300_800_000)?.unwrap_or_default();
                Self::Before(SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms.unsigned_abs()))
            }
            _ => Self::Everything,
        };
        fields.finish()?;
        Ok(what)
    }
}

pub(super) async fn forget(State(page): State<Page>, request: Request) -> ApiResult<Response> {
    let (place, what) =
        body::read(&State(page.app().clone()), request, |given| What::read(given.value)).await?;
    let what = match what {
        What::Note(id) => {
            let path = page.shown().source(&id).map(|source| source.path.clone());
            Forget::Note(path.ok_or_else(|| ApiError::not_found("the server no longer has this source"))?)
        }
        What::Before(time) => Forget::Before(time),
        What::Everything => Forget::Everything,
    };
    let (_, assistant) = page.assistant().await?;
    let forgotten = blocking(move || {
        let forgotten = page.forget(&assistant, &what);
        // Held until here, also if the client has gone.
        drop(place);
        forgotten
    });
    Ok(response::json(&forgotten_json(&forgotten.await?)))
}

pub(crate) fn forgotten_json(forgotten: &Forgotten) -> Value {
    let Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending, .. } = forgotten;
    json!({
        "n_answers": n_answers,
        "n_summaries": n_summaries,
        "n_prefix_blocks": n_prefix_blocks,
        "is_notes_pending": is_notes_pending,
    })
}

impl Page {
    /// Deletes what was kept, and what the page was shown of it.
    ///
    /// # Errors
    /// Status 500: not everything could be deleted.
    pub(crate) fn forget(&self, assistant: &Assistant, what: &Forget) -> ApiResult<Forgotten> {
        self.forget_with(assistant, std::slice::from_ref(what)).map_err(|_| {
            ApiError::server("not everything could be deleted; the rest is deleted at the next start")
        })
    }

    /// As [`forget`](Self::forget), with the reason of a failure.
    pub(crate) fn forget_with(
        &self,
        assistant: &Assistant,
        what: &[Forget],
    ) -> Result<Forgotten, ForgetError> {
        // Also if the store fails: what the page was shown goes first.
        what.iter().for_each(|what| self.forget_shown(what));
        let forgotten = assistant.forget_all(what.iter().cloned());
        // Jobs that ended meanwhile.
        what.iter().for_each(|what| self.forget_shown(what));
        // A client may have put any note into its requests.
        what.iter().for_each(|what| {
            self.app().responses().forget(match what {
                Forget::Before(time) => Some(*time),
                _ => None,
            });
        });
        forgotten
    }

    fn forget_shown(&self, what: &Forget) {
        let mut shown = self.shown();
        match what {
            Forget::Note(path) => shown.forget_note(path),
            Forget::Before(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                shown.forget_before(since.as_millis() as u64);
            }
            _ => shown.forget_everything(),
        }
    }
}
