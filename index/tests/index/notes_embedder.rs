//! Vectors of a checkpoint for embeddings: those of a reference implementation, and searches by them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use refrain::{Engine, EngineOptions, Quantize};
use refrain_index::notes::{Embedder, ModelEmbedder, Search};
use serde::Deserialize;

use crate::notes_support::{Place, names, update};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen3")
}

fn embedder(n_threads: usize) -> ModelEmbedder {
    let options =
        EngineOptions { n_threads: Some(n_threads), quantize: Quantize::F32, ..EngineOptions::default() };
    ModelEmbedder::new(Engine::open(golden(), options).expect("the golden model")).expect("has an end token")
}

/// The part of a header of safetensors that the test needs.
#[derive(Deserialize)]
struct Header {
    vectors: Tensor,
}

#[derive(Deserialize)]
struct Tensor {
    shape: [usize; 2],
    data_offsets: [usize; 2],
}

/// The vectors that transformers computes. `tools/make-goldens` writes them.
fn reference() -> Vec<Vec<f32>> {
    let bytes = std::fs::read(golden().join("vectors.safetensors")).unwrap();
    let (head, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*head) as usize);
    let Tensor { shape, data_offsets } = serde_json::from_slice::<Header>(header).unwrap().vectors;
    let data = &data[data_offsets[0]..data_offsets[1]];
    let values = data.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
    values.collect::<Vec<f32>>().chunks_exact(shape[1]).map(<[f32]>::to_vec).collect()
}

#[test]
fn vectors_are_those_of_the_reference_with_the_same_bits_for_any_number_of_threads() {
    let long = "Ada Voss repairs it on 3 May, and the roof leaks. ".repeat(9);
    let texts = ["", "The tap drips.", "Wer repariert den Wasserhahn in der Küche? 東京都へ行く。", &long];
    let (one, three, plain) = (embedder(1), embedder(3), embedder(2).with_instruction(""));
    let vectors = one.embed(&texts).unwrap();
    for (vector, expected) in vectors.iter().zip(reference()) {
        let differences = vector.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(vector.len() == one.dimensions() && differences.fold(0.0, f32::max) < 2e-4);
    }
    // In another order, one by one, after other texts.
    for (text, vector) in texts.iter().zip(&vectors).rev() {
        assert_eq!(&three.embed(&[text]).unwrap()[0], vector);
        assert_eq!(plain.embed_query(text).unwrap(), *vector);
    }
    assert_eq!(one.identity(), three.identity());
    assert_ne!(three.embed_query(texts[1]).unwrap(), vectors[1], "a request has an instruction");
    // A text beyond the limit of tokens is cut, not refused.
    assert_eq!(one.embed(&[&"tap ".repeat(5000)]).unwrap()[0].len(), one.dimensions());
}

#[test]
fn stored_notes_are_searched_by_words_and_vectors() {
    let place = Place::new();
    place.write("tap.md", "The tap drips.");
    place.write("roof.md", "Das Dach ist undicht.");
    let mut writer = place.writer();
    update(&mut writer);
    let embedder = embedder(2);
    assert_eq!(writer.embed(&embedder, &mut |_, _| ControlFlow::Continue(())).unwrap(), 2);
    let index = place.reader();
    assert_eq!(index.status().unwrap().embedders, [embedder.identity()]);
    let mut request = Search::new("tap", 2);
    assert_eq!(names(&index.search(&request).unwrap()), ["tap.md"]);
    request.embedder = Some(&embedder);
    assert_eq!(names(&index.search(&request).unwrap()), ["tap.md", "roof.md"]);
}
