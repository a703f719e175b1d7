//! The notes as resources: listed in pages, and read from the index.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_assistant::{Passage, TaskError};
use refrain_index::SourceKind;
use rmcp::model::{
    CacheScope, ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate,
};
use serde_json::json;

use super::names::{self, Names};
use super::state::{Mcp, failed, wrong_cursor};
use crate::error::{ApiError, ApiResult};
use crate::page::of_task;

/// Notes of a page.
const PAGE: usize = 100;
/// Maximum length of a cursor: a path of Linux has at most 4096 bytes, here in base64.
const CURSOR_BYTES_MAX: usize = 8 << 10;
/// Maximum length of a note's text in one answer, in bytes: the longest file that an index reads by default.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// The form of all notes: sections under headings.
const MIME: &str = "text/markdown";

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{}{{id}}", names::SCHEME), "note")
        .with_title("A note")
        .with_description("The text of a note as the index has it. The ids are those of resources/list and of the tools' results.")
        .with_mime_type(MIME)
}

/// The resource of the note at a path.
pub(super) fn link(path: &Path, names: &Names) -> Resource {
    let kind = SourceKind::of(path).map_or("note", SourceKind::name);
    let name = names.name(path);
    Resource::new(names::uri(path), name)
        .with_description(format!("a file of the kind {kind}"))
        .with_mime_type(MIME)
}

/// A page of the notes in the order of their names. The cursor has the name and the id of the last note shown, so a page is the same
/// when notes before it come and go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place(String, String);

impl Place {
    fn cursor(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{} {}", self.1, self.0))
    }

    fn read(cursor: &str) -> Option<Self> {
        let bytes =
            (cursor.len() <= CURSOR_BYTES_MAX).then(|| URL_SAFE_NO_PAD.decode(cursor).ok()).flatten()?;
        let text = String::from_utf8(bytes).ok()?;
        let (id, name) = text.split_once(' ')?;
        names::id_of(&format!("{}{id}", names::SCHEME))?;
        Some(Self(name.to_owned(), id.to_owned()))
    }
}

impl Mcp {
    pub(super) async fn resources(&self, cursor: Option<String>) -> Result<ListResourcesResult, ErrorData> {
        let after = cursor.map(|cursor| Place::read(&cursor).ok_or_else(wrong_cursor)).transpose()?;
        let (_, assistant) = self.page.assistant().await.map_err(failed)?;
        let listed = self.brief(move || {
            let Some(notes) = assistant.notes() else { return Ok((Vec::new(), None)) };
            let _ = notes.refresh();
            let names = Names::of(&assistant);
            let files = assistant.note_files().map_err(of_task)?;
            let mut files: Vec<_> = files
                .into_iter()
                .map(|file| (Place(names.name(&file.path), names::id(&file.path)), file.path))
                .filter(|(place, _)| after.as_ref().is_none_or(|after| place > after))
                .collect();
            files.sort_unstable();
            let next = (files.len() > PAGE).then(|| files[PAGE - 1].0.cursor());
            files.truncate(PAGE);
            Ok((files.iter().map(|(_, path)| link(path, &names)).collect(), next))
        });
        let (resources, next) = listed.await.map_err(failed)?;
        let mut result = ListResourcesResult::with_all_items(resources);
        result.next_cursor = next;
        Ok(result)
    }

    pub(super) async fn resource(&self, uri: String) -> Result<ReadResourceResult, ErrorData> {
        let unknown =
            || ErrorData::resource_not_found("the notes have no such note", Some(json!({ "uri": uri })));
        let Some(id) = names::id_of(&uri).map(str::to_owned) else { return Err(unknown()) };
        let (_, assistant) = self.page.assistant().await.map_err(failed)?;
        let text = self.brief(move || {
            let Some(notes) = assistant.notes() else { return Ok(None) };
            let _ = notes.refresh();
            let Some(file) = names::find(&assistant, &id)? else { return Ok(None) };
            match assistant.note(&file.path) {
                Ok(sections) => text(&sections).map(Some),
                // Deleted in between.
                Err(TaskError::NoSuchNote { .. }) => Ok(None),
                Err(error) => Err(of_task(error)),
            }
        });
        let text = text.await.map_err(failed)?.ok_or_else(unknown)?;
        let contents = ResourceContents::text(text, uri.clone()).with_mime_type(MIME);
        let mut result = ReadResourceResult::new(vec![contents]);
        // Notes change, and are nobody else's.
        (result.ttl_ms, result.cache_scope) = (Some(0), Some(CacheScope::Private));
        Ok(result)
    }
}

/// The sections of a note under their titles.
fn text(sections: &[Passage]) -> ApiResult<String> {
    let n_bytes: usize = sections.iter().map(|section| section.title.len() + section.text.len() + 6).sum();
    if n_bytes > TEXT_BYTES_MAX {
        let message = format!(
            "the note has {n_bytes} bytes of text, more than {TEXT_BYTES_MAX}; `search_notes` finds its passages"
        );
        return Err(ApiError::server(message).with_code("note_too_long"));
    }
    let section = |Passage { title, text, .. }: &Passage| match title.is_empty() {
        true => text.trim_end().to_owned(),
        false => format!("# {title}\n\n{}", text.trim_end()),
    };
    Ok(sections.iter().map(section).collect::<Vec<_>>().join("\n\n"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_are_read_back(name in "\\PC{0,20}", id in "[0-9a-f]{32}") {
            let place = Place(name, id);
            prop_assert_eq!(Place::read(&place.cursor()), Some(place));
        }

        #[test]
        fn other_texts_are_no_cursors(text in "\\PC{0,60}") {
            prop_assert_eq!(Place::read(&text), None);
        }
    }

    #[test]
    fn a_long_note_is_refused_with_its_length() {
        let error = text(&[Passage::new("", "x".repeat(TEXT_BYTES_MAX))]).unwrap_err();
        assert!(error.message.contains(&(TEXT_BYTES_MAX + 6).to_string()), "{error:?}");
        assert_eq!(
            text(&[Passage::new("A", "one\n"), Passage::new("", "two")]),
            Ok("# A\n\none\n\ntwo".to_owned())
        );
    }
}
