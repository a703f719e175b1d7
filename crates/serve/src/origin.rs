//! Names of origins and hosts in headers.

/// `scheme://host` or `scheme://host:port`, in lower case, without the scheme's own port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OriginName {
    pub(crate) scheme: String,
    /// Host and port.
    pub(crate) authority: String,
}

impl OriginName {
    /// Reads an origin. `null`, lists, paths and user names are no origins.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://")?;
        let is_scheme = !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
        let own_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let (host, port) = split_authority(authority)?;
        if !is_scheme || host.is_empty() || host == "*" {
            return None;
        }
        let port = port.filter(|port| Some(*port) != own_port);
        let authority = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        Some(Self { scheme: scheme.to_owned(), authority })
    }
}

/// Host and port of `host`, `host:port`, `[address]` or `[address]:port`. `None` for anything else.
pub(crate) fn split_authority(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(_) => text.split_at(text.find(']')? + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_host_byte =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'[' | b']' | b':');
    if host.is_empty() || !host.bytes().all(is_host_byte) {
        return None;
    }
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        Some(port) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            Some((host, Some(port.parse().ok()?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_strictly() {
        let same = |a: &str, b: &str| OriginName::read(a) == OriginName::read(b);
        assert!(same("HTTPS://Chat.Example", "https://chat.example:443"));
        assert!(same("http://localhost:80", "http://localhost"));
        assert!(!same("http://localhost:3000", "http://localhost"));
        for not in [
            "null",
            "*",
            "",
            "http://",
            "http://*",
            "localhost",
            "http://a/b",
            "http://a@b",
            "http://a b",
            "http://a:x",
        ] {
            assert_eq!(OriginName::read(not), None, "{not}");
        }
    }

    #[test]
    fn hosts_are_split_strictly() {
        assert_eq!(split_authority("localhost:8080"), Some(("localhost", Some(8080))));
        assert_eq!(split_authority("[::1]:1"), Some(("[::1]", Some(1))));
        for not in ["", ":1", "a:", "a:b", "a:99999", "[::1", "[::1]x", "a b", "a,b", "a@b"] {
            assert_eq!(split_authority(not), None, "{not}");
        }
    }
}
