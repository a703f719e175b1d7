//! An open packed file with a checked header. Weights are read or mapped on demand.

use refrain_tokenizer::TokenizerParts as _;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::header::{Header, SectionJson, TokenizerJson};
use super::identity::{ModelIdentity, identity};
use super::piece::{self, Piece};
use super::plan::{PackedTensor, Part, PlannedSection, Scope, parts, plan};
use super::{PAGE_BYTES, PackedFileError, tokenizer};
use crate::kernels::Mapping;
use crate::kernels::{BlockType, PackError, PackedMatrix};
use crate::model::arch::tensors::standard_name;
use crate::model::checkpoint::WeightId;
use crate::model::config::ModelConfig;
use crate::model::generation_defaults::{GENERATION_CONFIG, GenerationDefaults};
use refrain_containers::Source;
use refrain_containers::gguf::{GgufFile, GgufValue};
use refrain_stream::DirectFile;
use refrain_tokenizer::{PRE_TOKENIZER, Tokenizer, TokenizerError, TokenizerProblem};

/// Bytes of a section that are read at a time during verification.
const WINDOW_BYTES: u64 = 1 << 20;

/// An open packed file. Only the header is in memory: about 300 bytes per tensor.
#[derive(Debug)]
pub struct PackedFile {
    source: Source,
    name: String,
    packed_by: String,
    config: ModelConfig,
    identity: ModelIdentity,
    /// The part of the model that the file holds; `None` for a whole model.
    piece: Option<Piece>,
    /// The offset of the data in the file.
    data_start: u64,
    tokenizer: TokenizerJson,
    sections: Vec<PackedSection>,
    /// Section, and index in the section's table.
    tensors: HashMap<WeightId, (usize, usize)>,
}

/// A section of weights: contiguous and page-aligned, so that one read returns it.
#[derive(Clone, Debug)]
pub struct PackedSection {
    /// Its content.
    pub part: Part,
    /// Its offset in the file; a multiple of [`PAGE_BYTES`].
    pub offset: u64,
    /// Its length, padding included; a multiple of [`PAGE_BYTES`].
    pub len: u64,
    /// XXH3 of those bytes.
    pub checksum: u64,
    /// Its tensors, in the order of the file.
    pub tensors: Vec<PackedTensor>,
}

impl PackedFile {
    /// Opens a packed file: reads and verifies the header, and checks every offset and length in it. The
    /// weights are not read.
    ///
    /// # Errors
    /// [`PackedFileError`]; nothing stays open.
    pub fn open(path: &Path) -> Result<Self, PackedFileError> {
        let io = |source| PackedFileError::Io { file: path.display().to_string(), source };
        Self::from_source(Source::open(path).map_err(io)?)
    }

    /// Reads a packed file in memory; messages call it `name`. Its weights are copied, not mapped.
    ///
    /// # Errors
    /// As [`PackedFile::open`].
    pub fn from_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Result<Self, PackedFileError> {
        Self::from_source(Source::from_bytes(bytes, name))
    }

    fn from_source(source: Source) -> Result<Self, PackedFileError> {
        let file = source.name().to_owned();
        if cfg!(target_endian = "big") {
            return Err(PackedFileError::BigEndianHost { file });
        }
        let (header, data_start) = Header::read(&source)?;
        let config = header.config;
        config.validate(&file)?;
        check_tokenizer(&file, &header.tokenizer)?;
        let piece = header.piece.as_ref().map(|json| piece::check(&file, &config, json)).transpose()?;
        let scope = piece.as_ref().map_or(Scope::All, Piece::scope);
        let types = types(&file, &config, &scope, &header.sections)?;
        let planned = plan(&config, &scope, header.tokenizer.len, &|id| types[&id])
            .ok_or_else(|| PackedFileError::SizeOverflow { file: file.clone() })?;
        for (stated, planned) in header.sections.iter().zip(&planned) {
            check_section(&file, stated, planned)?;
        }
        let end = planned.last().map_or(header.tokenizer.len, |last| last.offset + last.len);
        check_length(&file, "the data", source.len() - data_start, end)?;
        let checksums: Vec<u64> = header.sections.iter().map(|section| section.checksum.0).collect();
        let identity =
            piece.as_ref().map_or_else(|| identity(&config, &planned, &checksums), |piece| piece.model);
        let sections: Vec<PackedSection> = planned
            .into_iter()
            .zip(checksums)
            .map(|(s, checksum)| PackedSection::new(s, data_start, checksum))
            .collect();
        let places = sections.iter().enumerate().flat_map(|(s, section)| {
            section.tensors.iter().enumerate().map(move |(t, tensor)| (tensor.id, (s, t)))
        });
        let tensors = places.collect();
        let (name, packed_by, tokenizer) = (header.name, header.packed_by, header.tokenizer);
        Ok(Self {
            source,
            name,
            packed_by,
            config,
            identity,
            piece,
            data_start,
            tokenizer,
            sections,
            tensors,
        })
    }

