//! The files and folders that the user named: links are followed only inside them, so that a link in a shared folder does
//! not lead to a file that nobody meant to share.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    /// The named paths without links, with their names.
    roots: BTreeMap<PathBuf, PathBuf>,
    /// Whether everything is inside.
    pub(crate) follows_links: bool,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// To a path below the root.
    Inside { root: PathBuf, below: PathBuf },
    /// Out of all roots.
    Outside,
}

impl Bounds {
    /// The bounds of some named paths. One that is not there has no inside.
    pub(crate) fn new<'a>(roots: impl Iterator<Item = &'a Path>, follows_links: bool) -> Self {
        let named = |root: &'a Path| Some((root.canonicalize().ok()?, root.to_owned()));
        Self { roots: roots.filter_map(named).collect(), follows_links }
    }

    /// Resolves all links of a path. Of several roots that contain the target, the innermost counts.
    ///
    /// # Errors
    /// The path leads to nothing, or to a folder that cannot be searched.
    pub(crate) fn target(&self, path: &Path) -> io::Result<Target> {
        let real = path.canonicalize()?;
        let root = real.ancestors().find(|ancestor| self.roots.contains_key(*ancestor));
        let Some(root) = root else { return Ok(Target::Outside) };
        let below = real.strip_prefix(root).map(Path::to_owned).unwrap_or_default();
        Ok(Target::Inside { root: root.to_owned(), below })
    }

    /// The name of a target below its root, as the user named the root.
    pub(crate) fn name(&self, target: &Target) -> Option<PathBuf> {
        let Target::Inside { root, below } = target else { return None };
        let name = self.roots.get(root)?;
        // Joined with nothing, a path would end with a separator.
        Some(if below.as_os_str().is_empty() { name.clone() } else { name.join(below) })
    }

    /// Opens a file for reading, and never waits for the other end of a pipe. No step below the root follows a link that
    /// came there after the path was resolved.
    ///
    /// # Errors
    /// The system's reason; [`io::ErrorKind::PermissionDenied`] if the path leads out.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        if self.follows_links {
            return open(path);
        }
        match self.target(path)? {
            Target::Inside { root, below } => open_below(&root, &below),
            Target::Outside => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Whether a name starts with a dot.
pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?.into())
}

#[cfg(unix)]
fn open_below(root: &Path, below: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let mut opened = open(root)?;
    let mut names = below.components().peekable();
    while let Some(name) = names.next() {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let kind = if names.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        opened = rustix::fs::openat(&opened, name.as_os_str(), flags | kind, Mode::empty())?.into();
    }
    Ok(opened)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Without a call that opens a name in an open folder, a path that changes meanwhile is noticed afterwards.
#[cfg(not(unix))]
fn open_below(root: &Path, below: &Path) -> io::Result<File> {
    let path = root.join(below);
    let opened = File::open(&path)?;
    match path.canonicalize()? == path {
        true => Ok(opened),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_becomes_a_link_after_it_was_resolved_is_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let root = place.join("notes");
        fs::create_dir_all(root.join("a")).unwrap();
        fs::create_dir(place.join("out")).unwrap();
        fs::write(root.join("a/note.md"), "inside").unwrap();
        fs::write(place.join("out/note.md"), "outside").unwrap();
        let read = |below: &str| open_below(&root, Path::new(below)).and_then(io::read_to_string);
        assert_eq!(read("a/note.md").unwrap(), "inside");
        fs::remove_file(root.join("a/note.md")).unwrap();
        symlink(place.join("out/note.md"), root.join("a/note.md")).unwrap();
        assert!(read("a/note.md").is_err(), "a file was replaced");
        fs::rename(root.join("a"), root.join("b")).unwrap();
        symlink(place.join("out"), root.join("a")).unwrap();
        assert!(read("a/note.md").is_err(), "a folder was replaced");
    }

    #[test]
    fn the_innermost_root_contains_a_target() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        fs::create_dir_all(place.join("notes/inner")).unwrap();
        fs::create_dir(place.join("out")).unwrap();
        symlink(place.join("notes"), place.join("link")).unwrap();
        symlink("../out/../notes/inner", place.join("notes/chain")).unwrap();
        symlink("chain", place.join("notes/chains")).unwrap();
        symlink("../out", place.join("notes/leak")).unwrap();
        let (link, inner) = (place.join("link"), place.join("notes/inner"));
        let bounds = Bounds::new([link.as_path()].into_iter(), false);
        let target = bounds.target(&link.join("chains")).unwrap();
        assert_eq!(bounds.name(&target), Some(link.join("inner")));
        assert_eq!(bounds.target(&link.join("leak")).unwrap(), Target::Outside);
        let both = Bounds::new([link.as_path(), inner.as_path()].into_iter(), false);
        assert_eq!(both.name(&both.target(&link.join("chains")).unwrap()), Some(inner));
    }
}
