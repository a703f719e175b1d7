//! The file of a block: up to [`BLOCK_TOKENS`] tokens and their state.
//!
//! ```text
//!   0  magic                 8
//!   8  version               u32
//!  12  encrypted: 0 or 1     u32
//!  16  hash of the key       8     tells another key from damage
//!  24  nonce                 24    random; zero without a key
//!  48  tokens                u32
//!  52  zero                  u32
//!  56  bytes of the state    u64
//!  64  parent, state key     16 + 16   ┐ encrypted
//!  96  tokens                u32 each  ┘
//!      seal of all before    16    authentication tag, or XXH3
//!      state                           encrypted
//!      seal of the state     16    covers the seal before it
//! ```
//!
//! All numbers are little-endian. The state is [`SessionState::write`](refrain::state::SessionState::write)'s, or
//! [`SessionState::write_keys_values`](refrain::state::SessionState::write_keys_values)'s where the state of recurrent layers is not known. Its length
//! tells which.

use refrain::TokenId;
use refrain::state::StateKey;

use super::PrefixError;
use super::error::PrefixProblem;
use super::folder::{BLOCK_TOKENS, Entry};
use super::seal::{Id, SEAL_BYTES, Seal};
use crate::disk_file::DiskFile;

const MAGIC: [u8; 8] = *b"RFNPREFX";
const VERSION: u32 = 1;
/// Beginning of the name of the folder of this version. The hash of the key follows.
pub(super) const FOLDER: &str = "v1-";
const HEADER: usize = 64;
/// Parent and state key.
const PLACE: usize = 32;
const HEAD_MAX: usize = HEADER + PLACE + 4 * BLOCK_TOKENS + SEAL_BYTES;
/// Maximum bytes of a state: no model needs 16 MiB a token.
const STATE_BYTES_MAX: u64 = 1 << 30;

/// Everything of a block except its state.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) state_key: u128,
    pub(super) tokens: Vec<TokenId>,
    pub(super) state_bytes: u64,
    nonce: [u8; 24],
    seal: [u8; SEAL_BYTES],
}

/// The id of a block.
pub(super) fn block_id(seal: &Seal, parent: Id, tokens: &[TokenId]) -> Id {
    seal.id("block", &[&parent.0, &token_bytes(tokens)])
}

/// The id that the first block of a namespace and state key has as its parent.
pub(super) fn root_id(seal: &Seal, namespace: &str, state_key: StateKey) -> Id {
    seal.id("root", &[namespace.as_bytes(), &state_key.to_bits().to_le_bytes()])
}

fn token_bytes(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect()
}

/// Bytes of the file of a block.
pub(super) fn file_bytes(n_tokens: usize, state_bytes: u64) -> u64 {
    ((HEADER + PLACE + 4 * n_tokens + 2 * SEAL_BYTES) as u64).saturating_add(state_bytes)
}

/// The file of a block. `write_state` appends `state_bytes` bytes.
pub(super) fn encode(
    seal: &Seal,
    parent: Id,
    state_key: StateKey,
    tokens: &[TokenId],
    state_bytes: u64,
    write_state: impl FnOnce(&mut Vec<u8>) -> Result<(), PrefixError>,
) -> Result<Vec<u8>, PrefixError> {
    let mut nonce = [0; 24];
    if seal.encrypts() {
        getrandom::fill(&mut nonce).map_err(PrefixError::Random)?;
    }
    let mut file = Vec::with_capacity(file_bytes(tokens.len(), state_bytes) as usize);
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&u32::from(seal.encrypts()).to_le_bytes());
    file.extend_from_slice(&key_hash(seal));
    file.extend_from_slice(&nonce);
    file.extend_from_slice(&(tokens.len() as u32).to_le_bytes());
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&state_bytes.to_le_bytes());
    file.extend_from_slice(&parent.0);
    file.extend_from_slice(&state_key.to_bits().to_le_bytes());
    file.extend_from_slice(&token_bytes(tokens));
    let (before, part) = file.split_at_mut(HEADER);
    let head_seal = seal.close(&part_nonce(nonce, 0), before, part);
    file.extend_from_slice(&head_seal);
    let start = file.len();
    write_state(&mut file)?;
    debug_assert_eq!((file.len() - start) as u64, state_bytes);
    let state_seal = seal.close(&part_nonce(nonce, 1), &head_seal, &mut file[start..]);
    file.extend_from_slice(&state_seal);
    Ok(file)
}

