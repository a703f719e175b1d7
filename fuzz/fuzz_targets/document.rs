//! A document, table, file of values or source code. The first byte chooses the format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_index::notes::internals::read;

/// In the order of the seeds (`index/tests/index/notes_formats.rs`).
const NAMES: [&str; 13] = [
    "a.html", "a.csv", "a.tsv", "a.json", "a.yaml", "a.rst", "a.org", "a.rs", "a.docx", "a.odt", "a.epub",
    "a.pdf", "a.xhtml",
];

fuzz_target!(|bytes: &[u8]| {
    if let Some((&first, bytes)) = bytes.split_first() {
        read(NAMES[usize::from(first) % NAMES.len()], bytes);
    }
});
