//! Requests whose client goes away.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::support::{chat, with};

/// How far a request gets before its client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A part of the head was sent.
    Head,
    /// A part of the body was sent.
    Body,
    /// The whole request was sent, and nothing is read: it is checked or waits.
    Queue,
    /// The first part of the prompt was computed.
    Prefill,
    /// The first text has arrived.
    Decoding,
    /// The whole answer was read.
    End,
}

pub(crate) const STAGES: [Stage; 6] =
    [Stage::Head, Stage::Body, Stage::Queue, Stage::Prefill, Stage::Decoding, Stage::End];

/// How the client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As a program that closes its socket.
    Close,
    /// As a program that is killed, or a network that is lost.
    Reset,
}

/// No answer of the fixture takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Begins a request, and goes away at `stage`. Returns whether the stage was reached; a full queue refuses requests.
///
/// # Errors
/// The server does not accept the connection.
pub(crate) fn abort(address: SocketAddr, stage: Stage, ending: Ending, index: usize) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Each prompt is new, so that none is restored.
    let content = format!("{index}: {}", "The train leaves at noon. ".repeat(24));
    let max_tokens = if stage == Stage::End { 4 } else { 256 };
    let body = with(&chat(&content), json!({ "stream": true, "max_tokens": max_tokens })).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        address.port(),
        body.len()
    );
    let sent = match stage {
        Stage::Head => head[..head.len() / 2].to_owned(),
        Stage::Body => format!("{head}{}", &body[..body.len() / 2]),
        _ => head + &body,
    };
    // A server that refuses at once may have closed already.
    let is_sent = stream.write_all(sent.as_bytes()).is_ok();
    let reached = match stage {
        Stage::Head | Stage::Body | Stage::Queue => is_sent,
        Stage::Prefill => is_sent && reads(&mut stream, b": prefill"),
        Stage::Decoding => is_sent && reads(&mut stream, b"\"content\":\""),
        Stage::End => is_sent && reads(&mut stream, b"data: [DONE]"),
    };
    if ending == Ending::Reset {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(reached)
}

/// Reads until these bytes have arrived. `false`: the response ends before.
fn reads(stream: &mut TcpStream, expected: &[u8]) -> bool {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !bytes.windows(expected.len()).any(|window| window == expected) {
        match stream.read(&mut buffer) {
            Ok(n @ 1..) => bytes.extend_from_slice(&buffer[..n]),
            _ => return false,
        }
        // Refusals keep their connection open.
        if !bytes.starts_with(b"HTTP/1.1 200") {
            return false;
        }
    }
    true
}
