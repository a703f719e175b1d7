//! `refrain model ps`: the models that servers on this device have in memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::ModelPsArgs;
use crate::failure::{Exit, Failure};
use crate::terminal::{AnswerStream, note, visible};
use refrain_program::args::bytes_text;

/// Where `refrain serve` and Ollama listen, unless they are told otherwise.
const USUAL: [&str; 2] = ["127.0.0.1:8080", "127.0.0.1:11434"];
/// Time to connect, and between two parts of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum bytes of an answer. An entry has about 500 bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The token of the servers, as `serve` takes it.
const TOKEN: &str = "REFRAIN_TOKEN";

/// What a server says.
struct Server {
    address: String,
    name: String,
    models: Vec<Value>,
}

pub(crate) fn ps(args: &ModelPsArgs) -> Result<Exit, Failure> {
    let is_usual = args.addresses.is_empty();
    let addresses: Vec<String> = match is_usual {
        true => USUAL.map(str::to_owned).into(),
        false => args.addresses.clone(),
    };
    let mut servers = Vec::new();
    for address in addresses {
        match ask(&address) {
            Ok(server) => servers.push(server),
            // Nobody has to listen at the usual places.
            Err(Problem::Connection(_)) if is_usual => {}
            Err(problem) if is_usual => note(&visible(&format!("{address}: {}", problem.text()))),
            Err(problem) => return Err(Failure::new(Exit::Failed, format!("{address}: {}", problem.text()))),
        }
    }
    let mut out = AnswerStream::stdout();
    if args.json {
        let shown = servers.iter().map(|server| {
            let models = server.models.iter().map(model_json).collect::<Vec<_>>();
            json!({ "address": server.address, "server": server.name, "models": models })
        });
        out.line(&json!({ "servers": shown.collect::<Vec<_>>() }).to_string())?;
        return Ok(Exit::Done);
    }
    for Server { address, name, models } in &servers {
        if models.is_empty() {
            out.line(&visible(&format!("{address} ({name}): no model is loaded")))?;
        }
        for model in models {
            let model = model_json(model);
            let text = |field: &str| model[field].as_str().unwrap_or("?").to_owned();
            let bytes = bytes_text(model["bytes"].as_u64().unwrap_or(0));
            let until = model["until"]
                .as_str()
                .map_or_else(|| "until others need its memory".to_owned(), |time| format!("until {time}"));
            let line = format!("{address} ({name}): {}, {bytes}, {until}", text("name"));
            out.line(&visible(&line))?;
        }
    }
    if servers.is_empty() {
        note(&format!(
            "no server answers at {}; `refrain model ps ADDRESS` asks another",
            USUAL.join(" or ")
        ));
    }
    Ok(Exit::Done)
}

/// A loaded model. A server that keeps models as long as it can says a year far away.
fn model_json(model: &Value) -> Value {
    let until = model["expires_at"].as_str().filter(|time| !time.starts_with("9999"));
    json!({
        "name": model["name"],
        "bytes": model["size"],
        "context_length": model["context_length"],
        "until": until,
    })
}

/// Why a server says nothing.
#[derive(Debug)]
enum Problem {
    Connection(std::io::Error),
    Status(u16),
    Answer(&'static str),
}

impl Problem {
    fn text(&self) -> String {
        match self {
            Self::Connection(error) => format!("no server answers: {error}"),
            Self::Status(401) => format!("the server wants a token, which {TOKEN} has"),
            Self::Status(status) => format!("the server answers with status {status}"),
            Self::Answer(problem) => format!("the answer cannot be read: {problem}"),
        }
    }
}

fn ask(address: &str) -> Result<Server, Problem> {
    let answer = match address.strip_prefix("unix:") {
        None => {
            let place = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
            let resolved = place.to_socket_addrs().map_err(Problem::Connection)?.next();
            let resolved = resolved.ok_or(Problem::Answer("the address is none"))?;
            let stream = TcpStream::connect_timeout(&resolved, PATIENCE).map_err(Problem::Connection)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(Problem::Connection)?;
            get(stream, place)?
        }
        Some(path) => get(socket(path)?, "localhost")?,
    };
    let answer: Value = serde_json::from_slice(&answer).map_err(|_| Problem::Answer("it is not JSON"))?;
    let models = answer["models"].as_array().ok_or(Problem::Answer("it has no `models`"))?.clone();
    let name = answer["server"].as_str().unwrap_or("Ollama").to_owned();
    Ok(Server { address: address.to_owned(), name, models })
}

#[cfg(unix)]
fn socket(path: &str) -> Result<std::os::unix::net::UnixStream, Problem> {
    let stream = std::os::unix::net::UnixStream::connect(path).map_err(Problem::Connection)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(Problem::Connection)?;
    Ok(stream)
}

#[cfg(not(unix))]
fn socket(_path: &str) -> Result<TcpStream, Problem> {
    Err(Problem::Answer("this system has no Unix sockets"))
}

/// The body of `/api/ps`, in which Ollama and this program's servers list their models.
fn get(mut stream: impl Read + Write, host: &str) -> Result<Vec<u8>, Problem> {
    let token = std::env::var(TOKEN).ok().filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    let key = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET /api/ps HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{key}\r\n");
    stream.write_all(request.as_bytes()).map_err(Problem::Connection)?;
    read(BufReader::new(stream.take(ANSWER_BYTES_MAX)))
}

/// The body of an answer: whole, or in chunks.
fn read(mut reader: impl BufRead) -> Result<Vec<u8>, Problem> {
    let line = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(Problem::Connection)?;
        Ok::<_, Problem>(line.trim_end().to_owned())
    };
    let status = line(&mut reader)?;
    let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status: u16 = status.ok_or(Problem::Answer("it is not HTTP"))?;
    let mut is_chunked = false;
    loop {
        let header = line(&mut reader)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        is_chunked |= header.starts_with("transfer-encoding:") && header.ends_with("chunked");
    }
    if status != 200 {
        return Err(Problem::Status(status));
    }
    let mut body = Vec::new();
    if !is_chunked {
        reader.read_to_end(&mut body).map_err(Problem::Connection)?;
        return Ok(body);
    }
    loop {
        let size = line(&mut reader)?;
        let size = u64::from_str_radix(size.split(';').next().unwrap_or_default(), 16);
        let size = size.map_err(|_| Problem::Answer("a chunk has no size"))?;
        if size == 0 {
            return Ok(body);
        }
        let n_read = reader.by_ref().take(size).read_to_end(&mut body).map_err(Problem::Connection)?;
        if (n_read as u64) < size {
            return Err(Problem::Answer("it is cut off"));
        }
        line(&mut reader)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_and_in_chunks() {
        let body = |answer: &str| read(answer.as_bytes());
        assert_eq!(body("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}").unwrap(), b"{}");
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x\r\n}\r\n0\r\n\r\n";
        assert_eq!(body(chunks).unwrap(), b"{}");
        assert!(matches!(body("HTTP/1.1 401 No\r\n\r\n"), Err(Problem::Status(401))));
        for answer in [
            "",
            "SSH-2.0\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            &chunks[..chunks.len() - 8],
        ] {
            assert!(matches!(body(answer), Err(Problem::Answer(_))), "{answer}");
        }
    }

    #[test]
    fn a_time_far_away_is_none() {
        let until =
            |time: &str| model_json(&json!({ "name": "a", "size": 1, "expires_at": time }))["until"].clone();
        assert_eq!(until("9999-12-31T23:59:59Z"), Value::Null);
        assert_eq!(until("2026-01-02T03:04:05Z"), "2026-01-02T03:04:05Z");
    }
}
