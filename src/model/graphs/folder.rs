//! An open folder of graphs. Every header is checked, alone and against the others; no weights are read.

use std::path::{Path, PathBuf};

use super::GraphsError;
use crate::model::config::ModelConfig;
use crate::model::packed::{ModelIdentity, PackedFile, Piece};
use crate::schedule::{GraphKind, SwitchTimes, TimesError};
use refrain_files::replace::{Manner, ReplaceError, replace_bytes};

/// The file with everything except the layers. A folder with such a file is a folder of graphs.
pub(in crate::model) const ENDS: &str = "graphs.refrain";
/// Measured times.
const TIMES: &str = "times.json";

/// The file of a graph.
pub(super) fn graph_name(block_idx: usize, graph: GraphKind) -> String {
    format!("block-{block_idx:03}-{graph}.refrain")
}

/// An open folder of graphs.
#[derive(Debug)]
pub struct GraphFolder {
    path: PathBuf,
    ends: PackedFile,
    piece: Piece,
    /// The graphs of each block, in the order of [`GraphKind::ALL`].
    graphs: Vec<[PackedFile; 2]>,
}

impl GraphFolder {
    /// Opens all files of a folder.
    ///
    /// # Errors
    /// [`GraphsError::Packed`], [`GraphsError::Foreign`]; nothing stays open.
    pub fn open(path: &Path) -> Result<Self, GraphsError> {
        let ends = PackedFile::open(&path.join(ENDS))?;
        let Some(piece) = ends.piece().cloned() else {
            let file = ends.file().to_owned();
            let (found, expected) = ("a whole model".to_owned(), "all but the layers".to_owned());
            return Err(GraphsError::Foreign { file, field: "the content", found, expected });
        };
        check(&ends, &ends, &piece, None)?;
        let mut graphs = Vec::with_capacity(piece.blocks.len());
        for block_idx in 0..piece.blocks.len() {
            let open = |graph| -> Result<PackedFile, GraphsError> {
                let file = PackedFile::open(&path.join(graph_name(block_idx, graph)))?;
                check(&file, &ends, &piece, Some((block_idx, graph)))?;
                Ok(file)
            };
            let [prefill, verify] = GraphKind::ALL.map(open);
            graphs.push([prefill?, verify?]);
        }
        if ends.config().is_recurrent() {
            return Err(GraphsError::Recurrent { file: ends.file().to_owned() });
        }
        Ok(Self { path: path.to_owned(), ends, piece, graphs })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        self.ends.config()
    }

    /// The model's identity, stated in every file.
    pub fn identity(&self) -> ModelIdentity {
        self.piece.model
    }

    /// The blocks of the model, and the lengths of its graphs.
    pub fn piece(&self) -> &Piece {
        &self.piece
    }

    /// The file with tokenizer, embedding, norm and head.
    pub fn ends(&self) -> &PackedFile {
        &self.ends
    }

    /// The file of a graph.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn graph(&self, block_idx: usize, graph: GraphKind) -> &PackedFile {
        &self.graphs[block_idx][graph as usize]
    }

    /// All files: the one without layers, then the graphs of each block.
    pub fn files(&self) -> impl Iterator<Item = &PackedFile> {
        std::iter::once(&self.ends).chain(self.graphs.iter().flatten())
    }

    /// The times that were stored in the folder, if any.
    ///
    /// # Errors
    /// [`TimesError`] if the file exists but cannot be parsed.
    pub fn times(&self) -> Result<Option<SwitchTimes>, TimesError> {
        match SwitchTimes::read(&self.path.join(TIMES)) {
            Ok(times) => Ok(Some(times)),
            Err(TimesError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores times in the folder, for [`GraphFolder::times`]; returns their file.
    ///
    /// # Errors
    /// [`TimesError::Io`]; stored times are unchanged.
    pub fn store_times(&self, times: &SwitchTimes) -> Result<PathBuf, TimesError> {
        let path = self.path.join(TIMES);
        let written = replace_bytes(&path, Manner::Shared, times.to_json().as_bytes());
        written.map_err(|ReplaceError { path, source, .. }| TimesError::Io { path, source })?;
        Ok(path)
    }
}

/// Checks that `file` is the expected graph of the same model, cut into the same blocks.
fn check(
    file: &PackedFile,
    ends: &PackedFile,
    piece: &Piece,
    graph: Option<(usize, GraphKind)>,
) -> Result<(), GraphsError> {
    let describe = |graph: Option<(usize, GraphKind)>| match graph {
        None => "all but the layers".to_owned(),
        Some((block_idx, graph)) => format!("the {graph} graph of block {block_idx}"),
    };
    let cut = |piece: &Piece| {
        let ends: Vec<usize> = piece.blocks.iter().map(|block| block.end).collect();
        format!("blocks to layers {ends:?} for {} and {} rows", piece.prefill_len, piece.verify_len)
    };
    let model = |piece: &Piece| piece.model.to_string();
    let config = |file: &PackedFile| format!("{:?}", file.config());
    let Some(found) = file.piece() else {
        let (found, expected) = ("a whole model".to_owned(), describe(graph));
        return Err(GraphsError::Foreign {
            file: file.file().to_owned(),
            field: "the content",
            found,
            expected,
        });
    };
    for (field, found, expected) in [
        ("the model", model(found), model(piece)),
        ("the cut", cut(found), cut(piece)),
        ("the content", describe(found.graph), describe(graph)),
        ("the hyper-parameters", config(file), config(ends)),
    ] {
        if found != expected {
            return Err(GraphsError::Foreign { file: file.file().to_owned(), field, found, expected });
        }
    }
    Ok(())
}
