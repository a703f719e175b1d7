//! `POST /v1/responses`: items and typed events.
//!
//! The events at the start and at the end of a stream have the whole response, with the tools and the other fields of the request that the
//! protocol repeats. These are written as JSON once.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::head::done;
use super::wire::common::{self, tier_name};
use super::wire::responses::read;
use crate::api::shared::logprobs_json;
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::body::{self, Given};
use crate::error::{ApiError, ApiResult};
use crate::response;
use crate::responses::Stored;
use crate::time::unix_time;
use crate::work::{self, Annotation, Finish, Piece, TokenLogprob, Usage};

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let theirs = state.0.clone();
    let read = move |given: Given<'_>| {
        read(given, &|id| theirs.responses().find(id).map(|stored| stored.items.clone()))
    };
    let (place, request) = body::read(&state, request, read).await?;
    let State(app) = state;
    let tier = tier_name(request.request.priority);
    let mut running = work::start(&app, place, request.request).await?;
    // What was used, also where the request did not say.
    let mut echo = request.echo;
    for (name, used) in [
        ("temperature", running.sampling.temperature),
        ("top_p", running.sampling.top_p),
        ("presence_penalty", running.sampling.presence_penalty),
        ("frequency_penalty", running.sampling.frequency_penalty),
    ] {
        // The shortest digits, as the request may have had them.
        echo.insert(name.to_owned(), used.to_string().parse::<f64>().unwrap_or_default().into());
    }
    let mut builder = Builder {
        app: app.clone(),
        id: app.id("resp_"),
        created: unix_time(),
        model: running.model.id.clone(),
        tier,
        echo: fields_text(&echo),
        kept: request.kept,
        previous: request.previous,
        items: Vec::new(),
        open: None,
        n_events: 0,
    };
    if request.streams {
        return Ok(stream::response(running, builder, app.limits().ping_time));
    }
    // The events of a whole response lead nowhere; its items are those of the stream.
    let mut nowhere = Sink::default();
    while let Some(piece) = running.pieces.recv().await {
        match piece {
            Piece::Done(usage) => {
                let response = builder.response(builder.status(), Some(&usage), None);
                builder.keep(&response);
                return Ok(response::json_text(response));
            }
            Piece::Failed(error) => return Err(error),
            piece => builder.take(piece, &mut nowhere),
        }
        nowhere.clear();
    }
    Err(ApiError::stopped())
}

/// A kept response.
pub(crate) async fn one(State(app): State<App>, Path(id): Path<String>) -> ApiResult<Response> {
    let stored = app.responses().find(&id).ok_or_else(not_kept)?;
    Ok(response::json_text(stored.response.clone()))
}

/// Drops a kept response.
pub(crate) async fn delete(State(app): State<App>, Path(id): Path<String>) -> ApiResult<Response> {
    match app.responses().remove(&id) {
        true => Ok(response::json(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(not_kept()),
    }
}

fn not_kept() -> ApiError {
    ApiError::not_found("this server does not have the response, or no longer").with_param("response_id")
}

/// Collects the items of a response, and sends its events.
struct Builder {
    app: App,
    id: String,
    created: u64,
    model: String,
    tier: &'static str,
    /// The fields of the request, as JSON without the braces. Never empty.
    echo: String,
    /// The items of the conversation, if the response is kept.
    kept: Option<Vec<Value>>,
    previous: Option<String>,
    /// Items that are complete.
    items: Vec<Value>,
    open: Option<Open>,
    n_events: u64,
}

/// An object as JSON without its braces.
fn fields_text(fields: &Map<String, Value>) -> String {
    let field = |(name, value): (&String, &Value)| format!("{}:{value}", Value::from(name.as_str()));
    fields.iter().map(field).collect::<Vec<_>>().join(",")
}

/// An item that grows.
struct Open {
    id: String,
    kind: Kind,
    text: String,
    logprobs: Vec<TokenLogprob>,
}

enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

impl Open {
    fn item(&self, status: &str, annotations: &[Annotation]) -> Value {
        let Self { id, text, .. } = self;
        match &self.kind {
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "summary": [], "status": status,
                "content": [{ "type": "reasoning_text", "text": text }],
            }),
            Kind::Message => json!({
                "id": id, "type": "message", "role": "assistant", "status": status,
                "content": [self.part(annotations)],
            }),
            Kind::Call { call_id, name } => json!({
                "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": text, "status": status,
            }),
        }
    }

    /// The item as it is announced.
    fn empty_item(&self) -> Value {
        let mut item = self.item("in_progress", &[]);
        match &self.kind {
            Kind::Call { .. } => item["arguments"] = "".into(),
            _ => item["content"] = json!([]),
        }
        item
    }

    fn part(&self, annotations: &[Annotation]) -> Value {
        match &self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({
                "type": "output_text",
                "text": self.text,
                "annotations": annotations.iter().map(annotation_json).collect::<Vec<_>>(),
                "logprobs": logprobs_json(&self.logprobs),
            }),
        }
    }
}

