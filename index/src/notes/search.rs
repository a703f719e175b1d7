//! Searches: BM25 over words, optionally with an embedder's vectors, within filters.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use tantivy::collector::DocSetCollector;
use tantivy::query::{
    Bm25StatisticsProvider, BooleanQuery, BoostQuery, ConstScoreQuery, EnableScoring, Occur, Query,
    RangeQuery, TermQuery, TermSetQuery,
};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{DocAddress, DocSet, Searcher, Term};

use super::embedder::Embedder;
use super::error::NotesError;
use super::functional::Functional;
use super::index::{NotesIndex, State};
use super::kind::SourceKind;
use super::language::Language;
use super::passage::NotePassage;
use super::paths;
use super::schema::Fields;
use super::snapshot::Snapshot;
use super::snippet::{Snippet, snippet};
use super::vectors::Vectors;
use super::words::{Stems, Word, WordKind, plain_words};

/// Maximum number of words searched for; the rest of a longer request is ignored. A mail to be answered has about 200
/// different words, and each costs two posting lists per language.
const QUERY_WORDS_MAX: usize = 512;

/// The weight of function words, if a request has others. Without them, passages that a question's whole wording fits lose
/// their place; at full weight, long passages win. `docs/decisions/notes.md`, *Words are stems of the note's language*, has numbers.
const FUNCTIONAL_WEIGHT: f32 = 0.3;

/// The weight of a word of the title beside the same word in the text.
const TITLE_WEIGHT: f32 = 1.5;

/// The weight of a word that is derived from the same one as a word of the request, as *allergies* and *allergic* are.
const RELATED_WEIGHT: f32 = 0.5;

/// Maximum number of related words of a word of the request, and of words of the index that are looked at for them.
const RELATED_MAX: usize = 8;
const RELATED_LOOKED_AT: usize = 128;

/// How much a passage with all words of the request gains on one with a part of them.
const COVERAGE_GAIN: f32 = 1.0;

/// The least number of passages that the weights of words are computed for: in a few notes, each word is in many of them.
const PASSAGES_OF_WEIGHTS: f32 = 1000.0;

/// The weight of the words of the newest earlier text ([`Search::earlier`]); those before it have its powers.
const EARLIER_WEIGHT: f32 = 0.4;

/// Maximum number of earlier texts; the weight of the next one is below 1 %.
const EARLIER_MAX: usize = 5;

/// Maximum number of other words of a request whose function words count. A longer text has almost all of them, and each
/// has a long posting list.
const FUNCTIONAL_WITHIN: usize = 16;

/// Passages that are ranked again with their function words. (A query for these words too would read their posting lists as a
/// whole, and find every passage.)
const RANKED_AGAIN: usize = 50;

/// Passages of each ranking that enter a fusion.
const FUSED: usize = 100;

/// The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009, section 3): it was fixed there at 60, and
/// results hardly depend on it.
const FUSION_K: f32 = 60.0;

/// A request to the index.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Search<'a> {
    /// Plain text, not a query language.
    pub text: &'a str,
    /// Maximum number of hits.
    pub limit: usize,
    /// Conditions on passages.
    pub filter: NoteFilter,
    /// Earlier texts of the conversation, newest first. The words that the text does not have itself are searched for too: with 0.4 of
    /// the weight those of the newest one, with 0.4² those of the one before it, and so on for five. Function words are left out. An
    /// embedder gets the text behind the newest one.
    pub earlier: Vec<&'a str>,
    /// Ranks by the vectors of this embedder too. Passages without stored vectors are ranked by words alone.
    pub embedder: Option<&'a dyn Embedder>,
}

/// Conditions on passages. A passage must meet all of them; the default is met by every passage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoteFilter {
    /// The kinds of sources; empty: all.
    pub kinds: Vec<SourceKind>,
    /// Files, or folders with everything below them; empty: all. Documents without files have paths too
    /// ([`document_path`](super::document_path)).
    pub folders: Vec<PathBuf>,
    /// The earliest date, in seconds since 1970.
    pub from: Option<i64>,
    /// The latest date, in seconds since 1970.
    pub until: Option<i64>,
    /// A passage must have at least one of these tags; empty: all passages.
    pub tags: Vec<String>,
}

