//! A mailbox, and its bytes as a single message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_index::notes::internals::read;

fuzz_target!(|bytes: &[u8]| {
    read("a.mbox", bytes);
    read("a.eml", bytes);
});
