//! Separates the model's reasoning from its answer while the text arrives.
//!
//! Most reasoning models write their reasoning between two markers before they answer. In some vocabularies the markers are
//! ordinary text or user-defined tokens, which reach the output as text. In others they are control tokens, which do
//! not. This module handles both.
//!
//! gpt-oss and Gemma 4 write *channels*: a control token, the channel's name, the end of this header, and the text.

use serde::Serialize;

/// Whether a text is the model's reasoning or its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TextKind {
    /// Reasoning before the answer.
    Reasoning,
    /// The answer.
    Answer,
}

/// The markers around a model's reasoning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReasoningMarkers {
    /// Begins the reasoning.
    pub open: String,
    /// Ends it; in a model of channels, begins the answer.
    pub close: String,
    /// How a model of channels names them.
    channels: Option<&'static Channels>,
}

/// The headers of a model's channels.
#[derive(PartialEq, Eq, Debug)]
struct Channels {
    /// The end of a prompt behind which the model completes a header that has begun.
    turn: &'static str,
    /// Begins the recipient in a header.
    recipient: &'static str,
    /// Control tokens that begin a header. The last one is followed by the channel's name.
    begin: &'static [&'static str],
    /// Ends a header: a control token or text.
    end: &'static str,
    /// Control tokens that end a channel's text.
    close: &'static [&'static str],
    /// The channel of the reasoning.
    reasoning: &'static str,
    /// The markers as they are named outside.
    markers: (&'static str, &'static str),
}

/// The channels of published models.
const CHANNELS: [Channels; 2] = [
    Channels {
        turn: "<|start|>assistant",
        recipient: " to=",
        begin: &["<|start|>", "<|channel|>"],
        end: "<|message|>",
        close: &["<|end|>", "<|return|>", "<|call|>"],
        reasoning: "analysis",
        markers: ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    },
    Channels {
        turn: "",
        recipient: "",
        begin: &["<|channel>"],
        end: "\n",
        close: &["<channel|>"],
        reasoning: "thought",
        markers: ("<|channel>thought\n", "<channel|>"),
    },
];

/// The markers of published models.
const MARKERS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
];

impl ReasoningMarkers {
    /// Markers around the reasoning of a model without channels.
    pub fn pair(open: impl Into<String>, close: impl Into<String>) -> Self {
        Self { open: open.into(), close: close.into(), channels: None }
    }

    /// The channels or the pair whose markers are tokens of the vocabulary, else the pair written by the template.
    pub(super) fn find(
        is_token: impl Fn(&str) -> bool,
        is_control: impl Fn(&str) -> bool,
        template: Option<&str>,
    ) -> Option<Self> {
        let has = |channels: &&Channels| {
            let mut controls = channels.begin.iter().chain(channels.close);
            controls.all(|token| is_control(token)) && (is_control(channels.end) || channels.end == "\n")
        };
        if let Some(channels) = CHANNELS.iter().find(has) {
            let (open, close) = channels.markers;
            return Some(Self { channels: Some(channels), ..Self::pair(open, close) });
        }
        let in_vocab = MARKERS.into_iter().find(|(open, close)| is_token(open) && is_token(close));
        let in_template = |template: &str| {
            MARKERS.into_iter().find(|(open, close)| template.contains(open) && template.contains(close))
        };
        let (open, close) = in_vocab.or_else(|| template.and_then(in_template))?;
        Some(Self::pair(open, close))
    }

    fn has_channels(&self) -> bool {
        self.channels.is_some()
    }

    /// Whether every output begins with the header of a channel, also an answer without reasoning.
    pub fn writes_header(&self) -> bool {
        self.channels.is_some_and(|channels| self.close.starts_with(channels.begin[channels.begin.len() - 1]))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Only white space so far: the opening marker may still follow.
    Start,
    Reasoning,
    Answer,
    /// In the header of a channel.
    Header,
}

/// Splits an output into reasoning and answer as it arrives. The markers are removed; all other text is kept, in
/// order.
///
/// Reasoning begins at the start of the output if the prompt ends with an opening marker. Otherwise it begins with an
/// opening marker that follows nothing but white space; that white space counts as reasoning. Reasoning ends with the
/// first closing marker. An opening marker later in an answer is text, because an answer may mention markers. A
/// control token is the exception: text cannot spell it, so it always begins reasoning.
///
/// Of a model with channels, the text of the channel `analysis` (gpt-oss) or `thought` (Gemma 4) is reasoning, and that of all others is
/// answer: of gpt-oss also the arguments of a call of a tool, whose name [`Self::recipient`] has. Headers are removed.
///
/// ```
/// # use refrain_tokenizer::{ReasoningMarkers, ReasoningSplitter, TextKind};
/// let markers = ReasoningMarkers::pair("<think>", "</think>");
/// let mut splitter = ReasoningSplitter::new(Some(markers), "");
/// let mut out = Vec::new();
/// for piece in ["<th", "ink>Ten", " or one?</thi", "nk>At ten."] {
///     splitter.push(piece, &mut out);
/// }
/// splitter.finish(&mut out);
/// let text = |kind| out.iter().filter(|(k, _)| *k == kind).map(|(_, text)| text.as_str()).collect::<String>();
/// assert_eq!((text(TextKind::Reasoning).as_str(), text(TextKind::Answer).as_str()), ("Ten or one?", "At ten."));
/// ```
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    markers: Option<ReasoningMarkers>,
    state: State,
    /// Text held back because it may be part of a marker. Shorter than a marker, except for leading white space.
    held: String,
    /// The recipient in the newest header.
    recipient: Option<String>,
}

