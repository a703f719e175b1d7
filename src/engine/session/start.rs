//! How a session starts: what its options become on this machine and model, which are refused, and what drafts for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Session, SessionError};
use crate::draft::{
    BuilderConfig, CalibrationSource, ContextSource, DraftSource, DraftTree, NodeSet, ResumeSource,
    ReuseConfig, ReuseSource, TreeBuilder,
};
use crate::draft_model::DraftModelSource;
use crate::engine::Shared;
use crate::engine::options::{
    Calibration, Drafting, PREFILL_CHUNK_MAX, SessionOptions, TARGET_READ_STEP_US_MIN, VERIFY_ROWS_MAX,
};
use crate::engine::policy::{DraftRows, PressureReport};
use crate::engine::reader::Reader;
use crate::model::graphs::StaticGraphs;
use crate::model::{Batch, KvCache, Workspace};
use crate::pruning::{Pruner, PruningConfig, SHADOW_POOL_MAX};
use crate::verify::Walk;

impl Session {
    pub(in crate::engine) fn new(shared: Arc<Shared>, options: SessionOptions) -> Result<Self, SessionError> {
        let options = fitted_to_graphs(&shared, options);
        let config = shared.model.config();
        let context_len = options.context_len(config);
        check_options(&options, context_len, config.context_len)?;
        let options = with_settled_calibration(&shared, options);
        let rows_max = options.rows_max();
        // The scratch slots of a verification batch come behind a full context.
        let kv = KvCache::new(config, options.kv_type, context_len + rows_max)?;
        let Drafters { mut sources, reader, bounds } = Drafters::new(&shared, &options, context_len)?;
        let builder = TreeBuilder::with_table(bounds, shared.reliability().clone());
        let pruner = options.pruning.zip(shared.predictor());
        let pruner = pruner.map(|(config, predictor)| Pruner::new(predictor, config));
        let cancel = Arc::new(AtomicBool::new(false));
        sources.iter_mut().for_each(|source| source.watch(&cancel));
        Ok(Self {
            workspace: Workspace::new(config),
            context_len,
            tokens: Vec::new(),
            kv,
            batch: Batch::new(),
            walk: Walk::default(),
            sources,
            builder,
            tree: DraftTree::default(),
            verified: NodeSet::ALL,
            pruner,
            primed: 0,
            reader,
            calibrated: 0,
            calibrate_us: 0.0,
            cancel,
            pressure: PressureReport::default(),
            messages: Vec::new(),
            chat: crate::tokenizer::ChatOptions::default(),
            synced: true,
            answered_len: 0,
            options,
            shared,
        })
    }
}

/// What drafts for a session, and how its trees are built.
struct Drafters {
    sources: Vec<Box<dyn DraftSource>>,
    reader: Option<Reader>,
    bounds: BuilderConfig,
}

impl Drafters {
    fn new(shared: &Shared, options: &SessionOptions, context_len: usize) -> Result<Self, SessionError> {
        let vocab_size = shared.model.config().vocab_size;
        let is_lossy = options.acceptance.is_lossy();
        let max_rows = options.verify_rows_max;
        let as_claimed = BuilderConfig::as_claimed(vocab_size, max_rows);
        let weighed = BuilderConfig { max_rows, ..BuilderConfig::new(vocab_size) };
        let of_model = || shared.draft_model().ok_or(SessionError::NoDraftModel);
        let mut reader = None;
        let (sources, mut bounds): (Vec<Box<dyn DraftSource>>, _) = match options.drafting {
            Drafting::Auto => {
                reader = Reader::new(options.calibration, options.reuse.is_some(), &shared.model)?;
                (own_sources(shared, options, context_len)?, weighed)
            }
            Drafting::DraftModel if is_lossy => return Err(SessionError::LossyDraftModel),
            Drafting::DraftModel => {
                (vec![Box::new(DraftModelSource::new(&of_model()?, context_len)?)], weighed)
            }
            Drafting::ModelRule(rule) => {
                (vec![rule.source(&of_model()?, context_len, max_rows)?], as_claimed)
            }
            Drafting::Baseline(baseline) => (vec![baseline.source(max_rows, &[])], as_claimed),
            Drafting::AsClaimed => (Vec::new(), as_claimed),
            Drafting::OwnSources | Drafting::Off => (Vec::new(), weighed),
        };
        if options.policy.rows != DraftRows::Auto || is_lossy {
            // As many rows as the policy says, whatever they are worth.
            (bounds.margin, bounds.reach_min) = (0.0, 0.0);
        }
        Ok(Drafters { sources, reader, bounds })
    }
}

