//! Opens the models given by the user, or those inside the program.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::Predictor;
use refrain::embedding::Encoder;
use refrain::internals::engine::MeasuredCosts;
use refrain::internals::error::{CheckpointError, GgufError, HfError, SafetensorsError};
use refrain::internals::model::hf::JSON_BYTES_MAX;
use refrain::streaming::StreamOptions;
use refrain::{Engine, EngineOptions, LoadError, Tokenizer};
use refrain_files::open_regular;

use crate::args::{ComputeArgs, DraftModelArg, ModelArgs, PruningArg};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::terminal::note_once;

/// The small model inside the program.
#[cfg(feature = "embedded-model")]
pub static EMBEDDED_MODEL: &[u8] = include_bytes!("../models/target.gguf");

// The files are links into `fixtures/`, which a package of this crate resolves. A checkout without symbolic links has their paths instead.
#[cfg(feature = "embedded-model")]
const _: () =
    assert!(EMBEDDED_MODEL.len() > 1000, "crates/program/models are no links: check out with core.symlinks");

/// Its draft model.
#[cfg(feature = "embedded-model")]
static EMBEDDED_DRAFT_MODEL: &[u8] = include_bytes!("../models/draft.gguf");

/// Its predictor.
#[cfg(feature = "embedded-model")]
static EMBEDDED_PREDICTOR: &[u8] = include_bytes!("../models/target.predictor");

/// The pre-tokenizer that `--pre-tokenizer` names.
static PRE_TOKENIZER: OnceLock<Option<String>> = OnceLock::new();

/// Sets the pre-tokenizer of GGUF files that name none, once.
pub fn set_pre_tokenizer(name: Option<String>) {
    let _ = PRE_TOKENIZER.set(name);
}

/// Finds the file or folder of a model that may be given by its name.
pub type Locate = fn(&Path) -> Result<Cow<'_, Path>, Failure>;

/// How models are found that are given by their names. Without it, models have paths.
static LOCATE: OnceLock<Locate> = OnceLock::new();

/// Sets how models are found, once.
pub fn set_locate(locate: Locate) {
    let _ = LOCATE.set(locate);
}

fn locate(path: &Path) -> Result<Cow<'_, Path>, Failure> {
    LOCATE.get().map_or(Ok(Cow::Borrowed(path)), |locate| locate(path))
}

/// The file or folder of a model; the path itself where there is none.
pub fn located(path: &Path) -> Cow<'_, Path> {
    locate(path).unwrap_or(Cow::Borrowed(path))
}

/// Opens the checkpoint at `path`, or the pulled one of this name; without a path, the embedded one.
pub fn checkpoint(path: Option<&Path>) -> Result<Checkpoint, Failure> {
    match path {
        Some(path) => {
            let path = locate(path)?;
            open(&path).map_err(|error| not_opened(&path, error))
        }
        None => embedded(),
    }
}

/// Entries of a folder that are looked at for a model.
const ENTRIES_MAX: usize = 10_000;

/// Why a model cannot be opened, in words where that is known.
fn not_opened(path: &Path, error: LoadError) -> Failure {
    let name = path.display();
    if Encoder::is_encoder(path) {
        let problem = format!("`{name}` is a sentence encoder: it makes vectors, and writes no text");
        return Failure::input(problem, "`refrain index add --embedder` makes vectors of notes with it");
    }
    if path.is_dir() && !path.join("config.json").exists() {
        let files = std::fs::read_dir(path).into_iter().flatten().take(ENTRIES_MAX).flatten();
        let mut models: Vec<_> = files
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .filter(|name| name.to_lowercase().ends_with(".gguf"))
            .collect();
        models.sort_unstable();
        let problem = format!("`{name}` is a folder, and no Hugging Face folder: it has no config.json");
        match &models[..] {
            [] => {}
            [only] => {
                return Failure::input(
                    problem,
                    &format!("name the file in it: `{}`", path.join(only).display()),
                );
            }
            [first, others @ ..] => {
                let problem = format!("{problem}, but {} GGUF files", others.len() + 1);
                return Failure::input(
                    problem,
                    &format!("name one, such as `{}`", path.join(first).display()),
                );
            }
        }
    }
    let again = "copy or download it again; `refrain model pull` resumes a download";
    if path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Failure::input(format!("`{name}` is empty: it has 0 bytes"), again);
    }
    let is_cut = matches!(
        error.detail::<CheckpointError>(),
        Some(
            CheckpointError::Gguf(GgufError::Truncated { .. } | GgufError::OutOfFile { .. })
                | CheckpointError::Hf(HfError::Safetensors(
                    SafetensorsError::TooShort { .. } | SafetensorsError::HeaderTruncated { .. },
                ))
        )
    );
    match is_cut {
        true => Failure::input(format!("`{name}` is cut off: {error}"), again),
        false => error.into(),
    }
}

