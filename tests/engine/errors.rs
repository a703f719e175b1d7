//! What an app learns from an error: its kind, and the file, field, offset, value and limit.

use std::error::Error;
use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::device::MachineProfile;
use refrain::internals::model::KvCache;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::{
    ErrorKind, GenerateError, GenerateOptions, KvType, LoadError, LogitsProcessor, ProcessorError, Role,
    Sampling, SessionError, SessionOptions, TokenId, Tokenizer,
};

use crate::common::{self, Tiny, cancelled_token, plain, prompt};
use crate::model_files::hf::{HfModel, with_header};

/// A processor of an app that has no result.
struct Fails;

impl LogitsProcessor for Fails {
    fn process(&mut self, _: &[TokenId], _: &mut [f32]) -> Result<(), ProcessorError> {
        Err("no result".into())
    }
}

fn from_gguf(bytes: Vec<u8>) -> LoadError {
    Checkpoint::from_gguf_bytes(bytes.into(), "bad.gguf").unwrap_err()
}

#[test]
fn every_kind_is_that_of_a_real_error() {
    let tiny = Tiny::default();
    let engine = tiny.engine(1);
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = Vec::new();

    let loading = [
        Checkpoint::open("no/such/model").unwrap_err(),
        MachineProfile::read(folder.path()).unwrap_err(),
        from_gguf(tiny.gguf()[..20].to_vec()),
        from_gguf(b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0".to_vec()),
        from_gguf([&tiny.gguf()[..8], &[0xff; 8], &tiny.gguf()[16..]].concat()),
        KvCache::new(engine.config(), KvType::F32, 1 << 60).err().expect("an error").into(),
    ];
    kinds.extend(loading.iter().map(LoadError::kind));

    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(1, 9)).unwrap();
    let mut chat = engine.session(plain()).unwrap();
    chat.append_turn(Role::User, "turn").unwrap();
    let sessions: [SessionError; 4] = [
        engine.session(SessionOptions { verify_rows_max: 65, ..plain() }).unwrap_err(),
        session.append_tokens(&prompt(1, session.context_len())).unwrap_err(),
        session.state_mut().restore(0, &prompt(1, 3), &[]).unwrap_err(),
        chat.truncate(0).unwrap_err(),
    ];
    kinds.extend(sessions.iter().map(SessionError::kind));

    kinds.push(session.prefill(&cancelled_token(), |_, _| {}).unwrap_err().kind());
    let bias = (0..common::VOCAB_SIZE as u32).map(|id| (TokenId(id), f32::NEG_INFINITY));
    let forbidden = Sampling { logit_bias: bias.collect(), ..Sampling::default() };
    let no_token = GenerateOptions { sampling: forbidden, ..GenerateOptions::default() };
    let no_result = GenerateOptions { processors: vec![Box::new(Fails)], ..GenerateOptions::default() };
    for options in [no_token, no_result] {
        let error: GenerateError =
            session.generate(options).unwrap().find_map(Result::err).expect("an error");
        kinds.push(error.kind());
        if error.kind() == ErrorKind::Processor {
            assert_eq!(error.source().expect("the app's own error").to_string(), "no result");
        }
    }

    for kind in ErrorKind::ALL {
        assert!(kinds.contains(kind), "{kind:?} is that of no error: {kinds:?}");
    }
}

#[test]
fn errors_of_sessions_have_the_option_and_both_numbers() {
    let engine = Tiny::default().engine(1);
    let rows = engine.session(SessionOptions { verify_rows_max: 65, ..plain() }).unwrap_err();
    assert_eq!((rows.field(), rows.value(), rows.limit()), (Some("verify_rows_max"), Some(65.0), Some(64)));
    let mut session = engine.session(SessionOptions { context_len: Some(16), ..plain() }).unwrap();
    let full = session.append_tokens(&prompt(1, 17)).unwrap_err();
    assert_eq!((full.field(), full.value(), full.limit()), (None, Some(17.0), Some(16)));
    let unknown = session.append_tokens(&[TokenId(9999)]).unwrap_err();
    let vocab_size = engine.config().vocab_size as u64;
    assert_eq!(
        (unknown.field(), unknown.value(), unknown.limit()),
        (Some("token"), Some(9999.0), Some(vocab_size))
    );
    let hot = Sampling { temperature: 1000.0, ..Sampling::default() }.check(300).unwrap_err();
    assert_eq!((hot.field(), hot.value(), hot.limit()), (Some("temperature"), Some(1000.0), None));
    assert_eq!(unknown.file(), None);
}

#[test]
fn errors_of_files_have_the_place() {
    let tiny = Tiny::default().gguf();
    let torn = from_gguf(tiny[..20].to_vec());
    assert_eq!(
        (torn.kind(), torn.file(), torn.offset()),
        (ErrorKind::Damaged, Some(Path::new("bad.gguf")), Some(16))
    );
    assert!(torn.field().is_some() && torn.limit().is_none(), "{torn}");
    let many = from_gguf([&tiny[..8], &[0xff; 8], &tiny[16..]].concat());
    assert_eq!((many.kind(), many.offset()), (ErrorKind::OverLimit, Some(8)));
    let (value, limit) = (many.value().unwrap(), many.limit().unwrap());
    assert!(value > limit as f64 && limit > 0, "{many}");

    let folder = tempfile::tempdir().unwrap();
    let mut model = HfModel::tiny("llama");
    model.write(folder.path());
    let weights = folder.path().join("model.safetensors");
    let overlapping = r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#;
    std::fs::write(&weights, with_header(overlapping, 12)).unwrap();
    let tensor = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(tensor.kind(), ErrorKind::Damaged, "{tensor}");
    assert_eq!((tensor.file(), tensor.field(), tensor.offset()), (Some(&*weights), Some("b"), Some(4)));

    model.config["hidden_size"] = (-1).into();
    model.write(folder.path());
    let config = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(config.kind(), ErrorKind::Damaged, "{config}");
    assert!(config.file().unwrap().ends_with("config.json"), "{config}");
    assert_eq!((config.field(), config.offset(), config.limit()), (Some("hidden_size"), None, None));

    let path = folder.path().join("model.refrain");
    let source = Checkpoint::from_gguf_bytes(tiny.into(), "tiny").unwrap();
    pack(&source, &path, LoadOptions::default()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let packed = |bytes: Vec<u8>| Checkpoint::from_packed_bytes(bytes.into(), "bad.refrain").unwrap_err();
    let cut = packed(bytes[..bytes.len() - 1].to_vec());
    assert_eq!((cut.kind(), cut.file()), (ErrorKind::Damaged, Some(Path::new("bad.refrain"))));
    assert!(cut.field().is_some() && cut.offset().is_some(), "{cut}");
    let newer = packed([&bytes[..8], &[0xff; 4], &bytes[12..]].concat());
    assert_eq!((newer.kind(), newer.offset()), (ErrorKind::Unsupported, None), "{newer}");

    let tokenizer = Tokenizer::from_json("{}", "tokenizer.json").unwrap_err();
    let place = (tokenizer.kind(), tokenizer.file(), tokenizer.field());
    assert_eq!(place, (ErrorKind::Damaged, Some(Path::new("tokenizer.json")), None));
    // An error of a tokenizer keeps its facts where it becomes that of another call.
    let message = tokenizer.to_string();
    let engine = LoadError::from(tokenizer);
    assert_eq!((engine.kind(), engine.file()), (ErrorKind::Damaged, Some(Path::new("tokenizer.json"))));
    assert_eq!(engine.to_string(), message);
}
