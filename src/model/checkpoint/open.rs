//! Opens a container and checks its tensor table against the architecture.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::{Checkpoint, CheckpointError, Container, TensorInfo, WeightId};
use crate::error::LoadError;
use crate::kernels::{BlockType, FloatEnv};
use crate::model::arch::parse_config;
use crate::model::arch::tensors::{self, Place, RowOrder, Slot, is_redundant, mtp_place, place, slots};
use crate::model::arch::{StoredFactors, config_from_gguf, eagle3, n_mtp_blocks};
use crate::model::config::{DraftHead, LayerPlan, Mixer, ModelConfig};
use crate::model::graphs::{ENDS, GraphFolder};
use crate::model::packed::{MAGIC, PackedFile};
use refrain_containers::gguf::{GgufFile, GgufValue};
use refrain_containers::hf::{HfError, HfFolder};
use refrain_files::open_regular;
use refrain_trees::TokenId;

impl Checkpoint {
    /// Opens a `.gguf` file (any part of a split one), a Hugging Face folder or a file inside such a folder,
    /// a packed file, or a folder of static graphs.
    ///
    /// Opening checks that every tensor of the architecture exists, has the right shape and a readable type,
    /// and is inside its file. Tensors that the architecture does not have are refused.
    ///
    /// A folder with an EAGLE-3 head is opened as a draft model of the head's target
    /// ([`Engine::set_draft_model`](crate::Engine::set_draft_model)). It may leave the embedding out, which is that of the target.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays open.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let _env = FloatEnv::ieee();
        Ok(open(path)?)
    }

    /// Reads a GGUF model from memory (an embedded fixture); messages call it `name`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_gguf_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Result<Self, LoadError> {
        let _env = FloatEnv::ieee();
        Ok(from_gguf(GgufFile::from_bytes(bytes, name).map_err(CheckpointError::from)?)?)
    }

    /// Opens the head for multi-token prediction that a `.gguf` file or a Hugging Face folder has beside its model, or alone: a draft
    /// model ([`Engine::set_draft_model`](crate::Engine::set_draft_model)) for this model, of one layer that reads the model's final
    /// hidden states.
    ///
    /// In GGUF files it is the block behind the layers, counted by `nextn_predict_layers`, as llama.cpp's converter writes it; in
    /// folders it is the tensors `mtp.*` of Qwen3.5. A file may leave embedding and output matrix out, which are those of the model.
    ///
    /// # Errors
    /// Kind [`NotFound`](crate::ErrorKind::NotFound): there is no such head; otherwise as [`Checkpoint::open`]. More than one such block is refused.
    pub fn open_mtp(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let _env = FloatEnv::ieee();
        Ok(open_mtp(path.as_ref())?)
    }

    /// As [`Checkpoint::open_mtp`], of a GGUF file in memory; messages call it `name`.
    ///
    /// # Errors
    /// As [`Checkpoint::open_mtp`].
    pub fn mtp_from_gguf_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Result<Self, LoadError> {
        let _env = FloatEnv::ieee();
        Ok(mtp_from_gguf(GgufFile::from_bytes(bytes, name).map_err(CheckpointError::from)?)?)
    }

    /// Reads a packed model from memory; messages call it `name`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_packed_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Result<Self, LoadError> {
        let _env = FloatEnv::ieee();
        Ok(from_packed(PackedFile::from_bytes(bytes, name).map_err(CheckpointError::from)?)?)
    }
}

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    match kind(path)? {
        Kind::Graphs => from_graphs(GraphFolder::open(path)?),
        Kind::Folder(folder) => from_folder(folder),
        Kind::Gguf => from_gguf(GgufFile::open(path)?),
        Kind::Packed => from_packed(PackedFile::open(path)?),
    }
}

/// Opens the head for multi-token prediction in a file or folder.
fn open_mtp(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let no_mtp = || CheckpointError::NoMtp { file: path.display().to_string() };
    match kind(path)? {
        Kind::Gguf => mtp_from_gguf(GgufFile::open(path)?),
        Kind::Folder(folder) => mtp_from_folder(folder),
        Kind::Packed | Kind::Graphs => Err(no_mtp()),
    }
}

