//! Questions that the tokenizer of a model answers, without a pass.

use super::prepare;
use super::request::Request;
use crate::app::App;
use crate::blocking::blocking;
use crate::error::ApiResult;
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::queue::Place;

/// Answers from a model on a thread where it may block. The place in the queue is held until then, also if the client has gone.
pub(crate) async fn of_tokenizer<T: Send + 'static>(
    app: &App,
    place: Place,
    model: Option<String>,
    work: impl FnOnce(&Model) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let answer = async {
        let model = app.model(model, ModelKind::Text).await?;
        let preparing = app.preparing().await;
        let work = move || {
            let answer = work(&model);
            drop((preparing, place));
            answer
        };
        blocking(work).await
    };
    answer.await.inspect_err(|_| add(&app.metrics().refused, 1))
}

/// The number of tokens of a request's first prompt.
pub(crate) async fn count(app: &App, place: Place, request: Request) -> ApiResult<usize> {
    of_tokenizer(app, place, request.model.clone(), move |model| Ok(prepare::tokens(model, &request)?.len()))
        .await
}
