//! Ranks passages for a request by BM25 (Robertson and Zaragoza 2009), with tantivy's inverted index in memory.
//!
//! A request is plain text, not a query language. It is divided into words in the same way as the passages, and every
//! word is an optional term on the text, on the title and on the file's name. The sum of the terms' scores determines the order of the
//! passages.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;

use tantivy::collector::TopDocs;
use tantivy::directory::RamDirectory;
use tantivy::query::{BooleanQuery, Occur, Query, RangeQuery, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::{TextAnalyzer, TokenizerManager};
use tantivy::{DocAddress, Index, IndexReader, ReloadPolicy, TantivyDocument, Term};

use crate::notes::words::{MarkedTokenizer, Stems, Word, WordKind, marked, plain_words};
use crate::notes::{Functional, Language, SearchedWord, Wanted, coverage_of};
use crate::passage::{Passage, is_titled};
use crate::stop_words::STOP_WORDS;

/// Maximum number of words searched for; the rest of a longer request is ignored. A mail to be answered has about 200
/// different words, and each costs two posting lists.
const QUERY_WORDS_MAX: usize = 512;

/// Maximum memory for building the index, in bytes. A budget, not a size; tantivy's minimum is 15 MB.
const BUILD_BYTES: usize = 50_000_000;

/// The name of the index's text analyzer.
const TOKENIZER: &str = "words";

/// The language of the stems.
const LANGUAGE: Option<Language> = Some(Language::English);

/// Passages with an index of their words.
pub struct PassageIndex {
    /// A passage's position is its document number in the index, which has one segment in the order of insertion.
    passages: Vec<Passage>,
    reader: IndexReader,
    fields: [Field; 3],
}

/// A passage found by a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit<'a> {
    /// The passage.
    pub passage: &'a Passage,
    /// Its BM25 score: larger is better; comparable within one search only.
    pub score: f32,
    /// How much of the request it covers, 0 to 1, as [`NoteHit::coverage`](crate::NoteHit::coverage).
    pub coverage: f32,
}

/// An error inside the index. The index is in memory and its input is text of bounded size, so the remaining causes
/// are a lack of memory and bugs.
#[derive(Debug, thiserror::Error)]
#[error("the passage index failed: {0}")]
pub struct IndexError(#[from] tantivy::TantivyError);

impl PassageIndex {
    /// Indexes passages.
    ///
    /// # Errors
    /// [`IndexError`] if the index cannot be built.
    pub fn build(passages: Vec<Passage>) -> Result<Self, IndexError> {
        let mut schema = Schema::builder();
        let words = TextFieldIndexing::default()
            .set_tokenizer(TOKENIZER)
            .set_index_option(IndexRecordOption::WithFreqs);
        let words = TextOptions::default().set_indexing_options(words);
        let title = schema.add_text_field("title", words.clone());
        let text = schema.add_text_field("text", words.clone());
        // The file's name, if it is no title.
        let name = schema.add_text_field("name", words);

        let tokenizers = TokenizerManager::new();
        tokenizers.register(TOKENIZER, TextAnalyzer::from(MarkedTokenizer));
        // One segment, written by this thread. Document numbers, and so the order of equal scores, then follow the
        // passages. No writer threads stay alive.
        let mut writer = Index::builder()
            .schema(schema.build())
            .tokenizers(tokenizers)
            .single_segment_index_writer(RamDirectory::default(), BUILD_BYTES)?;
        for passage in &passages {
            let mut document = TantivyDocument::default();
            document.add_text(title, marked(&passage.title, LANGUAGE));
            document.add_text(text, marked(&passage.text, LANGUAGE));
            let stem = passage.path.file_stem().unwrap_or_default().to_string_lossy();
            if !is_titled(&passage.title, &stem) {
                document.add_text(name, marked(&stem, LANGUAGE));
            }
            writer.add_document(document)?;
        }
        let reader = writer.finalize()?.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        Ok(Self { passages, reader, fields: [title, text, name] })
    }

    /// All passages, in the order they were given.
    pub fn passages(&self) -> &[Passage] {
        &self.passages
    }

    /// The passages that share words with a request, best first, at most `limit`. For equal scores, the earlier
    /// passage comes first. Any text is a valid request. A request without words finds nothing.
    ///
    /// # Errors
    /// [`IndexError`] if the index cannot be read.
    pub fn search(&self, request: &str, limit: usize) -> Result<Vec<Hit<'_>>, IndexError> {
        let words = request_words(request);
        if words.is_empty() || limit == 0 || self.passages.is_empty() {
            return Ok(Vec::new());
        }
        let terms = words.iter().flat_map(|word| {
            self.fields.map(|field| {
                let term = Term::from_field_text(field, &word.text);
                let query: Box<dyn Query> = match word.kind {
                    // One character of a script without spaces: the beginning of a word.
                    WordKind::Single => {
                        let end = Term::from_field_text(field, &format!("{}\u{10ffff}", word.text));
                        Box::new(RangeQuery::new(Bound::Included(term), Bound::Excluded(end)))
                    }
                    _ => Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)),
                };
                (Occur::Should, query)
            })
        });
        let query = BooleanQuery::new(terms.collect());
        // The collector allocates memory for `limit` hits at once.
        let limit = limit.min(self.passages.len());
        let searcher = self.reader.searcher();
        let found = searcher.search(&query, &TopDocs::with_limit(limit).order_by_score())?;
        let (wanted, mut by_address) = (wanted(request), found.clone());
        let coverage = match wanted.is_functional {
            true => vec![1.0; found.len()],
            false => coverage_of(&searcher, self.fields, &wanted, &mut by_address)?,
        };
        let addresses = by_address.into_iter().map(|(_, address)| address);
        let coverage: HashMap<DocAddress, f32> = addresses.zip(coverage).collect();
        let hit = |(score, address): (f32, DocAddress)| Hit {
            passage: &self.passages[address.doc_id as usize],
            score,
            coverage: coverage[&address],
        };
        Ok(found.into_iter().map(hit).collect())
    }

    /// The words of a request whose [coverage](Hit::coverage) counts, in the order of the text: none of function words alone.
    pub fn searched_words(request: &str) -> Vec<SearchedWord> {
        let wanted = wanted(request);
        if wanted.is_functional { Vec::new() } else { wanted.searched_words() }
    }
}

