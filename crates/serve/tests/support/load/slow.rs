//! Connections that stay open and do nearly nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// How a connection is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    /// It sends a head, a byte at a time.
    Head,
    /// It sends a body, a byte at a time.
    Body,
    /// It reads responses, a byte at a time.
    Reading,
    /// It was answered, and stays open.
    Idle,
    /// It sends a request, then the end of its input, and waits.
    HalfClosed,
}

const KINDS: [Slow; 5] = [Slow::Head, Slow::Body, Slow::Reading, Slow::Idle, Slow::HalfClosed];

/// Responses that a slow reader asks for at once: more than the buffers of the system take.
const PIPELINED: usize = 100;

/// A server whose connections are all taken accepts none for a while.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Slow connections of all kinds, in equal numbers. A connection that the server ends is opened again.
pub(crate) struct SlowClients {
    address: SocketAddr,
    clients: Vec<(Slow, Option<TcpStream>)>,
    /// Connections that the server has ended.
    pub(crate) n_ended: usize,
}

impl SlowClients {
    pub(crate) fn open(address: SocketAddr, n_connections: usize) -> Self {
        let kinds = KINDS.into_iter().cycle().take(n_connections);
        let clients = kinds.map(|kind| (kind, open(address, kind).ok())).collect();
        Self { address, clients, n_ended: 0 }
    }

    pub(crate) fn n_clients(&self) -> usize {
        self.clients.len()
    }

    /// Connections that the server's system has accepted.
    pub(crate) fn n_open(&self) -> usize {
        self.clients.iter().filter(|(_, stream)| stream.is_some()).count()
    }

    /// Each connection sends or takes a byte.
    pub(crate) fn tick(&mut self) {
        self.tick_some(0..self.clients.len());
    }

    /// Some connections send or take a byte each. Numbers go round: number 0 again follows the last.
    pub(crate) fn tick_some(&mut self, numbers: Range<usize>) {
        let n_clients = self.clients.len();
        for number in numbers {
            let (kind, slot) = &mut self.clients[number % n_clients];
            let is_open = slot.as_mut().is_some_and(|stream| goes_on(*kind, stream));
            if !is_open {
                self.n_ended += usize::from(slot.is_some());
                // Closed first: the new one may need its place.
                *slot = None;
                *slot = open(self.address, *kind).ok();
            }
        }
    }
}

fn open(address: SocketAddr, kind: Slow) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIME)?;
    let host = format!("Host: localhost:{}\r\n", address.port());
    let begun = match kind {
        Slow::Head => format!("GET /health HTTP/1.1\r\n{host}X-Slow: "),
        Slow::Body => format!(
            "POST /v1/chat/completions HTTP/1.1\r\n{host}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        ),
        Slow::Reading => format!("GET /openapi.json HTTP/1.1\r\n{host}\r\n").repeat(PIPELINED),
        Slow::Idle | Slow::HalfClosed => format!("GET /health HTTP/1.1\r\n{host}\r\n"),
    };
    stream.write_all(begun.as_bytes())?;
    if kind == Slow::HalfClosed {
        stream.shutdown(Shutdown::Write)?;
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// A byte in the connection's own direction. `false`: the server has ended it.
fn goes_on(kind: Slow, stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    let moved = match kind {
        Slow::Head => match stream.read(&mut buffer) {
            Ok(0) => return false,
            _ => stream.write(b"x"),
        },
        Slow::Body => match stream.read(&mut buffer) {
            Ok(0) => return false,
            _ => stream.write(b" "),
        },
        Slow::Reading => stream.read(&mut buffer[..1]),
        Slow::Idle | Slow::HalfClosed => stream.read(&mut buffer),
    };
    match moved {
        Ok(n) => n > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
