//! Random damage: a file with flipped, cut, repeated or foreign bytes is refused or read. Reading never panics and
//! never takes more memory than a stated multiple of the file's length.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use refrain::checkpoint::Checkpoint;
use refrain::device::MachineProfile;
use refrain::drafting::Predictor;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::Source;
use refrain::internals::model::arch::parse_config;
use refrain::internals::model::encoder::CONFIG_FILES;
use refrain::internals::model::gguf::{GgufArray, GgufFile};
use refrain::internals::model::hf::SafetensorsFile;
use refrain::internals::model::packed::ModelIdentity;
use refrain::internals::model::packed::{PackedFile, pack};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::pruning::PredictorParts;
use refrain::internals::tokenizer::{ChatTemplate, SpecialTexts};
use refrain::{ChatOptions, Engine, EngineOptions, Message, Role, SpecialTokens, TokenId, Tokenizer};

use crate::model_files::families::configs;
use crate::model_files::hf::{HfModel, safetensors_bytes, tokenizer_json};
use crate::model_files::{Gguf, golden};
use crate::{MEMORY, turn};

/// One way to damage bytes; places and lengths are taken modulo the file's length.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    /// Overwrites eight bytes, the width of a length or an offset.
    Number(usize, u64),
    Cut(usize),
    Remove(usize, usize),
    Insert(usize, Vec<u8>),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![
        Just(u64::MAX),
        Just(i64::MAX as u64),
        Just(u64::from(u32::MAX)),
        Just(1 << 24),
        Just(1 << 16),
        Just(0),
        any::<u64>(),
        0u64..4096
    ];
    prop_oneof![
        4 => (any::<usize>(), 1u8..).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        3 => (any::<usize>(), number).prop_map(|(at, n)| Damage::Number(at, n)),
        1 => any::<usize>().prop_map(Damage::Cut),
        1 => (any::<usize>(), 1usize..64).prop_map(|(at, n)| Damage::Remove(at, n)),
        1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, b)| Damage::Insert(at, b)),
        1 => (any::<usize>(), 1usize..64).prop_map(|(at, n)| Damage::Repeat(at, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage, header_len: usize) {
    if bytes.is_empty() {
        return;
    }
    // Most damage affects the header, because most rules concern it.
    let place = |at: usize| at % header_len.min(bytes.len());
    match damage {
        Damage::Flip(at, mask) => {
            let at = place(*at);
            bytes[at] ^= mask;
        }
        Damage::Number(at, n) => {
            let at = place(*at);
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&n.to_le_bytes()[..end - at]);
        }
        Damage::Cut(at) => bytes.truncate(at % (bytes.len() + 1)),
        Damage::Remove(at, n) => {
            let at = place(*at);
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Damage::Insert(at, new) => {
            let at = place(*at);
            bytes.splice(at..at, new.iter().copied());
        }
        Damage::Repeat(at, n) => {
            let at = place(*at);
            let piece = bytes[at..(at + n).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

/// Bytes, damaged in one to four ways.
fn damaged(original: Vec<u8>, header_len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(damage(), 1..=4).prop_map(move |damages| {
        let mut bytes = original.clone();
        damages.iter().for_each(|d| apply(&mut bytes, d, header_len));
        bytes
    })
}

/// Runs `read` and checks its peak of memory.
fn within(budget: usize, read: impl FnOnce()) {
    let _turn = turn();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    read();
    let used = MEMORY.peak_usage().saturating_sub(before);
    assert!(used <= budget, "{used} bytes used, {budget} allowed");
}

/// Memory that does not depend on the file's length: tables, messages, windows. The harness's own threads share it.
const SLACK: usize = 2 << 20;

fn gguf_with_everything() -> Gguf {
    let mut gguf = Gguf::tiny();
    let nested = GgufArray::Array(vec![GgufArray::U8(vec![1, 2]), GgufArray::String(vec!["x".to_owned()])]);
    gguf.set("test.nested", nested).set("test.floats", vec![1.0f64; 3]).set("test.bools", vec![true; 5]);
    gguf.add_tensor("rope_freqs.weight", BlockType::F32, &[4]);
    gguf
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn gguf(bytes in damaged(gguf_with_everything().bytes(), 12_000)) {
        within(8 * bytes.len() + SLACK, || {
            let Ok(file) = GgufFile::from_bytes(bytes.clone().into(), "damaged.gguf") else { return };
            for tensor in file.tensors() {
                file.read(tensor).unwrap();
            }
            let _ = Tokenizer::from_gguf(&file).map(|t| t.encode("abc <|im_end|>", SpecialTokens::Parse));
        });
        within(usize::MAX, || _ = Checkpoint::from_gguf_bytes(bytes.into(), "damaged.gguf"));
    }

    #[test]
    fn safetensors(bytes in damaged(safetensors_bytes(&HfModel::tiny("qwen3").tensors), 1600)) {
        within(8 * bytes.len() + SLACK, || {
            let source = Source::from_bytes(bytes.clone().into(), "damaged.safetensors");
            let Ok(file) = SafetensorsFile::from_source(source) else { return };
            for tensor in file.tensors() {
                file.read(tensor).unwrap();
            }
            // The format's own library accepts every file accepted here, except those with unknown element types.
            if file.tensors().iter().all(|t| t.dtype.block_type().is_some()) {
                safetensors::SafeTensors::deserialize(&bytes).unwrap();
            }
        });
    }

    #[test]
    fn packed_files(bytes in damaged(PACKED.clone(), 10_000)) {
        within(8 * bytes.len() + SLACK, || {
            let Ok(file) = PackedFile::from_bytes(bytes.clone().into(), "damaged.refrain") else { return };
            let is_whole = file.verify(None).is_ok();
            assert_eq!(is_whole, bytes == *PACKED, "what is damaged is found, and nothing else");
        });
    }

    #[test]
    fn config(bytes in damaged(HfModel::tiny("qwen2").config.to_string().into_bytes(), usize::MAX)) {
        within(64 * bytes.len() + SLACK, || {
            let _ = parse_config(&String::from_utf8_lossy(&bytes), "config.json");
        });
    }

    #[test]
    fn tokenizer(bytes in damaged(tokenizer_json().to_string().into_bytes(), usize::MAX)) {
        within(64 * bytes.len() + 4 * SLACK, || {
            let Ok(tokenizer) = Tokenizer::from_json(&String::from_utf8_lossy(&bytes), "tokenizer.json") else { return };
            let _ = tokenizer.encode("abc  'll <|im_end|> 日本\n", SpecialTokens::Parse).map(|ids| tokenizer.decode(&ids));
        });
    }

    #[test]
    fn profile(bytes in damaged(PROFILE.as_bytes().to_vec(), usize::MAX)) {
        within(64 * bytes.len() + SLACK, || {
            let Ok(profile) = MachineProfile::parse(&bytes, Path::new("damaged.json")) else { return };
            for context in [0, 500, usize::MAX] {
                let costs = profile.costs(context, 8);
                assert!((1..=65).all(|rows| costs.verify_us(rows, 1).is_finite() && costs.verify_us(rows, 1) > 0.0));
            }
        });
    }

    #[test]
    fn predictor(bytes in damaged(PREDICTOR.clone(), 100)) {
        within(16 * bytes.len() + SLACK, || {
            let read = Predictor::from_bytes(&bytes, "damaged.predictor");
            assert_eq!(read.is_ok(), bytes == *PREDICTOR, "what is damaged is found, and nothing else");
        });
    }

    #[test]
    fn template(bytes in damaged(TEMPLATE.as_bytes().to_vec(), usize::MAX)) {
        within(64 << 20, || {
            let Ok(template) = ChatTemplate::new(String::from_utf8_lossy(&bytes).into_owned()) else { return };
            let _ = template.render(&[Message::new(Role::User, "hi")], &ChatOptions::default(), true, &SpecialTexts::default());
        });
    }
}

proptest! {
    // Each case loads a whole model.
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A recurrent family and one with experts, whose tensors have shapes and places of their own: a whole model is refused or loads.
    #[test]
    fn gguf_of_families(bytes in prop::sample::select(&FAMILIES[..]).prop_flat_map(|family| {
        let bytes = Gguf::from_golden(&golden(family)).bytes();
        damaged(bytes, FAMILY_HEADER)
    })) {
        within(16 * bytes.len() + 8 * SLACK, || {
            let Ok(checkpoint) = Checkpoint::from_gguf_bytes(bytes.clone().into(), "damaged.gguf") else { return };
            load(&checkpoint);
        });
    }

    #[test]
    fn safetensors_of_families(family in prop::sample::select(&FAMILIES[..]), damages in prop::collection::vec(damage(), 1..=4)) {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(golden(family).join(file), dir.path().join(file)).unwrap();
        }
        let mut bytes = std::fs::read(golden(family).join("model.safetensors")).unwrap();
        damages.iter().for_each(|damage| apply(&mut bytes, damage, FAMILY_HEADER));
        std::fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
        within(16 * bytes.len() + 8 * SLACK, || {
            let Ok(checkpoint) = Checkpoint::open(dir.path()) else { return };
            load(&checkpoint);
        });
    }
}

const FAMILIES: [&str; 2] = ["qwen3_5", "qwen3_moe"];

/// Bytes that hold most of a golden model's header and the first of its data, in both containers.
const FAMILY_HEADER: usize = 16_000;

/// Loads a model: what its tensors say fits its configuration, or is an error.
fn load(checkpoint: &Checkpoint) {
    let options = EngineOptions {
        n_threads: Some(1),
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    let _ = Engine::load(checkpoint, options, |_, _| {});
}

static PACKED: LazyLock<Vec<u8>> = LazyLock::new(|| packed("qwen3"));

static PREDICTOR: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let parts = PredictorParts {
        model: ModelIdentity::from_bits(1 << 100),
        layer_idx: 2,
        hidden_dim: 8,
        rank: 3,
        vocab_size: 20,
        down: vec![0.5; 24],
        up: vec![half::f16::ONE; 60],
        shadow_pool: [1, 7].map(TokenId).to_vec(),
    };
    Predictor::new(parts).unwrap().to_bytes()
});

/// A tiny packed model with a tokenizer.
fn packed(name: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    HfModel::tiny(name).write(dir.path());
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer_json().to_string()).unwrap();
    let path = dir.path().join("tiny.refrain");
    pack(&Checkpoint::open(dir.path()).unwrap(), &path, LoadOptions::default()).unwrap();
    std::fs::read(&path).unwrap()
}

const TEMPLATE: &str = "{%- set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% if m.role == 'user' and not loop.last %}\
    {{ m.content.strip().split('a')[0] | trim ~ '<|im_end|>' }}{% set ns.n = ns.n + 1 %}{% else %}{{ m['role'] + '\\n' }}\
    {% endif %}{% endfor %}{{ strftime_now('%d %b %Y') }}{% if ns.n > 9 %}{{ raise_exception('x') }}{% endif %}";

const PROFILE: &str = r#"{"version": 2, "key": {"cpu": "A CPU", "isa": "scalar", "n_threads": 2, "n_layers": 1, "hidden_dim": 64,
    "ffn_dim": 128, "n_heads": 2, "n_kv_heads": 1, "head_dim": 32, "vocab_size": 300, "weights_bytes": 1000, "kv_type": "f16"},
    "verify": [{"context": 0, "rows": 1, "us": 100.0}, {"context": 0, "rows": 8, "us": 200.5},
        {"context": 1000, "rows": 1, "us": 300.0}, {"context": 1000, "rows": 8, "us": 600.25}],
    "projection": [{"context": 0, "rows": 1, "us": 10.0}, {"context": 0, "rows": 8, "us": 40.0}],
    "prefill": [{"context": 0, "rows": 64, "us": 900.0}]}"#;

