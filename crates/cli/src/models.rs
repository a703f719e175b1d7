//! Pulled models: `refrain model list` and `rm`, and models that are named instead of given by their paths, also those of other tools.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::json;

use crate::args::{ModelsListArgs, ModelsRmArgs};
use crate::elsewhere::{ElsewhereError, FindError, Folders};
use crate::failure::{Exit, Failure};
use crate::hub::{HubError, ModelName, Pulled, Store, Unit, pick, units};
use crate::terminal::{AnswerStream, note, visible};
use refrain_program::args::bytes_text;
use refrain_program::place::data_folder;

/// The folder that `--models` names.
static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Endings of files: a missing file with one of them is no name of a pulled model.
const FILE_ENDINGS: [&str; 5] = ["gguf", "refrain", "safetensors", "json", "bin"];

/// Sets the folder of pulled models, once.
pub(crate) fn set_folder(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
}

/// The pulled models.
///
/// # Errors
/// No folder is named, and this user has none.
pub(crate) fn store() -> Result<Store, Failure> {
    let folder = FOLDER.get().cloned().flatten().or_else(|| data_folder("models"));
    let folder = folder.ok_or_else(|| {
        Failure::usage("there is no default folder for models", "name one with --models or REFRAIN_MODELS")
    })?;
    Ok(Store::new(folder))
}

/// The name that a model's path may be: `OWNER/NAME` or `OWNER/NAME:FILE`, and no file or folder of this path.
pub(crate) fn as_name(path: &Path) -> Option<ModelName> {
    let text = path.to_str()?;
    let has_file_ending =
        path.extension().is_some_and(|ending| FILE_ENDINGS.iter().any(|known| ending == *known));
    if path.exists() || (has_file_ending && !text.contains(':')) {
        return None;
    }
    text.parse().ok()
}

/// The file or folder of a model: `path` itself, the pulled model of this name, or that of another tool.
///
/// # Errors
/// The path is a name, and no model or several have it, or another tool's cannot be used.
pub(crate) fn located(path: &Path) -> Result<Cow<'_, Path>, Failure> {
    let name = as_name(path);
    if let (Some(name), Ok(store)) = (&name, store())
        && let Some(pulled) = store.find(name)?
    {
        return Ok(pulled.path.into());
    }
    if let Some(text) = path.to_str().filter(|_| !path.exists())
        && let Some(found) = Folders::of_user().find(text)?
    {
        return Ok(found.path.into());
    }
    match name {
        None => Ok(path.into()),
        Some(name) => {
            let given = path.display();
            let problem = format!("there is no file `{given}`, and no model of this name was pulled");
            let advice = match name.revision {
                Some(_) => "a pulled model is named without a revision, or with its whole commit".to_owned(),
                None => format!("`refrain model pull {given}` gets it"),
            };
            Err(Failure::input(problem, &advice))
        }
    }
}

/// All pulled models. Records that cannot be read are noted.
pub(crate) fn all() -> Result<Vec<Pulled>, Failure> {
    let (pulled, _, errors) = store()?.list();
    for error in errors {
        note(&visible(&error.to_string()));
    }
    Ok(pulled)
}

pub(crate) fn list(args: &ModelsListArgs) -> Result<Exit, Failure> {
    let store = store()?;
    let (pulled, unfinished, errors) = store.list();
    let (others, other_errors) = Folders::of_user().list();
    let mut out = AnswerStream::stdout();
    if args.json {
        let models = pulled.iter().map(|pulled| {
            json!({
                "name": pulled.name,
                "path": pulled.path,
                "bytes": pulled.unit.bytes,
                "files": pulled.unit.files,
                "commit": pulled.commit,
            })
        });
        let parts = unfinished
            .iter()
            .map(|part| json!({ "name": part.name, "bytes": part.bytes, "bytes_on_disk": part.n_bytes }));
        let others = others.iter().map(|found| {
            json!({ "name": found.name, "path": found.path, "bytes": found.bytes, "origin": found.origin.name() })
        });
        let all = json!({
            "folder": store.folder(),
            "models": models.collect::<Vec<_>>(),
            "unfinished": parts.collect::<Vec<_>>(),
            "others": others.collect::<Vec<_>>(),
        });
        out.line(&all.to_string())?;
    } else {
        let width = pulled
            .iter()
            .map(|pulled| pulled.name.len())
            .chain(unfinished.iter().map(|part| part.name.len()))
            .chain(others.iter().map(|found| found.name.len()))
            .max();
        let width = width.unwrap_or(0);
        for Pulled { name, unit, commit, .. } in &pulled {
            out.line(&format!("{name:<width$}  {:>9}  {}", bytes_text(unit.bytes), &commit[..8]))?;
        }
        for part in &unfinished {
            let (there, all) = (bytes_text(part.n_bytes), bytes_text(part.bytes));
            out.line(&format!("{:<width$}  {there} of {all}, unfinished", part.name))?;
        }
        for found in &others {
            let line =
                format!("{:<width$}  {:>9}  {}", found.name, bytes_text(found.bytes), found.origin.name());
            out.line(&visible(&line))?;
        }
        if pulled.is_empty() && unfinished.is_empty() {
            note(&visible(&format!("no model was pulled into {}", store.folder().display())));
        }
    }
    for error in errors.iter().map(ToString::to_string).chain(other_errors.iter().map(ToString::to_string)) {
        note(&visible(&error));
    }
    Ok(Exit::Done)
}

