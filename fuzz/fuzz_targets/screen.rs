//! A screen of accessibility XML, and its bytes as a chat and as a screen of lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_index::notes::internals::read;

fuzz_target!(|bytes: &[u8]| {
    read("a.xml", bytes);
    read("a.jsonl", bytes);
    read("a.screen", bytes);
});
