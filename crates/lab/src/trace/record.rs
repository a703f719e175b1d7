//! Recording of logit traces.
//!
//! Per request, the model answers once, greedily and without drafts. Then each setting replays the answer, and the model
//! computes the rows of its trees that no earlier batch had. So the trace has every row that these settings verify, and
//! a shared row is computed once.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::sync::Arc;

use refrain::drafting::{Calibration, DraftTree};
use refrain::internals::draft::VERIFY_ROWS_MAX;
use refrain::internals::draft_model::{DraftModel, KvTree, Likely, ROOT};
use refrain::internals::error::ForwardError;
use refrain::internals::model::kv_cache::KvCacheError;
use refrain::{Drafting, Engine, ErrorKind, Role, SessionError, SessionOptions, SpecialTokens, TokenId};
use thiserror::Error;

use super::answer::{Branch, Rows, TOP_LEN, Top};
use super::file::Trace;
use crate::replay::{Lane, Setting, Wanted};
use crate::rows::{Accepted, Row, RowsError, TokenRow};
use crate::tally::Tally;

/// The limits of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// Maximum tokens of an answer.
    pub max_tokens: usize,
    /// Maximum tokens of a prompt; longer ones are left out.
    pub prompt_tokens_max: usize,
}

/// A recording failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The model was not loaded with [`Engine::set_draft_model`], whose key-value tree computes the rows.
    #[error("no model to record")]
    NoModel,
    /// A row has no text.
    #[error(transparent)]
    Row(#[from] RowsError),
    /// A prompt could not be rendered.
    #[error("row {id}: {source}")]
    Prompt {
        /// The row.
        id: String,
        /// The reason.
        source: Box<SessionError>,
    },
    /// The memory for keys and values could not be allocated.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// A pass failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Records the rows of one task: the requests in order, as one session. Returns the trace and the number of rows that
/// were left out, because their prompt is too long or their answer empty. Calls `progress` with (rows done, rows to do).
///
/// The model is the engine's draft model, loaded from the target's file. `settings` are those whose trees are recorded.
///
/// # Errors
/// [`RecordError`].
pub fn record(
    engine: &Engine,
    rows: &[&Row],
    settings: &[Setting],
    options: RecordOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<(Trace, usize), RecordError> {
    let model = engine.draft_model().ok_or(RecordError::NoModel)?;
    let vocab_size = engine.config().vocab_size;
    let mut recorder = Recorder::new(&model, options)?;
    let mut lanes: Vec<Lane<'_>> = settings.iter().map(|setting| Lane::new(setting, vocab_size)).collect();
    let mut trace = Trace { model: model.name().to_owned(), vocab_size, rows: Vec::new() };
    let mut n_left_out = 0;
    for (n_done, row) in rows.iter().enumerate() {
        progress(n_done, rows.len());
        let mut answered = request(engine, row, trace.rows.len())?;
        let fits = answered.prompt.len() <= options.prompt_tokens_max.min(recorder.prompt_len_max());
        if !fits || !recorder.answer(&mut answered, engine.tokenizer().eos(), options.max_tokens)? {
            n_left_out += 1;
            continue;
        }
        for lane in &mut lanes {
            recorder.record(lane, &mut answered)?;
        }
        trace.rows.push(answered);
    }
    Ok((trace, n_left_out))
}

/// The request of a row: the prompt is the user's message, in the model's chat template if there is one.
fn request(engine: &Engine, row: &Row, index: usize) -> Result<TokenRow, RecordError> {
    let texts = row.texts()?;
    let rendered = || -> Result<_, SessionError> {
        let mut session = engine.session(SessionOptions {
            drafting: Drafting::Off,
            calibration: Calibration::Off,
            reuse: None,
            ..SessionOptions::default()
        })?;
        match engine.tokenizer().chat_template() {
            Some(_) => session.append_turn(Role::User, texts.prompt.as_str())?,
            None => session.append_text(&texts.prompt, SpecialTokens::AsText)?,
        }
        let prompt = session.state_mut().encode()?.to_vec();
        let encode = |passage: &String| engine.tokenizer().encode(passage, SpecialTokens::AsText);
        let passages = texts.context.iter().map(encode).collect::<Result<_, _>>()?;
        Ok((prompt, passages))
    };
    // A prompt longer than the context is left out, as is an empty one.
    let (prompt, passages) = match rendered() {
        Err(error) if error.kind() == ErrorKind::ContextFull => Default::default(),
        rendered => {
            rendered.map_err(|source| RecordError::Prompt { id: row.id.clone(), source: Box::new(source) })?
        }
    };
    Ok(TokenRow {
        index,
        id: row.id.clone(),
        task: row.task.clone(),
        subtask: row.subtask.clone(),
        session: Some(row.task.clone()),
        prompt,
        passages,
        response: Vec::new(),
        target: None,
        accepted: Accepted::default(),
    })
}

/// The model, and its keys and values for the request in hand.
struct Recorder {
    tree: KvTree,
    /// Tokens of the longest text.
    context_len: usize,
    max_tokens: usize,
}

/// Maximum computed nodes: a batch without its root.
const NODES_MAX: usize = VERIFY_ROWS_MAX - 1;

impl Recorder {
    fn new(model: &Arc<DraftModel>, options: RecordOptions) -> Result<Self, KvCacheError> {
        let wanted = options.prompt_tokens_max.saturating_add(options.max_tokens).saturating_add(1);
        let context_len = wanted.min(model.config().context_len);
        let tree = KvTree::new(Arc::clone(model), context_len, TOP_LEN, NODES_MAX)?;
        Ok(Recorder { tree, context_len, max_tokens: options.max_tokens })
    }

    fn prompt_len_max(&self) -> usize {
        self.context_len.saturating_sub(self.max_tokens + 1)
    }

    fn top(&self, node: u32) -> Top {
        Top::new(self.tree.likely(node).iter().map(|&Likely { token, probability }| (token, probability)))
    }

    /// Answers a request. Returns whether there is an answer.
    fn answer(
        &mut self,
        row: &mut TokenRow,
        eos: &[TokenId],
        max_tokens: usize,
    ) -> Result<bool, ForwardError> {
        let Some(&first) = row.prompt.first() else { return Ok(false) };
        let mut text = vec![first];
        let mut tops = Vec::with_capacity(row.prompt.len() + max_tokens);
        self.tree.truncate(0);
        self.tree.follow(&text);
        self.tree.compute_root()?;
        tops.push(self.top(ROOT));
        for chunk in row.prompt[1..].chunks(NODES_MAX) {
            // A chain below the root, which becomes text by the next `follow`.
            let wanted: Vec<(u32, TokenId)> = (ROOT..).zip(chunk.iter().copied()).collect();
            let first = self.tree.compute(&wanted)?;
            tops.extend((first..).take(chunk.len()).map(|node| self.top(node)));
            text.extend_from_slice(chunk);
            self.tree.follow(&text);
        }
        while row.response.len() < max_tokens {
            let Some(next) = tops.last().and_then(|top| top.token(0)) else { break };
            if eos.contains(&next) {
                break;
            }
            text.push(next);
            row.response.push(next);
            self.tree.follow(&text);
            self.tree.compute_root()?;
            tops.push(self.top(ROOT));
        }
        row.target = Some(Box::new(Rows::new(row.prompt.len(), tops)));
        Ok(!row.response.is_empty())
    }

    /// Replays an answer by a setting, and adds the rows of its trees to the answer's.
    fn record(&mut self, lane: &mut Lane<'_>, row: &mut TokenRow) -> Result<(), ForwardError> {
        let text = [row.prompt.as_slice(), &row.response].concat();
        let before = row.clone();
        let Some(rows) = row.target.as_deref_mut() else { return Ok(()) };
        let mut result = Ok(());
        let mut complete = |n_committed: usize, tree: &DraftTree| {
            if result.is_ok() {
                result = self.complete(&before.response, rows, &text[..n_committed], tree);
            }
            rows.tops(&before.response, n_committed - 1, tree)
        };
        let wanted = Wanted { target: Some(&mut complete), ..Wanted::default() };
        lane.replay(&before, &mut Tally::default(), wanted);
        result
    }

    /// Computes the rows of `tree` that are not in `rows`.
    fn complete(
        &mut self,
        response: &[TokenId],
        rows: &mut Rows,
        committed: &[TokenId],
        tree: &DraftTree,
    ) -> Result<(), ForwardError> {
        let mut places = rows.places(response, committed.len() - 1, tree);
        // The missing rows, and those above them: a row is computed with its path.
        let mut is_needed: Vec<bool> = places.iter().map(Option::is_none).collect();
        for node in (1..tree.len()).rev() {
            if is_needed[node] {
                is_needed[tree.parents()[node] as usize] = true;
            }
        }
        if !is_needed[0] {
            return Ok(());
        }
        self.tree.follow(committed);
        if self.tree.n_nodes() > 1 {
            // The same text again: only its root is kept.
            self.tree.truncate(committed.len() - 1);
            self.tree.follow(committed);
        }
        self.tree.compute_root()?;
        let mut computed = vec![ROOT; tree.len()];
        let mut wanted = Vec::new();
        for node in (1..tree.len()).filter(|&node| is_needed[node]) {
            wanted.push((computed[tree.parents()[node] as usize], tree.tokens()[node]));
            computed[node] = wanted.len() as u32;
        }
        self.tree.compute(&wanted)?;
        for node in 1..tree.len() {
            let parent = places[tree.parents()[node] as usize];
            if let (None, Some(parent)) = (places[node], parent) {
                let top = self.top(computed[node]);
                places[node] = rows.push(Branch { parent, token: tree.tokens()[node], top });
            }
        }
        Ok(())
    }
}
