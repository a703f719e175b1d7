//! The engine: one loaded model, shared by threads, and the conversations it holds.
//!
//! [`Engine`] → [`Session`] (one conversation, with its KV cache and draft sources) → [`Generation`] (one
//! output, as an iterator of [`Event`]s). [`step`] is one decoding step: decide → draft → verify → walk →
//! commit → observe.
//!
//! Files import downwards only: `options`, `error`, `event`, `output` and `stats` import no other file of the
//! engine; `shared`, `policy` and `reader` build on them, then `session`, `step`, `generation`, `device`, `learned`, and
//! `handle` (the [`Engine`]). `encoder` (the [`Encoder`]) imports `error` and `cores`.

mod budget;
mod cores;
mod device;
mod encoder;
mod error;
mod estimate;
mod event;
mod generation;
mod handle;
mod layer_sample;
mod learned;
mod measure;
mod measured;
mod options;
mod output;
mod policy;
mod projection;
mod read_rate;
mod reader;
mod run;
mod session;
mod shared;
mod stats;
mod step;

pub use device::Device;
pub use encoder::{Encoder, EncoderOptions};
pub use error::{EngineProblem, GenerateProblem, SessionProblem};
pub use estimate::{MemoryEstimate, SpeedEstimate, TOKENIZER_TOKEN_BYTES};
pub use event::{Event, FinishReason, Origin, Summary, TokenEvent};
#[cfg(feature = "stream")]
pub use generation::EventStream;
pub use generation::{Exchange, Generation, OwnedGeneration, RefusedGeneration, step_together};
pub use handle::Engine;
pub use learned::LearnedState;
pub use measured::{CostsOrigin, MeasuredCosts};
pub use options::{
    AcceptanceFloor, CONTEXT_LEN_DEFAULT_MAX, Calibration, DraftModelOptions, DraftPolicy, DraftRows,
    Drafting, EngineOptions, GenerateOptions, STOP_BYTES_MAX, SessionOptions, SkipRules,
    TARGET_READ_STEP_US_MIN,
};
#[cfg(feature = "internals")]
pub use policy::{Account, StepTime};
pub use policy::{MemoryPressure, PowerState, ThermalState};
pub use read_rate::ReadRate;
pub use session::{LogitsReceiver, Score, Session, SessionState, SessionStateMut, StateKey, Traced};
pub use stats::{
    DraftingOffStats, PolicyStats, PruningStats, RowStats, SourceStats, StageTimes, Stats, StreamingStats,
};
pub use step::SharedPasses;
