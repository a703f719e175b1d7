//! Vocabularies of the supported families: the masks allow the texts of a grammar and no other, in the tokens of each.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use refrain::{LogitsProcessor, SpecialTokens, TokenId, Tokenizer};
use refrain_grammar::{Grammar, GrammarError, Vocabulary};

const FAMILIES: [&str; 6] = ["llama-bpe", "qwen2", "smollm", "gpt-2", "llama-spm", "mistral"];
const CHOICES: [&str; 6] =
    ["the train leaves", "the trains leave", "Grüße, 日本!", "a\tb\n", "  two spaces", "x"];

fn vocabulary(family: &str) -> Vocabulary {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizers").join(family);
    let text = std::fs::read_to_string(folder.join("tokenizer.json")).expect("the golden tokenizers");
    // Another file names this end token; without it, a tokenizer knows the ends of chat models.
    let text = text.replace("</s>", "<|im_end|>");
    Vocabulary::of_tokenizer(Arc::new(Tokenizer::from_json(&text, family).expect("a tokenizer")))
        .expect("a vocabulary")
}

/// The tokens that the mask allows after `tokens`.
fn allowed(
    vocabulary: &Vocabulary,
    grammar: &Grammar,
    tokens: &[TokenId],
) -> Result<Vec<TokenId>, GrammarError> {
    let mut mask = grammar.mask();
    let mut logits = vec![0.0; vocabulary.tokenizer().vocab_size()];
    // The first call has the text before the output.
    for len in 0..=tokens.len() {
        logits.fill(0.0);
        mask.process(&tokens[..len], &mut logits).map_err(|error: Box<dyn Error + Send + Sync>| {
            *error.downcast::<GrammarError>().expect("of the grammar")
        })?;
    }
    let ids = (0..logits.len() as u32).map(TokenId);
    Ok(ids.filter(|id| logits[id.index()] > f32::NEG_INFINITY).collect())
}

/// Every text that the masks allow, by following each allowed token.
fn texts(vocabulary: &Vocabulary, grammar: &Grammar, tokens: &mut Vec<TokenId>, found: &mut Vec<Vec<u8>>) {
    assert!(tokens.len() < 40, "{tokens:?}");
    let tokenizer = vocabulary.tokenizer();
    for token in allowed(vocabulary, grammar, tokens).expect("a mask") {
        if tokenizer.eos().contains(&token) {
            found.push(tokens.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).copied().collect());
            continue;
        }
        assert!(!tokenizer.is_special(token));
        tokens.push(token);
        // A text has many spellings.
        if found.len() < 50 {
            texts(vocabulary, grammar, tokens, found);
        }
        tokens.pop();
    }
}

#[test]
fn masks_allow_the_choices_and_nothing_else() {
    for family in FAMILIES {
        let vocabulary = vocabulary(family);
        for choice in CHOICES {
            let grammar = Grammar::choices(&vocabulary, [choice]).unwrap();
            let mut found = Vec::new();
            texts(&vocabulary, &grammar, &mut Vec::new(), &mut found);
            assert!(!found.is_empty(), "{family}: {choice:?} cannot be written");
            assert!(found.iter().all(|text| text == choice.as_bytes()), "{family}: {choice:?}: {found:?}");
        }
    }
}

/// Forced text has the tokens that the tokenizer gives it.
#[test]
fn forced_text_is_tokenised_as_by_the_model() {
    for family in ["llama-bpe", "qwen2", "smollm", "gpt-2"] {
        let vocabulary = vocabulary(family);
        for choice in CHOICES {
            let grammar = Grammar::choices(&vocabulary, [choice]).unwrap();
            let expected = vocabulary.tokenizer().encode(choice, SpecialTokens::AsText).unwrap();
            let first = allowed(&vocabulary, &grammar, &[]).unwrap();
            assert!(first.contains(&expected[0]), "{family}: {choice:?}");
        }
    }
}
