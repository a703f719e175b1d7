//! A GGUF file: the container, the hyper-parameters and tensors, the tokenizer in its metadata.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain::checkpoint::Checkpoint;
use refrain::internals::model::checkpoint::WeightId;
use refrain::internals::model::gguf::GgufFile;
use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::{SpecialTokens, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec().into(), "fuzz.gguf") else { return };
    for tensor in file.tensors() {
        // The table was checked against the file, so every read succeeds.
        assert_eq!(file.read(tensor).unwrap().len() as u64, tensor.len.unwrap_or(0));
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        let _ = tokenizer.encode("a b\n 123 <|im_end|> \u{e9}\u{1f980}", SpecialTokens::Parse);
    }
    if let Ok(head) = Checkpoint::mtp_from_gguf_bytes(bytes.to_vec().into(), "fuzz.gguf") {
        head.read(WeightId::DraftInput).unwrap();
    }
    if let Ok(checkpoint) = Checkpoint::from_gguf_bytes(bytes.to_vec().into(), "fuzz.gguf") {
        let embedding = checkpoint.tensor(WeightId::Embedding).unwrap();
        let row_bytes = embedding.ty.row_bytes(embedding.n_cols as u64).unwrap();
        let bytes = checkpoint.read(WeightId::Embedding).unwrap();
        assert_eq!(bytes.len() as u64, row_bytes * embedding.n_rows as u64);
    }
});