/// The words of a request without function words of any language.
fn wanted(request: &str) -> Wanted {
    Wanted::new(request, &[], &[LANGUAGE], &mut Functional::new(Language::ALL))
}

/// The distinct words of a request in the form of the index. Stop words are included only if there are no others.
fn request_words(request: &str) -> Vec<Word> {
    let words = distinct_words(request, |word| !STOP_WORDS.contains(&word));
    if words.is_empty() { distinct_words(request, |_| true) } else { words }
}

fn distinct_words(text: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Word> {
    let mut seen = HashSet::new();
    let stems = Stems::new(LANGUAGE);
    // The last character of several would find all words that end with it.
    let plain =
        plain_words(text, LANGUAGE).filter(|word| word.kind != WordKind::Last && is_wanted(&word.text));
    let words = plain.map(|word| stems.stem(word)).filter(|word| seen.insert(word.text.clone()));
    words.take(QUERY_WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_normalization::UnicodeNormalization;

    use super::*;
    use crate::document::Document;
    use crate::passage::split;

    fn index(texts: &[&str]) -> PassageIndex {
        let passages = texts
            .iter()
            .enumerate()
            .flat_map(|(number, text)| split(&Document::new(format!("{number}.md"), text)));
        PassageIndex::build(passages.collect()).unwrap()
    }

    fn found(index: &PassageIndex, request: &str, limit: usize) -> Vec<String> {
        let hits = index.search(request, limit).unwrap();
        hits.iter().map(|hit| hit.passage.path.display().to_string()).collect()
    }

    #[test]
    fn the_passage_that_shares_the_rare_words_comes_first() {
        let index = index(&[
            "# Garden\n\nAda waters the roses on Monday.",
            "# Kitchen\n\nThe tap drips and Ada repairs it on Monday.",
            "# Café\n\nNothing to see.",
        ]);
        assert_eq!(found(&index, "Who is repairing the taps?", 3), ["1.md"]);
        assert_eq!(found(&index, "KITCHEN", 3), ["1.md"]);
        assert_eq!(found(&index, "cafe", 3), ["2.md"]);
        assert_eq!(found(&index, "What does Ada do on Monday with roses?", 3), ["0.md", "1.md"]);
        assert_eq!(found(&index, "ada", 1).len(), 1);
    }

    #[test]
    fn a_hit_covers_a_part_of_the_request() {
        let index = index(&["# Garden\n\nAda waters the roses.", "# Kitchen\n\nThe tap drips."]);
        let coverage = |request: &str| index.search(request, 1).unwrap().first().map(|hit| hit.coverage);
        assert_eq!(coverage("Who waters the roses?"), Some(1.0));
        assert!(coverage("Which airline lost the suitcase beside the roses?").is_some_and(|it| it < 0.3));
        assert_eq!(coverage("Wer ist auf dem Dach?"), None);
        assert_eq!((coverage("Who is it?"), PassageIndex::searched_words("Who is it?")), (None, vec![]));
        assert_eq!(coverage("the"), Some(1.0));
        let words = PassageIndex::searched_words("Which airline lost the suitcase?");
        let words: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(words, ["airline", "lost", "suitcase"]);
    }

    #[test]
    fn equal_scores_keep_the_order_of_the_passages() {
        let index = index(&["same words"; 9]);
        let expected: Vec<_> = (0..9).map(|number| format!("{number}.md")).collect();
        assert_eq!(found(&index, "words", 9), expected);
        assert_eq!(found(&index, "words", 4), expected[..4]);
    }

    #[test]
    fn nothing_to_search_or_to_search_for_finds_nothing() {
        let empty = index(&[]);
        assert_eq!(found(&empty, "tap", 3), [""; 0]);
        let index = index(&["the tap"]);
        for request in ["", " \n", "?!", "+-\"()", "kettle"] {
            assert_eq!(found(&index, request, 3), [""; 0], "{request:?}");
        }
        assert_eq!(found(&index, "tap", 0), [""; 0]);
    }

    #[test]
    fn stop_words_count_only_where_there_are_no_others() {
        let index = index(&["To be, or not to be.", "The tap."]);
        assert_eq!(found(&index, "the", 3), ["1.md"]);
        assert_eq!(found(&index, "the not", 3), ["0.md"]);
    }

    #[test]
    fn words_of_all_scripts_are_found() {
        let index = index(&[
            "我们明天在北京开会，讨论新的预算，然后一起吃饭。",
            "दिन में बारिश हुई",
            "достопримечательность",
            "회의는 내일",
        ]);
        let decomposed: String = "회의".nfd().collect();
        for (request, name) in [
            ("北京", "0.md"),
            ("算", "0.md"),
            ("दिन", "1.md"),
            ("достопримечательность", "2.md"),
            (&decomposed, "3.md"),
        ] {
            assert_eq!(found(&index, request, 4), [name], "{request}");
        }
        for request in ["दान", "京都", "достопримечательный"] {
            assert_eq!(found(&index, request, 4), [""; 0], "{request}");
        }
    }

    #[test]
    fn query_syntax_is_plain_text() {
        let index = index(&["the tap", "AND OR NOT"]);
        assert_eq!(found(&index, "title:tap^9 AND -tap \"tap", 3), ["0.md"]);
        assert_eq!(found(&index, &"tap ".repeat(100_000), usize::MAX), ["0.md"]);
    }

    #[test]
    fn stop_words_are_lower_case_and_stand_once() {
        let distinct: HashSet<_> = STOP_WORDS.iter().collect();
        assert_eq!(distinct.len(), STOP_WORDS.len());
        assert!(STOP_WORDS.iter().all(|word| word.chars().all(|c| c.is_ascii_lowercase())));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_text_can_be_indexed_and_searched(texts: Vec<String>, request: String, limit: usize) {
            let index = index(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let hits = index.search(&request, limit).unwrap();
            prop_assert!(hits.len() <= limit);
            prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
        }

        #[test]
        fn a_planted_word_is_found(
            texts in prop::collection::vec("[a-h ]{0,80}", 1..20), place: prop::sample::Index
        ) {
            let place = place.index(texts.len());
            let mut texts = texts;
            texts[place].push_str("\n\nThe zyzzyva sleeps.");
            let index = index(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(found(&index, "Where do zyzzyvas sleep?", 1), [format!("{place}.md")]);
        }
    }
}
