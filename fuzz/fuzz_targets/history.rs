//! A log, a segment or the lists of echo of a history: unchanged, and with corrected checksums, so that its contents are parsed.
//!
//! The first byte chooses log, segment or lists, and whether the other bytes are the file or edits of a sound one. The file
//! replaces the sound one in a folder that is otherwise whole. For any file, the folder opens, drafts, and can be
//! repaired.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use refrain::TokenId;
use refrain::drafting::{Candidates, DraftSource};
use refrain::internals::draft::EchoList;
use refrain_index::history::Access;
use refrain_index::{HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };
const PAGE: usize = 4096;
const LISTS_MAX: u32 = 64;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::new);

/// A folder of a history, with its sound files.
struct Folder {
    path: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("refrain-fuzz-history-{}", std::process::id()));
        let log = HistoryLog::open(&path, KEY, options()).expect("a new folder");
        for i in 0..4u32 {
            log.append("a", &response(i)).expect("appends");
        }
        let list = |key| EchoList { key, tokens: [7, 6, 5, 4, 3, 2, 1, 0], sixteenths: [9; 8] };
        log.echo("a", LISTS_MAX).expect("no lists").replace(LISTS_MAX, &[1, 2, 3].map(list));
        log.maintain().expect("keeps the lists");
        drop(log);
        let mut files = Vec::new();
        collect(&path, &mut files);
        let is_there = |name| find(&files, name).is_some();
        assert!(["segment-", "log-", "echo"].into_iter().all(is_there), "{files:?}");
        Folder { path, files }
    }

    /// Restores all files, one of them with the given contents.
    fn put(&self, changed: &Path, bytes: &[u8]) {
        let _ = fs::remove_dir_all(&self.path);
        for (path, whole) in &self.files {
            fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
            fs::write(path, if path == changed { bytes } else { whole }).expect("a file");
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let (name, sign): (_, fn(&mut Vec<u8>, &[u8])) = match kind & 5 {
        0 => ("segment-", sign_segment),
        1 => ("log-", sign_log),
        _ => ("echo", sign_echo),
    };
    let (path, whole) = find(&FOLDER.files, name).expect("is there");
    let mut bytes = if kind & 2 == 0 { rest.to_vec() } else { edited(whole, rest) };
    FOLDER.put(path, &bytes);
    use_folder();
    sign(&mut bytes, whole);
    FOLDER.put(path, &bytes);
    use_folder();
});

/// `whole` with numbers written over it: each edit has a place of two bytes, taken modulo the length, and four bytes.
fn edited(whole: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for edit in edits.chunks_exact(6) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % (bytes.len() - 3);
        bytes[at..at + 4].copy_from_slice(&edit[2..]);
    }
    bytes
}

fn options() -> HistoryOptions {
    HistoryOptions { sync: SyncPolicy::Never, live_tokens_max: 16, ..HistoryOptions::default() }
}

fn response(i: u32) -> Vec<TokenId> {
    (0..7).map(|j| TokenId((i + j) % 5)).collect()
}

fn use_folder() {
    // Any damaged file is left out, and the rest of the folder is used.
    let log = HistoryLog::open(&FOLDER.path, KEY, options()).expect("opens");
    assert!(matches!(log.access(), Access::Write), "{:?}", log.access());
    use_log(&log);
}

fn use_log(log: &HistoryLog) {
    for info in log.list() {
        let _ = log.tokens(info.record);
    }
    let mut source = log.source("a");
    let (mut anchors, mut candidates) = (Vec::new(), Candidates::with_limit(64));
    let text: Vec<TokenId> = (0..3).flat_map(response).collect();
    for end in 1..=text.len() {
        anchors.clear();
        candidates.clear();
        source.anchors(&text[..end], &mut anchors);
        let frontier: Vec<_> = anchors.iter().map(|anchor| anchor.cursor).collect();
        source.expand(&frontier, &mut candidates);
        let next: Vec<_> = candidates.as_slice().iter().map(|candidate| candidate.next).collect();
        candidates.clear();
        source.expand(&next, &mut candidates);
    }
    let echo = log.echo("a", LISTS_MAX).expect("reads or leaves out");
    assert!(echo.lists().iter().all(EchoList::is_valid));
    let _ = log.maintain();
    if log.verify().is_err() {
        let _ = log.repair();
        log.verify().expect("repaired");
    }
    let _ = log.append("a", &response(9));
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => collect(&path, files),
            false => files.push((path.clone(), fs::read(&path).expect("a file"))),
        }
    }
}

