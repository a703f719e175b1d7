//! A note: front matter, headings, sections and passages. All text outside of headings is in exactly one passage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_index::internals::check_note;

fuzz_target!(|text: &str| check_note(text));