/// Opens the checkpoint at `path`.
pub fn open(path: &Path) -> Result<Checkpoint, LoadError> {
    let checkpoint = Checkpoint::open(path)?;
    Ok(match PRE_TOKENIZER.get() {
        Some(Some(name)) => checkpoint.with_pre_tokenizer(name),
        _ => checkpoint,
    })
}

/// Loads a checkpoint, with progress.
pub fn engine(checkpoint: &Checkpoint, options: EngineOptions) -> Result<Engine, Failure> {
    engine_measured(checkpoint, options, Vec::new())
}

/// As [`engine`], with costs that earlier starts have measured.
pub fn engine_measured(
    checkpoint: &Checkpoint,
    options: EngineOptions,
    measured: Vec<MeasuredCosts>,
) -> Result<Engine, Failure> {
    let progress = Progress::bytes("loading");
    let engine =
        Engine::load_measured(checkpoint, options, measured, |done, total| progress.set(done, total))?;
    drop(progress);
    note_kernels(&engine);
    Ok(engine)
}

/// Says, once, that the model inside the program answers, if it does.
pub fn note_demonstration(model: &ModelArgs) {
    if model.model.is_none() {
        note_once(
            "the small model inside this program answers: it is a demonstration and knows nothing; `refrain model pull OWNER/NAME` gets another for --model, `refrain` alone suggests some",
        );
    }
}

/// Says if this machine computes with the slow scalar kernels.
pub fn note_kernels(engine: &Engine) {
    if let Some(notice) = engine.device().kernels_notice() {
        note_once(&notice.to_string());
    }
}

/// What drafts beside texts.
pub enum Drafts {
    /// A draft model, or a head.
    Model(Box<Checkpoint>),
    /// The first layers of the streamed model, with this exit behind them.
    OwnLayers(Box<Predictor>),
}

impl Drafts {
    /// Opens the draft model of a target at `target`; without a path, of the embedded one.
    pub fn open(model: &DraftModelArg, target: Option<&Path>) -> Result<Self, Failure> {
        Ok(match model {
            DraftModelArg::Fixture => Self::Model(Box::new(embedded_draft_model()?)),
            DraftModelArg::Path(path) => Self::Model(Box::new(checkpoint(Some(path))?)),
            DraftModelArg::Mtp(path) => match path.as_deref().or(target) {
                Some(path) => Self::Model(Box::new(Checkpoint::open_mtp(&locate(path)?)?)),
                None => {
                    let problem = "the model inside this program has no head for multi-token prediction";
                    return Err(Failure::usage(problem, "name a file with --draft mtp:PATH"));
                }
            },
            DraftModelArg::OwnLayers(exit) => Self::OwnLayers(Box::new(predictor(exit)?)),
        })
    }

    /// Pins the layers of a streamed target that draft.
    pub fn pin(&self, streaming: &mut StreamOptions) {
        if let Self::OwnLayers(predictor) = self {
            streaming.pinned_first = predictor.layer_idx();
        }
    }

    /// Gives the drafts to the engine, with progress.
    pub fn load(self, engine: &Engine, options: DraftModelOptions) -> Result<(), Failure> {
        match self {
            Self::Model(checkpoint) => draft_model(engine, &checkpoint, options),
            Self::OwnLayers(predictor) => Ok(engine.set_self_draft(*predictor)?),
        }
    }
}

