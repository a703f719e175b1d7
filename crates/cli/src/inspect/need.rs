//! Whether a model fits with the given options, and how fast it answers, before it is loaded.

use std::fmt::{self, Display};

use indicatif::HumanBytes;
use refrain::checkpoint::Checkpoint;
use refrain::device::{MemoryEstimate, SpeedEstimate};
use refrain::internals::stream::available_bytes;
use refrain::{EngineOptions, LoadError, SessionOptions};
use refrain_program::args::ModelArgs;
use serde::Serialize;

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::load::{self, Drafts};
use crate::setup::options_beside;

/// Prompts whose time to the first token is shown, in tokens.
const PROMPTS: [usize; 3] = [100, 1000, 4000];

/// What a run with the given options needs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Need {
    /// It could be loaded.
    Estimated(Estimated),
    /// The reason why these options are refused.
    Refused(String),
}

#[derive(Debug, Serialize)]
pub(super) struct Estimated {
    memory: MemoryEstimate,
    total_bytes: u64,
    /// What the system has to give now; absent if it does not say it.
    available_bytes: Option<u64>,
    fits: Option<bool>,
    context_len: usize,
    kv_type: &'static str,
    /// By the stored profile; empty if there is none for these options.
    answers: Vec<AnswerSpeed>,
}

/// The speed of an answer behind a prompt, without drafts.
#[derive(Debug, Serialize)]
struct AnswerSpeed {
    n_prompt: usize,
    first_token_s: f64,
    tokens_per_s: f32,
}

impl Need {
    /// The need of the model in `checkpoint`, at the located path of the arguments.
    pub(super) fn new(checkpoint: &Checkpoint, args: &InspectArgs) -> Result<Self, Failure> {
        let InspectArgs { path, compute, session, .. } = args;
        let draft = session.drafts.model().map(|draft| Drafts::open(draft, path.as_deref())).transpose()?;
        let config = checkpoint.config();
        let mut of_session = session.session_options("");
        let context_len = of_session.context_len_for(config);
        of_session.context_len = Some(context_len);
        let model = ModelArgs { model: path.clone(), compute: compute.clone() };
        let options = options_beside(&model, &of_session, config, draft.as_ref());
        let mut memory = match MemoryEstimate::new(checkpoint, &options, &of_session, 1) {
            Ok(memory) => memory,
            Err(error) => return Ok(Self::Refused(error.to_string())),
        };
        match &draft {
            Some(Drafts::Model(draft)) => {
                let draft_options = load::draft_model_options(compute);
                memory = memory.with_draft_model(draft, &draft_options, &of_session, 1);
            }
            Some(Drafts::OwnLayers(predictor)) => {
                memory.draft_model_bytes = of_session.self_draft_bytes(config, predictor);
            }
            None => {}
        }
        Ok(Self::Estimated(Estimated {
            memory,
            total_bytes: memory.total_bytes(),
            available_bytes: available_bytes(),
            fits: memory.fits(),
            context_len,
            kv_type: of_session.kv_type.name(),
            answers: answers(checkpoint, &options, &of_session, context_len),
        }))
    }
}

/// The speeds by the profile beside the model, if it is one of these options.
fn answers(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    session: &SessionOptions,
    context_len: usize,
) -> Vec<AnswerSpeed> {
    let Some(profile) = &options.profile else { return Vec::new() };
    let speed = |n_prompt: usize| -> Result<AnswerSpeed, LoadError> {
        let speed = SpeedEstimate::new(profile, checkpoint, options, session, n_prompt)?;
        let first_token_s = speed.time_to_first_token.as_secs_f64();
        Ok(AnswerSpeed { n_prompt, first_token_s, tokens_per_s: speed.tokens_per_s })
    };
    // The reason of a mismatch stands with the speed.
    PROMPTS.into_iter().filter(|&n_prompt| n_prompt < context_len).map_while(|n| speed(n).ok()).collect()
}

impl Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = match self {
            Self::Estimated(needed) => needed,
            Self::Refused(reason) => return writeln!(f, "needs         these options are refused: {reason}"),
        };
        let memory = &needed.memory;
        let parts = [
            ("weights", memory.weights_bytes),
            ("buffers for streamed weights", memory.stream_bytes),
            ("tokenizer", memory.tokenizer_bytes),
            ("KV cache", memory.kv_bytes),
            ("a pass", memory.batch_bytes),
            ("drafts", memory.drafts_bytes),
            ("draft model", memory.draft_model_bytes),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|&(_, bytes)| bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", HumanBytes(bytes)))
            .collect();
        let (total, n_tokens, kv) = (HumanBytes(needed.total_bytes), needed.context_len, needed.kv_type);
        writeln!(f, "needs         {total}: {} (context {n_tokens}, --kv {kv})", parts.join(", "))?;
        if let Some((fits, available)) = needed.fits.zip(needed.available_bytes) {
            let answer = if fits { "yes" } else { "no" };
            writeln!(f, "fits          {answer}: {} are free", HumanBytes(available))?;
        }
        for (i, answer) in needed.answers.iter().enumerate() {
            let title = if i == 0 { "first token" } else { "" };
            let AnswerSpeed { n_prompt, first_token_s, tokens_per_s } = answer;
            writeln!(
                f,
                "{title:<13} {first_token_s:.2} s behind {n_prompt} tokens, then {tokens_per_s:.1} tokens/s"
            )?;
        }
        Ok(())
    }
}
