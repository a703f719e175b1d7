//! Opens the container at a path, of any supported kind.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::io::{ErrorKind, Read};
use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::device::MachineProfile;
use refrain::internals::kernels::PANEL_LAYOUT_VERSION;
use refrain::internals::model::gguf::{GgufArray, GgufError, GgufFile, GgufValue};
use refrain::internals::model::hf::{HfError, HfFolder, SafetensorsError, SafetensorsFile};
use refrain::internals::model::packed::{FORMAT_VERSION, MAGIC, PackedFile, PackedFileError, PackedTensor};
use refrain::internals::schedule::GraphKind;
use refrain::{LoadError, Tokenizer};
use refrain_files::open_regular;

use super::report::{Report, TensorReport};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{load, profile};

/// Longest metadata value that is shown in full, in characters. Vocabularies and templates are longer.
const VALUE_CHARS_MAX: usize = 72;

const ADVICE: &str = "the file is damaged or of another format; download it again";

/// Reports the container at `path`; with `verify`, after verifying the checksums of a packed file.
pub(super) fn open(path: Option<&Path>, verify: bool) -> Result<Report, Failure> {
    let magic = path.filter(|path| !path.is_dir()).map(magic).transpose()?.unwrap_or_default();
    let is_packed = magic == MAGIC || path.is_some_and(|path| extension(path) == "refrain");
    if verify && !is_packed {
        return Err(Failure::usage("only packed files have checksums", "omit --verify"));
    }
    let Some(path) = path else {
        return embedded();
    };
    if path.is_dir() {
        return match load::open(path) {
            Ok(opened) if opened.graphs().is_some() => graphs(path, opened),
            _ => folder(path),
        };
    }
    match extension(path).as_str() {
        _ if magic.starts_with(b"GGUF") => gguf_file(path),
        _ if is_packed => packed(path, verify),
        "gguf" => gguf_file(path),
        "safetensors" => safetensors(path),
        // `config.json` and similar files select their folder, as in loading.
        "json" => {
            folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))
        }
        _ => {
            let problem = format!("`{}` is neither GGUF, safetensors nor packed", path.display());
            Err(Failure::input(
                problem,
                "name a .gguf, .safetensors or .refrain file, or a Hugging Face folder",
            ))
        }
    }
}