impl NoteFilter {
    /// Files, or folders with everything below them.
    pub fn within<P: Into<PathBuf>>(folders: impl IntoIterator<Item = P>) -> Self {
        Self { folders: folders.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl<'a> Search<'a> {
    /// The `limit` best passages for a text.
    pub fn new(text: &'a str, limit: usize) -> Self {
        Self { text, limit, ..Self::default() }
    }
}

/// A passage found by a search.
#[derive(Debug, Clone, PartialEq)]
pub struct NoteHit {
    /// The passage.
    pub passage: NotePassage,
    /// BM25, or the sum of reciprocal ranks with an embedder. Larger is better; comparable within one search only.
    pub score: f32,
    /// How much of the request the passage covers by words, 0 to 1: the weights of the request's words that passage, title and names
    /// have, divided by the weights of all. A word weighs the more, the fewer passages have it (`idf` of BM25, of 1,000 passages at
    /// least); function words weigh nothing; of a word of the same derivation, 0.8 counts. 1 for a request of function words alone.
    pub coverage: f32,
    /// The dot product of the vectors of request and passage, if the embedder's ranking has the passage.
    pub similarity: Option<f32>,
    /// The part of the passage that matches best.
    pub snippet: Snippet,
}

/// A word that a search looks for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SearchedWord {
    /// The word in lower case, or a run of characters of a script without spaces.
    pub text: String,
    /// 1 for words of the request, less for those of earlier texts.
    pub weight: f32,
}

impl NotesIndex {
    /// The passages that match a request best, best first. A request without words finds nothing by words.
    ///
    /// # Errors
    /// The index cannot be read, or the embedder fails.
    pub fn search(&self, search: &Search<'_>) -> Result<Vec<NoteHit>, NotesError> {
        let state = self.state();
        let snapshot = &state.snapshot;
        let limit = search.limit.min(snapshot.counts().0);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let wanted = self.wanted(search, &state);
        let filter = filter(&search.filter, snapshot)?;
        let n_ranked = if search.embedder.is_some() { limit.max(FUSED) } else { limit };
        let (by_words, related) = by_words(snapshot, &wanted, filter.as_deref(), n_ranked)?;
        let coverage: HashMap<DocAddress, f32> =
            by_words.iter().map(|&(_, address, coverage)| (address, coverage)).collect();
        let mut similarity: HashMap<DocAddress, f32> = HashMap::new();
        let ranked: Vec<(f32, DocAddress)> = match search.embedder {
            None => by_words.into_iter().map(|(score, address, _)| (score, address)).collect(),
            Some(embedder) => {
                let text = match search.earlier.first() {
                    None => search.text.to_owned(),
                    Some(earlier) => format!("{earlier}\n{}", search.text),
                };
                let query = embedder.embed_query(&text).map_err(NotesError::Embedder)?;
                let allowed = filter
                    .map(|filter| snapshot.searcher.search(&filter, &DocSetCollector))
                    .transpose()
                    .map_err(snapshot.failed())?;
                let is_allowed =
                    |address: DocAddress| allowed.as_ref().is_none_or(|allowed| allowed.contains(&address));
                let by_meaning = self.vectors(&state, embedder)?.search(&query, n_ranked, is_allowed);
                similarity.extend(by_meaning.iter().map(|&(score, address)| (address, score)));
                let by_words = by_words.into_iter().map(|(_, address, _)| address).collect();
                fuse(&[by_words, by_meaning.into_iter().map(|(_, address)| address).collect()])
            }
        };
        let mut terms = wanted.terms;
        terms.extend(related);
        let hits = ranked.into_iter().take(limit).map(|(score, address)| -> Result<NoteHit, NotesError> {
            let passage = snapshot.passage(address)?;
            let snippet = snippet(&passage.text, &terms, &wanted.initials, passage.language);
            let coverage = coverage.get(&address).copied().unwrap_or(0.0);
            let similarity = similarity.get(&address).copied();
            Ok(NoteHit { passage, score, coverage, similarity, snippet })
        });
        hits.collect()
    }

    /// The words that a search looks for, in the order of the text, then of the earlier ones.
    pub fn searched_words(&self, search: &Search<'_>) -> Vec<SearchedWord> {
        self.wanted(search, &self.state()).searched_words()
    }

    fn wanted(&self, search: &Search<'_>, state: &State) -> Wanted {
        let mut functional = state.functional.lock().unwrap_or_else(PoisonError::into_inner);
        Wanted::new(search.text, &search.earlier, &state.languages, &mut functional)
    }

    /// The vectors of an embedder. They are read at the first search of a state.
    fn vectors(&self, state: &State, embedder: &dyn Embedder) -> Result<Arc<Vectors>, NotesError> {
        let mut kept = state.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = embedder.identity();
        if let Some(vectors) = kept.as_ref().filter(|vectors| vectors.identity == identity) {
            return Ok(Arc::clone(vectors));
        }
        let vectors =
            Arc::new(Vectors::load(self.folder(), &state.snapshot, identity, embedder.dimensions())?);
        *kept = Some(Arc::clone(&vectors));
        Ok(vectors)
    }
}

/// The words of a request in the forms of the index.
#[derive(Default)]
pub(crate) struct Wanted {
    /// The words that count, those of the request first.
    words: Vec<WantedWord>,
    /// Their stems in each language of the index. A passage has the form of its own language only.
    terms: BTreeSet<String>,
    /// Single characters of scripts without spaces: beginnings of words.
    initials: BTreeSet<String>,
    /// Stems of function words that count less. Snippets ignore them.
    functional: BTreeSet<String>,
    /// Whether the words are function words, because the request has no others.
    pub(crate) is_functional: bool,
}

/// A word of a request.
struct WantedWord {
    /// As it is shown; `None` for a pair of characters that the word before shows too.
    shown: Option<String>,
    /// Its stem in each language, or its one character.
    forms: BTreeSet<String>,
    kind: WordKind,
    weight: f32,
}

impl Wanted {
    /// Function words count as others do if there are no others.
    pub(crate) fn new(
        text: &str,
        earlier: &[&str],
        languages: &[Option<Language>],
        functional: &mut Functional,
    ) -> Self {
        let mut wanted = Self::default();
        wanted.add(text, 1.0, languages, functional);
        // A stem of one language may be a function word of another.
        wanted.functional.retain(|word| !wanted.terms.contains(word));
        let mut weight = EARLIER_WEIGHT;
        for text in earlier.iter().take(EARLIER_MAX) {
            let mut before = Self::default();
            before.add(text, weight, languages, functional);
            for word in before.words {
                if word
                    .forms
                    .iter()
                    .all(|form| !wanted.terms.contains(form) && !wanted.initials.contains(form))
                {
                    wanted.push(word);
                }
            }
            weight *= EARLIER_WEIGHT;
        }
        match wanted.words.len() {
            0 => {
                wanted.terms = std::mem::take(&mut wanted.functional);
                let word = |form: &String| WantedWord {
                    shown: Some(form.clone()),
                    forms: BTreeSet::from([form.clone()]),
                    kind: WordKind::Pair,
                    weight: 1.0,
                };
                wanted.words = wanted.terms.iter().map(word).collect();
                wanted.is_functional = true;
            }
            n if n > FUNCTIONAL_WITHIN => wanted.functional.clear(),
            _ => {}
        }
        wanted
    }

    /// The words that count, as they are shown.
    pub(crate) fn searched_words(self) -> Vec<SearchedWord> {
        let words = self.words.into_iter();
        words.filter_map(|word| Some(SearchedWord { text: word.shown?, weight: word.weight })).collect()
    }

    fn add(&mut self, text: &str, weight: f32, languages: &[Option<Language>], functional: &mut Functional) {
        // The last character of several would find all words that end with it.
        let cut = |language| plain_words(text, language).filter(|word| word.kind != WordKind::Last);
        let plain: Vec<Word> = cut(None).take(QUERY_WORDS_MAX).collect();
        let is_functional = functional.of_request(&plain);
        // In each language, the same words are cut from the text.
        let mut forms = vec![BTreeSet::new(); plain.len()];
        for &language in languages {
            let stems = Stems::new(language);
            for (forms, word) in forms.iter_mut().zip(cut(language)) {
                forms.insert(stems.stem(word).text);
            }
        }
        let mut end = 0;
        for ((word, forms), is_functional) in plain.into_iter().zip(forms).zip(is_functional) {
            if is_functional {
                self.functional.extend(forms);
                continue;
            }
            let is_new = word.range.start >= end;
            end = word.range.end;
            let shown = match (is_new, self.words.iter_mut().rev().find_map(|word| word.shown.as_mut())) {
                // The next pair prolongs a word by a character.
                (false, Some(before)) if word.kind == WordKind::Pair => {
                    before.extend(word.text.chars().last());
                    None
                }
                _ => Some(word.text),
            };
            let (kind, is_known) = (word.kind, forms.iter().any(|form| self.terms.contains(form)));
            if !is_known || shown.is_none() {
                self.push(WantedWord { shown, forms, kind, weight });
            }
        }
    }

    fn push(&mut self, word: WantedWord) {
        let set = if word.kind == WordKind::Single { &mut self.initials } else { &mut self.terms };
        set.extend(word.forms.iter().cloned());
        self.words.push(word);
    }
}

/// A part of a query, and whether a passage must have it.
type Clause = (Occur, Box<dyn Query>);

/// The best passages with their scores and coverages, and the related words that were searched for.
type ByWords = (Vec<(f32, DocAddress, f32)>, BTreeSet<String>);

fn by_words(
    snapshot: &Snapshot,
    wanted: &Wanted,
    filter: Option<&dyn Query>,
    limit: usize,
) -> Result<ByWords, NotesError> {
    if wanted.words.is_empty() {
        return Ok((Vec::new(), BTreeSet::new()));
    }
    let Fields { title_words, text_words, name_words, .. } = snapshot.fields;
    let fields = [title_words, text_words, name_words];
    let mut statistics = Statistics::new(&snapshot.searcher, fields).map_err(snapshot.failed())?;
    let (words, related) = clauses(&mut statistics, wanted).map_err(snapshot.failed())?;
    let mut functional = Vec::new();
    for form in &wanted.functional {
        functional.extend(statistics.clauses(form, 1.0).map_err(snapshot.failed())?);
    }
    let clauses = words.iter().flat_map(|word| word.exact.iter().chain(&word.related));
    let clauses = clauses.map(|(occur, query)| (*occur, query.box_clone())).collect();
    let mut query: Box<dyn Query> = Box::new(BooleanQuery::new(clauses));
    if let Some(filter) = filter {
        let filter: Box<dyn Query> = Box::new(ConstScoreQuery::new(filter.box_clone(), 0.0));
        query = Box::new(BooleanQuery::new(vec![(Occur::Must, query), (Occur::Must, filter)]));
    }
    let mut ranked = best(&statistics, query.as_ref(), limit.max(RANKED_AGAIN)).map_err(snapshot.failed())?;
    if !functional.is_empty() {
        let functional = BoostQuery::new(Box::new(BooleanQuery::new(functional)), FUNCTIONAL_WEIGHT);
        add_scores(&statistics, &functional, &mut ranked).map_err(snapshot.failed())?;
    }
    let coverage = coverage(&statistics, words, &mut ranked).map_err(snapshot.failed())?;
    let covered = ranked.into_iter().zip(coverage);
    let mut covered: Vec<(f32, DocAddress, f32)> = covered
        .map(|((score, address), coverage)| (score * (1.0 + COVERAGE_GAIN * coverage), address, coverage))
        .collect();
    covered.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    covered.truncate(limit);
    Ok((covered, related))
}

/// How much of a request the passages at these addresses cover, in the order of the addresses, in which the passages are left.
pub(crate) fn coverage_of(
    searcher: &Searcher,
    fields: [Field; 3],
    wanted: &Wanted,
    ranked: &mut [(f32, DocAddress)],
) -> tantivy::Result<Vec<f32>> {
    let mut statistics = Statistics::new(searcher, fields)?;
    let (words, _) = clauses(&mut statistics, wanted)?;
    coverage(&statistics, words, ranked)
}

/// The clauses of each word of a request, and the related words that they look for.
fn clauses(
    statistics: &mut Statistics<'_>,
    wanted: &Wanted,
) -> tantivy::Result<(Vec<Clauses>, BTreeSet<String>)> {
    let mut related = BTreeSet::new();
    let mut words = Vec::with_capacity(wanted.words.len());
    let has_related = wanted.words.len() <= FUNCTIONAL_WITHIN;
    for word in &wanted.words {
        let of_word = match word.kind == WordKind::Run && has_related {
            true => related_words(statistics.searcher, statistics.fields, &word.forms)?,
            false => BTreeSet::new(),
        };
        words.push(Clauses::new(statistics, word, &of_word)?);
        related.extend(of_word);
    }
    Ok((words, related))
}

/// The clauses of a word of a request.
struct Clauses {
    exact: Vec<Clause>,
    related: Vec<Clause>,
    /// Its weight in the coverage.
    weight: f32,
}

impl Clauses {
    fn new(
        statistics: &mut Statistics<'_>,
        word: &WantedWord,
        related: &BTreeSet<String>,
    ) -> tantivy::Result<Self> {
        let (mut exact, mut others) = (Vec::new(), Vec::new());
        let mut n_with = 0;
        if word.kind == WordKind::Single {
            for form in &word.forms {
                // Behind every word that begins with it.
                let end = format!("{form}\u{10ffff}");
                exact.extend(statistics.fields.map(|field| {
                    let range = RangeQuery::new(
                        Bound::Included(Term::from_field_text(field, form)),
                        Bound::Excluded(Term::from_field_text(field, &end)),
                    );
                    (Occur::Should, Box::new(range) as Box<dyn Query>)
                }));
            }
        } else {
            for form in &word.forms {
                exact.extend(statistics.clauses(form, word.weight)?);
                n_with += statistics.n_with(form);
            }
        }
        for form in related {
            others.extend(statistics.clauses(form, word.weight * RELATED_WEIGHT)?);
        }
        let n_docs = (statistics.n_docs as f32).max(PASSAGES_OF_WEIGHTS);
        let n_with = (n_with as f32).min(n_docs);
        let weight = word.weight * (1.0 + (n_docs - n_with + 0.5) / (n_with + 0.5)).ln();
        Ok(Self { exact, related: others, weight })
    }
}

/// The words of the index that are derived from the same word as one of these forms.
fn related_words(
    searcher: &Searcher,
    fields: [Field; 3],
    forms: &BTreeSet<String>,
) -> tantivy::Result<BTreeSet<String>> {
    let mut related = BTreeSet::new();
    let mut looked_for = BTreeSet::new();
    for form in forms {
        let Some(beginning) = beginning_of_related(form) else { continue };
        if !looked_for.insert(beginning) {
            continue;
        }
        for segment in searcher.segment_readers() {
            for field in fields {
                let index = segment.inverted_index(field)?;
                let mut words = index.terms().range().ge(beginning).into_stream()?;
                let mut n_looked_at = 0;
                while n_looked_at < RELATED_LOOKED_AT && related.len() < RELATED_MAX && words.advance() {
                    n_looked_at += 1;
                    let Ok(word) = std::str::from_utf8(words.key()) else { continue };
                    if !word.starts_with(beginning) {
                        break;
                    }
                    if !forms.contains(word) && forms.iter().any(|form| are_related(form, word)) {
                        related.insert(word.to_owned());
                    }
                }
            }
        }
    }
    Ok(related)
}

/// Minimum number of characters that two related words have in common.
const RELATED_CHARS_MIN: usize = 5;

/// Maximum number of characters behind the common ones.
const RELATED_ENDING_MAX: usize = 3;

/// The beginning of all words that may be related to a stem; `None` if none is: short words, and those with digits.
fn beginning_of_related(stem: &str) -> Option<&str> {
    let n_chars = stem.chars().count();
    if n_chars < RELATED_CHARS_MIN || !stem.chars().all(char::is_alphabetic) {
        return None;
    }
    let n_common = RELATED_CHARS_MIN.max(n_chars - RELATED_ENDING_MAX.min(n_chars));
    let end = stem.char_indices().nth(n_common).map_or(stem.len(), |(at, _)| at);
    Some(&stem[..end])
}

/// Whether two stems are equal but for endings: at least five characters are the same, one stem has at most a vowel behind them, the
/// other at most three characters. *allergi* (allergies), *allerg* (allergic) and *allergen* are related, *contract* and *contrast* not.
fn are_related(a: &str, b: &str) -> bool {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let (n_same, end) = same.fold((0, 0), |(n, _), ((at, c), _)| (n + 1, at + c.len_utf8()));
    let is_vowel = |c: char| "aeiouyаеиоуыэюяьαεηιουω".contains(c);
    let (short, long) = match a.len() <= b.len() {
        true => (&a[end..], &b[end..]),
        false => (&b[end..], &a[end..]),
    };
    n_same >= RELATED_CHARS_MIN
        && short.chars().count() <= 1
        && short.chars().all(is_vowel)
        && long.chars().count() <= RELATED_ENDING_MAX
        && long.chars().all(char::is_alphabetic)
}

/// The share of a word of the same derivation in the coverage.
const RELATED_COVERAGE: f32 = 0.8;

/// What each passage covers of the words, in the order of the index, in which the passages are left.
fn coverage(
    statistics: &Statistics<'_>,
    words: Vec<Clauses>,
    ranked: &mut [(f32, DocAddress)],
) -> tantivy::Result<Vec<f32>> {
    ranked.sort_unstable_by_key(|&(_, address)| address);
    let whole: f32 = words.iter().map(|word| word.weight).sum();
    let mut covered = vec![0.0_f32; ranked.len()];
    for Clauses { exact, related, weight } in words {
        let mut shares = vec![0.0_f32; ranked.len()];
        for (clauses, share) in [(exact, 1.0), (related, RELATED_COVERAGE)] {
            if clauses.is_empty() {
                continue;
            }
            let query = BooleanQuery::new(clauses);
            each_score(statistics, &query, ranked, |at, _| shares[at] = share.max(shares[at]))?;
        }
        covered.iter_mut().zip(shares).for_each(|(covered, share)| *covered += weight * share);
    }
    Ok(covered.into_iter().map(|covered| covered / whole).collect())
}

/// The numbers of BM25, each read from the segments once per search. A query would read them again for each of its terms.
struct Statistics<'a> {
    searcher: &'a Searcher,
    fields: [Field; 3],
    n_docs: u64,
    /// The words of the fields.
    n_words: [(Field, u64); 3],
    /// The passages with each term of the request.
    n_with: HashMap<Term, u64>,
}

impl<'a> Statistics<'a> {
    fn new(searcher: &'a Searcher, fields: [Field; 3]) -> tantivy::Result<Self> {
        let mut n_words = fields.map(|field| (field, 0));
        for (field, n) in &mut n_words {
            *n = searcher.total_num_tokens(*field)?;
        }
        Ok(Self { searcher, fields, n_docs: searcher.total_num_docs()?, n_words, n_with: HashMap::new() })
    }

