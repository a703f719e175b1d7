//! All output of the program. The answer on standard output: raw bytes into a pipe; coloured on a terminal, with control
//! characters made visible. Notices on standard error.
//!
//! Both streams and the progress bars share a screen, and `Screen` owns its last line. Every writer goes through it: a bar is erased
//! before text is written, and none is drawn while a line of text is unfinished. A bar leaves the cursor at the start of its line
//! and is erased from there to the end of the screen: so text is never erased, and a bar that a narrower window has wrapped goes as a
//! whole.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, BufRead, IsTerminal, Write};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anstream::adapter::StripBytes;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use refrain::drafting::SourceStats;
use refrain::{Origin, Stats};

/// Applies `--color` to all later output.
pub fn set_color(choice: ColorChoice) {
    choice.write_global();
}

/// What is at the end of the screen.
struct Screen {
    has_bar: bool,
    /// Whether text without a line end is the last that was written.
    is_mid_line: bool,
}

static SCREEN: Mutex<Screen> = Mutex::new(Screen { has_bar: false, is_mid_line: false });

/// Moves to the start of the line and erases from there.
const ERASE: &str = "\r\x1b[J";

fn screen() -> MutexGuard<'static, Screen> {
    // A panic while it is held leaves two flags, both valid.
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Screen {
    fn erase_bar(&mut self) {
        if std::mem::take(&mut self.has_bar) {
            let _ = io::stderr().write_all(ERASE.as_bytes());
        }
    }
}

/// Where a command's output goes in place of this program's terminal: a server runs the command for another process.
pub trait Elsewhere {
    /// Text of the answer, of an origin.
    fn token(&self, text: &str, origin: &Origin);
    /// The end of the line in which the answer stopped.
    fn end_line(&self);
    /// A line of standard output.
    fn line(&self, line: &str);
    /// Text for standard error.
    fn error(&self, text: &str);
    /// Whole lines for standard error.
    fn error_lines(&self, text: &str);
    /// Progress in tokens.
    fn progress(&self, done: u64, total: u64);
}

thread_local! {
    static ELSEWHERE: RefCell<Option<Rc<dyn Elsewhere>>> = const { RefCell::new(None) };
}

/// Does some work whose output, as far as it is written on this thread, goes elsewhere.
pub fn elsewhere<T>(to: Rc<dyn Elsewhere>, work: impl FnOnce() -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            ELSEWHERE.set(None);
        }
    }
    ELSEWHERE.set(Some(to));
    let _back = Back;
    work()
}

pub(crate) fn to_elsewhere() -> Option<Rc<dyn Elsewhere>> {
    ELSEWHERE.with_borrow(Clone::clone)
}

/// Whether progress bars can be seen.
pub fn has_bars() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns of the terminal.
pub fn width() -> usize {
    usize::from(console::Term::stderr().size().1)
}

/// Draws a progress bar over the last one; an empty one erases it. A failure to write it is ignored.
pub fn draw_bar(bar: &str) {
    let mut screen = screen();
    if screen.is_mid_line {
        return;
    }
    if bar.is_empty() {
        return screen.erase_bar();
    }
    // A line that fills the window would move the cursor to the next one.
    let bar = console::truncate_str(bar, width().saturating_sub(1), "…");
    screen.has_bar = io::stderr().write_all(format!("{ERASE}{bar}\r").as_bytes()).is_ok();
}

/// The user has ended a line.
pub fn line_entered() {
    screen().is_mid_line = false;
}

/// A standard stream that gives way to nothing and makes bars give way.
struct Standard<W> {
    out: W,
    is_on_screen: bool,
    /// Finds the text between colours.
    text: StripBytes,
}

impl<W: Write + IsTerminal> Standard<W> {
    fn new(out: W) -> Self {
        Self { is_on_screen: out.is_terminal(), out, text: StripBytes::new() }
    }
}

