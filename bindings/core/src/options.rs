//! Options of engines, sessions, generations and histories. A field that is left out has the library's default.

use refrain::checkpoint::ModelConfig;
use refrain_index::history;
use serde::{Deserialize, Serialize};

use crate::error::FfiError;

/// Writes an enum whose names in JSON are its variants in snake case, with its value in the library.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident => $library:ty { $($(#[$about:meta])* $variant:ident $json:literal => $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name {
            $(
                $(#[$about])*
                #[serde(rename = $json)]
                $variant,
            )*
        }

        impl From<$name> for $library {
            fn from(given: $name) -> Self {
                match given {
                    $($name::$variant => $value,)*
                }
            }
        }
    };
}

#[cfg(feature = "notes")]
pub(crate) use names;

names! {
    /// Block format of the weights in memory. Changes the output.
    Quantize => refrain::Quantize {
        /// As in the file.
        Keep "keep" => refrain::Quantize::Keep,
        /// 32 bits.
        F32 "f32" => refrain::Quantize::F32,
        /// 8.5 bits.
        Q8 "q8_0" => refrain::Quantize::Q8_0,
        /// 4.5 bits.
        Q4 "q4_0" => refrain::Quantize::Q4_0,
    }
}

names! {
    /// Element type of the KV cache. Changes the output.
    KvType => refrain::KvType {
        /// 32 bits.
        F32 "f32" => refrain::KvType::F32,
        /// 16 bits, the default.
        F16 "f16" => refrain::KvType::F16,
        /// 8.5 bits.
        Q8 "q8_0" => refrain::KvType::Q8_0,
        /// 4.5 bits.
        Q4 "q4_0" => refrain::KvType::Q4_0,
    }
}

names! {
    /// What a session drafts from. Never changes the output.
    Drafting => refrain::Drafting {
        /// Text on the device, the model's own predictions, and the draft model if there is one.
        Auto "auto" => refrain::Drafting::Auto,
        /// The draft model alone.
        DraftModel "draft_model" => refrain::Drafting::DraftModel,
        /// Nothing: plain decoding.
        Off "off" => refrain::Drafting::Off,
    }
}

names! {
    /// The author of a turn.
    Role => refrain::Role {
        /// The app.
        System "system" => refrain::Role::System,
        /// The app, for models that tell it from the system.
        Developer "developer" => refrain::Role::Developer,
        /// The user.
        User "user" => refrain::Role::User,
        /// The model.
        Assistant "assistant" => refrain::Role::Assistant,
        /// A tool.
        Tool "tool" => refrain::Role::Tool,
    }
}

impl From<refrain::Role> for Role {
    fn from(role: refrain::Role) -> Self {
        match role {
            refrain::Role::System => Self::System,
            refrain::Role::Developer => Self::Developer,
            refrain::Role::Assistant => Self::Assistant,
            refrain::Role::Tool => Self::Tool,
            _ => Self::User,
        }
    }
}

names! {
    /// Heat of the device, as iOS (`ProcessInfo.ThermalState`) names it.
    ThermalState => refrain::device::ThermalState {
        /// Cool.
        Nominal "nominal" => refrain::device::ThermalState::Nominal,
        /// Warm.
        Fair "fair" => refrain::device::ThermalState::Fair,
        /// Hot: steps draft less.
        Serious "serious" => refrain::device::ThermalState::Serious,
        /// Too hot: steps do not draft.
        Critical "critical" => refrain::device::ThermalState::Critical,
    }
}

impl From<refrain::device::ThermalState> for ThermalState {
    fn from(state: refrain::device::ThermalState) -> Self {
        match state {
            refrain::device::ThermalState::Fair => Self::Fair,
            refrain::device::ThermalState::Serious => Self::Serious,
            refrain::device::ThermalState::Critical => Self::Critical,
            _ => Self::Nominal,
        }
    }
}

names! {
    /// How short of memory the system is.
    MemoryPressure => refrain::device::MemoryPressure {
        /// Not short.
        Normal "normal" => refrain::device::MemoryPressure::Normal,
        /// Sessions give back buffers.
        Warning "warning" => refrain::device::MemoryPressure::Warning,
        /// Sessions that wait also give back their keys and values, and compute them again when they go on.
        Critical "critical" => refrain::device::MemoryPressure::Critical,
    }
}

impl From<refrain::device::MemoryPressure> for MemoryPressure {
    fn from(level: refrain::device::MemoryPressure) -> Self {
        match level {
            refrain::device::MemoryPressure::Warning => Self::Warning,
            refrain::device::MemoryPressure::Critical => Self::Critical,
            _ => Self::Normal,
        }
    }
}

