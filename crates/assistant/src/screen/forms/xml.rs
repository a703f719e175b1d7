//! Accessibility XML.

use refrain_index::notes::{ScreenElement, SkipReason, read_screen_xml};

use super::source::{Form, Item};
use crate::screen::error::{ScreenError, ScreenForm};

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    // The lines of the elements are counted on the way.
    let (mut at, mut line) = (0, 1);
    let mut line_of = |offset: usize| {
        let behind = source.as_bytes().get(at..offset).unwrap_or_default();
        line += behind.iter().filter(|&&byte| byte == b'\n').count();
        at = at.max(offset);
        line
    };
    let screen = read_screen_xml(source).map_err(|reason| {
        let offset = match &reason {
            SkipReason::Broken { offset, .. } | SkipReason::Limit { offset, .. } => *offset,
            _ => 0,
        };
        let offset = usize::try_from(offset).unwrap_or(source.len()).min(source.len());
        ScreenError::Xml { line: line_of(offset), reason }
    })?;
    let item = |element: ScreenElement| Item {
        line: line_of(element.place.start),
        is_active: element.clickable == Some(true) || element.scrollable == Some(true),
        id: element.id,
        role: element.role,
        label: element.label,
        name: element.name.unwrap_or_default(),
        place: element.place,
        parent: element.parent,
        enabled: element.enabled,
        shown: element.shown,
        tap: element.clickable,
        long_press: element.long_clickable,
        scrolls: element.scrollable,
    };
    let items = screen.elements.into_iter().map(item).collect();
    Ok(Form { form: ScreenForm::Xml, title: screen.title.unwrap_or_default(), items })
}
