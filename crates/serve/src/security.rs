//! What every request must pass before a route sees it: `Host`, `Origin`, CORS, the token.
//!
//! A web page of another site can send requests to this device. Three headers tell them apart. `Host` names the server that the browser
//! believes to speak to: a foreign name means that its owner has pointed it to this device (DNS rebinding). `Origin` names the page that sends
//! the request, and `Sec-Fetch-Site` says whether a request without `Origin` comes from another site. Programs send neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Uri};

use crate::error::{ApiError, ApiResult, ErrorKind};
use crate::handed::{is_handed, is_proof};
use crate::options::ServeOptions;
use crate::origin::{OriginName, split_authority};
use crate::page::is_asset;

/// Headers of responses that pages of allowed origins may read.
const EXPOSED: &str =
    "retry-after, x-request-id, request-id, x-refrain-ignored, openai-processing-ms, mcp-session-id";

/// The rules of one server.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The hash of the token.
    token: Option<blake3::Hash>,
    /// The hash of the secret for commands of the program.
    secret: Option<blake3::Hash>,
    origins: Vec<OriginName>,
    hosts: Vec<String>,
    is_loopback: bool,
    /// Whether connections come over a Unix socket, which no browser opens.
    is_socket: bool,
}

/// What a request may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The route answers. The response gets these headers.
    Pass(CorsHeaders),
    /// A question of a browser about another origin; the answer has these headers and no body.
    Preflight(CorsHeaders),
    /// Refused before any part of the body is read. A page of an allowed origin may read the reason.
    Refused(ApiError, CorsHeaders),
}

/// Headers for a page of an allowed origin; empty for every other client.
pub(crate) type CorsHeaders = Vec<(HeaderName, HeaderValue)>;

impl Rules {
    /// The rules of checked options; `secret` is that of the program's own commands.
    pub(crate) fn new(options: &ServeOptions, secret: Option<&str>) -> Self {
        Self {
            token: options.token.as_ref().map(|token| blake3::hash(token.as_bytes())),
            secret: secret.map(|secret| blake3::hash(secret.as_bytes())),
            origins: options.origins.iter().filter_map(|origin| OriginName::read(origin)).collect(),
            hosts: options.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            is_loopback: options.host.is_loopback(),
            is_socket: options.unix_socket.is_some(),
        }
    }