    /// The number of passages with a term.
    fn add(&mut self, term: &Term) -> tantivy::Result<u64> {
        let n = self.searcher.doc_freq(term)?;
        self.n_with.insert(term.clone(), n);
        Ok(n)
    }

    /// The clauses of a word, one for each field that has it.
    fn clauses(&mut self, word: &str, weight: f32) -> tantivy::Result<Vec<Clause>> {
        let mut clauses = Vec::new();
        for (field, of_field) in self.fields.into_iter().zip([TITLE_WEIGHT, 1.0, 1.0]) {
            let term = Term::from_field_text(field, word);
            if self.add(&term)? > 0 {
                let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
                clauses.push((
                    Occur::Should,
                    match weight * of_field {
                        1.0 => query,
                        weight => Box::new(BoostQuery::new(query, weight)),
                    },
                ));
            }
        }
        Ok(clauses)
    }

    /// The number of passages with a word whose clauses were made; if several fields have it, the most in one of them.
    fn n_with(&self, word: &str) -> u64 {
        let of = |field| self.n_with.get(&Term::from_field_text(field, word)).copied().unwrap_or(0);
        self.fields.into_iter().map(of).max().unwrap_or(0)
    }

    fn scoring(&self) -> EnableScoring<'_> {
        EnableScoring::enabled_from_statistics_provider(self, self.searcher)
    }
}

