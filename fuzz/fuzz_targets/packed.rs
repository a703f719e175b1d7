//! A packed file: the header unchanged, and with corrected lengths and checksum, so that its contents are parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::checkpoint::Checkpoint;
use refrain::internals::model::Model;
use refrain::internals::model::packed::{FORMAT_VERSION, MAGIC, PAGE_BYTES, PackedFile};
use refrain::internals::model::weights::LoadOptions;
use xxhash_rust::xxh3::Xxh3;

fuzz_target!(|bytes: &[u8]| {
    read(bytes.to_vec());
    // JSON up to a zero, data after it.
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let data = bytes.get(end + 1..).unwrap_or_default();
    read(whole(&bytes[..end], data));
});

fn read(bytes: Vec<u8>) {
    let Ok(file) = PackedFile::from_bytes(bytes.clone().into(), "fuzz.refrain") else { return };
    // Every offset was checked against the file, so reading succeeds or finds damage.
    let _ = file.verify(None);
    let _ = file.tokenizer();
    let checkpoint = Checkpoint::from_packed_bytes(bytes.into(), "fuzz.refrain").unwrap();
    let model = Model::load(&checkpoint, LoadOptions::default()).unwrap();
    assert_eq!(model.identity(), file.identity());
}

/// A file with this JSON and a matching prelude. The data is padded to a page.
fn whole(json: &[u8], data: &[u8]) -> Vec<u8> {
    let page = PAGE_BYTES as usize;
    let data_start = (40 + json.len()).next_multiple_of(page);
    let file_len = data_start + data.len().next_multiple_of(page);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend(refrain::internals::kernels::PANEL_LAYOUT_VERSION.to_le_bytes());
    bytes.extend((json.len() as u64).to_le_bytes());
    bytes.extend((file_len as u64).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend_from_slice(json);
    bytes.resize(data_start, 0);
    let mut hash = Xxh3::new();
    hash.update(&bytes[..32]);
    hash.update(&bytes[40..]);
    bytes[32..40].copy_from_slice(&hash.digest().to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.resize(file_len, 0);
    bytes
}
