//! Work for a request: short searches, and jobs of the model with progress and cancellation.

use std::time::{Duration, Instant};

use refrain::CancelToken;
use refrain_assistant::{Job, JobEvent, Priority, Report};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use tokio::sync::{oneshot, watch};

use super::http::Share;
use super::state::Mcp;
use crate::app::App;
use crate::blocking::{CancelOnDrop, blocking, caught, on_own_thread};
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::page::of_task;

/// Least time between two notices of progress. A token may take less than a millisecond.
const NOTICE_PAUSE: Duration = Duration::from_millis(100);

/// What a job tells while it runs.
pub(super) struct Reporter {
    pub(super) cancel: CancelToken,
    progress: watch::Sender<Progress>,
    started: Instant,
    time_max: Duration,
}

/// Tokens that were computed so far, of prompts and outputs together; it only grows.
#[derive(Debug, Clone, Default)]
struct Progress {
    n_tokens: usize,
    message: String,
}

impl Mcp {
    /// Short work without the model, on a thread where it may block. It has a place in the queue, and at most two run at a time.
    ///
    /// # Errors
    /// Its own; status 429: the queue is full.
    pub(super) async fn brief<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let app = self.page.app();
        // What the work keeps of the request is short.
        let place = app.queue().admit(None)?;
        let preparing = app.preparing().await;
        // Held until the work has ended, also if the client has gone.
        blocking(move || {
            let done = work();
            drop((preparing, place));
            done
        })
        .await
    }

    /// A job of the model: waits for its turn in the queue, runs on a thread of its own, and tells its progress to a client that has asked
    /// for it. A cancelled request ends its job before the next layer.
    ///
    /// # Errors
    /// Its own; status 429: the queue is full; status 503: the wait was too long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        context: &RequestContext<RoleServer>,
        job: impl FnOnce(&Reporter) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let app = self.page.app();
        let place = app.queue().admit(Share::take(&context.extensions));
        let place = place.inspect_err(|_| add(&app.metrics().refused, 1))?;
        add(&app.metrics().requests, 1);
        let cancel = CancelToken::new();
        let registered = app.register(cancel.clone());
        // Also if this future is dropped.
        let _cancelling = CancelOnDrop(cancel.clone());
        let permit = tokio::select! {
            permit = place.permit(Priority::Interactive) => permit,
            () = context.ct.cancelled() => Err(ApiError::stopped()),
        };
        let permit = permit.inspect_err(|_| add(&app.metrics().cancelled, 1))?;
        let (progress, told) = watch::channel(Progress::default());
        let reporter = Reporter {
            cancel: cancel.clone(),
            progress,
            started: Instant::now(),
            time_max: app.limits().request_time,
        };
        let (sender, mut done) = oneshot::channel();
        let work = move || {
            let ran = caught(|| job(&reporter));
            let time = reporter.started.elapsed();
            drop((reporter, permit, place, registered));
            let _ = sender.send((ran, time));
        };
        on_own_thread("refrain-request", work).inspect_err(|_| add(&app.metrics().failed, 1))?;
        let mut notices = Notices { token: context.meta.get_progress_token(), told, next: Instant::now() };
        let (ran, time) = loop {
            tokio::select! {
                biased;
                done = &mut done => break done.unwrap_or_else(|_| (Err(ApiError::bug()), Duration::ZERO)),
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                () = notices.due() => notices.tell(context).await,
            }
        };
        // A job may end before its first notice is due.
        notices.tell(context).await;
        count(app, &ran, time, cancel.is_cancelled());
        ran
    }
}

fn count<T>(app: &App, ran: &ApiResult<T>, time: Duration, is_cancelled: bool) {
    match ran {
        Ok(_) => app.metrics().add_request(time),
        Err(_) if is_cancelled => add(&app.metrics().cancelled, 1),
        Err(_) => add(&app.metrics().failed, 1),
    }
}

/// What a client that gave a token for it has yet to hear of a job's progress.
struct Notices {
    token: Option<ProgressToken>,
    told: watch::Receiver<Progress>,
    next: Instant,
}

impl Notices {
    /// Waits until there is something to tell, and the pause after the last notice has passed.
    async fn due(&mut self) {
        tokio::time::sleep_until(self.next.into()).await;
        if self.token.is_none() || self.told.changed().await.is_err() {
            std::future::pending().await
        }
        self.told.mark_changed();
    }

    /// Tells the newest progress, unless it has been told. Ends early if the request is cancelled, and never between a notice and its sending:
    /// what is told comes before the response.
    async fn tell(&mut self, context: &RequestContext<RoleServer>) {
        let Some(token) = &self.token else { return };
        let notice = {
            let progress = self.told.borrow_and_update();
            progress.has_changed().then(|| notice(token, &progress))
        };
        if let Some(notice) = notice {
            tokio::select! {
                // A client that does not listen loses notices alone.
                _ = context.peer.notify_progress(notice) => {}
                () = context.ct.cancelled() => {}
            }
            self.next = Instant::now() + NOTICE_PAUSE;
        }
    }
}

fn notice(token: &ProgressToken, progress: &Progress) -> ProgressNotificationParam {
    // The number of tokens of the output is unknown, so there is no total.
    ProgressNotificationParam::new(token.clone(), progress.n_tokens as f64)
        .with_message(progress.message.clone())
}

impl Reporter {
    fn tell(&self, n_tokens: usize, message: impl FnOnce() -> String) {
        self.progress.send_if_modified(|progress| {
            let is_more = n_tokens > progress.n_tokens;
            if is_more {
                *progress = Progress { n_tokens, message: message() };
            }
            is_more
        });
    }

    /// Runs a job to its end; also returns the time to the first token.
    pub(super) fn drive<T>(&self, job: Job<T>) -> ApiResult<(T, Option<Duration>)> {
        let (mut n_before, mut n_prompt, mut n_written) = (0, 0, 0);
        let mut first_token = None;
        let mut part = String::new();
        for event in job {
            if self.started.elapsed() > self.time_max {
                let seconds = self.time_max.as_secs();
                let message = format!("the job took more than the {seconds} s that a request may take");
                return Err(ApiError::server(message));
            }
            match event.map_err(of_task)? {
                JobEvent::Prefill { done, total } => {
                    if done < n_prompt {
                        // The prompt of the next part.
                        n_before += n_prompt;
                    }
                    n_prompt = done;
                    self.tell(n_before + n_prompt + n_written, || {
                        format!("{part}reading: {done} of {total} tokens")
                    });
                }
                JobEvent::Text(_) => {
                    first_token.get_or_insert_with(|| self.started.elapsed());
                    n_written += 1;
                    self.tell(n_before + n_prompt + n_written, || {
                        format!("{part}writing: {n_written} pieces")
                    });
                }
                JobEvent::Part { index, n_parts, .. } => {
                    part = format!("part {} of {n_parts} done; ", index + 1);
                }
                JobEvent::Estimate(estimate) => {
                    let seconds = estimate.time.as_secs_f64();
                    part = format!(
                        "{}about {seconds:.0} s left; ",
                        part.split_inclusive("done; ").next().unwrap_or_default()
                    );
                }
                JobEvent::Done(done) => return Ok((done, first_token)),
                _ => {}
            }
        }
        Err(ApiError::server("the job has ended without a result"))
    }
}

/// Adds the outputs of a job to the metrics.
pub(super) fn count_outputs(app: &App, report: &Report, first_token: Option<Duration>) {
    report.stats.iter().for_each(|stats| app.metrics().add_output(stats, first_token));
}
