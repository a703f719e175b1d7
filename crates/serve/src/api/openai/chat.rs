//! `POST /v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::head::{self, Head};
use super::wire::chat::{Delivery, read};
use super::wire::common::{self, finish_name, origin_name, tier_name};
use crate::api::shared::logprobs_json;
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::response;
use crate::work::{self, Annotation, Call, Finish, Origin, Piece, TokenLogprob, Whole};

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (request, delivery)) = body::read(&state, request, read).await?;
    let State(app) = state;
    let with_logprobs = request.logprobs.is_some();
    let n = request.n;
    let tier = tier_name(request.priority);
    let running = work::start(&app, place, request).await?;
    let head = Head::new(&app, "chatcmpl-", &running, Some(tier));
    if delivery.streams {
        let is_started = vec![false; n];
        let events = Chunks { head, delivery, with_logprobs, is_started };
        return Ok(stream::response(running, events, app.limits().ping_time));
    }
    let answer = running.whole(n).await?;
    Ok(response::json(&whole_json(&answer, &head, with_logprobs)))
}

/// The answer that is sent at once.
fn whole_json(answer: &Whole, head: &Head, with_logprobs: bool) -> Value {
    let choices = answer.choices.iter().enumerate().map(|(index, choice)| {
        let mut message = json!({ "role": "assistant", "content": choice.text, "refusal": null });
        if choice.text.is_empty() && !choice.calls.is_empty() {
            message["content"] = Value::Null;
        }
        if !choice.reasoning.is_empty() {
            message["reasoning_content"] = choice.reasoning.as_str().into();
        }
        if !choice.calls.is_empty() {
            message["tool_calls"] = choice.calls.iter().map(call_json).collect();
        }
        if !choice.annotations.is_empty() {
            message["annotations"] = choice.annotations.iter().map(annotation_json).collect();
        }
        let logprobs =
            with_logprobs.then(|| json!({ "content": logprobs_json(&choice.logprobs), "refusal": null }));
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": choice.finish.map(finish_name),
        })
    });
    head.whole("chat.completion", choices.collect(), &answer.usage)
}

fn call_json(call: &Call) -> Value {
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}

fn annotation_json(annotation: &Annotation) -> Value {
    json!({ "type": "url_citation", "url_citation": common::annotation_json(annotation) })
}

/// The chunks of a stream.
struct Chunks {
    head: Head,
    delivery: Delivery,
    with_logprobs: bool,
    /// Whether the role of each output was sent.
    is_started: Vec<bool>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        self.head.chunk("chat.completion.chunk", choices, &self.delivery)
    }

    fn send(&self, choice: usize, delta: Value, logprobs: Value, finish: Option<Finish>, out: &mut Sink) {
        let finish = finish.map(finish_name);
        let choice =
            json!({ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        out.data(&self.chunk(json!([choice])));
    }

    fn delta(&mut self, choice: usize, delta: Value, logprobs: &[TokenLogprob], out: &mut Sink) {
        self.begin(choice, out);
        let logprobs = match self.with_logprobs && !logprobs.is_empty() {
            true => json!({ "content": logprobs_json(logprobs), "refusal": null }),
            false => Value::Null,
        };
        self.send(choice, delta, logprobs, None, out);
    }

    /// A delta with a text and its origin.
    fn text(&self, field: &str, text: String, origin: &Origin) -> Value {
        let mut delta = json!({ field: text });
        if self.delivery.shows_origins {
            delta["origin"] = origin_name(origin).into();
        }
        delta
    }

    /// Sends the role, once.
    fn begin(&mut self, choice: usize, out: &mut Sink) {
        if !std::mem::replace(&mut self.is_started[choice], true) {
            self.send(choice, json!({ "role": "assistant", "content": "" }), Value::Null, None, out);
        }
    }
}

impl Events for Chunks {
    fn start(&mut self, out: &mut Sink) {
        // The head of the stream arrives before the prefill.
        out.comment("queued");
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            // Only continued texts have it.
            Piece::Prompt { .. } => {}
            Piece::Prefill { done, total, cached } => {
                out.comment(&format!("prefill {done}/{total}"));
                if self.delivery.shows_progress {
                    head::progress(out, self.chunk(json!([])), done, total, cached);
                }
            }
            Piece::Reasoning { choice, text, origin } => {
                self.delta(choice, self.text("reasoning_content", text, &origin), &[], out);
            }
            Piece::Text { choice, text, logprobs, origin } => {
                self.delta(choice, self.text("content", text, &origin), &logprobs, out);
            }
            Piece::Call { choice, call, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": call, "id": id, "type": "function", "function": function });
                self.delta(choice, json!({ "tool_calls": [call] }), &[], out);
            }
            Piece::Arguments { choice, call, text } => {
                let call = json!({ "index": call, "function": { "arguments": text } });
                self.delta(choice, json!({ "tool_calls": [call] }), &[], out);
            }
            Piece::End { choice, finish, annotations, .. } => {
                self.begin(choice, out);
                let mut delta = json!({});
                if !annotations.is_empty() {
                    delta["annotations"] = annotations.iter().map(annotation_json).collect();
                }
                self.send(choice, delta, Value::Null, Some(finish), out);
            }
            Piece::Done(usage) => {
                head::end(out, self.chunk(json!([])), &self.delivery, &usage);
            }
            Piece::Failed(error) => head::failed(out, &error),
        }
    }
}