pub(crate) fn remove(args: &ModelsRmArgs) -> Result<Exit, Failure> {
    let store = store()?;
    let names: Vec<ModelName> =
        args.names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(HubError::from)?;
    let mut out = AnswerStream::stdout();
    let (mut n_files, mut bytes, mut left) = (0, 0, Vec::new());
    for (name, given) in names.iter().zip(&args.names) {
        if name.revision.is_some() {
            let problem = format!("`{given}` has a revision, and one is kept of each file");
            return Err(Failure::usage(problem, "name OWNER/NAME or OWNER/NAME:FILE"));
        }
        // Nothing of a store is touched before there is something to remove.
        if store.record(&name.repo)?.is_none() {
            let folder = store.folder_of(&name.repo);
            // Without a folder there is nobody to wait for.
            let lock = if folder.exists() { store.lock(&name.repo)? } else { None };
            if lock.is_some() || !folder.exists() {
                store.sweep(&name.repo);
            }
            drop(lock);
            if folder.exists() {
                return Err(HubError::NotPulled { path: folder }.into());
            }
            return Err(HubError::Unknown { name: given.clone(), folder: store.folder().to_owned() }.into());
        }
        let Some(_lock) = store.lock(&name.repo)? else {
            let problem = format!("`{}` is being pulled", name.repo);
            return Err(Failure::new(Exit::Failed, format!("{problem} (stop that process first)")));
        };
        let record = store.record(&name.repo)?.unwrap_or_default();
        let unit: Option<Unit> = match &name.file {
            None => None,
            Some(pattern) => {
                let all = record.unfinished.iter().chain(&record.files);
                let files: BTreeMap<&str, u64> =
                    all.map(|(path, file)| (path.as_str(), file.bytes)).collect();
                let files: Vec<(&str, u64)> = files.into_iter().collect();
                Some(pick(&units(&files), Some(pattern)).map_err(HubError::from)?.clone())
            }
        };
        let removed = store.remove(&name.repo, &record, unit.as_ref())?;
        n_files += removed.n_files;
        bytes += removed.bytes;
        left.extend(removed.left);
    }
    if args.json {
        out.line(&json!({ "files": n_files, "bytes": bytes, "left": left }).to_string())?;
    } else {
        out.line(&format!("{n_files} files removed, {} freed", bytes_text(bytes)))?;
    }
    for path in left {
        note(&visible(&format!("left: `{}` is not the file that was pulled", path.display())));
    }
    Ok(Exit::Done)
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Hub(error) => error.into(),
            FindError::Elsewhere(error) => error.into(),
        }
    }
}

impl From<ElsewhereError> for Failure {
    fn from(error: ElsewhereError) -> Self {
        Self::input(
            error,
            "the tool that has downloaded the model repairs it, or `refrain model pull` gets another",
        )
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Name(_) | HubError::Endpoint { .. } => {
                Self::usage(error, "see `refrain model pull --help`")
            }
            HubError::Choose(_) => Self::input(error, "name one as OWNER/NAME:FILE"),
            HubError::TokenBytes { .. } => {
                Self::usage(error, "check HF_TOKEN, or the file of the hub's tools")
            }
            HubError::Keyring { .. } => Self::new(Exit::Failed, format!("{error} (or set HF_TOKEN)")),
            HubError::Certificates { .. } => Self::new(
                Exit::Failed,
                format!("{error} (install ca-certificates, or name a file with SSL_CERT_FILE)"),
            ),
            HubError::Space { .. } => Self::new(
                Exit::Failed,
                format!("{error} (`refrain model rm` frees some; --models names another disk)"),
            ),
            HubError::NotPulled { .. } => {
                Self::input(error, "nothing of it is changed; move it away, or choose another --models")
            }
            HubError::OtherRepo { .. } => Self::input(error, "choose another --models"),
            HubError::Record { .. } => Self::input(
                error,
                "remove the record; `refrain model pull` writes it again and keeps whole files",
            ),
            HubError::Unknown { .. } => Self::input(error, "`refrain model list` shows them"),
            HubError::FileName(_) => Self::input(error, "choose another file"),
            HubError::HashDiffers { .. } | HubError::SizeDiffers { .. } => Self::new(
                Exit::Failed,
                format!("{error} (try again later, or report it to the owner of the repository)"),
            ),
            HubError::Connection { .. }
            | HubError::Stalled { .. }
            | HubError::Ended { .. }
            | HubError::WrongRange { .. }
            | HubError::Changed { .. } => {
                Self::new(Exit::Failed, format!("{error} (what has come is kept; the same command resumes)"))
            }
            error => Self::new(Exit::Failed, error.to_string()),
        }
    }
}