/// Maximum length of white space held back before an opening marker, in bytes. After more white space, the output is
/// an answer.
const SPACE_BYTES_MAX: usize = 64;

/// Maximum length of the header of a channel, in bytes. A longer one is an answer, so that no text is lost.
const HEADER_BYTES_MAX: usize = 128;

impl ReasoningSplitter {
    /// A splitter for a model with these markers, after a prompt that ends with `prompt_end`. Without markers, all
    /// text is answer.
    pub fn new(markers: Option<ReasoningMarkers>, prompt_end: &str) -> Self {
        let state = match &markers {
            None => State::Answer,
            Some(markers) if prompt_end.trim_end().ends_with(markers.open.trim_end()) => State::Reasoning,
            Some(ReasoningMarkers { channels: Some(channels), .. })
                if channels.turn.is_empty() || !prompt_end.ends_with(channels.turn) =>
            {
                State::Answer
            }
            Some(_) => State::Start,
        };
        Self { markers, state, held: String::new(), recipient: None }
    }

    /// Whether the next text may belong to the header of a channel.
    pub fn is_in_header(&self) -> bool {
        let has_channels = self.markers.as_ref().is_some_and(ReasoningMarkers::has_channels);
        has_channels && matches!(self.state, State::Start | State::Header)
    }

    /// The recipient in the header of the message that the next text belongs to: of gpt-oss, `functions.NAME` where this text is the
    /// arguments of a call. It stays until the next header.
    pub fn recipient(&self) -> Option<&str> {
        self.recipient.as_deref().filter(|_| self.state != State::Header)
    }

    /// The kind of the next text, as far as it is determined.
    pub fn kind(&self) -> TextKind {
        if self.state == State::Reasoning { TextKind::Reasoning } else { TextKind::Answer }
    }

    /// Accepts the next text and appends the determined segments to `out`. No segment is empty.
    pub fn push(&mut self, piece: &str, out: &mut Vec<(TextKind, String)>) {
        self.held.push_str(piece);
        let Some(markers) = &self.markers else { return emit(&mut self.held, TextKind::Answer, out) };
        if let Some(channels) = markers.channels {
            return self.push_channel(channels, out);
        }
        if self.state == State::Start {
            let text = self.held.trim_start();
            let n_spaces = self.held.len() - text.len();
            if text.starts_with(&markers.open) {
                let after = text[markers.open.len()..].to_owned();
                self.held.truncate(n_spaces);
                emit(&mut self.held, TextKind::Reasoning, out);
                self.held = after;
                self.state = State::Reasoning;
            } else if !markers.open.starts_with(text) || n_spaces > SPACE_BYTES_MAX {
                self.state = State::Answer;
            } else {
                return;
            }
        }
        if self.state == State::Reasoning {
            match self.held.find(&markers.close) {
                Some(at) => {
                    let after = self.held[at + markers.close.len()..].to_owned();
                    self.held.truncate(at);
                    emit(&mut self.held, TextKind::Reasoning, out);
                    self.held = after;
                    self.state = State::Answer;
                }
                None => {
                    let n_held = partial(&self.held, &markers.close);
                    let held = self.held.split_off(self.held.len() - n_held);
                    emit(&mut self.held, TextKind::Reasoning, out);
                    self.held = held;
                }
            }
        }
        if self.state == State::Answer {
            emit(&mut self.held, TextKind::Answer, out);
        }
    }

