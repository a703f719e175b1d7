//! The tokenizer: the same seed gives the same file, and decoding restores every text.

use refrain_burn::tokens;
use refrain_burn::world::document::{END_OF_TEXT, MESSAGE_END, MESSAGE_START};
use refrain_burn::world::{Stage, document};

use crate::common;

#[test]
fn training_again_gives_the_same_file() {
    let text = |tokenizer: tokenizers::Tokenizer| tokenizer.to_string(false).expect("it serialises");
    assert_eq!(text(common::tokenizer()), text(common::tokenizer()));
}

#[test]
fn texts_come_back() {
    let tokenizer = common::tokenizer();
    for text in ["Der Preis: 12,50 €\n\n  “ok”\t…", "漢字 🦀 e\u{301}", &document(1, 5, Stage::Full).text()]
    {
        let ids = tokens::encode(&tokenizer, text).expect("it encodes");
        assert_eq!(tokenizer.decode(&ids, false).expect("it decodes"), text);
    }
}

#[test]
fn special_tokens_are_one_token_and_digits_stand_alone() {
    let tokenizer = common::tokenizer();
    for text in [END_OF_TEXT, MESSAGE_START, MESSAGE_END] {
        assert_eq!(tokens::encode(&tokenizer, text).expect("it encodes").len(), 1);
    }
    assert_eq!(tokens::encode(&tokenizer, "4821").expect("it encodes").len(), 4);
}

#[test]
fn only_answers_and_repeats_are_learnt() {
    let tokenizer = common::tokenizer();
    let row = tokens::row(&tokenizer, &document(1, 2, Stage::Easy), true).expect("it encodes");
    assert_eq!(row.ids.len(), row.learnt.len());
    assert!(!row.learnt[0]);
    assert!(row.learnt.iter().any(|learnt| *learnt) && !row.learnt.iter().all(|learnt| *learnt));
}
