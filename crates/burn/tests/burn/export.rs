//! Export: the written weights equal the trained ones.

use burn::tensor::Device;
use half::bf16;
use refrain::internals::model::gguf::GgufFile;
use refrain_burn::export::{read_folder, weights, write_folder};
use refrain_burn::model::Llama;
use refrain_burn::{Error, gguf};

use crate::common;

#[test]
fn a_folder_comes_back_as_the_same_model() -> Result<(), Error> {
    let device = Device::default();
    let model = Llama::init(&common::shape(), 5, &device);
    let folder = tempfile::tempdir()?;
    write_folder(&model, &common::tokenizer(), folder.path())?;
    let read = read_folder(folder.path(), &device)?;
    assert_eq!(read.shape, model.shape);
    let mut rounded = weights(&model)?;
    for weight in &mut rounded {
        weight.values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
    }
    assert_eq!(weights(&read)?, rounded);
    Ok(())
}

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
