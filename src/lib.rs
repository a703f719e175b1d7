//! Refrain: an on-device language-model engine that drafts from what the device already holds.
// Without the feature, what only this project's own crates use is neither reachable nor used.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub, dead_code, unused_imports))]

mod draft;
mod draft_model;
mod engine;
mod kernels;
mod mapping;
mod model;
mod pruning;
mod replace;
mod sam;
mod schedule;
mod stream;
mod task;
mod token;
mod tokenizer;
mod verify;

pub use draft::{
    Anchor, Candidate, Candidates, Computed, Cursor, DraftSource, DraftTree, HistoryStore, NodeIdx,
    Rejections, ReuseConfig, SourceKind, StepOutcome, Successor, SuccessorLists,
};
pub use draft_model::DraftModel;
pub use engine::{
    Acceptance, AcceptanceFloor, Calibration, CancelHandle, DraftModelOptions, DraftPolicy, DraftRows,
    Drafting, DraftingOffStats, Engine, EngineError, EngineOptions, Event, FinishReason, GenerateError,
    GenerateOptions, Generation, LogitsReceiver, LossyStats, MachineProfile, MemoryPressure, Origin,
    PidConfig, PolicyStats, ProfileError, ProfileMismatch, ProfileOptions, PruningStats, RowStats, Score,
    Session, SessionError, SessionOptions, SkipRules, SourceStats, StageTimes, Stats, StreamingStats,
    Summary, ThermalState, TokenEvent,
};
pub use kernels::{IsaKind, KvType};
pub use model::checkpoint::{Checkpoint, LoadError};
pub use model::config::ModelConfig;
pub use model::packed::ModelIdentity;
pub use model::transformer::ForwardError;
pub use model::weights::{PackedAccess, Quantize};
pub use pruning::{Predictor, PredictorError, PruningConfig};
pub use stream::{Pinned, StreamOptions};
pub use task::{PromptPassage, Task, UnknownTask};
pub use token::TokenId;
pub use tokenizer::{
    ChatDate, ChatOptions, Message, ReasoningMarkers, ReasoningSplitter, ReservedVariable, Role,
    SpecialTokens, TemplateError, TextKind, Tokenizer, TokenizerError,
};
pub use verify::{LogitsProcessor, Sampling, SamplingError};

/// The parts behind the face, for this project's own crates: the search index, the benchmarks, training and the program.
///
/// Anything here may change in any release.
#[cfg(feature = "internals")]
pub mod internals {
    #![allow(missing_docs, reason = "each module has its documentation where it is written")]
    macro_rules! expose {
        ($($name:ident),*) => { $(pub mod $name { pub use crate::$name::*; })* };
    }
    expose!(
        draft,
        draft_model,
        engine,
        kernels,
        model,
        pruning,
        sam,
        schedule,
        stream,
        task,
        token,
        tokenizer,
        verify
    );
}
