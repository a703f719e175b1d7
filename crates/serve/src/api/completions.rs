//! `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::chat::whole;
use super::head::Head;
use super::sse::{self, Events, Sink};
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::response;
use crate::wire::chat::Delivery;
use crate::wire::common::{finite, origin_name};
use crate::wire::completions::read;
use crate::work::{self, Finish, Input, Piece, Plain, TokenLogprob};

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (request, delivery, echoes)) =
        body::read(&state, request, |value, app| read(value, app.limits())).await?;
    let State(app) = state;
    let n_top = request.logprobs;
    let Input::Plain(prompts) = &request.input else { unreachable!("the reader makes plain prompts") };
    let n_outputs = prompts.len() * request.n;
    // What each output begins with.
    let begins: Vec<String> = (0..n_outputs)
        .map(|output| match &prompts[output / request.n] {
            Plain::Text(text) if echoes => text.clone(),
            _ => String::new(),
        })
        .collect();
    let running = work::start(&app, place, request).await?;
    let head = Head::new(&app, "cmpl-", &running, None);
    if delivery.streams {
        let n_chars = vec![0; n_outputs];
        let events = Chunks { head, delivery, begins, n_chars };
        return Ok(sse::response(running, events, app.limits().ping_time));
    }
    let answer = whole(running, n_outputs).await?;
    let choices = answer.choices.iter().zip(&begins).enumerate().map(|(index, (choice, begin))| {
        let starts = choice.text_starts.iter().map(|&start| choice.text[..start].chars().count());
        json!({
            "index": index,
            "text": format!("{begin}{}", choice.text),
            "logprobs": n_top.map(|_| logprobs_json(&choice.logprobs, starts)),
            "finish_reason": choice.finish.map(Finish::name),
        })
    });
    Ok(response::json(&head.whole(OBJECT, choices.collect(), &answer.usage)))
}

const OBJECT: &str = "text_completion";

/// Lists of tokens, their probabilities and places, as this endpoint has them. `starts` are in characters.
fn logprobs_json(tokens: &[TokenLogprob], starts: impl Iterator<Item = usize>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let top = |token: &TokenLogprob| {
        // Two tokens may have one text; the likelier one comes first.
        let mut top = Map::new();
        for (bytes, logprob) in &token.top {
            top.entry(text(bytes)).or_insert_with(|| finite(*logprob).into());
        }
        Value::Object(top)
    };
    json!({
        "tokens": tokens.iter().map(|token| text(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": starts.collect::<Vec<_>>(),
    })
}

struct Chunks {
    head: Head,
    delivery: Delivery,
    begins: Vec<String>,
    /// Characters of each output so far.
    n_chars: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        self.head.chunk(OBJECT, choices, &self.delivery)
    }

    fn text(&self, index: usize, text: &str, logprobs: Value, finish: Option<Finish>) -> Value {
        let finish = finish.map(Finish::name);
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        self.chunk(json!([choice]))
    }
}

impl Events for Chunks {
    fn start(&mut self, out: &mut Sink) {
        out.comment("queued");
        for (index, begin) in self.begins.iter().enumerate().filter(|(_, begin)| !begin.is_empty()) {
            out.data(&self.text(index, begin, Value::Null, None));
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Prefill { done, total, .. } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Text { choice, text, logprobs, origin } => {
                let start = self.n_chars[choice];
                self.n_chars[choice] += text.chars().count();
                let logprobs = match logprobs.is_empty() {
                    true => Value::Null,
                    false => logprobs_json(&logprobs, logprobs.iter().map(|_| start)),
                };
                let mut chunk = self.text(choice, &text, logprobs, None);
                if self.delivery.shows_origins {
                    chunk["choices"][0]["origin"] = origin_name(&origin).into();
                }
                out.data(&chunk);
            }
            // A continued text has none of them.
            Piece::Reasoning { .. } | Piece::Call { .. } | Piece::Arguments { .. } => {}
            Piece::End { choice, finish, .. } => {
                out.data(&self.text(choice, "", Value::Null, Some(finish)));
            }
            Piece::Done(usage) => {
                out.end(self.chunk(json!([])), self.delivery.includes_usage.then_some(&usage))
            }
            Piece::Failed(error) => out.failed(&error),
        }
    }
}