/// Constructs that the golden templates do not have.
const TEMPLATES: [(&str, &str); 6] = [
    (
        "macros",
        "{% macro turn(role, text='') -%}<{{ role }}>{{ caller() if caller }}{{ text }}{%- endmacro %}\
                {% call turn('user') %}{{ messages[-1].content }}{% endcall %}{{ turn(role='system', text=2 ** 3) }}",
    ),
    (
        "loops",
        "{% for k, v in {'a': [1, 2], 'b': 'x'}.items() recursive %}{{ loop.index0 }}{{ loop.cycle(k, v) }}\
               {% if loop.last %}{% break %}{% else %}{% continue %}{% endif %}{% else %}none{% endfor %}",
    ),
    (
        "sets",
        "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages if m.role != 'system' %}\
              {% set ns.n = ns.n + m.content|length %}{% endfor %}{% set block %}{{ ns.n }}{% endset %}{{ block|trim }}",
    ),
    (
        "filters",
        "{{ messages|map(attribute='role')|unique|sort(reverse=true)|join(', ')|upper }}\
                 {{ [3, 1.5, true, none, 'é']|tojson(indent=2) }}{{ 'a-b'.split('-')[::-1]|list|last|default('x', true) }}",
    ),
    (
        "slices",
        "{{ 'übergang'[1:-1:2] }}{{ [1, 2, 3][-9:9] }}{{ (1, 'a') ~ {'k': 1}.get('k') }}{{ range(9)[2:]|list }}",
    ),
    (
        "raise",
        "{% if messages[0].role == 'system' and not tools is defined %}{{ raise_exception('no ' ~ 'system') }}\
               {% endif %}{%- generation -%}{{ strftime_now('%d %b %Y') }}{%- endgeneration -%}{# a comment #}",
    ),
];