fn annotation_json(annotation: &Annotation) -> Value {
    let mut value = common::annotation_json(annotation);
    value["type"] = "url_citation".into();
    value
}

/// How a response has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

impl Builder {
    /// The status at the end: the last item tells whether the output was cut.
    fn status(&self) -> Status {
        let is_cut = self.items.last().is_some_and(|item| item["status"] == "incomplete");
        if is_cut { Status::Incomplete } else { Status::Completed }
    }

    /// The response as JSON.
    fn response(&self, status: Status, usage: Option<&Usage>, error: Option<&ApiError>) -> String {
        let own = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": (status == Status::Completed).then(unix_time),
            "status": status.name(),
            "error": error.map(|error| json!({ "code": "server_error", "message": error.message })),
            "incomplete_details": (status == Status::Incomplete).then(|| json!({ "reason": "max_output_tokens" })),
            "model": self.model,
            "output": self.items,
            "previous_response_id": self.previous,
            "background": false,
            "service_tier": self.tier,
            "store": self.kept.is_some(),
            "truncation": "disabled",
            "usage": usage.map(|usage| json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
                "output_tokens": usage.output,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning },
                "total_tokens": usage.prompt + usage.output,
            })),
        });
        let own = own.as_object().map(fields_text).unwrap_or_default();
        format!("{{{own},{}}}", self.echo)
    }

    /// Keeps the response for later requests.
    fn keep(&mut self, response: &str) {
        let Some(mut items) = self.kept.take() else { return };
        items.extend(self.items.iter().cloned());
        self.app.responses().keep(Stored::new(self.id.clone(), items, response.to_owned()));
    }

    /// An event with the response.
    fn response_event(&mut self, name: &str, response: &str, out: &mut Sink) {
        let n = self.n_events;
        self.n_events += 1;
        out.named(name, format!(r#"{{"type":"{name}","sequence_number":{n},"response":{response}}}"#));
    }

    fn event(&mut self, name: &str, mut fields: Value, out: &mut Sink) {
        fields["type"] = name.into();
        fields["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        out.named(name, fields.to_string());
    }

    /// The fields that name the open item, and its part if it has parts.
    fn place(&self) -> Value {
        let Some(open) = &self.open else { return json!({}) };
        let mut place = json!({ "item_id": open.id, "output_index": self.items.len() });
        if !matches!(open.kind, Kind::Call { .. }) {
            place["content_index"] = 0.into();
        }
        place
    }

    fn begin(&mut self, prefix: &str, kind: Kind, out: &mut Sink) {
        self.close("completed", &[], out);
        let open = Open { id: self.app.id(prefix), kind, text: String::new(), logprobs: Vec::new() };
        let (item, part) = (open.empty_item(), open.part(&[]));
        let has_part = !matches!(open.kind, Kind::Call { .. });
        self.open = Some(open);
        let index = self.items.len();
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        if has_part {
            let mut place = self.place();
            place["part"] = part;
            self.event("response.content_part.added", place, out);
        }
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, annotations: &[Annotation], out: &mut Sink) {
        let mut place = self.place();
        let Some(open) = self.open.take() else { return };
        let (item, part) = (open.item(status, annotations), open.part(annotations));
        match &open.kind {
            Kind::Reasoning => {
                place["text"] = open.text.as_str().into();
                self.event("response.reasoning_text.done", place.clone(), out);
            }
            Kind::Message => {
                for (index, annotation) in annotations.iter().enumerate() {
                    let mut fields = place.clone();
                    fields["annotation_index"] = index.into();
                    fields["annotation"] = annotation_json(annotation);
                    self.event("response.output_text.annotation.added", fields, out);
                }
                place["text"] = open.text.as_str().into();
                place["logprobs"] = logprobs_json(&open.logprobs).into();
                self.event("response.output_text.done", place.clone(), out);
            }
            Kind::Call { name, .. } => {
                place["name"] = name.as_str().into();
                place["arguments"] = open.text.as_str().into();
                self.event("response.function_call_arguments.done", place.clone(), out);
            }
        }
        if !matches!(open.kind, Kind::Call { .. }) {
            let fields = json!({
                "item_id": open.id, "output_index": self.items.len(), "content_index": 0, "part": part,
            });
            self.event("response.content_part.done", fields, out);
        }
        let fields = json!({ "output_index": self.items.len(), "item": item });
        self.event("response.output_item.done", fields, out);
        self.items.push(item);
    }

    fn take(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            // Only continued texts have it.
            Piece::Prompt { .. } => {}
            Piece::Prefill { done, total, .. } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Reasoning { text, .. } => {
                if !matches!(&self.open, Some(Open { kind: Kind::Reasoning, .. })) {
                    self.begin("rs_", Kind::Reasoning, out);
                }
                self.grow("response.reasoning_text.delta", &text, None, out);
            }
            Piece::Text { text, logprobs, .. } => {
                if !matches!(&self.open, Some(Open { kind: Kind::Message, .. })) {
                    self.begin("msg_", Kind::Message, out);
                }
                self.grow("response.output_text.delta", &text, Some(logprobs), out);
            }
            Piece::Call { id, name, .. } => self.begin("fc_", Kind::Call { call_id: id, name }, out),
            Piece::Arguments { text, .. } => {
                self.grow("response.function_call_arguments.delta", &text, None, out);
            }
            Piece::End { finish, annotations, .. } => {
                if self.open.is_none() && self.items.is_empty() {
                    // An empty answer is a message too.
                    self.begin("msg_", Kind::Message, out);
                }
                let status = if finish == Finish::Length { "incomplete" } else { "completed" };
                self.close(status, &annotations, out);
            }
            Piece::Done(_) | Piece::Failed(_) => {}
        }
    }

    fn grow(&mut self, name: &str, text: &str, logprobs: Option<Vec<TokenLogprob>>, out: &mut Sink) {
        let mut fields = self.place();
        fields["delta"] = text.into();
        if let Some(logprobs) = &logprobs {
            fields["logprobs"] = logprobs_json(logprobs).into();
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            open.logprobs.extend(logprobs.unwrap_or_default());
        }
        self.event(name, fields, out);
    }
}

impl Events for Builder {
    fn start(&mut self, out: &mut Sink) {
        let response = self.response(Status::InProgress, None, None);
        self.response_event("response.created", &response, out);
        self.response_event("response.in_progress", &response, out);
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Done(usage) => {
                let status = self.status();
                let response = self.response(status, Some(&usage), None);
                self.keep(&response);
                self.response_event(&format!("response.{}", status.name()), &response, out);
                done(out);
            }
            Piece::Failed(error) => {
                self.close("incomplete", &[], out);
                let response = self.response(Status::Failed, None, Some(&error));
                self.response_event("response.failed", &response, out);
                done(out);
            }
            piece => self.take(piece, out),
        }
    }
}
