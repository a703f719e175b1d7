//! The costs of verification batches in a replay without a model.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refrain::LoadError;
use refrain::SessionOptions;
use refrain::device::MachineProfile;
use refrain::internals::draft::CostProfile;
use refrain_files::open_regular;
use thiserror::Error;

/// Maximum length of a list of pairs, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The costs of batches.
#[derive(Clone, Debug)]
pub enum Costs {
    /// Independent of the context length.
    Fixed(Box<CostProfile>),
    /// As measured on a machine: higher for longer contexts.
    Machine(Arc<MachineProfile>),
}

/// A file contains no costs.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostsError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file exceeds the maximum length.
    #[error("{path}: longer than {FILE_BYTES_MAX} bytes", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file starts as a list, but it is not a list of pairs.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// The list contains no pair of positive numbers.
    #[error("{path}: no measurement", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is neither a list nor a profile.
    #[error(transparent)]
    Profile(#[from] LoadError),
}

impl Costs {
    /// Rows are free: only drafting is compared.
    pub fn free() -> Self {
        Costs::Fixed(Box::new(CostProfile::free_rows(1.0)))
    }

    /// Reads a profile of `refrain model profile`, or a JSON list of pairs `[rows, microseconds]`.
    ///
    /// # Errors
    /// [`CostsError`].
    pub fn read(path: &Path) -> Result<Self, CostsError> {
        let io = |source| CostsError::Io { path: path.to_owned(), source };
        let mut text = Vec::new();
        open_regular(path).map_err(io)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(CostsError::TooLarge { path: path.to_owned() });
        }
        if text.trim_ascii_start().first() != Some(&b'[') {
            return Ok(Costs::Machine(Arc::new(MachineProfile::read(path)?)));
        }
        let pairs: Vec<(usize, f32)> = serde_json::from_slice(&text)
            .map_err(|source| CostsError::Json { path: path.to_owned(), source })?;
        if !pairs.iter().any(|&(rows, us)| rows > 0 && us.is_finite() && us > 0.0) {
            return Err(CostsError::Empty { path: path.to_owned() });
        }
        Ok(Costs::Fixed(Box::new(CostProfile::from_measurements(&pairs))))
    }

    /// The costs of batches after `context` tokens, computed as in the engine.
    pub fn behind(&self, context: usize) -> CostProfile {
        match self {
            Costs::Fixed(costs) => (**costs).clone(),
            Costs::Machine(profile) => profile.costs(context, SessionOptions::default().projection_rows),
        }
    }

    /// Whether the costs depend on the context length.
    pub fn knows_contexts(&self) -> bool {
        matches!(self, Costs::Machine(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pairs_is_read_and_anything_else_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.json");
        std::fs::write(&path, " [[1, 100.0], [8, 200]]").unwrap();
        let costs = Costs::read(&path).unwrap();
        assert!(!costs.knows_contexts());
        assert!((costs.behind(5000).verify_us(8, 1) - 200.0).abs() < 0.1);
        for bad in ["", "[]", "{}", "[[1]]", "[[-1, 2]]", "[[0, 2]]", "[[1, -2]]", "{\"version\": 77}"] {
            std::fs::write(&path, bad).unwrap();
            let error = Costs::read(&path).unwrap_err().to_string();
            assert!(error.contains("costs.json"), "{bad}: {error}");
        }
        std::fs::write(&path, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(Costs::read(&path), Err(CostsError::TooLarge { .. })));
        assert!(matches!(Costs::read(&folder.path().join("none")), Err(CostsError::Io { .. })));
    }
}