fn find<'a>(files: &'a [(PathBuf, Vec<u8>)], name: &str) -> Option<(&'a Path, &'a [u8])> {
    let is_it = |path: &Path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
    files.iter().find(|(path, _)| is_it(path)).map(|(path, bytes)| (path.as_path(), bytes.as_slice()))
}

fn u32_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
}

/// Corrects the place in the header as in `whole`, the file's length as in the header, and all checksums.
fn sign_segment(bytes: &mut Vec<u8>, whole: &[u8]) {
    if bytes.len() < PAGE {
        return;
    }
    bytes[..12].copy_from_slice(&whole[..12]);
    bytes[16..32].copy_from_slice(&whole[16..32]);
    let (symbol_bytes, n_records, n_text, n_distinct) =
        (u32_at(bytes, 12), u32_at(bytes, 32), u32_at(bytes, 36), u32_at(bytes, 40));
    let Some(n_prefixes) = n_text.checked_sub(n_records) else { return };
    let n_pages: u64 = [(n_text, symbol_bytes), (n_prefixes, 4), (n_prefixes, symbol_bytes), (n_prefixes, 4)]
        .iter()
        .map(|(n, size)| (n * size).div_ceil(PAGE as u64))
        .sum();
    let tables_at = (1 + n_pages) * PAGE as u64;
    let len = tables_at + n_records * 16 + (2 * n_distinct + 1) * 4 + n_pages * 8;
    if len > 1 << 20 {
        return;
    }
    bytes.resize(len as usize, 0);
    let tables_at = tables_at as usize;
    let sums: Vec<u8> =
        bytes[PAGE..tables_at].chunks(PAGE).flat_map(|page| xxh3_64(page).to_le_bytes()).collect();
    let sums_at = bytes.len() - sums.len();
    bytes[sums_at..].copy_from_slice(&sums);
    let tables_sum = xxh3_64(&bytes[tables_at..]);
    bytes[48..56].copy_from_slice(&tables_sum.to_le_bytes());
    let sum = xxh3_64(&bytes[..PAGE - 8]);
    bytes[PAGE - 8..PAGE].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects the place in the header as in `whole`, the number of lists as in the length, and the checksums.
fn sign_echo(bytes: &mut Vec<u8>, whole: &[u8]) {
    const HEADER: usize = 64;
    const LIST: usize = 48;
    if bytes.len() < HEADER {
        return;
    }
    bytes.truncate(HEADER + (bytes.len() - HEADER) / LIST * LIST);
    let n_lists = ((bytes.len() - HEADER) / LIST) as u32;
    bytes[..12].copy_from_slice(&whole[..12]);
    bytes[12..16].copy_from_slice(&n_lists.to_le_bytes());
    bytes[16..24].copy_from_slice(&whole[16..24]);
    let owner = u64::from_le_bytes(whole[16..24].try_into().expect("eight bytes"));
    let sum = xxh3_64_with_seed(&bytes[HEADER..], owner);
    bytes[HEADER - 16..HEADER - 8].copy_from_slice(&sum.to_le_bytes());
    let sum = xxh3_64(&bytes[..HEADER - 8]);
    bytes[HEADER - 8..HEADER].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects the place in the header as in `whole`, and the checksums of all records.
fn sign_log(bytes: &mut Vec<u8>, whole: &[u8]) {
    const HEADER: usize = 64;
    const HEAD: usize = 24;
    if bytes.len() < HEADER {
        return;
    }
    bytes[..32].copy_from_slice(&whole[..32]);
    let sum = xxh3_64(&bytes[..HEADER - 8]);
    bytes[HEADER - 8..HEADER].copy_from_slice(&sum.to_le_bytes());
    let owner = u64::from_le_bytes(whole[16..24].try_into().expect("eight bytes"));
    let seed = xxh3_64_with_seed(&whole[24..32], owner);
    let mut at = HEADER;
    while at + HEAD <= bytes.len() {
        let end = at as u64 + HEAD as u64 + 4 * u32_at(bytes, at);
        if end > bytes.len() as u64 {
            return;
        }
        let id: [u8; 8] = bytes[at + 8..at + 16].try_into().expect("eight bytes");
        let body = xxh3_64_with_seed(&bytes[at + HEAD..end as usize], seed ^ u64::from_le_bytes(id));
        bytes[at + 16..at + 24].copy_from_slice(&body.to_le_bytes());
        let head = [&bytes[at..at + 4], &bytes[at + 8..at + 24]].concat();
        let sum = xxh3_64_with_seed(&head, seed) as u32;
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at = end as usize;
    }
}
