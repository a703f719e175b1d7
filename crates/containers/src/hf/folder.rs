//! The files of a Hugging Face folder, and the shard of each tensor.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{HfError, SafetensorsFile, StoredTensor};
use refrain_files::open_regular;

/// Longest text file read (`tokenizer.json` of the largest published vocabularies: about 35 MB).
pub const JSON_BYTES_MAX: u64 = 256 << 20;
/// Most shards of one model (published: 191).
pub const SHARDS_MAX: usize = 1024;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// A folder with opened shards that agree with the index.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    shards: Vec<SafetensorsFile>,
    /// Tensor name → (shard, index in the shard's table).
    tensors: HashMap<String, (usize, usize)>,
}

impl HfFolder {
    /// Opens the weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json`
    /// names.
    ///
    /// # Errors
    /// [`HfError`]; nothing stays open.
    pub fn open(path: &Path) -> Result<Self, HfError> {
        if path.join(SINGLE).is_file() {
            return Self::from_shards(path, vec![SafetensorsFile::open(&path.join(SINGLE))?]);
        }
        let Some(text) = read_text(&path.join(INDEX), JSON_BYTES_MAX)? else {
            return Err(HfError::MissingFile { folder: path.display().to_string(), file: SINGLE });
        };
        Self::open_sharded(path, &text)
    }

    fn open_sharded(path: &Path, index_text: &str) -> Result<Self, HfError> {
        let file = path.join(INDEX).display().to_string();
        let index = ShardIndex::parse(index_text, &file)?;
        let names = index.shards();
        let mut shards = Vec::with_capacity(names.len());
        for name in &names {
            shards.push(SafetensorsFile::open(&path.join(name))?);
        }
        for (name, shard) in names.iter().zip(&shards) {
            for tensor in shard.tensors() {
                if index.shard_of(&tensor.name) != Some(name) {
                    let (tensor, shard) = (tensor.name.clone(), (*name).to_owned());
                    return Err(HfError::NotInIndex { file, tensor, shard });
                }
            }
        }
        let folder = Self::from_shards(path, shards)?;
        for (tensor, shard) in &index.weight_map {
            if !folder.tensors.contains_key(tensor) {
                return Err(HfError::NotInShard { file, tensor: tensor.clone(), shard: shard.clone() });
            }
        }
        Ok(folder)
    }

    fn from_shards(path: &Path, shards: Vec<SafetensorsFile>) -> Result<Self, HfError> {
        let mut tensors = HashMap::new();
        for (shard_idx, shard) in shards.iter().enumerate() {
            for (tensor_idx, tensor) in shard.tensors().iter().enumerate() {
                tensors.insert(tensor.name.clone(), (shard_idx, tensor_idx));
            }
        }
        Ok(Self { path: path.to_owned(), shards, tensors })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The opened `.safetensors` files, in order of name.
    pub fn shards(&self) -> &[SafetensorsFile] {
        &self.shards
    }

    /// The tensor called `name`, with the file that holds it.
    pub fn tensor(&self, name: &str) -> Option<(&SafetensorsFile, &StoredTensor)> {
        let &(shard_idx, tensor_idx) = self.tensors.get(name)?;
        let shard = self.shards.get(shard_idx)?;
        Some((shard, shard.tensors().get(tensor_idx)?))
    }

    /// Reads a text file of the folder; `None` if it does not exist.
    ///
    /// # Errors
    /// [`HfError::Io`], [`HfError::TooLarge`] over [`JSON_BYTES_MAX`], [`HfError::NotUtf8`].
    pub fn text(&self, name: &str) -> Result<Option<String>, HfError> {
        Self::text_in(&self.path, name)
    }

    /// As [`text`](Self::text), of a folder whose weights are not opened.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn text_in(path: &Path, name: &str) -> Result<Option<String>, HfError> {
        read_text(&path.join(name), JSON_BYTES_MAX)
    }
}

/// Reads a text file; `None` if it does not exist. The limit holds even if the file grows while it is read.
fn read_text(path: &Path, limit: u64) -> Result<Option<String>, HfError> {
    let file = || path.display().to_string();
    let io = |source| HfError::Io { file: file(), source };
    let handle = match open_regular(path) {
        Ok(handle) => handle,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    let len = handle.metadata().map_err(io)?.len();
    if len > limit {
        return Err(HfError::TooLarge { file: file(), len, limit });
    }
    let mut bytes = Vec::new();
    handle.take(limit).read_to_end(&mut bytes).map_err(io)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(e) => Err(HfError::NotUtf8 { file: file(), offset: e.utf8_error().valid_up_to() }),
    }
}

/// Whether a shard's name is a plain file name on every system, so that it cannot leave the folder.
fn is_plain_file_name(name: &str) -> bool {
    name.ends_with(".safetensors")
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':', '\0'])
}

/// A checked `model.safetensors.index.json`: the shard of each tensor.
#[derive(Debug)]
pub struct ShardIndex {
    weight_map: HashMap<String, String>,
}

impl ShardIndex {
    /// Parses an index; `file` is for messages.
    ///
    /// # Errors
    /// [`HfError::Index`], [`HfError::ShardName`] for a name that would leave the folder,
    /// [`HfError::TooManyShards`].
    pub fn parse(text: &str, file: &str) -> Result<Self, HfError> {
        let file = || file.to_owned();
        let index: IndexJson =
            serde_json::from_str(text).map_err(|e| HfError::Index { file: file(), reason: e.to_string() })?;
        let index = Self { weight_map: index.weight_map.0 };
        let shards = index.shards();
        if let Some(shard) = shards.iter().find(|shard| !is_plain_file_name(shard)) {
            return Err(HfError::ShardName { file: file(), shard: (*shard).to_owned() });
        }
        if shards.len() > SHARDS_MAX {
            return Err(HfError::TooManyShards { file: file(), count: shards.len(), limit: SHARDS_MAX });
        }
        Ok(index)
    }

    /// Names of all shards, sorted: plain file names.
    pub fn shards(&self) -> Vec<&str> {
        let names: BTreeSet<&str> = self.weight_map.values().map(String::as_str).collect();
        names.into_iter().collect()
    }

    /// The shard that should hold a tensor.
    pub fn shard_of(&self, tensor: &str) -> Option<&str> {
        self.weight_map.get(tensor).map(String::as_str)
    }
}

#[derive(Deserialize)]
struct IndexJson {
    weight_map: WeightMap,
}

/// Tensor name → shard name; a name given twice is an error.
struct WeightMap(HashMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;
        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor names to shard names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut weight_map = HashMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if let Some(first) = weight_map.insert(tensor, shard) {
                        return Err(A::Error::custom(format_args!("a tensor of {first:?} is given twice")));
                    }
                }
                Ok(WeightMap(weight_map))
            }
        }
        deserializer.deserialize_map(WeightMapVisitor)
    }
}
