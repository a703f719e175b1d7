//! Predictor files. All numbers are little-endian.
//!
//! ```text
//! offset  0  magic `RFRNPRED`
//!         8  u32 format version
//!         12  u32 layer before which rows are scored
//!        16  u128 identity of the model
//!        32  u32 hidden width, u32 rank, u32 entries of the vocabulary, u32 tokens of the shadow pool
//!        48  u64 XXH3 of every other byte
//!        56  f32 [rank, hidden width], then f16 [vocabulary, rank], then u32 [pool], rising
//! ```
//!
//! The header determines the length of the file, which is checked before any allocation. A file is written
//! under another name and then renamed.

use std::io::{Read, Write};
use std::path::Path;

use half::f16;
use xxhash_rust::xxh3::Xxh3;

use super::error::PredictorError;
use super::parts::{PredictorParts, SHADOW_POOL_MAX};
use crate::model::packed::ModelIdentity;
use refrain_files::open_regular;
use refrain_files::replace::{Manner, replace_file};
use refrain_trees::TokenId;

/// The first bytes of a predictor file.
pub const MAGIC: [u8; 8] = *b"RFRNPRED";

/// The format version of this program.
pub const FORMAT_VERSION: u32 = 1;

const HEADER_LEN: usize = 56;
const CHECKSUM: std::ops::Range<usize> = 48..56;

/// Maximum layers and widths of a model, as for model files.
const LAYERS_MAX: u64 = 1024;
const HIDDEN_DIM_MAX: u64 = 1 << 16;
const VOCAB_SIZE_MAX: u64 = 1 << 22;
/// Maximum rank; with a higher rank the predictor would not be small compared with the model.
const RANK_MAX: u64 = 1024;

/// Reads the parts in a predictor file. They are not [checked](check).
pub(super) fn read(path: &Path) -> Result<PredictorParts, PredictorError> {
    let name = path.display().to_string();
    let io = |source| PredictorError::Io { file: path.display().to_string(), source };
    let mut file = open_regular(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let mut bytes = Vec::new();
    (&mut file).take(HEADER_LEN as u64).read_to_end(&mut bytes).map_err(io)?;
    let header = Header::parse(&bytes, len, &name)?;
    file.take(header.file_len() - HEADER_LEN as u64).read_to_end(&mut bytes).map_err(io)?;
    parse(&bytes, &name)
}

/// The parts in the bytes of a predictor file. They are not [checked](check).
pub(super) fn parse(bytes: &[u8], name: &str) -> Result<PredictorParts, PredictorError> {
    let header = Header::parse(bytes, bytes.len() as u64, name)?;
    let (stated, computed) = (u64_at(bytes, CHECKSUM.start), checksum(bytes));
    if stated != computed {
        return Err(PredictorError::Checksum { file: name.to_owned(), stated, computed });
    }
    let Header { model, layer_idx, hidden_dim, rank, vocab_size, n_pool } = header;
    let (down, rest) = bytes[HEADER_LEN..].split_at(4 * rank * hidden_dim);
    let (up, pool) = rest.split_at(2 * vocab_size * rank);
    debug_assert_eq!(pool.len(), 4 * n_pool);
    Ok(PredictorParts {
        model,
        layer_idx,
        hidden_dim,
        rank,
        vocab_size,
        down: down.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        up: up.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect(),
        shadow_pool: pool.as_chunks().0.iter().map(|bytes| TokenId(u32::from_le_bytes(*bytes))).collect(),
    })
}

/// The file's bytes.
pub(super) fn to_bytes(parts: &PredictorParts) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend((parts.layer_idx as u32).to_le_bytes());
    bytes.extend(parts.model.to_bits().to_le_bytes());
    for number in [parts.hidden_dim, parts.rank, parts.vocab_size, parts.shadow_pool.len()] {
        bytes.extend((number as u32).to_le_bytes());
    }
    bytes.extend([0; CHECKSUM.end - CHECKSUM.start]);
    bytes.extend(parts.down.iter().flat_map(|value| value.to_le_bytes()));
    bytes.extend(parts.up.iter().flat_map(|value| value.to_le_bytes()));
    bytes.extend(parts.shadow_pool.iter().flat_map(|token| token.0.to_le_bytes()));
    let checksum = checksum(&bytes);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Replaces the file.
pub(super) fn write(parts: &PredictorParts, path: &Path) -> Result<(), PredictorError> {
    let io = |source| PredictorError::Io { file: path.display().to_string(), source };
    replace_file(path, Manner::Shared, |file| file.write_all(&to_bytes(parts)).map_err(io))
}

/// The checked numbers before the weights.
struct Header {
    model: ModelIdentity,
    layer_idx: usize,
    hidden_dim: usize,
    rank: usize,
    vocab_size: usize,
    n_pool: usize,
}

impl Header {
    /// Parses the header at the beginning of `bytes`, for a file of `len` bytes.
    fn parse(bytes: &[u8], len: u64, name: &str) -> Result<Self, PredictorError> {
        let file = || name.to_owned();
        if !bytes.starts_with(&MAGIC) {
            return Err(PredictorError::Magic { file: file(), found: bytes[..bytes.len().min(8)].to_vec() });
        }
        if bytes.len() < HEADER_LEN {
            return Err(PredictorError::Length { file: file(), len, expected: HEADER_LEN as u64 });
        }
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(PredictorError::Version { file: file(), version, supported: FORMAT_VERSION });
        }
        let number = |offset: usize| u32_at(bytes, offset) as usize;
        let header = Header {
            model: ModelIdentity::from_bits(u128::from_le_bytes(*array_at(bytes, 16))),
            layer_idx: number(12),
            hidden_dim: number(32),
            rank: number(36),
            vocab_size: number(40),
            n_pool: number(44),
        };
        header.check(name)?;
        let expected = header.file_len();
        if len != expected {
            return Err(PredictorError::Length { file: file(), len, expected });
        }
        Ok(header)
    }

    fn check(&self, name: &str) -> Result<(), PredictorError> {
        let [hidden_dim, vocab_size] = [self.hidden_dim, self.vocab_size].map(|number| number as u64);
        for (field, offset, value, min, max) in [
            ("the layer", 12, self.layer_idx, 1, LAYERS_MAX),
            ("the hidden width", 32, self.hidden_dim, 1, HIDDEN_DIM_MAX),
            ("the rank", 36, self.rank, 1, RANK_MAX.min(hidden_dim)),
            ("the vocabulary", 40, self.vocab_size, 1, VOCAB_SIZE_MAX),
            ("the shadow pool", 44, self.n_pool, 0, vocab_size.min(SHADOW_POOL_MAX as u64)),
        ] {
            let value = value as u64;
            if !(min..=max).contains(&value) {
                let file = name.to_owned();
                return Err(PredictorError::OutOfRange { file, field, offset, value, min, max });
            }
        }
        Ok(())
    }

    /// Within their limits, the product of the numbers is less than 2⁴⁰.
    fn file_len(&self) -> u64 {
        let [hidden_dim, rank, vocab_size, n_pool] =
            [self.hidden_dim, self.rank, self.vocab_size, self.n_pool].map(|number| number as u64);
        HEADER_LEN as u64 + 4 * rank * hidden_dim + 2 * vocab_size * rank + 4 * n_pool
    }
}

