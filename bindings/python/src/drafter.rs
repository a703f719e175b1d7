//! The drafter without a model: proposals for engines that verify them.
//!
//! A [`Drafter`] has what its sequences share: the store of earlier outputs, the costs of rows, and the learned reliability. A
//! [`Sequence`] has the sources and the tree builder of one text. No model is loaded and no kernel runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};
use refrain::TokenId;
use refrain::drafting::{DraftSource, SourceName};
use refrain::internals::draft::{
    BuilderConfig, ContextSource, CostProfile, DraftTree, HistoryStore, NodeIdx, PredictionsSource,
    ReliabilityTable, ReuseConfig, SOURCES_MAX, StepLimits, StepOutcome, SuccessorLists, TreeBuilder,
    VERIFY_ROWS_MAX,
};
use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};

use crate::border::{compute, guarded};
use crate::errors::Failure;
use crate::held::Held;
use crate::helpers::Helpers;
use crate::options;
use crate::python_source::{self, PythonSource};
use crate::resident::Resident;
use crate::rows::Rows;
use crate::tokenizer::Tokenizer;

/// The size of a vocabulary, or its tokenizer.
enum Vocabulary {
    Size(usize),
    Tokenizer(Py<Tokenizer>),
}

impl<'py> FromPyObject<'_, 'py> for Vocabulary {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(tokenizer) = object.cast::<Tokenizer>() {
            return Ok(Self::Tokenizer(tokenizer.to_owned().unbind()));
        }
        if !object.is_instance_of::<PyInt>() {
            return Err(options::wrong_type("a Tokenizer or the size of a vocabulary", &object));
        }
        object.extract().map(Self::Size)
    }
}

/// Where finished outputs are kept.
enum Store {
    Memory(Arc<HistoryStore>),
    Disk(HistoryLog),
}

/// What the sequences of a drafter share.
struct Shared {
    vocab_size: usize,
    store: Store,
    namespace: String,
    costs: CostProfile,
    config: BuilderConfig,
    /// What the newest finished sequence has learned; the next ones start from it.
    table: Mutex<ReliabilityTable>,
    /// Sources written in Python; each sequence has its own copies of their state.
    python_sources: Vec<PythonSource>,
    /// Threads of [`Drafter::propose`].
    helpers: Helpers,
}

/// The names of a sequence's own sources.
const SOURCE_NAMES: [&str; 3] = ["context", "history", "predictions"];

/// Checks that every source has a name of its own.
fn check_names(sources: &[PythonSource]) -> Result<(), Failure> {
    for (i, source) in sources.iter().enumerate() {
        let name = source.name();
        if SOURCE_NAMES.contains(&name) || sources[..i].iter().any(|other| other.name() == name) {
            return Err(Failure::DuplicateSource { name: name.to_owned() });
        }
    }
    let n_max = SOURCES_MAX - SOURCE_NAMES.len();
    match sources.len() {
        n if n > n_max => Err(Failure::Range { option: "sources", given: n, min: 0, max: n_max }),
        _ => Ok(()),
    }
}

