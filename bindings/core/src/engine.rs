//! The engine: a loaded model with its threads, and what the device reports.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use refrain::checkpoint::Checkpoint;
use refrain::device;
use refrain::drafting::DraftModelOptions;
use refrain_grammar::{Grammar, JsonOptions, Vocabulary};
use serde::{Deserialize, Serialize};

use crate::error::FfiError;
use crate::events::{Event, EventListener, Stage};
use crate::guard::{Guarded, Made, call, listening};
use crate::history::History;
use crate::options::{
    DeviceState, EngineOptions, HistoryOptions, MemoryPressure, SessionOptions, ThermalState, Units,
};
use crate::registry::Registry;
use crate::session::{Reserved, Session};

/// A loaded model. Its sessions and assistants share it, on any threads; their passes take turns.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Engine(Guarded<EngineInner>);

pub(crate) struct EngineInner {
    engine: refrain::Engine,
    registry: Registry,
    units: Units,
    memory_limit: Option<u64>,
    memory_used: Arc<AtomicU64>,
    /// For JSON Schemas; built at the first use.
    vocabulary: OnceLock<Vocabulary>,
    /// The model's part of the limit.
    _memory: Reserved,
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EngineInfo {
    /// The name of the architecture, such as `llama`.
    pub architecture: String,
    /// Layers.
    pub layers: u32,
    /// The longest context that the model was trained for, in tokens.
    pub context_len: u64,
    /// Tokens of the vocabulary.
    pub vocab_size: u64,
    /// Threads of a pass, the caller's included.
    pub threads: u32,
    /// Bytes of the weights, including those of a mapped file.
    pub memory_bytes: u64,
    /// Whether the model has a chat template: without one, turns are written as plain text by assistants, and refused by sessions.
    pub has_chat_template: bool,
    /// The instruction set of the computations, such as `avx2` or `neon`.
    pub instruction_set: String,
}

/// The memory of a model with one session, before it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryEstimate {
    /// The weights and the tokenizer, and the draft model with its state.
    pub model_bytes: u64,
    /// The session: KV cache, activations, draft sources.
    pub session_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
    /// Whether the system has so much now; `None`: it does not say.
    pub fits: Option<bool>,
}

/// What was done before the process is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SuspendReport {
    /// Jobs that were cancelled.
    pub cancelled: u32,
    /// Jobs that had not ended in time. They end when the process goes on.
    pub running: u32,
}

impl EngineInner {
    pub(crate) fn engine(&self) -> &refrain::Engine {
        &self.engine
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn units(&self) -> Units {
        self.units
    }

    /// Takes memory for a session of these options.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub(crate) fn reserve(&self, options: &SessionOptions) -> Result<Reserved, FfiError> {
        let bytes = options.bytes(self.engine.config());
        Reserved::take(&self.memory_used, self.memory_limit, bytes)
    }

    /// The grammar of a JSON Schema.
    pub(crate) fn grammar(&self, schema: &str) -> Result<Grammar, FfiError> {
        let vocabulary = match self.vocabulary.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let built = Vocabulary::of_engine(&self.engine)?;
                self.vocabulary.get_or_init(|| built)
            }
        };
        Grammar::json_schema(vocabulary, schema, JsonOptions::default())
            .map_err(|error| FfiError::from(error).with_field("json_schema"))
    }
}

/// Opens the model and the draft model, and counts their bytes.
fn checkpoints(options: &EngineOptions) -> Result<(Checkpoint, Option<Checkpoint>), FfiError> {
    let target = Checkpoint::open(&options.path)?;
    let draft = match options.draft_model.as_deref() {
        None => None,
        Some("mtp") => Some(Checkpoint::open_mtp(&options.path)?),
        Some(path) => Some(Checkpoint::open(path)?),
    };
    Ok((target, draft))
}

fn estimate(
    (target, draft): &(Checkpoint, Option<Checkpoint>),
    options: &EngineOptions,
    session: &SessionOptions,
    n_sessions: usize,
) -> Result<device::MemoryEstimate, FfiError> {
    let session = session.for_library();
    let memory = device::MemoryEstimate::new(target, &options.for_library(), &session, n_sessions)?;
    Ok(match draft {
        Some(draft) => memory.with_draft_model(draft, &DraftModelOptions::default(), &session, n_sessions),
        None => memory,
    })
}