names! {
    /// Where the device's power comes from.
    PowerState => refrain::device::PowerState {
        /// The mains.
        Mains "mains" => refrain::device::PowerState::Mains,
        /// The battery.
        Battery "battery" => refrain::device::PowerState::Battery,
        /// The battery, and the user saves it.
        Saver "saver" => refrain::device::PowerState::Saver,
    }
}

/// Who waits for a task of an assistant. Sessions take no turns by priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Priority {
    /// The app's own user, if the app also serves other programs.
    Foreground,
    /// A person; the default.
    Interactive,
    /// Nobody: it gives way to all others.
    Background,
}

/// The units of places in texts ([`Place`](crate::Place)): those of the language's strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Units {
    /// Bytes, for C and for Swift's `String.UTF8View`; the default.
    #[default]
    Utf8,
    /// Code units of 16 bits, for Kotlin, Java, JavaScript and `NSString`.
    Utf16,
}

/// Options of an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EngineOptions {
    /// A GGUF file, a packed file, or a folder of Hugging Face.
    pub path: String,
    /// Threads of a pass, the caller's included. Default: one per physical performance core that the process may use.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub threads: Option<u32>,
    /// Maximum bytes of the model and its sessions together, as [`estimate_memory`](crate::estimate_memory) counts them. An engine or a
    /// session that does not fit is refused with [`OutOfMemory`](crate::ErrorKind::OutOfMemory) before anything is allocated. Default:
    /// no limit.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub memory_limit_bytes: Option<u64>,
    /// Block format of the weights in memory. Default: as in the file.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub quantize: Option<Quantize>,
    /// A smaller model of the same vocabulary, which drafts; `mtp`: the head in the model's own file.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub draft_model: Option<String>,
    /// Milliseconds for measuring step costs while loading. Default: 300. 0: none, and steps correct the costs later.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub measure_ms: Option<u32>,
    /// The units of all places in texts. Default: UTF-8.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub units: Option<Units>,
}

/// Options of a session, and of the sessions of an assistant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionOptions {
    /// Maximum tokens of prompt and output together. Default: the model's trained length, at most 4,096.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub context_len: Option<u32>,
    /// Element type of the KV cache. Default: `f16`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub kv_type: Option<KvType>,
    /// What the session drafts from. Default: `auto`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub drafting: Option<Drafting>,
    /// An account of the app: drafts, kept answers and computed prompts of one namespace never reach another. Default: `default`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub namespace: Option<String>,
    /// A system turn before every prompt.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub system: Option<String>,
    /// Whether outputs draft later ones of the namespace. Default: yes; in memory, if there is neither a [`History`](crate::History) nor
    /// a store.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub history: Option<bool>,
}

/// Options of a generation or a task.
///
/// Without any option of sampling, a session takes the most likely tokens, and a task also has the assistant's penalty against loops.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GenerateOptions {
    /// Maximum output tokens. Default: 512; of a task, at most a quarter of the context.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub max_tokens: Option<u32>,
    /// 0, the default, takes the most likely token.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub temperature: Option<f32>,
    /// Keeps the fewest most likely tokens whose probabilities reach it. Default: 1, all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub top_p: Option<f32>,
    /// Keeps so many of the most likely tokens. Default: 0, all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub top_k: Option<u32>,
    /// Drops tokens less likely than this times the most likely one. Default: 0.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of the newest 64 tokens. Default: 1.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub repetition_penalty: Option<f32>,
    /// The key of the random numbers, below 2⁵³, so that every reader of JSON keeps it. The same seed gives the same text, with and
    /// without drafts. Default: drawn, and told by the result. Temperature 0 uses none.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub seed: Option<u64>,
    /// Texts before which the output ends.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub stop: Vec<String>,
    /// A JSON Schema: the output is JSON that is valid under it. Not for commands for screens, which have a grammar of their own.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub json_schema: Option<String>,
    /// Whether each complete sentence of the answer is an event, for reading it aloud.
    #[cfg_attr(feature = "uniffi", uniffi(default = false))]
    pub sentences: bool,
    /// Who waits, of a task. Default: `interactive`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub priority: Option<Priority>,
    /// Whether a task's answer is kept, and drafts later ones. Default: yes.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub keep: Option<bool>,
}