/// Locks. What a panic has left is still good for drafts.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn check(&self, tokens: &[u32]) -> Result<(), Failure> {
        match tokens.iter().find(|&&token| token as usize >= self.vocab_size) {
            Some(&token) => Err(Failure::Token { token, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }
}

/// Proposes the next tokens of texts that another engine decodes. No model is loaded.
///
/// A drafter holds the store of earlier outputs, and what it has learned about the reliability of its sources. Each text is a
/// :class:`Sequence`. Whatever it proposes, an engine that verifies proposals keeps its output.
///
/// Args:
///     tokenizer: the engine's tokenizer, or the size of its vocabulary.
///     store: a folder that keeps finished outputs. ``None`` keeps them in memory. Several processes may open one folder: one writes, the
///         others hand in.
///     namespace: an app, a user or a task. A drafter never proposes from another namespace.
///     model: a number that tells the outputs of different models apart in one folder.
///     fingerprint: the fingerprint of the tokenizer, if only the size is given and a store is used.
///     tree: whether proposals may branch. A chain is the likeliest path of tokens.
///     row_us: microseconds of a verification by its number of rows, the last committed token included: a proposal ends where further
///         rows cost more than they bring. ``None``: rows are free up to ``max_rows``.
///     sources: draft sources written in Python, each a :class:`~refrain.DraftSource`, shared by all sequences.
///
/// Raises:
///     FingerprintError: the folder has outputs of other tokenizers only.
///     StoreError: the folder cannot be opened.
///     OptionError: an argument is outside its range, or a source has the name of another one.
#[pyclass(frozen, module = "refrain.draft")]
pub(crate) struct Drafter(Resident<Arc<Shared>>);

#[pymethods]
impl Drafter {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (tokenizer, *, store = None, namespace = "default", model = 0, fingerprint = None, tree = true, row_us = None, sources = Vec::new()))]
    fn new(
        py: Python<'_>,
        tokenizer: Vocabulary,
        store: Option<PathBuf>,
        namespace: &str,
        model: u128,
        fingerprint: Option<u64>,
        tree: bool,
        row_us: Option<BTreeMap<usize, f32>>,
        sources: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (vocab_size, known) = match tokenizer {
            Vocabulary::Size(size) => (size, None),
            Vocabulary::Tokenizer(tokenizer) => {
                let holder = tokenizer.get().0.get()?;
                (holder.tokenizer().vocab_size(), Some(holder.tokenizer().fingerprint()))
            }
        };
        if !(1..=1 << 31).contains(&vocab_size) {
            return Err(
                Failure::Range { option: "tokenizer", given: vocab_size, min: 1, max: 1 << 31 }.into()
            );
        }
        let store = match store {
            None => Store::Memory(Arc::new(HistoryStore::new())),
            Some(folder) => {
                let tokenizer = fingerprint.or(known).ok_or(Failure::NoFingerprint)?;
                let key = HistoryKey { tokenizer, model };
                Store::Disk(compute(py, || {
                    let keys = HistoryLog::keys(&folder).map_err(Failure::Store)?;
                    match keys.first() {
                        Some(other) if keys.iter().all(|key| key.tokenizer != tokenizer) => {
                            Err(Failure::Fingerprint { expected: tokenizer, found: other.tokenizer })
                        }
                        _ => {
                            HistoryLog::open(&folder, key, HistoryOptions::default()).map_err(Failure::Store)
                        }
                    }
                })?)
            }
        };
        let config = BuilderConfig {
            max_rows: VERIFY_ROWS_MAX,
            n_candidates_max: CANDIDATES_MAX,
            n_children_max: CANDIDATES_MAX,
            ..BuilderConfig::new(vocab_size)
        };
        let config = if tree { config } else { BuilderConfig { n_children_max: 1, ..config } };
        let costs = match row_us {
            None => CostProfile::free_rows(1.0),
            Some(row_us) => CostProfile::from_measurements(&checked_costs(row_us)?),
        };
        let table = Mutex::new(ReliabilityTable::new());
        let python_sources = python_source::sources(sources, vocab_size)?;
        check_names(&python_sources)?;
        let namespace = namespace.to_owned();
        let helpers = Helpers::default();
        let shared = Shared { vocab_size, store, namespace, costs, config, table, python_sources, helpers };
        Ok(Self(Resident::new(Arc::new(shared))))
    }

    /// Starts a text with the tokens of its prompt.
    ///
    /// Raises:
    ///     TokenOutOfRangeError: a token is not in the vocabulary.
    #[pyo3(signature = (tokens = Vec::new()))]
    fn sequence(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Sequence> {
        let shared = self.0.get()?;
        let text = compute(py, || Text::new(Arc::clone(shared), &tokens))?;
        Ok(Sequence(Resident::new(Arc::new(Held::new(text)))))
    }

    /// A proposal for each of several sequences, computed together without the interpreter's lock, by several threads if there are many.
    ///
    /// Args:
    ///     sequences: different sequences, of this drafter or of others.
    ///     max_rows: as in :meth:`Sequence.propose`.
    ///
    /// Raises:
    ///     OptionError, SequenceEndedError: as :meth:`Sequence.propose`, for the first sequence that fails.
    fn propose(
        &self,
        py: Python<'_>,
        sequences: Vec<Py<Sequence>>,
        max_rows: usize,
    ) -> PyResult<Vec<Proposal>> {
        let shared = self.0.get()?;
        check_rows(max_rows)?;
        let texts = sequences.iter().map(|sequence| sequence.get().0.get().map(Arc::clone));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        compute(py, || {
            let propose = move |text: &Arc<Held<Text>>| guarded(|| text.lock()?.propose(max_rows));
            shared.helpers.map(texts, TEXTS_PER_THREAD, propose).into_iter().collect()
        })
    }

    /// Makes the store durable and merges its parts. To be called when there is time, for example after some outputs.
    ///
    /// Raises:
    ///     StoreError: the folder cannot be read or written.
    fn maintain(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.0.get()?;
        compute(py, || match &shared.store {
            Store::Memory(_) => Ok(()),
            Store::Disk(log) => log.maintain().map_err(Failure::Store),
        })
    }

    /// Forgets the outputs of the namespace: in memory and in every file.
    ///
    /// Raises:
    ///     StoreError: another process writes the store, or the folder cannot be written.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.0.get()?;
        compute(py, || match &shared.store {
            Store::Memory(history) => {
                history.forget(&shared.namespace);
                Ok(())
            }
            Store::Disk(log) => log.forget_namespace(&shared.namespace).map(|_| ()).map_err(Failure::Store),
        })
    }

    /// Whether proposals may branch.
    #[getter]
    fn tree(&self) -> PyResult<bool> {
        Ok(self.0.get()?.config.n_children_max > 1)
    }

    /// Number of tokens in the vocabulary.
    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.0.get()?.vocab_size)
    }

    fn __repr__(&self) -> PyResult<String> {
        let shared = self.0.get()?;
        let store = match &shared.store {
            Store::Memory(_) => "in memory",
            Store::Disk(_) => "on disk",
        };
        Ok(format!("Drafter(vocab_size={}, namespace={:?}, {store})", shared.vocab_size, shared.namespace))
    }
}