    /// The held text in a model of channels.
    fn push_channel(&mut self, channels: &Channels, out: &mut Vec<(TextKind, String)>) {
        if self.state == State::Start {
            // A header may name the recipient before its channel.
            if self.held.starts_with(channels.recipient) {
                self.state = State::Header;
            } else if channels.recipient.starts_with(&*self.held) {
                return;
            } else {
                self.state = State::Answer;
            }
        }
        if self.state == State::Header {
            if let Some(at) = self.held.find(channels.end) {
                let text = self.held.split_off(at + channels.end.len());
                self.end_header(channels);
                self.held = text;
            } else if self.held.len() > HEADER_BYTES_MAX {
                self.recipient = None;
                self.state = State::Answer;
            } else {
                return;
            }
        }
        let kind = self.kind();
        emit(&mut self.held, kind, out);
    }

    /// Reads the recipient from the held part of a header.
    fn read_recipient(&mut self, channels: &Channels) {
        let word = channels.recipient.trim_start();
        let found = self.held.split_whitespace().find_map(|part| part.strip_prefix(word));
        if let Some(name) = found.filter(|_| !word.is_empty()) {
            self.recipient = Some(name.to_owned());
        }
    }

    /// Removes the held header. Its first word is the channel's name. What has a recipient is no reasoning: some calls are in its channel.
    fn end_header(&mut self, channels: &Channels) {
        self.read_recipient(channels);
        let is_named = self.held.split_whitespace().next() == Some(channels.reasoning);
        let is_reasoning = is_named && self.recipient.is_none();
        self.state = if is_reasoning { State::Reasoning } else { State::Answer };
        self.held.clear();
    }

    fn push_channel_control(&mut self, channels: &Channels, token: &str, out: &mut Vec<(TextKind, String)>) {
        if self.state == State::Start {
            emit(&mut self.held, TextKind::Answer, out);
        }
        // Only a header is held back between two pushes.
        if channels.begin.contains(&token) {
            let goes_on = self.state == State::Header && channels.begin.last() == Some(&token);
            self.recipient = self.recipient.take().filter(|_| goes_on);
            if goes_on {
                self.read_recipient(channels);
            }
            self.held.clear();
            self.state = State::Header;
        } else if channels.close.contains(&token) {
            self.held.clear();
            self.state = State::Answer;
        } else if self.state == State::Header {
            match token == channels.end {
                true => self.end_header(channels),
                // As between `to=functions.find` and `json`.
                false => self.held.push(' '),
            }
        }
    }

    /// Accepts a control token by its text. Markers change the kind of the following text; other control tokens have
    /// no effect.
    pub fn push_control(&mut self, token: &str, out: &mut Vec<(TextKind, String)>) {
        let Some(markers) = &self.markers else { return };
        if let Some(channels) = markers.channels {
            return self.push_channel_control(channels, token, out);
        }
        let next = match token {
            _ if token == markers.open => State::Reasoning,
            _ if token == markers.close => State::Answer,
            _ => return,
        };
        // White space before the marker counts as reasoning.
        let kind = if next == State::Reasoning { TextKind::Reasoning } else { self.kind() };
        emit(&mut self.held, kind, out);
        self.state = next;
    }

    /// Ends the output. Text held back is not a marker.
    pub fn finish(&mut self, out: &mut Vec<(TextKind, String)>) {
        let kind = self.kind();
        emit(&mut self.held, kind, out);
    }
}

fn emit(text: &mut String, kind: TextKind, out: &mut Vec<(TextKind, String)>) {
    if !text.is_empty() {
        out.push((kind, std::mem::take(text)));
    }
}

