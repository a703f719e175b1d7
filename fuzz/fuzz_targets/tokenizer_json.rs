//! A `tokenizer.json`, and a text to encode after the first NUL byte.
//!
//! libFuzzer's panic hook ends the process at any panic, so this target also finds panics of the `tokenizers` library
//! that the guard would turn into errors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::{SpecialTokens, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let Ok(input) = std::str::from_utf8(bytes) else { return };
    let (json, text) = input.split_once('\0').unwrap_or((input, "abc  'll <|im_end|> 123\n"));
    let Ok(tokenizer) = Tokenizer::from_json(json, "tokenizer.json") else { return };
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        if let Ok(ids) = tokenizer.encode(text, special) {
            assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()));
            tokenizer.decode(&ids);
        }
    }
});