/// The first bytes of the file, padded with zeros if it is shorter; its extension then chooses the reader.
fn magic(path: &Path) -> Result<[u8; 8], Failure> {
    let (mut magic, mut n_bytes) = ([0; 8], 0);
    let read = open_regular(path).and_then(|mut file| {
        loop {
            match file.read(&mut magic[n_bytes..]) {
                Ok(0) => return Ok(()),
                Ok(n) => n_bytes += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    });
    let problem = |error| format!("cannot read `{}`: {error}", path.display());
    read.map_err(|error| Failure::input(problem(error), "check the path"))?;
    Ok(magic)
}

/// The extension in lower case; empty if there is none.
fn extension(path: &Path) -> String {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase()
}

#[cfg(feature = "embedded-model")]
fn embedded() -> Result<Report, Failure> {
    let bytes = || std::borrow::Cow::Borrowed(crate::load::EMBEDDED_MODEL);
    let file = GgufFile::from_bytes(bytes(), "embedded model").map_err(malformed_gguf)?;
    Ok(gguf(&file, Checkpoint::from_gguf_bytes(bytes(), "embedded model"), None))
}

#[cfg(not(feature = "embedded-model"))]
fn embedded() -> Result<Report, Failure> {
    Err(Failure::usage("this program was built without an embedded model", "name a file or folder"))
}

fn gguf_file(path: &Path) -> Result<Report, Failure> {
    let file = GgufFile::open(path).map_err(malformed_gguf)?;
    Ok(gguf(&file, load::open(path), profile::stored(Some(path)).as_ref()))
}

fn gguf(file: &GgufFile, opened: Result<Checkpoint, LoadError>, profile: Option<&MachineProfile>) -> Report {
    let mut report = Report {
        path: file.name().to_owned(),
        format: format!("GGUF v{}", file.version()),
        files: file.part_names().map(str::to_owned).collect(),
        name: text_value(file, "general.name"),
        architecture: text_value(file, "general.architecture"),
        metadata: file.metadata().iter().map(|(key, value)| (key.clone(), shown(value))).collect(),
        ..Report::default()
    };
    let tensors = file.tensors().iter().map(|tensor| TensorReport {
        name: tensor.name.clone(),
        ty: tensor.ty.to_string(),
        shape: tensor.dims.iter().rev().copied().collect(),
        bytes: tensor.len,
        is_readable: tensor.ty.block_type().is_some(),
    });
    report.set_tensors(tensors.collect());
    // The opened file has the pre-tokenizer that the user names.
    let tokenizer = match &opened {
        Ok(opened) => opened.tokenizer(),
        Err(_) => Tokenizer::from_gguf(file),
    };
    report.set_checkpoint(opened, profile);
    report.set_tokenizer(tokenizer);
    report
}

fn text_value(file: &GgufFile, key: &str) -> Option<String> {
    file.get(key).and_then(GgufValue::as_str).map(str::to_owned)
}

/// A metadata value on one line.
fn shown(value: &GgufValue) -> String {
    match value {
        GgufValue::Array(GgufArray::Array(arrays)) => format!("{} arrays", arrays.len()),
        GgufValue::Array(array) => format!("{} values", array.len()),
        GgufValue::String(text) => {
            let start: String = text.chars().take(VALUE_CHARS_MAX).collect();
            let more =
                if start.len() < text.len() { format!("… ({} bytes)", text.len()) } else { String::new() };
            format!("{start:?}{more}")
        }
        GgufValue::Bool(value) => value.to_string(),
        value => match (value.as_u64(), value.as_f64()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => number.to_string(),
            // Only negative integers remain.
            (None, None) => format!("{value:?}"),
        },
    }
}

/// A folder of static graphs: the weights of both graphs of a block are counted once.
fn graphs(path: &Path, opened: Checkpoint) -> Result<Report, Failure> {
    let Some(folder) = opened.graphs() else { return self::folder(path) };
    let piece = folder.piece();
    let (n_blocks, prefill_len, verify_len) = (piece.blocks.len(), piece.prefill_len, piece.verify_len);
    let mut report = Report {
        path: path.display().to_string(),
        format: format!("static graphs: {n_blocks} blocks, prefill {prefill_len}, verify {verify_len} rows"),
        files: folder.files().map(|file| file.file().to_owned()).collect(),
        architecture: Some(folder.config().architecture.name().to_owned()),
        metadata: vec![
            ("packed_by".to_owned(), folder.ends().packed_by().to_owned()),
            ("identity".to_owned(), folder.identity().to_string()),
        ],
        ..Report::default()
    };
    let once = folder.files().filter(|file| {
        !file.piece().is_some_and(|piece| matches!(piece.graph, Some((_, GraphKind::Verify))))
    });
    let tensors = once.flat_map(|file| file.sections()).flat_map(|section| &section.tensors);
    report.set_tensors(tensors.map(packed_tensor).collect());
    report.set_tokenizer(folder.ends().tokenizer());
    report.set_checkpoint(Ok(opened), profile::stored(Some(path)).as_ref());
    Ok(report)
}

fn packed_tensor(tensor: &PackedTensor) -> TensorReport {
    TensorReport {
        name: tensor.name.clone(),
        ty: tensor.ty.to_string(),
        shape: tensor.shape.clone(),
        bytes: Some(tensor.len),
        is_readable: true,
    }
}

fn packed(path: &Path, verify: bool) -> Result<Report, Failure> {
    let file = PackedFile::open(path).map_err(malformed_packed)?;
    let mut metadata = vec![
        ("packed_by".to_owned(), file.packed_by().to_owned()),
        ("identity".to_owned(), file.identity().to_string()),
        ("file_bytes".to_owned(), file.file_bytes().to_string()),
    ];
    if verify {
        let progress = Progress::bytes("verifying");
        file.verify(Some(&|done, total| progress.set(done, total))).map_err(malformed_packed)?;
        metadata.push(("checksums".to_owned(), "all verified".to_owned()));
    }
    let tensors = file.sections().iter().flat_map(|section| &section.tensors).map(packed_tensor);
    let mut report = Report {
        path: file.file().to_owned(),
        format: format!("packed v{FORMAT_VERSION}, panel layout {PANEL_LAYOUT_VERSION}"),
        files: vec![file.file().to_owned()],
        architecture: Some(file.config().architecture.name().to_owned()),
        metadata,
        ..Report::default()
    };
    report.set_tensors(tensors.collect());
    report.set_checkpoint(load::open(path), profile::stored(Some(path)).as_ref());
    report.set_tokenizer(file.tokenizer());
    Ok(report)
}

fn safetensors(path: &Path) -> Result<Report, Failure> {
    let file = SafetensorsFile::open(path).map_err(malformed_safetensors)?;
    let mut report = Report {
        path: path.display().to_string(),
        format: "safetensors".to_owned(),
        files: vec![file.name().to_owned()],
        ..Report::default()
    };
    report.set_tensors(tensors(&file).collect());
    report.unsupported.push("weights alone: inspect the folder to see the model".to_owned());
    Ok(report)
}

fn folder(path: &Path) -> Result<Report, Failure> {
    let folder = HfFolder::open(path).map_err(malformed_folder)?;
    let config = folder.text("config.json").map_err(malformed_folder)?;
    let config: serde_json::Value = match config.as_deref().map(serde_json::from_str) {
        None => serde_json::Value::Null,
        Some(Ok(config)) => config,
        Some(Err(error)) => {
            let problem = format!("{}: not valid JSON: {error}", path.join("config.json").display());
            return Err(Failure::input(problem, ADVICE));
        }
    };
    let architecture = config["architectures"][0].as_str().or(config["model_type"].as_str());
    let mut report = Report {
        path: path.display().to_string(),
        format: "Hugging Face folder".to_owned(),
        files: folder.shards().iter().map(|shard| shard.name().to_owned()).collect(),
        architecture: architecture.map(str::to_owned),
        ..Report::default()
    };
    report.set_tensors(folder.shards().iter().flat_map(tensors).collect());
    report.set_checkpoint(load::open(path), profile::stored(Some(path)).as_ref());
    report.set_tokenizer(Tokenizer::from_hf_folder(&folder));
    Ok(report)
}

fn tensors(file: &SafetensorsFile) -> impl Iterator<Item = TensorReport> {
    file.tensors().iter().map(|tensor| TensorReport {
        name: tensor.name.clone(),
        ty: tensor.dtype.name().to_owned(),
        shape: tensor.shape.clone(),
        bytes: Some(tensor.len),
        is_readable: tensor.dtype.block_type().is_some(),
    })
}

fn malformed_gguf(error: GgufError) -> Failure {
    Failure::input(error, ADVICE)
}

fn malformed_packed(error: PackedFileError) -> Failure {
    let advice = match error {
        PackedFileError::Version { .. } | PackedFileError::PanelLayout { .. } => {
            "pack the model again with `refrain model pack`"
        }
        _ => "the file is damaged or of another format; pack the model again",
    };
    Failure::input(error, advice)
}

fn malformed_safetensors(error: SafetensorsError) -> Failure {
    Failure::input(error, ADVICE)
}

fn malformed_folder(error: HfError) -> Failure {
    let advice = match error {
        HfError::MissingFile { .. } => "name a folder with config.json and .safetensors files",
        _ => ADVICE,
    };
    Failure::input(error, advice)
}
