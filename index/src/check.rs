//! Checks for fuzzing, without promises about their stability.

use crate::document::Document;
use crate::front_matter::FrontMatter;
use crate::markdown::Structure;
use crate::passage::{split, split_sections};

/// Reads a note, and panics if something is wrong that holds for every text: places lie in the text, sections have all text
/// outside of headings once, and passages have the text of the sections.
pub fn check_note(text: &str) {
    let front = FrontMatter::read(text).unwrap_or_default();
    assert!(
        front.text_start <= front.content_end && front.content_end <= front.end && front.end <= text.len()
    );
    assert!(text.is_char_boundary(front.text_start));
    let structure = Structure::read(text, front.end);
    let places = structure.literal.windows(2).all(|pair| pair[0].end <= pair[1].start);
    assert!(places && structure.literal.iter().all(|place| text.get(place.clone()).is_some()));
    let sections = structure.sections(text, front.end, structure.title().unwrap_or("name"));
    let mut n_times = vec![0_u8; text.len()];
    n_times[..front.end].fill(1);
    structure.headings.iter().for_each(|heading| n_times[heading.lines.clone()].fill(1));
    let mut end = front.end;
    for section in sections {
        assert!(end <= section.body.start && text.get(section.body.clone()).is_some());
        end = section.body.end;
        n_times[section.body].fill(1);
    }
    assert!(text.char_indices().all(|(at, c)| n_times[at] == 1 || c.is_whitespace()));

    let document = Document::new("name.md", text);
    let visible = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let joined = |texts: Vec<crate::Passage>| {
        visible(&texts.into_iter().map(|passage| passage.text).collect::<String>())
    };
    let (passages, sections) = (joined(split(&document)), joined(split_sections(&document)));
    assert!(passages == sections || sections.is_empty());
}