    /// Judges the head of a request.
    pub(crate) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let host = self.check_host(uri, headers);
        let cors = match host.and_then(|host| self.check_origin(method, headers, host)) {
            Ok(cors) => cors,
            Err(error) => return Verdict::Refused(error, Vec::new()),
        };
        if *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            // Browsers send questions without a token.
            return Verdict::Preflight(preflight(cors, headers));
        }
        // Monitors ask for the health without a secret, and browsers for the files of the page. Neither answer has one.
        let is_public = uri.path() == "/health" || is_asset(uri.path()) || is_proof(uri.path());
        let token = if is_handed(uri.path()) { &self.secret } else { &self.token };
        match check_token(token.as_ref(), headers) {
            Err(error) if !is_public => Verdict::Refused(error, cors),
            _ => Verdict::Pass(cors),
        }
    }

    /// The host that the request names.
    fn check_host<'a>(&self, uri: &'a Uri, headers: &'a HeaderMap) -> ApiResult<&'a str> {
        let refused = |what: &str| {
            let advice = "add a name of this device with `--allow-host`";
            Err(ApiError::forbidden("host_not_allowed", format!("the header `Host` {what} ({advice})")))
        };
        let mut given = headers.get_all(header::HOST).iter();
        let host = match (given.next(), given.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            (None, _) => return refused("is missing"),
            (Some(_), Some(_)) => return refused("is given twice"),
        };
        // A proxy's form of a request names the host once more.
        if uri.authority().is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host)) {
            return refused("differs from the request's address");
        }
        let Some((name, _)) = split_authority(host) else { return refused("names no host") };
        // Programs write any name for a socket. A browser's request comes through a proxy, where a foreign name may be pointed at.
        let is_browser = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
        if self.is_socket && !is_browser {
            return Ok(host);
        }
        let name_lower = name.to_ascii_lowercase();
        let is_allowed = match address(&name_lower) {
            // A page cannot make an address its own name, so an address is never rebound. On loopback, only those can arrive.
            Some(address) => !self.is_loopback || address.is_loopback(),
            None => name_lower == "localhost" || self.hosts.contains(&name_lower),
        };
        if is_allowed { Ok(host) } else { refused("names another host") }
    }

    fn check_origin(&self, method: &Method, headers: &HeaderMap, host: &str) -> ApiResult<CorsHeaders> {
        let refused = |what: &str| {
            let advice = "allow the origin of a page with `--origin`";
            Err(ApiError::forbidden("origin_not_allowed", format!("{what} ({advice})")))
        };
        let mut given = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = given.next() else {
            let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
            // A link to the page is a navigation, and shows this server's own page.
            // A frame is none: its page could lay something over it.
            let has =
                |name: &str, value: &[u8]| headers.get(name).is_some_and(|given| given.as_bytes() == value);
            let is_navigation = *method == Method::GET
                && has("sec-fetch-mode", b"navigate")
                && has("sec-fetch-dest", b"document");
            return match site {
                None | Some(b"same-origin" | b"none") => Ok(Vec::new()),
                Some(_) if is_navigation => Ok(Vec::new()),
                Some(_) => refused("the request comes from a page of another site"),
            };
        };
        if given.next().is_some() {
            return refused("the header `Origin` is given twice");
        }
        let Some(name) = origin.to_str().ok().and_then(OriginName::read) else {
            return refused("the header `Origin` names no origin");
        };
        let is_own = name.scheme == "http"
            && OriginName::read(&format!("http://{host}")).is_some_and(|own| own.authority == name.authority);
        if is_own {
            return Ok(Vec::new());
        }
        if !self.origins.contains(&name) {
            return refused("the page's origin is not allowed");
        }
        Ok(vec![
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            (header::VARY, HeaderValue::from_static("Origin")),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED)),
        ])
    }
}

/// Compares the token of a request with a hash.
fn check_token(expected: Option<&blake3::Hash>, headers: &HeaderMap) -> ApiResult<()> {
    let Some(expected) = expected else { return Ok(()) };
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (first, second) = (given.next(), given.next());
    let bearer = first.map(HeaderValue::as_bytes).and_then(bearer).filter(|_| second.is_none());
    // Clients of the Anthropic API send their key so. It counts where the other header is absent.
    let mut keys = headers.get_all("x-api-key").iter().map(HeaderValue::as_bytes);
    let key = keys.next().filter(|_| keys.next().is_none() && first.is_none());
    let token = bearer.or(key);
    // Compared in constant time (`blake3::Hash`); the hash also hides the length.
    if token.is_some_and(|token| blake3::hash(token) == *expected) {
        return Ok(());
    }
    let message = "the header `Authorization: Bearer …` (or `x-api-key`) is missing or has another token";
    let error = ApiError::new(ErrorKind::Unauthorized, message);
    Err(error.with_code("invalid_api_key"))
}

/// The token of `Bearer token`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// The address that a host's name is, if it is one.
fn address(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(|address| {
            // ::ffff:127.0.0.1 is loopback too.
            address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
        }),
        None => name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// The answer to a browser's question about methods and headers.
fn preflight(mut cors: CorsHeaders, headers: &HeaderMap) -> CorsHeaders {
    if cors.is_empty() {
        return cors;
    }
    cors.push((header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS")));
    // The official clients send many headers of their own. No route's meaning depends on one of them, so those asked for are allowed.
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)
        && asked.len() <= 1024
        && asked.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(b))
    {
        cors.push((header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone()));
    }
    if headers.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        cors.push((name, HeaderValue::from_static("true")));
    }
    cors.push((header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")));
    cors
}
