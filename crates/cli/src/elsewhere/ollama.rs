//! Ollama's models: a manifest names the blob with the weights by its hash.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ElsewhereError, Found, Origin, inside, names, read_bounded};

/// Maximum bytes of a manifest. Published ones have about 1 kB.
const MANIFEST_BYTES_MAX: u64 = 256 << 10;
/// Maximum models of a folder.
const MODELS_MAX: usize = 10_000;
/// The layer that is a GGUF file.
const MODEL: &str = "application/vnd.ollama.image.model";
/// What names leave out.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";
/// Maximum bytes of a part of a name.
const PART_BYTES_MAX: usize = 128;

/// As far as it is read.
#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

/// All models of a folder.
pub(super) fn list(folder: &Path) -> Vec<Result<Found, ElsewhereError>> {
    let manifests = folder.join("manifests");
    let mut all = Vec::new();
    for host in names(&manifests) {
        for namespace in names(&manifests.join(&host)) {
            for model in names(&manifests.join(&host).join(&namespace)) {
                for tag in names(&manifests.join(&host).join(&namespace).join(&model)) {
                    if all.len() >= MODELS_MAX {
                        return all;
                    }
                    let parts = [&*host, &*namespace, &*model, &*tag];
                    // Other files, such as those of an operating system, are no models.
                    if parts.iter().all(|part| is_part(part)) {
                        all.push(read(folder, parts));
                    }
                }
            }
        }
    }
    all
}

/// The model of a name, as Ollama takes it; `None` if there is none.
pub(super) fn find(folder: &Path, name: &str) -> Result<Option<Found>, ElsewhereError> {
    let Some(parts) = parts(name) else { return Ok(None) };
    match manifest_path(folder, parts).is_file() {
        true => read(folder, parts).map(Some),
        false => Ok(None),
    }
}

/// Host, namespace, model and tag of a name.
fn parts(name: &str) -> Option<[&str; 4]> {
    // A port may stand behind a host.
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, TAG),
    };
    let parts = match path.split('/').collect::<Vec<_>>()[..] {
        [model] => [HOST, NAMESPACE, model, tag],
        [namespace, model] => [HOST, namespace, model, tag],
        [host, namespace, model] => [host, namespace, model, tag],
        _ => return None,
    };
    parts.iter().all(|part| is_part(part)).then_some(parts)
}

/// Whether a text is one part of a path, on every system.
fn is_part(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=PART_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('.')
}

/// The shortest name of a model.
fn name_of([host, namespace, model, tag]: [&str; 4]) -> String {
    match (host, namespace) {
        (HOST, NAMESPACE) => format!("{model}:{tag}"),
        (HOST, namespace) => format!("{namespace}/{model}:{tag}"),
        (host, namespace) => format!("{host}/{namespace}/{model}:{tag}"),
    }
}

fn manifest_path(folder: &Path, parts: [&str; 4]) -> PathBuf {
    parts.into_iter().fold(folder.join("manifests"), |path, part| path.join(part))
}

fn read(folder: &Path, parts: [&str; 4]) -> Result<Found, ElsewhereError> {
    let path = manifest_path(folder, parts);
    let refused = |problem: String| ElsewhereError::Manifest { path: path.clone(), problem };
    let bytes = read_bounded(&path, MANIFEST_BYTES_MAX)?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    let mut models = manifest.layers.iter().filter(|layer| layer.media_type == MODEL);
    let (Some(layer), None) = (models.next(), models.next()) else {
        return Err(refused(format!("it has no layer `{MODEL}`, or several")));
    };
    let hash = layer.digest.strip_prefix("sha256:");
    let is_hash = |hash: &&str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash =
        hash.filter(is_hash).ok_or_else(|| refused("the digest of the model is no sha256".to_owned()))?;
    let blob = folder.join("blobs").join(format!("sha256-{hash}"));
    let Ok(found) = fs::metadata(&blob) else { return Err(ElsewhereError::NoBlob { path, blob }) };
    if found.len() != layer.size {
        return Err(ElsewhereError::Size { blob, given: found.len(), expected: layer.size });
    }
    inside(&blob, folder)?;
    Ok(Found { name: name_of(parts), path: blob, bytes: layer.size, origin: Origin::Ollama })
}
