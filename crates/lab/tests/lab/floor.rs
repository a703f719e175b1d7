//! The floor on a fixed sample: the rows in the tree, on every machine whose costs are known, with a fixed time of drafting.

use std::path::PathBuf;

use refrain_bench::floor::{OnMachine, Terms, machines, measure};
use refrain_bench::{Half, rows};

use crate::common::fixture_engine;

fn measured(stake: Option<f32>) -> Vec<OnMachine> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/rows.jsonl");
    let engine = fixture_engine();
    let tokenizer = engine.tokenizer();
    let rows = rows::encode(&rows::read(&[path]).unwrap(), tokenizer, 1).unwrap();
    let terms = Terms { max_rows: 16, stake, draft_us_per_node: Some(2.0) };
    measure(&rows, Half::All, &machines(), terms, tokenizer.vocab_size(), 1)
}

/// Whatever the text is, drafts lose at most a hundredth of the time, that of the prompt included. Drafts that nothing limits lose more.
#[test]
fn no_response_loses_more_than_the_stake() {
    let (paid, unpaid) = (measured(Some(0.01)), measured(None));
    let mut n_below = 0;
    for (paid, unpaid) in paid.iter().zip(&unpaid) {
        let [[alone, whole], [_, unpaid_whole]] = [paid, unpaid].map(OnMachine::responses);
        assert!(whole[0] >= 0.99, "{}: {}", paid.name, whole[0]);
        assert!(alone[alone.len() - 1] > 1.0 || paid.name.starts_with("fixture"), "{}: {alone:?}", paid.name);
        n_below += usize::from(unpaid_whole[0] < 0.985);
    }
    assert!(n_below > 3, "the sample shows little");
}
