//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::{error_json, read};
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::response;
use crate::work::{self, Call, Finish, Piece, Usage};

pub(super) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (request, streams)) = body::read(&state, request, read::create).await?;
    let State(app) = state;
    let running = work::start(&app, place, request).await?;
    let (id, model, n_prompt) = (app.id("msg_"), running.model.id.clone(), running.n_prompt);
    let head = |content: Value, end: &End, usage: Value| {
        json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
            "stop_reason": end.reason, "stop_sequence": end.sequence, "usage": usage,
        })
    };
    if streams {
        // The parts that were computed before are not known yet.
        let usage = Usage { prompt: n_prompt, ..Usage::default() };
        let start = head(json!([]), &End::default(), usage_json(&usage));
        let events = Blocks { start, open: None, n_blocks: 0, end: End::default() };
        return Ok(stream::response(running, events, app.limits().ping_time));
    }
    let mut whole = running.whole(1).await?;
    let choice = whole.choices.swap_remove(0);
    let mut content = Vec::new();
    if !choice.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": choice.reasoning, "signature": "" }));
    }
    if !choice.text.is_empty() {
        content.push(json!({ "type": "text", "text": choice.text }));
    }
    content.extend(choice.calls.iter().map(call_json));
    let end = End::new(choice.finish, choice.stop);
    Ok(response::json(&head(content.into(), &end, usage_json(&whole.usage))))
}

/// The number of tokens of a conversation's prompt.
pub(super) async fn count_tokens(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, request) = body::read(&state, request, read::count).await?;
    let n_tokens = work::count(&state, place, request).await?;
    Ok(response::json(&json!({ "input_tokens": n_tokens })))
}

/// Why an answer has ended.
#[derive(Debug, Default)]
struct End {
    reason: Option<&'static str>,
    sequence: Option<String>,
}

impl End {
    fn new(finish: Option<Finish>, stop: Option<String>) -> Self {
        let reason = finish.map(|finish| match finish {
            Finish::Stop if stop.is_some() => "stop_sequence",
            Finish::Stop => "end_turn",
            Finish::Length => "max_tokens",
            Finish::ToolCalls => "tool_use",
        });
        Self { reason, sequence: stop }
    }
}

/// Tokens of the prompt that were computed before are counted apart.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    })
}

/// A complete call. One that was cut has no input.
fn call_json(call: &Call) -> Value {
    let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "type": "tool_use", "id": call_id(&call.id), "name": call.name, "input": input })
}

/// An id with the prefix of this API.
fn call_id(id: &str) -> String {
    format!("toolu_{}", id.rsplit('_').next().unwrap_or(id))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

/// The events of a stream: blocks one after the other.
struct Blocks {
    /// The message without its content.
    start: Value,
    /// The block that grows.
    open: Option<Kind>,
    /// Blocks before the one that grows.
    n_blocks: usize,
    end: End,
}

impl Blocks {
    fn event(name: &str, mut fields: Value, out: &mut Sink) {
        fields["type"] = name.into();
        out.named(name, fields.to_string());
    }

    fn begin(&mut self, kind: Kind, block: Value, out: &mut Sink) {
        self.close(out);
        self.open = Some(kind);
        Self::event("content_block_start", json!({ "index": self.n_blocks, "content_block": block }), out);
    }

    fn close(&mut self, out: &mut Sink) {
        if self.open.take().is_some() {
            Self::event("content_block_stop", json!({ "index": self.n_blocks }), out);
            self.n_blocks += 1;
        }
    }

    fn delta(&self, delta: Value, out: &mut Sink) {
        Self::event("content_block_delta", json!({ "index": self.n_blocks, "delta": delta }), out);
    }
}

impl Events for Blocks {
    fn start(&mut self, out: &mut Sink) {
        Self::event("message_start", json!({ "message": self.start }), out);
        self.ping(out);
    }

    fn ping(&mut self, out: &mut Sink) {
        Self::event("ping", json!({}), out);
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Prefill { .. } | Piece::Prompt { .. } => {}
            Piece::Reasoning { text, .. } => {
                if self.open != Some(Kind::Thinking) {
                    self.begin(
                        Kind::Thinking,
                        json!({ "type": "thinking", "thinking": "", "signature": "" }),
                        out,
                    );
                }
                self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Piece::Text { text, .. } => {
                if self.open != Some(Kind::Text) {
                    self.begin(Kind::Text, json!({ "type": "text", "text": "" }), out);
                }
                self.delta(json!({ "type": "text_delta", "text": text }), out);
            }
            Piece::Call { id, name, .. } => {
                let block = json!({ "type": "tool_use", "id": call_id(&id), "name": name, "input": {} });
                self.begin(Kind::Call, block, out);
            }
            Piece::Arguments { text, .. } => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": text }), out);
            }
            Piece::End { finish, stop, .. } => {
                self.close(out);
                self.end = End::new(Some(finish), stop);
            }
            Piece::Done(usage) => {
                let delta = json!({ "stop_reason": self.end.reason, "stop_sequence": self.end.sequence });
                let fields = json!({ "delta": delta, "usage": usage_json(&usage) });
                Self::event("message_delta", fields, out);
                Self::event("message_stop", json!({}), out);
            }
            Piece::Failed(error) => {
                out.named("error", error_json(&error).to_string());
            }
        }
    }
}
