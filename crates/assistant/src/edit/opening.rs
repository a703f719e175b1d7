//! What models write around an edited text: words before it ("Here is the edited note:"), and a code fence around it.
//!
//! The output of an edit begins as the old text, or as an edit of it. What comes before it is cut if three signs agree: it is one short
//! line that announces something (it ends with a colon, or begins as such lines do), the old text does not begin so, and the text behind
//! it begins as the old text does. A line that the instruction has is asked for, and stays. Where the text behind it begins with other
//! words (a translation), the line must be an announcement by both its end and its first words.

use std::ops::Range;

use super::doubt::words;
use crate::pieces::{Splitter, composed};

/// Words and signs with which a text begins as another one.
const AGREED: usize = 4;

/// Words and signs in which the beginnings of two texts are compared, if they do not begin in the same way.
const COMPARED: usize = 8;

/// Maximum length of a line that announces a text, in characters.
const LINE_CHARS_MAX: usize = 160;

/// Bytes of the old text that are compared.
const OLD_BYTES: usize = 2048;

/// With what announcements begin, in lower case. They are the weaker sign: alone they cut nothing.
const OPENERS: [&str; 75] = [
    "here is",
    "here's",
    "here’s",
    "here are",
    "sure",
    "certainly",
    "of course",
    "okay",
    "ok",
    "absolutely",
    "hier ist",
    "hier sind",
    "hier der",
    "natürlich",
    "gerne",
    "klar",
    "selbstverständlich",
    "voici",
    "bien sûr",
    "certainement",
    "d'accord",
    "d’accord",
    "aquí está",
    "aquí tienes",
    "aquí tiene",
    "claro",
    "por supuesto",
    "desde luego",
    "aqui está",
    "aqui vai",
    "com certeza",
    "ecco",
    "certo",
    "certamente",
    "va bene",
    "hier is",
    "natuurlijk",
    "zeker",
    "oto",
    "oczywiście",
    "jasne",
    "här är",
    "självklart",
    "her er",
    "selvfølgelig",
    "вот",
    "конечно",
    "хорошо",
    "ось",
    "звичайно",
    "işte",
    "elbette",
    "tabii",
    "以下",
    "当然",
    "當然",
    "好的",
    "这是",
    "這是",
    "下面是",
    "もちろん",
    "はい",
    "承知",
    "こちら",
    "다음은",
    "물론",
    "네,",
    "إليك",
    "بالطبع",
    "بالتأكيد",
    "حسنا",
    "यहाँ",
    "यह रहा",
    "ज़रूर",
    "बिल्कुल",
];

/// The fence that the output began with and the old text did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence {
    mark: char,
    len: usize,
}

