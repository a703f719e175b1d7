//! The text of a page: what its operators show, in their order. Places on the page tell words, lines and paragraphs apart.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::limits::{
    PDF_FORM_DEPTH_MAX, PDF_FORMS_MAX, PDF_STATES_MAX, PDF_VALUES_MAX, TEXT_BYTES_MAX,
};
use super::super::unit::{Losses, spaced};
use super::file::File;
use super::font::Font;
use super::object::{Dict, Lexer, Object, is_space};
use crate::notes::report::SkipReason;

/// `[a b c d e f]`: `x' = a x + c y + e`, `y' = b x + d y + f`.
type Matrix = [f64; 6];

const IDENTITY: Matrix = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

/// Operands of an operator that are kept.
const OPERANDS_MAX: usize = 64;

/// Bytes that a font takes of the budget besides its map: its letters are in memory.
const FONT_BYTES: usize = 2048;

/// In sizes of the letters: a gap between words, and the distances at which another line and another paragraph begin.
const WORD_GAP: f64 = 0.2;
const LINE_GAP: f64 = 0.4;
const PARAGRAPH_GAP: f64 = 1.8;

fn product(first: &Matrix, then: &Matrix) -> Matrix {
    let [a, b, c, d, e, f] = *first;
    let [g, h, i, j, k, l] = *then;
    [a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l]
}

/// The state of graphics and text.
#[derive(Clone)]
struct State {
    ctm: Matrix,
    font: Option<Rc<Font>>,
    size: f64,
    char_space: f64,
    word_space: f64,
    scale: f64,
    leading: f64,
}

/// A page, or a form that it shows.
struct Frame {
    data: Rc<Vec<u8>>,
    at: usize,
    resources: Rc<Dict>,
    /// States to go back to.
    states: Vec<State>,
    /// The state before the form.
    outer: State,
    /// The form's number, as long as it has shown nothing.
    mute: Option<u32>,
}

