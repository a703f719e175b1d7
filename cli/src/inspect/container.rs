//! Opens whatever container a path leads to.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use refrain::model::Checkpoint;
use refrain::model::checkpoint::LoadError;
use refrain::model::gguf::{GgufArray, GgufError, GgufFile, GgufValue};
use refrain::model::hf::{HfError, HfFolder, SafetensorsError, SafetensorsFile};
use refrain::tokenizer::Tokenizer;

use super::report::{Report, TensorReport};
use crate::failure::Failure;

/// Longest metadata value that is shown in full, in characters. Vocabularies and templates are longer.
const VALUE_CHARS_MAX: usize = 72;

const ADVICE: &str = "the file is damaged or something else; fetch it again";

pub(super) fn open(path: Option<&Path>) -> Result<Report, Failure> {
    let Some(path) = path else {
        return embedded();
    };
    if path.is_dir() {
        return folder(path);
    }
    let mut magic = [0; 4];
    match File::open(path).and_then(|mut file| file.read_exact(&mut magic)) {
        // Too short for a magic number: what it should be decides which reader refuses it.
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
            return Err(Failure::input(
                format!("cannot read `{}`: {error}", path.display()),
                "check the path",
            ));
        }
        _ => {}
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        _ if magic == *b"GGUF" => gguf_file(path),
        "gguf" => gguf_file(path),
        "safetensors" => safetensors(path),
        // `config.json` and the like stand for their folder, as for loading.
        "json" => {
            folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))
        }
        _ => {
            let problem = format!("`{}` is neither GGUF nor safetensors", path.display());
            Err(Failure::input(problem, "name a .gguf or .safetensors file, or a Hugging Face folder"))
        }
    }
}

#[cfg(feature = "embedded-model")]
fn embedded() -> Result<Report, Failure> {
    let bytes = || std::borrow::Cow::Borrowed(crate::load::EMBEDDED_MODEL);
    let file = GgufFile::from_bytes(bytes(), "embedded model").map_err(malformed_gguf)?;
    Ok(gguf(&file, Checkpoint::from_gguf_bytes(bytes(), "embedded model")))
}

#[cfg(not(feature = "embedded-model"))]
fn embedded() -> Result<Report, Failure> {
    Err(Failure::usage("this program was built without a model inside", "name a file or folder"))
}

fn gguf_file(path: &Path) -> Result<Report, Failure> {
    let file = GgufFile::open(path).map_err(malformed_gguf)?;
    Ok(gguf(&file, Checkpoint::open(path)))
}

fn gguf(file: &GgufFile, opened: Result<Checkpoint, LoadError>) -> Report {
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
    report.set_checkpoint(opened);
    report.set_tokenizer(Tokenizer::from_gguf(file));
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
            // What is left are negative integers.
            (None, None) => format!("{value:?}"),
        },
    }
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
    report.set_checkpoint(Checkpoint::open(path));
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
