//! Requests to a hub: over HTTPS, with own redirects, so that a token never leaves the hub's own address.

use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use ureq::http::header::{self, HeaderMap, HeaderName};
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use super::{HubError, Token};

/// The public hub.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Redirects of one request. The public hub needs two: a renamed repository, and the store of large files.
const REDIRECTS_MAX: usize = 5;
/// Headers of one answer, in bytes. Signed addresses of stores have up to 2 kB.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Maximum length of an address, in bytes.
const ADDRESS_BYTES_MAX: usize = 16 << 10;
/// An attempt that has brought fewer bytes within the time limit has stalled. A client that gives up at any pause would fail on slow
/// links; one that waits for single bytes would never end.
pub(super) const STALL_BYTES_MIN: u64 = 4096;

/// Options of a client.
#[derive(Debug, Clone)]
pub(crate) struct ClientOptions {
    /// The hub's address; the public hub without one.
    pub(crate) endpoint: Option<String>,
    pub(crate) token: Option<Token>,
    /// Time limit of each wait for the hub: for a connection, for headers, for progress.
    pub(crate) stall_time: Duration,
}

/// A client of one hub.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: Endpoint,
    token: Option<Token>,
    stall_time: Duration,
}

/// Scheme, host and port: what a token is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    /// In lower case.
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Result<Self, &'static str> {
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("an address without http or https"),
        };
        let authority = uri.authority().ok_or("an address without a host")?;
        if authority.as_str().contains('@') {
            return Err("an address with a user's name");
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err("an address without a host");
        }
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { is_https, host, port })
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// A hub's address, without a slash at its end.
#[derive(Debug, Clone)]
struct Endpoint {
    base: String,
    origin: Origin,
}

impl Endpoint {
    fn read(given: &str) -> Result<Self, HubError> {
        let refused = |problem| HubError::Endpoint { given: given.chars().take(200).collect(), problem };
        let base = given.trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| refused("it is no address"))?;
        let origin = Origin::of(&uri).map_err(|_| refused("it is no address such as https://hub.example"))?;
        if uri.query().is_some() {
            return Err(refused("it has a query"));
        }
        if !origin.is_https && !origin.is_loopback() {
            return Err(refused("without https, anyone on the way can read the token and change the files"));
        }
        Ok(Self { base: base.to_owned(), origin })
    }
}

impl Client {
    /// # Errors
    /// The address cannot be used, or this system's certificates cannot be read.
    pub(crate) fn new(options: ClientOptions) -> Result<Self, HubError> {
        let ClientOptions { endpoint, token, stall_time } = options;
        let endpoint = Endpoint::read(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT))?;
        // A hub on this device is not behind the proxy. (It has no certificate either, unless it is a redirect's target.)
        let proxy = if endpoint.origin.is_loopback() { None } else { Proxy::try_from_env() };
        let roots = match trusted_certificates() {
            Err(error) if endpoint.origin.is_https => return Err(error),
            roots => roots.unwrap_or_else(|_| RootCerts::new_with_certs(&[])),
        };
        let tls = TlsConfig::builder().root_certs(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .tls_config(tls.unversioned_rustls_crypto_provider(provider).build())
            .user_agent(concat!("refrain/", env!("CARGO_PKG_VERSION")))
            // Lengths and positions are those of the file only if nothing encodes it.
            .accept_encoding("identity")
            .max_response_header_size(HEADER_BYTES_MAX)
            .timeout_resolve(Some(stall_time))
            .timeout_connect(Some(stall_time))
            .timeout_send_request(Some(stall_time))
            .timeout_recv_response(Some(stall_time))
            .timeout_per_read(Some(stall_time))
            .build();
        Ok(Self { agent: config.new_agent(), endpoint, token, stall_time })
    }

    /// The hub's address.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint.base
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn stall_time(&self) -> Duration {
        self.stall_time
    }