/// Candidates of a source at a node. Half as many as in the engine: 200 recorded answers take as many steps with 4 to 32 rows (within
/// 0.1 %), and a proposal from a million tokens of history takes 27 instead of 45 µs.
const CANDIDATES_MAX: usize = 16;

/// Texts for which waking a thread pays, which takes about as long as a proposal.
const TEXTS_PER_THREAD: usize = 8;

fn check_rows(max_rows: usize) -> Result<(), Failure> {
    match max_rows {
        1..VERIFY_ROWS_MAX => Ok(()),
        given => Err(Failure::Range { option: "max_rows", given, min: 1, max: VERIFY_ROWS_MAX - 1 }),
    }
}

/// The measured costs, if each is a positive time of a number of rows that a verification may have.
fn checked_costs(row_us: BTreeMap<usize, f32>) -> Result<Vec<(usize, f32)>, Failure> {
    let is_cost =
        |(&rows, &us): (&usize, &f32)| (1..=VERIFY_ROWS_MAX).contains(&rows) && us.is_finite() && us > 0.0;
    if row_us.is_empty() || !row_us.iter().all(is_cost) {
        return Err(Failure::Choice {
            option: "row_us",
            given: format!("{row_us:?}"),
            choices: vec!["a mapping of numbers of rows, 1 to 64, to positive microseconds"],
        });
    }
    Ok(row_us.into_iter().collect())
}

/// One text, with its sources and its tree builder.
struct Text {
    shared: Arc<Shared>,
    tokens: Vec<TokenId>,
    prompt_len: usize,
    sources: Vec<Box<dyn DraftSource>>,
    builder: TreeBuilder,
    tree: DraftTree,
    /// Whether `tree` was proposed for the end of `tokens`.
    is_proposed: bool,
    /// The engine's likeliest tokens after the rows of `tree`, as far as it has given them: at most one list for each node.
    verified: SuccessorLists,
    /// Whether the source that learns from the engine's rows is there. Texts whose engine gives no rows do without it.
    listens: bool,
    is_ended: bool,
}

