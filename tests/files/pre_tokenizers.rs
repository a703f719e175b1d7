//! GGUF files that leave out how texts are cut into words, or which token begins a prompt.

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::gguf::GgufFile;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::{ErrorKind, SpecialTokens, TokenId, Tokenizer};

use crate::model_files::{Gguf, assert_variant, spm_gguf};

const TEXT: &str = "It's 12345 o'clock,  said the man — 3.14!\n\nYes";

fn checkpoint(gguf: &Gguf) -> Checkpoint {
    Checkpoint::from_gguf_bytes(gguf.bytes().into(), "some.gguf").unwrap()
}

fn tokens(tokenizer: &Tokenizer) -> Vec<TokenId> {
    tokenizer.encode(TEXT, SpecialTokens::AsText).unwrap()
}

/// A model whose vocabulary tells the pre-tokenizers apart: with a merge of two digits.
fn with_pre(pre: Option<&str>) -> Gguf {
    let mut gguf = Gguf::tiny();
    match pre {
        Some(pre) => gguf.set("tokenizer.ggml.pre", pre),
        None => gguf.unset("tokenizer.ggml.pre"),
    };
    let merges = ["a b", "ab c"].map(str::to_owned);
    gguf.set("tokenizer.ggml.merges", merges.to_vec());
    gguf
}

#[test]
fn a_missing_pre_tokenizer_is_an_error_that_names_the_field() {
    let error = checkpoint(&with_pre(None)).tokenizer().unwrap_err();
    assert_variant(
        &error,
        "NoPreTokenizer",
        &["some.gguf", "`tokenizer.ggml.pre`", "llama-bpe", "qwen2", "smollm", "default"],
    );
    let file = GgufFile::from_bytes(with_pre(None).bytes().into(), "some.gguf").unwrap();
    assert_variant(&Tokenizer::from_gguf(&file).unwrap_err(), "NoPreTokenizer", &[]);
}

#[test]
fn a_named_pre_tokenizer_is_the_one_that_the_file_would_name() {
    for pre in ["default", "gpt-2", "qwen2", "smollm", "llama-bpe"] {
        let stated = checkpoint(&with_pre(Some(pre))).tokenizer().unwrap();
        let named = checkpoint(&with_pre(None)).with_pre_tokenizer(pre).tokenizer().unwrap();
        assert_eq!(tokens(&named), tokens(&stated), "{pre}");
        assert_eq!((named.adds_bos(), named.bos()), (stated.adds_bos(), stated.bos()), "{pre}");
    }
    let unknown = checkpoint(&with_pre(None)).with_pre_tokenizer("gpt-9").tokenizer().unwrap_err();
    assert_variant(&unknown, "Unsupported", &["tokenizer.ggml.pre", "gpt-9"]);
    // A file that names one keeps it, also one that is not known.
    let kept = checkpoint(&with_pre(Some("llama-bpe"))).with_pre_tokenizer("gpt-2").tokenizer().unwrap();
    assert!(kept.adds_bos());
    let unknown = checkpoint(&with_pre(Some("gpt-9"))).with_pre_tokenizer("gpt-2").tokenizer().unwrap_err();
    assert_variant(&unknown, "Unsupported", &["gpt-9"]);
    assert_variant(
        &checkpoint(&with_pre(Some(""))).tokenizer().unwrap_err(),
        "Unsupported",
        &["pre-tokenizer"],
    );
}

#[test]
fn a_packed_file_keeps_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.refrain");
    let named = checkpoint(&with_pre(None)).with_pre_tokenizer("llama-bpe");
    pack(&named, &path, LoadOptions::default()).unwrap();
    let packed = Checkpoint::open(&path).unwrap().tokenizer().unwrap();
    assert!(packed.adds_bos());
    assert_eq!(tokens(&packed), tokens(&named.tokenizer().unwrap()));
}

/// Files of earlier versions were packed without a name.
#[test]
fn a_file_that_was_packed_without_a_name_takes_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.refrain");
    pack(&checkpoint(&with_pre(None)), &path, LoadOptions::default()).unwrap();
    let packed = Checkpoint::open(&path).unwrap();
    assert_variant(&packed.tokenizer().unwrap_err(), "NoPreTokenizer", &["tokenizer.ggml.pre"]);
    let named = packed.with_pre_tokenizer("llama-bpe").tokenizer().unwrap();
    let expected = checkpoint(&with_pre(Some("llama-bpe"))).tokenizer().unwrap();
    assert_eq!(tokens(&named), tokens(&expected));
}

#[test]
fn sentence_pieces_need_no_name() {
    let mut gguf = spm_gguf();
    gguf.unset("tokenizer.ggml.pre");
    let file = GgufFile::from_bytes(gguf.bytes().into(), "some.gguf").unwrap();
    assert!(Tokenizer::from_gguf(&file).is_ok());
}

#[test]
fn a_prompt_that_begins_with_a_token_needs_its_name() {
    let from =
        |gguf: &Gguf| Tokenizer::from_gguf(&GgufFile::from_bytes(gguf.bytes().into(), "some.gguf").unwrap());
    // llama.cpp's defaults for sentence pieces.
    let mut gguf = spm_gguf();
    gguf.unset("tokenizer.ggml.bos_token_id").unset("tokenizer.ggml.eos_token_id");
    let tokenizer = from(&gguf).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.adds_bos(), tokenizer.eos()),
        (Some(TokenId(1)), true, &[TokenId(2)][..])
    );
    // Byte-level vocabularies have none.
    for (pre, stated) in [("llama-bpe", None), ("gpt-2", Some(true))] {
        let mut gguf = with_pre(Some(pre));
        gguf.unset("tokenizer.ggml.bos_token_id");
        stated.map(|stated| gguf.set("tokenizer.ggml.add_bos_token", stated));
        let error = from(&gguf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{pre}: {error:?}");
        assert!(error.field().unwrap().contains("tokenizer.ggml.bos_token_id"), "{pre}: {error:?}");
        gguf.set("tokenizer.ggml.add_bos_token", false);
        assert!(!from(&gguf).unwrap().adds_bos());
    }
}