impl Bm25StatisticsProvider for Statistics<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        match self.n_words.iter().find(|(of, _)| *of == field) {
            Some(&(_, n)) => Ok(n),
            None => self.searcher.total_num_tokens(field),
        }
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(self.n_docs)
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        self.n_with.get(term).map_or_else(|| self.searcher.doc_freq(term), |&n| Ok(n))
    }
}

/// The `limit` passages with the highest scores, best first; of equal ones, the first of the index.
///
/// They are those of tantivy's [`TopDocs`](tantivy::collector::TopDocs), which begins each segment anew. Here the score to
/// beat goes on from segment to segment, so most postings of the later ones are skipped.
fn best(
    statistics: &Statistics<'_>,
    query: &dyn Query,
    limit: usize,
) -> tantivy::Result<Vec<(f32, DocAddress)>> {
    let weight = query.weight(statistics.scoring())?;
    // The worst one is on top.
    let mut kept: BinaryHeap<Ranked> = BinaryHeap::with_capacity(limit + 1);
    let score_to_beat = |kept: &BinaryHeap<Ranked>| match kept.peek() {
        Some(worst) if kept.len() == limit => worst.score,
        _ => f32::MIN,
    };
    for (ordinal, segment) in (0..).zip(statistics.searcher.segment_readers()) {
        let alive = segment.alive_bitset();
        weight.for_each_pruning(score_to_beat(&kept), segment, &mut |doc, score| {
            if alive.is_none_or(|alive| alive.is_alive(doc)) {
                kept.push(Ranked { score, address: DocAddress::new(ordinal, doc) });
                if kept.len() > limit {
                    kept.pop();
                }
            }
            score_to_beat(&kept)
        })?;
    }
    Ok(kept.into_sorted_vec().into_iter().map(|Ranked { score, address }| (score, address)).collect())
}