/// What is known of the output's beginning.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// More text decides.
    Unclear,
    /// The text begins here.
    Text(usize),
    /// The text begins here, behind an announcement or a fence.
    Behind(usize, Option<Fence>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agreement {
    Unclear,
    Begins,
    Departs,
}

/// Passes the text of an output on, without what the model wrote around it, and without white space at its ends.
#[derive(Debug)]
pub(crate) struct Opening {
    old: String,
    old_has_fences: bool,
    instruction: Vec<String>,
    /// Whether the instruction is about code, so that a fence may be asked for.
    is_about_code: bool,
    /// Text that was not passed on.
    held: String,
    is_open: bool,
    fence: Option<Fence>,
    /// Lines of the text that are fences.
    n_fences: usize,
    /// A fence that may be the last line, with the blank lines behind it.
    last_fence: String,
    is_inside_line: bool,
    is_closed: bool,
    has_text: bool,
    /// White space that belongs to the text if more follows.
    space: String,
    left_out: String,
}

impl Opening {
    /// For an output that edits `old`, which has no white space at its ends.
    pub(crate) fn new(old: &str, instruction: &str) -> Self {
        let instruction_words: Vec<String> = words(instruction).map(|(_, word)| word).collect();
        let is_about_code = instruction.contains("```") || {
            let lower = instruction.to_lowercase();
            ["code", "código", "codice", "код", "コード", "代码", "代碼", "코드", "fence", "markdown"]
                .iter()
                .any(|word| lower.contains(word))
        };
        Self {
            old: old[..old.floor_char_boundary(OLD_BYTES)].to_owned(),
            old_has_fences: old.lines().any(|line| fence_of(line).is_some()),
            instruction: instruction_words,
            is_about_code,
            held: String::new(),
            is_open: true,
            fence: None,
            n_fences: 0,
            last_fence: String::new(),
            is_inside_line: false,
            is_closed: false,
            has_text: false,
            space: String::new(),
            left_out: String::new(),
        }
    }

    /// Appends text of the output. Returns what belongs to the text for certain.
    pub(crate) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        self.advance(false)
    }

    /// The rest of the text.
    pub(crate) fn finish(&mut self) -> String {
        self.advance(true)
    }

    /// What was left out so far: an announcement, fences, and what followed the closing one.
    pub(crate) fn left_out(&self) -> &str {
        self.left_out.trim()
    }

    fn advance(&mut self, is_end: bool) -> String {
        if self.is_open {
            match self.find(&self.held, is_end, 0) {
                Found::Unclear => return String::new(),
                Found::Text(at) => drop(self.held.drain(..at)),
                Found::Behind(at, fence) => {
                    self.left_out.extend(self.held.drain(..at));
                    self.fence = fence;
                }
            }
            self.is_open = false;
        }
        let text = match self.fence {
            None => std::mem::take(&mut self.held),
            Some(fence) => self.without_fence(fence, is_end),
        };
        let text = std::mem::take(&mut self.space) + &text;
        let text = if self.has_text { &text } else { text.trim_start() };
        let len = text.trim_end().len();
        self.has_text |= len > 0;
        self.space.push_str(&text[len..]);
        text[..len].to_owned()
    }

    /// The held text up to the fence that closes it.
    fn without_fence(&mut self, fence: Fence, is_end: bool) -> String {
        let mut out = String::new();
        if self.is_closed {
            self.left_out.push_str(&std::mem::take(&mut self.held));
        }
        while !self.held.is_empty() {
            let line_len = self.held.find('\n').map(|at| at + 1);
            let may_be_fence = |line: &str| {
                let line = line.trim_start();
                line.is_empty() || line.starts_with(['`', '~'])
            };
            let len = match line_len {
                Some(len) => len,
                None if is_end => self.held.len(),
                None if !self.is_inside_line && may_be_fence(&self.held) => break,
                None => self.held.len(),
            };
            let line: String = self.held.drain(..len).collect();
            let begins_line = !std::mem::replace(&mut self.is_inside_line, line_len.is_none());
            let bare = fence_of(&line).filter(|_| begins_line);
            if let Some((found, is_bare)) = bare {
                self.n_fences += 1;
                let closes = is_bare && found.mark == fence.mark && found.len >= fence.len;
                if closes && !self.old_has_fences {
                    self.is_closed = true;
                    self.left_out.push_str(&line);
                    self.left_out.push_str(&std::mem::take(&mut self.held));
                    break;
                }
                out.push_str(&std::mem::take(&mut self.last_fence));
                if closes {
                    self.last_fence = line;
                    continue;
                }
            } else if !self.last_fence.is_empty() {
                self.last_fence.push_str(&line);
                if line.trim().is_empty() {
                    continue;
                }
                out.push_str(&std::mem::take(&mut self.last_fence));
                continue;
            }
            out.push_str(&line);
        }
        if is_end {
            // Fences of the text itself come in pairs.
            let last = std::mem::take(&mut self.last_fence);
            if self.n_fences % 2 == 1 { self.left_out.push_str(&last) } else { out.push_str(&last) }
        }
        out
    }

    /// Finds the beginning of the text. `depth` announcements came before it.
    fn find(&self, output: &str, is_end: bool, depth: usize) -> Found {
        let text = output.trim_start();
        let start = output.len() - text.len();
        if text.is_empty() {
            return if is_end { Found::Text(start) } else { Found::Unclear };
        }
        match self.agreement(text, is_end) {
            Agreement::Unclear => return Found::Unclear,
            Agreement::Begins => return Found::Text(start),
            Agreement::Departs => {}
        }
        let behind = |at: usize| output.len() - output[start + at..].trim_start().len();
        if !is_end && text.len() < 3 && text.chars().all(|c| matches!(c, '`' | '~')) {
            return Found::Unclear;
        }
        let line_end = text.find('\n');
        let line = &text[..line_end.unwrap_or(text.len())];
        if let Some((fence, _)) = fence_of(line) {
            return match line_end {
                // It may have more marks, and then it is none.
                None if !is_end => Found::Unclear,
                _ if self.is_about_code || fence_of(&self.old).is_some() => Found::Text(start),
                Some(end) => Found::Behind(behind(end), Some(fence)),
                None => Found::Text(start),
            };
        }
        if begins_block(line) {
            return Found::Text(start);
        }
        // An announcement and the text may be on one line.
        let limit = line.char_indices().nth(LINE_CHARS_MAX).map_or(line.len(), |(at, _)| at);
        for (at, colon) in line[..limit].match_indices([':', '：']) {
            let rest = line[at + colon.len()..].trim_start();
            let is_open = line_end.is_none() && !is_end;
            match self.agreement(rest, !is_open) {
                Agreement::Begins if !self.is_wanted(&line[..at]) && !rest.is_empty() => {
                    return Found::Behind(behind(at + colon.len()), None);
                }
                Agreement::Unclear => return Found::Unclear,
                _ => {}
            }
        }
        if limit < line.len() {
            return Found::Text(start);
        }
        let Some(end) = line_end else { return if is_end { Found::Text(start) } else { Found::Unclear } };
        let line = line.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '_'));
        let (announces, opens) = (line.ends_with([':', '：']), is_opener(line));
        if !announces && !opens || self.is_wanted(line) {
            return Found::Text(start);
        }
        let at = behind(end);
        let rest = &output[at..];
        if rest.is_empty() || !is_end && rest.len() < 3 && rest.chars().all(|c| matches!(c, '`' | '~')) {
            return if is_end { Found::Text(start) } else { Found::Unclear };
        }
        // "Sure!", then "Here is the note:"; or a fence.
        if depth == 0 {
            match self.find(rest, is_end, 1) {
                Found::Unclear => return Found::Unclear,
                Found::Behind(more, fence) => return Found::Behind(at + more, fence),
                Found::Text(_) => {}
            }
        }
        match self.agreement(rest, is_end) {
            Agreement::Unclear => return Found::Unclear,
            Agreement::Begins => return Found::Behind(at, None),
            Agreement::Departs => {}
        }
        let old_line = self.old.lines().next().unwrap_or_default();
        if resembles(line, old_line) {
            return Found::Text(start);
        }
        // Signs are the same in all texts.
        let is_word = |piece: &&str| piece.contains(char::is_alphanumeric);
        let new: Vec<&str> = pieces(rest, is_end, 4 * COMPARED);
        let n_new = new.len();
        let new: Vec<&str> = new.into_iter().filter(is_word).take(COMPARED).collect();
        if new.len() < COMPARED && n_new < 4 * COMPARED && !is_end {
            return Found::Unclear;
        }
        let old = pieces(&self.old, true, 8 * COMPARED).into_iter().filter(is_word);
        let mut old: Vec<&str> = old.take(2 * COMPARED).collect();
        let n_shared = new.iter().filter(|piece| {
            let place = old.iter().position(|other| composed(other) == composed(piece));
            place.map(|place| old.swap_remove(place)).is_some()
        });
        let begins_alike = 2 * n_shared.count() >= new.len().max(1);
        let old_announces = old_line.trim_end().ends_with([':', '：']);
        match begins_alike || announces && opens && !old_announces {
            true => Found::Behind(at, None),
            false => Found::Text(start),
        }
    }

    /// Whether a text begins as the old one.
    fn agreement(&self, text: &str, is_end: bool) -> Agreement {
        let first_line = |text: &str| text.split('\n').next().unwrap_or_default().trim().to_owned();
        let line = first_line(text);
        if text.contains('\n') && !line.is_empty() && line == first_line(&self.old) {
            return Agreement::Begins;
        }
        let (new, old) = (pieces(text, is_end, AGREED), pieces(&self.old, true, AGREED));
        let n = new.iter().zip(&old).take_while(|(new, old)| composed(new) == composed(old)).count();
        if n >= AGREED || n == old.len() {
            return Agreement::Begins;
        }
        match n == new.len() && !is_end {
            true => Agreement::Unclear,
            false => Agreement::Departs,
        }
    }

    /// Whether the instruction has the words of a line.
    fn is_wanted(&self, line: &str) -> bool {
        let line: Vec<String> = words(line).map(|(_, word)| word).collect();
        !line.is_empty() && self.instruction.windows(line.len()).any(|window| window == line)
    }
}