/// Writes the seed inputs of the fuzz targets into `fuzz/seeds`.
#[test]
#[ignore = "writes into fuzz/seeds; run it when a format changes"]
fn write_fuzz_seeds() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    };
    write("gguf", "everything", &gguf_with_everything().bytes());
    let mut small = Gguf::default();
    small.set("general.alignment", 32u32).set("a", vec![1u8]).add_tensor("t", BlockType::Q4_0, &[32, 2]);
    write("gguf", "small", &small.bytes());
    let goldens = golden("");
    for folder in std::fs::read_dir(&goldens).unwrap().map(|entry| entry.unwrap().path()) {
        if folder.join("config.json").exists() {
            // The metadata of a family, which is read before its tensors are missed.
            let mut gguf = Gguf::from_golden(&folder);
            gguf.tensors.clear();
            gguf.metadata.retain(|(key, _)| !key.starts_with("tokenizer."));
            write("gguf", &format!("config-{}", folder.file_name().unwrap().display()), &gguf.bytes());
        }
    }
    for name in ["llama", "qwen2", "qwen3"] {
        let model = HfModel::tiny(name);
        write(
            "safetensors",
            &format!("file-{name}"),
            &[b"s", &safetensors_bytes(&model.tensors)[..]].concat(),
        );
    }
    for (name, config) in configs() {
        write("safetensors", &format!("config-{name}"), format!("c{config}").as_bytes());
    }
    for name in ["bert", "xlm-roberta"] {
        let text = |file: &&str| {
            std::fs::read_to_string(golden("encoders").join(name).join(file)).unwrap_or_default()
        };
        let texts: Vec<String> = CONFIG_FILES.iter().map(text).collect();
        write("safetensors", &format!("encoder-{name}"), format!("e{}", texts.join("\0")).as_bytes());
    }
    write(
        "safetensors",
        "index",
        br#"i{"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#,
    );
    for name in ["llama", "qwen2", "qwen3"] {
        // The target adds the prelude: JSON, a zero, data.
        let bytes = packed(name);
        let json_len = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
        let (json, rest) = bytes[40..].split_at(json_len);
        let data = &rest[(40 + json_len).next_multiple_of(4096) - 40 - json_len..];
        write("packed", &format!("parts-{name}"), &[json, &[0], data].concat());
        write("packed", &format!("file-{name}"), &bytes);
    }
    write("tokenizer_json", "byte-level", format!("{}\0a b <|im_end|>", tokenizer_json()).as_bytes());
    write("chat_template", "template", TEMPLATE.as_bytes());
    for (name, source) in TEMPLATES {
        write("chat_template", name, source.as_bytes());
    }
    for family in std::fs::read_dir(goldens.join("tokenizers")).expect("the golden tokenizers") {
        let family = family.unwrap();
        let name = family.file_name();
        let name = name.to_str().expect("a name in ASCII");
        // Beside the families is a file of texts.
        let Ok(files) = std::fs::read_dir(family.path()) else { continue };
        for file in
            files.map(|file| file.unwrap().path()).filter(|file| file.extension() == Some("jinja".as_ref()))
        {
            let own = file.file_stem().unwrap().to_str().expect("a name in ASCII");
            let name = if own == "chat_template" { name } else { own };
            write("chat_template", name, &std::fs::read(&file).unwrap());
        }
        let text = b"\0Where? <|im_end|> 12 caf\xC3\xA9s";
        let tokenizer = std::fs::read(family.path().join("tokenizer.json")).unwrap();
        write("tokenizer_json", name, &[&tokenizer[..], text].concat());
    }
    write("profile", "two-contexts", PROFILE.as_bytes());
    write("predictor", "small", &PREDICTOR);
    // The target has sound files of its own. The first byte chooses one, and whether the other bytes replace or edit
    // it.
    for (kind, name) in ["segment", "log", "edited-segment", "edited-log"].into_iter().enumerate() {
        write("history", name, &[&[kind as u8], &[0, 0, 0, 0, 0, 0, 7, 1, 255, 255, 255, 255][..]].concat());
    }
    // The fuzz target makes the block. These are edits of tokens and of the state.
    write("prefixes", "edited", &[1, 96, 0, 5, 0, 0, 0, 200, 0, 1, 2, 3, 4]);
}
