//! Session start: settles the options for this machine and model, and creates the draft sources.

use std::sync::Arc;

use super::check::check_options;
use super::{Conversation, DraftingState, Session, TargetState};
use crate::draft::{
    BuilderConfig, ContextSource, DraftSource, EchoConfig, EchoStore, PredictionsSource, ResumeSource,
    VERIFY_ROWS_MAX,
};
use crate::draft_model::{DraftModelSource, OwnRows};
use crate::engine::error::SessionProblem;
use crate::engine::options::{Calibration, DraftRows, Drafting, SessionOptions, TARGET_READ_STEP_US_MIN};
use crate::engine::policy::PressureReport;
use crate::engine::reader::Reader;
use crate::engine::shared::Shared;
use crate::error::SessionError;
use crate::model::PREFILL_CHUNK_MAX;
use crate::model::graphs::StaticGraphs;
use crate::pruning::Pruner;

impl Session {
    pub(in crate::engine) fn new(shared: Arc<Shared>, options: SessionOptions) -> Result<Self, SessionError> {
        let options = fitted_to_graphs(&shared, options);
        let config = shared.model.config();
        let context_len = options.context_len_for(config);
        check_options(&options, context_len, config.context_len)?;
        let options = with_settled_calibration(&shared, options);
        let Drafters { sources, reader, own_rows, bounds } = Drafters::new(&shared, &options, context_len)?;
        let pruner = options.pruning.zip(shared.predictor());
        let pruner = pruner.map(|(config, predictor)| Pruner::new(predictor, config));
        let size = options.cache_size(config);
        let target = TargetState::new(&shared, size, context_len, pruner, reader, own_rows)?;
        let drafting = DraftingState::new(sources, bounds);
        let (conversation, pressure) = (Conversation::new(context_len), PressureReport::default());
        Ok(Self { shared, options, conversation, target, drafting, pressure, remembered: None })
    }
}

/// The draft sources of a session, and the bounds of its tree builder.
struct Drafters {
    sources: Vec<Box<dyn DraftSource>>,
    reader: Option<Reader>,
    /// What target and draft source have in common, if the target's own layers draft.
    own_rows: Option<OwnRows>,
    bounds: BuilderConfig,
}

impl Drafters {
    fn new(shared: &Shared, options: &SessionOptions, context_len: usize) -> Result<Self, SessionError> {
        let vocab_size = shared.model.config().vocab_size;
        let max_rows = options.verify_rows_max;
        let as_claimed = BuilderConfig::as_claimed(vocab_size, max_rows);
        let weighed = BuilderConfig { max_rows, ..BuilderConfig::new(vocab_size) };
        let of_model = || shared.draft_model().ok_or(SessionProblem::NoDraftModel);
        let (mut reader, mut own_rows) = (None, None);
        let (sources, mut bounds): (Vec<Box<dyn DraftSource>>, _) = match options.drafting {
            Drafting::Auto => {
                reader = Reader::new(options, &shared.model).map_err(SessionProblem::Shortlist)?;
                (own_sources(shared, options, context_len, &mut own_rows)?, weighed)
            }
            Drafting::DraftModel => {
                let source = DraftModelSource::new(&of_model()?, context_len, options.kv_type)?;
                own_rows = source.own_rows();
                (vec![Box::new(source)], weighed)
            }
            Drafting::AsClaimed => (Vec::new(), as_claimed),
            Drafting::OwnSources | Drafting::Off => (Vec::new(), weighed),
        };
        if options.policy.rows != DraftRows::Auto {
            // Drafts as many rows as the policy allows, whatever their value.
            (bounds.margin, bounds.reach_min) = (0.0, 0.0);
        }
        Ok(Drafters { sources, reader, own_rows, bounds })
    }
}

/// The sources of [`Drafting::Auto`], and what the target has in common with one of them in `own_rows`.
fn own_sources(
    shared: &Shared,
    options: &SessionOptions,
    context_len: usize,
    own_rows: &mut Option<OwnRows>,
) -> Result<Vec<Box<dyn DraftSource>>, SessionError> {
    let mut sources: Vec<Box<dyn DraftSource>> =
        vec![Box::new(ContextSource::new()), Box::new(ResumeSource::new())];
    if options.history {
        sources.push(Box::new(shared.history.source(&options.namespace)));
    }
    if let Some(config) = options.echo {
        // A session without history leaves nothing behind.
        let store = if options.history { shared.history.echo(&options.namespace) } else { EchoStore::new() };
        sources.push(Box::new(PredictionsSource::with_echo(config, &store, options.reuse)));
    } else if options.reads_rows() {
        sources.push(Box::new(PredictionsSource::new(options.reuse)));
    }
    if let Some(model) = shared.draft_model().filter(|_| options.draft_model) {
        let source = DraftModelSource::new(&model, context_len, options.kv_type)?;
        *own_rows = source.own_rows();
        sources.push(Box::new(source));
    }
    Ok(sources)
}

/// Resolves [`Calibration::Auto`] by the measured time of a plain step, and by what hides the time of reading the prompt's rows.
fn with_settled_calibration(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    if options.calibration == Calibration::Auto {
        let step_us = shared.learned().costs().step_us(1, 1);
        options.calibration = Calibration::Off;
        if step_us >= TARGET_READ_STEP_US_MIN {
            options.echo = Some(options.echo.unwrap_or(EchoConfig::AUTO));
            if shared.model.streamed().is_some() {
                options.calibration = Calibration::InContext;
            }
        }
    }
    options
}

/// Fits chunks to the rows of prefill graphs and batches to the rows of verify graphs, because static graphs
/// run whole calls.
fn fitted_to_graphs(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    let Some(piece) = shared.model.graphs().map(StaticGraphs::piece) else { return options };
    // Values out of range are left unchanged and rejected later.
    if (1..=PREFILL_CHUNK_MAX).contains(&options.prefill_chunk) {
        options.prefill_chunk = piece.prefill_len;
    }
    let n_calls = options.verify_rows_max.div_ceil(piece.verify_len);
    let lens = (1..=n_calls).map(|n_calls| n_calls * piece.verify_len);
    if options.verify_lens.is_empty() && lens.clone().all(|len| len <= VERIFY_ROWS_MAX) {
        options.verify_lens = lens.collect();
    }
    options
}