/// The first complete pieces of a text.
fn pieces(text: &str, is_end: bool, n_max: usize) -> Vec<&str> {
    let (mut splitter, mut places): (_, Vec<Range<usize>>) = (Splitter::default(), Vec::new());
    splitter.read(text, |piece| places.push(piece));
    if is_end {
        places.extend(splitter.finish());
    }
    places.into_iter().take(n_max).map(|place| &text[place]).collect()
}

/// The fence of a line, and whether nothing follows it. An info string has no fence marks.
fn fence_of(line: &str) -> Option<(Fence, bool)> {
    let line = line.lines().next().unwrap_or_default().trim();
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = line.trim_start_matches(mark);
    let len = line.len() - info.len();
    (len >= 3 && !info.contains(mark)).then_some((Fence { mark, len }, info.is_empty()))
}

/// Whether a line is a heading, a quotation, an item of a list, a row of a table.
fn begins_block(line: &str) -> bool {
    let n_digits = line.bytes().take_while(u8::is_ascii_digit).count();
    line.starts_with(['#', '>', '|', '<'])
        || line.starts_with("- ")
        || line.starts_with("* ")
        || line.starts_with("+ ")
        || n_digits > 0 && line[n_digits..].starts_with(['.', ')'])
}

/// Whether a line begins as announcements do.
fn is_opener(line: &str) -> bool {
    let line = line.to_lowercase();
    OPENERS.iter().any(|opener| {
        line.strip_prefix(opener).is_some_and(|rest| {
            let next = rest.chars().next();
            let is_letter = |c: char| c.is_alphanumeric();
            // Scripts without spaces go on.
            !next.is_some_and(is_letter) || opener.chars().next_back().is_none_or(|c| (c as u32) >= 0x2e80)
        })
    })
}

