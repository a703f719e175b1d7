//! Models that other tools have downloaded: they are read where they are, and never changed.
//!
//! | tool | folder | what names a model |
//! | --- | --- | --- |
//! | the hub's own tools | `HF_HUB_CACHE`, `HF_HOME/hub`, `~/.cache/huggingface/hub` | `models--OWNER--NAME/snapshots/COMMIT` |
//! | LM Studio | `~/.lmstudio/models`, `~/.cache/lm-studio/models` | `OWNER/NAME/FILE` |
//! | Ollama | `OLLAMA_MODELS`, `~/.ollama/models` | `manifests/HOST/NAMESPACE/NAME/TAG`, which names a blob by its hash |
//!
//! Whatever these folders have is outside data: entries and manifests are bounded, and a file that lies outside the tool's folder, behind a
//! link, is no model of it.

mod ollama;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use refrain_program::place::{folder_of, home};
use thiserror::Error;

use crate::hub::{HubError, ModelName, Repo, Unit, UnitKind, pick, units};

/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Files of a repository that are looked at.
const FILES_MAX: usize = 2_000;
/// Folders below that of a repository, such as that of a quantisation.
const DEPTH_MAX: usize = 3;
/// Maximum bytes of a file that names a commit.
const REF_BYTES_MAX: u64 = 256;

/// Who has downloaded a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    HubCache,
    LmStudio,
    Ollama,
}

impl Origin {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HubCache => "hub-cache",
            Self::LmStudio => "lm-studio",
            Self::Ollama => "ollama",
        }
    }
}

/// A model of another tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The name that `--model` takes.
    pub(crate) name: String,
    /// The file or folder to open.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
}

/// A model of another tool cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ElsewhereError {
    #[error("`{}` cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` has more than {max} bytes", path.display())]
    TooLong { path: PathBuf, max: u64 },
    #[error("the manifest `{}` cannot be used: {problem}", path.display())]
    Manifest { path: PathBuf, problem: String },
    #[error("the manifest `{}` names `{}`, which is missing", path.display(), blob.display())]
    NoBlob { path: PathBuf, blob: PathBuf },
    #[error("`{}` has {given} bytes, and its manifest says {expected}", blob.display())]
    Size { blob: PathBuf, given: u64, expected: u64 },
    #[error("`{}` leads out of `{}`", path.display(), root.display())]
    Outside { path: PathBuf, root: PathBuf },
}

impl ElsewhereError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// The folders of the tools; those that are not there have no models.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    hub_cache: Vec<PathBuf>,
    lm_studio: Vec<PathBuf>,
    ollama: Vec<PathBuf>,
}

/// A folder with the files of one repository.
struct Place {
    repo: Repo,
    /// The files, below which no other repository has any.
    folder: PathBuf,
    /// Where links may lead.
    root: PathBuf,
    commit: Option<String>,
    origin: Origin,
}

impl Folders {
    /// The folders of this user.
    pub(crate) fn of_user() -> Self {
        let hub_cache = folder_of("HF_HUB_CACHE")
            .or_else(|| folder_of("HF_HOME").map(|folder| folder.join("hub")))
            .or_else(|| home(".cache/huggingface/hub"));
        Self {
            hub_cache: hub_cache.into_iter().collect(),
            lm_studio: [".lmstudio/models", ".cache/lm-studio/models"].into_iter().filter_map(home).collect(),
            ollama: folder_of("OLLAMA_MODELS").or_else(|| home(".ollama/models")).into_iter().collect(),
        }
    }