/// The containers of models.
enum Kind<'a> {
    Gguf,
    /// A Hugging Face folder.
    Folder(&'a Path),
    Packed,
    Graphs,
}

fn kind(path: &Path) -> Result<Kind<'_>, CheckpointError> {
    let not_a_model = |reason| CheckpointError::NotAModel { path: path.display().to_string(), reason };
    if path.is_dir() {
        return Ok(if path.join(ENDS).exists() { Kind::Graphs } else { Kind::Folder(path) });
    }
    if !path.exists() {
        return Err(CheckpointError::NoSuchFile { path: path.display().to_string() });
    }
    if is_kind(path, b"GGUF", "gguf") {
        return Ok(Kind::Gguf);
    }
    if is_kind(path, &MAGIC, "refrain") {
        return Ok(Kind::Packed);
    }
    match path.parent() {
        Some(parent) if path.extension().is_some_and(|e| e == "safetensors" || e == "json") => {
            // The parent of a bare file name is the empty path, which names the current folder.
            Ok(Kind::Folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent }))
        }
        _ => Err(not_a_model("neither a GGUF file, a packed file, nor part of a Hugging Face folder")),
    }
}

/// Detects a format by content, or by name if the content is too short or damaged, so that the reader reports
/// the damage.
fn is_kind(path: &Path, magic: &[u8], extension: &str) -> bool {
    let mut found = vec![0; magic.len()];
    let by_content =
        open_regular(path).is_ok_and(|mut file| file.read_exact(&mut found).is_ok() && found == magic);
    by_content || path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

fn from_gguf(file: GgufFile) -> Result<Checkpoint, CheckpointError> {
    let config = gguf_config(&file)?;
    let mut weights = HashMap::new();
    for slot in slots(&config) {
        let place =
            there(place(&config, &slot, tensors::Container::Gguf), |name| file.tensor(name).is_some());
        weights.insert(slot.id, check(&slot, place, |name| in_gguf(&file, name))?);
    }
    let (n_layers, n_mtp_blocks) = (config.n_layers(), n_mtp_blocks(&file, &config)?);
    let of_model =
        |name: &str| !block_of(name).is_some_and(|i| (n_layers..n_layers + n_mtp_blocks).contains(&i));
    let stored = file.tensors().iter().filter(|tensor| of_model(&tensor.name));
    refuse_unexpected(&config, &weights, stored.map(|t| (file.file_of(t), t.name.as_str())))?;
    let (name, container, draft_tokens) = (gguf_name(&file), Container::Gguf(file), None);
    Ok(Checkpoint { name, container, config, weights, draft_tokens, pre_tokenizer: None })
}

fn gguf_config(file: &GgufFile) -> Result<ModelConfig, CheckpointError> {
    let factors = StoredFactors {
        factors: rope_factors(file, "rope_freqs.weight")?,
        short: rope_factors(file, "rope_factors_short.weight")?,
        long: rope_factors(file, "rope_factors_long.weight")?,
    };
    Ok(config_from_gguf(file, factors)?)
}

/// The stated name of a model, or that of its file.
fn gguf_name(file: &GgufFile) -> String {
    let stem = || Path::new(file.name()).file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = file.get("general.name").and_then(GgufValue::as_str).map(str::to_owned);
    name.or_else(stem).unwrap_or_default()
}

fn in_gguf(file: &GgufFile, name: String) -> Result<Found<'_>, CheckpointError> {
    let Some(tensor) = file.tensor(&name) else {
        return Err(CheckpointError::MissingTensor { file: file.name().to_owned(), tensor: name });
    };
    Ok(Found {
        file: file.file_of(tensor),
        name,
        // GGUF lists columns first.
        shape: tensor.dims.iter().rev().copied().collect(),
        ty: tensor.ty.block_type(),
        ty_name: tensor.ty.to_string(),
    })
}