/// Whether at least half of a line's words are in another line.
fn resembles(line: &str, other: &str) -> bool {
    let other: Vec<String> = words(other).map(|(_, word)| word).collect();
    let line: Vec<String> = words(line).map(|(_, word)| word).collect();
    let n_shared = line.iter().filter(|word| other.contains(word)).count();
    2 * n_shared >= line.len().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passed(old: &str, instruction: &str, output: &str) -> String {
        let mut by_steps = Vec::new();
        for n in [1, 3, usize::MAX] {
            let mut opening = Opening::new(old.trim(), instruction);
            let chars: Vec<char> = output.chars().collect();
            let mut text: String = chars
                .chunks(n.min(chars.len().max(1)))
                .map(|chunk| opening.push(&chunk.iter().collect::<String>()))
                .collect();
            text.push_str(&opening.finish());
            by_steps.push(text);
        }
        assert!(by_steps.iter().all(|text| *text == by_steps[0]), "{by_steps:?}");
        by_steps.remove(0)
    }

    const NOTE: &str = "The tap drips. Ada Voss repairs it on 3 May.\n\nBring the key.\n";

    fn edited() -> String {
        NOTE.trim().replace("3 May", "4 May")
    }

    #[test]
    fn announcements_are_cut_in_many_languages() {
        for announcement in [
            "Here is the edited note:\n\n",
            "Here's the revised text:\n",
            "Sure, here is the note with the change:\n\n",
            "Sure!\n\n",
            "Certainly! I have changed the date.\n\n",
            "Sure!\n\nHere is the edited note:\n\n",
            "**Edited note:**\n\n",
            "Edited text: ",
            "Hier ist die bearbeitete Notiz:\n\n",
            "Natürlich, hier ist der Text:\n\n",
            "Voici la note modifiée :\n\n",
            "Aquí tienes la nota editada:\n\n",
            "Ecco il testo modificato:\n\n",
            "Вот исправленная заметка:\n\n",
            "以下是修改后的文本：\n\n",
            "もちろんです。以下が編集後のメモです：\n\n",
            "다음은 수정된 메모입니다:\n\n",
            "إليك النص المعدل:\n\n",
            "Itt a szerkesztett jegyzet:\n\n",
        ] {
            assert_eq!(
                passed(NOTE, "Say 4 May.", &format!("{announcement}{}", edited())),
                edited(),
                "{announcement}"
            );
            if !announcement.ends_with('\n') {
                continue;
            }
            let other_start = edited().replace("The tap", "A pipe");
            assert_eq!(
                passed(NOTE, "Say 4 May.", &format!("{announcement}{other_start}\n")),
                other_start,
                "{announcement}"
            );
        }
    }

    #[test]
    fn announcements_of_translations_are_cut_by_end_and_beginning() {
        let german = "Der Hahn tropft. Ada Voss repariert ihn am 4. Mai.\n\nBring den Schlüssel mit.";
        for announcement in
            ["Here is the translation:\n\n", "Hier ist die Übersetzung:\n\n", "Voici la traduction :\n"]
        {
            assert_eq!(passed(NOTE, "In German.", &format!("{announcement}{german}")), german);
        }
        for kept in ["Liebe Ada:\n\n", "Der Hahn:\n\n"] {
            let text = format!("{kept}{german}");
            assert_eq!(passed(NOTE, "As a letter.", &text), text);
        }
    }

    #[test]
    fn a_text_that_begins_so_itself_is_not_cut() {
        for old in [
            "Here is the plan:\n\n- milk\n- eggs\n",
            "Sure, that works:\n\nSee you.\n",
            "Hier ist der Plan:\n\nMilch.\n",
            "以下是计划：\n\n牛奶。\n",
            "```\ncode\n```\n",
            "Note:\n\nNote:\n\nend",
            "Sure!",
            "Here is:",
        ] {
            assert_eq!(passed(old, "Fix the typos.", old), old.trim(), "{old}");
            let changed =
                old.replace("milk", "bread").replace("Milch", "Brot").replace("the plan", "my plan");
            assert_eq!(passed(old, "Change it.", &changed), changed.trim(), "{old}");
        }
        let old = "Here is the list:\n\n- milk\n- eggs\n";
        assert_eq!(
            passed(old, "In French.", "Voici la liste :\n\n- lait\n- œufs"),
            "Voici la liste :\n\n- lait\n- œufs"
        );
        let doubled = format!("Here is the edited list:\n\n{old}");
        assert_eq!(passed(old, "Fix it.", &doubled), old.trim(), "the announcement before it is");
    }

    #[test]
    fn what_was_asked_for_stays() {
        let with_title = format!("# Plumber\n\n{}", edited());
        assert_eq!(passed(NOTE, "Add a title.", &with_title), with_title);
        let with_line = format!("For Ada:\n\n{}", edited());
        assert_eq!(passed(NOTE, "Write \"For Ada:\" at the top.", &with_line), with_line);
        let fenced = format!("```\n{}\n```", edited());
        assert_eq!(passed(NOTE, "Put it into a code block.", &fenced), fenced);
        let hello = format!("Hello Ada.\n\n{}", edited());
        assert_eq!(passed(NOTE, "Greet her.", &hello), hello);
    }

    #[test]
    fn a_fence_around_all_is_cut() {
        for output in [
            format!("```\n{}\n```", edited()),
            format!("```markdown\n{}\n```\n\nI changed the date.", edited()),
            format!("Here is the note:\n\n~~~\n{}\n~~~\n", edited()),
            format!("```\n{}", edited()),
        ] {
            assert_eq!(passed(NOTE, "Say 4 May.", &output), edited(), "{output}");
        }
        let code = "# How\n\n```sh\nls\n```\n\nDone.";
        assert_eq!(passed(code, "Fix it.", &format!("```md\n{code}\n```")), code);
        assert_eq!(passed(code, "Fix it.", code), code);
        let ends_with_code = "# How\n\n```sh\nls\n```";
        assert_eq!(
            passed(ends_with_code, "Fix it.", &format!("```md\n{ends_with_code}\n```\n")),
            ends_with_code
        );
        let mut opening = Opening::new(NOTE.trim(), "");
        opening.push(&format!("Here is the note:\n```\n{}\n```\nBye.", edited()));
        opening.finish();
        assert!(opening.left_out().starts_with("Here is the note:") && opening.left_out().ends_with("Bye."));
    }

    #[test]
    fn an_output_without_a_text_stays() {
        for output in
            ["Sure!", "Here is the edited note:", "Here is the edited note:\n\n", "```", "`", "Edited: "]
        {
            assert_eq!(passed(NOTE, "Say 4 May.", output), output.trim(), "{output}");
        }
        assert_eq!(passed(NOTE, "Say 4 May.", " \n"), "");
        let long = format!("Here {}:\n\n{NOTE}", "and there ".repeat(40));
        assert_eq!(passed(NOTE, "x", &long), long.trim());
    }

    proptest! {
        #[test]
        fn what_begins_as_the_old_text_is_passed_whole(
            old in "[a-c`:#]([a-c`:#]{1,3}|\n|\n\n| ){4,30}",
            more in "([a-c`:]{1,3}|\n| ){0,20}",
        ) {
            let old = old.trim();
            let output = format!("{old}\n{more}");
            prop_assert_eq!(passed(old, "", &output), output.trim());
        }

        #[test]
        fn steps_change_nothing(
            old in "(here is|sure|a|b|c|:|!|\n|```\n| ){1,20}",
            output in "(here is|sure|a|b|c|:|!|\n|\n\n|```\n|~~~| ){0,40}",
        ) {
            passed(&old, "c a", &output);
        }
    }
}