/// Checks the parts of a predictor: shapes, finite weights, and a rising pool within the vocabulary. Reported
/// offsets are those in a file.
pub(super) fn check(parts: &PredictorParts, name: &str) -> Result<(), PredictorError> {
    let PredictorParts { layer_idx, hidden_dim, rank, vocab_size, .. } = *parts;
    let n_pool = parts.shadow_pool.len();
    Header { model: parts.model, layer_idx, hidden_dim, rank, vocab_size, n_pool }.check(name)?;
    for (field, given, expected) in
        [("down", parts.down.len(), rank * hidden_dim), ("up", parts.up.len(), vocab_size * rank)]
    {
        if given != expected {
            return Err(PredictorError::Parts { field, given, expected });
        }
    }
    let file = || name.to_owned();
    let not_finite = |field, at: usize, start: usize, size: usize, value| {
        let offset = (start + at * size) as u64;
        Err(PredictorError::NotFinite { file: file(), field, offset, value })
    };
    if let Some(at) = parts.down.iter().position(|value| !value.is_finite()) {
        return not_finite("down", at, HEADER_LEN, 4, parts.down[at]);
    }
    let up_start = HEADER_LEN + 4 * parts.down.len();
    if let Some(at) = parts.up.iter().position(|value| !value.is_finite()) {
        return not_finite("up", at, up_start, 2, parts.up[at].to_f32());
    }
    let pool_start = up_start + 2 * parts.up.len();
    for (at, token) in parts.shadow_pool.iter().enumerate() {
        let offset = (pool_start + 4 * at) as u64;
        if token.index() >= vocab_size {
            let (value, max) = (u64::from(token.0), vocab_size as u64 - 1);
            let field = "a token of the shadow pool";
            return Err(PredictorError::OutOfRange { file: file(), field, offset, value, min: 0, max });
        }
        if let Some(before) = parts.shadow_pool[..at].last().filter(|before| before.0 >= token.0) {
            let (token, before) = (token.0, before.0);
            return Err(PredictorError::PoolOrder { file: file(), offset, token, before });
        }
    }
    Ok(())
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..CHECKSUM.start]);
    hash.update(&bytes[CHECKSUM.end..]);
    hash.digest()
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> &[u8; N] {
    bytes[offset..].first_chunk().expect("the header is there")
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*array_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*array_at(bytes, offset))
}