impl<W: Write> Write for Standard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_on_screen {
            return self.out.write(bytes);
        }
        let mut screen = screen();
        screen.erase_bar();
        let n = self.out.write(bytes)?;
        if let Some(last) = self.text.strip_next(&bytes[..n]).filter_map(|text| text.last()).last() {
            screen.is_mid_line = *last != b'\n';
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Standard output as it is.
pub fn stdout() -> Box<dyn Write> {
    Box::new(Standard::new(io::stdout()))
}

/// As `println!`, through the owner of the screen. A failure is ignored.
#[macro_export]
macro_rules! print_line {
    ($($text:tt)*) => {
        drop(std::io::Write::write_fmt(
            &mut $crate::terminal::stdout(),
            format_args!("{}\n", format_args!($($text)*)),
        ))
    };
}

/// Writes to standard error at once, without colours where it shows none. A failure is ignored.
pub fn write_error(text: &str) {
    if let Some(to) = to_elsewhere() {
        return to.error(text);
    }
    let choice = AutoStream::choice(&io::stderr());
    let out: Box<dyn Write> = Box::new(Standard::new(io::stderr()));
    let _ = AutoStream::new(out, choice).write_all(text.as_bytes());
}

/// Writes whole lines to standard error, behind an unfinished line of the screen.
pub fn write_error_lines(text: &str) {
    if let Some(to) = to_elsewhere() {
        return to.error_lines(text);
    }
    let is_mid_line = io::stderr().is_terminal() && screen().is_mid_line;
    write_error(&format!("{}{text}\n", if is_mid_line { "\n" } else { "" }));
}

/// Standard output for answers.
pub struct AnswerStream {
    out: Box<dyn Write>,
    colored: bool,
    /// Whether control characters are made visible, because a terminal reads the text.
    guarded: bool,
    at_line_start: bool,
}

impl AnswerStream {
    /// Standard output.
    pub fn stdout() -> Self {
        let choice = AutoStream::choice(&io::stdout());
        let colored = choice != ColorChoice::Never;
        // The colour filter would also drop escape sequences of the answer; a pipe receives the text unchanged.
        let out: Box<dyn Write> =
            if colored { Box::new(AutoStream::new(stdout(), choice)) } else { stdout() };
        Self { out, colored, guarded: colored || io::stdout().is_terminal(), at_line_start: true }
    }

    /// Whether it has colours.
    pub fn is_colored(&self) -> bool {
        self.colored
    }

    /// Writes the text of a token in the colour of its origin, at once.
    pub fn token(&mut self, text: &str, origin: &Origin) -> io::Result<()> {
        let Some(last) = text.chars().last() else {
            return Ok(());
        };
        if let Some(to) = to_elsewhere() {
            to.token(text, origin);
            return Ok(());
        }
        self.at_line_start = last == '\n';
        let text = if self.guarded { visible(text) } else { Cow::Borrowed(text) };
        if self.colored {
            let style = origin_style(origin);
            write!(self.out, "{style}{text}{style:#}")?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }

    /// Writes text in a style, or between marks if there are no colours.
    pub fn marked(&mut self, text: &str, style: Style, (open, close): (&str, &str)) -> io::Result<()> {
        let shown = if self.guarded { visible(text) } else { Cow::Borrowed(text) };
        match self.colored {
            true => write!(self.out, "{style}{shown}{style:#}")?,
            false => write!(self.out, "{open}{shown}{close}")?,
        }
        self.at_line_start = self.colored && text.ends_with('\n');
        self.out.flush()
    }

    /// Ends the line in which the answer stopped.
    pub fn end_line(&mut self) -> io::Result<()> {
        if let Some(to) = to_elsewhere() {
            to.end_line();
            return Ok(());
        }
        // On a terminal, a notice may have ended it.
        let is_ended = if io::stdout().is_terminal() { !screen().is_mid_line } else { self.at_line_start };
        self.at_line_start = true;
        if !is_ended {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }

    /// Writes a line of the program itself.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        if let Some(to) = to_elsewhere() {
            to.line(line);
            return Ok(());
        }
        self.end_line()?;
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }
}

/// The colour of a token by its origin; the target's own tokens are plain.
pub fn origin_style(origin: &Origin) -> Style {
    match origin {
        Origin::Target => Style::new(),
        Origin::Draft(name) => Style::new().fg_color(Some(source_color(name.as_str()).into())),
    }
}

fn source_color(name: &str) -> AnsiColor {
    match name {
        "context" => AnsiColor::Green,
        "history" => AnsiColor::Blue,
        "passages" => AnsiColor::Cyan,
        "predictions" => AnsiColor::Magenta,
        "draft_model" | "self_draft" => AnsiColor::BrightMagenta,
        "resume" => AnsiColor::BrightGreen,
        "grammar" => AnsiColor::BrightCyan,
        _ => AnsiColor::BrightYellow,
    }
}

/// The legend of colours, on one line: the draft sources of the generation.
pub fn print_legend(stats: &Stats) {
    let drafted = stats.sources.iter().map(|SourceStats { name, .. }| {
        let style = origin_style(&Origin::Draft(name.clone()));
        format!("{style}{name}{style:#}")
    });
    let shown: Vec<_> = std::iter::once("not drafted".to_owned()).chain(drafted).collect();
    note(&format!("colours   draft source of a token: {}", shown.join(" · ")));
}

/// A notice of the program on standard error, dimmed. A failure to write it is ignored.
pub fn note(text: &str) {
    let dim = Style::new().dimmed();
    write_error_lines(&format!("{dim}{text}{dim:#}"));
}

/// As [`note`], for a cause that lasts: the same text is written once.
pub fn note_once(text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // Every process that a server runs a command for reads it once.
    if to_elsewhere().is_some() || SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
    {
        note(text);
    }
}

/// Asks on standard error and reads a line of standard input, of at most 1,024 bytes; both must be terminals.
pub fn ask_user(question: &str) -> io::Result<String> {
    write_error(question);
    let mut line = Vec::new();
    io::Read::take(io::stdin().lock(), 1024).read_until(b'\n', &mut line)?;
    match line.ends_with(b"\n") {
        true => line_entered(),
        false => write_error("\n"),
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// `text` with visible replacements for control characters other than line ends and tabs. Model files, notes
/// and answers are untrusted; they must not move the cursor or rename the window.
pub fn visible(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| match c {
        // Unicode has a symbol for each ASCII control character, in the same order.
        '\0'..='\x1f' if acts(c) => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\x7f'..='\u{9f}' => '\u{fffd}',
        _ => c,
    });
    Cow::Owned(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible_and_text_stays() {
        assert_eq!(visible("naïve\n\ttext"), "naïve\n\ttext");
        assert_eq!(visible("\x1b[2J\r\x07\u{9b}1m\x7f"), "␛[2J␍␇\u{fffd}1m\u{fffd}");
    }
}