/// The block that a tensor of a GGUF file belongs to.
fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Opens the head for multi-token prediction in a GGUF file, whether the file has the model too or not.
fn mtp_from_gguf(file: GgufFile) -> Result<Checkpoint, CheckpointError> {
    let model = gguf_config(&file)?;
    let block = model.n_layers();
    if n_mtp_blocks(&file, &model)? == 0 {
        return Err(CheckpointError::NoMtp { file: file.name().to_owned() });
    }
    let (config, container) = (mtp_config(model, file.name())?, tensors::Container::Gguf);
    let mut weights = HashMap::new();
    for slot in slots(&config) {
        let place = mtp_place(&config, &slot, container, block);
        let place = there(place, |name| file.tensor(name).is_some());
        if is_of_target(&slot) && file.tensor(&place.names[0]).is_none() {
            continue;
        }
        weights.insert(slot.id, check(&slot, place, |name| in_gguf(&file, name))?);
    }
    let stored = file.tensors().iter().filter(|tensor| block_of(&tensor.name).is_some_and(|i| i >= block));
    refuse_unexpected(&config, &weights, stored.map(|t| (file.file_of(t), t.name.as_str())))?;
    let (name, container, draft_tokens) = (gguf_name(&file), Container::Gguf(file), None);
    Ok(Checkpoint { name, container, config, weights, draft_tokens, pre_tokenizer: None })
}

/// The head for multi-token prediction of a model: one layer like the model's last one with attention.
fn mtp_config(model: ModelConfig, file: &str) -> Result<ModelConfig, CheckpointError> {
    let attends = |layer: &&LayerPlan| matches!(layer.mixer, Mixer::Attention(_));
    let layer = model.layers.iter().rev().find(attends).cloned();
    let layer = layer.ok_or_else(|| CheckpointError::NoMtp { file: file.to_owned() })?;
    let config = ModelConfig { layers: vec![layer], draft_head: Some(DraftHead::Mtp), ..model };
    config.validate(file)?;
    Ok(config)
}

/// Whether a head shares the tensor with its target, so that its file need not have it.
fn is_of_target(slot: &Slot) -> bool {
    matches!(slot.id, WeightId::Embedding | WeightId::Head)
}

/// Opening a packed file has checked its tensor table against the architecture.
fn from_packed(file: PackedFile) -> Result<Checkpoint, CheckpointError> {
    if file.piece().is_some() {
        let reason = "one file of a model that is kept as graphs; name their folder";
        return Err(CheckpointError::NotAModel { path: file.file().to_owned(), reason });
    }
    let (config, name) = (file.config().clone(), file.name().to_owned());
    Ok(Checkpoint {
        name,
        weights: packed_tensors(&file).collect(),
        container: Container::Packed(file),
        config,
        draft_tokens: None,
        pre_tokenizer: None,
    })
}

fn from_graphs(folder: GraphFolder) -> Result<Checkpoint, CheckpointError> {
    let (config, name) = (folder.config().clone(), folder.ends().name().to_owned());
    // Both graphs of a block have the same tensors.
    let weights = folder.files().flat_map(packed_tensors).collect();
    Ok(Checkpoint {
        name,
        weights,
        container: Container::Graphs(folder),
        config,
        draft_tokens: None,
        pre_tokenizer: None,
    })
}

fn packed_tensors(file: &PackedFile) -> impl Iterator<Item = (WeightId, TensorInfo)> {
    file.sections().iter().flat_map(|section| &section.tensors).map(|tensor| {
        // Within the limits of `ModelConfig`, so both fit in usize.
        let (n_rows, n_cols) = match *tensor.shape {
            [n_rows, n_cols] => (n_rows as usize, n_cols as usize),
            _ => (1, tensor.shape[0] as usize),
        };
        let (names, ty) = (vec![tensor.name.clone()], tensor.ty);
        let (order, change) = (RowOrder::All, tensors::Change::Keep);
        (tensor.id, TensorInfo { names, ty, n_rows, n_cols, order, change, scales: None })
    })
}

/// Without dimensions of length 1.
fn trimmed(dims: &[u64]) -> Vec<u64> {
    dims.iter().copied().filter(|&dim| dim != 1).collect()
}

