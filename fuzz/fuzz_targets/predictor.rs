//! A predictor file: unchanged, and with a corrected checksum, so that its contents are parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::drafting::Predictor;
use xxhash_rust::xxh3::Xxh3;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    if bytes.len() >= 56 {
        let mut hash = Xxh3::new();
        hash.update(&bytes[..48]);
        hash.update(&bytes[56..]);
        let mut signed = bytes.to_vec();
        signed[48..56].copy_from_slice(&hash.digest().to_le_bytes());
        read(&signed);
    }
});

fn read(bytes: &[u8]) {
    let Ok(predictor) = Predictor::from_bytes(bytes, "fuzz.predictor") else { return };
    assert_eq!(predictor.to_bytes(), bytes);
    let again = Predictor::new(predictor.parts().clone()).unwrap();
    assert_eq!(again.to_bytes(), bytes);
}
