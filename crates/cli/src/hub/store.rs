//! The folder of pulled models.
//!
//! `FOLDER/OWNER/NAME` has the files of a repository under the hub's paths, and `.refrain-pull.json`: what was pulled, and what is
//! unfinished. Only files of that record are opened by name or removed. A lock per repository keeps two processes from writing one part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use refrain_files::open_regular;
use refrain_files::replace;
use serde::{Deserialize, Serialize};

use super::listing::{Hash, Listed, is_hex};
use super::name::check_path;
use super::stop;
use super::transfer::{has_hash, note_path, part_path};
use super::{HubError, ModelName, Repo, Unit, UnitKind, pick, units};

const RECORD: &str = ".refrain-pull.json";
/// A record that is being written. A killed process leaves it behind; the next record replaces it.
const NEW_RECORD: &str = ".refrain-pull.json.part";
const RECORD_VERSION: u32 = 1;
/// Maximum length of a record. An entry has about 200 bytes.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// Folders that a listing looks at, of owners and of each owner's repositories.
const FOLDERS_MAX: usize = 10_000;
/// Room that stays free on the disk.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// The folder of pulled models.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: PathBuf,
}

/// What was pulled from a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    repo: String,
    /// The hub's address.
    pub(crate) endpoint: String,
    /// Whole files, by path.
    pub(crate) files: BTreeMap<String, FileRecord>,
    /// Files whose download has begun, by path.
    #[serde(default)]
    pub(crate) unfinished: BTreeMap<String, FileRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) bytes: u64,
    /// `sha256:…` or `git-sha1:…`.
    pub(crate) hash: String,
    pub(crate) commit: String,
}

impl FileRecord {
    pub(crate) fn new(listed: &Listed, commit: &str) -> Self {
        Self { bytes: listed.bytes, hash: listed.hash.to_string(), commit: commit.to_owned() }
    }

    /// Whether a file has this content.
    fn is_content_of(&self, path: &Path) -> Result<bool, HubError> {
        let bytes = fs::metadata(path).map_err(HubError::io("read", path))?.len();
        match Hash::read(&self.hash) {
            Some(hash) if bytes == self.bytes => has_hash(path, &Listed { bytes, hash }),
            _ => Ok(false),
        }
    }
}

/// A pulled model.
#[derive(Debug, Clone)]
pub(crate) struct Pulled {
    /// `OWNER/NAME`, with `:FILE` if the repository has several.
    pub(crate) name: String,
    /// The file or folder to open.
    pub(crate) path: PathBuf,
    pub(crate) unit: Unit,
    pub(crate) commit: String,
}

/// An unfinished file.
#[derive(Debug, Clone)]
pub(crate) struct Unfinished {
    /// `OWNER/NAME:FILE`.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Bytes on disk.
    pub(crate) n_bytes: u64,
}

/// What a removal has done.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) n_files: usize,
    pub(crate) bytes: u64,
    /// Files that were changed after they were pulled.
    pub(crate) left: Vec<PathBuf>,
}

