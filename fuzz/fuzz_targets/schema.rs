//! A grammar of a client: compiled, then followed over a few masks. The first byte chooses JSON Schema, a Lark grammar with a schema inside,
//! Lark, a regular expression, or GBNF; the second one the tokens. It is refused with a typed error, or each mask has a token.
#![no_main]

#[path = "../../crates/serve/tests/support/bigram.rs"]
#[allow(dead_code)]
mod bigram;

use std::sync::OnceLock;

use bigram::Calls;
use libfuzzer_sys::fuzz_target;
use refrain::checkpoint::Checkpoint;
use refrain::{Engine, EngineOptions, LogitsProcessor, TokenId};
use refrain_grammar::{Grammar, GrammarError, JsonOptions, Vocabulary};

/// The first byte of GBNF; of the others the two lowest bits count.
const GBNF: u8 = 4;
/// Masks of an input.
const MASKS: usize = 12;

fn vocabulary() -> &'static (Vocabulary, usize) {
    static VOCABULARY: OnceLock<(Vocabulary, usize)> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let checkpoint = Checkpoint::from_gguf_bytes(bigram::gguf(Calls::Control).into(), "bigram").unwrap();
        let options = EngineOptions { n_threads: Some(1), ..EngineOptions::default() };
        let engine = Engine::load(&checkpoint, options, |_, _| {}).unwrap();
        let vocab_size = engine.config().vocab_size;
        (Vocabulary::of_engine(&engine).unwrap(), vocab_size)
    })
}

fuzz_target!(|bytes: &[u8]| {
    let [kind, choice, text @ ..] = bytes else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (vocabulary, vocab_size) = vocabulary();
    let grammar = match kind % 4 {
        _ if *kind == GBNF => Grammar::gbnf(vocabulary, text),
        0 => {
            let mut options = JsonOptions::default();
            options.whitespace = choice % 2 == 1;
            Grammar::json_schema(vocabulary, text, options)
        }
        1 => Grammar::lark(vocabulary, &format!("start: \"<\" %json {text} \">\"\n")),
        2 => Grammar::lark(vocabulary, text),
        _ => Grammar::regex(vocabulary, text),
    };
    let Ok(grammar) = grammar else { return };
    let (mut mask, mut output) = (grammar.mask(), Vec::new());
    for step in 0..MASKS {
        let mut logits = vec![0.0; *vocab_size];
        if let Err(error) = mask.process(&output, &mut logits) {
            let error = error.downcast_ref::<GrammarError>();
            assert!(
                matches!(error, Some(GrammarError::TooComplex { .. } | GrammarError::NoToken { .. })),
                "{error:?}"
            );
            return;
        }
        let allowed: Vec<usize> = (0..logits.len()).filter(|&token| logits[token] == 0.0).collect();
        let token = TokenId(allowed[(usize::from(*choice) + 7 * step) % allowed.len()] as u32);
        if vocabulary.tokenizer().eos().contains(&token) {
            return;
        }
        output.push(token);
    }
});
