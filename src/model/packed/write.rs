//! Packs a checkpoint into a file, section by section.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use thiserror::Error;

use super::header::{Checksum, FileJson, Header, SectionJson, TensorJson, TokenizerJson, data_start};
use super::identity::{ModelIdentity, identity, vector_bytes};
use super::plan::{PlannedSection, Scope, plan};
use super::sum::SectionSum;
use super::{HEADER_BYTES_MAX, PAGE_BYTES, tokenizer};
use crate::kernels::BlockType;
use crate::model::checkpoint::{Checkpoint, CheckpointError, Container};
use crate::model::resident::TensorSource;
use crate::model::weights::{LoadOptions, Loader, WeightsError};
use refrain_containers::gguf::GgufWriteError;
use refrain_files::replace::{Manner, ReplaceError, replace_file};

/// A model could not be packed. An existing file at the path is unchanged, and no partial file remains.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WritePackedError {
    /// The model is packed already. Packing needs the original model.
    #[error("{file}: packed already; pack the GGUF file or the folder that it came from")]
    AlreadyPacked {
        /// The file.
        file: String,
    },
    /// A draft head has no packed form.
    #[error("{file}: a draft head is not packed; a model drafts with it as it is")]
    DraftHead {
        /// The file or folder.
        file: String,
    },
    /// A number is outside its range.
    #[error("{option}: {given} is outside 1..={max}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: usize,
        /// The largest value.
        max: usize,
    },
    /// Static graphs compute rows in calls of a fixed length, which recurrent layers do not support.
    #[error("{file}: static graphs cannot hold recurrent layers")]
    Recurrent {
        /// The model.
        file: String,
    },
    /// Weights are packed in little-endian order, and this machine is big endian.
    #[error("packed files cannot be written on a big-endian machine")]
    BigEndianHost,
    /// A file of the model could not be read.
    #[error(transparent)]
    Load(#[from] CheckpointError),
    /// The weights could not be read or packed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer's metadata could not be written as GGUF.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] GgufWriteError),
    /// The header would be longer than a reader accepts: the model's name or its table of tensors is too long.
    #[error("a header of {len} bytes is over the limit of {limit}")]
    HeaderTooLong {
        /// Its length.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The total size of the tensors in bytes exceeds 64 bits.
    #[error("{file}: the sizes of the tensors overflow")]
    SizeOverflow {
        /// The model.
        file: String,
    },
    /// A write failed, for example on a full disk.
    #[error("{file}: cannot write at byte {offset}: {source}")]
    Write {
        /// The new file.
        file: String,
        /// Bytes written before.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The new file could not be created, synced or renamed.
    #[error("cannot {action} `{path}`: {source}")]
    Replace {
        /// The failed action.
        action: &'static str,
        /// Its file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<ReplaceError> for WritePackedError {
    fn from(ReplaceError { action, path, source }: ReplaceError) -> Self {
        Self::Replace { action, path: path.display().to_string(), source }
    }
}

/// A summary of the written file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackSummary {
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Bytes of all sections of weights, padding included.
    pub weights_bytes: u64,
    /// Number of sections of weights.
    pub n_sections: usize,
    /// The model's identity.
    pub identity: ModelIdentity,
}

/// Packs `checkpoint` into the file `path`. The file appears complete or not at all, and replaces an existing
/// one.
///
/// [`LoadOptions::quantize`] decides the types of the weights, as when the checkpoint is loaded. Memory holds
/// at most one tensor in both forms, and the tokenizer's files.
///
/// # Errors
/// [`WritePackedError`]; an existing file at `path` is unchanged.
pub fn pack(
    checkpoint: &Checkpoint,
    path: &Path,
    options: LoadOptions<'_>,
) -> Result<PackSummary, WritePackedError> {
    let packing = Packing::new(checkpoint, options)?;
    let name = path.display().to_string();
    replace_file(path, Manner::Shared, |file| packing.write(Output { out: file, name, offset: 0 }))
}

/// A checkpoint that is being packed.
struct Packing<'a> {
    loader: Loader<'a>,
    checkpoint: &'a Checkpoint,
    tokenizer: tokenizer::Files,
    sections: Vec<PlannedSection>,
    header: Header,
}

impl<'a> Packing<'a> {
    /// Plans the file. No weights are read yet.
    fn new(checkpoint: &'a Checkpoint, options: LoadOptions<'a>) -> Result<Self, WritePackedError> {
        if cfg!(target_endian = "big") {
            return Err(WritePackedError::BigEndianHost);
        }
        if let Some(file) = checkpoint.packed() {
            return Err(WritePackedError::AlreadyPacked { file: file.file().to_owned() });
        }
        if checkpoint.config().draft_head.is_some() {
            return Err(WritePackedError::DraftHead { file: checkpoint.name().to_owned() });
        }
        let tokenizer = tokenizer_files(checkpoint)?;
        let loader = Loader::new(checkpoint, options)?;
        let config = checkpoint.config();
        let tokenizer_json = tokenizer_json(&tokenizer);
        let ty_of = |id| checkpoint.tensor(id).map_or(BlockType::F32, |info| loader.target_type(id, info));
        let overflow = || WritePackedError::SizeOverflow { file: checkpoint.name().to_owned() };
        let sections = plan(config, &Scope::All, tokenizer_json.len, &ty_of).ok_or_else(overflow)?;
        let header = Header {
            name: checkpoint.name().to_owned(),
            packed_by: PACKED_BY.to_owned(),
            config: config.clone(),
            tokenizer: tokenizer_json,
            sections: sections.iter().map(section_json).collect(),
            piece: None,
        };
        let len = header.to_json().len() as u64;
        if len > HEADER_BYTES_MAX {
            return Err(WritePackedError::HeaderTooLong { len, limit: HEADER_BYTES_MAX });
        }
        Ok(Self { loader, checkpoint, tokenizer, sections, header })
    }

    /// Writes the data behind the space for the header, then the header with the checksums.
    fn write<W: Write + Seek>(mut self, mut output: Output<W>) -> Result<PackSummary, WritePackedError> {
        let data_start = data_start(self.header.to_json().len() as u64);
        output.seek(data_start)?;
        self.header.tokenizer.checksum = Checksum(write_tokenizer(&self.tokenizer, &mut output)?);
        let mut checksums = Vec::with_capacity(self.sections.len());
        for section in &self.sections {
            checksums.push(write_section(&mut self.loader, section, &mut [&mut output])?);
        }
        for (section, &checksum) in self.header.sections.iter_mut().zip(&checksums) {
            section.checksum = Checksum(checksum);
        }
        let file_bytes = output.offset;
        let header = Header::encode(&self.header.to_json(), file_bytes - data_start);
        assert_eq!(header.len() as u64, data_start, "checksums do not change the header's length");
        output.seek(0)?;
        output.write(&header)?;
        Ok(PackSummary {
            file_bytes,
            weights_bytes: self.sections.iter().map(|section| section.len).sum(),
            n_sections: self.sections.len(),
            identity: identity(self.checkpoint.config(), &self.sections, &checksums),
        })
    }
}

/// The writing program, as stated in headers.
pub(super) const PACKED_BY: &str = concat!("refrain ", env!("CARGO_PKG_VERSION"));

/// The tokenizer's files of a model in any container.
pub(super) fn tokenizer_files(checkpoint: &Checkpoint) -> Result<tokenizer::Files, WritePackedError> {
    Ok(match checkpoint.container() {
        Container::Gguf(file) => tokenizer::from_gguf(file)?,
        Container::Hf(folder) => tokenizer::from_folder(folder).map_err(CheckpointError::from)?,
        Container::Packed(file) => file.tokenizer_files().map_err(CheckpointError::from)?,
        Container::Graphs(folder) => folder.ends().tokenizer_files().map_err(CheckpointError::from)?,
    })
}

/// The table of the tokenizer's files; the checksum is set after they are written.
pub(super) fn tokenizer_json(files: &tokenizer::Files) -> TokenizerJson {
    let files = files.iter().map(|(name, bytes)| FileJson { name: name.clone(), len: bytes.len() as u64 });
    let files: Vec<FileJson> = files.collect();
    // The files are in memory, so the sum of their lengths does not overflow.
    let len = files.iter().map(|file| file.len).sum::<u64>().next_multiple_of(PAGE_BYTES);
    TokenizerJson { len, checksum: Checksum::default(), files }
}

/// Writes the tokenizer's files; returns their checksum.
pub(super) fn write_tokenizer<W: Write + Seek>(
    files: &tokenizer::Files,
    output: &mut Output<W>,
) -> Result<u64, WritePackedError> {
    let mut sum = SectionSum::new();
    for (_, bytes) in files {
        sum.update(bytes);
        output.write(bytes)?;
    }
    output.write(sum.pad_page())?;
    Ok(sum.digest())
}

/// Reads and packs the tensors of a section, one after another, and writes them to every output; returns
/// their checksum.
pub(super) fn write_section<W: Write + Seek>(
    loader: &mut Loader<'_>,
    section: &PlannedSection,
    outputs: &mut [&mut Output<W>],
) -> Result<u64, WritePackedError> {
    let mut write = |bytes: &[u8]| outputs.iter_mut().try_for_each(|output| output.write(bytes));
    let mut sum = SectionSum::new();
    for tensor in &section.tensors {
        let (matrix, vector);
        let bytes = match tensor.shape.len() {
            1 => {
                vector = vector_bytes(&loader.vector(tensor.id)?);
                vector.as_slice()
            }
            _ => {
                matrix = loader.matrix(tensor.id)?;
                matrix.panel_bytes()
            }
        };
        assert_eq!(bytes.len() as u64, tensor.len, "{} is as long as planned", tensor.name);
        sum.update(bytes);
        write(bytes)?;
        write(sum.pad_line())?;
    }
    write(sum.pad_page())?;
    Ok(sum.digest())
}

pub(super) fn section_json(section: &PlannedSection) -> SectionJson {
    let tensors = section.tensors.iter().map(|tensor| TensorJson {
        name: tensor.name.clone(),
        ty: tensor.ty.name().to_owned(),
        shape: tensor.shape.clone(),
        offset: tensor.offset,
        len: tensor.len,
    });
    SectionJson {
        name: section.part.to_string(),
        offset: section.offset,
        len: section.len,
        checksum: Checksum::default(),
        tensors: tensors.collect(),
    }
}

/// The new file, and the number of bytes written.
pub(super) struct Output<W> {
    pub(super) out: W,
    pub(super) name: String,
    pub(super) offset: u64,
}

impl<W: Write + Seek> Output<W> {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), WritePackedError> {
        self.out.write_all(bytes).map_err(|e| self.error(e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn seek(&mut self, offset: u64) -> Result<(), WritePackedError> {
        self.out.seek(SeekFrom::Start(offset)).map_err(|e| self.error(e))?;
        self.offset = offset;
        Ok(())
    }

    fn error(&self, source: io::Error) -> WritePackedError {
        WritePackedError::Write { file: self.name.clone(), offset: self.offset, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for `room` bytes.
    struct SmallDisk {
        room: u64,
        data: io::Cursor<Vec<u8>>,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n_bytes = self.room.saturating_sub(self.data.position()).min(bytes.len() as u64);
            if n_bytes == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.data.write(&bytes[..n_bytes as usize])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for SmallDisk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.data.seek(to)
        }
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_comes() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let checkpoint = Checkpoint::open(fixture).unwrap();
        let write = |room: u64| {
            let out = SmallDisk { room, data: io::Cursor::new(Vec::new()) };
            let packing = Packing::new(&checkpoint, LoadOptions::default()).unwrap();
            packing.write(Output { out, name: "small".to_owned(), offset: 0 })
        };
        let file_bytes = write(u64::MAX).unwrap().file_bytes;
        assert_eq!(write(file_bytes).unwrap().file_bytes, file_bytes);
        for room in [0, 1, 4096, file_bytes / 2, file_bytes - 1] {
            match write(room) {
                Err(WritePackedError::Write { offset, source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                    assert!(offset <= file_bytes, "{offset}");
                }
                other => panic!("room {room}: {other:?}"),
            }
        }
    }
}
