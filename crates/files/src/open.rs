//! Opening files whose paths come from outside.
//!
//! Opening a named pipe waits until another process writes to it, and opening a device may act on it. So a path that must
//! name a regular file is checked before it is opened, and again behind the open handle.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::path::Path;

/// Opens a regular file for reading, and never waits for another process. Symbolic links are followed.
///
/// # Errors
/// The error of the operating system; [`io::ErrorKind::InvalidInput`] if `path` names a folder, a named pipe, a socket or a
/// device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check(&path.metadata()?)?;
    let file = open(path)?;
    // Another file may have taken the name since the first check.
    check(&file.metadata()?)?;
    blocking(&file)?;
    Ok(file)
}

fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let message = format!("{}, not a regular file", kind(found.file_type()));
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    // A terminal does not become the terminal that controls this process.
    let open = |flags: rustix::fs::OFlags| {
        std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    };
    let (wait_not, no_terminal) = (rustix::fs::OFlags::NONBLOCK, rustix::fs::OFlags::NOCTTY);
    match open(wait_not | no_terminal) {
        // A file server has leased the file, and gives it back to who waits.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && path.metadata()?.is_file() => {
            open(no_terminal)
        }
        opened => opened,
    }
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// With the flag `NONBLOCK`, io_uring reports a read that would wait for the disk as an error.
#[cfg(unix)]
fn blocking(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - rustix::fs::OFlags::NONBLOCK)?)
}

#[cfg(not(unix))]
fn blocking(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn kind(ty: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;

    match ty {
        ty if ty.is_dir() => "a folder",
        ty if ty.is_fifo() => "a named pipe",
        ty if ty.is_socket() => "a socket",
        ty if ty.is_char_device() || ty.is_block_device() => "a device",
        _ => "a special file",
    }
}

#[cfg(not(unix))]
fn kind(ty: FileType) -> &'static str {
    if ty.is_dir() { "a folder" } else { "a special file" }
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        symlink(path("file"), path("to-file")).unwrap();
        symlink(path("pipe"), path("to-pipe")).unwrap();
        for name in ["file", "to-file"] {
            let mut file = open_regular(&path(name)).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            assert_eq!((text.as_str(), flags.contains(rustix::fs::OFlags::NONBLOCK)), ("text", false));
        }
        let refused = [
            ("folder", "a folder, not a regular file"),
            ("pipe", "a named pipe, not a regular file"),
            ("to-pipe", "a named pipe, not a regular file"),
            ("socket", "a socket, not a regular file"),
            ("/dev/null", "a device, not a regular file"),
        ];
        for (name, expected) in refused {
            let error = open_regular(&path(name)).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::InvalidInput, expected),
                "{name}"
            );
        }
        assert_eq!(open_regular(&path("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
