//! Greedy generation with the burn model, for the evaluation. It computes the whole sequence for each token. The
//! answers of a small model are short, and a KV cache would be a second implementation to maintain.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::model::{Llama, Positions};

/// Continues each prompt until `end`, by up to `most` tokens.
pub fn greedy(model: &Llama, prompts: &[Vec<u32>], end: u32, most: usize, device: &Device) -> Vec<Vec<u32>> {
    let mut outputs = vec![Vec::new(); prompts.len()];
    let mut open: Vec<usize> = (0..prompts.len()).collect();
    for _ in 0..most {
        if open.is_empty() {
            break;
        }
        let rows: Vec<Vec<u32>> =
            open.iter().map(|&at| [prompts[at].as_slice(), &outputs[at]].concat()).collect();
        for (&at, token) in open.iter().zip(next(model, &rows, device)) {
            outputs[at].push(token);
        }
        open.retain(|&at| outputs[at].last() != Some(&end));
    }
    for output in &mut outputs {
        if output.last() == Some(&end) {
            output.pop();
        }
    }
    outputs
}

/// The most likely next token of each row.
fn next(model: &Llama, rows: &[Vec<u32>], device: &Device) -> Vec<u32> {
    let seq = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut ids = vec![0_i32; rows.len() * seq];
    for (row, out) in rows.iter().zip(ids.chunks_exact_mut(seq)) {
        for (out, id) in out.iter_mut().zip(row) {
            *out = *id as i32;
        }
    }
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [rows.len(), seq]), device);
    let hidden = model.hidden(tokens, &Positions::new(&model.shape, seq, device));
    let last: Vec<i32> = rows.iter().enumerate().map(|(at, row)| (at * seq + row.len() - 1) as i32).collect();
    let last = Tensor::<1, Int>::from_data(TensorData::new(last, [rows.len()]), device);
    let width = model.shape.hidden;
    let logits = model.logits(hidden.reshape([rows.len() * seq, width]).select(0, last));
    let logits = logits.into_data().try_to_vec::<f32>().expect("logits are f32");
    logits.chunks_exact(model.shape.vocab).map(argmax).collect()
}

fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (at, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = at;
        }
    }
    best as u32
}