/// Options of a history on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryOptions {
    /// The folder. It is made if it does not exist.
    pub folder: String,
    /// An account of the app. Default: `default`.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub namespace: Option<String>,
    /// 32 bytes that encrypt the outputs from the beginning. The app keeps them.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub key: Option<Vec<u8>>,
}

/// What the device reports. A state that is left out stays as it was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceState {
    /// Heat.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub thermal: Option<ThermalState>,
    /// Memory.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub memory: Option<MemoryPressure>,
    /// Power.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub power: Option<PowerState>,
}

/// A turn of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text. It cannot forge control tokens.
    pub content: String,
}

/// The largest seed, plus 1: the integers that a double has exactly.
const SEED_END: u64 = 1 << 53;

impl EngineOptions {
    /// A model at a path, with defaults.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            threads: None,
            memory_limit_bytes: None,
            quantize: None,
            draft_model: None,
            measure_ms: None,
            units: None,
        }
    }

    pub(crate) fn for_library(&self) -> refrain::EngineOptions {
        let mut options = refrain::EngineOptions::default();
        options.n_threads = self.threads.map(|n| n as usize);
        options.measure_time = self.measure_ms.map(|ms| std::time::Duration::from_millis(ms.into()));
        if let Some(quantize) = self.quantize {
            options.quantize = quantize.into();
        }
        options
    }
}

impl SessionOptions {
    pub(crate) fn for_library(&self) -> refrain::SessionOptions {
        let mut options = refrain::SessionOptions::default();
        options.context_len = self.context_len.map(|n| n as usize);
        if let Some(kv_type) = self.kv_type {
            options.kv_type = kv_type.into();
        }
        if let Some(drafting) = self.drafting {
            options.drafting = drafting.into();
        }
        if let Some(namespace) = &self.namespace {
            options.namespace.clone_from(namespace);
        }
        if let Some(history) = self.history {
            options.history = history;
        }
        options
    }

    /// Bytes of a session.
    pub(crate) fn bytes(&self, config: &ModelConfig) -> u64 {
        self.for_library().memory_bytes(config)
    }
}

impl GenerateOptions {
    /// How tokens are chosen, from a default. `None`: as the default says. A seed is drawn if there is none.
    ///
    /// # Errors
    /// The seed is too large.
    pub(crate) fn sampling(
        &self,
        default: &refrain::Sampling,
    ) -> Result<Option<refrain::Sampling>, FfiError> {
        if let Some(seed) = self.seed.filter(|&seed| seed >= SEED_END) {
            return Err(FfiError::over(crate::ErrorKind::InvalidArgument, "seed", seed, SEED_END - 1));
        }
        let Self { temperature, top_p, top_k, min_p, repetition_penalty, seed, .. } = *self;
        let numbers = [temperature, top_p, min_p, repetition_penalty];
        if numbers.iter().all(Option::is_none) && top_k.is_none() && seed.is_none() {
            return Ok(None);
        }
        let mut sampling = default.clone();
        let set = |field: &mut f32, given: Option<f32>| *field = given.unwrap_or(*field);
        set(&mut sampling.temperature, temperature);
        set(&mut sampling.top_p, top_p);
        set(&mut sampling.min_p, min_p);
        set(&mut sampling.repetition_penalty, repetition_penalty);
        if let Some(top_k) = top_k {
            sampling.top_k = top_k as usize;
        }
        sampling.seed = seed;
        if sampling.temperature > 0.0 && seed.is_none() {
            sampling.seed = Some(random() % SEED_END);
        }
        Ok(Some(sampling))
    }
}

/// A random number, from the keys of the standard library's hash maps.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// The key of a store.
///
/// # Errors
/// It has another length.
pub(crate) fn key(given: Option<&[u8]>) -> Result<Option<[u8; 32]>, FfiError> {
    let of_length = |given: &[u8]| {
        let n_bytes = given.len();
        given.try_into().map_err(|_| FfiError::argument("key", format!("has {n_bytes} bytes, not 32")))
    };
    given.map(of_length).transpose()
}

/// The name of a namespace.
///
/// # Errors
/// It is empty or too long.
pub(crate) fn namespace(given: Option<&str>) -> Result<&str, FfiError> {
    match given {
        None => Ok("default"),
        Some(name) if (1..=history::NAMESPACE_BYTES_MAX).contains(&name.len()) => Ok(name),
        Some(name) => {
            let problem = format!("has {} bytes, outside 1..={}", name.len(), history::NAMESPACE_BYTES_MAX);
            Err(FfiError::argument("namespace", problem))
        }
    }
}