    /// The answer at a path of the hub, behind its redirects. `what` names it in errors.
    ///
    /// # Errors
    /// No answer, an answer with a status other than `accepted`, or a redirect that is refused.
    pub(super) fn get(
        &self,
        path: &str,
        headers: &[(HeaderName, String)],
        accepted: &[StatusCode],
        what: &str,
    ) -> Result<Response<Body>, HubError> {
        let mut address = format!("{}{path}", self.endpoint.base);
        let mut is_at_home = true;
        for _ in 0..=REDIRECTS_MAX {
            let redirect = |problem| HubError::Redirect { what: what.to_owned(), problem };
            let uri: Uri = address.parse().map_err(|_| redirect("no address"))?;
            let origin = Origin::of(&uri).map_err(redirect)?;
            let is_on_device = self.endpoint.origin.is_loopback() && origin.is_loopback();
            if !origin.is_https && !is_on_device {
                return Err(redirect("an address without https"));
            }
            // A token that comes back from elsewhere would go to an address that another host has chosen.
            is_at_home &= origin == self.endpoint.origin;
            let mut request = self.agent.get(&uri);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_at_home) {
                request = request.header(header::AUTHORIZATION, token.header());
            }
            let response = request.call().map_err(|error| self.failed(&error, what))?;
            let status = response.status();
            if accepted.contains(&status) {
                return identity(response, what);
            }
            if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                let retry_after = retry_after(response.headers());
                return Err(HubError::Status { what: what.to_owned(), status: status.as_u16(), retry_after });
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            address = join(&origin, location.ok_or_else(|| redirect("no address"))?).map_err(redirect)?;
        }
        Err(HubError::Redirects { what: what.to_owned(), max: REDIRECTS_MAX })
    }

    /// The value of the JSON text at a path of the hub, of at most `max` bytes. Fields that it lacks take no memory.
    pub(super) fn json<T: DeserializeOwned>(&self, path: &str, max: u64, what: &str) -> Result<T, HubError> {
        let response = self.get(path, &[], &[StatusCode::OK], what)?;
        let mut body = Vec::new();
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut pace = Pace::new(self.stall_time);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = reader.read(&mut buffer).map_err(|error| self.read_failed(&error, what))?;
            if n == 0 {
                break;
            }
            if (body.len() + n) as u64 > max {
                return Err(HubError::TooLong { what: what.to_owned(), max });
            }
            body.extend_from_slice(&buffer[..n]);
            pace.advance(n as u64, what)?;
        }
        serde_json::from_slice(&body)
            .map_err(|error| HubError::Answer { what: what.to_owned(), problem: error.to_string() })
    }

    fn failed(&self, error: &ureq::Error, what: &str) -> HubError {
        match error {
            ureq::Error::Timeout(_) => self.stalled(what),
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => self.stalled(what),
            ureq::Error::LargeResponseHeader(..) => {
                HubError::TooLong { what: what.to_owned(), max: HEADER_BYTES_MAX as u64 }
            }
            ureq::Error::Protocol(error) => {
                HubError::Answer { what: what.to_owned(), problem: error.to_string() }
            }
            ureq::Error::Rustls(error) => {
                HubError::Answer { what: what.to_owned(), problem: error.to_string() }
            }
            // A certificate that is refused arrives inside an error of the connection.
            ureq::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                HubError::Answer { what: what.to_owned(), problem: error.to_string() }
            }
            error => HubError::Connection { what: what.to_owned(), problem: error.to_string() },
        }
    }

    /// The error of a failed read of a body.
    pub(super) fn read_failed(&self, error: &std::io::Error, what: &str) -> HubError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
        match inner {
            Some(inner) => self.failed(inner, what),
            None if error.kind() == std::io::ErrorKind::TimedOut => self.stalled(what),
            None => HubError::Connection { what: what.to_owned(), problem: error.to_string() },
        }
    }

    fn stalled(&self, what: &str) -> HubError {
        HubError::Stalled { what: what.to_owned(), min_bytes: STALL_BYTES_MIN, time: self.stall_time }
    }
}

/// The time limit of an answer's progress.
pub(super) struct Pace {
    start: Instant,
    n_bytes: u64,
    time: Duration,
}

impl Pace {
    pub(super) fn new(time: Duration) -> Self {
        Self { start: Instant::now(), n_bytes: 0, time }
    }

