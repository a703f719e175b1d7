//! Generation start: checks the options and sets up drafting, sampling and statistics.

use crate::draft::{CostProfile, DraftSource, Learned, RejectionCounter};
use crate::engine::budget::STREAMED_WAVE_BYTES;
use crate::engine::error::GenerateProblem;
use crate::engine::options::{DraftRows, Drafting, GenerateOptions, STOP_BYTES_MAX, SessionOptions};
use crate::engine::output::{Output, OutputLimits};
use crate::engine::policy::{Policy, Request};
use crate::engine::projection::Projection;
use crate::engine::run::{AnswerText, Run, WalkScratch};
use crate::engine::session::Session;
use crate::engine::stats::{PruningStats, SourceStats, Stats};
use crate::error::GenerateError;
use crate::model::Model;
use crate::verify::{Breakers, Sampler};
use refrain_tokenizer::TokenizerParts as _;

/// Checks the options, encodes the turns, and prepares the session's drafting.
pub(super) fn start(session: &mut Session, options: GenerateOptions) -> Result<Run, GenerateError> {
    let GenerateOptions {
        max_tokens,
        mut sampling,
        stop,
        stop_tokens,
        ignore_eos,
        processors,
        sources,
        cancel,
    } = options;
    let vocab_size = session.shared.model.config().vocab_size;
    sampling.check(vocab_size)?;
    if let Some(stop) = stop.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        return Err(GenerateProblem::StopLength { given: stop.len(), max: STOP_BYTES_MAX }.into());
    }
    session.encode_turns()?;
    let prompt_len = session.conversation.tokens.len();
    if prompt_len == 0 {
        return Err(GenerateProblem::EmptyPrompt.into());
    }
    let sources = if session.options.drafting == Drafting::Off { Vec::new() } else { sources };
    session.drafting.sources.start_generation(sources, &session.conversation.tokens)?;
    let end_tokens = if ignore_eos { Vec::new() } else { session.shared.tokenizer.eos().to_vec() };
    let context_tokens = session.conversation.context_len - prompt_len;
    let output = Output::new(OutputLimits { stop, stop_tokens, end_tokens, max_tokens, context_tokens });
    let request = Request {
        drafts: session.options.drafting != Drafting::Off,
        n_tokens_max: output.remaining(),
        temperature: sampling.temperature,
    };
    let seed = sampling.resolve_seed();
    let learned = begin_drafting(session, &request, prompt_len);
    let Session { shared, options, .. } = session;
    let breakers = Breakers::of(&shared.tokenizer, &sampling.dry);
    let reasoning = shared.tokenizer.reasoning_splitter(&session.conversation.tokens);
    let projection_costs = shared.projection_costs().clone();
    let wave_rows_max = wave_rows_max(&shared.model, options);
    // As the prefill does, but before the statistics count what is left.
    session.target.kv.truncate(prompt_len - 1);
    Ok(Run {
        cancel,
        sampler: Sampler::new(shared.kernels, sampling, breakers, prompt_len),
        seed,
        processors,
        output,
        reasoning,
        answer: AnswerText::default(),
        learned,
        projection: Projection::new(wave_rows_max, projection_costs, vocab_size),
        stats: stats(session, prompt_len),
        rejections: RejectionCounter::default(),
        events: std::collections::VecDeque::new(),
        n_taken: 0,
        prompt_len,
        reads_prompt: false,
        flows: [session.shared.flow(); 2],
        joules: None,
        scratch: WalkScratch::default(),
    })
}

/// Starts drafting from the learned state of earlier generations, with this generation's policy. Returns that
/// state.
fn begin_drafting(session: &mut Session, request: &Request, prompt_len: usize) -> Learned {
    let learned = session.shared.learned().start();
    session.drafting.builder.set_table(learned.reliability().clone());
    session.drafting.builder.set_times(learned.times().clone());
    let costs = match session.profile() {
        Some(profile) => {
            let costs = profile.costs(prompt_len, session.options.projection_rows);
            costs.corrected(learned.correction())
        }
        None => session.costs_moved(learned.costs().clone(), 0, prompt_len),
    };
    let names = session.drafting.sources.all().iter().map(|source| source.name());
    let costs = costs.with_draft_us_per_node(learned.times().us_per_node(names));
    let costs = match session.options.policy.rows {
        DraftRows::Auto => costs,
        // Rows are free, so every allowed row pays. A draft model's time is still weighed against the time of
        // a step.
        DraftRows::Fixed(_) => CostProfile::free_rows(costs.verify_us(1, 1)).with_hidden_of(&costs),
    };
    let costs = costs.with_batch_lens(&session.options.verify_lens);
    let policy = Policy::new(&session.options.policy, request);
    // Where rows are free by construction, no draft has a price, and claims that are not weighed are drafted at any price.
    let is_weighed =
        request.drafts && session.options.drafting != Drafting::AsClaimed && !costs.has_free_rows();
    let stake = session.options.policy.stake.filter(|_| is_weighed);
    let carried_us = if stake.is_some() { session.shared.carried().take() } else { 0.0 };
    let before_us = (carried_us, costs.prompt_us(prompt_len));
    session.drafting.account.begin(stake, before_us, f64::from(costs.verify_us(1, 1)));
    session.drafting.begin(policy, (costs, prompt_len));
    learned
}

/// Statistics of a generation that has not started.
fn stats(session: &mut Session, prompt_len: usize) -> Stats {
    let stats = |source: &mut Box<dyn DraftSource>| SourceStats {
        name: source.name().into(),
        evidence: source.evidence(),
        drafted: 0,
        accepted: 0,
        // Holds the counts of earlier generations until the end.
        computed: source.computing().map(|source| source.computed()),
    };
    let sources = session.drafting.sources.guarded(|sources| sources.iter_mut().map(stats).collect());
    let cached_tokens = session.target.kv.len();
    Stats {
        prompt_tokens: prompt_len,
        cached_tokens,
        prefilled_tokens: prompt_len - 1 - cached_tokens,
        sources,
        pruning: session.target.prunes().then(PruningStats::default),
        ..Stats::default()
    }
}

/// Maximum rows of a wave. If each wave reads the output matrix from flash, one wave takes all rows of a
/// step.
fn wave_rows_max(model: &Model, options: &SessionOptions) -> usize {
    match model.is_head_streamed() {
        true => options.projection_rows.max(STREAMED_WAVE_BYTES / (4 * model.config().vocab_size)),
        false => options.projection_rows,
    }
}