/// Until it is dropped, no other process pulls into or removes from the repository's folder.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Store {
    /// The store in `folder`, which is created when something is pulled.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a repository.
    pub(crate) fn folder_of(&self, repo: &Repo) -> PathBuf {
        self.folder.join(repo.owner()).join(repo.name())
    }

    /// Where a file of a repository is kept.
    ///
    /// # Errors
    /// The path is not usable on every system.
    pub(crate) fn path_of(&self, repo: &Repo, path: &str) -> Result<PathBuf, HubError> {
        check_path(path, "file").map_err(HubError::FileName)?;
        Ok(path.split('/').fold(self.folder_of(repo), |folder, part| folder.join(part)))
    }

    /// Locks a repository's folder; `None` while another process has it.
    pub(crate) fn lock(&self, repo: &Repo) -> Result<Option<Lock>, HubError> {
        // Not in the repository's folder, which is removed: a waiting process would lock a file that is gone.
        let folder = self.folder.join(".locks").join(repo.owner());
        fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        let path = folder.join(repo.name());
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(HubError::io("lock", &path)(error)),
        }
    }

    /// The record of a repository, if something was pulled from it.
    ///
    /// # Errors
    /// The record is damaged, or of another repository (on a disk that does not tell `a` from `A`).
    pub(crate) fn record(&self, repo: &Repo) -> Result<Option<Record>, HubError> {
        let path = self.folder_of(repo).join(RECORD);
        let mut text = Vec::new();
        let read =
            open_regular(&path).and_then(|file| file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut text));
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(HubError::io("read", &path)(error)),
            Ok(_) => {}
        }
        let problem = |problem: String| HubError::Record { path: path.clone(), problem };
        if text.len() as u64 > RECORD_BYTES_MAX {
            return Err(problem(format!("it has more than {RECORD_BYTES_MAX} bytes")));
        }
        let record: Record = serde_json::from_slice(&text).map_err(|error| problem(error.to_string()))?;
        if record.version != RECORD_VERSION {
            return Err(problem(format!(
                "its version is {}, and this program reads {RECORD_VERSION}",
                record.version
            )));
        }
        if record.repo != repo.to_string() {
            return Err(HubError::OtherRepo {
                path: self.folder_of(repo),
                given: record.repo.chars().take(200).collect(),
            });
        }
        for (path, file) in record.files.iter().chain(&record.unfinished) {
            check_path(path, "file").map_err(|error| problem(error.to_string()))?;
            if Hash::read(&file.hash).is_none() || !is_hex(&file.commit, 40) {
                return Err(problem(format!("the entry of `{path}` has no hash or commit")));
            }
        }
        Ok(Some(record))
    }

    /// A record for a repository from which nothing was pulled.
    pub(crate) fn new_record(repo: &Repo, endpoint: &str) -> Record {
        Record {
            version: RECORD_VERSION,
            repo: repo.to_string(),
            endpoint: endpoint.to_owned(),
            ..Record::default()
        }
    }

    /// Writes a record whole. The caller has the lock, so the new file has one name.
    pub(crate) fn write_record(&self, repo: &Repo, record: &Record) -> Result<(), HubError> {
        let folder = self.folder_of(repo);
        let (path, new) = (folder.join(RECORD), folder.join(NEW_RECORD));
        fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        stop::point()?;
        let mut text = serde_json::to_vec_pretty(record).expect("strings and numbers");
        text.push(b'\n');
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(HubError::io("remove", &new)(error));
            }
            _ => {}
        }
        // Exclusively, so that no link is written through.
        let mut file = File::create_new(&new).map_err(HubError::io("write", &new))?;
        stop::point()?;
        file.write_all(&text).map_err(HubError::io("write", &new))?;
        file.sync_all().map_err(HubError::io("sync", &new))?;
        drop(file);
        fs::rename(&new, &path).map_err(HubError::io("rename to", &path))?;
        stop::point()?;
        // A record that is there but not yet durable is written again by the next pull.
        let _ = replace::sync_folder(&folder);
        Ok(())
    }

    /// The whole models of a record whose files are there, with the text that names each.
    pub(crate) fn pulled_of(&self, repo: &Repo, record: &Record) -> Vec<Pulled> {
        let is_there = |path: &str, bytes: u64| {
            let found = self
                .path_of(repo, path)
                .and_then(|path| fs::metadata(&path).map_err(HubError::io("read", &path)));
            found.is_ok_and(|found| found.is_file() && found.len() == bytes)
        };
        let files: Vec<(&str, u64)> = record
            .files
            .iter()
            .map(|(path, file)| (path.as_str(), file.bytes))
            .filter(|(path, bytes)| is_there(path, *bytes))
            .collect();
        let units = units(&files);
        let is_single = units.len() == 1;
        let pulled = units.into_iter().filter_map(|unit| {
            let path = match unit.kind {
                UnitKind::Gguf => self.path_of(repo, &unit.files[0]).ok()?,
                UnitKind::Folder => self.folder_of(repo),
            };
            let name = if is_single { repo.to_string() } else { format!("{repo}:{}", unit.label()) };
            let commit = record.files.get(unit.files.last()?)?.commit.clone();
            Some(Pulled { name, path, unit, commit })
        });
        pulled.collect()
    }

    /// The pulled model of this name; `None` if nothing was pulled from the repository, or the name's revision is not the pulled commit.
    ///
    /// # Errors
    /// The record is damaged, or the name fits none or several of the repository's models.
    pub(crate) fn find(&self, name: &ModelName) -> Result<Option<Pulled>, HubError> {
        let Some(record) = self.record(&name.repo)? else { return Ok(None) };
        let pulled = self.pulled_of(&name.repo, &record);
        if pulled.is_empty() {
            return Ok(None);
        }
        let units: Vec<Unit> = pulled.iter().map(|pulled| pulled.unit.clone()).collect();
        let unit = pick(&units, name.file.as_deref())?;
        let found = pulled.into_iter().find(|pulled| pulled.unit == *unit);
        // The record knows commits. Which one a branch or a tag meant when it was pulled, it does not.
        Ok(found.filter(|found| name.revision.as_ref().is_none_or(|commit| *commit == found.commit)))
    }

    /// All models, all unfinished files, and the errors of records that cannot be read.
    pub(crate) fn list(&self) -> (Vec<Pulled>, Vec<Unfinished>, Vec<HubError>) {
        let (mut pulled, mut unfinished, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for repo in self.repos() {
            match self.record(&repo) {
                Ok(Some(record)) => {
                    pulled.extend(self.pulled_of(&repo, &record));
                    for (path, file) in &record.unfinished {
                        let on_disk = self.path_of(&repo, path).ok().and_then(|path| {
                            // A pull that was killed behind its last rename has left the whole file.
                            let whole = || fs::metadata(&path).ok().filter(|found| found.len() == file.bytes);
                            fs::metadata(part_path(&path)).ok().or_else(whole)
                        });
                        unfinished.push(Unfinished {
                            name: format!("{repo}:{path}"),
                            bytes: file.bytes,
                            n_bytes: on_disk.map_or(0, |found| found.len()),
                        });
                    }
                }
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (pulled, unfinished, errors)
    }

    /// The repositories with a folder, in order.
    fn repos(&self) -> Vec<Repo> {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(FOLDERS_MAX);
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        let mut repos: Vec<Repo> = names(&self.folder)
            .iter()
            .flat_map(|owner| {
                let below = names(&self.folder.join(owner)).into_iter();
                below.filter_map(move |name| format!("{owner}/{name}").parse().ok())
            })
            .take(FOLDERS_MAX)
            .collect();
        repos.sort();
        repos
    }

    /// Removes the files of `unit`, or everything that the record names. The caller has the lock.
    ///
    /// # Errors
    /// A file cannot be removed. It and the files behind it stay, and in the record too.
    pub(crate) fn remove(
        &self,
        repo: &Repo,
        record: &Record,
        unit: Option<&Unit>,
    ) -> Result<Removed, HubError> {
        let mut rest = record.clone();
        let mut removed = Removed::default();
        let mut remove = |path: &Path| match fs::symlink_metadata(path).map(|found| found.len()) {
            Ok(bytes) => match fs::remove_file(path) {
                Ok(()) => {
                    removed.n_files += 1;
                    removed.bytes += bytes;
                    stop::point()
                }
                Err(error) => Err(HubError::io("remove", path)(error)),
            },
            Err(_) => Ok(()),
        };
        let mut left = Vec::new();
        let is_chosen = |path: &str| unit.is_none_or(|unit| unit.files.iter().any(|file| file == path));
        let paths: BTreeSet<&String> =
            record.files.keys().chain(record.unfinished.keys()).filter(|path| is_chosen(path)).collect();
        for path in paths {
            let target = self.path_of(repo, path)?;
            let (file, unfinished) = (record.files.get(path), record.unfinished.get(path));
            let is_ours = match fs::symlink_metadata(&target) {
                Err(_) => true,
                // Somebody has put a folder or a link there.
                Ok(found) if !found.is_file() => false,
                Ok(found) if file.is_some_and(|file| file.bytes == found.len()) => true,
                // A pull that was killed between its last rename and the record. Another file of this length stays.
                Ok(_) => match unfinished {
                    Some(unfinished) => unfinished.is_content_of(&target)?,
                    None => false,
                },
            };
            // The file goes last: with it, its companions would lose the name by which they are found.
            [part_path(&target), note_path(&target)].iter().try_for_each(|path| remove(path))?;
            if is_ours {
                let profile = crate::profile::beside(&target);
                let (plot, learned) = (profile.with_extension("svg"), crate::learned::beside(&target));
                let companions = [profile, plot, learned];
                companions.iter().filter(|path| path.is_file()).try_for_each(|path| remove(path))?;
                remove(&target)?;
            } else if file.is_some() {
                left.push(target);
            }
            rest.files.remove(path);
            rest.unfinished.remove(path);
        }
        // Folders that are empty now, before the record that names them. One with other files stays.
        let mut folders: Vec<PathBuf> = record
            .files
            .keys()
            .chain(record.unfinished.keys())
            .filter_map(|path| self.path_of(repo, path).ok())
            .flat_map(|path| path.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>())
            .filter(|path| path.starts_with(&self.folder) && *path != self.folder)
            .collect();
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
        folders.dedup();
        let remove_empty =
            || folders.iter().filter(|folder| fs::remove_dir(folder).is_ok()).try_for_each(|_| stop::point());
        remove_empty()?;
        let folder = self.folder_of(repo);
        if rest.files.is_empty() && rest.unfinished.is_empty() {
            for name in ["refrain.profile.json", "refrain.profile.svg", "refrain.learned", NEW_RECORD] {
                remove(&folder.join(name))?;
            }
            let path = folder.join(RECORD);
            fs::remove_file(&path).map_err(HubError::io("remove", &path))?;
            stop::point()?;
        } else {
            self.write_record(repo, &rest)?;
        }
        remove_empty()?;
        removed.left = left;
        Ok(removed)
    }

    /// Removes what a killed process has left of a repository without a record: a record that was being written, and empty
    /// folders. The caller has the lock.
    pub(crate) fn sweep(&self, repo: &Repo) {
        let folder = self.folder_of(repo);
        // Nothing is lost if one of them stays.
        let _ = fs::remove_file(folder.join(NEW_RECORD));
        let _ = fs::remove_dir(&folder);
        let _ = fs::remove_dir(self.folder.join(repo.owner()));
    }

    /// Checks that the disk has room for `needed` further bytes. Systems other than Unix are not asked: their write fails.
    pub(crate) fn check_space(&self, repo: &Repo, needed: u64) -> Result<(), HubError> {
        let folder = self.folder_of(repo);
        let Some(free) = free_bytes(&folder) else { return Ok(()) };
        if needed > 0 && needed.saturating_add(FREE_BYTES_MIN) > free {
            return Err(HubError::Space { folder, needed, free });
        }
        Ok(())
    }
}

/// Bytes that are free on the disk of a folder; `None` if the system does not say it.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(files: &[(&str, &[u8])], store: &Store, repo: &Repo) -> Record {
        let mut record = Store::new_record(repo, "https://hub.example");
        for (path, bytes) in files {
            let target = store.path_of(repo, path).unwrap();
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::write(&target, bytes).unwrap();
            let hash = format!("sha256:{}", "0".repeat(64));
            let file = FileRecord { bytes: bytes.len() as u64, hash, commit: "0".repeat(40) };
            record.files.insert((*path).to_owned(), file);
        }
        store.write_record(repo, &record).unwrap();
        record
    }

    #[test]
    fn a_name_finds_what_was_pulled() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("models"));
        let repo: Repo = "a/b".parse().unwrap();
        let find = |name: &str| store.find(&name.parse().unwrap());
        assert!(find("a/b").unwrap().is_none());
        record(&[("m-Q4_0.gguf", b"12")], &store, &repo);
        assert_eq!(find("a/b").unwrap().unwrap().path, store.folder_of(&repo).join("m-Q4_0.gguf"));
        record(&[("m-Q4_0.gguf", b"12"), ("x/m-Q8_0.gguf", b"1234")], &store, &repo);
        assert!(matches!(find("a/b"), Err(HubError::Choose(_))));
        assert_eq!(
            find("a/b:q8_0").unwrap().unwrap().path,
            store.folder_of(&repo).join("x").join("m-Q8_0.gguf")
        );
        let (pulled, unfinished, errors) = store.list();
        assert_eq!(
            pulled.iter().map(|pulled| &*pulled.name).collect::<Vec<_>>(),
            ["a/b:m-Q4_0.gguf", "a/b:x/m-Q8_0.gguf"]
        );
        assert!(unfinished.is_empty() && errors.is_empty());
        // The record's commit, and no other revision.
        assert!(find(&format!("a/b@{}:q8_0", "0".repeat(40))).unwrap().is_some());
        for other in [&*"1".repeat(40), "main"] {
            assert!(find(&format!("a/b@{other}:q8_0")).unwrap().is_none(), "{other}");
        }
        // A file that was cut off is no model.
        fs::write(store.path_of(&repo, "m-Q4_0.gguf").unwrap(), "1").unwrap();
        assert_eq!(find("a/b").unwrap().unwrap().unit.label(), "x/m-Q8_0.gguf");
    }

    #[test]
    fn a_removal_leaves_what_was_not_pulled() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("models"));
        let repo: Repo = "a/b".parse().unwrap();
        let whole = record(
            &[("m-Q4_0.gguf", b"12"), ("x/m-Q8_0.gguf", b"1234"), ("changed.gguf", b"1")],
            &store,
            &repo,
        );
        let own = store.folder_of(&repo);
        fs::write(own.join("mine.txt"), "mine").unwrap();
        fs::write(own.join("changed.gguf"), "longer").unwrap();
        fs::write(own.join("m-Q4_0.gguf.profile.json"), "{}").unwrap();

        let one = units(&[("m-Q4_0.gguf", 2)]);
        let removed = store.remove(&repo, &whole, Some(&one[0])).unwrap();
        assert_eq!((removed.n_files, removed.bytes), (2, 4));
        let rest = store.record(&repo).unwrap().unwrap();
        assert_eq!(rest.files.keys().collect::<Vec<_>>(), ["changed.gguf", "x/m-Q8_0.gguf"]);

        let removed = store.remove(&repo, &rest, None).unwrap();
        assert_eq!(removed.left, [own.join("changed.gguf")]);
        assert!(!own.join("x").exists() && !own.join(RECORD).exists());
        assert!(own.join("mine.txt").exists() && own.join("changed.gguf").exists());
        assert!(store.record(&repo).unwrap().is_none());
    }

    /// The steps of `refrain model pull`, for two files.
    fn pull(store: &Store, repo: &Repo, files: [(&str, &str); 2]) -> Result<(), HubError> {
        let commit = "0".repeat(40);
        let listed = |text: &str| {
            let mut context = Hash::Sha256(String::new()).context(text.len() as u64);
            context.update(text.as_bytes());
            let hex = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            Listed { bytes: text.len() as u64, hash: Hash::Sha256(hex) }
        };
        let mut record =
            store.record(repo)?.unwrap_or_else(|| Store::new_record(repo, "https://hub.example"));
        for (path, text) in files {
            record.unfinished.insert(path.to_owned(), FileRecord::new(&listed(text), &commit));
        }
        store.write_record(repo, &record)?;
        for (path, text) in files {
            let target = store.path_of(repo, path)?;
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            crate::hub::transfer::deliver(&listed(text), &target, text.as_bytes())?;
            record.unfinished.remove(path);
            record.files.insert(path.to_owned(), FileRecord::new(&listed(text), &commit));
            store.write_record(repo, &record)?;
        }
        Ok(())
    }

    /// `refrain model rm` of everything.
    fn rm(store: &Store, repo: &Repo) -> Result<(), HubError> {
        match store.record(repo)? {
            Some(record) => store.remove(repo, &record, None).map(drop),
            None => {
                store.sweep(repo);
                Ok(())
            }
        }
    }

    fn is_empty(store: &Store) -> bool {
        fs::read_dir(store.folder()).map_or(true, |mut entries| entries.next().is_none())
    }

    const OLD: [(&str, &str); 2] = [("m.gguf", "old"), ("x/n.gguf", "older")];
    /// The first one is as long as the old one.
    const NEW: [(&str, &str); 2] = [("m.gguf", "new"), ("x/n.gguf", "as new as can be")];

    #[test]
    fn what_a_killed_pull_leaves_is_completed_or_removed() {
        let repo: Repo = "a/b".parse().unwrap();
        for has_old in [false, true] {
            let mut n_stops = 0;
            for n in 1.. {
                let folder = tempfile::tempdir().unwrap();
                let store = Store::new(folder.path().join("models"));
                let killed = || {
                    if has_old {
                        pull(&store, &repo, OLD).unwrap();
                        for (path, _) in OLD {
                            fs::write(
                                crate::learned::beside(&store.path_of(&repo, path).unwrap()),
                                "learned",
                            )
                            .unwrap();
                        }
                    }
                    stop::after(n, || pull(&store, &repo, NEW))
                };
                if killed().is_some() {
                    break;
                }
                n_stops += 1;
                rm(&store, &repo).unwrap();
                assert!(is_empty(&store), "stopped behind operation {n}, then removed");
                assert!(killed().is_none());
                pull(&store, &repo, NEW).unwrap();
                let found = store.pulled_of(&repo, &store.record(&repo).unwrap().unwrap());
                assert_eq!(found.len(), 2, "stopped behind operation {n}, then pulled again");
                for (path, text) in NEW {
                    assert_eq!(fs::read_to_string(store.path_of(&repo, path).unwrap()).unwrap(), text);
                }
                rm(&store, &repo).unwrap();
                assert!(is_empty(&store));
            }
            assert!(n_stops > 15, "{n_stops}");
        }
    }

    #[test]
    fn what_a_killed_removal_leaves_is_removed() {
        let repo: Repo = "a/b".parse().unwrap();
        let mut n_stops = 0;
        for n in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::new(folder.path().join("models"));
            pull(&store, &repo, OLD).unwrap();
            for (path, _) in OLD {
                let target = store.path_of(&repo, path).unwrap();
                fs::write(crate::learned::beside(&target), "learned").unwrap();
                fs::write(crate::profile::beside(&target), "profile").unwrap();
            }
            if stop::after(n, || rm(&store, &repo)).is_some() {
                break;
            }
            n_stops += 1;
            rm(&store, &repo).unwrap();
            assert!(is_empty(&store), "stopped behind operation {n}");
        }
        assert!(n_stops >= 10, "{n_stops}");
    }

    #[test]
    fn a_removal_leaves_another_file_in_the_place_of_an_unfinished_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("models"));
        let repo: Repo = "a/b".parse().unwrap();
        assert!(stop::after(2, || pull(&store, &repo, OLD)).is_none());
        assert!(stop::after(5, || pull(&store, &repo, OLD)).is_none());
        // As long as the one that was to come.
        let target = store.path_of(&repo, "m.gguf").unwrap();
        fs::write(&target, "own").unwrap();
        rm(&store, &repo).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "own");
        assert!(store.record(&repo).unwrap().is_none());
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let repo: Repo = "a/b".parse().unwrap();
        let good = record(&[("m.gguf", b"12")], &store, &repo);
        let path = store.folder_of(&repo).join(RECORD);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("m.gguf", "../m.gguf"),
            ("m.gguf", "/m.gguf"),
            ("\"version\": 1", "\"version\": 2"),
            ("sha256:0", "sha256:x"),
            ("\"a/b\"", "\"A/b\""),
            ("{", "["),
        ] {
            fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert!(store.record(&repo).is_err(), "{from} → {to}");
            assert_eq!(store.list().2.len(), 1);
        }
        fs::write(&path, &text).unwrap();
        assert_eq!(store.record(&repo).unwrap(), Some(good));
    }

    #[test]
    fn a_lock_is_of_one_holder() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let (one, other): (Repo, Repo) = ("a/b".parse().unwrap(), "a/c".parse().unwrap());
        let held = store.lock(&one).unwrap();
        assert!(held.is_some() && store.lock(&one).unwrap().is_none());
        assert!(store.lock(&other).unwrap().is_some());
        drop(held);
        assert!(store.lock(&one).unwrap().is_some());
    }
}