impl Text {
    fn new(shared: Arc<Shared>, tokens: &[u32]) -> Result<Self, Failure> {
        shared.check(tokens)?;
        let history: Box<dyn DraftSource> = match &shared.store {
            Store::Memory(history) => Box::new(history.source(&shared.namespace)),
            Store::Disk(log) => Box::new(log.source(&shared.namespace)),
        };
        let builder = TreeBuilder::with_table(shared.config, lock(&shared.table).clone());
        let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(ContextSource::new()), history];
        sources.extend(shared.python_sources.iter().map(|source| source.fork()));
        let mut text = Self {
            tokens: tokens.iter().copied().map(TokenId).collect(),
            prompt_len: tokens.len(),
            sources,
            builder,
            tree: DraftTree::new(TokenId(0)),
            is_proposed: false,
            verified: SuccessorLists::new(),
            listens: false,
            is_ended: false,
            shared,
        };
        text.prime();
        Ok(text)
    }

    fn prime(&mut self) {
        self.sources.iter_mut().for_each(|source| source.prime(&self.tokens));
    }

    fn check_running(&self) -> Result<(), Failure> {
        if self.is_ended { Err(Failure::SequenceEnded) } else { Ok(()) }
    }

    fn propose(&mut self, max_rows: usize) -> Result<Proposal, Failure> {
        self.check_running()?;
        if self.tokens.is_empty() {
            return Ok(Proposal::default());
        }
        let Self { shared, sources, builder, tree, tokens, .. } = self;
        // The tree's root is the last committed token, which is no proposal.
        let limits = StepLimits { max_rows: max_rows + 1, ..StepLimits::NONE };
        builder.build(sources, tokens, limits, &shared.costs, tree);
        self.is_proposed = true;
        self.verified.clear();
        Ok(Proposal {
            tokens: self.tree.tokens()[1..].iter().map(|token| token.0).collect(),
            parents: self.tree.parents()[1..].iter().map(|&parent| i64::from(parent) - 1).collect(),
            probabilities: self.tree.reach()[1..].to_vec(),
            origins: (1..self.tree.len())
                .filter_map(|node| self.tree.source(NodeIdx(node as u32)))
                .map(|source| SourceName::from(self.sources[source].name()))
                .collect(),
        })
    }

    fn observe(&mut self, tokens: &[u32]) -> Result<usize, Failure> {
        self.check_running()?;
        self.shared.check(tokens)?;
        if tokens.is_empty() {
            return Ok(0);
        }
        let mut accepted = Vec::new();
        if std::mem::take(&mut self.is_proposed) {
            let mut node = NodeIdx::ROOT;
            for &token in tokens {
                let Some(child) = self.tree.child(node, TokenId(token)) else { break };
                accepted.push(child);
                node = child;
            }
            // The step ends with the first token that was not proposed: the engine's own.
            let n_step = tokens.len().min(accepted.len() + 1);
            self.tokens.extend(tokens[..n_step].iter().copied().map(TokenId));
            self.learn_rows(self.tokens.len() - n_step - 1, &accepted);
            let new_tokens = &self.tokens[self.tokens.len() - n_step..];
            let outcome = StepOutcome { tree: &self.tree, accepted: &accepted, new_tokens };
            self.builder.observe(&mut self.sources, &self.tokens, &outcome);
            if n_step == tokens.len() {
                return Ok(accepted.len());
            }
            self.tokens.extend(tokens[n_step..].iter().copied().map(TokenId));
        } else {
            self.tokens.extend(tokens.iter().copied().map(TokenId));
        }
        self.prime();
        Ok(accepted.len())
    }

    fn observe_logits(&mut self, rows: Rows, position: Option<usize>) -> Result<(), Failure> {
        self.check_running()?;
        let Some(first) = position else {
            if !self.is_proposed {
                return Err(Failure::Logits {
                    row: None,
                    problem: "belong to no proposal: propose first, or give a position",
                });
            }
            let lists = rows.lists(self.shared.vocab_size, self.tree.len())?;
            // Kept until the engine says which tokens it has committed.
            self.verified = lists;
            return Ok(());
        };
        let n_room = self.tokens.len().saturating_sub(first);
        let lists = rows.lists(self.shared.vocab_size, n_room)?;
        self.calibrate(first, &lists);
        Ok(())
    }

    /// Passes lists of the tokens at `first` and behind it to the source that learns from them.
    fn calibrate(&mut self, first: usize, lists: &SuccessorLists) {
        if lists.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.listens, true) {
            let mut added = PredictionsSource::new(Some(ReuseConfig::default()));
            added.prime(&self.tokens);
            self.sources.push(Box::new(added));
        }
        let listeners = self.sources.iter_mut().filter_map(|source| source.target_listener());
        listeners.for_each(|source| source.calibrate(&self.tokens, first, lists));
    }

    /// Learns from the rows of the newest proposal, whose root is the token at `root`: those of the root and of the `accepted` nodes.
    fn learn_rows(&mut self, root: usize, accepted: &[NodeIdx]) {
        let verified = std::mem::take(&mut self.verified);
        let mut path = SuccessorLists::new();
        for node in [NodeIdx::ROOT].iter().chain(accepted).filter(|_| !verified.is_empty()) {
            path.push(&verified.list(node.index()).collect::<Vec<_>>());
        }
        self.calibrate(root, &path);
    }

    fn follow(&mut self, tokens: &[u32]) -> Result<usize, Failure> {
        self.check_running()?;
        self.shared.check(tokens)?;
        let n_equal = self.tokens.iter().zip(tokens).take_while(|(ours, theirs)| ours.0 == **theirs).count();
        if n_equal < self.tokens.len() {
            self.tokens.truncate(n_equal);
            self.prompt_len = self.prompt_len.min(n_equal);
            self.sources.iter_mut().for_each(|source| source.truncate(n_equal));
            self.is_proposed = false;
            self.prime();
        }
        self.observe(&tokens[n_equal..])
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.check_running()?;
        let output = &self.tokens[self.prompt_len..];
        if !output.is_empty() {
            match &self.shared.store {
                Store::Memory(history) => history.append(&self.shared.namespace, output),
                Store::Disk(log) => {
                    log.append(&self.shared.namespace, output).map_err(Failure::Store)?;
                }
            }
        }
        self.is_ended = true;
        *lock(&self.shared.table) = self.builder.table().clone();
        // Frees the memory: nothing more is proposed.
        self.sources.iter_mut().for_each(|source| source.release());
        Ok(())
    }
}

