//! Tables: a line of text per row, `name: value; name: value` if the first row has names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::limits::{CELLS_MAX, NAME_BYTES_MAX, ROW_BYTES_MAX};
use super::unit::{Body, Lines, Losses, Unit, spaced};
use crate::notes::report::SkipReason;

/// Separators of cells, the likeliest first.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Reads a table. Without a separator, the first line shows it.
pub(super) fn read(
    name: &str,
    text: &str,
    separator: Option<u8>,
    losses: &mut Losses,
) -> Result<Vec<Unit>, SkipReason> {
    let (named, start) = named_separator(text);
    let separator = named.or(separator).unwrap_or_else(|| {
        let line = text.split(['\n', '\r']).next().unwrap_or_default();
        let line = &line.as_bytes()[..line.len().min(ROW_BYTES_MAX)];
        // Every second part is quoted.
        let plain: Vec<u8> = line.split(|&byte| byte == b'"').step_by(2).flatten().copied().collect();
        let count = |separator: u8| plain.iter().filter(|&&byte| byte == separator).count();
        SEPARATORS.into_iter().rev().max_by_key(|&separator| count(separator)).unwrap_or(b',')
    });
    let mut rows = Rows { text, at: start, separator, has_quotes: true };
    let mut lines = Lines::default();
    let mut names: Option<Vec<String>> = None;
    while let Some((place, cells)) = rows.next(losses) {
        let cells: Vec<String> = cells.iter().map(|cell| spaced(cell)).collect();
        if cells.iter().all(String::is_empty) {
            continue;
        }
        let Some(names) = &names else {
            let is_header = are_names(&cells);
            names =
                Some(if is_header { cells.iter().map(|cell| name_of(cell)).collect() } else { Vec::new() });
            // Words of the names are found in each row, and in the first piece as they stand there.
            lines.push(&cells.join(", "), place, losses);
            continue;
        };
        let mut line = String::new();
        for (at, cell) in cells.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
            line.push_str(if line.is_empty() { "" } else { "; " });
            if let Some(name) = names.get(at) {
                line.push_str(name);
                line.push_str(": ");
            }
            line.push_str(cell);
        }
        lines.push(&line, place, losses);
    }
    let body = Body::Decoded(lines.into_pieces());
    Ok(vec![Unit { title: name.to_owned(), body, date: None, tags: Vec::new(), page: None }])
}

/// The separator in a first line `sep=;`, as Excel writes it, and the offset behind the line.
fn named_separator(text: &str) -> (Option<u8>, usize) {
    let line = text.split_inclusive('\n').next().unwrap_or_default();
    match *line.trim_end_matches(['\n', '\r']).as_bytes() {
        [b's', b'e', b'p', b'=', separator] if separator.is_ascii() && !separator.is_ascii_alphanumeric() => {
            (Some(separator), line.len())
        }
        _ => (None, 0),
    }
}

fn name_of(cell: &str) -> String {
    cell[..cell.floor_char_boundary(NAME_BYTES_MAX)].to_owned()
}

/// Whether the cells of the first row name the columns: distinct words and no numbers.
fn are_names(cells: &[String]) -> bool {
    let mut seen = HashSet::new();
    let is_name =
        |cell: &String| !cell.is_empty() && cell.parse::<f64>().is_err() && seen.insert(cell.clone());
    cells.len() > 1 && cells.iter().all(is_name)
}

struct Rows<'a> {
    text: &'a str,
    at: usize,
    separator: u8,
    /// Cells may be quoted. Behind a quote without an end, none is.
    has_quotes: bool,
}

impl<'a> Rows<'a> {
    /// The next row, and its place.
    fn next(&mut self, losses: &mut Losses) -> Option<(Range<usize>, Vec<Cow<'a, str>>)> {
        if self.at == self.text.len() {
            return None;
        }
        let start = self.at;
        if self.has_quotes {
            if let Some((cells, end)) = self.row(start, true) {
                self.at = end;
                return Some((start..end, cells));
            }
            losses.add(SkipReason::Broken {
                what: "a quote without its end, which is text",
                offset: start as u64,
            });
            self.has_quotes = false;
        }
        let (cells, end) = self.row(start, false)?;
        self.at = end;
        Some((start..end, cells))
    }

