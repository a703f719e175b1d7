//! Small histories with known responses.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;

use refrain::TokenId;
use refrain::drafting::{Anchor, DraftSource};
use refrain_fleet::{Fleet, FleetOptions};
use refrain_index::{HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

pub(crate) const KEY: HistoryKey = HistoryKey { tokenizer: 7, model: 8 };

/// Short logs, so that a few responses give several segments.
pub(crate) fn options() -> HistoryOptions {
    HistoryOptions {
        sync: SyncPolicy::Never,
        live_tokens_max: 128,
        segment_tokens_max: 4000,
        ..HistoryOptions::default()
    }
}

pub(crate) fn open(folder: &Path) -> HistoryLog {
    HistoryLog::open(folder, KEY, options()).expect("opens")
}

pub(crate) fn fleet(store: &str, host: &str) -> Fleet {
    Fleet::connect(store, [], FleetOptions::new(host)).expect("connects")
}

/// The `i`-th response. Its last token occurs in no other one, and its bytes in nothing else.
pub(crate) fn response(i: u32) -> Vec<TokenId> {
    let text = (0..4 + i % 20).map(|j| TokenId(i.wrapping_mul(31).wrapping_add(j * j) % 97));
    text.chain([TokenId(unique(i))]).collect()
}

pub(crate) fn unique(i: u32) -> u32 {
    0x7b6d_0000 + i
}

/// How many last tokens of the `i`-th response the history of the namespace `mail` recognises, if all but the last one
/// are distinctive; otherwise 0.
pub(crate) fn drafted(log: &HistoryLog, i: u32) -> usize {
    let mut anchors: Vec<Anchor> = Vec::new();
    log.source("mail").anchors(&response(i), &mut anchors);
    anchors.first().map_or(0, |anchor| anchor.match_len as usize)
}
