//! Archives of XML files that refer to each other: the parts of office documents and of books.

use html5gum::{StartTag, Token, Tokenizer};

use super::archive::Archive;
use super::unit::Losses;

/// A part without which a document can be read.
pub(super) fn optional(archive: &Archive<'_>, part: &str, losses: &mut Losses) -> Option<String> {
    archive.text(part).unwrap_or_else(|reason| {
        losses.add(reason);
        None
    })
}

/// The path of a reference in a part of an archive, relative to the folder of that part.
pub(super) fn joined(part: &str, href: &str) -> String {
    let href = href.split(['#', '?']).next().unwrap_or_default();
    // A reference from the root has no folder.
    let part = if href.starts_with('/') { "" } else { part };
    let folder = part.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<String> = Vec::new();
    for part in folder.split('/').chain(href.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(unescaped(part)),
        }
    }
    parts.join("/")
}

/// A part of a reference without its `%20`.
fn unescaped(part: &str) -> String {
    let bytes = part.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| byte == b'%');
        plain.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The text of the first element of each name.
pub(super) fn elements<const N: usize>(xml: &str, names: [&str; N]) -> [Option<String>; N] {
    let mut texts = [const { None }; N];
    let mut open: Option<usize> = None;
    for Ok(token) in Tokenizer::new(xml) {
        match token {
            Token::StartTag(tag) if !tag.self_closing => {
                open = names
                    .iter()
                    .position(|name| name.as_bytes() == tag.name.as_slice())
                    .filter(|&at| texts[at].is_none());
            }
            Token::String(text) => {
                if let Some(open) = open {
                    texts[open].get_or_insert_with(String::new).push_str(&String::from_utf8_lossy(&text));
                }
            }
            Token::EndTag(_) => open = None,
            _ => {}
        }
    }
    texts.map(|text| Some(text?.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// An attribute of an element of XML.
pub(super) fn attribute(tag: &StartTag<()>, key: &str) -> Option<String> {
    Some(String::from_utf8_lossy(tag.attributes.get(key.as_bytes())?).into_owned())
}
