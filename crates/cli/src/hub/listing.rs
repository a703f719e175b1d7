//! The files of a repository at one commit.

use std::collections::BTreeMap;
use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde::Deserialize;

use super::{Client, HubError, Repo};

/// Maximum length of a listing. One of ten thousand files has about 3 MB.
const LISTING_BYTES_MAX: u64 = 16 << 20;

/// The files of a commit, by path. Paths are as the hub gives them: unchecked.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Listed>,
}

/// A file as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
}

/// The hash of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hash {
    /// Large files.
    Sha256(String),
    /// Small files: git's name of a blob. It is no defence against a hub that wants to deceive, and neither is a hash that it sends itself.
    GitSha1(String),
}

impl Hash {
    /// A computation of this hash over `bytes` bytes.
    pub(super) fn context(&self, bytes: u64) -> Context {
        match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::GitSha1(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {bytes}\0").as_bytes());
                context
            }
        }
    }

    pub(super) fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }

    /// Reads `sha256:…` or `git-sha1:…`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (kind, hex) = text.split_once(':')?;
        match kind {
            "sha256" => is_hex(hex, 64).then(|| Self::Sha256(hex.to_owned())),
            "git-sha1" => is_hex(hex, 40).then(|| Self::GitSha1(hex.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha256:{hex}"),
            Self::GitSha1(hex) => write!(f, "git-sha1:{hex}"),
        }
    }
}

pub(super) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The hub's answer, without the fields that are not read.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Asks the hub for the files of a repository at a revision.
///
/// # Errors
/// The hub does not answer, refuses, or its answer is not a listing. Files without size and hash are left out.
pub(crate) fn list(client: &Client, repo: &Repo, revision: Option<&str>) -> Result<Listing, HubError> {
    let revision = revision.unwrap_or("main").replace('/', "%2F");
    let path = format!("/api/models/{repo}/revision/{revision}?blobs=true");
    let what = format!("listing {repo}");
    let info: Info = client.json(&path, LISTING_BYTES_MAX, &what)?;
    let problem = |problem: String| HubError::Answer { what: what.clone(), problem };
    if !is_hex(&info.sha, 40) {
        return Err(problem("`sha` is no commit".to_owned()));
    }
    let mut files = BTreeMap::new();
    for Sibling { rfilename, size, blob_id, lfs } in info.siblings {
        let listed = match (lfs, size, blob_id) {
            (Some(Lfs { sha256, size }), ..) if is_hex(&sha256, 64) => {
                Listed { bytes: size, hash: Hash::Sha256(sha256) }
            }
            (None, Some(bytes), Some(id)) if is_hex(&id, 40) => Listed { bytes, hash: Hash::GitSha1(id) },
            _ => continue,
        };
        if files.insert(rfilename, listed).is_some() {
            return Err(problem("a file is listed twice".to_owned()));
        }
    }
    Ok(Listing { commit: info.sha, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_large_files() {
        let hex = |hash: &Hash, bytes: &[u8]| {
            let mut context = hash.context(bytes.len() as u64);
            context.update(bytes);
            super::super::transfer::hex(context.finish().as_ref())
        };
        // `git hash-object` and `sha256sum` of `hello\n`.
        let git = Hash::read("git-sha1:ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(hex(&git, b"hello\n"), git.hex());
        let sha256 =
            Hash::read("sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03").unwrap();
        assert_eq!(hex(&sha256, b"hello\n"), sha256.hex());
        assert_eq!(Hash::read(&sha256.to_string()), Some(sha256));
        for text in
            ["", "sha256:", "sha256:xy", "md5:00", "git-sha1:CE013625030BA8DBA906F756967F9E9CA394464A"]
        {
            assert_eq!(Hash::read(text), None, "{text}");
        }
    }
}
