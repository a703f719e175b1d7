//! `GET /health` and `GET /metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use refrain::device::KernelsNotice;
use serde_json::{Value, json};

use crate::app::App;
use crate::response;

pub(crate) async fn health() -> Response {
    response::json(&body(KernelsNotice::of_this_machine()))
}

/// The answer. A machine on which every answer is slow says so.
fn body(notice: Option<KernelsNotice>) -> Value {
    match notice {
        None => json!({ "status": "ok" }),
        Some(notice) => {
            json!({ "status": "ok", "notice": { "code": notice.code(), "message": notice.to_string() } })
        }
    }
}

pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics().text(&app.gauges());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_kernels_are_part_of_the_answer() {
        assert_eq!(body(None), json!({ "status": "ok" }));
        let notice = body(Some(KernelsNotice::NoAvx2 { missing: "F16C" }));
        assert_eq!(notice["status"], "ok");
        assert_eq!(notice["notice"]["code"], "no_avx2");
        assert!(notice["notice"]["message"].as_str().unwrap().contains("F16C"));
    }
}
