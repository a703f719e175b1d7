//! Private files and folders, and atomic replacement of a file or folder.
//!
//! Everything that holds text of the user is created here: folders with mode 0700 and files with 0600 from the first
//! byte, whatever the umask says. Windows gives new files the permissions of their folder, which is private in a user's
//! profile; nothing is changed there.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Facts, Fault};

/// A failed operation, with its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {source}", path.display())]
pub struct ReplaceError {
    /// The operation.
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Makes the system's error that of an operation on a path.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReplaceError + use<> {
    let path = path.to_owned();
    move |source| ReplaceError { action, path, source }
}

impl Fault for ReplaceError {
    fn facts(&self) -> Facts<'_> {
        Facts::io(self.source.kind()).file(&self.path)
    }
}

/// How a file is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Durably, with the permissions of the umask: models and measurements.
    Shared,
    /// Durably, for the owner alone: everything that holds text of the user.
    Private,
    /// As [`Private`](Manner::Private), but a loss of power may leave the old or no contents.
    PrivateNotDurable,
}

/// Maximum number of names tried for the new file.
const NAMES_MAX: usize = 64;

/// The end of the names of files that are being written.
const ENDING: &str = ".partial";

/// Writes a file under another name in the same folder, syncs it, and renames it to `path`. Removes what killed calls for
/// the same `path` left behind.
///
/// If an operation fails, the file at `path` is unchanged and the new file is removed. The only exception is
/// the final sync of the folder: if it fails, the new file has been renamed already. A killed process leaves
/// the new file behind, named `.NAME.RANDOM.partial`. The new file is created exclusively, so no existing file or
/// link is written through.
pub fn replace_file<T, E: From<ReplaceError>>(
    path: &Path,
    manner: Manner,
    write: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    // A leftover that cannot be removed does no harm to this call.
    if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
        let _ = remove_leftovers(folder_of(path), Some(name));
    }
    let (mut file, partial) = create_partial(path, manner, random)?;
    let done = write(&mut file)?;
    put(file, &partial, path, manner)?;
    Ok(done)
}

/// [`replace_file`] with these contents.
pub fn replace_bytes(path: &Path, manner: Manner, contents: &[u8]) -> Result<(), ReplaceError> {
    replace_file(path, manner, |file| file.write_all(contents).map_err(failed("write", path)))
}

/// Gives a written file its name.
fn put(file: File, partial: &Partial, path: &Path, manner: Manner) -> Result<(), ReplaceError> {
    let is_durable = manner != Manner::PrivateNotDurable;
    if is_durable {
        file.sync_all().map_err(failed("sync", &partial.path))?;
    }
    // The lock is held until the file has its name. (On Windows too: files are opened so that others may rename them.)
    fs::rename(&partial.path, path).map_err(failed("rename to", path))?;
    drop(file);
    if is_durable {
        sync_folder(folder_of(path)).map_err(failed("sync", folder_of(path)))?;
    }
    Ok(())
}

/// Replaces the contents of a file that is the user's own. Its permissions stay, and its owner if this process may give
/// files away. Through a link, the linked file is replaced; a file with several names (hard links) is overwritten, so that
/// all of them keep showing the same text.
///
/// # Errors
/// The contents are unchanged, with one exception: a file with several names that cannot be written to its end. The error
/// then names the file with the earlier contents, which is also left behind if the process is killed meanwhile.
pub fn replace_contents(path: &Path, contents: &[u8]) -> Result<(), ReplaceError> {
    let path = path.canonicalize().map_err(failed("find", path))?;
    let found = path.metadata().map_err(failed("read", &path))?;
    if !found.is_file() {
        return Err(failed("replace", &path)(io::Error::other("it is no file")));
    }
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&found) > 1 {
        return overwrite(&path, contents);
    }
    replace_file(&path, Manner::Private, |file| {
        file.write_all(contents).map_err(failed("write", &path))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            let new = file.metadata().map_err(failed("read", &path))?;
            if (new.uid(), new.gid()) != (found.uid(), found.gid()) {
                // Only root may give a file away; the group may be another that this user is in.
                let _ = fchown(&*file, Some(found.uid()), Some(found.gid()))
                    .or_else(|_| fchown(&*file, None, Some(found.gid())));
            }
        }
        file.set_permissions(found.permissions()).map_err(failed("set the permissions of", &path))
    })
}