/// The memory of a model with one session, from the header of its file.
///
/// # Errors
/// [`NotFound`](crate::ErrorKind::NotFound), [`Damaged`](crate::ErrorKind::Damaged), [`Unsupported`](crate::ErrorKind::Unsupported): the model cannot be
/// loaded. [`InvalidArgument`](crate::ErrorKind::InvalidArgument): an option is outside its range.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn estimate_memory(options: EngineOptions, session: SessionOptions) -> Result<MemoryEstimate, FfiError> {
    call(|| {
        let opened = checkpoints(&options)?;
        // As the memory limit counts them.
        let model_bytes = estimate(&opened, &options, &session, 0)?.total_bytes();
        let session_bytes = session.bytes(opened.0.config());
        let total_bytes = model_bytes.saturating_add(session_bytes);
        let fits = estimate(&opened, &options, &session, 1)?.fits();
        Ok(MemoryEstimate { model_bytes, session_bytes, total_bytes, fits })
    })
}

/// The version of the library, such as `0.2.0`.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn library_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// The heat that Android's `PowerManager.getCurrentThermalStatus` names by a number.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn thermal_state_from_android(status: i32) -> ThermalState {
    device::ThermalState::from_android(status).into()
}

/// The memory pressure that Android's `onTrimMemory` names by a number.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn memory_pressure_from_android(level: i32) -> MemoryPressure {
    device::MemoryPressure::from_android(level).into()
}

/// The memory pressure that a dispatch source of iOS names by its flags.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn memory_pressure_from_ios(flags: u64) -> MemoryPressure {
    device::MemoryPressure::from_ios(flags).into()
}

