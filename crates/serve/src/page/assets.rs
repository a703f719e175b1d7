//! The files of the page, as `crates/serve/page/build.mjs` has built them.

use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};

const INDEX: &[u8] = include_bytes!("../../page/dist/index.html");
const SCRIPT: &[u8] = include_bytes!("../../page/dist/page.js");
const STYLE: &[u8] = include_bytes!("../../page/dist/page.css");
const ICON: &[u8] = include_bytes!("../../page/dist/icon.svg");

/// What the page may load and do: its own files and requests to its own server. No inline script or style, no frame, and no text as
/// markup, for which the page would need a policy of trusted types.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Whether a path is that of a file of the page.
pub(crate) fn is_asset(path: &str) -> bool {
    matches!(path, "/" | "/page/page.js" | "/page/page.css" | "/page/icon.svg")
}

pub(super) async fn index() -> Response {
    file(INDEX, "text/html; charset=utf-8")
}

pub(super) async fn script() -> Response {
    file(SCRIPT, "text/javascript; charset=utf-8")
}

pub(super) async fn style() -> Response {
    file(STYLE, "text/css; charset=utf-8")
}

pub(super) async fn icon() -> Response {
    file(ICON, "image/svg+xml")
}

fn file(contents: &'static [u8], kind: &'static str) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], contents).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_loads_nothing_from_elsewhere() {
        let files = [INDEX, SCRIPT, STYLE, ICON];
        let bytes: usize = files.iter().map(|file| file.len()).sum();
        assert!(files.iter().all(|file| !file.is_empty()) && bytes <= 90 << 10, "{bytes} bytes");
        for file in files {
            let text = std::str::from_utf8(file).unwrap();
            // Namespaces of SVG are names, and nothing is loaded from them.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for address in ["http://", "https://", "//cdn", "@import", "url("] {
                assert!(!text.contains(address), "{address}");
            }
            for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(markup), "{markup}");
            }
        }
    }

    #[test]
    fn the_markup_has_no_inline_script_or_style() {
        let text = std::str::from_utf8(INDEX).unwrap();
        assert!(!text.contains("style=") && !text.contains("<style") && !text.contains(" on"), "{text}");
        assert_eq!(text.matches("<script").count(), text.matches("<script src=\"/page/page.js\"").count());
    }
}
