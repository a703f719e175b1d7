//! Refrain runs language models on a device's CPU and drafts the next tokens from text that the device
//! already holds.
//!
//! An [`Engine`] holds a model. A [`Session`] is one conversation. A [`Generation`] is one output, an
//! iterator of [`Event`]s:
//!
//! ```no_run
//! use refrain::{Engine, EngineOptions, Event, GenerateOptions, Role, SessionOptions};
//!
//! let engine = Engine::open("model.gguf", EngineOptions::default())?;
//! let mut session = engine.session(SessionOptions::default())?;
//! session.append_turn(Role::User, "Summarize the notes. …")?;
//! for event in session.generate(GenerateOptions::default())? {
//!     match event? {
//!         Event::Token(token) => print!("{}", token.text),
//!         Event::Done(summary) => println!("\n{:.2} tokens per step", summary.stats.acceptance_length()),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each step builds a tree of draft tokens, verifies it in one forward pass, and commits the tokens that
//! plain decoding would have chosen. The output equals plain decoding, bit for bit, greedy or sampled. Drafts
//! save time where the output repeats text that a [`DraftSource`] holds: on recorded requests, models in
//! memory decode 1.2–1.5 times as fast as without drafts, and models streamed from flash 1.8–4.9 times,
//! depending on the draft model. The README has the table, with the cases that lose.
//!
//! The root exports the types that an app needs, and [`error`] the details of their errors. Modules behind
//! the feature `internals` are outside semantic versioning.
// Without the feature, the items for this project's own crates are unreachable and unused.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub, dead_code, unused_imports))]

mod cancel;
mod draft;
mod draft_model;
mod energy;
mod engine;
mod face;
mod model;
mod profile;
mod pruning;
mod schedule;
mod task;
mod verify;

/// The arithmetic, a crate of its own.
pub(crate) use refrain_kernels as kernels;
/// Reads of models larger than memory, a crate of their own.
pub(crate) use refrain_stream as stream;
/// Text and tokens, a crate of its own.
pub(crate) use refrain_tokenizer as tokenizer;

pub use cancel::CancelToken;
pub use draft::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, CostProfile, Cursor, DraftSource, DraftTree,
    EchoConfig, EchoList, EchoStore, EvidenceClass, HiddenStates, HistoryStore, Learned, LearnedError,
    NodeIdx, Rejections, ReuseConfig, SourceName, StepOutcome, Successor, SuccessorLists, TargetListener,
    VERIFY_ROWS_MAX,
};
pub use energy::{EnergyMeter, EnergyStats, Powercap, PowercapError};
#[cfg(feature = "stream")]
pub use engine::EventStream;
pub use engine::{
    Acceptance, AcceptanceFloor, CONTEXT_LEN_DEFAULT_MAX, Calibration, DraftModelOptions, DraftPolicy,
    DraftRows, Drafting, DraftingOffStats, Engine, EngineError, EngineOptions, Event, FinishReason,
    GenerateError, GenerateOptions, Generation, LossyStats, MemoryPressure, Origin, OwnedGeneration,
    PidConfig, PolicyStats, PowerState, PruningStats, RefusedGeneration, Restoration, RowStats,
    STOP_BYTES_MAX, Score, Session, SessionError, SessionOptions, SharedPasses, SkipRules, SourceStats,
    StageTimes, StateKey, Stats, StreamingStats, Summary, ThermalState, TokenEvent, step_together,
};
pub use kernels::{IsaKind, KernelsNotice, KvType};
pub use model::checkpoint::{Checkpoint, LoadError};
pub use model::config::{Architecture, ModelConfig};
pub use model::graphs::Switching;
pub use model::kv_cache::{WINDOW_RESERVE, WindowCache};
pub use model::packed::ModelIdentity;
pub use model::streamed::StreamMemory;
pub use model::transformer::ForwardError;
pub use model::weights::{PackedAccess, Quantize};
pub use model::{GenerationDefaults, PREFILL_CHUNK_MAX};
pub use profile::{MachineProfile, ProfileError, ProfileMismatch, ProfileOptions, ThreadEnergy};
pub use pruning::{Predictor, PredictorError, PruningConfig, Safeguards};
pub use refrain_tokenizer::{
    ChatDate, ChatOptions, Message, Role, SpecialTokens, TextKind, Tokenizer, TokenizerError,
};
pub use refrain_trees::TokenId;
pub use stream::{Flow, Pinned, ReadAt, ReadMode, StreamOptions, WrapReader};
pub use task::{PromptPassage, Task, UnknownTask};
pub use verify::{DryOptions, LogitsProcessor, ProcessorError, Sampling, SamplingError};

/// What the layers of a model compute: the types inside [`ModelConfig`].
pub mod architecture {
    pub use crate::model::config::{
        Activation, Attention, DeltaNet, Dense, DraftHead, Eagle3, Experts, FeedForward, KvSource, LayerPlan,
        Mamba2, Mixer, Norms, PerLayerInputs, QkNorm, QueryGrowth, RopeConfig, RopeScaling, Routing,
        ShortConv, Streams, Widths,
    };
}

/// Details of errors: the types inside the variants of the errors at the root.
pub mod error {
    pub use crate::draft_model::{SelfDraftError, VocabularyMismatch};
    pub use crate::kernels::{AllocError, BlockType, PackError};
    pub use crate::model::checkpoint::{LayerWeight, WeightId};
    pub use crate::model::config::ConfigError;
    pub use crate::model::graphs::GraphsError;
    pub use crate::model::kv_cache::KvCacheError;
    pub use crate::model::layers::{LayersError, LayersProblem};
    pub use crate::model::packed::PackedFileError;
    pub use crate::model::streamed::StreamedError;
    pub use crate::model::weights::WeightsError;
    pub use crate::pruning::PredictorField;
    pub use refrain_containers::gguf::GgufError;
    pub use refrain_containers::hf::{HfError, SafetensorsError};
    pub use refrain_stream::StreamOptionError;
    pub use refrain_tokenizer::{ReservedVariable, TemplateError};
}

/// Internal modules, for this project's own crates: the search index, the benchmarks, training and the
/// program.
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
        profile,
        pruning,
        schedule,
        stream,
        task,
        tokenizer,
        verify
    );
}

/// Compiles and runs the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
