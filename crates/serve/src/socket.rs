//! Listeners and connections, over TCP or a Unix socket.
//!
//! A Unix socket is a file that only its owner may open (0600). It is not open to anyone before its permissions are set: connections are
//! refused until `listen`. A file beside it, `PATH.lock`, is locked while a server has the socket, so a socket that is found under the lock
//! is left over from a process that was killed.

use std::io;
use std::net::{Shutdown, SocketAddr};
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::error::ServeError;
use crate::options::ServeOptions;

/// Connections that wait to be accepted, as the standard library's for TCP.
#[cfg(unix)]
const BACKLOG: i32 = 128;

/// A listener that a runtime can take.
pub(crate) enum Bound {
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl Bound {
    /// Listens where the options say; the address of a TCP listener.
    ///
    /// # Errors
    /// [`ServeError::Bind`], [`ServeError::Socket`], [`ServeError::SocketInUse`], [`ServeError::NotASocket`],
    /// [`ServeError::SocketUnsupported`].
    pub(crate) fn new(options: &ServeOptions) -> Result<(Self, SocketAddr), ServeError> {
        let address = options.address();
        if let Some(path) = &options.unix_socket {
            #[cfg(unix)]
            return Ok((Self::unix(path)?, address));
            #[cfg(not(unix))]
            return Err(ServeError::SocketUnsupported { path: path.clone() });
        }
        let failed = |source| ServeError::Bind { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((Self::Tcp(listener), address))
    }

    #[cfg(unix)]
    fn unix(path: &Path) -> Result<Self, ServeError> {
        use std::fs;
        use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};

        use socket2::{Domain, SockAddr, Socket, Type};

        let failed = |source| ServeError::Socket { path: path.to_owned(), source };
        let in_use = || ServeError::SocketInUse { path: path.to_owned() };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let mut options = fs::OpenOptions::new();
        let lock =
            options.create(true).write(true).truncate(false).mode(0o600).open(lock_path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(in_use()),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ServeError::NotASocket { path: path.to_owned() });
            }
            // Another program's server has no lock, but answers.
            Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
                Ok(_) => return Err(in_use()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let address = SockAddr::unix(path).map_err(failed)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
        socket.bind(&address).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let file = SocketFile { path: path.to_owned(), id: (found.dev(), found.ino()), _lock: lock };
        socket.listen(BACKLOG).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self::Unix(socket.into(), file))
    }

    /// The listener in this thread's runtime.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            #[cfg(unix)]
            Self::Unix(listener, file) => {
                Listener::Unix { listener: tokio::net::UnixListener::from_std(listener)?, _file: file }
            }
        })
    }
}

/// The file of a socket. It is removed when the listener is dropped, unless another file has taken its place.
#[cfg(unix)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    id: (u64, u64),
    _lock: std::fs::File,
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A listener in a runtime.
pub(crate) enum Listener {
    Tcp(tokio::net::TcpListener),
    #[cfg(unix)]
    Unix {
        listener: tokio::net::UnixListener,
        /// Removed with the listener.
        _file: SocketFile,
    },
}

impl Listener {
    /// Can be dropped at any time: no connection is lost.
    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Events are small and should leave at once.
                let _ = stream.set_nodelay(true);
                Ok(Connection::Tcp(stream))
            }
            #[cfg(unix)]
            Self::Unix { listener, _file } => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }
}

/// A connection.
pub(crate) enum Connection {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Calls the method of either stream.
macro_rules! either {
    ($connection:expr, $stream:ident => $call:expr) => {
        match $connection {
            Connection::Tcp($stream) => $call,
            #[cfg(unix)]
            Connection::Unix($stream) => $call,
        }
    };
}

impl Connection {
    pub(crate) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(context))
    }

    pub(crate) fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(context))
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(buffer))
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    pub(crate) fn try_write_vectored(&self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.try_write_vectored(bytes))
    }

    /// Waits for the end of the input or of the connection, whether or not input is unread. Ends at once where the system
    /// cannot tell.
    pub(crate) async fn input_end(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        // Input wakes those who wait for `READABLE`; the end of it also those who wait for urgent data, which nobody sends.
        let _ = either!(self, stream => stream.ready(tokio::io::Interest::PRIORITY).await);
    }

    /// Waits for input and leaves it unread; 0 at its end.
    pub(crate) async fn peek(&self) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.peek(&mut [0]).await,
            #[cfg(unix)]
            Self::Unix(stream) => loop {
                stream.readable().await?;
                let mut byte = [std::mem::MaybeUninit::uninit()];
                let peek = || socket2::SockRef::from(stream).peek(&mut byte);
                match stream.try_io(tokio::io::Interest::READABLE, peek) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    peeked => return peeked,
                }
            },
        }
    }

    /// Ends the output.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        either!(self, stream => socket2::SockRef::from(stream).shutdown(Shutdown::Write))
    }
}