/// Loads the draft model of the engine, with progress.
pub fn draft_model(
    engine: &Engine,
    checkpoint: &Checkpoint,
    options: DraftModelOptions,
) -> Result<(), Failure> {
    let progress = Progress::bytes("loading the draft model");
    Ok(engine.set_draft_model(checkpoint, options, |done, total| progress.set(done, total))?)
}

/// Reads a predictor.
pub fn predictor(predictor: &PruningArg) -> Result<Predictor, Failure> {
    match predictor {
        PruningArg::Fixture => embedded_predictor(),
        PruningArg::Path(path) => Ok(Predictor::read(path)?),
    }
}

#[cfg(feature = "embedded-model")]
fn embedded_predictor() -> Result<Predictor, Failure> {
    Ok(Predictor::from_bytes(EMBEDDED_PREDICTOR, "embedded predictor")?)
}

#[cfg(not(feature = "embedded-model"))]
fn embedded_predictor() -> Result<Predictor, Failure> {
    Err(Failure::usage("this program was built without an embedded model", "name a predictor by its path"))
}

/// The options of a draft model, from those of its target.
pub fn draft_model_options(compute: &ComputeArgs) -> DraftModelOptions {
    let EngineOptions { quantize, packed_access, .. } = compute.engine_options();
    DraftModelOptions { quantize, packed_access, cost_profile: None }
}

#[cfg(feature = "embedded-model")]
fn embedded() -> Result<Checkpoint, Failure> {
    embedded_checkpoint(EMBEDDED_MODEL, "embedded model")
}

#[cfg(feature = "embedded-model")]
fn embedded_draft_model() -> Result<Checkpoint, Failure> {
    embedded_checkpoint(EMBEDDED_DRAFT_MODEL, "embedded draft model")
}

#[cfg(feature = "embedded-model")]
fn embedded_checkpoint(bytes: &'static [u8], name: &str) -> Result<Checkpoint, Failure> {
    Ok(Checkpoint::from_gguf_bytes(std::borrow::Cow::Borrowed(bytes), name)?)
}

#[cfg(not(feature = "embedded-model"))]
fn embedded_draft_model() -> Result<Checkpoint, Failure> {
    Err(Failure::usage("this program was built without an embedded model", "name a draft model by its path"))
}

#[cfg(not(feature = "embedded-model"))]
fn embedded() -> Result<Checkpoint, Failure> {
    Err(Failure::usage("this program was built without an embedded model", "name one with --model"))
}

/// The tokenizer of a `tokenizer.json`, a GGUF file or a folder; without a path, the embedded model's.
pub fn open_tokenizer(path: Option<&Path>) -> Result<(Tokenizer, String), Failure> {
    if let Some(path) = path.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let name = path.display().to_string();
        let advice = "name a tokenizer.json, a GGUF file or a folder";
        let mut text = String::new();
        open_regular(path)
            .and_then(|file| file.take(JSON_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| Failure::input(format!("{name}: {error}"), advice))?;
        let tokenizer = Tokenizer::from_json(&text, &name).map_err(|error| Failure::input(error, advice))?;
        return Ok((tokenizer, name));
    }
    let checkpoint = checkpoint(path)?;
    let tokenizer = checkpoint.tokenizer().map_err(LoadError::from)?;
    Ok((tokenizer, checkpoint.name().to_owned()))
}

/// The number of threads: the given one, or that of the cores.
pub fn n_threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).clamp(1, 256)
}

/// Checks that the model has every id of the tokenizer.
pub fn check_vocabulary(name: &str, given: usize, limit: usize) -> Result<(), Failure> {
    if given <= limit {
        return Ok(());
    }
    let advice = "name a tokenizer with no more tokens than the model, or omit --tokenizer";
    Err(Failure::usage(format!("{name}: {given} tokens, the model has {limit}"), advice))
}