    /// The path in printable form, or the name given to [`PackedFile::from_bytes`].
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program that packed the model, with its version.
    pub fn packed_by(&self) -> &str {
        &self.packed_by
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model's identity, computed from the checksums of the header. The header of a piece states the
    /// identity of the whole model.
    pub fn identity(&self) -> ModelIdentity {
        self.identity
    }

    /// The part of the model that the file holds; `None` for a whole model.
    pub fn piece(&self) -> Option<&Piece> {
        self.piece.as_ref()
    }

    /// Length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.source.len()
    }

    /// The sections of weights: the embedding, the layers in order, the output, and the layers' own inputs if there are any.
    pub fn sections(&self) -> &[PackedSection] {
        &self.sections
    }

    /// The tensor of a role; `None` if the model has none.
    pub fn tensor(&self, id: WeightId) -> Option<&PackedTensor> {
        let &(section, tensor) = self.tensors.get(&id)?;
        Some(&self.sections[section].tensors[tensor])
    }

    /// Reads every section and compares it with its checksum; `progress` is called with (bytes read, bytes to
    /// read).
    ///
    /// # Errors
    /// [`PackedFileError::SectionChecksum`] for the first damaged section, [`PackedFileError::Io`].
    pub fn verify(&self, progress: Option<&dyn Fn(u64, u64)>) -> Result<(), PackedFileError> {
        let total = self.source.len() - self.data_start;
        let (mut done, mut window) = (0, Vec::new());
        let tokenizer =
            ("tokenizer".to_owned(), self.data_start, self.tokenizer.len, self.tokenizer.checksum.0);
        let weights = self.sections.iter().map(|s| (s.part.to_string(), s.offset, s.len, s.checksum));
        for (section, offset, len, stated) in std::iter::once(tokenizer).chain(weights) {
            let mut hash = Xxh3::new();
            let mut at = offset;
            while at < offset + len {
                window.resize(WINDOW_BYTES.min(offset + len - at) as usize, 0);
                self.source.read_exact_at(at, &mut window).map_err(|e| self.io(e))?;
                hash.update(&window);
                at += window.len() as u64;
                done += window.len() as u64;
                if let Some(progress) = progress {
                    progress(done, total);
                }
            }
            self.check_sum(&section, offset, stated, hash.digest())?;
        }
        Ok(())
    }

