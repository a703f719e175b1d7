//! Names that reveal nothing, and encryption.

use std::fmt;

use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use xxhash_rust::xxh3::Xxh3;

use crate::seal::{TAG_BYTES, decrypt, encrypt};

/// Bytes of a [`Seal::close`]d part's seal.
pub(super) const SEAL_BYTES: usize = TAG_BYTES;

/// The first 128 bits of a keyed hash (BLAKE3): the name of a namespace, block, label or store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(pub(super) [u8; 16]);

impl Id {
    /// The id of 32 hexadecimal digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let id = Id(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hashes names, and seals the parts of a file: with the app's key against readers and forgers, without one against
/// damage.
pub(super) struct Seal {
    names: [u8; 32],
    cipher: Option<XChaCha20Poly1305>,
}

impl Seal {
    pub(super) fn new(key: Option<&[u8; 32]>) -> Self {
        let key_bytes = key.map_or(&[][..], |key| key);
        let cipher = key.map(|_| {
            let derived = blake3::derive_key("refrain prefixes 2026-11: contents of files", key_bytes);
            XChaCha20Poly1305::new(&derived.into())
        });
        Self { names: blake3::derive_key("refrain prefixes 2026-11: names of files", key_bytes), cipher }
    }

    pub(super) fn encrypts(&self) -> bool {
        self.cipher.is_some()
    }

    /// The hash of parts under a kind of name.
    pub(super) fn id(&self, kind: &str, parts: &[&[u8]]) -> Id {
        let mut hash = blake3::Hasher::new_keyed(&self.names);
        for part in std::iter::once(kind.as_bytes()).chain(parts.iter().copied()) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut id = Id([0; 16]);
        id.0.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        id
    }

    /// Encrypts `part` if there is a key, and returns its seal, which covers `before` too.
    pub(super) fn close(&self, nonce: &[u8; 24], before: &[u8], part: &mut [u8]) -> [u8; SEAL_BYTES] {
        match &self.cipher {
            None => checksum(before, part),
            Some(cipher) => encrypt(cipher, *nonce, before, part),
        }
    }

    /// Decrypts `part` if there is a key. Returns false if the seal is not that of `before` and `part`; then the
    /// contents of `part` are unspecified.
    pub(super) fn open(
        &self,
        nonce: &[u8; 24],
        before: &[u8],
        part: &mut [u8],
        seal: [u8; SEAL_BYTES],
    ) -> bool {
        match &self.cipher {
            None => checksum(before, part) == seal,
            Some(cipher) => decrypt(cipher, *nonce, before, part, seal),
        }
    }
}

fn checksum(before: &[u8], part: &[u8]) -> [u8; SEAL_BYTES] {
    let mut hash = Xxh3::new();
    hash.update(before);
    hash.update(part);
    hash.digest128().to_le_bytes()
}