/// Reads the pages of a file.
pub(super) struct Reader<'a> {
    pub(super) file: &'a File<'a>,
    /// By the place of their dictionary in memory, which the file keeps.
    fonts: HashMap<*const Dict, Rc<Font>>,
    n_forms: usize,
    pub(super) n_text: usize,
    /// Codes without a text.
    pub(super) n_unknown: usize,
    /// Forms that show neither text nor forms, such as the background of each page.
    mute: HashSet<u32>,
    /// The first limit that left out a part of a page.
    pub(super) lost: Option<(&'static str, usize)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a File<'a>) -> Self {
        Self {
            file,
            fonts: HashMap::new(),
            n_forms: 0,
            n_text: 0,
            n_unknown: 0,
            mute: HashSet::new(),
            lost: None,
        }
    }

    /// The paragraphs of a page.
    ///
    /// # Errors
    /// [`SkipReason::Limit`]. What was read until then is in `layout`.
    pub(super) fn read(
        &mut self,
        data: Vec<u8>,
        resources: Rc<Dict>,
        layout: &mut Layout,
        offset: usize,
    ) -> Result<(), SkipReason> {
        let mut state = State {
            ctm: IDENTITY,
            font: None,
            size: 1.0,
            char_space: 0.0,
            word_space: 0.0,
            scale: 1.0,
            leading: 0.0,
        };
        let (mut matrix, mut line) = (IDENTITY, IDENTITY);
        let frame = Frame {
            data: Rc::new(data),
            at: 0,
            resources,
            states: Vec::new(),
            outer: state.clone(),
            mute: None,
        };
        let mut frames = vec![frame];
        let mut operands: Vec<Object> = Vec::new();
        // Of the operands, together.
        let mut n_values = 0;
        while let Some(frame) = frames.last_mut() {
            let data = Rc::clone(&frame.data);
            let mut lexer = Lexer { bytes: &data, at: frame.at };
            let object = lexer.next_counted(&mut n_values);
            frame.at = lexer.at;
            let word = match object {
                None => {
                    if let Some(frame) = frames.pop() {
                        self.mute.extend(frame.mute);
                        state = frame.outer;
                    }
                    operands.clear();
                    n_values = 0;
                    continue;
                }
                Some(Object::Word(word)) => word,
                Some(operand) => {
                    if n_values > PDF_VALUES_MAX {
                        operands.clear();
                        n_values = 0;
                    }
                    if operands.len() == OPERANDS_MAX {
                        operands.remove(0);
                    }
                    operands.push(operand);
                    continue;
                }
            };
            // The last operands count.
            let number = |from_end: usize| {
                operands.len().checked_sub(from_end).and_then(|at| operands[at].number()).unwrap_or(0.0)
            };
            let numbers = || std::array::from_fn::<f64, 6, _>(|at| number(6 - at));
            let string = operands.last().and_then(Object::text);
            if matches!(&word[..], b"Tj" | b"TJ" | b"'" | b"\"" | b"Do") {
                frame.mute = None;
            }
            match &word[..] {
                b"q" if frame.states.len() == PDF_STATES_MAX => {
                    self.lost.get_or_insert(("saved states in each other", PDF_STATES_MAX));
                }
                b"q" => frame.states.push(state.clone()),
                b"Q" => state = frame.states.pop().unwrap_or(state),
                b"cm" => state.ctm = product(&numbers(), &state.ctm),
                b"BT" => (matrix, line) = (IDENTITY, IDENTITY),
                b"Tc" => state.char_space = number(1),
                b"Tw" => state.word_space = number(1),
                b"Tz" => state.scale = number(1) / 100.0,
                b"TL" => state.leading = number(1),
                b"Tf" => {
                    state.size = number(1);
                    let name = operands.iter().rev().find_map(Object::name).unwrap_or_default();
                    let fonts = self.file.dict(&frame.resources, b"Font");
                    if let Object::Dict(font) = self.file.entry(&fonts, name) {
                        state.font = Some(self.font(font)?);
                    }
                }
                b"Tm" => {
                    matrix = numbers();
                    line = matrix;
                }
                b"Td" | b"TD" | b"T*" => {
                    let (x, y) = if word[1] == b'*' { (0.0, -state.leading) } else { (number(2), number(1)) };
                    if word[1] == b'D' {
                        state.leading = -y;
                    }
                    line = product(&[1.0, 0.0, 0.0, 1.0, x, y], &line);
                    matrix = line;
                }
                b"'" | b"\"" => {
                    if word[0] == b'"' {
                        (state.word_space, state.char_space) = (number(3), number(2));
                    }
                    line = product(&[1.0, 0.0, 0.0, 1.0, 0.0, -state.leading], &line);
                    matrix = line;
                    self.show(string.unwrap_or_default(), &state, &mut matrix, layout, offset)?;
                }
                b"Tj" => self.show(string.unwrap_or_default(), &state, &mut matrix, layout, offset)?,
                b"TJ" => {
                    if let Some(Object::List(parts)) = operands.last() {
                        for part in parts.iter() {
                            match part {
                                Object::Text(string) => {
                                    self.show(string, &state, &mut matrix, layout, offset)?
                                }
                                part => {
                                    let back =
                                        part.number().unwrap_or(0.0) / 1000.0 * state.size * state.scale;
                                    matrix = product(&[1.0, 0.0, 0.0, 1.0, -back, 0.0], &matrix);
                                }
                            }
                        }
                    }
                }
                // The data of an image in the page.
                b"ID" => frame.at = image_end(&data, frame.at),
                b"Do" => {
                    let name = operands.last().and_then(Object::name).unwrap_or_default();
                    let forms = self.file.dict(&frame.resources, b"XObject");
                    let form = match forms.get(name) {
                        Some(Object::Reference(_)) if frames.len() == PDF_FORM_DEPTH_MAX => {
                            self.lost.get_or_insert(("forms in each other", PDF_FORM_DEPTH_MAX));
                            None
                        }
                        Some(Object::Reference(number)) => {
                            self.form(*number, &state, &frames[frames.len() - 1])?
                        }
                        _ => None,
                    };
                    if let Some((form, ctm)) = form {
                        state.ctm = ctm;
                        frames.push(form);
                    }
                }
                _ => {}
            }
            operands.clear();
            n_values = 0;
        }
        Ok(())
    }

    fn font(&mut self, font: Rc<Dict>) -> Result<Rc<Font>, SkipReason> {
        if let Some(known) = self.fonts.get(&Rc::as_ptr(&font)) {
            return Ok(Rc::clone(known));
        }
        self.file.budget.take(FONT_BYTES, 0)?;
        let read = Rc::new(Font::read(self.file, &font)?);
        self.fonts.insert(Rc::as_ptr(&font), Rc::clone(&read));
        Ok(read)
    }

    /// A form that a page shows, and the matrix in it.
    fn form(
        &mut self,
        number: u32,
        state: &State,
        above: &Frame,
    ) -> Result<Option<(Frame, Matrix)>, SkipReason> {
        let Object::Dict(dict) = self.file.get(number) else { return Ok(None) };
        if self.file.entry(&dict, b"Subtype").name() != Some(b"Form") || self.mute.contains(&number) {
            return Ok(None);
        }
        if self.n_forms == PDF_FORMS_MAX {
            self.lost.get_or_insert(("forms", PDF_FORMS_MAX));
            return Ok(None);
        }
        self.n_forms += 1;
        let Some(data) = self.file.stream(number)? else { return Ok(None) };
        let matrix = match self.file.entry(&dict, b"Matrix") {
            Object::List(list) if list.len() == 6 => {
                std::array::from_fn(|at| self.file.resolve(&list[at]).number().unwrap_or(0.0))
            }
            _ => IDENTITY,
        };
        let resources = match self.file.entry(&dict, b"Resources") {
            Object::Dict(resources) => resources,
            _ => Rc::clone(&above.resources),
        };
        let frame = Frame {
            data: Rc::new(data),
            at: 0,
            resources,
            states: Vec::new(),
            outer: state.clone(),
            mute: Some(number),
        };
        Ok(Some((frame, product(&matrix, &state.ctm))))
    }

    /// Shows a string, and moves behind it.
    fn show(
        &mut self,
        string: &[u8],
        state: &State,
        matrix: &mut Matrix,
        layout: &mut Layout,
        offset: usize,
    ) -> Result<(), SkipReason> {
        let Some(font) = &state.font else {
            self.n_unknown += string.len();
            return Ok(());
        };
        let (mut text, mut width) = (String::new(), 0.0);
        for code in font.codes(string) {
            match &code.text {
                Some(_) if self.n_text + text.len() > TEXT_BYTES_MAX => break,
                Some(shown) => text.push_str(shown),
                None => self.n_unknown += 1,
            }
            let space = if code.is_space { state.word_space } else { 0.0 };
            width += (code.width * state.size + state.char_space + space) * state.scale;
        }
        self.n_text += text.len();
        if self.n_text > TEXT_BYTES_MAX {
            let (limit, offset) = (TEXT_BYTES_MAX as u64, offset as u64);
            return Err(SkipReason::Limit { what: "bytes of text", limit, offset });
        }
        let start = product(matrix, &state.ctm);
        *matrix = product(&[1.0, 0.0, 0.0, 1.0, width, 0.0], matrix);
        let end = product(matrix, &state.ctm);
        let height = state.size.abs() * start[2].hypot(start[3]);
        layout.add(&text, &start, (end[4], end[5]), height);
        Ok(())
    }
}

