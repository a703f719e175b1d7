//! Who may use the server: Host × Origin × token × address.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use refrain_serve::{Limits, ServeError, ServeOptions, Server};

use crate::support::{Running, changed, models};

const TOKEN: &str = "correct-horse-battery-staple";

/// A row: Host, Origin, Authorization, status.
type Row<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>, u16);

fn check(name: &str, server: &Running, rows: &[Row<'_>]) {
    let port = server.address.port().to_string();
    for &(host, origin, token, expected) in rows {
        let fill = |text: Option<&str>| text.map(|text| text.replace("PORT", &port));
        let (host, origin) = (fill(host), fill(origin));
        let mut headers = Vec::new();
        headers.extend(host.as_deref().map(|host| ("Host", host)));
        headers.extend(origin.as_deref().map(|origin| ("Origin", origin)));
        headers.extend(token.map(|token| ("Authorization", token)));
        let reply = server.raw("GET", "/v1/models", &headers, "");
        let row = format!("{name}: {host:?} {origin:?} {token:?}");
        assert_eq!(reply.status, expected, "{row}");
        let allowed = reply.headers.get("access-control-allow-origin");
        match &origin {
            Some(origin) if expected != 403 && origin.contains("chat.example") => {
                assert_eq!(allowed, Some(origin), "{row}")
            }
            _ => assert_eq!(allowed, None, "{row}"),
        }
        if expected == 403 || expected == 401 {
            assert!(reply.error()["code"].is_string(), "{row}");
            assert!(!reply.body.contains("fixture") && !reply.body.contains(TOKEN), "{row}");
        }
    }
}

#[test]
fn hosts_origins_tokens_and_addresses() {
    let bearer = format!("Bearer {TOKEN}");
    let (good, local) = (Some(bearer.as_str()), Some("localhost:PORT"));
    let origins = vec!["https://chat.example".to_owned(), "http://chat.example:3000".to_owned()];
    let open = Running::with(ServeOptions::default(), Limits::default());
    check(
        "loopback, no token, no origins",
        &open,
        &[
            (local, None, None, 200),
            (Some("LOCALHOST:PORT"), None, None, 200),
            (Some("localhost"), None, None, 200),
            (Some("127.0.0.1:PORT"), None, None, 200),
            (Some("127.0.0.1"), None, None, 200),
            (Some("127.9.9.9:1"), None, None, 200),
            (Some("[::1]:PORT"), None, None, 200),
            (Some("[::ffff:127.0.0.1]"), None, None, 200),
            (local, None, good, 200),
            (None, None, None, 403),
            (Some(""), None, None, 403),
            (Some("evil.example"), None, None, 403),
            (Some("evil.example:PORT"), None, None, 403),
            (Some("localhost.evil.example:PORT"), None, None, 403),
            (Some("evil-localhost:PORT"), None, None, 403),
            (Some("127.0.0.1.evil.example:PORT"), None, None, 403),
            (Some("localhost:PORT:PORT"), None, None, 403),
            (Some("localhost:x"), None, None, 403),
            (Some("user@localhost:PORT"), None, None, 403),
            (Some("localhost, evil.example"), None, None, 403),
            (Some("192.168.1.7:PORT"), None, None, 403),
            (Some("0.0.0.0:PORT"), None, None, 403),
            (Some("[fe80::1]:PORT"), None, None, 403),
            (Some("[::1"), None, None, 403),
            (Some("2130706433:PORT"), None, None, 403),
            (local, Some("http://localhost:PORT"), None, 200),
            (local, Some("HTTP://LOCALHOST:PORT"), None, 200),
            (Some("127.0.0.1:PORT"), Some("http://127.0.0.1:PORT"), None, 200),
            (Some("127.0.0.1:PORT"), Some("http://localhost:PORT"), None, 403),
            (local, Some("https://localhost:PORT"), None, 403),
            (local, Some("http://localhost:1"), None, 403),
            (local, Some("http://localhost"), None, 403),
            (local, Some("null"), None, 403),
            (local, Some(""), None, 403),
            (local, Some("*"), None, 403),
            (local, Some("file://"), None, 403),
            (local, Some("https://evil.example"), None, 403),
            (local, Some("https://chat.example"), None, 403),
            (local, Some("chrome-extension://abcdef"), None, 403),
            (Some("evil.example:PORT"), Some("http://evil.example:PORT"), None, 403),
        ],
    );
    let mut options = ServeOptions::default();
    options.token = Some(TOKEN.to_owned());
    options.origins = origins.clone();
    let guarded =
        Running::with(changed(options, |it| it.hosts = vec!["Desk.home".to_owned()]), Limits::default());
    check(
        "loopback, token, origins, a host",
        &guarded,
        &[
            (local, None, good, 200),
            (local, None, Some("bearer correct-horse-battery-staple"), 200),
            (local, None, None, 401),
            (local, None, Some("Bearer"), 401),
            (local, None, Some("Bearer "), 401),
            (local, None, Some("Bearer correct-horse-battery-stapl"), 401),
            (local, None, Some("Bearer correct-horse-battery-staple2"), 401),
            (local, None, Some("Bearer CORRECT-HORSE-BATTERY-STAPLE"), 401),
            (local, None, Some("Basic correct-horse-battery-staple"), 401),
            (local, None, Some(TOKEN), 401),
            (Some("desk.home:PORT"), None, good, 200),
            (Some("DESK.HOME"), None, good, 200),
            (Some("desk.home.evil.example"), None, good, 403),
            (Some("evil.example"), None, good, 403),
            (local, Some("https://chat.example"), good, 200),
            (local, Some("https://chat.example:443"), good, 200),
            (local, Some("http://chat.example:3000"), good, 200),
            (local, Some("https://chat.example"), None, 401),
            (local, Some("http://chat.example"), good, 403),
            (local, Some("https://chat.example:444"), good, 403),
            (local, Some("https://chat.example.evil.example"), good, 403),
            (local, Some("https://sub.chat.example"), good, 403),
            (local, Some("https://chat.example/"), good, 403),
            (local, Some("https://chat.example https://evil.example"), good, 403),
            (local, Some("null"), good, 403),
        ],
    );
    let any: IpAddr = "0.0.0.0".parse().unwrap();
    let mut options = ServeOptions::default();
    options.host = any;
    options.token = Some(TOKEN.to_owned());
    let wide = Running::with(options, Limits::default());
    check(
        "every address, token",
        &wide,
        &[
            (local, None, good, 200),
            (local, None, None, 401),
            (Some("192.168.1.7:PORT"), None, good, 200),
            (Some("[fe80::1]:PORT"), None, good, 200),
            (Some("192.168.1.7:PORT"), None, None, 401),
            (Some("evil.example:PORT"), None, good, 403),
            (Some("192.168.1.7:PORT"), Some("http://192.168.1.7:PORT"), good, 200),
            (Some("192.168.1.7:PORT"), Some("http://192.168.1.8:PORT"), good, 403),
            (Some("192.168.1.7:PORT"), Some("null"), good, 403),
            (None, None, good, 403),
        ],
    );
}

#[test]
fn browsers_without_an_origin_are_told_apart() {
    let server = Running::start();
    let get = |headers: &[(&str, &str)]| server.request("GET", "/v1/models", headers, "").status;
    for (headers, expected) in [
        (&[("Sec-Fetch-Site", "same-origin")][..], 200),
        (&[("Sec-Fetch-Site", "none")], 200),
        (&[("Sec-Fetch-Site", "cross-site")], 403),
        (&[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")], 403),
        (
            &[
                ("Sec-Fetch-Site", "cross-site"),
                ("Sec-Fetch-Mode", "navigate"),
                ("Sec-Fetch-Dest", "document"),
            ],
            200,
        ),
        (
            &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")],
            403,
        ),
        (&[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")], 403),
        (&[("Origin", "http://localhost:1"), ("Sec-Fetch-Site", "none")], 403),
        (&[("Host", "localhost"), ("Host", "localhost")], 403),
        (&[("Origin", "null"), ("Origin", "null")], 403),
    ] {
        assert_eq!(get(headers), expected, "{headers:?}");
    }
    // A proxy's form of a request.
    let port = server.address.port();
    let host = format!("localhost:{port}");
    let reply = server.raw("GET", "http://evil.example/v1/models", &[("Host", &host)], "");
    assert_eq!(reply.status, 403);
    let reply = server.raw("GET", &format!("http://{host}/v1/models"), &[("Host", &host)], "");
    assert_eq!(reply.status, 200);
}

#[test]
fn browsers_ask_before_they_send() {
    let mut options = ServeOptions::default();
    options.token = Some(TOKEN.to_owned());
    let server = Running::with(
        changed(options, |it| it.origins = vec!["https://chat.example".to_owned()]),
        Limits::default(),
    );
    let ask = |origin: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization, content-type, x-stainless-os"),
        ];
        server.request("OPTIONS", "/v1/chat/completions", &headers, "")
    };
    let reply = ask("https://chat.example");
    assert_eq!(reply.status, 204);
    assert_eq!(reply.headers["access-control-allow-origin"], "https://chat.example");
    assert_eq!(reply.headers["access-control-allow-headers"], "authorization, content-type, x-stainless-os");
    assert_eq!(reply.headers["vary"], "Origin");
    let reply = ask("https://evil.example");
    assert_eq!((reply.status, reply.headers.get("access-control-allow-origin")), (403, None));
    // Monitors need no secret.
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 401);
}

#[test]
fn unsafe_options_are_refused() {
    let refused = |options: ServeOptions| {
        Server::bind(changed(options, |it| it.port = 0), models()).expect_err("refused")
    };
    let any: IpAddr = "0.0.0.0".parse().unwrap();
    assert!(matches!(
        refused(changed(ServeOptions::default(), |it| it.host = any)),
        ServeError::TokenRequired { .. }
    ));
    let mut short = ServeOptions::default();
    short.token = Some("short".to_owned());
    assert!(matches!(refused(short), ServeError::TokenLength { given: 5, .. }));
    let mut odd = ServeOptions::default();
    odd.token = Some("a token with spaces".to_owned());
    assert!(matches!(refused(odd), ServeError::TokenBytes));
    for origin in ["null", "*", "chat.example", "https://*", "https://a/b"] {
        let mut options = ServeOptions::default();
        options.origins = vec![origin.to_owned()];
        assert!(matches!(refused(options), ServeError::Origin { .. }), "{origin}");
    }
    let mut options = ServeOptions::default();
    options.hosts = vec!["a b".to_owned()];
    assert!(matches!(refused(options), ServeError::HostName { .. }));
    let mut options = ServeOptions::default();
    options.token = Some(TOKEN.to_owned());
    assert!(!format!("{options:?}").contains(TOKEN));
}

#[test]
fn slow_and_oversized_heads_end_their_connections() {
    let mut limits = Limits::default();
    limits.header_time = Duration::from_millis(300);
    limits.headers = 8;
    let server = Running::with(ServeOptions::default(), limits);
    // A head that never ends: the connection is closed by the server, not by this client.
    let mut slow = server.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    let since = Instant::now();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(since.elapsed() >= Duration::from_millis(200), "{rest:?}");
    let mut many = server.connect();
    let heads: String = (0..20).map(|n| format!("X-{n}: 1\r\n")).collect();
    many.write_all(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{heads}\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    let _ = many.read_to_string(&mut reply);
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
    let mut long = server.connect();
    let _ =
        long.write_all(format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(60_000)).as_bytes());
    let mut reply = String::new();
    let _ = long.read_to_string(&mut reply);
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
    assert_eq!(server.get("/health").status, 200);
}
