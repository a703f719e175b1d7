//! The context of a session that names none: the model's, as far as memory allows.

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::internals::model::config::RopeScaling;
use refrain::internals::stream::available_bytes;
use refrain::streaming::Pinned;
use refrain::{CONTEXT_LEN_DEFAULT_MAX, SessionOptions};
use refrain_program::args::ComputeArgs;

use crate::args::SessionArgs;
use crate::terminal::note_once;

/// Memory for the sessions of a model that is not loaded yet: half of what its weights leave free, or a quarter of the budget of a
/// streamed model. 0 if the system does not say what is free.
pub(crate) fn room_beside(checkpoint: &Checkpoint, compute: &ComputeArgs) -> u64 {
    let options = compute.engine_options();
    match options.streaming.map(|streaming| streaming.pinned) {
        Some(Pinned::Memory(budget)) => budget / 4,
        Some(_) => room(),
        None => {
            let weights = options.quantize.weights_bytes(checkpoint);
            available_bytes().map_or(0, |free| free.saturating_sub(weights) / 2)
        }
    }
}

/// Memory for the sessions of a model that is loaded: half of what is free, or 0 if the system does not say it.
pub(crate) fn room() -> u64 {
    available_bytes().unwrap_or(0) / 2
}

/// The context of each of `n_sessions` sessions in `room` bytes. A shorter one than the model's is noted, once.
pub(crate) fn context_len(config: &ModelConfig, args: &SessionArgs, room: u64, n_sessions: usize) -> usize {
    if let Some(given) = args.ctx {
        return given;
    }
    let bytes = |n: usize| {
        let session = SessionOptions { context_len: Some(n), ..args.session_options("") };
        session.memory_bytes(config).saturating_mul(n_sessions as u64)
    };
    let by_context =
        |scaling: &RopeScaling| matches!(scaling, RopeScaling::LongRope { .. } | RopeScaling::Dynamic { .. });
    let (chosen, reason) = match config.ropes.iter().any(|rope| by_context(&rope.scaling)) {
        // The free memory of a moment must not change an output.
        true => (least(config.context_len), "because its answers depend on it"),
        false => (fitting(config.context_len, room, bytes), "as far as the free memory allows"),
    };
    if chosen < config.context_len {
        let model = config.context_len;
        note_once(&format!(
            "the context has {chosen} tokens of the model's {model}, {reason} (--ctx N sets it)"
        ));
    }
    chosen
}

/// A context that every session has, if the model does.
fn least(model: usize) -> usize {
    model.min(CONTEXT_LEN_DEFAULT_MAX)
}

/// The model's context, halved until it fits.
fn fitting(model: usize, room: u64, bytes: impl Fn(usize) -> u64) -> usize {
    let mut n = model;
    while n > least(model) && bytes(n) > room {
        n = (n / 2).max(least(model));
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_the_models_or_the_longest_half_of_it_that_fits() {
        let bytes = |n: usize| n as u64 * 1000;
        assert_eq!(fitting(131_072, 200_000_000, bytes), 131_072);
        assert_eq!(fitting(131_072, 131_071_999, bytes), 65_536);
        assert_eq!(fitting(131_072, 40_000_000, bytes), 32_768);
        assert_eq!(fitting(131_072, 0, bytes), CONTEXT_LEN_DEFAULT_MAX);
        assert_eq!(fitting(5000, 0, bytes), CONTEXT_LEN_DEFAULT_MAX);
        assert_eq!(fitting(512, 0, bytes), 512, "short contexts are not halved");
    }
}