    /// All models, and what is wrong with others.
    pub(crate) fn list(&self) -> (Vec<Found>, Vec<ElsewhereError>) {
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        for place in self.places() {
            match place.units() {
                Ok(units) => {
                    let is_single = units.len() == 1;
                    for unit in units {
                        let name = match is_single {
                            true => place.repo.to_string(),
                            false => format!("{}:{}", place.repo, unit.label()),
                        };
                        match place.found(&unit, name) {
                            Ok(found) => all.push(found),
                            Err(error) => errors.push(error),
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        for folder in &self.ollama {
            for model in ollama::list(folder) {
                match model {
                    Ok(found) => all.push(found),
                    Err(error) => errors.push(error),
                }
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        (all, errors)
    }

    /// The model of this name: that of the hub's cache before that of LM Studio, and Ollama's last.
    ///
    /// # Errors
    /// The name fits several models of a repository, or the model cannot be used.
    pub(crate) fn find(&self, text: &str) -> Result<Option<Found>, FindError> {
        if let Ok(name) = text.parse::<ModelName>() {
            let fits = |place: &Place| {
                place.repo == name.repo
                    && name.revision.as_ref().is_none_or(|commit| place.commit.as_ref() == Some(commit))
            };
            for place in self.places().into_iter().filter(fits) {
                let units = place.units()?;
                if units.is_empty() {
                    continue;
                }
                let unit = pick(&units, name.file.as_deref()).map_err(HubError::from)?;
                return Ok(Some(place.found(unit, text.to_owned())?));
            }
        }
        for folder in &self.ollama {
            if let Some(found) = ollama::find(folder, text)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn places(&self) -> Vec<Place> {
        let of_cache = self.hub_cache.iter().flat_map(|folder| hub_cache(folder));
        let of_studio = self.lm_studio.iter().flat_map(|folder| lm_studio(folder));
        of_cache.chain(of_studio).collect()
    }
}

/// A model that was named cannot be used.
#[derive(Debug, Error)]
pub(crate) enum FindError {
    #[error(transparent)]
    Elsewhere(#[from] ElsewhereError),
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// The names in a folder, in order; none without the folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The repositories in the cache of the hub's tools, each with the commit that `main` meant last, else its only one.
fn hub_cache(folder: &Path) -> Vec<Place> {
    let place = |name: &String| {
        let (owner, repo) = name.strip_prefix("models--")?.split_once("--")?;
        let repo: Repo = format!("{owner}/{repo}").parse().ok()?;
        let root = folder.join(name);
        let commits = names(&root.join("snapshots"));
        let main = read_ref(&root.join("refs/main")).filter(|commit| commits.contains(commit));
        let commit = main.or_else(|| if commits.len() == 1 { commits.into_iter().next() } else { None })?;
        let folder = root.join("snapshots").join(&commit);
        Some(Place { repo, folder, root, commit: Some(commit), origin: Origin::HubCache })
    };
    names(folder).iter().filter_map(place).collect()
}

/// The commit in a file.
fn read_ref(path: &Path) -> Option<String> {
    let bytes = read_bounded(path, REF_BYTES_MAX).ok()?;
    Some(String::from_utf8(bytes).ok()?.trim().to_owned())
}

fn lm_studio(folder: &Path) -> Vec<Place> {
    let mut places = Vec::new();
    for owner in names(folder) {
        for name in names(&folder.join(&owner)) {
            if let Ok(repo) = format!("{owner}/{name}").parse() {
                let below = folder.join(&owner).join(&name);
                let root = folder.to_owned();
                places.push(Place { repo, folder: below, root, commit: None, origin: Origin::LmStudio });
            }
            if places.len() >= ENTRIES_MAX {
                return places;
            }
        }
    }
    places
}

impl Place {
    /// The whole models of the repository. None of a folder that is not there.
    fn units(&self) -> Result<Vec<Unit>, ElsewhereError> {
        let mut files: Vec<(String, u64)> = Vec::new();
        let mut open = vec![(self.folder.clone(), String::new(), 0)];
        while let Some((folder, prefix, depth)) = open.pop() {
            for name in names(&folder) {
                let path = folder.join(&name);
                // A link to nothing is a file that is not there.
                let Ok(found) = fs::metadata(&path) else { continue };
                let relative = format!("{prefix}{name}");
                if found.is_dir() && depth < DEPTH_MAX {
                    open.push((path, format!("{relative}/"), depth + 1));
                } else if found.is_file() && files.len() < FILES_MAX {
                    files.push((relative, found.len()));
                }
            }
        }
        let files: Vec<(&str, u64)> = files.iter().map(|(path, bytes)| (path.as_str(), *bytes)).collect();
        Ok(units(&files))
    }

    /// The model with its place, after a check that no file of it lies elsewhere.
    fn found(&self, unit: &Unit, name: String) -> Result<Found, ElsewhereError> {
        for file in &unit.files {
            inside(&self.folder.join(file), &self.root)?;
        }
        let path = match unit.kind {
            UnitKind::Gguf => self.folder.join(&unit.files[0]),
            UnitKind::Folder => self.folder.clone(),
        };
        Ok(Found { name, path, bytes: unit.bytes, origin: self.origin })
    }
}

/// Checks that a file lies in a folder, whatever links lead to it.
fn inside(path: &Path, root: &Path) -> Result<(), ElsewhereError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(ElsewhereError::io(path));
    match real(path)?.starts_with(real(root)?) {
        true => Ok(()),
        false => Err(ElsewhereError::Outside { path: path.to_owned(), root: root.to_owned() }),
    }
}

/// A file of at most so many bytes.
fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, ElsewhereError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = refrain_files::open_regular(path).map_err(ElsewhereError::io(path))?;
    file.take(max + 1).read_to_end(&mut bytes).map_err(ElsewhereError::io(path))?;
    match bytes.len() as u64 > max {
        true => Err(ElsewhereError::TooLong { path: path.to_owned(), max }),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests;
