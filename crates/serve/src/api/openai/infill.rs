//! `POST /infill`, the text between two texts, and `POST /completion`, the text behind a text: with the names and answers that editors and
//! scripts know from llama.cpp.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::error_json;
use super::head::timings_json;
use super::wire::infill::{NativeRequest, read, read_completion};
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::body::{self, Given};
use crate::error::ApiResult;
use crate::json::Ignored;
use crate::response;
use crate::work::{self, Finish, Piece, Running, Usage};

pub(crate) async fn fill(state: State<App>, request: Request) -> ApiResult<Response> {
    create(state, request, read).await
}

pub(crate) async fn complete(state: State<App>, request: Request) -> ApiResult<Response> {
    create(state, request, read_completion).await
}

async fn create(
    state: State<App>,
    request: Request,
    read: fn(Given<'_>) -> ApiResult<NativeRequest>,
) -> ApiResult<Response> {
    let ignored = request.extensions().get::<Ignored>().cloned().unwrap_or_default();
    let (place, request) = body::read(&state, request, read).await?;
    let State(app) = state;
    let running = work::start(&app, place, request.request).await?;
    if running.n_left_out > 0 {
        ignored.add("input_extra[]");
    }
    let mut lines = Lines { end: End::of(&running), wants_text: request.wants_text };
    if request.streams {
        return Ok(stream::response(running, lines, app.limits().ping_time));
    }
    let whole = running.whole(1).await?;
    let choice = &whole.choices[0];
    let content = if lines.wants_text { choice.text.as_str() } else { "" };
    lines.end.finish = choice.finish.unwrap_or(Finish::Stop);
    lines.end.stop = choice.stop.clone();
    Ok(response::json(&lines.end.json(content, &whole.usage)))
}

/// What the last part of an answer says.
struct End {
    model: String,
    /// Whether files were left out of the prompt.
    is_truncated: bool,
    finish: Finish,
    stop: Option<String>,
}

impl End {
    fn of(running: &Running) -> Self {
        let (model, is_truncated) = (running.model.id.clone(), running.n_left_out > 0);
        Self { model, is_truncated, finish: Finish::Stop, stop: None }
    }

    fn json(&self, content: &str, usage: &Usage) -> Value {
        let stop_type = match (self.finish, &self.stop) {
            (Finish::Length, _) => "limit",
            (_, Some(_)) => "word",
            (_, None) => "eos",
        };
        json!({
            "index": 0,
            "content": content,
            "stop": true,
            "model": self.model,
            "tokens_predicted": usage.output,
            "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.prompt + usage.output,
            "truncated": self.is_truncated,
            "stop_type": stop_type,
            "stopping_word": self.stop.as_deref().unwrap_or_default(),
            "timings": timings_json(usage),
        })
    }
}

struct Lines {
    end: End,
    wants_text: bool,
}

impl Events for Lines {
    fn start(&mut self, out: &mut Sink) {
        out.comment("queued");
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Text { text, .. } if self.wants_text && !text.is_empty() => {
                out.data(&json!({ "index": 0, "content": text, "stop": false }));
            }
            Piece::End { finish, stop, .. } => (self.end.finish, self.end.stop) = (finish, stop),
            Piece::Done(usage) => out.data(&self.end.json("", &usage)),
            Piece::Failed(error) => out.data(&error_json(&error)),
            _ => {}
        }
    }
}
