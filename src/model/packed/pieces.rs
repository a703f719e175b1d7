//! Writes a model in pieces, one file each. All files are written together, because each states the identity
//! of the whole model.

use std::fs::File;
use std::path::Path;

use super::HEADER_BYTES_MAX;
use super::header::{Checksum, Header, data_start};
use super::identity::identity;
use super::piece::Piece;
use super::plan::{Part, PlannedSection, Scope, plan};
use super::write::{
    Output, PACKED_BY, PackSummary, WritePackedError, section_json, tokenizer_files, tokenizer_json,
    write_section, write_tokenizer,
};
use crate::kernels::BlockType;
use crate::model::checkpoint::Checkpoint;
use crate::model::weights::{LoadOptions, Loader};
use refrain_files::replace::ReplaceError;

/// A piece to be written, and its file's name. The identity in it is not read.
pub(in crate::model) struct PieceFile {
    pub(in crate::model) name: String,
    pub(in crate::model) piece: Piece,
}

/// Writes `pieces` into `folder`, which must not contain files of these names, and syncs them.
///
/// Each tensor is read and packed once, for all pieces that contain it. Memory holds at most one tensor in
/// both forms, and the tokenizer's files.
///
/// # Errors
/// [`WritePackedError`]; incomplete files remain there.
pub(in crate::model) fn write_pieces(
    checkpoint: &Checkpoint,
    folder: &Path,
    pieces: Vec<PieceFile>,
    options: LoadOptions<'_>,
) -> Result<PackSummary, WritePackedError> {
    if cfg!(target_endian = "big") {
        return Err(WritePackedError::BigEndianHost);
    }
    let mut loader = Loader::new(checkpoint, options)?;
    let ty_of = |id| checkpoint.tensor(id).map_or(BlockType::F32, |info| loader.target_type(id, info));
    let overflow = || WritePackedError::SizeOverflow { file: checkpoint.name().to_owned() };
    let whole = plan(checkpoint.config(), &Scope::All, 0, &ty_of).ok_or_else(overflow)?;
    let tokenizer = tokenizer_files(checkpoint)?;
    let mut files = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let no_tokenizer = Vec::new();
        let tokenizer = if piece.piece.graph.is_none() { &tokenizer } else { &no_tokenizer };
        let tokenizer_json = tokenizer_json(tokenizer);
        let sections = plan(checkpoint.config(), &piece.piece.scope(), tokenizer_json.len, &ty_of);
        let header = Header {
            name: checkpoint.name().to_owned(),
            packed_by: PACKED_BY.to_owned(),
            config: checkpoint.config().clone(),
            tokenizer: tokenizer_json,
            sections: sections.as_ref().ok_or_else(overflow)?.iter().map(section_json).collect(),
            piece: Some(piece.piece.to_json()),
        };
        let mut file = Writing::create(folder, piece, header, sections.unwrap_or_default())?;
        file.header.tokenizer.checksum = Checksum(write_tokenizer(tokenizer, &mut file.output)?);
        files.push(file);
    }
    let mut checksums = Vec::with_capacity(whole.len());
    for section in &whole {
        let mut holders: Vec<&mut Writing> =
            files.iter_mut().filter(|file| file.holds(section.part)).collect();
        let mut outputs: Vec<&mut Output<File>> = holders.iter_mut().map(|file| &mut file.output).collect();
        let checksum = write_section(&mut loader, section, &mut outputs)?;
        checksums.push(checksum);
        for file in holders {
            let at = file.sections.iter().position(|held| held.part == section.part);
            file.header.sections[at.expect("it holds the section")].checksum = Checksum(checksum);
        }
    }
    let identity = identity(checkpoint.config(), &whole, &checksums);
    let mut file_bytes = 0;
    for file in files {
        file_bytes += file.finish(identity)?;
    }
    let weights_bytes = whole.iter().map(|section| section.len).sum();
    Ok(PackSummary { file_bytes, weights_bytes, n_sections: whole.len(), identity })
}

/// A file that is being written.
struct Writing {
    piece: Piece,
    header: Header,
    sections: Vec<PlannedSection>,
    output: Output<File>,
    data_start: u64,
}

impl Writing {
    fn create(
        folder: &Path,
        file: PieceFile,
        header: Header,
        sections: Vec<PlannedSection>,
    ) -> Result<Self, WritePackedError> {
        let len = header.to_json().len() as u64;
        if len > HEADER_BYTES_MAX {
            return Err(WritePackedError::HeaderTooLong { len, limit: HEADER_BYTES_MAX });
        }
        let path = folder.join(&file.name);
        let out = File::options().write(true).create_new(true).open(&path);
        let out = out.map_err(|source| ReplaceError { action: "create", path: path.clone(), source })?;
        let mut output = Output { out, name: path.display().to_string(), offset: 0 };
        let data_start = data_start(len);
        output.seek(data_start)?;
        Ok(Self { piece: file.piece, header, sections, output, data_start })
    }

    fn holds(&self, part: Part) -> bool {
        self.sections.iter().any(|section| section.part == part)
    }

    /// Writes the header with the model's identity; returns the file's length.
    fn finish(mut self, model: super::ModelIdentity) -> Result<u64, WritePackedError> {
        self.header.piece = Some(Piece { model, ..self.piece }.to_json());
        let file_bytes = self.output.offset;
        let header = Header::encode(&self.header.to_json(), file_bytes - self.data_start);
        assert_eq!(header.len() as u64, self.data_start, "checksums do not change the header's length");
        self.output.seek(0)?;
        self.output.write(&header)?;
        let path = self.output.name.into();
        self.output.out.sync_all().map_err(|source| ReplaceError { action: "sync", path, source })?;
        Ok(file_bytes)
    }
}