/// Overwrites a file, after its contents were copied.
#[cfg(unix)]
fn overwrite(path: &Path, contents: &[u8]) -> Result<(), ReplaceError> {
    let mut file = File::options().read(true).write(true).open(path).map_err(failed("open", path))?;
    let copy = named(path, &format!("{:016x}", random()), ".earlier");
    let mut earlier =
        private_options().write(true).create_new(true).open(&copy).map_err(failed("create", &copy))?;
    let copied = io::copy(&mut file, &mut earlier).and_then(|_| earlier.sync_all());
    let written = copied.map_err(failed("write", &copy)).and_then(|()| {
        use std::os::unix::fs::FileExt;
        let written = file.write_all_at(contents, 0).and_then(|()| file.set_len(contents.len() as u64));
        written.and_then(|()| file.sync_all()).map_err(|error| {
            let text = format!("{error} (its earlier contents are in `{}`)", copy.display());
            failed("overwrite", path)(io::Error::new(error.kind(), text))
        })
    });
    match written {
        Err(error) if error.action == "overwrite" => Err(error),
        written => {
            fs::remove_file(&copy).map_err(failed("remove", &copy))?;
            written
        }
    }
}

/// Creates a folder under another name, lets `write` fill it, and renames it to `path`. `path` must not exist
/// or be an empty folder. `write` must sync the files.
///
/// If an operation fails, `path` is unchanged and the new folder is removed.
pub fn create_folder<T, E: From<ReplaceError>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let partial = Partial { path: partial_path(path, random()), is_folder: true };
    fs::create_dir(&partial.path).map_err(failed("create", &partial.path))?;
    let done = write(&partial.path)?;
    sync_folder(&partial.path).map_err(failed("sync", &partial.path))?;
    fs::rename(&partial.path, path).map_err(failed("rename to", path))?;
    sync_folder(folder_of(path)).map_err(failed("sync", folder_of(path)))?;
    Ok(done)
}

/// Options of a new file that only its owner may read.
pub fn private_options() -> OpenOptions {
    #[allow(unused_mut, reason = "changed on Unix")]
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates an empty file that only its owner may read, in place of an existing file or link, which is not written through.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    let mut n_tried = 0;
    loop {
        n_tried += 1;
        match private_options().read(true).write(true).create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_tried < NAMES_MAX => {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            opened => return opened,
        }
    }
}

/// Creates a folder that only its owner may access, and its parents likewise, as far as they do not exist.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`]: the folder, or a link in its place, belongs to another user, who could exchange
/// what is in it. Folders of root are used, and root uses those of any user; a link must be this user's or root's.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let own = rustix::process::geteuid().as_raw();
        let denied = |what: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, what.to_owned()));
        // Without a slash at the end, which would follow a link.
        let found = fs::symlink_metadata(path.components().as_path())?;
        if found.is_symlink() && ![own, 0].contains(&found.uid()) {
            return denied("it is a link of another user");
        }
        if own != 0 && ![own, 0].contains(&fs::metadata(path)?.uid()) {
            return denied("it belongs to another user");
        }
    }
    Ok(())
}

/// Takes the permissions of others from a folder and what is in it, if older versions gave them: from entries for whose
/// names `is_own` is true, and from the folder itself if it has no others. Only files and folders of this user are changed,
/// links are not followed, and a folder without permissions of others is taken for tight with all in it.
///
/// What cannot be changed (on a disk that is mounted for reading) stays as it is.
pub fn tighten(folder: &Path, is_own: impl Fn(&str) -> bool) {
    #[cfg(unix)]
    {
        // Reports nothing: the store can be used all the same.
        let _ = unix::tighten(folder, &is_own);
    }
    #[cfg(not(unix))]
    let _ = (folder, is_own);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// The mode of what is this user's and has permissions of others; `None` for everything else.
    fn loose(path: &Path) -> io::Result<Option<fs::Metadata>> {
        let found = fs::symlink_metadata(path)?;
        let is_loose = found.mode() & 0o077 != 0 && found.uid() == rustix::process::geteuid().as_raw();
        Ok(Some(found).filter(|found| is_loose && (found.is_dir() || found.is_file())))
    }

    fn close(path: &Path, found: &fs::Metadata) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(found.mode() & 0o700))
    }

    pub(super) fn tighten(folder: &Path, is_own: &dyn Fn(&str) -> bool) -> io::Result<()> {
        // The folder may be named by a link.
        let folder = &folder.canonicalize()?;
        let Some(found) = loose(folder)? else { return Ok(()) };
        let mut has_others = false;
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            match name.to_str().filter(|name| is_own(name)) {
                Some(name) => tighten_all(&folder.join(name))?,
                None => has_others = true,
            }
        }
        if has_others { Ok(()) } else { close(folder, &found) }
    }

    fn tighten_all(path: &Path) -> io::Result<()> {
        let mut open = vec![path.to_owned()];
        while let Some(path) = open.pop() {
            let Some(found) = loose(&path)? else { continue };
            close(&path, &found)?;
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    open.push(entry?.path());
                }
            }
        }
        Ok(())
    }
}