/// Divisors of frequencies; the tensor is small, so it is read immediately.
fn rope_factors(file: &GgufFile, name: &str) -> Result<Option<Vec<f32>>, CheckpointError> {
    /// Half of the largest head.
    const FACTORS_MAX: u64 = crate::model::config::HEAD_DIM_MAX as u64 / 2;
    let Some(tensor) = file.tensor(name) else { return Ok(None) };
    if tensor.ty.block_type() != Some(BlockType::F32) {
        return Err(CheckpointError::UnsupportedType {
            file: file.file_of(tensor).to_owned(),
            tensor: tensor.name.clone(),
            ty: tensor.ty.to_string(),
        });
    }
    if tensor.dims.len() != 1 || tensor.dims[0] > FACTORS_MAX {
        return Err(CheckpointError::WrongShape {
            file: file.file_of(tensor).to_owned(),
            tensor: tensor.name.clone(),
            expected: vec![FACTORS_MAX],
            found: tensor.dims.iter().rev().copied().collect(),
        });
    }
    let bytes = file.read(tensor)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok(Some(values.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

fn from_folder(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let folder = HfFolder::open(path)?;
    let config = folder_config(&folder, path)?;
    if config.eagle3().is_some() {
        return eagle3_from_folder(folder, config, path);
    }
    let root = root_of(&config, &folder);
    let mut weights = HashMap::new();
    for slot in slots(&config) {
        let is_there = |name: &str| folder.tensor(&rooted(name, root)).is_some();
        let mut place = there(place(&config, &slot, tensors::Container::Json), is_there);
        place.names.iter_mut().chain(&mut place.scales).for_each(|name| *name = rooted(name, root));
        weights.insert(slot.id, check(&slot, place, |name| in_folder(&folder, path, name))?);
    }
    refuse_unexpected(&config, &weights, stored_in(&folder))?;
    let (name, container, draft_tokens) = (folder_name(path), Container::Hf(folder), None);
    Ok(Checkpoint { name, container, config, weights, draft_tokens, pre_tokenizer: None })
}

/// Opens the EAGLE-3 head in a folder, which may leave the embedding to the target.
fn eagle3_from_folder(
    folder: HfFolder,
    config: ModelConfig,
    path: &Path,
) -> Result<Checkpoint, CheckpointError> {
    let mut weights = HashMap::new();
    for slot in slots(&config) {
        let is_there = |name: &str| folder.tensor(name).is_some();
        let place = there(eagle3::place(&config, &slot), is_there);
        if slot.id == WeightId::Embedding && !is_there(&place.names[0]) {
            continue;
        }
        weights.insert(slot.id, check(&slot, place, |name| in_folder(&folder, path, name))?);
    }
    refuse_unexpected(&config, &weights, stored_in(&folder))?;
    let draft_tokens = draft_tokens(&folder, &config, path)?;
    Ok(Checkpoint {
        name: folder_name(path),
        container: Container::Hf(folder),
        config,
        weights,
        draft_tokens,
        pre_tokenizer: None,
    })
}

/// The tokens of a draft vocabulary; `None` if they are those of the target. The tensor is small, so it is read immediately.
fn draft_tokens(
    folder: &HfFolder,
    config: &ModelConfig,
    path: &Path,
) -> Result<Option<Arc<[TokenId]>>, CheckpointError> {
    let (n_tokens, vocab_size) = (config.n_logits(), config.vocab_size);
    if n_tokens == vocab_size {
        return Ok(None);
    }
    let tensor = tensors::DRAFT_TO_TARGET;
    let Found { shape, ty_name, file, .. } = in_folder(folder, path, tensor.to_owned())?;
    let (file, expected) = (file.to_owned(), vec![n_tokens as u64]);
    if shape != expected {
        return Err(CheckpointError::WrongShape { file, tensor: tensor.to_owned(), expected, found: shape });
    }
    if ty_name != "I64" {
        return Err(CheckpointError::UnsupportedType { file, tensor: tensor.to_owned(), ty: ty_name });
    }
    let bytes = folder.tensor(tensor).map_or(Ok(Vec::new()), |(shard, tensor)| shard.read(tensor))?;
    let mut seen = HashSet::with_capacity(n_tokens);
    let tokens = bytes.as_chunks::<8>().0.iter().zip(0i64..).map(|(distance, index)| {
        let token = index.saturating_add(i64::from_le_bytes(*distance));
        let known = u32::try_from(token).ok().filter(|&token| (token as usize) < vocab_size);
        known.filter(|&token| seen.insert(token)).map(TokenId).ok_or_else(|| {
            let (file, index) = (file.clone(), index as usize);
            CheckpointError::DraftToken { file, index, token, vocab_size }
        })
    });
    tokens.collect::<Result<_, _>>().map(Some)
}

/// Opens the head for multi-token prediction of the model in a folder.
fn mtp_from_folder(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let folder = HfFolder::open(path)?;
    let model = folder_config(&folder, path)?;
    if !model.architecture.family().has_mtp() || !stored_in(&folder).any(|(_, name)| name.starts_with("mtp."))
    {
        return Err(CheckpointError::NoMtp { file: path.display().to_string() });
    }
    let root = root_of(&model, &folder);
    let (config, container) = (mtp_config(model, &path.display().to_string())?, tensors::Container::Json);
    let mut weights = HashMap::new();
    for slot in slots(&config) {
        let mut place = mtp_place(&config, &slot, container, 0);
        if is_of_target(&slot) {
            place.names.iter_mut().for_each(|name| *name = rooted(name, root));
            if folder.tensor(&place.names[0]).is_none() {
                continue;
            }
        }
        weights.insert(slot.id, check(&slot, place, |name| in_folder(&folder, path, name))?);
    }
    let stored = stored_in(&folder).filter(|(_, name)| name.starts_with("mtp."));
    refuse_unexpected(&config, &weights, stored)?;
    let (name, container, draft_tokens) = (folder_name(path), Container::Hf(folder), None);
    Ok(Checkpoint { name, container, config, weights, draft_tokens, pre_tokenizer: None })
}

fn folder_config(folder: &HfFolder, path: &Path) -> Result<ModelConfig, CheckpointError> {
    let config_file = path.join("config.json").display().to_string();
    let Some(config_text) = folder.text("config.json")? else {
        let folder = path.display().to_string();
        return Err(HfError::MissingFile { folder, file: "config.json" }.into());
    };
    Ok(parse_config(&config_text, &config_file)?)
}

fn folder_name(path: &Path) -> String {
    let name = path.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| path.display().to_string())
}

fn in_folder<'a>(folder: &'a HfFolder, path: &Path, name: String) -> Result<Found<'a>, CheckpointError> {
    let Some((shard, tensor)) = folder.tensor(&name) else {
        return Err(CheckpointError::MissingTensor { file: path.display().to_string(), tensor: name });
    };
    Ok(Found {
        file: shard.name(),
        name,
        shape: tensor.shape.clone(),
        ty: tensor.dtype.block_type(),
        ty_name: tensor.dtype.name().to_owned(),
    })
}

