//! reStructuredText, Org, and texts without headings: source code, settings, YAML. Passages are bytes of the file.

use std::ops::Range;

use super::parse_date;
use super::unit::{Body, TAG_BYTES_MAX, Unit, Verbatim, sorted};
use crate::markdown::{Heading, Section, Structure};
use crate::notes::report::SkipReason;

/// Source code, settings and YAML: text without headings.
pub(super) fn read_plain(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let sections = vec![Section { heading: String::new(), body: 0..text.len() }];
    let body = Body::Verbatim(Verbatim { place: 0..text.len(), sections, names: Vec::new() });
    Ok(vec![Unit { title: name.to_owned(), body, date: None, tags: Vec::new(), page: None }])
}

/// Reads reStructuredText: a line of one mark below a line, and above it too, makes a heading. The order of the marks gives the levels.
pub(super) fn read_rst(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let mut headings: Vec<Heading> = Vec::new();
    let mut marks: Vec<(u8, bool)> = Vec::new();
    // The two lines before, if no heading has them.
    let mut before: [Option<(Range<usize>, &str)>; 2] = [None, None];
    for (place, line) in whole_lines(text) {
        let heading = mark_of(line).and_then(|mark| {
            let (title_place, title) = before[1].as_ref()?;
            let is_over = before[0].as_ref().is_some_and(|(_, over)| mark_of(over) == Some(mark));
            let own = title.trim();
            let is_title =
                !own.is_empty() && mark_of(title).is_none() && (is_over || !title.starts_with([' ', '\t']));
            let is_long = line.trim_end().len() >= own.chars().count().max(2);
            let start =
                before[0].as_ref().filter(|_| is_over).map_or(title_place.start, |(over, _)| over.start);
            (is_title && is_long).then(|| (mark, is_over, start, own.to_owned()))
        });
        let Some((mark, is_over, start, title)) = heading else {
            before = [before[1].take(), Some((place, line))];
            continue;
        };
        let known = marks.iter().position(|&known| known == (mark, is_over));
        let level = known.unwrap_or_else(|| {
            marks.push((mark, is_over));
            marks.len() - 1
        });
        headings.push(Heading { level: level + 1, lines: start..place.end, title });
        before = [None, None];
    }
    let title = headings.first().map_or(name, |heading| heading.title.as_str()).to_owned();
    Ok(vec![unit(title, text, headings, None, Vec::new())])
}

/// The mark of a line that consists of it.
fn mark_of(line: &str) -> Option<u8> {
    let bytes = line.trim_end().as_bytes();
    let &mark = bytes.first().filter(|byte| byte.is_ascii_punctuation())?;
    (bytes.len() >= 2 && bytes.iter().all(|&byte| byte == mark)).then_some(mark)
}

/// Reads Org: lines with stars are headings, also in a block, which ends there: Org writes `,*` for a star. `#+title`, `#+date`, `#+filetags` and tags of headings are read.
pub(super) fn read_org(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let mut headings = Vec::new();
    let (mut title, mut date, mut tags) = (None, None, Vec::new());
    for (place, line) in whole_lines(text) {
        let line = line.trim_end();
        if let Some((key, value)) = line.trim_start().strip_prefix("#+").and_then(keyword) {
            match (key.as_str(), value) {
                ("title", value) if title.is_none() => title = Some(value.to_owned()),
                ("date", value) if date.is_none() => {
                    date = value.trim_matches(['<', '>', '[', ']']).get(..10).and_then(parse_date);
                }
                ("filetags", value) => tags.extend(tags_in(value)),
                _ => {}
            }
            continue;
        }
        let rest = line.trim_start_matches('*');
        let level = line.len() - rest.len();
        if level == 0 || !rest.starts_with(' ') {
            continue;
        }
        let mut own = rest.trim();
        if let Some((before, last)) = own.rsplit_once(' ')
            && last.len() > 2
            && last.starts_with(':')
            && last.ends_with(':')
        {
            tags.extend(tags_in(last));
            own = before.trim();
        }
        headings.push(Heading { level, lines: place, title: own.to_owned() });
    }
    let first = headings.first().filter(|heading| heading.level == 1).map(|heading| heading.title.clone());
    let title = title.filter(|title| !title.is_empty()).or(first).unwrap_or_else(|| name.to_owned());
    Ok(vec![unit(title, text, headings, date, sorted(tags))])
}

