//! The files of a Hugging Face folder: a `.safetensors` file, the shard index, `config.json`. The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::internals::model::arch::parse_config;
use refrain::internals::model::hf::{SafetensorsFile, ShardIndex};
use refrain::internals::model::Source;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice {
        b'c' => {
            let _ = std::str::from_utf8(bytes).map(|text| parse_config(text, "config.json"));
        }
        b'i' => {
            let Ok(Ok(index)) = std::str::from_utf8(bytes).map(|text| ShardIndex::parse(text, "index.json")) else {
                return;
            };
            for shard in index.shards() {
                assert!(shard.ends_with(".safetensors") && !shard.starts_with('.') && !shard.contains(['/', '\\']));
            }
        }
        _ => {
            let source = Source::from_bytes(bytes.to_vec().into(), "fuzz.safetensors");
            let Ok(file) = SafetensorsFile::from_source(source) else { return };
            for tensor in file.tensors() {
                assert_eq!(file.read(tensor).unwrap().len() as u64, tensor.len);
            }
        }
    }
});
