//! The tokenizer's files in a packed file: those of the source, so that the same code builds the same
//! tokenizer.
//!
//! For a Hugging Face folder, these are its own files. For a GGUF file, it is a GGUF file without tensors,
//! with the metadata under `tokenizer.` and, for information, `general.`.

use refrain_containers::gguf::{GgufFile, GgufWriteError, GgufWriter};
use refrain_containers::hf::{HfError, HfFolder};

/// The name of the part that holds a GGUF file's metadata.
const GGUF_PART: &str = "tokenizer.gguf";

/// The tokenizer's files: names and bytes. Empty if the source has no tokenizer.
pub(super) type Files = Vec<(String, Vec<u8>)>;

pub(super) fn from_gguf(file: &GgufFile) -> Result<Files, GgufWriteError> {
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata() {
        // The alignment applies to tensors, and this file has none.
        let is_general = key.starts_with("general.") && key != "general.alignment";
        if is_general || key.starts_with("tokenizer.") {
            writer.metadata(key, value.clone());
        }
    }
    Ok(vec![(GGUF_PART.to_owned(), writer.start(Vec::new())?.finish()?)])
}

pub(super) fn from_folder(folder: &HfFolder) -> Result<Files, HfError> {
    let mut files = Files::new();
    for name in refrain_tokenizer::FOLDER_FILES {
        if let Some(text) = folder.text(name)? {
            files.push((name.to_owned(), text.into_bytes()));
        }
    }
    Ok(files)
}

/// Whether files of these names come from a GGUF file.
pub(super) fn is_gguf(names: &[&str]) -> bool {
    names == [GGUF_PART]
}

/// The first unexpected name, if any.
pub(super) fn unknown_name<'a>(names: &[&'a str]) -> Option<&'a str> {
    if is_gguf(names) {
        return None;
    }
    let is_unknown = |at: usize, name: &str| {
        !refrain_tokenizer::FOLDER_FILES.contains(&name) || names[..at].contains(&name)
    };
    names.iter().enumerate().find(|&(at, name)| is_unknown(at, name)).map(|(_, name)| *name)
}

/// The expected names, for messages.
pub(super) fn expected_names() -> String {
    format!("{GGUF_PART}, or each at most once: {}", refrain_tokenizer::FOLDER_FILES.join(", "))
}
