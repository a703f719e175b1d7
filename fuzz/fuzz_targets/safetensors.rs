//! The files of a Hugging Face folder: a `.safetensors` file, the shard index, `config.json`, the configuration of a sentence encoder (its
//! files in their order, a zero behind each). The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::internals::model::Source;
use refrain::internals::model::arch::parse_config;
use refrain::internals::model::encoder::{CONFIG_FILES, is_encoder, parse_encoder_config};
use refrain::internals::model::hf::{SafetensorsFile, ShardIndex};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice {
        b'c' => {
            let _ = std::str::from_utf8(bytes).map(|text| parse_config(text, "config.json"));
        }
        b'e' => {
            let Ok(texts) = std::str::from_utf8(bytes) else { return };
            is_encoder(texts.split('\0').next().unwrap_or_default());
            let text_of = |name: &str| {
                let texts = CONFIG_FILES.iter().zip(texts.split('\0'));
                Ok(texts
                    .filter(|(file, text)| **file == name && !text.is_empty())
                    .map(|(_, text)| text.to_owned())
                    .next())
            };
            if let Ok(config) = parse_encoder_config("fuzz", &text_of) {
                assert!((3..=config.n_positions - config.first_position).contains(&config.tokens_max));
                assert!(config.hidden_dim.is_multiple_of(config.n_heads));
            }
        }
        b'i' => {
            let Ok(Ok(index)) = std::str::from_utf8(bytes).map(|text| ShardIndex::parse(text, "index.json"))
            else {
                return;
            };
            for shard in index.shards() {
                assert!(
                    shard.ends_with(".safetensors")
                        && !shard.starts_with('.')
                        && !shard.contains(['/', '\\'])
                );
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
