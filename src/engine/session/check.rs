//! Ranges of a session's options.

use crate::draft::{EchoConfig, ReuseConfig, VERIFY_ROWS_MAX};
use crate::engine::error::SessionProblem;
use crate::engine::options::{AcceptanceFloor, DraftPolicy, DraftRows, SessionOptions};
use crate::model::PREFILL_CHUNK_MAX;
use crate::pruning::{PruningConfig, SHADOW_POOL_MAX};

/// Checks every option of a session.
///
/// # Errors
/// The first option that is out of its range.
pub(in crate::engine) fn check_options(
    options: &SessionOptions,
    context_len: usize,
    context_len_max: usize,
) -> Result<(), SessionProblem> {
    check_policy(&options.policy)?;
    count("context_len", context_len, 2, context_len_max)?;
    count("verify_rows_max", options.verify_rows_max, 1, VERIFY_ROWS_MAX)?;
    count("prefill_chunk", options.prefill_chunk, 1, PREFILL_CHUNK_MAX)?;
    count("projection_rows", options.projection_rows, 1, VERIFY_ROWS_MAX)?;
    options.echo.map_or(Ok(()), check_echo)?;
    options.reuse.map_or(Ok(()), check_reuse)?;
    options.pruning.map_or(Ok(()), check_pruning)?;
    check_verify_lens(&options.verify_lens, options.verify_rows_max)
}

fn check_echo(config: EchoConfig) -> Result<(), SessionProblem> {
    count("echo.rejected_rows", config.rejected_rows as usize, 0, VERIFY_ROWS_MAX)?;
    count("echo.lists_max", config.lists_max as usize, 1, EchoConfig::LISTS_MAX as usize)
}

fn check_reuse(config: ReuseConfig) -> Result<(), SessionProblem> {
    count("reuse.lifetime", config.lifetime as usize, 1, u32::MAX as usize)?;
    count("reuse.tokens_max", config.tokens_max as usize, 1, ReuseConfig::TOKENS_MAX as usize)?;
    if (0.0..=1.0).contains(&config.threshold) {
        Ok(())
    } else {
        Err(SessionProblem::ReuseThreshold { given: config.threshold })
    }
}

fn check_verify_lens(lens: &[usize], verify_rows_max: usize) -> Result<(), SessionProblem> {
    let rises = lens.windows(2).all(|pair| pair[0] < pair[1]) && lens.first() != Some(&0);
    let reaches = lens.last().is_none_or(|&last| (verify_rows_max..=VERIFY_ROWS_MAX).contains(&last));
    if rises && reaches { Ok(()) } else { Err(SessionProblem::VerifyLens) }
}

fn check_pruning(config: PruningConfig) -> Result<(), SessionProblem> {
    count("pruning.shadow_tokens", config.shadow_tokens, 0, SHADOW_POOL_MAX)?;
    let saved_min = config.safeguards.map_or(0.0, |safeguards| safeguards.saved_min);
    for (option, given) in [("pruning.threshold", config.threshold), ("pruning.saved_min", saved_min)] {
        if !(0.0..=1.0).contains(&given) {
            return Err(SessionProblem::PruningShare { option, given });
        }
    }
    Ok(())
}

fn check_policy(policy: &DraftPolicy) -> Result<(), SessionProblem> {
    if let DraftRows::Fixed(k) = policy.rows {
        count("policy.rows", k, 1, DraftRows::MAX)?;
    }
    if let Some(floor) = policy.floor {
        count("policy.floor.window", floor.window, 1, AcceptanceFloor::STEPS_MAX)?;
        count("policy.floor.pause", floor.pause, 1, AcceptanceFloor::STEPS_MAX)?;
        number("policy.floor.rate_min", floor.rate_min, 0.0, 1.0)?;
    }
    policy.stake.map_or(Ok(()), |share| number("policy.stake", share, 0.0, 1.0))?;
    policy.skip.temperature_max.map_or(Ok(()), |max| number("policy.skip.temperature_max", max, 0.0, 100.0))
}

fn count(option: &'static str, given: usize, min: usize, max: usize) -> Result<(), SessionProblem> {
    match (min..=max).contains(&given) {
        true => Ok(()),
        false => Err(SessionProblem::OutOfRange { option, given, min, max }),
    }
}

/// Rejects NaN too.
fn number(option: &'static str, given: f32, min: f32, max: f32) -> Result<(), SessionProblem> {
    match (min..=max).contains(&given) {
        true => Ok(()),
        false => Err(SessionProblem::NumberOutOfRange { option, given, min, max }),
    }
}
