//! Final hidden states of texts, as models for embeddings use them: those of a reference implementation, and the same bits
//! for any thread count, prefill chunk, cached prefix and container. `tools/make-goldens` writes the data.

use refrain::checkpoint::Checkpoint;
use refrain::internals::error::GenerateProblem;
use refrain::{CancelToken, Engine, KvType, SessionOptions, SpecialTokens, TokenId};
use safetensors::SafeTensors;

use crate::common::{engine_f32, plain};
use crate::model_files::{Gguf, golden};

/// As in `tools/make-goldens`.
fn texts() -> [String; 4] {
    [
        String::new(),
        "The tap drips.".to_owned(),
        "Wer repariert den Wasserhahn in der Küche? 東京都へ行く。".to_owned(),
        "Ada Voss repairs it on 3 May, and the roof leaks. ".repeat(9),
    ]
}

/// `[n_texts, hidden_dim]`
fn reference() -> Vec<Vec<f32>> {
    let bytes = std::fs::read(golden("qwen3").join("vectors.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let hidden = tensors.tensor("hidden").unwrap();
    let values = hidden.data().chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
    values.collect::<Vec<f32>>().chunks_exact(hidden.shape()[1]).map(<[f32]>::to_vec).collect()
}

fn tokens(engine: &Engine, text: &str) -> Vec<TokenId> {
    let mut tokens = engine.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
    tokens.push(engine.tokenizer().token_id("<|endoftext|>").unwrap());
    tokens
}

fn options(prefill_chunk: usize) -> SessionOptions {
    SessionOptions { prefill_chunk, kv_type: KvType::F32, ..plain() }
}

#[test]
fn final_hidden_states_are_those_of_the_reference_with_the_same_bits_everywhere() {
    let folder = golden("qwen3");
    let from_folder = Checkpoint::open(&folder).unwrap();
    let from_gguf = Checkpoint::from_gguf_bytes(Gguf::from_golden(&folder).bytes().into(), "qwen3").unwrap();
    let reference = reference();
    let mut first: Vec<Option<Vec<f32>>> = vec![None; reference.len()];
    for (checkpoint, n_threads) in [(&from_folder, 1), (&from_folder, 2), (&from_folder, 3), (&from_gguf, 2)]
    {
        let engine = engine_f32(checkpoint, n_threads);
        for prefill_chunk in [1, 7, 64, 4096] {
            // One session for all texts, which keeps what the one before has in common with it.
            let mut session = engine.session(options(prefill_chunk)).unwrap();
            for (i, text) in texts().iter().enumerate() {
                session.truncate(0).unwrap();
                session.append_tokens(&tokens(&engine, text)).unwrap();
                let hidden = session.last_hidden_state(&CancelToken::new()).unwrap();
                let differences = hidden.iter().zip(&reference[i]).map(|(a, b)| (a - b).abs());
                let largest = differences.fold(0.0, f32::max);
                assert!(hidden.len() == 64 && largest < 2e-4, "text {i}: off by {largest}");
                let first = first[i].get_or_insert_with(|| hidden.clone());
                let is_same = first.iter().zip(&hidden).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(is_same, "text {i}, {n_threads} threads, chunk {prefill_chunk}: bits differ");
            }
        }
    }
}

#[test]
fn a_cached_prefix_and_a_continued_session_change_no_bit() {
    let engine = engine_f32(&Checkpoint::open(golden("qwen3")).unwrap(), 2);
    let cancel = CancelToken::new();
    let mut session = engine.session(options(5)).unwrap();
    assert!(matches!(
        session.last_hidden_state(&cancel).unwrap_err().detail(),
        Some(GenerateProblem::EmptyPrompt)
    ));
    let tokens = tokens(&engine, &texts()[3]);
    session.append_tokens(&tokens[..40]).unwrap();
    let before = session.last_hidden_state(&cancel).unwrap();
    assert_eq!(session.last_hidden_state(&cancel).unwrap(), before, "computed again");
    session.append_tokens(&tokens[40..]).unwrap();
    let continued = session.last_hidden_state(&cancel).unwrap();
    let mut whole = engine.session(options(512)).unwrap();
    whole.append_tokens(&tokens).unwrap();
    assert_eq!(whole.last_hidden_state(&cancel).unwrap(), continued);
    let cancelled = CancelToken::new();
    cancelled.cancel();
    whole.truncate(3).unwrap();
    assert!(whole.last_hidden_state(&cancelled).is_err());
    // Scores and vectors of one session do not disturb each other.
    whole.append_tokens(&tokens[3..]).unwrap();
    whole.score(&cancel, None).unwrap();
    assert_eq!(whole.last_hidden_state(&cancel).unwrap(), continued);
}