/// A passage with its score, in the order of ranks: the better one is less.
#[derive(PartialEq)]
struct Ranked {
    score: f32,
    address: DocAddress,
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.address.cmp(&other.address))
    }
}

/// Adds the scores of a query to those of ranked passages, and ranks them again. Passages that only this query finds stay out.
fn add_scores(
    statistics: &Statistics<'_>,
    query: &dyn Query,
    ranked: &mut [(f32, DocAddress)],
) -> tantivy::Result<()> {
    // A scorer moves forward only.
    ranked.sort_unstable_by_key(|&(_, address)| address);
    let mut added = vec![0.0; ranked.len()];
    each_score(statistics, query, ranked, |at, score| added[at] = score)?;
    ranked.iter_mut().zip(added).for_each(|((score, _), added)| *score += added);
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    Ok(())
}

/// Calls `found` with the position of each passage that a query finds, and its score. The passages ascend.
fn each_score(
    statistics: &Statistics<'_>,
    query: &dyn Query,
    passages: &[(f32, DocAddress)],
    mut found: impl FnMut(usize, f32),
) -> tantivy::Result<()> {
    let weight = query.weight(statistics.scoring())?;
    let mut at = 0;
    for passages in passages.chunk_by(|(_, a), (_, b)| a.segment_ord == b.segment_ord) {
        let segment = statistics.searcher.segment_reader(passages[0].1.segment_ord);
        let mut scorer = weight.scorer(segment, 1.0)?;
        for (_, address) in passages {
            if scorer.doc() < address.doc_id {
                scorer.seek(address.doc_id);
            }
            if scorer.doc() == address.doc_id {
                found(at, scorer.score());
            }
            at += 1;
        }
    }
    Ok(())
}

