//! The tokenizer's files inside a packed file: those of the source, so that the same code reads them to the same tokenizer.
//!
//! Of a Hugging Face folder they are the files themselves; of a GGUF file, a GGUF file without tensors that has the
//! metadata under `tokenizer.` and, for the record, `general.`.

use crate::model::gguf::{GgufFile, GgufWriteError, GgufWriter};
use crate::model::hf::{HfError, HfFolder};

/// The name of the part that holds a GGUF file's metadata.
const GGUF_PART: &str = "tokenizer.gguf";

/// The tokenizer's files: names and bytes. None where the source has no tokenizer.
pub(super) type Files = Vec<(String, Vec<u8>)>;

pub(super) fn from_gguf(file: &GgufFile) -> Result<Files, GgufWriteError> {
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata() {
        // The alignment is that of the tensors, and there are none here.
        let is_general = key.starts_with("general.") && key != "general.alignment";
        if is_general || key.starts_with("tokenizer.") {
            writer.metadata(key, value.clone());
        }
    }
    Ok(vec![(GGUF_PART.to_owned(), writer.start(Vec::new())?.finish()?)])
}

pub(super) fn from_folder(folder: &HfFolder) -> Result<Files, HfError> {
    let mut files = Files::new();
    for name in crate::tokenizer::FOLDER_FILES {
        if let Some(text) = folder.text(name)? {
            files.push((name.to_owned(), text.into_bytes()));
        }
    }
    Ok(files)
}

/// Whether the files, as named, are those of a GGUF file.
pub(super) fn is_gguf(names: &[&str]) -> bool {
    names == [GGUF_PART]
}

/// The first name that does not belong into the list, if there is one.
pub(super) fn unknown_name<'a>(names: &[&'a str]) -> Option<&'a str> {
    if is_gguf(names) {
        return None;
    }
    let is_unknown = |at: usize, name: &str| {
        !crate::tokenizer::FOLDER_FILES.contains(&name) || names[..at].contains(&name)
    };
    names.iter().enumerate().find(|&(at, name)| is_unknown(at, name)).map(|(_, name)| *name)
}

/// What belongs into the list, for messages.
pub(super) fn expected_names() -> String {
    format!("{GGUF_PART}, or each at most once: {}", crate::tokenizer::FOLDER_FILES.join(", "))
}
