//! Progress bars on standard error; hidden if it is not a terminal.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Work that takes less time draws no bar.
const QUIET: Duration = Duration::from_millis(300);

/// The progress bar of one operation.
pub(crate) struct Progress {
    bar: ProgressBar,
    since: std::time::Instant,
}

impl Progress {
    /// Work counted in bytes.
    pub(crate) fn bytes(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {bytes}/{total_bytes}")
    }

    /// A download.
    pub(crate) fn transfer(what: String) -> Self {
        Self::new(what, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// Work counted in steps.
    pub(crate) fn steps(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos}/{len}")
    }

    /// Work counted in tokens.
    pub(crate) fn tokens(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos}/{len} tokens, {per_sec}")
    }

    fn new(what: impl Into<Cow<'static, str>>, template: &str) -> Self {
        let bar = ProgressBar::hidden();
        bar.set_style(ProgressStyle::with_template(template).expect("templates are constants that parse"));
        bar.set_message(what);
        Self { bar, since: std::time::Instant::now() }
    }

    /// `done` of `total` is done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        if self.bar.is_hidden() && self.since.elapsed() > QUIET {
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
