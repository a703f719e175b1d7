//! Token ids and vectors of passages, made when the index changes.

use std::ops::ControlFlow;

use refrain::{SpecialTokens, Tokenizer};

use super::derived::{Derived, DerivedKind, encode_tokens, encode_vector};
use super::embedder::{DIMENSIONS_MAX, Embedder};
use super::error::NotesError;
use super::passage::{NotePassage, titled};
use super::report::Notice;
use super::threads;
use super::writer::{NotesWriter, OnProgress};

/// Passages that are in memory at the same time.
const BATCH: usize = 512;

/// Texts that an embedder receives at a time.
const EMBEDDED: usize = 32;

impl NotesWriter {
    /// Stores the token ids of all passages that have none for this tokenizer. Returns the number of passages.
    ///
    /// # Errors
    /// The token ids stored so far are kept.
    pub fn tokenize(
        &mut self,
        tokenizer: &Tokenizer,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<usize, NotesError> {
        self.derive(DerivedKind::Tokens, tokenizer.fingerprint(), on_progress, |passages| {
            let texts: Vec<String> = passages.into_iter().map(|passage| passage.text).collect();
            let encode = |text: &String| -> Result<Vec<u8>, NotesError> {
                Ok(encode_tokens(&tokenizer.encode(text, SpecialTokens::AsText)?))
            };
            threads::map(&texts, encode).into_iter().collect()
        })
    }

    /// Stores the vectors of all passages that have none of this embedder. Returns the number of passages.
    ///
    /// # Errors
    /// [`NotesError::Embedder`] and others. The vectors stored so far are kept.
    pub fn embed(
        &mut self,
        embedder: &dyn Embedder,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<usize, NotesError> {
        let n = embedder.dimensions();
        if !(1..=DIMENSIONS_MAX).contains(&n) {
            let (given, max) = (n as u64, DIMENSIONS_MAX as u64);
            return Err(NotesError::OutOfRange { option: "dimensions", given, min: 1, max });
        }
        self.derive(DerivedKind::Vectors, embedder.identity(), on_progress, |passages| {
            let mut values = Vec::with_capacity(passages.len());
            for passages in passages.chunks(EMBEDDED) {
                let texts: Vec<_> =
                    passages.iter().map(|passage| titled(&passage.title, &passage.text)).collect();
                let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
                let vectors = embedder.embed(&texts).map_err(NotesError::Embedder)?;
                if vectors.len() != texts.len() || vectors.iter().any(|vector| vector.len() != n) {
                    let what = format!("{} vectors of length {n} expected for as many texts", texts.len());
                    return Err(NotesError::Embedder(what.into()));
                }
                values.extend(vectors.iter().map(|vector| encode_vector(vector)));
            }
            Ok(values)
        })
    }

    /// Stores the values of all passages that have none.
    fn derive(
        &mut self,
        kind: DerivedKind,
        identity: u64,
        on_progress: &mut OnProgress<'_>,
        compute: impl Fn(Vec<NotePassage>) -> Result<Vec<Vec<u8>>, NotesError>,
    ) -> Result<usize, NotesError> {
        self.check_running()?;
        let (mut values, is_damaged) = Derived::open_to_write(&self.folder, kind, identity)?;
        if is_damaged {
            self.note(Notice::Derived { path: kind.path(&self.folder, identity) });
        }
        let snapshot = self.store.snapshot()?;
        let missing = snapshot.passages_of(|key| !values.contains(key))?;
        let mut n_done = 0;
        for batch in missing.chunks(BATCH) {
            if on_progress(n_done as u64, missing.len() as u64) == ControlFlow::Break(()) {
                break;
            }
            let passages = batch.iter().map(|&address| snapshot.passage(address));
            let passages = passages.collect::<Result<Vec<_>, _>>()?;
            let keys: Vec<u64> = passages.iter().map(|passage| passage.key).collect();
            let computed: Vec<(u64, Vec<u8>)> = keys.into_iter().zip(compute(passages)?).collect();
            values.append(&computed)?;
            n_done += batch.len();
        }
        values.sync()?;
        let _ = on_progress(n_done as u64, missing.len() as u64);
        Ok(n_done)
    }
}
