//! Export: the written weights equal the trained ones.

use burn::tensor::Device;
use refrain::internals::model::gguf::GgufFile;
use refrain_burn::export::weights;
use refrain_burn::model::Llama;
use refrain_burn::{Error, gguf};

use crate::common;

#[test]
fn a_gguf_file_holds_every_weight_and_the_tokenizer() -> Result<(), Error> {
    let model = Llama::init(&common::shape(), 5, &Device::default());
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    gguf::write(&model, &common::tokenizer(), "test", &path)?;
    let file = GgufFile::open(&path).expect("the file is well formed");
    assert_eq!(file.tensors().len(), weights(&model)?.len());
    let merges = file.get("tokenizer.ggml.merges").and_then(|value| value.as_array()).expect("merges");
    assert_eq!(merges.len(), common::VOCABULARY - 256 - 3);
    Ok(())
}