/// The query that all conditions form; `None` if there are none.
fn filter(given: &NoteFilter, snapshot: &Snapshot) -> Result<Option<Box<dyn Query>>, NotesError> {
    let fields = &snapshot.fields;
    let folders: Vec<Term> = given
        .folders
        .iter()
        .map(|folder| paths::absolute(folder).map(|folder| fields.of_path(&folder)))
        .collect::<Result<_, _>>()?;
    let kinds = given.kinds.iter().map(|&kind| fields.of_kind(kind)).collect();
    let tags = given.tags.iter().map(|tag| fields.of_tag(tag.trim_start_matches('#'))).collect();
    let sets: [Vec<Term>; 3] = [kinds, folders, tags];
    let mut conditions: Vec<(Occur, Box<dyn Query>)> = sets
        .into_iter()
        .filter(|terms| !terms.is_empty())
        .map(|terms| (Occur::Must, Box::new(TermSetQuery::new(terms)) as Box<dyn Query>))
        .collect();
    if given.from.is_some() || given.until.is_some() {
        let bound =
            |date: Option<i64>| date.map_or(Bound::Unbounded, |date| Bound::Included(fields.at(date)));
        conditions.push((Occur::Must, Box::new(RangeQuery::new(bound(given.from), bound(given.until)))));
    }
    Ok((!conditions.is_empty()).then(|| Box::new(BooleanQuery::new(conditions)) as Box<dyn Query>))
}