/// Removes files that killed calls of [`replace_file`] left in a folder, for one file or for all. Those that a process is
/// writing stay.
pub fn remove_leftovers(folder: &Path, of: Option<&str>) -> io::Result<()> {
    let mut outcome = Ok(());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let target = name.to_str().and_then(partial_of);
        let is_wanted = target.is_some_and(|target| of.is_none_or(|of| of == target));
        if !is_wanted || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // The writer holds a lock from the creation to the end.
        let Ok(file) = File::open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            match fs::remove_file(entry.path()) {
                // Its writer has renamed it meanwhile.
                Err(error) if error.kind() != io::ErrorKind::NotFound => outcome = Err(error),
                _ => {}
            }
        }
    }
    outcome
}

/// The name of the file for which [`replace_file`] gave a name; `None` for other names.
fn partial_of(name: &str) -> Option<&str> {
    let (target, number) = name.strip_prefix('.')?.strip_suffix(ENDING)?.rsplit_once('.')?;
    (number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(target)
}

/// The folder of a path.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a folder, which makes renames in it durable. Other systems than Unix cannot open a folder as a file, and their
/// names are durable without a sync.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Removes the new file or folder when it is dropped. After the rename there is nothing to remove.
struct Partial {
    path: PathBuf,
    is_folder: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Best effort: the caller gets the first error.
        let _ = match self.is_folder {
            true => fs::remove_dir_all(&self.path),
            false => fs::remove_file(&self.path),
        };
    }
}