/// One text of a drafter, made by :meth:`Drafter.sequence`.
///
/// The engine's loop is: :meth:`propose`, verify, :meth:`observe` what was committed; and :meth:`finish` at the end. An engine that passes
/// its whole text in each step calls :meth:`follow` instead of :meth:`observe`.
#[pyclass(frozen, module = "refrain.draft")]
pub(crate) struct Sequence(Resident<Arc<Held<Text>>>);

impl Sequence {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Text) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let text = self.0.get()?;
        compute(py, || work(&mut *text.lock()?))
    }
}

#[pymethods]
impl Sequence {
    /// Proposes the next tokens.
    ///
    /// Args:
    ///     max_rows: maximum proposed tokens, 1 to 63.
    ///
    /// Raises:
    ///     SequenceEndedError: :meth:`finish` was called.
    ///     OptionError: ``max_rows`` is outside its range.
    fn propose(&self, py: Python<'_>, max_rows: usize) -> PyResult<Proposal> {
        check_rows(max_rows)?;
        self.with(py, |text| text.propose(max_rows))
    }

    /// Takes the tokens that the engine committed after the newest proposal, its own token included. Learns from proposed tokens that were
    /// accepted and from those that were not.
    ///
    /// Returns:
    ///     How many of the tokens were proposed.
    ///
    /// Raises:
    ///     TokenOutOfRangeError: a token is not in the vocabulary. Nothing has changed.
    ///     SequenceEndedError: :meth:`finish` was called.
    fn observe(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<usize> {
        self.with(py, |text| text.observe(&tokens))
    }

    /// Takes the engine's own likeliest next tokens, from which later proposals of this sequence draw.
    ///
    /// An engine that has logits anyway calls it between :meth:`propose` and :meth:`observe`, with the rows of the proposal; and, where it
    /// has the logits of the prompt too, once for these. The eight likeliest tokens of a row are used, and those below e⁻⁷ are not.
    ///
    /// Args:
    ///     tokens: token ids, ``[n_rows][n]``. Row 0 is what follows the last committed token, row ``i + 1`` what follows token ``i`` of the
    ///         newest proposal. The last rows may be missing; rows may be of different lengths, and empty.
    ///     values: a number for each id, of the same shape.
    ///     kind: what the numbers are. ``"logits"`` are normalised over the ids of their row, so a row should have every likely token;
    ///         ``"log_probabilities"`` (natural) and ``"probabilities"`` are over the whole vocabulary.
    ///     position: the rows are instead what follows the committed tokens at this position and the next ones.
    ///
    /// Raises:
    ///     LogitsError: the shapes differ, there are more rows than tokens, there is no proposal to which they belong, a row has an id
    ///         twice, or a value is NaN or no value of its kind. Nothing has changed.
    ///     TokenOutOfRangeError: an id is not in the vocabulary. Nothing has changed.
    ///     OptionError: ``kind`` is none of the three.
    ///     SequenceEndedError: :meth:`finish` was called.
    #[pyo3(signature = (tokens, values, *, kind = "logits", position = None))]
    fn observe_logits(
        &self,
        py: Python<'_>,
        tokens: Vec<Vec<u32>>,
        values: Vec<Vec<f32>>,
        kind: &str,
        position: Option<usize>,
    ) -> PyResult<()> {
        let rows = Rows { tokens, values, kind: options::kind(kind)? };
        self.with(py, |text| text.observe_logits(rows, position))
    }

    /// Takes the engine's whole text: observes the tokens behind those that are known, and takes back known tokens from the first that
    /// differs.
    ///
    /// Returns:
    ///     How many of the new tokens were proposed.
    ///
    /// Raises:
    ///     TokenOutOfRangeError, SequenceEndedError: as :meth:`observe`.
    fn follow(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<usize> {
        self.with(py, |text| text.follow(&tokens))
    }

    /// Ends the text, and adds its output (the tokens after the prompt) to the drafter's store.
    ///
    /// Raises:
    ///     StoreError: the output could not be kept. The sequence has not ended, and the call may be repeated.
    ///     SequenceEndedError: the sequence had ended.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Text::finish)
    }

    /// All tokens, prompt and output.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |text| Ok(text.tokens.iter().map(|token| token.0).collect()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |text| Ok(text.tokens.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |text| {
            let state = if text.is_ended { ", ended" } else { "" };
            Ok(format!("Sequence({} tokens{state})", text.tokens.len()))
        })
    }
}