impl Engine {
    /// Closes the engine and everything that was made from it, and cancels their jobs. The memory of the model is freed when running
    /// passes have ended, each before its next layer. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](crate::ErrorKind::Forked), [`Reentrant`](crate::ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

impl Made for EngineInner {
    fn closing(&self) {
        self.registry.close();
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Engine {
    /// Loads a model. It takes seconds: call it on a thread that may wait. The listener receives [`Event::Progress`] of
    /// [`Stage::Load`] on this thread; a load cannot be stopped, so what it returns has no effect.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Damaged`](crate::ErrorKind::Damaged), [`Unsupported`](crate::ErrorKind::Unsupported),
    /// [`OverLimit`](crate::ErrorKind::OverLimit), [`Io`](crate::ErrorKind::Io): the file, with the field and the offset.
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory): the model exceeds the memory limit or the system's memory.
    /// [`Mismatch`](crate::ErrorKind::Mismatch): the draft model is of another vocabulary.
    #[cfg_attr(feature = "uniffi", uniffi::constructor)]
    pub fn open(
        options: EngineOptions,
        listener: Option<Arc<dyn EventListener>>,
    ) -> Result<Arc<Self>, FfiError> {
        call(|| {
            let opened = checkpoints(&options)?;
            let needed = estimate(&opened, &options, &SessionOptions::default(), 0)?.total_bytes();
            let memory_used = Arc::new(AtomicU64::new(0));
            let memory = Reserved::take(&memory_used, options.memory_limit_bytes, needed)?;
            let mut newest = None;
            let progress = |done: u64, total: u64| {
                // A display shows no finer steps.
                let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
                if let Some(listener) = &listener
                    && newest != Some(percent)
                {
                    newest = Some(percent);
                    listening(|| {
                        listener.on_events(vec![Event::Progress { stage: Stage::Load, done, total }])
                    });
                }
            };
            let (target, draft) = opened;
            let engine = refrain::Engine::load(&target, options.for_library(), progress)?;
            if let Some(draft) = draft {
                engine.set_draft_model(&draft, DraftModelOptions::default(), |_, _| {})?;
            }
            Ok(Arc::new(Self(Guarded::new(EngineInner {
                engine,
                registry: Registry::default(),
                units: options.units.unwrap_or_default(),
                memory_limit: options.memory_limit_bytes,
                memory_used,
                vocabulary: OnceLock::new(),
                _memory: memory,
            }))))
        })
    }

    /// What was loaded.
    ///
    /// # Errors
    /// Those of objects.
    pub fn info(&self) -> Result<EngineInfo, FfiError> {
        self.0.call(|inner| {
            let (engine, config) = (&inner.engine, inner.engine.config());
            Ok(EngineInfo {
                architecture: config.architecture().to_owned(),
                layers: u32::try_from(config.n_layers()).unwrap_or(u32::MAX),
                context_len: config.context_len() as u64,
                vocab_size: config.vocab_size() as u64,
                threads: u32::try_from(engine.device().n_threads()).unwrap_or(u32::MAX),
                memory_bytes: engine.memory_usage(),
                has_chat_template: engine.tokenizer().has_chat_template(),
                instruction_set: engine.device().isa().name().to_owned(),
            })
        })
    }

    /// Starts a session. With a history, it drafts from the history's outputs and adds its own.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument): an option is outside its range. [`OutOfMemory`](crate::ErrorKind::OutOfMemory): the
    /// session exceeds the engine's memory limit, or the system's memory. [`WrongState`](crate::ErrorKind::WrongState): `draft_model` without one.
    pub fn session(
        &self,
        options: SessionOptions,
        history: Option<Arc<History>>,
    ) -> Result<Arc<Session>, FfiError> {
        self.0.call(|inner| {
            let history = history.map(|history| history.inner()).transpose()?;
            let memory = inner.reserve(&options)?;
            let mut of_library = options.for_library();
            of_library.history &= history.is_none();
            let mut session = inner.engine.session(of_library)?;
            if let Some(history) = &history
                && options.history != Some(false)
            {
                history.add_to(&mut session)?;
            }
            if let Some(system) = options.system {
                session.append_turn(refrain::Role::System, system)?;
            }
            Ok(Session::new(inner, session, history, memory))
        })
    }

    /// Opens the outputs of this model in a folder.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io), [`Damaged`](crate::ErrorKind::Damaged), [`Mismatch`](crate::ErrorKind::Mismatch): another key.
    pub fn history(&self, options: HistoryOptions) -> Result<Arc<History>, FfiError> {
        self.0.call(|inner| History::open(inner, &options))
    }

    /// Forgets the outputs in memory: of a namespace, or all.
    ///
    /// # Errors
    /// Those of objects.
    pub fn forget_outputs(&self, namespace: Option<String>) -> Result<(), FfiError> {
        self.0.call(|inner| {
            match namespace {
                Some(namespace) => inner.engine.history().forget(&namespace),
                None => inner.engine.history().clear(),
            }
            Ok(())
        })
    }

    /// Tells the engine what the device reports: with heat, memory pressure and saved power it drafts less, and gives back memory.
    /// Running jobs answer at their next step. Never changes a text.
    ///
    /// # Errors
    /// Those of objects.
    pub fn set_device_state(&self, state: DeviceState) -> Result<(), FfiError> {
        self.0.call(|inner| {
            let device = inner.engine.device();
            if let Some(thermal) = state.thermal {
                device.set_thermal_state(thermal.into());
            }
            if let Some(power) = state.power {
                device.set_power_state(power.into());
            }
            if let Some(memory) = state.memory {
                device.set_memory_pressure(memory.into());
                inner.registry.alive().iter().for_each(|child| child.release_memory());
            }
            Ok(())
        })
    }

    /// What a process does before the system suspends or freezes it: cancels the engine's jobs, waits for their ends, for at most so many
    /// milliseconds, and makes histories durable. A suspended thread would hold locks of stores, for which the system ends iOS apps.
    /// Sessions stay, with the text so far.
    ///
    /// # Errors
    /// A history cannot be written; the jobs are cancelled all the same. Those of objects.
    pub fn prepare_to_suspend(&self, max_wait_ms: u32) -> Result<SuspendReport, FfiError> {
        let deadline = Instant::now() + Duration::from_millis(max_wait_ms.into());
        self.0.call(|inner| {
            let children = inner.registry.alive();
            let cancelled = children.iter().filter(|child| child.cancel()).count() as u32;
            let n_running = || children.iter().filter(|child| child.is_running()).count() as u32;
            while n_running() > 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            children.iter().try_for_each(|child| child.sync())?;
            Ok(SuspendReport { cancelled, running: n_running() })
        })
    }
}

#[cfg(feature = "notes")]
impl Engine {
    /// The engine, for what is built on it.
    pub(crate) fn inner(&self) -> Result<Arc<EngineInner>, FfiError> {
        self.0.call(|inner| Ok(Arc::clone(inner)))
    }
}
