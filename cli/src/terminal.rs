//! The answer on standard output: raw bytes into a pipe; coloured on a terminal, with control characters made
//! visible.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use refrain::{Origin, SourceStats, Stats};

/// Applies `--color` to all later output.
pub(crate) fn set_color(choice: ColorChoice) {
    choice.write_global();
}

/// Standard output for answers.
pub(crate) struct AnswerStream {
    out: Box<dyn Write>,
    colored: bool,
    /// Whether control characters are made visible, because a terminal reads the text.
    guarded: bool,
    at_line_start: bool,
}

impl AnswerStream {
    pub(crate) fn stdout() -> Self {
        let choice = AutoStream::choice(&io::stdout());
        let colored = choice != ColorChoice::Never;
        // The colour filter would also drop escape sequences of the answer; a pipe receives the text unchanged.
        let out: Box<dyn Write> =
            if colored { Box::new(AutoStream::new(io::stdout(), choice)) } else { Box::new(io::stdout()) };
        Self { out, colored, guarded: colored || io::stdout().is_terminal(), at_line_start: true }
    }

    pub(crate) fn is_colored(&self) -> bool {
        self.colored
    }

    /// Writes the text of a token in the colour of its origin, at once.
    pub(crate) fn token(&mut self, text: &str, origin: &Origin) -> io::Result<()> {
        let Some(last) = text.chars().last() else {
            return Ok(());
        };
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
    pub(crate) fn marked(&mut self, text: &str, style: Style, (open, close): (&str, &str)) -> io::Result<()> {
        let shown = if self.guarded { visible(text) } else { Cow::Borrowed(text) };
        match self.colored {
            true => write!(self.out, "{style}{shown}{style:#}")?,
            false => write!(self.out, "{open}{shown}{close}")?,
        }
        self.at_line_start = self.colored && text.ends_with('\n');
        self.out.flush()
    }

    /// Ends the line in which the answer stopped.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        if !self.at_line_start {
            self.at_line_start = true;
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }

    /// Writes a line of the program itself.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        self.end_line()?;
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }
}

/// The colour of a token by its origin; the target's own tokens are plain.
pub(crate) fn origin_style(origin: &Origin) -> Style {
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
        "calibration" | "echo" => AnsiColor::Magenta,
        "reuse" => AnsiColor::Yellow,
        "draft_model" | "self_draft" => AnsiColor::BrightMagenta,
        "resume" => AnsiColor::BrightGreen,
        "grammar" => AnsiColor::BrightCyan,
        _ => AnsiColor::BrightYellow,
    }
}

/// The legend of colours, on one line: the draft sources of the generation.
pub(crate) fn print_legend(stats: &Stats) {
    let drafted = stats.sources.iter().map(|SourceStats { name, .. }| {
        let style = origin_style(&Origin::Draft(name.clone()));
        format!("{style}{name}{style:#}")
    });
    let shown: Vec<_> = std::iter::once("not drafted".to_owned()).chain(drafted).collect();
    note(&format!("colours   draft source of a token: {}", shown.join(" · ")));
}

/// A notice of the program on standard error, dimmed. A failure to write it is ignored.
pub(crate) fn note(text: &str) {
    let dim = Style::new().dimmed();
    let _ = writeln!(anstream::stderr(), "{dim}{text}{dim:#}");
}

/// `text` with visible replacements for control characters other than line ends and tabs. Model files, notes
/// and answers are untrusted; they must not move the cursor or rename the window.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
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