/// The tensors of a folder, each with its file.
fn stored_in(folder: &HfFolder) -> impl Iterator<Item = (&str, &str)> {
    folder.shards().iter().flat_map(|s| s.tensors().iter().map(|t| (s.name(), t.name.as_str())))
}

/// The place, or its other one if only that has a tensor.
fn there(mut place: Place, is_there: impl Fn(&str) -> bool) -> Place {
    match place.or.take() {
        Some(other) if !is_there(&place.names[0]) && is_there(&other.names[0]) => *other,
        _ => place,
    }
}

/// What stands for `model.` at the beginning of this folder's names.
fn root_of(config: &ModelConfig, folder: &HfFolder) -> &'static str {
    let roots = config.architecture.family().roots();
    let has = |root: &&&str| folder.tensor(&format!("{root}norm.weight")).is_some();
    roots.iter().find(has).or(roots.first()).copied().unwrap_or("model.")
}

/// A name with another root; that of the output matrix stands beside the root.
fn rooted(name: &str, root: &str) -> String {
    match name.strip_prefix("model.") {
        Some(rest) => format!("{root}{rest}"),
        None => match root.strip_suffix("model.") {
            Some(outer) => format!("{outer}{name}"),
            None => name.to_owned(),
        },
    }
}

/// A tensor as a container describes it. The shape has the rows first.
struct Found<'a> {
    file: &'a str,
    name: String,
    shape: Vec<u64>,
    ty: Option<BlockType>,
    ty_name: String,
}