/// The offset behind the data of an image: `EI` between white space.
fn image_end(data: &[u8], from: usize) -> usize {
    let is_end = |window: &[u8]| is_space(window[0]) && &window[1..3] == b"EI" && is_space(window[3]);
    data[from.min(data.len())..].windows(4).position(is_end).map_or(data.len(), |at| from + at + 3)
}

/// Paragraphs, made of strings with their places.
#[derive(Debug, Default)]
pub(super) struct Layout {
    paragraphs: Vec<String>,
    open: String,
    /// Where the last string ended, and the height of its letters.
    last: Option<((f64, f64), f64)>,
}

impl Layout {
    fn add(&mut self, text: &str, start: &Matrix, end: (f64, f64), height: f64) {
        if text.trim().is_empty() {
            // A space moves the place, and is a gap then, or its width is none.
            if !text.is_empty() && !self.open.is_empty() && !self.open.ends_with(' ') {
                self.open.push(' ');
                self.last = self.last.map(|(_, height)| (end, height));
            }
            return;
        }
        if let Some(((x, y), last_height)) = self.last {
            // The distance along the line and across it.
            let len = start[0].hypot(start[1]).max(f64::MIN_POSITIVE);
            let (ux, uy) = (start[0] / len, start[1] / len);
            let (dx, dy) = (start[4] - x, start[5] - y);
            let (along, down) = (dx * ux + dy * uy, dx * uy - dy * ux);
            let unit = height.max(last_height).max(f64::MIN_POSITIVE);
            if down.abs() > LINE_GAP * unit || along < -unit {
                match down > PARAGRAPH_GAP * unit || down < -LINE_GAP * unit {
                    true => self.end_paragraph(),
                    false => self.end_line(text),
                }
            } else if along > WORD_GAP * unit && !self.open.ends_with(' ') && !text.starts_with(' ') {
                self.open.push(' ');
            }
        }
        for char in text.chars() {
            match char {
                'ﬀ' => self.open.push_str("ff"),
                'ﬁ' => self.open.push_str("fi"),
                'ﬂ' => self.open.push_str("fl"),
                'ﬃ' => self.open.push_str("ffi"),
                'ﬄ' => self.open.push_str("ffl"),
                '\u{ad}' => self.open.push('-'),
                char => self.open.push(char),
            }
        }
        self.last = Some((end, height));
    }

    /// Joins lines. A word that a hyphen divides at the end of a line becomes one.
    fn end_line(&mut self, next: &str) {
        let line = self.open.trim_end();
        let is_divided =
            line.strip_suffix(['-', '‐']).is_some_and(|word| word.ends_with(char::is_alphabetic))
                && next.starts_with(char::is_lowercase);
        self.open.truncate(line.len());
        match is_divided {
            true => drop(self.open.pop()),
            false => self.open.push(' '),
        }
    }

    fn end_paragraph(&mut self) {
        let text = spaced(&self.open);
        self.open.clear();
        if !text.is_empty() {
            self.paragraphs.push(text);
        }
    }

    pub(super) fn into_paragraphs(mut self) -> Vec<String> {
        self.end_paragraph();
        self.paragraphs
    }
}

/// Notes that letters of fonts without a map are missing.
pub(super) fn note_unknown(n_unknown: usize, losses: &mut Losses) {
    if n_unknown > 0 {
        losses.add(SkipReason::Broken {
            what: "letters in a font that does not say which they are",
            offset: 0,
        });
    }
}