/// Creates a file under an unused name, and locks it against [`remove_leftovers`].
fn create_partial(
    path: &Path,
    manner: Manner,
    mut random: impl FnMut() -> u64,
) -> Result<(File, Partial), ReplaceError> {
    let options = || if manner == Manner::Shared { File::options() } else { private_options() };
    let mut n_tried = 0;
    loop {
        let partial = partial_path(path, random());
        n_tried += 1;
        match options().write(true).create_new(true).open(&partial) {
            Ok(file) => {
                let partial = Partial { path: partial, is_folder: false };
                match file.try_lock() {
                    // It was taken for a leftover, and is removed.
                    Err(TryLockError::WouldBlock) if n_tried < NAMES_MAX => {}
                    Ok(()) if !is_at(&file, &partial.path) && n_tried < NAMES_MAX => {}
                    // On a file system without locks, leftovers stay.
                    _ => return Ok((file, partial)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_tried < NAMES_MAX => {}
            Err(source) => return Err(ReplaceError { action: "create", path: partial, source }),
        }
    }
}

/// Whether an open file still has its name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => id(open) == id(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// A number that nobody guesses: every `RandomState` has other keys, which come from the system.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn partial_path(path: &Path, number: u64) -> PathBuf {
    named(path, &format!("{number:016x}"), ENDING)
}

fn named(path: &Path, number: &str, ending: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{number}{ending}"));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "old").unwrap();
        let full = || ReplaceError {
            action: "write",
            path: PathBuf::new(),
            source: io::ErrorKind::StorageFull.into(),
        };
        let result: Result<(), ReplaceError> = replace_file(&path, Manner::Shared, |file| {
            file.write_all(b"half").unwrap();
            assert_eq!(names(folder.path()).len(), 2);
            Err(full())
        });
        assert_eq!(result.unwrap_err().source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(
            (names(folder.path()), fs::read(&path).unwrap()),
            (vec!["model".to_owned()], b"old".to_vec())
        );

        replace_file(&path, Manner::Shared, |file| file.write_all(b"new").map_err(|_| full())).unwrap();
        assert_eq!(
            (names(folder.path()), fs::read(&path).unwrap()),
            (vec!["model".to_owned()], b"new".to_vec())
        );
    }

    #[test]
    fn a_folder_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graphs");
        let write = |fails: bool| {
            create_folder(&path, |partial| {
                fs::write(partial.join("a"), "1").unwrap();
                let path = PathBuf::new();
                let full = ReplaceError { action: "write", path, source: io::ErrorKind::StorageFull.into() };
                if fails { Err(full) } else { Ok(()) }
            })
        };
        assert_eq!(write(true).unwrap_err().source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(folder.path()), [""; 0]);
        write(false).unwrap();
        assert_eq!((names(folder.path()), names(&path)), (vec!["graphs".to_owned()], vec!["a".to_owned()]));
        assert_eq!(write(false).unwrap_err().action, "rename to");
        assert_eq!((names(folder.path()), names(&path)), (vec!["graphs".to_owned()], vec!["a".to_owned()]));
    }

    #[test]
    fn places_that_cannot_be_written_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("missing/model");
        let error = replace_file(&nowhere, Manner::Shared, |_| Ok::<(), ReplaceError>(())).unwrap_err();
        assert_eq!(error.action, "create");
        fs::create_dir(folder.path().join("folder")).unwrap();
        let error =
            replace_file(&folder.path().join("folder"), Manner::Shared, |_| Ok::<(), ReplaceError>(()))
                .unwrap_err();
        assert_eq!(error.action, "rename to");
        assert_eq!(names(folder.path()), ["folder"]);
    }

    #[cfg(unix)]
    #[test]
    fn what_lies_under_the_other_name_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("model"), folder.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        let planted = partial_path(&path, 1);
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        let mut numbers = [1, 1, 2].into_iter();
        let (_file, partial) = create_partial(&path, Manner::Private, || numbers.next().unwrap()).unwrap();
        assert_eq!(partial.path, partial_path(&path, 2));
        drop(partial);
        // Nor does the removal of leftovers follow it.
        remove_leftovers(folder.path(), None).unwrap();
        assert!(fs::symlink_metadata(&planted).unwrap().is_symlink());
        create_private_file(&planted).unwrap().write_all(b"new").unwrap();
        assert!(!fs::symlink_metadata(&planted).unwrap().is_symlink());
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
    }

    #[test]
    fn leftovers_are_removed_and_files_that_are_being_written_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join(".b.0123456789abcdef.partial"));
        let (left, foreign) = (partial_path(&path, 7), folder.path().join(".a.notes.partial"));
        [&left, &other, &foreign].into_iter().for_each(|path| fs::write(path, "half").unwrap());
        let (file, partial) = create_partial(&path, Manner::Private, random).unwrap();
        replace_file(&path, Manner::Private, |_| Ok::<(), ReplaceError>(())).unwrap();
        assert!(!left.exists() && other.exists() && foreign.exists() && partial.path.exists());
        drop(file);
        remove_leftovers(folder.path(), None).unwrap();
        assert!(!other.exists() && foreign.exists() && !partial.path.exists());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_of_others_are_taken_from_own_entries_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir_all(at("store/inner")).unwrap();
        for name in ["store/own", "store/foreign", "store/inner/deep", "outside"] {
            fs::write(at(name), "x").unwrap();
            set(&at(name), 0o644);
        }
        std::os::unix::fs::symlink(at("outside"), at("store/own-link")).unwrap();
        [at("store"), at("store/inner")].iter().for_each(|path| set(path, 0o755));
        let is_own = |name: &str| name.starts_with("own") || name == "inner";
        tighten(&at("store"), is_own);
        let names = ["store", "store/inner", "store/own", "store/inner/deep", "store/foreign", "outside"];
        assert_eq!(names.map(|name| mode(&at(name))), [0o755, 0o700, 0o600, 0o600, 0o644, 0o644]);
        fs::remove_file(at("store/foreign")).unwrap();
        tighten(&at("store"), is_own);
        assert_eq!((mode(&at("store")), mode(&at("outside"))), (0o700, 0o644));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_the_user_keeps_its_permissions_its_links_and_its_names() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for mode in [0o640, 0o600, 0o604, 0o755] {
            fs::write(at("note"), "old").unwrap();
            fs::set_permissions(at("note"), fs::Permissions::from_mode(mode)).unwrap();
            let _ = fs::remove_file(at("link"));
            std::os::unix::fs::symlink("note", at("link")).unwrap();
            replace_contents(&at("link"), b"new").unwrap();
            assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
            let found = fs::metadata(at("note")).unwrap();
            assert_eq!((fs::read(at("note")).unwrap(), found.mode() & 0o777), (b"new".to_vec(), mode));
        }
        fs::hard_link(at("note"), at("twin")).unwrap();
        for text in ["a longer text", "short", ""] {
            replace_contents(&at("twin"), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("note")).unwrap(), text);
            assert_eq!(fs::metadata(at("note")).unwrap().nlink(), 2);
        }
        let mut left = names(folder.path());
        left.sort();
        assert_eq!(left, ["link", "note", "twin"]);
        assert_eq!(replace_contents(folder.path(), b"x").unwrap_err().action, "replace");
    }
}
