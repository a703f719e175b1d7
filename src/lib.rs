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
//! save time where the output repeats text that a [`DraftSource`](drafting::DraftSource) holds: on recorded requests, models in
//! memory decode 1.2–1.5 times as fast as without drafts, and models streamed from flash 1.8–4.9 times,
//! depending on the draft model. The README has the table, with the cases that lose.
//!
//! The root exports the types that every app needs. Modules have the rest by task: [`drafting`], [`device`], [`streaming`],
//! [`embedding`], [`checkpoint`] and [`state`]. Errors have an [`ErrorKind`] and name the file, field, offset, value and limit that they concern.
//! Modules behind the feature `internals` are outside semantic versioning.
// Without the feature, the items for this project's own crates are unreachable and unused.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub, dead_code, unused_imports))]

mod cancel;
mod draft;
mod draft_model;
mod energy;
mod engine;
mod error;
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
pub use draft::HistoryStore;
#[cfg(feature = "stream")]
pub use engine::EventStream;
pub use engine::{
    CONTEXT_LEN_DEFAULT_MAX, Drafting, Engine, EngineOptions, Event, FinishReason, GenerateOptions,
    Generation, Origin, OwnedGeneration, RefusedGeneration, STOP_BYTES_MAX, Score, Session, SessionOptions,
    Stats, Summary, TokenEvent, step_together,
};
pub use error::{GenerateError, LoadError, SessionError};
pub use kernels::KvType;
pub use model::PREFILL_CHUNK_MAX;
pub use model::weights::Quantize;
pub use refrain_files::ErrorKind;
pub use refrain_tokenizer::{
    ChatDate, ChatOptions, Message, Role, SpecialTokens, TextKind, Tokenizer, TokenizerError,
};
pub use refrain_trees::TokenId;
pub use task::{PromptPassage, Task};
pub use verify::{DryOptions, LogitsProcessor, ProcessorError, Sampling};

/// Drafts: sources of an app's own, the rules of a session, and what is learnt and counted.
pub mod drafting {
    pub use crate::draft::{
        Anchor, Candidate, Candidates, Computed, ComputingSource, CostProfile, Cursor, DraftSource,
        DraftTree, EchoConfig, EvidenceClass, HiddenStates, Learned, NodeIdx, Rejections, ReuseConfig,
        SourceName, StepOutcome, Successor, SuccessorLists, TargetListener, VERIFY_ROWS_MAX,
    };
    pub use crate::engine::{
        AcceptanceFloor, Calibration, DraftModelOptions, DraftPolicy, DraftRows, DraftingOffStats,
        LearnedState, PolicyStats, PruningStats, RowStats, SharedPasses, SkipRules, SourceStats, StageTimes,
    };
    pub use crate::pruning::{Predictor, PruningConfig, Safeguards};
}

/// The device: heat, power and memory that the app reports, measured costs and energy, instruction sets; whether a model fits, and its speed.
pub mod device {
    pub use crate::energy::{EnergyMeter, EnergyStats};
    pub use crate::engine::{
        Device, MemoryEstimate, MemoryPressure, PowerState, SpeedEstimate, ThermalState,
    };
    pub use crate::kernels::{IsaKind, KernelsNotice};
    pub use crate::profile::{MachineProfile, ProfileOptions, ThreadEnergy};
}

/// Models larger than memory, and models computed in static graphs.
pub mod streaming {
    pub use crate::engine::StreamingStats;
    pub use crate::model::graphs::Switching;
    pub use crate::model::streamed::StreamMemory;
    pub use refrain_stream::{Flow, Pinned, ReadAt, ReadMode, StreamOptions, WrapReader};
}

/// Vectors of texts.
pub mod embedding {
    pub use crate::engine::{Encoder, EncoderOptions};
}

/// Model files, before an engine loads them.
pub mod checkpoint {
    pub use crate::model::GenerationDefaults;
    pub use crate::model::checkpoint::Checkpoint;
    pub use crate::model::config::ModelConfig;
    pub use crate::model::weights::PackedAccess;
}

/// Keys, values and recurrent states of a session, outside of it.
pub mod state {
    pub use crate::engine::{SessionState, SessionStateMut, StateKey};
    pub use crate::model::kv_cache::{WINDOW_RESERVE, WindowCache};
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
        energy,
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

    /// The errors inside the public ones, which [`detail`](crate::LoadError::detail) gives.
    pub mod error {
        pub use crate::draft::LearnedError;
        pub use crate::draft_model::{SelfDraftError, VocabularyMismatch};
        pub use crate::energy::PowercapError;
        pub use crate::engine::{EngineProblem, GenerateProblem, SessionProblem};
        pub use crate::kernels::{AllocError, BlockType, PackError};
        pub use crate::model::checkpoint::{CheckpointError, LayerWeight, WeightId};
        pub use crate::model::config::ConfigError;
        pub use crate::model::graphs::GraphsError;
        pub use crate::model::kv_cache::KvCacheError;
        pub use crate::model::layers::{LayersError, LayersProblem};
        pub use crate::model::packed::PackedFileError;
        pub use crate::model::streamed::StreamedError;
        pub use crate::model::transformer::ForwardError;
        pub use crate::model::weights::WeightsError;
        pub use crate::profile::ProfileError;
        pub use crate::pruning::{PredictorError, PredictorField};
        pub use crate::verify::SamplingError;
        pub use refrain_containers::gguf::GgufError;
        pub use refrain_containers::hf::{HfError, SafetensorsError};
        pub use refrain_files::Fault;
        pub use refrain_tokenizer::{TemplateError, TokenizerProblem};
    }
}

/// Compiles and runs the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
