//! Front matter: the input stands between the lines `---`, and is a YAML mapping or text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_index::internals::check_note;

fuzz_target!(|content: &str| check_note(&format!("---\n{content}\n---\n# Heading\n\ntext\n")));