    /// Builds the tokenizer from the packed tokenizer files, after verifying their checksum.
    ///
    /// # Errors
    /// As for the packed model; [`TokenizerProblem::Container`] if the section is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        self.tokenizer_and_defaults(None).map(|(tokenizer, _)| tokenizer)
    }

    /// The tokenizer, and the sampling options that the source recommends. `pre_tokenizer` is that of a GGUF file that names none.
    pub(in crate::model) fn tokenizer_and_defaults(
        &self,
        pre_tokenizer: Option<&str>,
    ) -> Result<(Tokenizer, GenerationDefaults), TokenizerError> {
        let files = self.tokenizer_files()?;
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        if tokenizer::is_gguf(&names) {
            let bytes = files.into_iter().next().map(|(_, bytes)| bytes).unwrap_or_default();
            let gguf = GgufFile::from_bytes(bytes.into(), self.file());
            let mut gguf = gguf.map_err(|source| TokenizerProblem::PackedGguf { source })?;
            if let Some(name) = pre_tokenizer {
                gguf.set_default(PRE_TOKENIZER, GgufValue::String(name.to_owned()));
            }
            return Ok((Tokenizer::from_gguf(&gguf)?, GenerationDefaults::from_gguf(&gguf)));
        }
        let text_of = |name: &str| {
            let Some((_, bytes)) = files.iter().find(|(found, _)| found == name) else { return Ok(None) };
            match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(e) => {
                    let (file, part) = (self.file().to_owned(), name.to_owned());
                    Err(PackedFileError::NotUtf8 { file, part, offset: e.valid_up_to() }.into())
                }
            }
        };
        let tokenizer = Tokenizer::from_folder_files(self.file(), &text_of)?;
        let config = text_of(GENERATION_CONFIG)?;
        Ok((tokenizer, config.as_deref().map(GenerationDefaults::from_json).unwrap_or_default()))
    }

    pub(super) fn tokenizer_files(&self) -> Result<tokenizer::Files, PackedFileError> {
        let TokenizerJson { len, checksum, ref files } = self.tokenizer;
        let bytes = self.source.read_vec(self.data_start, len).map_err(|e| self.io(e))?;
        let computed = xxhash_rust::xxh3::xxh3_64(&bytes);
        self.check_sum("tokenizer", self.data_start, checksum.0, computed)?;
        let mut rest = bytes.as_slice();
        let files = files.iter().map(|file| {
            // Opening has checked that the lengths add up to the section's, which is in memory.
            let (bytes, after) = rest.split_at(file.len as usize);
            rest = after;
            (file.name.clone(), bytes.to_vec())
        });
        Ok(files.collect())
    }

    /// A second handle to the file whose header was checked, for direct reads; `None` if it is in memory.
    ///
    /// # Errors
    /// The system refuses a second handle.
    pub(crate) fn reopen_direct(&self) -> Option<std::io::Result<DirectFile>> {
        self.source.reopen_direct()
    }

    /// Maps the file; `None` if it is in memory, or the system maps no files.
    pub(crate) fn map(&self) -> Result<Option<Arc<Mapping>>, PackedFileError> {
        let Some(file) = self.source.as_file().filter(|_| Mapping::EXISTS) else { return Ok(None) };
        let mapping = Mapping::new(file);
        let mapping =
            mapping.map_err(|source| PackedFileError::Map { file: self.file().to_owned(), source })?;
        // The file was shortened after its header was checked.
        let (needed, left) = (self.file_bytes(), mapping.bytes().len() as u64);
        if left < needed {
            let (file, field) = (self.file().to_owned(), "data".to_owned());
            return Err(PackedFileError::Truncated { file, field, offset: 0, needed, left });
        }
        Ok(Some(Arc::new(mapping)))
    }

    /// The matrix of a role: a view of `mapping`, or a copy if there is none.
    ///
    /// # Panics
    /// If the model has no such matrix.
    pub(crate) fn matrix(
        &self,
        id: WeightId,
        mapping: Option<&Arc<Mapping>>,
    ) -> Result<PackedMatrix, PackedFileError> {
        let (tensor, start) = self.place(id);
        // Checked against the limits of the hyper-parameters, which fit in usize.
        let (n_rows, n_cols) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
        if let Some(mapping) = mapping {
            // Inside the mapping, whose length is a usize.
            let matrix =
                PackedMatrix::from_mapping(tensor.ty, n_rows, n_cols, Arc::clone(mapping), start as usize);
            return matrix.map_err(|source| self.pack_error(tensor, source));
        }
        self.read_matrix(id, |source, start, panels| source.read_exact_at(start, panels))
    }

    /// A copy of the matrix of a role. `read` fills the panels from their offset in the source.
    ///
    /// # Panics
    /// If the model has no such matrix.
    pub(in crate::model) fn read_matrix(
        &self,
        id: WeightId,
        read: impl FnOnce(&Source, u64, &mut [u8]) -> std::io::Result<()>,
    ) -> Result<PackedMatrix, PackedFileError> {
        let (tensor, start) = self.place(id);
        // Checked against the limits of the hyper-parameters, which fit in usize.
        let (n_rows, n_cols) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
        let matrix = PackedMatrix::from_panels(tensor.ty, n_rows, n_cols, |panels| {
            read(&self.source, start, panels).map_err(ReadPanels::Io)
        });
        matrix.map_err(|error| match error {
            ReadPanels::Io(error) => self.io(error),
            ReadPanels::Pack(source) => self.pack_error(tensor, source),
        })
    }

    /// The vector of a role.
    ///
    /// # Panics
    /// If the model has no such vector.
    pub(crate) fn vector(&self, id: WeightId) -> Result<Vec<f32>, PackedFileError> {
        let (tensor, start) = self.place(id);
        let bytes = self.source.read_vec(start, tensor.len).map_err(|e| self.io(e))?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// A tensor, and its offset in the file.
    fn place(&self, id: WeightId) -> (&PackedTensor, u64) {
        let &(section, tensor) = self.tensors.get(&id).expect("the model has this tensor");
        let section = &self.sections[section];
        (&section.tensors[tensor], section.offset + section.tensors[tensor].offset)
    }

    fn check_sum(
        &self,
        section: &str,
        offset: u64,
        stated: u64,
        computed: u64,
    ) -> Result<(), PackedFileError> {
        if stated == computed {
            return Ok(());
        }
        let (file, section) = (self.file().to_owned(), section.to_owned());
        Err(PackedFileError::SectionChecksum { file, section, offset, stated, computed })
    }

    fn io(&self, source: std::io::Error) -> PackedFileError {
        PackedFileError::Io { file: self.file().to_owned(), source }
    }

    fn pack_error(&self, tensor: &PackedTensor, source: PackError) -> PackedFileError {
        PackedFileError::Pack { file: self.file().to_owned(), tensor: tensor.name.clone(), source }
    }
}

/// An error while panels are read.
enum ReadPanels {
    Io(std::io::Error),
    Pack(PackError),
}

