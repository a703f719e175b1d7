//! A state of the index, for reading. It stays the same while writers change the index.

use std::collections::HashSet;
use std::path::PathBuf;

use tantivy::collector::DocSetCollector;
use tantivy::columnar::Column;
use tantivy::query::TermQuery;
use tantivy::schema::IndexRecordOption;
use tantivy::{
    DocAddress, IndexReader, ReloadPolicy, Searcher, SegmentReader, TantivyDocument, TantivyError, Term,
};

use super::error::{NotesError, index_error};
use super::kind::SourceKind;
use super::language::Language;
use super::passage::NotePassage;
use super::schema::{Fields, KEY, KIND};
use super::store::Store;

/// Blocks of stored texts in memory per segment, of 16 KB each.
const CACHED_BLOCKS: usize = 16;

/// See the module.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) searcher: Searcher,
    pub(super) fields: Fields,
    words: PathBuf,
}

impl Store {
    /// The state after the last commit.
    pub(super) fn snapshot(&self) -> Result<Snapshot, NotesError> {
        let opened: Result<IndexReader, TantivyError> = self
            .index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .doc_store_cache_num_blocks(CACHED_BLOCKS)
            .try_into();
        let reader = opened.map_err(index_error(&self.words))?;
        Ok(Snapshot { searcher: reader.searcher(), fields: self.fields, words: self.words.clone() })
    }
}

impl Snapshot {
    /// The hashes of all texts.
    pub(super) fn keys(&self) -> Result<HashSet<u64>, NotesError> {
        let mut keys = HashSet::new();
        for (_, segment) in self.segments() {
            let column = self.key_column(segment)?;
            keys.extend(segment.doc_ids_alive().filter_map(|doc| column.first(doc)));
        }
        Ok(keys)
    }

    /// One passage of each text whose hash is `wanted`.
    pub(super) fn passages_of(
        &self,
        mut wanted: impl FnMut(u64) -> bool,
    ) -> Result<Vec<DocAddress>, NotesError> {
        let (mut seen, mut passages) = (HashSet::new(), Vec::new());
        for (ordinal, segment) in self.segments() {
            let column = self.key_column(segment)?;
            for doc in segment.doc_ids_alive() {
                let Some(key) = column.first(doc) else { continue };
                if wanted(key) && seen.insert(key) {
                    passages.push(DocAddress::new(ordinal, doc));
                }
            }
        }
        Ok(passages)
    }

    /// The places of the passages with a term, in the order of the index.
    pub(super) fn addresses(&self, term: Term) -> Result<Vec<DocAddress>, NotesError> {
        let query = TermQuery::new(term, IndexRecordOption::Basic);
        let found = self.searcher.search(&query, &DocSetCollector).map_err(self.failed())?;
        let mut found: Vec<DocAddress> = found.into_iter().collect();
        found.sort_unstable();
        Ok(found)
    }

    pub(super) fn passage(&self, address: DocAddress) -> Result<NotePassage, NotesError> {
        let document: TantivyDocument = self.searcher.doc(address).map_err(self.failed())?;
        let passage = self.fields.passage(&document);
        passage.ok_or_else(|| NotesError::damaged(&self.words, "a passage lacks a field"))
    }

    /// The number of passages of each kind.
    pub(super) fn kinds(&self) -> Result<Vec<(SourceKind, usize)>, NotesError> {
        let mut counts = SourceKind::ALL.map(|kind| (kind, 0)).to_vec();
        for (_, segment) in self.segments() {
            let column = segment.fast_fields().u64(KIND).map_err(self.failed())?;
            for code in segment.doc_ids_alive().filter_map(|doc| column.first(doc)) {
                counts
                    .iter_mut()
                    .filter(|(kind, _)| u64::from(kind.code()) == code)
                    .for_each(|(_, n)| *n += 1);
            }
        }
        Ok(counts)
    }

    /// The languages of the passages, and whether some have none.
    pub(super) fn languages(&self) -> Result<Vec<Option<Language>>, NotesError> {
        let mut present = Vec::new();
        for language in Language::ALL.iter().copied().map(Some).chain([None]) {
            let n = self.searcher.doc_freq(&self.fields.of_language(language)).map_err(self.failed())?;
            if n > 0 {
                present.push(language);
            }
        }
        Ok(present)
    }

    /// Number of passages, and of removed ones that are still on the disk.
    pub(super) fn counts(&self) -> (usize, usize) {
        let segments = || self.searcher.segment_readers().iter();
        (
            segments().map(|s| s.num_docs() as usize).sum(),
            segments().map(|s| s.num_deleted_docs() as usize).sum(),
        )
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = (u32, &SegmentReader)> {
        (0..).zip(self.searcher.segment_readers())
    }

    pub(super) fn key_column(&self, segment: &SegmentReader) -> Result<Column<u64>, NotesError> {
        segment.fast_fields().u64(KEY).map_err(self.failed())
    }

    /// Makes a [`NotesError`] of a failed search.
    pub(super) fn failed(&self) -> impl Fn(TantivyError) -> NotesError {
        index_error(&self.words)
    }
}
