//! `POST /v1/completions`.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::head::{self, Head};
use super::wire::chat::Delivery;
use super::wire::common::{finish_name, origin_name};
use super::wire::completions::read;
use crate::api::shared::finite;
use crate::api::stream::{self, Events, Sink};
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::response;
use crate::work::{self, Finish, Input, Piece, Plain, PromptScores, TokenLogprob};

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (request, delivery, echoes)) = body::read(&state, request, read).await?;
    let State(app) = state;
    let (n_top, scores_prompts) = (request.logprobs, request.scores_prompts);
    let (plain, n_prompts) = match &request.input {
        Input::Plain(prompts) => (&**prompts, prompts.len()),
        Input::Gaps(gaps) => (&[][..], gaps.len()),
        Input::Chat(_) => unreachable!("the reader makes no conversation"),
    };
    let n_outputs = n_prompts * request.n;
    // What each output begins with.
    let begins: Vec<String> = (0..n_outputs)
        .map(|output| match plain.get(output / request.n) {
            Some(Plain::Text(text)) if echoes => text.clone(),
            _ => String::new(),
        })
        .collect();
    let running = work::start(&app, place, request).await?;
    let head = Head::new(&app, "cmpl-", &running, None);
    if delivery.streams {
        let n_chars = vec![0; n_outputs];
        let events = Chunks { head, delivery, begins, scores_prompts, n_chars };
        return Ok(stream::response(running, events, app.limits().ping_time));
    }
    let answer = running.whole(n_outputs).await?;
    let choices = answer.choices.iter().zip(&begins).enumerate().map(|(index, (choice, begin))| {
        let mut list = TokenList::default();
        let begin = match &choice.prompt {
            None => begin.clone(),
            Some(prompt) => list.prompt(prompt, begin),
        };
        let n_begin = list.n_chars;
        for (token, &start) in choice.logprobs.iter().zip(&choice.text_starts) {
            list.token(token, n_begin + choice.text[..start].chars().count());
        }
        json!({
            "index": index,
            "text": format!("{begin}{}", choice.text),
            "logprobs": n_top.map(|_| list.json()),
            "finish_reason": choice.finish.map(finish_name),
        })
    });
    Ok(response::json(&head.whole(OBJECT, choices.collect(), &answer.usage)))
}

const OBJECT: &str = "text_completion";

/// Lists of tokens, their probabilities and places, as this endpoint has them. Places are in characters.
#[derive(Default)]
struct TokenList {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    starts: Vec<usize>,
    /// Characters of the prompt.
    n_chars: usize,
}

impl TokenList {
    fn token(&mut self, token: &TokenLogprob, start: usize) {
        // Two tokens may have one text; the likelier one comes first.
        let mut top = Map::new();
        for (bytes, logprob) in &token.top {
            top.entry(text(bytes)).or_insert_with(|| finite(*logprob).into());
        }
        self.push(text(&token.bytes), finite(token.logprob).into(), top.into(), start);
    }

    fn push(&mut self, token: String, logprob: Value, top: Value, start: usize) {
        self.tokens.push(token.into());
        self.logprobs.push(logprob);
        self.top.push(top);
        self.starts.push(start);
    }

    /// Adds the tokens of a prompt, which is this text, or that of its tokens. The first one follows nothing.
    fn prompt(&mut self, scores: &PromptScores, given: &str) -> String {
        let mut bytes = scores.first.clone().unwrap_or_default();
        if let Some(first) = &scores.first {
            self.push(text(first), Value::Null, Value::Null, 0);
        }
        let mut start = n_begun(&bytes);
        for token in &scores.rest {
            self.token(token, start);
            start += n_begun(&token.bytes);
            bytes.extend_from_slice(&token.bytes);
        }
        let whole = if given.is_empty() { text(&bytes) } else { given.to_owned() };
        self.n_chars = whole.chars().count();
        whole
    }

    fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.starts,
        })
    }
}

/// Characters that begin in these bytes of UTF-8.
fn n_begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Chunks {
    head: Head,
    delivery: Delivery,
    begins: Vec<String>,
    /// Whether the prompts come with the probabilities of their tokens.
    scores_prompts: bool,
    /// Characters of each output so far.
    n_chars: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        self.head.chunk(OBJECT, choices, &self.delivery)
    }

    fn text(&self, index: usize, text: &str, logprobs: Value, finish: Option<Finish>) -> Value {
        let finish = finish.map(finish_name);
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        self.chunk(json!([choice]))
    }
}

impl Events for Chunks {
    fn start(&mut self, out: &mut Sink) {
        out.comment("queued");
        if self.scores_prompts {
            return;
        }
        for (index, begin) in self.begins.iter().enumerate().filter(|(_, begin)| !begin.is_empty()) {
            out.data(&self.text(index, begin, Value::Null, None));
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Sink) {
        match piece {
            Piece::Prefill { done, total, cached } => {
                out.comment(&format!("prefill {done}/{total}"));
                if self.delivery.shows_progress {
                    head::progress(out, self.chunk(json!([])), done, total, cached);
                }
            }
            Piece::Prompt { choice, scores } => {
                let mut list = TokenList::default();
                let begin = list.prompt(&scores, &self.begins[choice]);
                self.n_chars[choice] = list.n_chars;
                out.data(&self.text(choice, &begin, list.json(), None));
            }
            Piece::Text { choice, text, logprobs, origin } => {
                let start = self.n_chars[choice];
                self.n_chars[choice] += text.chars().count();
                let mut list = TokenList::default();
                logprobs.iter().for_each(|token| list.token(token, start));
                let logprobs = if logprobs.is_empty() { Value::Null } else { list.json() };
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
            Piece::Done(usage) => head::end(out, self.chunk(json!([])), &self.delivery, &usage),
            Piece::Failed(error) => head::failed(out, &error),
        }
    }
}