/// The sources of [`Drafting::Auto`].
fn own_sources(
    shared: &Shared,
    options: &SessionOptions,
    context_len: usize,
) -> Result<Vec<Box<dyn DraftSource>>, SessionError> {
    let mut sources: Vec<Box<dyn DraftSource>> =
        vec![Box::new(ContextSource::new()), Box::new(ResumeSource::new())];
    if options.history {
        sources.push(Box::new(shared.history.source(&options.namespace)));
    }
    if options.calibration != Calibration::Off {
        sources.push(Box::new(CalibrationSource::new()));
    }
    if let Some(config) = options.reuse {
        sources.push(Box::new(ReuseSource::new(config)));
    }
    // When it is asked depends on what its passes take, and lossy acceptance must not.
    let draft_model = shared.draft_model().filter(|_| options.draft_model && !options.acceptance.is_lossy());
    if let Some(model) = draft_model {
        sources.push(Box::new(DraftModelSource::new(&model, context_len)?));
    }
    Ok(sources)
}

fn check_options(
    options: &SessionOptions,
    context_len: usize,
    context_len_max: usize,
) -> Result<(), SessionError> {
    options.policy.check()?;
    options.acceptance.check()?;
    check("context_len", context_len, 2, context_len_max)?;
    check("verify_rows_max", options.verify_rows_max, 1, VERIFY_ROWS_MAX)?;
    check("prefill_chunk", options.prefill_chunk, 1, PREFILL_CHUNK_MAX)?;
    check("projection_rows", options.projection_rows, 1, VERIFY_ROWS_MAX)?;
    options.reuse.map_or(Ok(()), check_reuse)?;
    options.pruning.map_or(Ok(()), check_pruning)?;
    check_verify_lens(&options.verify_lens, options.verify_rows_max)
}

/// [`Calibration::Auto`] becomes what pays on this machine.
fn with_settled_calibration(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    if options.calibration == Calibration::Auto {
        // Lossy acceptance must not depend on what a clock has measured.
        let pays = !options.acceptance.is_lossy() && shared.costs().step_us(1, 1) >= TARGET_READ_STEP_US_MIN;
        options.calibration = if pays { Calibration::InContext } else { Calibration::Off };
        options.reuse = options.reuse.filter(|_| pays);
    }
    options
}

/// Static graphs compute whole calls, so chunks are as long as prefill graphs, and batches fill verify graphs.
fn fitted_to_graphs(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    let Some(piece) = shared.model.graphs().map(StaticGraphs::piece) else { return options };
    // What is out of range stays so, and is refused.
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

fn check_reuse(config: ReuseConfig) -> Result<(), SessionError> {
    check("reuse.lifetime", config.lifetime as usize, 1, u32::MAX as usize)?;
    check("reuse.tokens_max", config.tokens_max as usize, 1, ReuseConfig::TOKENS_MAX as usize)?;
    if (0.0..=1.0).contains(&config.threshold) {
        Ok(())
    } else {
        Err(SessionError::ReuseThreshold { given: config.threshold })
    }
}

fn check_verify_lens(lens: &[usize], verify_rows_max: usize) -> Result<(), SessionError> {
    let rises = lens.windows(2).all(|pair| pair[0] < pair[1]) && lens.first() != Some(&0);
    let reaches = lens.last().is_none_or(|&last| (verify_rows_max..=VERIFY_ROWS_MAX).contains(&last));
    if rises && reaches { Ok(()) } else { Err(SessionError::VerifyLens) }
}

fn check_pruning(config: PruningConfig) -> Result<(), SessionError> {
    check("pruning.shadow_tokens", config.shadow_tokens, 0, SHADOW_POOL_MAX)?;
    let saved_min = config.safeguards.map_or(0.0, |safeguards| safeguards.saved_min);
    for (option, given) in [("pruning.threshold", config.threshold), ("pruning.saved_min", saved_min)] {
        if !(0.0..=1.0).contains(&given) {
            return Err(SessionError::PruningShare { option, given });
        }
    }
    Ok(())
}

fn check(option: &'static str, given: usize, min: usize, max: usize) -> Result<(), SessionError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(SessionError::OutOfRange { option, given, min, max })
    }
}
