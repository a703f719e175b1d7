//! Units of documents: the text below each heading.

use std::ops::Range;

use super::limits::UNITS_MAX;
use super::unit::{Body, Losses, Piece, Unit};
use crate::markdown::TITLE_BYTES_MAX;
use crate::notes::report::SkipReason;
use crate::passage::title_below;

/// A paragraph, list item, row of a table or heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Of a heading: 1 for the highest.
    pub(super) level: Option<u8>,
    pub(super) text: String,
    pub(super) place: Range<usize>,
}

/// A document before it is divided.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// Without one, the first heading of level 1 is the title.
    pub(super) title: Option<String>,
    /// Seconds since 1970, UTC.
    pub(super) date: Option<i64>,
    pub(super) blocks: Vec<Block>,
}

impl Document {
    /// Adds a block. Behind [`UNITS_MAX`] of them, its text belongs to the last one: a block takes more memory than a short text.
    pub(super) fn push(&mut self, block: Block) {
        let is_full = self.blocks.len() >= UNITS_MAX;
        match self.blocks.last_mut().filter(|_| is_full) {
            Some(last) => {
                last.text.push('\n');
                last.text.push_str(&block.text);
                last.place.end = block.place.end;
            }
            None => self.blocks.push(block),
        }
    }

    /// A unit for each heading with text below it. A heading without text is in the title of the headings below it, else it is text.
    pub(super) fn into_units(self, name: &str, losses: &mut Losses) -> Vec<Unit> {
        let Self { title, date, blocks } = self;
        let title = title.filter(|title| !title.trim().is_empty());
        let first = || Some(blocks.iter().find(|block| block.level == Some(1))?.text.clone());
        let title = title.or_else(first).unwrap_or_else(|| name.to_owned());
        let mut units = Units { title: &title, date, units: Vec::new() };
        let mut heading: Option<Block> = None;
        let mut pieces: Vec<Piece> = Vec::new();
        for mut block in blocks {
            let Some(level) = block.level else {
                pieces.push(Piece { text: block.text, place: block.place, date: None });
                continue;
            };
            let is_bare = pieces.is_empty();
            if block.text == title && title.len() <= TITLE_BYTES_MAX {
                block.text.clear();
            }
            match heading.take() {
                Some(above)
                    if is_bare
                        && above.level < Some(level)
                        && above.text.len() + 2 + block.text.len() <= TITLE_BYTES_MAX =>
                {
                    let separator = if above.text.is_empty() || block.text.is_empty() { "" } else { ": " };
                    block.text = format!("{}{separator}{}", above.text, block.text);
                }
                above => units.add(above, std::mem::take(&mut pieces), losses),
            }
            heading = Some(block);
        }
        units.add(heading, pieces, losses);
        if units.units.is_empty() {
            units.units.push(units.unit("", Vec::new()));
        }
        units.units
    }
}

struct Units<'a> {
    title: &'a str,
    date: Option<i64>,
    units: Vec<Unit>,
}

impl Units<'_> {
    fn add(&mut self, heading: Option<Block>, mut pieces: Vec<Piece>, losses: &mut Losses) {
        let heading = heading.filter(|heading| !heading.text.is_empty());
        let is_title = heading
            .as_ref()
            .is_some_and(|heading| !pieces.is_empty() && heading.text.len() <= TITLE_BYTES_MAX);
        let text = heading.as_ref().filter(|_| is_title).map(|heading| heading.text.clone());
        if let Some(Block { text, place, .. }) = heading.filter(|_| !is_title) {
            pieces.insert(0, Piece { text, place, date: None });
        }
        let Some(first) = pieces.first() else { return };
        if self.units.len() >= UNITS_MAX {
            let (limit, offset) = (UNITS_MAX as u64, first.place.start as u64);
            losses.add(SkipReason::Limit { what: "headings", limit, offset });
            return;
        }
        self.units.push(self.unit(&text.unwrap_or_default(), pieces));
    }

    fn unit(&self, heading: &str, pieces: Vec<Piece>) -> Unit {
        Unit {
            title: title_below(self.title, heading),
            body: Body::Decoded(pieces),
            date: self.date,
            tags: Vec::new(),
            page: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(blocks: &[(u8, &str)]) -> Vec<(String, String)> {
        let blocks = blocks.iter().map(|&(level, text)| Block {
            level: (level > 0).then_some(level),
            text: text.to_owned(),
            place: 0..1,
        });
        let document = Document { blocks: blocks.collect(), ..Document::default() };
        let units = document.into_units("name", &mut Losses::default()).into_iter();
        let shown = units.map(|unit| {
            let Body::Decoded(pieces) = unit.body else { unreachable!("documents are decoded") };
            let texts: Vec<_> = pieces.into_iter().map(|piece| piece.text).collect();
            (unit.title, texts.join("|"))
        });
        shown.collect()
    }

    #[test]
    fn text_is_below_its_heading() {
        let section = |title: &str, text: &str| (title.to_owned(), text.to_owned());
        assert_eq!(
            sections(&[
                (0, "intro"),
                (1, "Oslo"),
                (2, "Stay"),
                (3, "Hotel"),
                (0, "a"),
                (0, "b"),
                (2, "Bare"),
                (2, "Last")
            ]),
            [
                section("Oslo", "intro"),
                section("Oslo: Stay: Hotel", "a|b"),
                section("Oslo", "Bare"),
                section("Oslo", "Last"),
            ]
        );
        assert_eq!(sections(&[]), [section("name", "")]);
        let mut document = Document::default();
        for at in 0..UNITS_MAX + 2 {
            document.push(Block { level: Some(1), text: "a".to_owned(), place: at..at + 1 });
        }
        let last = Block { level: Some(1), text: "a\na\na".to_owned(), place: UNITS_MAX - 1..UNITS_MAX + 2 };
        assert_eq!((document.blocks.len(), document.blocks.last()), (UNITS_MAX, Some(&last)));
        let long = "word ".repeat(100);
        assert_eq!(sections(&[(2, &long), (0, "a")]), [section("name", &format!("{long}|a"))]);
    }
}