/// Reads and checks everything except the state.
pub(super) fn read_head(seal: &Seal, entry: &Entry, file: &dyn DiskFile) -> Result<Head, PrefixProblem> {
    let len = file.len()?;
    if len < HEADER as u64 {
        return Err(PrefixProblem::Damaged("the header is incomplete"));
    }
    let mut buf = [0; HEAD_MAX];
    let head = &mut buf[..len.min(HEAD_MAX as u64) as usize];
    file.read_at(head, 0)?;
    if head[..8] != MAGIC {
        return Err(PrefixProblem::Damaged("the magic number is wrong"));
    }
    let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let given = number(8);
    if given != VERSION {
        return Err(PrefixProblem::Version { given, known: VERSION });
    }
    if number(12) != u32::from(seal.encrypts()) || head[16..24] != key_hash(seal) {
        return Err(PrefixProblem::OtherKey);
    }
    let nonce: [u8; 24] = head[24..48].try_into().expect("24 bytes");
    let n_tokens = number(48) as usize;
    let state_bytes = u64::from_le_bytes(head[56..64].try_into().expect("eight bytes"));
    if n_tokens != entry.n_tokens || number(52) != 0 || state_bytes > STATE_BYTES_MAX {
        return Err(PrefixProblem::Damaged("the header has impossible numbers"));
    }
    if len != file_bytes(n_tokens, state_bytes) {
        return Err(PrefixProblem::Damaged("the length is wrong"));
    }
    let end = HEADER + PLACE + 4 * n_tokens;
    let head_seal = head[end..end + SEAL_BYTES].try_into().expect("16 bytes");
    let (before, part) = head[..end].split_at_mut(HEADER);
    if !seal.open(&part_nonce(nonce, 0), before, part, head_seal) {
        return Err(PrefixProblem::Damaged("the seal of the tokens is wrong"));
    }
    let state_key = u128::from_le_bytes(part[16..32].try_into().expect("16 bytes"));
    let tokens =
        part[PLACE..].as_chunks().0.iter().map(|&bytes| TokenId(u32::from_le_bytes(bytes))).collect();
    let head = Head { state_key, tokens, state_bytes, nonce, seal: head_seal };
    if part[..16] != entry.parent.0 || block_id(seal, entry.parent, &head.tokens) != entry.id {
        return Err(PrefixProblem::Misplaced);
    }
    Ok(head)
}

/// Reads and checks the state into `state`. Its length is that of the file, which [`read_head`] has checked.
pub(super) fn read_state<'a>(
    seal: &Seal,
    head: &Head,
    file: &dyn DiskFile,
    buf: &'a mut Vec<u8>,
) -> Result<&'a [u8], PrefixProblem> {
    let n = head.state_bytes as usize;
    buf.resize(n + SEAL_BYTES, 0);
    file.read_at(buf, (HEADER + PLACE + 4 * head.tokens.len() + SEAL_BYTES) as u64)?;
    let (state, state_seal) = buf.split_at_mut(n);
    let state_seal = (&*state_seal).try_into().expect("16 bytes");
    if !seal.open(&part_nonce(head.nonce, 1), &head.seal, state, state_seal) {
        return Err(PrefixProblem::Damaged("the seal of the state is wrong"));
    }
    Ok(state)
}

/// The two parts of a file need different nonces.
fn part_nonce(mut nonce: [u8; 24], part: u8) -> [u8; 24] {
    nonce[23] = nonce[23] & !1 | part;
    nonce
}

fn key_hash(seal: &Seal) -> [u8; 8] {
    let id = seal.id("key", &[]);
    id.0[..8].try_into().expect("eight bytes")
}
