//! Opens a container and checks its tensor table against the architecture.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::layout::{Slot, gguf_name, hf_name, is_interleaved_in_gguf, is_redundant, slots};
use super::{Checkpoint, Container, LoadError, TensorInfo, WeightId};
use crate::kernels::BlockType;
use crate::model::config::ModelConfig;
use crate::model::gguf::{GgufFile, GgufValue, config_from_gguf};
use crate::model::graphs::{ENDS, GraphFolder};
use crate::model::hf::{HfError, HfFolder, parse_config};
use crate::model::packed::{MAGIC, PackedFile};

pub(super) fn open(path: &Path) -> Result<Checkpoint, LoadError> {
    let not_a_model = |reason| LoadError::NotAModel { path: path.display().to_string(), reason };
    if path.is_dir() {
        return if path.join(ENDS).exists() {
            from_graphs(GraphFolder::open(path)?)
        } else {
            from_folder(path)
        };
    }
    if !path.exists() {
        return Err(not_a_model("no such file or folder"));
    }
    if is_kind(path, b"GGUF", "gguf") {
        return from_gguf(GgufFile::open(path)?);
    }
    if is_kind(path, &MAGIC, "refrain") {
        return from_packed(PackedFile::open(path)?);
    }
    match path.parent() {
        Some(parent) if path.extension().is_some_and(|e| e == "safetensors" || e == "json") => {
            // The parent of a bare file name is the empty path, which names the current folder.
            from_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
        }
        _ => Err(not_a_model("neither a GGUF file, a packed file, nor part of a Hugging Face folder")),
    }
}