/// Reciprocal rank fusion: the sum of `1 / (60 + rank)` over the rankings. Equal sums keep the order of the index.
fn fuse(rankings: &[Vec<DocAddress>]) -> Vec<(f32, DocAddress)> {
    let mut scores: HashMap<DocAddress, f32> = HashMap::new();
    for ranking in rankings {
        for (rank, &address) in (1..).zip(ranking) {
            *scores.entry(address).or_default() += 1.0 / (FUSION_K + rank as f32);
        }
    }
    let mut fused: Vec<(f32, DocAddress)> =
        scores.into_iter().map(|(address, score)| (score, address)).collect();
    fused.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_words_count_less_where_there_are_others() {
        let languages = [Some(Language::English), Some(Language::German), None];
        let mut functional = Functional::new(&[Language::English, Language::German]);
        let mut shown = |text: &str| {
            let wanted = Wanted::new(text, &[], &languages, &mut functional);
            let joined = |words: BTreeSet<String>| words.into_iter().collect::<Vec<_>>().join(" ");
            (joined(wanted.terms), joined(wanted.initials), joined(wanted.functional))
        };
        let expect = |terms: &str, initials: &str, functional: &str| {
            (terms.to_owned(), initials.to_owned(), functional.to_owned())
        };
        assert_eq!(shown("When is the dentist?"), expect("dentist", "", "is the when"));
        assert_eq!(shown("to be or not to be"), expect("be not or to", "", ""));
        assert_eq!(shown("Häuser 茶"), expect("haus hauser", "茶", ""));
        assert_eq!(shown("?!"), expect("", "", ""));
        let long: String = ('a'..='z').map(|c| format!("the {c}{c}{c} ")).collect();
        assert_eq!(shown(&long).2, "");
    }

    #[test]
    fn earlier_texts_add_their_words_with_less_weight() {
        let languages = [Some(Language::English), None];
        let mut functional = Functional::new(Language::ALL);
        let mut shown = |text: &str, earlier: &[&str]| {
            let words = Wanted::new(text, earlier, &languages, &mut functional).words;
            let shown =
                words.into_iter().filter_map(|word| Some(format!("{} {:.2}", word.shown?, word.weight)));
            shown.collect::<Vec<_>>().join(", ")
        };
        let earlier = ["How much does the dentist charge?", "Where is the dentist's practice?"];
        assert_eq!(shown("And the keys?", &earlier), "keys 1.00, dentist 0.40, charge 0.40, practice 0.16");
        assert_eq!(shown("And then?", &earlier[..1]), "dentist 0.40, charge 0.40");
        assert_eq!(shown("歯医者の予約は？", &[]), "歯医者の予約は 1.00");
    }

    #[test]
    fn related_words_differ_in_their_endings() {
        for (a, b, expected) in [
            ("allerg", "allergi", true),
            ("allergi", "allergen", true),
            ("medic", "medicin", true),
            ("contract", "contrast", false),
            ("general", "generat", false),
            ("dent", "dentist", false),
            ("donaudampf", "donaudampfschifffahrt", false),
            ("k44711", "k44712", false),
        ] {
            assert_eq!((are_related(a, b), are_related(b, a)), (expected, expected), "{a} {b}");
        }
        assert_eq!(beginning_of_related("allergi"), Some("aller"));
        assert_eq!(beginning_of_related("достопримечательн"), Some("достопримечате"));
        assert_eq!((beginning_of_related("tap"), beginning_of_related("k44711")), (None, None));
    }

    #[test]
    fn fusion_prefers_what_both_rankings_have() {
        let at = |doc| DocAddress::new(0, doc);
        let fused = fuse(&[vec![at(1), at(2)], vec![at(3), at(2)]]);
        let order: Vec<u32> = fused.iter().map(|(_, address)| address.doc_id).collect();
        assert_eq!(order, [2, 1, 3]);
    }

    /// Passages over several segments, some deleted, many with equal scores: the best ones are those of tantivy's collector.
    #[test]
    fn the_best_passages_are_those_of_each_segment_begun_anew() {
        use tantivy::collector::TopDocs;
        use tantivy::indexer::NoMergePolicy;
        use tantivy::schema::{Schema, TEXT};
        use tantivy::{Index, IndexWriter, doc};

        let mut schema = Schema::builder();
        let text = schema.add_text_field("text", TEXT);
        let index = Index::create_in_ram(schema.build());
        let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000).unwrap();
        writer.set_merge_policy(Box::new(NoMergePolicy));
        let mut number = 7_u64;
        let mut below = |n: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % n
        };
        for _ in 0..9 {
            for _ in 0..300 {
                let words: Vec<String> =
                    (0..1 + below(6)).map(|_| format!("w{}", below(8) * below(8))).collect();
                writer.add_document(doc!(text => words.join(" "))).unwrap();
            }
            writer.commit().unwrap();
        }
        writer.delete_term(Term::from_field_text(text, "w15"));
        writer.commit().unwrap();
        let searcher = index.reader().unwrap().searcher();
        assert!(searcher.segment_readers().len() == 9 && searcher.num_docs() < 2700);
        for n_words in 1..6 {
            for limit in [1, 5, 40, 3000] {
                let word = |_| {
                    let term = Term::from_field_text(text, &format!("w{}", below(8) * below(8)));
                    (
                        Occur::Should,
                        Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)) as Box<dyn Query>,
                    )
                };
                let query = BooleanQuery::new((0..n_words).map(word).collect());
                let expected = searcher.search(&query, &TopDocs::with_limit(limit).order_by_score()).unwrap();
                let statistics = Statistics::new(&searcher, [text; 3]).unwrap();
                assert_eq!(best(&statistics, &query, limit).unwrap(), expected, "{n_words} words, {limit}");
            }
        }
    }
}