    /// Counts bytes. An error if too few have come within the time limit.
    pub(super) fn advance(&mut self, n_bytes: u64, what: &str) -> Result<(), HubError> {
        self.n_bytes += n_bytes;
        if self.start.elapsed() < self.time {
            return Ok(());
        }
        if self.n_bytes < STALL_BYTES_MIN {
            return Err(HubError::Stalled {
                what: what.to_owned(),
                min_bytes: STALL_BYTES_MIN,
                time: self.time,
            });
        }
        *self = Self::new(self.time);
        Ok(())
    }
}

/// The certificates that this system trusts; those of `SSL_CERT_FILE` and `SSL_CERT_DIR` where they are set.
fn trusted_certificates() -> Result<RootCerts, HubError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let first = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(HubError::Certificates { problem: first });
    }
    let certificates: Vec<Certificate<'static>> =
        found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(RootCerts::new_with_certs(&certificates))
}

/// An answer whose bytes are those of the file.
fn identity(response: Response<Body>, what: &str) -> Result<Response<Body>, HubError> {
    let encoding = response.headers().get(header::CONTENT_ENCODING).map(|value| value.as_bytes());
    match encoding {
        None | Some(b"" | b"identity") => Ok(response),
        Some(other) => {
            let encoding = String::from_utf8_lossy(&other[..other.len().min(40)]).into_owned();
            Err(HubError::Encoded { what: what.to_owned(), encoding })
        }
    }
}

/// The address that `Location` gives, seen from `origin`.
fn join(origin: &Origin, location: &str) -> Result<String, &'static str> {
    if location.len() > ADDRESS_BYTES_MAX {
        return Err("an address that is too long");
    }
    if let Some(rest) = location.strip_prefix("//") {
        let scheme = if origin.is_https { "https" } else { "http" };
        return Ok(format!("{scheme}://{rest}"));
    }
    if location.starts_with('/') {
        return Ok(format!("{origin}{location}"));
    }
    match location.split_once("://") {
        Some(("http" | "https", _)) => Ok(location.to_owned()),
        _ => Err("an address without http or https"),
    }
}

/// The time of the header `Retry-After` in seconds. (Hubs do not send its other form, a date.)
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_has_https_or_is_on_this_device() {
        for given in [
            "https://hub.example",
            "https://hub.example/hf/",
            "http://127.0.0.1:9",
            "http://[::1]:9",
            "http://localhost",
        ] {
            Endpoint::read(given).unwrap();
        }
        for given in [
            "",
            "hub.example",
            "http://hub.example",
            "http://127.0.0.1.hub.example",
            "ftp://hub.example",
            "https://",
            "https://u@hub.example",
            "https://hub.example/?a=b",
            "http://localhost.hub.example",
        ] {
            assert!(matches!(Endpoint::read(given), Err(HubError::Endpoint { .. })), "{given}");
        }
        assert_eq!(Endpoint::read("https://hub.example/hf/").unwrap().base, "https://hub.example/hf");
    }

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let origin = |text: &str| Origin::of(&text.parse().unwrap()).unwrap();
        assert_eq!(origin("https://Hub.Example/a"), origin("https://hub.example:443/b?c"));
        for other in [
            "http://hub.example",
            "https://hub.example:444",
            "https://hub.example.evil",
            "https://cdn.hub.example",
        ] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        assert!(Origin::of(&"https://hub.example@evil.example/".parse().unwrap()).is_err());
    }

    #[test]
    fn locations_are_joined() {
        let origin = Origin::of(&"https://hub.example:444/x".parse().unwrap()).unwrap();
        assert_eq!(join(&origin, "/a/b").as_deref(), Ok("https://hub.example:444/a/b"));
        assert_eq!(join(&origin, "//cdn.example/a").as_deref(), Ok("https://cdn.example/a"));
        assert_eq!(join(&origin, "https://cdn.example/a").as_deref(), Ok("https://cdn.example/a"));
        for refused in ["file:///etc/passwd", "a/b", "", "javascript:0", &format!("/{}", "a".repeat(20_000))]
        {
            assert!(join(&origin, refused).is_err(), "{refused:.30}");
        }
    }
}
