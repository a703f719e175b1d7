//! Opens the models of commands that write: the target, the draft model, the predictor that prunes.

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::{Engine, EngineOptions, SessionOptions};

use crate::args::SessionArgs;
use crate::failure::Failure;
use crate::learned::LearnedFile;
use crate::load::Drafts;
use crate::prices::Prices;
use crate::{load, profile, span};
use refrain_program::args::ModelArgs;

/// A loaded model with its checkpoint.
pub(crate) struct Setup {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) engine: Engine,
    /// The file of this run's learnt values.
    pub(crate) learned: LearnedFile,
    /// The context of its sessions.
    context_len: usize,
}

/// Loads the models that the options name, for so many sessions at a time. Without `keeps`, nothing is written to the disk.
pub(crate) fn open(
    model: &ModelArgs,
    session: &SessionArgs,
    n_sessions: usize,
    keeps: bool,
) -> Result<Setup, Failure> {
    let draft_model = session.drafts.model();
    let checkpoint = load::checkpoint(model.model.as_deref())?;
    // A memory budget of the target leaves room for the draft model, so the draft model is opened first.
    let draft = draft_model.map(|draft| Drafts::open(draft, model.model.as_deref())).transpose()?;
    let predictor = session.drafts.pruning.as_ref().map(load::predictor).transpose()?;
    let room = span::room_beside(&checkpoint, &model.compute);
    let context_len = span::context_len(checkpoint.config(), session, room, n_sessions);
    let of_session = SessionOptions { context_len: Some(context_len), ..session.session_options("") };
    let options = options_beside(model, &of_session, checkpoint.config(), draft.as_ref());
    let prices = Prices::of_user(keeps);
    let engine = load::engine_measured(&checkpoint, options, prices.measured())?;
    if let Some(draft) = draft {
        draft.load(&engine, load::draft_model_options(&model.compute))?;
    }
    prices.keep(&engine);
    if let Some(predictor) = predictor {
        engine.set_predictor(predictor)?;
    }
    session.drafting.report_device(&engine);
    let learned = LearnedFile::open(model.model.as_deref(), &engine);
    Ok(Setup { checkpoint, engine, learned, context_len })
}

/// The options for a model of this configuration: a memory budget leaves room for the session and for a draft
/// model.
pub(crate) fn options_beside(
    model: &ModelArgs,
    session: &SessionOptions,
    config: &ModelConfig,
    draft: Option<&Drafts>,
) -> EngineOptions {
    let mut options = profile::engine_options(model);
    if let Some(streaming) = &mut options.streaming {
        let draft_bytes = |draft: &Drafts| match draft {
            Drafts::Model(draft) => load::draft_model_options(&model.compute).memory_bytes(draft, session),
            Drafts::OwnLayers(predictor) => session.self_draft_bytes(config, predictor),
        };
        draft.iter().for_each(|draft| draft.pin(streaming));
        streaming.reserved_bytes = session.memory_bytes(config).saturating_add(draft.map_or(0, draft_bytes));
    }
    options
}

impl Setup {
    /// The options of a session.
    pub(crate) fn session_options(&self, args: &SessionArgs, namespace: &str) -> SessionOptions {
        SessionOptions { context_len: Some(self.context_len), ..args.session_options(namespace) }
    }

    /// The context of its sessions.
    pub(crate) fn context_len(&self) -> usize {
        self.context_len
    }

    /// Whether the model has a chat template.
    ///
    /// # Errors
    /// The chat template cannot be parsed.
    pub(crate) fn has_chat_template(&self) -> Result<bool, Failure> {
        let tokenizer = self.engine.tokenizer();
        match tokenizer.chat_template_error() {
            Some(error) => {
                let problem =
                    format!("the chat template of `{}` cannot be used: {error}", self.checkpoint.name());
                Err(Failure::input(problem, "`refrain run --raw` does not use it"))
            }
            None => Ok(tokenizer.chat_template().is_some()),
        }
    }
}
