//! Progress bars on standard error; hidden if it is not a terminal.

use std::borrow::Cow;
use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::terminal;

/// Work that takes less time draws no bar. Tests of the screen set a shorter time, in milliseconds.
static QUIET: LazyLock<Duration> = LazyLock::new(|| {
    let given = std::env::var("REFRAIN_PROGRESS_AFTER_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(given.unwrap_or(300))
});

/// Drawings a second, at most.
const DRAWINGS: u8 = 15;

/// The progress bar of one operation.
pub struct Progress {
    bar: ProgressBar,
    is_tokens: bool,
    since: std::time::Instant,
}

impl Progress {
    /// Work counted in bytes.
    pub fn bytes(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {bytes}/{total_bytes}")
    }

    /// A download.
    pub fn transfer(what: String) -> Self {
        Self::new(what, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// Work counted in steps.
    pub fn steps(what: &'static str) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos}/{len}")
    }

    /// Work counted in tokens.
    pub fn tokens(what: &'static str) -> Self {
        let mut tokens = Self::new(what, "{msg} {wide_bar} {pos}/{len} tokens, {per_sec}");
        tokens.is_tokens = true;
        tokens
    }

    fn new(what: impl Into<Cow<'static, str>>, template: &str) -> Self {
        let bar = ProgressBar::hidden();
        bar.set_style(ProgressStyle::with_template(template).expect("templates are constants that parse"));
        bar.set_message(what);
        Self { bar, is_tokens: false, since: std::time::Instant::now() }
    }

    /// `done` of `total` is done.
    pub fn set(&self, done: u64, total: u64) {
        if let Some(to) = terminal::to_elsewhere() {
            if self.is_tokens {
                to.progress(done, total);
            }
            return;
        }
        if self.bar.is_hidden() && terminal::has_bars() && self.since.elapsed() >= *QUIET {
            let line = Box::new(LastLine::default());
            self.bar.set_draw_target(ProgressDrawTarget::term_like_with_hz(line, DRAWINGS));
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

/// The last line of the screen, as the terminal of a bar. The bar has one line, so the cursor never leaves it.
#[derive(Debug, Default)]
struct LastLine {
    text: Mutex<String>,
}

impl LastLine {
    fn with<T>(&self, change: impl FnOnce(&mut String) -> T) -> T {
        change(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TermLike for LastLine {
    fn width(&self) -> u16 {
        u16::try_from(terminal::width().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.with(|line| line.push_str(text));
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.with(String::clear);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        terminal::draw_bar(self.with(std::mem::take).trim());
        Ok(())
    }
}