/// Detects a format by content, or by name if the content is too short or damaged, so that the reader reports
/// the damage.
fn is_kind(path: &Path, magic: &[u8], extension: &str) -> bool {
    let mut found = vec![0; magic.len()];
    let by_content =
        File::open(path).is_ok_and(|mut file| file.read_exact(&mut found).is_ok() && found == magic);
    by_content || path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

pub(super) fn from_gguf(file: GgufFile) -> Result<Checkpoint, LoadError> {
    let config = config_from_gguf(&file, rope_factors(&file)?)?;
    let mut weights = HashMap::new();
    for Slot { id, shape } in slots(&config) {
        let name = gguf_name(id);
        let Some(tensor) = file.tensor(&name) else {
            return Err(LoadError::MissingTensor { file: file.name().to_owned(), tensor: name });
        };
        let found = Found {
            file: file.file_of(tensor),
            name,
            // GGUF lists columns first, and may pad a shape with ones.
            shape: trimmed(&tensor.dims, shape.len()),
            ty: tensor.ty.block_type(),
            ty_name: tensor.ty.to_string(),
        };
        let mut info = check(found, &shape)?;
        info.qk_interleaved = is_interleaved_in_gguf(config.architecture, id);
        weights.insert(id, info);
    }
    refuse_unexpected(&config, &weights, file.tensors().iter().map(|t| (file.file_of(t), t.name.as_str())))?;
    let stem = || Path::new(file.name()).file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = file.get("general.name").and_then(GgufValue::as_str).map(str::to_owned);
    let name = name.or_else(stem).unwrap_or_default();
    Ok(Checkpoint { name, container: Container::Gguf(file), config, weights })
}

/// Opening a packed file has checked its tensor table against the architecture.
pub(super) fn from_packed(file: PackedFile) -> Result<Checkpoint, LoadError> {
    if file.piece().is_some() {
        let reason = "one file of a model that is kept as graphs; name their folder";
        return Err(LoadError::NotAModel { path: file.file().to_owned(), reason });
    }
    let (config, name) = (file.config().clone(), file.name().to_owned());
    Ok(Checkpoint {
        name,
        weights: packed_tensors(&file).collect(),
        container: Container::Packed(file),
        config,
    })
}

fn from_graphs(folder: GraphFolder) -> Result<Checkpoint, LoadError> {
    let (config, name) = (folder.config().clone(), folder.ends().name().to_owned());
    // Both graphs of a block have the same tensors.
    let weights = folder.files().flat_map(packed_tensors).collect();
    Ok(Checkpoint { name, weights, container: Container::Graphs(folder), config })
}

fn packed_tensors(file: &PackedFile) -> impl Iterator<Item = (WeightId, TensorInfo)> {
    file.sections().iter().flat_map(|section| &section.tensors).map(|tensor| {
        // Within the limits of `ModelConfig`, so both fit in usize.
        let (n_rows, n_cols) = match *tensor.shape {
            [n_rows, n_cols] => (n_rows as usize, n_cols as usize),
            _ => (1, tensor.shape[0] as usize),
        };
        let (name, ty) = (tensor.name.clone(), tensor.ty);
        (tensor.id, TensorInfo { name, ty, n_rows, n_cols, qk_interleaved: false })
    })
}

/// Rows first, without the ones that pad a GGUF shape to more than `n_dims` dimensions.
fn trimmed(dims: &[u64], n_dims: usize) -> Vec<u64> {
    let mut dims = dims.to_vec();
    while dims.len() > n_dims && dims.last() == Some(&1) {
        dims.pop();
    }
    dims.reverse();
    dims
}

/// The frequency divisors of a llama3-scaled model; the tensor is small, so it is read immediately.
fn rope_factors(file: &GgufFile) -> Result<Option<Vec<f32>>, LoadError> {
    /// Half of the largest head.
    const FACTORS_MAX: u64 = crate::model::config::HEAD_DIM_MAX as u64 / 2;
    let Some(tensor) = file.tensor("rope_freqs.weight") else { return Ok(None) };
    if tensor.ty.block_type() != Some(BlockType::F32) {
        return Err(LoadError::UnsupportedType {
            file: file.file_of(tensor).to_owned(),
            tensor: tensor.name.clone(),
            ty: tensor.ty.to_string(),
        });
    }
    if tensor.dims.len() != 1 || tensor.dims[0] > FACTORS_MAX {
        return Err(LoadError::WrongShape {
            file: file.file_of(tensor).to_owned(),
            tensor: tensor.name.clone(),
            expected: vec![FACTORS_MAX],
            found: trimmed(&tensor.dims, 1),
        });
    }
    let bytes = file.read(tensor)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok(Some(values.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

fn from_folder(path: &Path) -> Result<Checkpoint, LoadError> {
    let folder = HfFolder::open(path)?;
    let config_file = path.join("config.json").display().to_string();
    let Some(config_text) = folder.text("config.json")? else {
        let folder = path.display().to_string();
        return Err(HfError::MissingFile { folder, file: "config.json" }.into());
    };
    let config = parse_config(&config_text, &config_file)?;
    let mut weights = HashMap::new();
    for Slot { id, shape } in slots(&config) {
        let name = hf_name(id);
        let Some((shard, tensor)) = folder.tensor(&name) else {
            return Err(LoadError::MissingTensor { file: path.display().to_string(), tensor: name });
        };
        let found = Found {
            file: shard.name(),
            name,
            shape: tensor.shape.clone(),
            ty: tensor.dtype.block_type(),
            ty_name: tensor.dtype.name().to_owned(),
        };
        weights.insert(id, check(found, &shape)?);
    }
    let stored = folder.shards().iter().flat_map(|s| s.tensors().iter().map(|t| (s.name(), t.name.as_str())));
    refuse_unexpected(&config, &weights, stored)?;
    let name = path.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
    let name = name.unwrap_or_else(|| path.display().to_string());
    Ok(Checkpoint { name, container: Container::Hf(folder), config, weights })
}

/// A tensor as a container describes it. The shape has the rows first.
struct Found<'a> {
    file: &'a str,
    name: String,
    shape: Vec<u64>,
    ty: Option<BlockType>,
    ty_name: String,
}

fn check(found: Found<'_>, expected: &[u64]) -> Result<TensorInfo, LoadError> {
    let Found { file, name, shape, ty, ty_name } = found;
    let file = || file.to_owned();
    if shape != expected {
        return Err(LoadError::WrongShape {
            file: file(),
            tensor: name,
            expected: expected.to_vec(),
            found: shape,
        });
    }
    // The elements of a vector are used one by one, so only plain floats are accepted.
    let is_vector = expected.len() == 1;
    let Some(ty) = ty.filter(|ty| !is_vector || ty.block_len() == 1) else {
        return Err(LoadError::UnsupportedType { file: file(), tensor: name, ty: ty_name });
    };
    // Each factor is bounded by the limits of `ModelConfig`, so both fit in usize.
    let n_cols = expected[expected.len() - 1] as usize;
    let n_rows = if is_vector { 1 } else { expected[0] as usize };
    if !n_cols.is_multiple_of(ty.block_len()) {
        let (block_len, ty) = (ty.block_len(), ty.name());
        return Err(LoadError::PartialBlock { file: file(), tensor: name, n_cols, block_len, ty });
    }
    Ok(TensorInfo { name, ty, n_rows, n_cols, qk_interleaved: false })
}

fn refuse_unexpected<'a>(
    config: &ModelConfig,
    weights: &HashMap<WeightId, TensorInfo>,
    stored: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), LoadError> {
    let used: HashSet<&str> = weights.values().map(|info| info.name.as_str()).collect();
    for (file, name) in stored {
        if !used.contains(name) && !is_redundant(name, config) {
            return Err(LoadError::UnexpectedTensor {
                file: file.to_owned(),
                tensor: name.to_owned(),
                architecture: config.architecture.name(),
            });
        }
    }
    Ok(())
}
