//! Both backends compute the same model. Run with `--features ndarray`.

#![cfg(all(feature = "flex", feature = "ndarray"))]
#![allow(
    deprecated,
    reason = "NdArray is deprecated in favour of Flex; it is here as the second implementation"
)]

use burn::tensor::{Device, Int, Tensor, TensorData};
use refrain_burn::model::{Llama, Positions};

use crate::common;

fn logits(device: &Device) -> Vec<f32> {
    let shape = common::shape();
    let model = Llama::init(&shape, 5, device);
    let ids: Vec<i32> = (0..2 * 140).map(|i| i * 37 % 320).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 140]), device);
    let hidden = model.hidden(tokens, &Positions::new(&shape, 140, device));
    model.logits(hidden.reshape([2 * 140, shape.hidden])).into_data().try_to_vec().expect("logits are f32")
}

#[test]
fn ndarray_and_flex_agree() {
    let (flex, ndarray) = (logits(&Device::flex()), logits(&Device::ndarray()));
    let furthest = flex.iter().zip(&ndarray).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-4, "the logits differ by {furthest}");
}