/// Length of the longest suffix of a text that begins a marker without completing it, in bytes.
fn partial(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    let fits = |n: &usize| marker.is_char_boundary(*n) && text.ends_with(&marker[..*n]);
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn markers() -> ReasoningMarkers {
        ReasoningMarkers::pair("<think>", "</think>")
    }

    /// The texts of both kinds.
    fn split(pieces: &[&str], prompt_end: &str) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(Some(markers()), prompt_end);
        let mut out = Vec::new();
        for piece in pieces {
            splitter.push(piece, &mut out);
            assert!(splitter.held.len() < SPACE_BYTES_MAX + "</think>".len());
        }
        splitter.finish(&mut out);
        joined(&out)
    }

    fn joined(out: &[(TextKind, String)]) -> (String, String) {
        assert!(out.iter().all(|(_, text)| !text.is_empty()));
        let text = |kind| out.iter().filter(|(k, _)| *k == kind).map(|(_, text)| text.as_str()).collect();
        (text(TextKind::Reasoning), text(TextKind::Answer))
    }

    /// The whole text at once.
    fn split_by_definition(text: &str, prompt_end: &str) -> (String, String) {
        let inside = match text.trim_start().strip_prefix("<think>") {
            _ if prompt_end.trim_end().ends_with("<think>") => text.to_owned(),
            Some(inside) => text[..text.len() - text.trim_start().len()].to_owned() + inside,
            None => return (String::new(), text.to_owned()),
        };
        match inside.split_once("</think>") {
            Some((reasoning, answer)) => (reasoning.to_owned(), answer.to_owned()),
            None => (inside, String::new()),
        }
    }

    proptest! {
        #[test]
        fn any_pieces_split_as_the_whole(
            parts in prop::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("<"), Just("</"), Just("think>"), Just("é"), Just(" \n"), Just("a<t"),
            ], 0..10),
            cuts in prop::collection::vec(0usize..60, 0..8),
            prompt_end in prop_oneof![Just(""), Just("assistant\n"), Just("<think>\n"), Just("<think>\n\n</think>\n\n")],
        ) {
            let text = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.retain(|&cut| text.is_char_boundary(cut));
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(split(&pieces, prompt_end), split_by_definition(&text, prompt_end));
        }
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_marker() {
        let mut splitter = ReasoningSplitter::new(Some(markers()), "");
        let mut out = Vec::new();
        let mut push = |piece: &str| {
            out.clear();
            splitter.push(piece, &mut out);
            out.clone()
        };
        assert_eq!(push(" <thi"), []);
        assert_eq!(push("nk>a</"), [(TextKind::Reasoning, " ".into()), (TextKind::Reasoning, "a".into())]);
        assert_eq!(push("b"), [(TextKind::Reasoning, "</b".into())]);
        assert_eq!(push("</think>\n\n<think>"), [(TextKind::Answer, "\n\n<think>".into())]);
        let spaces = " ".repeat(SPACE_BYTES_MAX + 1);
        assert_eq!(split(&[&spaces, "<think>x"], ""), (String::new(), spaces + "<think>x"));
    }

    #[test]
    fn control_tokens_mark_too() {
        let mut splitter = ReasoningSplitter::new(Some(markers()), "");
        let mut out = Vec::new();
        splitter.push("\n", &mut out);
        splitter.push_control("<think>", &mut out);
        splitter.push("hm</", &mut out);
        splitter.push_control("<|im_end|>", &mut out);
        splitter.push_control("</think>", &mut out);
        splitter.push("At ten.", &mut out);
        splitter.push_control("<think>", &mut out);
        splitter.push("again", &mut out);
        splitter.finish(&mut out);
        assert_eq!(joined(&out), ("\nhm</again".to_owned(), "At ten.".to_owned()));
        let mut none = ReasoningSplitter::new(None, "<think>");
        out.clear();
        none.push_control("<think>", &mut out);
        none.push("<think>a", &mut out);
        assert_eq!(out, [(TextKind::Answer, "<think>a".to_owned())]);
    }

    #[test]
    fn markers_come_from_the_vocabulary_or_the_template() {
        let find = |tokens: &[&str], template| {
            ReasoningMarkers::find(|text| tokens.contains(&text), |_| false, template)
        };
        assert_eq!(find(&["<think>", "</think>"], None), Some(markers()));
        assert_eq!(find(&["<think>"], Some("{{ m }}")), None);
        assert_eq!(find(&[], Some("<think>{{ m }}</think>")), Some(markers()));
        assert_eq!(find(&["[THINK]", "[/THINK]"], Some("<think></think>")).unwrap().open, "[THINK]");
    }

    /// The texts of both kinds of an output of gpt-oss or Gemma 4. Control tokens stand apart.
    fn split_channels(pieces: &[&str], prompt_end: &str) -> (String, String) {
        let is_control = |text: &str| text != "\n" && (text.starts_with("<|") || text.ends_with("|>"));
        let of_gpt = pieces.iter().all(|piece| *piece != "<|channel>");
        let tokens: Vec<&str> = CHANNELS[usize::from(!of_gpt)..][..1]
            .iter()
            .flat_map(|channels| channels.begin.iter().chain(channels.close).copied().chain([channels.end]))
            .collect();
        let is_known = |text: &str| is_control(text) && tokens.contains(&text);
        let markers = ReasoningMarkers::find(is_known, is_known, None);
        assert!(markers.as_ref().is_some_and(ReasoningMarkers::has_channels));
        let mut splitter = ReasoningSplitter::new(markers, prompt_end);
        let mut out = Vec::new();
        for piece in pieces {
            match is_control(piece) {
                true => splitter.push_control(piece, &mut out),
                false => piece.chars().for_each(|c| splitter.push(c.encode_utf8(&mut [0; 4]), &mut out)),
            }
            assert!(splitter.held.len() <= HEADER_BYTES_MAX);
        }
        splitter.finish(&mut out);
        joined(&out)
    }

    #[test]
    fn channels_are_reasoning_or_answer() {
        let split = |pieces: &[&str]| split_channels(pieces, "<|start|>assistant");
        let texts = |reasoning: &str, answer: &str| (reasoning.to_owned(), answer.to_owned());
        let analysis =
            ["<|channel|>", "analysis", "<|message|>", "When?\n", "<|end|>", "<|start|>", "assistant"];
        let answer = ["<|channel|>", "final", "<|message|>", "At ten.", "<|return|>"];
        assert_eq!(split(&[&analysis[..], &answer[..]].concat()), texts("When?\n", "At ten."));
        assert_eq!(split(&answer), texts("", "At ten."));
        let call = [
            "<|channel|>",
            "commentary to=functions.find ",
            "<|constrain|>",
            "json",
            "<|message|>",
            "{}",
            "<|call|>",
        ];
        assert_eq!(split(&[&analysis[..], &call[..]].concat()), texts("When?\n", "{}"));
        assert_eq!(split(&["At ten."]), texts("", "At ten."), "a model that writes no header");
        assert_eq!(split(&["<|channel|>", "fin"]), texts("", "fin"), "an output that ends in a header");
        let endless = "x".repeat(HEADER_BYTES_MAX + 9);
        assert_eq!(split(&["<|channel|>", &endless]), texts("", &endless));
        let begun = split_channels(&["When?", "<|end|>"], "<|start|>assistant<|channel|>analysis<|message|>");
        assert_eq!(begun, texts("When?", ""));

        let gemma = ["<|channel>", "thought\nWhen?\nNow", "<channel|>", "At\nten."];
        assert_eq!(split_channels(&gemma, "<|turn>model\n"), texts("When?\nNow", "At\nten."));
        let begun = split_channels(&["When?", "<channel|>", "At ten.", "<|channel>"], "<|channel>thought\n");
        assert_eq!(begun, texts("When?", "At ten."));
    }

    #[test]
    fn a_call_names_its_recipient() {
        let tokens = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];
        let markers = ReasoningMarkers::find(|_| false, |text| tokens.contains(&text), None);
        // The recipient of each text.
        let read = |pieces: &[&str]| {
            let mut splitter = ReasoningSplitter::new(markers.clone(), "<|start|>assistant");
            let (mut out, mut recipients) = (Vec::new(), Vec::new());
            for piece in pieces {
                out.clear();
                match piece.starts_with("<|") {
                    true => splitter.push_control(piece, &mut out),
                    false => splitter.push(piece, &mut out),
                }
                for (_, text) in out.drain(..) {
                    recipients.push((text, splitter.recipient().unwrap_or("none").to_owned()));
                }
            }
            splitter.finish(&mut out);
            assert_eq!(out, [], "{pieces:?}");
            recipients
        };
        let of = |text: &str, recipient: &str| (text.to_owned(), recipient.to_owned());
        let first =
            ["<|channel|>", "commentary to=functions.find", "<|constrain|>", "json", "<|message|>", "{", "}"];
        let expected = [of("{", "functions.find"), of("}", "functions.find")];
        assert_eq!(read(&first), expected);
        let before =
            [" to", "=functions.find", "<|channel|>", "commentary ", "<|constrain|>", "json", "<|message|>"];
        assert_eq!(read(&[&before[..], &["{", "}", "<|call|>"]].concat()), expected);
        let both = ["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant"];
        let call = ["{", "<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Ten."];
        assert_eq!(
            read(&[&both[..], &before, &call].concat()),
            [of("Hm.", "none"), of("{", "functions.find"), of("Ten.", "none")]
        );
        assert_eq!(read(&[" t", "<|return|>"]), [of(" t", "none")]);
        assert_eq!(read(&[" to", "day"]), [of(" today", "none")]);
        let endless = format!(" to=x {}", "y".repeat(HEADER_BYTES_MAX));
        assert_eq!(read(&[&endless]), [of(&endless, "none")]);
    }

    #[test]
    fn channels_need_control_tokens() {
        let tokens = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];
        let find = |controls: &[&str]| {
            ReasoningMarkers::find(|text| tokens.contains(&text), |text| controls.contains(&text), None)
        };
        assert_eq!(
            find(&tokens).map(|markers| markers.close),
            Some("<|channel|>final<|message|>".to_owned())
        );
        assert_eq!(find(&tokens[1..]), None);
    }
}