impl From<PackError> for ReadPanels {
    fn from(error: PackError) -> Self {
        Self::Pack(error)
    }
}

impl PackedSection {
    fn new(planned: PlannedSection, data_start: u64, checksum: u64) -> Self {
        let PlannedSection { part, offset, len, tensors } = planned;
        Self { part, offset: data_start + offset, len, checksum, tensors }
    }
}

/// Checks names and shapes against the hyper-parameters; returns the types of the tensors.
fn types(
    file: &str,
    config: &ModelConfig,
    scope: &Scope,
    sections: &[SectionJson],
) -> Result<HashMap<WeightId, BlockType>, PackedFileError> {
    let parts = parts(config, scope);
    check_count(file, "the table of sections", sections.len(), parts.len())?;
    let mut types = HashMap::new();
    for (section, (part, slots)) in sections.iter().zip(parts) {
        check_name(file, "the name of a section", &section.name, &part.to_string())?;
        check_count(file, &format!("section `{part}`"), section.tensors.len(), slots.len())?;
        for (tensor, slot) in section.tensors.iter().zip(slots) {
            let field = format!("the name of a tensor of section `{part}`");
            check_name(file, &field, &tensor.name, &standard_name(slot.id))?;
            let (file, name) = (|| file.to_owned(), || tensor.name.clone());
            if tensor.shape != slot.shape {
                let (found, expected) = (tensor.shape.clone(), slot.shape);
                return Err(PackedFileError::Shape { file: file(), tensor: name(), found, expected });
            }
            let is_vector = slot.shape.len() == 1;
            let ty = BlockType::ALL.into_iter().find(|ty| ty.name() == tensor.ty);
            let Some(ty) = ty.filter(|&ty| !is_vector || ty == BlockType::F32) else {
                return Err(PackedFileError::Type { file: file(), tensor: name(), ty: tensor.ty.clone() });
            };
            let n_cols = slot.shape[slot.shape.len() - 1];
            if ty.row_bytes(n_cols).is_none() {
                let source = PackError::PartialBlock { ty, n_cols: n_cols as usize };
                return Err(PackedFileError::Pack { file: file(), tensor: name(), source });
            }
            types.insert(slot.id, ty);
        }
    }
    Ok(types)
}

/// Checks the offsets and lengths of the header against those that follow from types and shapes.
fn check_section(file: &str, stated: &SectionJson, planned: &PlannedSection) -> Result<(), PackedFileError> {
    let section = || format!("section `{}`", stated.name);
    check_offset(file, &section(), stated.offset, planned.offset)?;
    check_length(file, &section(), stated.len, planned.len)?;
    for (stated, planned) in stated.tensors.iter().zip(&planned.tensors) {
        let tensor = || format!("tensor `{}`", stated.name);
        check_offset(file, &tensor(), stated.offset, planned.offset)?;
        check_length(file, &tensor(), stated.len, planned.len)?;
    }
    Ok(())
}

fn check_tokenizer(file: &str, stated: &TokenizerJson) -> Result<(), PackedFileError> {
    let names: Vec<&str> = stated.files.iter().map(|file| file.name.as_str()).collect();
    if let Some(name) = tokenizer::unknown_name(&names) {
        return check_name(file, "a tokenizer file", name, &tokenizer::expected_names());
    }
    let len = stated.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.len));
    let len = len.and_then(|len| len.checked_next_multiple_of(PAGE_BYTES));
    let expected = len.ok_or_else(|| PackedFileError::SizeOverflow { file: file.to_owned() })?;
    check_length(file, "the tokenizer", stated.len, expected)
}

fn check_name(file: &str, field: &str, found: &str, expected: &str) -> Result<(), PackedFileError> {
    if found == expected {
        return Ok(());
    }
    let (file, field) = (file.to_owned(), field.to_owned());
    Err(PackedFileError::Name { file, field, found: found.to_owned(), expected: expected.to_owned() })
}

fn check_count(file: &str, field: &str, found: usize, expected: usize) -> Result<(), PackedFileError> {
    if found == expected {
        return Ok(());
    }
    Err(PackedFileError::Count { file: file.to_owned(), field: field.to_owned(), found, expected })
}

fn check_offset(file: &str, field: &str, found: u64, expected: u64) -> Result<(), PackedFileError> {
    if found == expected {
        return Ok(());
    }
    Err(PackedFileError::Offset { file: file.to_owned(), field: field.to_owned(), found, expected })
}

fn check_length(file: &str, field: &str, found: u64, expected: u64) -> Result<(), PackedFileError> {
    if found == expected {
        return Ok(());
    }
    Err(PackedFileError::Length { file: file.to_owned(), field: field.to_owned(), found, expected })
}
