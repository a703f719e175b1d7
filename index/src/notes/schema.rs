//! The fields of a passage in the inverted index.

use std::path::Path;

use tantivy::schema::{
    FAST, Field, INDEXED, IndexRecordOption, STORED, STRING, Schema, TextFieldIndexing, TextOptions, Value,
};
use tantivy::tokenizer::{TextAnalyzer, TokenizerManager};
use tantivy::{TantivyDocument, Term};

use super::kind::SourceKind;
use super::language::Language;
use super::passage::{Locator, NotePassage};
use super::paths;
use super::words::{MarkedTokenizer, composed_lower, marked};
use crate::passage::is_titled;

/// The name of the analyzer. It changes with the words of a text: an index with another name is built again.
const TOKENIZER: &str = "words-2";

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    /// The file's number in the catalogue: what a removal names.
    file: Field,
    /// Hashes of the file's path and of all folders above it.
    folder: Field,
    kind: Field,
    date: Field,
    tag: Field,
    language: Field,
    /// The hash of title and text.
    key: Field,
    /// Words, marked with their language.
    pub(super) title_words: Field,
    pub(super) text_words: Field,
    /// Words of names other than the title: of the file, of its folders, and those that a note gives itself.
    pub(super) name_words: Field,
    path: Field,
    title: Field,
    text: Field,
    start: Field,
    end: Field,
    is_verbatim: Field,
    locator: Field,
}

/// The name of the field with the hash of title and text.
pub(super) const KEY: &str = "key";

/// The name of the field with the kind of source.
pub(super) const KIND: &str = "kind";

pub(super) fn schema() -> (Schema, Fields) {
    let mut schema = Schema::builder();
    let words =
        TextFieldIndexing::default().set_tokenizer(TOKENIZER).set_index_option(IndexRecordOption::WithFreqs);
    let words = TextOptions::default().set_indexing_options(words);
    let stored = TextOptions::default().set_stored();
    let fields = Fields {
        file: schema.add_u64_field("file", INDEXED),
        folder: schema.add_u64_field("folder", INDEXED),
        kind: schema.add_u64_field(KIND, INDEXED | FAST | STORED),
        date: schema.add_i64_field("date", INDEXED | FAST | STORED),
        tag: schema.add_text_field("tag", STRING | STORED),
        language: schema.add_u64_field("language", INDEXED | STORED),
        key: schema.add_u64_field(KEY, FAST | STORED),
        title_words: schema.add_text_field("title_words", words.clone()),
        text_words: schema.add_text_field("text_words", words.clone()),
        name_words: schema.add_text_field("name_words", words),
        path: schema.add_bytes_field("path", STORED),
        title: schema.add_text_field("title", stored.clone()),
        text: schema.add_text_field("text", stored),
        start: schema.add_u64_field("start", STORED),
        end: schema.add_u64_field("end", STORED),
        is_verbatim: schema.add_u64_field("is_verbatim", STORED),
        locator: schema.add_u64_field("locator", STORED),
    };
    (schema.build(), fields)
}

pub(super) fn tokenizers() -> TokenizerManager {
    // The default ones too: tantivy asks for one for every field, also for numbers.
    let tokenizers = TokenizerManager::default();
    tokenizers.register(TOKENIZER, TextAnalyzer::builder(MarkedTokenizer).build());
    tokenizers
}

impl Fields {
    /// `names` stand for the file as a whole.
    pub(super) fn document(&self, passage: &NotePassage, file: u64, names: &[String]) -> TantivyDocument {
        let language = passage.language;
        let mut document = TantivyDocument::default();
        document.add_u64(self.file, file);
        passage.path.ancestors().for_each(|path| document.add_u64(self.folder, paths::hash(path)));
        document.add_u64(self.kind, passage.kind.code().into());
        document.add_i64(self.date, passage.date);
        passage.tags.iter().for_each(|tag| document.add_text(self.tag, composed_lower(tag)));
        document.add_u64(self.language, Language::number(language));
        document.add_u64(self.key, passage.key);
        document.add_text(self.title_words, marked(&passage.title, language));
        document.add_text(self.text_words, marked(&passage.text, language));
        for name in names.iter().filter(|name| !is_titled(&passage.title, name)) {
            document.add_text(self.name_words, marked(name, language));
        }
        document.add_bytes(self.path, paths::to_bytes(&passage.path).unwrap_or_default());
        document.add_text(self.title, &passage.title);
        document.add_text(self.text, &passage.text);
        document.add_u64(self.start, passage.place.start);
        document.add_u64(self.end, passage.place.end);
        document.add_u64(self.is_verbatim, passage.is_verbatim.into());
        passage.locator.iter().for_each(|locator| document.add_u64(self.locator, locator.code()));
        document
    }

    /// `None` if a field is missing, which a sound index excludes.
    pub(super) fn passage(&self, document: &TantivyDocument) -> Option<NotePassage> {
        let number = |field| document.get_first(field)?.as_u64();
        let text = |field| Some(document.get_first(field)?.as_str()?.to_owned());
        let tags = document.get_all(self.tag).filter_map(|tag| Some(tag.as_str()?.to_owned()));
        Some(NotePassage {
            path: paths::from_bytes(document.get_first(self.path)?.as_bytes()?)?,
            kind: SourceKind::from_code(number(self.kind)?)?,
            title: text(self.title)?,
            text: text(self.text)?,
            place: number(self.start)?..number(self.end)?,
            is_verbatim: number(self.is_verbatim)? != 0,
            locator: number(self.locator).map(Locator::of_code),
            date: document.get_first(self.date)?.as_i64()?,
            tags: tags.collect(),
            language: Language::of_number(number(self.language)?),
            key: number(self.key)?,
        })
    }

    /// The passages of a file.
    pub(super) fn of_file(&self, file: u64) -> Term {
        Term::from_field_u64(self.file, file)
    }

    /// The passages of a file or of all files in a folder.
    pub(super) fn of_path(&self, path: &Path) -> Term {
        Term::from_field_u64(self.folder, paths::hash(path))
    }

    pub(super) fn of_kind(&self, kind: SourceKind) -> Term {
        Term::from_field_u64(self.kind, kind.code().into())
    }

    pub(super) fn of_tag(&self, tag: &str) -> Term {
        Term::from_field_text(self.tag, &composed_lower(tag))
    }

    pub(super) fn of_language(&self, language: Option<Language>) -> Term {
        Term::from_field_u64(self.language, Language::number(language))
    }

    pub(super) fn at(&self, date: i64) -> Term {
        Term::from_field_i64(self.date, date)
    }
}