/// Checks the stored tensors of a slot, which `find` returns by name.
fn check<'a>(
    slot: &Slot,
    place: Place,
    find: impl Fn(String) -> Result<Found<'a>, CheckpointError>,
) -> Result<TensorInfo, CheckpointError> {
    let Place { names, shape: expected, rows: order, change, scales, or: _ } = place;
    let is_vector = slot.shape.len() == 1;
    // Each factor is bounded by the limits of `ModelConfig`, so both fit in usize.
    let n_cols = slot.shape[slot.shape.len() - 1] as usize;
    let n_rows = if is_vector { 1 } else { slot.shape[0] as usize };
    if let Some(scales) = scales {
        return check_mxfp4(n_cols, (n_rows, order, change), (names, expected, scales), find);
    }
    let mut first: Option<BlockType> = None;
    for name in &names {
        let Found { file, name, shape, ty, ty_name } = find(name.clone())?;
        let file = || file.to_owned();
        if trimmed(&shape) != trimmed(&expected) {
            return Err(CheckpointError::WrongShape { file: file(), tensor: name, expected, found: shape });
        }
        // The elements of a vector are used one by one, so only plain floats are accepted. The parts of a tensor
        // have one type.
        let fits =
            |ty: &BlockType| (!is_vector || ty.block_len() == 1) && first.is_none_or(|first| first == *ty);
        let Some(ty) = ty.filter(fits) else {
            return Err(CheckpointError::UnsupportedType { file: file(), tensor: name, ty: ty_name });
        };
        if !n_cols.is_multiple_of(ty.block_len()) {
            let (block_len, ty) = (ty.block_len(), ty.name());
            return Err(CheckpointError::PartialBlock { file: file(), tensor: name, n_cols, block_len, ty });
        }
        first = Some(ty);
    }
    let ty = first.expect("every tensor is stored under a name");
    Ok(TensorInfo { names, ty, n_rows, n_cols, order, change, scales: None })
}

/// The codes of MXFP4, and their exponents: bytes, whose shapes end with the blocks of a row.
fn check_mxfp4<'a>(
    n_cols: usize,
    (n_rows, order, change): (usize, RowOrder, tensors::Change),
    (names, expected, scales): (Vec<String>, Vec<u64>, String),
    find: impl Fn(String) -> Result<Found<'a>, CheckpointError>,
) -> Result<TensorInfo, CheckpointError> {
    let ty = BlockType::Mxfp4;
    let (block_len, n_blocks) = (ty.block_len(), (n_cols / ty.block_len()) as u64);
    let rows = &expected[..expected.len() - 1];
    let parts = [(&names[0], [rows, &[n_blocks, 16]].concat()), (&scales, [rows, &[n_blocks]].concat())];
    for (name, expected) in parts {
        let Found { file, name, shape, ty_name, .. } = find(name.clone())?;
        let file = file.to_owned();
        if ty_name != "U8" {
            return Err(CheckpointError::UnsupportedType { file, tensor: name, ty: ty_name });
        }
        if !n_cols.is_multiple_of(block_len) {
            return Err(CheckpointError::PartialBlock {
                file,
                tensor: name,
                n_cols,
                block_len,
                ty: ty.name(),
            });
        }
        if trimmed(&shape) != trimmed(&expected) {
            return Err(CheckpointError::WrongShape { file, tensor: name, expected, found: shape });
        }
    }
    Ok(TensorInfo { names, ty, n_rows, n_cols, order, change, scales: Some(scales) })
}

fn refuse_unexpected<'a>(
    config: &ModelConfig,
    weights: &HashMap<WeightId, TensorInfo>,
    stored: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), CheckpointError> {
    let names = weights.values().flat_map(|info| info.names.iter().chain(&info.scales));
    let used: HashSet<&str> = names.map(String::as_str).collect();
    for (file, name) in stored {
        if !used.contains(name) && !is_redundant(name, config) {
            return Err(CheckpointError::UnexpectedTensor {
                file: file.to_owned(),
                tensor: name.to_owned(),
                architecture: config.architecture.name(),
            });
        }
    }
    Ok(())
}