    /// The cells of a row, and the offset behind it. `None` if a quote does not end in it.
    fn row(&self, start: usize, has_quotes: bool) -> Option<(Vec<Cow<'a, str>>, usize)> {
        let bytes = self.text.as_bytes();
        let mut cells = Vec::new();
        let mut at = start;
        loop {
            let is_quoted = has_quotes && bytes.get(at) == Some(&b'"');
            let cell = match is_quoted {
                true => {
                    let limit = bytes.len().min(start.saturating_add(ROW_BYTES_MAX));
                    let (cell, end) = self.quoted(at + 1, limit)?;
                    at = end;
                    cell
                }
                false => Cow::Borrowed(""),
            };
            let rest = &bytes[at..];
            let is_last = cells.len() + 1 == CELLS_MAX;
            let is_end = |byte: &u8| *byte == self.separator && !is_last || matches!(byte, b'\n' | b'\r');
            let end = at + rest.iter().position(is_end).unwrap_or(rest.len());
            // Behind a quoted part, the rest of a cell is kept too.
            let plain = &self.text[at..end];
            cells.push(match plain.trim().is_empty() && is_quoted {
                true => cell,
                false if is_quoted => Cow::Owned(format!("{cell}{plain}")),
                false => Cow::Borrowed(plain),
            });
            at = end;
            match bytes.get(at) {
                Some(&byte) if byte == self.separator && !is_last => at += 1,
                Some(b'\r') if bytes.get(at + 1) == Some(&b'\n') => return Some((cells, at + 2)),
                Some(_) => return Some((cells, at + 1)),
                None => return Some((cells, at)),
            }
        }
    }

    /// A quoted cell from behind its first quote, and the offset behind its last one.
    fn quoted(&self, start: usize, limit: usize) -> Option<(Cow<'a, str>, usize)> {
        let bytes = self.text.as_bytes();
        let (mut at, mut is_doubled) = (start, false);
        loop {
            at += bytes.get(at..limit)?.iter().position(|&byte| byte == b'"')?;
            if bytes.get(at + 1) != Some(&b'"') {
                let cell = &self.text[start..at];
                let cell =
                    if is_doubled { Cow::Owned(cell.replace("\"\"", "\"")) } else { Cow::Borrowed(cell) };
                return Some((cell, at + 1));
            }
            is_doubled = true;
            at += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &str, separator: Option<u8>) -> (String, usize) {
        let mut losses = Losses::default();
        let unit = read("a", table, separator, &mut losses).unwrap().remove(0);
        let Body::Decoded(pieces) = unit.body else { unreachable!("tables are decoded") };
        (pieces.into_iter().map(|piece| piece.text).collect::<Vec<_>>().join("\n"), losses.n)
    }

    #[test]
    fn rows_have_the_names_of_their_columns() {
        let table = "Name,City\r\n\"Voss, Ada\",Oslo\r\n\n\"B \"\"o\"\"\nx\",\nCy,Rome,more";
        let rows = "Name, City\nName: Voss, Ada; City: Oslo\nName: B \"o\" x\nName: Cy; City: Rome; more";
        assert_eq!(text(table, None), (rows.to_owned(), 0));
        assert_eq!(text("a;b;c,d\n1;2;3", None).0, "a, b, c,d\na: 1; b: 2; c,d: 3");
        assert_eq!(text("1\t2\n3\t4\n", Some(b'\t')).0, "1, 2\n3; 4");
        assert_eq!(text("Name;\"A, B, C\";x\n1;2;3", None).0, "Name, A, B, C, x\nName: 1; A, B, C: 2; x: 3");
        assert_eq!(text("sep=;\r\na;b,c\n1;2", None).0, "a, b,c\na: 1; b,c: 2");
    }

    #[test]
    fn a_quote_without_an_end_is_text() {
        let table = format!("a,b\n\"x,y\n{}", "1,2\n".repeat(400_000));
        let (text, n_lost) = text(&table, None);
        assert!(text.contains("\"x; b: y") && text.ends_with("a: 1; b: 2"));
        assert_eq!(n_lost, 1);
    }

    #[test]
    fn a_row_has_a_limit_of_cells() {
        let table = format!("{}\nb", "a,".repeat(2 * CELLS_MAX));
        let rows = Rows { text: &table, at: 0, separator: b',', has_quotes: true };
        let (cells, end) = rows.row(0, true).unwrap();
        assert_eq!((cells.len(), end), (CELLS_MAX, table.len() - 1));
        assert_eq!(cells.last().unwrap().len(), 2 * (CELLS_MAX + 1));
    }

    #[test]
    fn names_do_not_multiply_a_file() {
        let table =
            format!("{}x,{}y\n{}", "a".repeat(100_000), "b".repeat(100_000), "1,2\n".repeat(1_000_000));
        let (text, n_lost) = text(&table, None);
        assert!(text.len() <= super::super::limits::TEXT_BYTES_MAX && n_lost == 1);
    }
}