/// Proposed tokens: a chain or a tree, best first. An empty proposal means that plain decoding is faster.
#[pyclass(frozen, module = "refrain.draft")]
#[derive(Default)]
pub(crate) struct Proposal {
    tokens: Vec<u32>,
    parents: Vec<i64>,
    probabilities: Vec<f32>,
    origins: Vec<SourceName>,
}

#[pymethods]
impl Proposal {
    /// The tokens. In a chain each follows the one before.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tokens)
    }

    /// For each token the index of the token before it; -1 behind the committed text. Always smaller than the token's own index.
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.parents)
    }

    /// For each token the estimated probability that it and all tokens on its path are accepted.
    #[getter]
    fn probabilities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.probabilities)
    }

    /// For each token the source that proposed it: ``"context"`` (this text) or ``"history"`` (earlier outputs); with
    /// :meth:`Sequence.observe_logits` also ``"predictions"`` (the engine's likeliest tokens, and rejected ones that it found likely); or
    /// the name of a source written in Python.
    #[getter]
    fn origins<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.origins.iter().map(SourceName::as_str))
    }

    /// Whether no token has a sibling.
    #[getter]
    fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(index, &parent)| parent == index as i64 - 1)
    }

    fn __len__(&self) -> usize {
        self.tokens.len()
    }

    fn __repr__(&self) -> String {
        let shape = if self.is_chain() { "chain" } else { "tree" };
        format!("Proposal({shape} of {} tokens)", self.tokens.len())
    }
}
