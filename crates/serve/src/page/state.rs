//! The state of the page.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain_assistant::Assistant;

use super::shown::Shown;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::models::{Model, ModelKind};

/// The state of the page: what it was shown, beside that of the server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Page {
    app: App,
    shown: Arc<Mutex<Shown>>,
}

impl Page {
    pub(crate) fn new(app: App) -> Self {
        Self { app, shown: Arc::default() }
    }

    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// The model that writes, and its assistant.
    ///
    /// # Errors
    /// Status 404: there is none.
    pub(crate) async fn assistant(&self) -> ApiResult<(Arc<Model>, Assistant)> {
        let model = self.app.model(None, ModelKind::Text).await?;
        let assistant = model.assistant.clone();
        let assistant = assistant.ok_or_else(|| ApiError::not_found("this server has no assistant"))?;
        Ok((model, assistant))
    }

    pub(super) fn shown(&self) -> MutexGuard<'_, Shown> {
        // Every change is complete before anything can panic.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
