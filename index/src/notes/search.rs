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

use super::derive::Embedder;
use super::error::NotesError;
use super::index::{NotesIndex, State};
use super::kind::SourceKind;
use super::language::{Functional, Language};
use super::passage::NotePassage;
use super::paths;
use super::schema::Fields;
use super::snapshot::Snapshot;
use super::snippet::{Snippet, snippet};
use super::vectors::Vectors;
use super::words::{Stems, WordKind, plain_words};

/// Maximum number of words searched for; the rest of a longer request is ignored. A mail to be answered has about 200
/// different words, and each costs two posting lists per language.
const QUERY_WORDS_MAX: usize = 512;

/// The weight of function words, if a request has others. Without them, passages that a question's whole wording fits lose
/// their place; at full weight, long passages win. `docs/decisions/notes.md`, *Words are stems of the note's language*, has numbers.
const FUNCTIONAL_WEIGHT: f32 = 0.3;

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
    /// The part of the passage that matches best.
    pub snippet: Snippet,
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
        let wanted = {
            let mut functional = state.functional.lock().unwrap_or_else(PoisonError::into_inner);
            Wanted::new(search.text, &state.languages, &mut functional)
        };
        let filter = filter(&search.filter, snapshot)?;
        let n_ranked = if search.embedder.is_some() { limit.max(FUSED) } else { limit };
        let by_words = by_words(snapshot, &wanted, filter.as_deref(), n_ranked)?;
        let ranked = match search.embedder {
            None => by_words,
            Some(embedder) => {
                let query = embedder.embed_query(search.text).map_err(NotesError::Embedder)?;
                let allowed = filter
                    .map(|filter| snapshot.searcher.search(&filter, &DocSetCollector))
                    .transpose()
                    .map_err(snapshot.failed())?;
                let is_allowed =
                    |address: DocAddress| allowed.as_ref().is_none_or(|allowed| allowed.contains(&address));
                let by_meaning = self.vectors(&state, embedder)?.search(&query, n_ranked, is_allowed);
                fuse(&[by_words.into_iter().map(|(_, address)| address).collect(), by_meaning])
            }
        };
        let hits = ranked.into_iter().take(limit).map(|(score, address)| -> Result<NoteHit, NotesError> {
            let passage = snapshot.passage(address)?;
            let snippet = snippet(&passage.text, &wanted.terms, &wanted.initials, passage.language);
            Ok(NoteHit { passage, score, snippet })
        });
        hits.collect()
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
struct Wanted {
    /// Stems in each language of the index. A passage has the form of its own language only.
    terms: BTreeSet<String>,
    /// Single characters of scripts without spaces: beginnings of words.
    initials: BTreeSet<String>,
    /// Stems of function words that count less. Snippets ignore them.
    functional: BTreeSet<String>,
}

impl Wanted {
    /// Function words count as others do if there are no others.
    fn new(text: &str, languages: &[Option<Language>], functional: &mut Functional) -> Self {
        let mut wanted = Self::default();
        for &language in languages {
            let stems = Stems::new(language);
            // The last character of several would find all words that end with it.
            let plain = plain_words(text, language).filter(|word| word.kind != WordKind::Last);
            for word in plain.take(QUERY_WORDS_MAX) {
                let set = match functional.contains(&word.text) {
                    true => &mut wanted.functional,
                    false if word.kind == WordKind::Single => &mut wanted.initials,
                    false => &mut wanted.terms,
                };
                set.insert(stems.stem(word).text);
            }
        }
        // A stem of one language may be a function word of another.
        wanted.functional.retain(|word| !wanted.terms.contains(word));
        match wanted.terms.len() + wanted.initials.len() {
            0 => wanted.terms = std::mem::take(&mut wanted.functional),
            n if n > FUNCTIONAL_WITHIN => wanted.functional.clear(),
            _ => {}
        }
        wanted
    }
}

/// A part of a query, and whether a passage must have it.
type Clause = (Occur, Box<dyn Query>);

fn by_words(
    snapshot: &Snapshot,
    wanted: &Wanted,
    filter: Option<&dyn Query>,
    limit: usize,
) -> Result<Vec<(f32, DocAddress)>, NotesError> {
    if wanted.terms.is_empty() && wanted.initials.is_empty() {
        return Ok(Vec::new());
    }
    let Fields { title_words, text_words, name_words, .. } = snapshot.fields;
    let fields = [title_words, text_words, name_words];
    let mut statistics = Statistics::new(&snapshot.searcher, fields).map_err(snapshot.failed())?;
    let mut terms = |words: &BTreeSet<String>| -> Result<Vec<Clause>, NotesError> {
        let terms = words.iter().flat_map(|word| fields.map(|field| Term::from_field_text(field, word)));
        let present = terms.filter_map(|term| match statistics.add(&term) {
            Ok(0) => None,
            Ok(_) => Some(Ok((
                Occur::Should,
                Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)) as Box<dyn Query>,
            ))),
            Err(error) => Some(Err(snapshot.failed()(error))),
        });
        present.collect()
    };
    let mut clauses = terms(&wanted.terms)?;
    let functional = terms(&wanted.functional)?;
    for initial in &wanted.initials {
        // Behind every word that begins with it.
        let end = format!("{initial}\u{10ffff}");
        clauses.extend(fields.map(|field| {
            let range = RangeQuery::new(
                Bound::Included(Term::from_field_text(field, initial)),
                Bound::Excluded(Term::from_field_text(field, &end)),
            );
            (Occur::Should, Box::new(range) as Box<dyn Query>)
        }));
    }
    let mut query: Box<dyn Query> = Box::new(BooleanQuery::new(clauses));
    if let Some(filter) = filter {
        let filter: Box<dyn Query> = Box::new(ConstScoreQuery::new(filter.box_clone(), 0.0));
        query = Box::new(BooleanQuery::new(vec![(Occur::Must, query), (Occur::Must, filter)]));
    }
    let n_ranked = if functional.is_empty() { limit } else { limit.max(RANKED_AGAIN) };
    let mut ranked = best(&statistics, query.as_ref(), n_ranked).map_err(snapshot.failed())?;
    if !functional.is_empty() {
        let functional = BoostQuery::new(Box::new(BooleanQuery::new(functional)), FUNCTIONAL_WEIGHT);
        add_scores(&statistics, &functional, &mut ranked).map_err(snapshot.failed())?;
        ranked.truncate(limit);
    }
    Ok(ranked)
}

/// The numbers of BM25, each read from the segments once per search. A query would read them again for each of its terms.
struct Statistics<'a> {
    searcher: &'a Searcher,
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
        Ok(Self { searcher, n_docs: searcher.total_num_docs()?, n_words, n_with: HashMap::new() })
    }

    /// The number of passages with a term.
    fn add(&mut self, term: &Term) -> tantivy::Result<u64> {
        let n = self.searcher.doc_freq(term)?;
        self.n_with.insert(term.clone(), n);
        Ok(n)
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
    let weight = query.weight(statistics.scoring())?;
    // A scorer moves forward only.
    ranked.sort_unstable_by_key(|&(_, address)| address);
    for passages in ranked.chunk_by_mut(|(_, a), (_, b)| a.segment_ord == b.segment_ord) {
        let segment = statistics.searcher.segment_reader(passages[0].1.segment_ord);
        let mut scorer = weight.scorer(segment, 1.0)?;
        for (score, address) in passages {
            if scorer.doc() < address.doc_id {
                scorer.seek(address.doc_id);
            }
            if scorer.doc() == address.doc_id {
                *score += scorer.score();
            }
        }
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
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
            let wanted = Wanted::new(text, &languages, &mut functional);
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
