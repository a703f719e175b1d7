//! `POST /api/chat` and `POST /api/generate`.

use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::read::{self, Asked, What};
use super::{known, message};
use crate::api::shared::logprobs_json;
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::blocking::blocking;
use crate::body::{self, Given};
use crate::error::ApiResult;
use crate::json::Ignored;
use crate::models::ModelKind;
use crate::response;
use crate::time::now;
use crate::work::{self, Finish, Piece, TokenLogprob, Usage};

pub(super) async fn chat(state: State<App>, request: Request) -> ApiResult<Response> {
    answer(state, request, read::chat, Form::Chat).await
}

pub(super) async fn generate(state: State<App>, request: Request) -> ApiResult<Response> {
    answer(state, request, read::generate, Form::Generate).await
}

/// Where an answer has its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Chat,
    Generate,
}

async fn answer(
    state: State<App>,
    request: Request,
    read: fn(Given<'_>) -> ApiResult<Asked>,
    form: Form,
) -> ApiResult<Response> {
    let since = Instant::now();
    let ignored = request.extensions().get::<Ignored>().cloned().unwrap_or_default();
    let (place, Asked { model, streams, what }) = body::read(&state, request, read).await?;
    let State(app) = state;
    let name = known(&app, model.clone());
    let mut head = Head { model, form, since, load_time: Duration::ZERO };
    let mut request = match what {
        What::Text(request) => *request,
        What::Load => {
            app.model(Some(name), ModelKind::Text).await?;
            return Ok(response::json(&head.without_text("load")));
        }
        What::Unload => {
            // An unknown model is refused.
            app.models().loaded(Some(&name), ModelKind::Text)?;
            let theirs = app.clone();
            if !blocking(move || Ok(theirs.models().unload(&name))).await? {
                ignored.add("keep_alive");
            }
            return Ok(response::json(&head.without_text("unload")));
        }
    };
    request.model = Some(name);
    let running = work::start(&app, place, request).await?;
    if running.n_left_out > 0 {
        ignored.add("messages[]");
    }
    head.load_time = running.load_time;
    let lines = Lines { head, call: None, finish: Finish::Stop, n_calls: 0 };
    if streams {
        return Ok(stream::response(running, lines, app.limits().ping_time));
    }
    let whole = running.whole(1).await?;
    let choice = &whole.choices[0];
    let calls: Vec<Value> = choice
        .calls
        .iter()
        .enumerate()
        .filter_map(|(index, call)| call_json(index, &call.id, &call.name, &call.arguments))
        .collect();
    let mut value = lines.head.text(&choice.text, &choice.reasoning, &choice.logprobs);
    if !calls.is_empty() {
        value["message"]["tool_calls"] = calls.into();
    }
    lines.head.end(&mut value, choice.finish.unwrap_or(Finish::Stop), &whole.usage);
    Ok(response::json(&value))
}

/// What every line has.
struct Head {
    /// As the request names it.
    model: String,
    form: Form,
    since: Instant,
    load_time: Duration,
}

impl Head {
    fn line(&self, message: Value) -> Value {
        let mut line = json!({ "model": self.model, "created_at": now(), "done": false });
        match (self.form, message) {
            (Form::Chat, message) => line["message"] = message,
            (Form::Generate, Value::Object(fields)) => {
                for (name, value) in fields {
                    match &*name {
                        "content" => line["response"] = value,
                        "thinking" => line["thinking"] = value,
                        _ => {}
                    }
                }
            }
            (Form::Generate, _) => {}
        }
        line
    }

    fn text(&self, text: &str, thinking: &str, logprobs: &[TokenLogprob]) -> Value {
        let mut message = json!({ "role": "assistant", "content": text });
        if !thinking.is_empty() {
            message["thinking"] = thinking.into();
        }
        let mut line = self.line(message);
        if !logprobs.is_empty() {
            line["logprobs"] = logprobs_json(logprobs).into();
        }
        line
    }

    fn without_text(&self, reason: &str) -> Value {
        let mut line = self.text("", "", &[]);
        line["done"] = true.into();
        line["done_reason"] = reason.into();
        line
    }

    /// Makes a line the last one: counts, and times in nanoseconds.
    fn end(&self, line: &mut Value, finish: Finish, usage: &Usage) {
        line["done"] = true.into();
        line["done_reason"] = match finish {
            Finish::Stop | Finish::ToolCalls => "stop",
            Finish::Length => "length",
        }
        .into();
        line["total_duration"] = nanoseconds(self.since.elapsed());
        line["load_duration"] = nanoseconds(self.load_time);
        line["prompt_eval_count"] = usage.prompt.into();
        line["prompt_eval_duration"] = nanoseconds(usage.prefill_time);
        line["eval_count"] = usage.output.into();
        line["eval_duration"] = nanoseconds(usage.decode_time);
    }
}

pub(super) fn nanoseconds(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}

/// A call, whose arguments are an object. One that was cut has none, and is left out.
fn call_json(index: usize, id: &str, name: &str, arguments: &str) -> Option<Value> {
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    Some(json!({ "id": id, "function": { "index": index, "name": name, "arguments": arguments } }))
}

/// The lines of a stream. A call is sent when it is complete.
struct Lines {
    head: Head,
    /// Id, name and arguments of the call that grows.
    call: Option<(String, String, String)>,
    n_calls: usize,
    finish: Finish,
}

impl Lines {
    fn send_call(&mut self, out: &mut Sink) {
        let Some((id, name, arguments)) = self.call.take() else { return };
        if let Some(call) = call_json(self.n_calls, &id, &name, &arguments) {
            self.n_calls += 1;
            let message = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
            out.line(&self.head.line(message));
        }
    }
}

impl Events for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn start(&mut self, _: &mut Sink) {}

    /// Clients read every line as JSON.
    fn ping(&mut self, _: &mut Sink) {}

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Prefill { .. } | Piece::Prompt { .. } => {}
            Piece::Reasoning { text, .. } => out.line(&self.head.text("", &text, &[])),
            Piece::Text { text, logprobs, .. } => out.line(&self.head.text(&text, "", &logprobs)),
            Piece::Call { id, name, .. } => {
                self.send_call(out);
                self.call = Some((id, name, String::new()));
            }
            Piece::Arguments { text, .. } => {
                if let Some((_, _, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
            }
            Piece::End { finish, .. } => {
                self.send_call(out);
                self.finish = finish;
            }
            Piece::Done(usage) => {
                let mut line = self.head.text("", "", &[]);
                self.head.end(&mut line, self.finish, &usage);
                out.line(&line);
            }
            Piece::Failed(error) => out.line(&json!({ "error": message(&error) })),
        }
    }
}