/// `key: value` behind `#+`, or a word such as `begin_src`.
fn keyword(line: &str) -> Option<(String, &str)> {
    let end = line.find([':', ' ']).unwrap_or(line.len());
    let (key, value) = line.split_at_checked(end)?;
    let is_short = !key.is_empty() && key.len() <= TAG_BYTES_MAX;
    is_short.then(|| (key.to_ascii_lowercase(), value.strip_prefix(':').unwrap_or(value).trim()))
}

fn tags_in(text: &str) -> impl Iterator<Item = String> {
    text.split([':', ' ']).filter(|tag| !tag.is_empty()).map(str::to_lowercase)
}

fn unit(title: String, text: &str, headings: Vec<Heading>, date: Option<i64>, tags: Vec<String>) -> Unit {
    let structure = Structure { headings, literal: Vec::new() };
    let sections = structure.sections(text, 0, &title);
    let body = Body::Verbatim(Verbatim { place: 0..text.len(), sections, names: Vec::new() });
    Unit { title, body, date, tags, page: None }
}

/// Lines with their places; these have the line ends.
fn whole_lines(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut start = 0;
    text.split_inclusive('\n').map(move |line| {
        let place = start..start + line.len();
        start = place.end;
        (place, line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, unit: &Unit) -> Vec<(String, String)> {
        let Body::Verbatim(body) = &unit.body else { unreachable!("texts stand in the file") };
        let sections = body
            .sections
            .iter()
            .map(|section| (section.heading.clone(), text[section.body.clone()].trim().to_owned()));
        sections.filter(|(_, text)| !text.is_empty()).collect()
    }

    fn section(heading: &str, text: &str) -> (String, String) {
        (heading.to_owned(), text.to_owned())
    }

    #[test]
    fn headings_of_restructured_text_have_marks_below() {
        let text = "======\n Trip\n======\nIntro\n\nStay\n----\nAt the\n\n  Bristol\n  -------\n\nFood\n----\r\nFish.\n\n-----\n\nEnd\nx\n-\n";
        let unit = read_rst("a", text).unwrap().remove(0);
        assert_eq!(unit.title, "Trip");
        assert_eq!(
            shown(text, &unit),
            [
                section("", "Intro"),
                section("Stay", "At the\n\n  Bristol\n  -------"),
                section("Food", "Fish.\n\n-----\n\nEnd\nx\n-")
            ]
        );
        assert_eq!(read_rst("name", "text").unwrap()[0].title, "name");
    }

    #[test]
    fn headings_of_org_have_stars() {
        let text = "#+TITLE: Trip\n#+date: <2024-05-01 Wed>\n#+FILETAGS: :a:b:\n* Stay :Hotel:\nBristol\n#+begin_src c\n,* no heading\n** Food\n*bold* fish\n";
        let unit = read_org("a", text).unwrap().remove(0);
        assert_eq!((unit.title.as_str(), unit.date), ("Trip", Some(1_714_521_600)));
        assert_eq!(unit.tags, ["a", "b", "hotel"]);
        let sections = shown(text, &unit);
        assert_eq!(sections[1], section("Stay", "Bristol\n#+begin_src c\n,* no heading"));
        assert_eq!(sections[2], section("Food", "*bold* fish"));
    }

    #[test]
    fn code_is_text_without_headings() {
        let text = "# no heading\nfn main() {}\n";
        assert_eq!(shown(text, &read_plain("a", text).unwrap()[0]), [section("", text.trim())]);
    }
}
