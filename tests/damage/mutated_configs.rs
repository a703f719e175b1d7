//! Changed configurations of every family: fields that are missing, of other types, huge, or lists of other lengths. Each
//! gives a typed error or a valid configuration, in bounded memory.

use std::collections::BTreeMap;
use std::{fs, panic};

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::internals::model::arch::Architecture;
use refrain::internals::model::arch::parse_config;
use refrain::internals::model::config::ConfigError;
use refrain::internals::model::encoder::{CONFIG_FILES, parse_encoder_config};
use refrain::internals::model::kv_cache::{CacheSize, KvCache, WindowBound};
use refrain::internals::model::rope::RopeTable;
use refrain::state::WINDOW_RESERVE;
use refrain::{KvType, SessionOptions};
use serde_json::{Value, json};

use crate::model_files::families::configs;
use crate::{MEMORY, turn};

/// Plans of 1024 layers, and lists of their fields, take less than two mebibytes.
const MEMORY_MAX: usize = 4 << 20;

/// Changed configurations of each file. Every field is met by several of them.
const N_CHANGED: usize = 2000;

/// A sequence of numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Fields of all configurations with their values: what some family reads, another must refuse or read too.
fn known_fields(configs: &[(String, Value)]) -> Vec<(String, Value)> {
    fn collect(value: &Value, fields: &mut BTreeMap<String, Value>) {
        if let Value::Object(map) = value {
            for (field, value) in map {
                fields.entry(field.clone()).or_insert_with(|| value.clone());
                collect(value, fields);
            }
        }
    }
    let mut fields = BTreeMap::new();
    configs.iter().for_each(|(_, config)| collect(config, &mut fields));
    fields.into_iter().collect()
}

/// Pointers to all values below the root.
fn places(value: &Value, at: &str, places: &mut Vec<String>) {
    let mut child = |name: &str, value: &Value| {
        let at = format!("{at}/{name}");
        self::places(value, &at, places);
        places.push(at);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| child(name, value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| child(&i.to_string(), value)),
        _ => {}
    }
}

fn another_value(numbers: &mut Numbers, old: &Value) -> Value {
    let whole = [0, 1, 2, 3, 5, 7, 63, 64, 1024, 1025, 4096, 1 << 20, 1 << 30, 1 << 40, u64::MAX];
    let floats = [0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-45, 1e-300, 1e38, 1e300, f64::MAX, f64::MIN_POSITIVE];
    let texts =
        ["", "x", "silu", "default", "yarn", "longrope", "dynamic", "llama3", "full_attention", "conv"];
    match (numbers.below(12), old) {
        (0, _) => Value::Null,
        (1, _) => (numbers.below(2) == 0).into(),
        (2 | 3, _) => (*numbers.choose(&whole)).into(),
        (4, _) => (*numbers.choose(&floats)).into(),
        (5, _) => i64::MIN.into(),
        (6, _) => (*numbers.choose(&texts)).into(),
        (7, _) => json!({ "rope_type": numbers.choose(&texts), "factor": numbers.choose(&floats) }),
        (8 | 9, Value::Array(list)) if !list.is_empty() => {
            let n = *numbers.choose(&[0, 1, list.len() - 1, list.len() + 1, 2 * list.len(), 5000]);
            list.iter().cycle().take(n).cloned().collect()
        }
        (8 | 9, other) => vec![other.clone(); *numbers.choose(&[0, 1, 2, 4, 1024])].into(),
        (10, Value::Number(n)) if n.is_u64() => (n.as_u64().unwrap().wrapping_mul(2)).into(),
        (10 | 11, Value::Number(n)) if n.is_u64() => (n.as_u64().unwrap().wrapping_sub(1)).into(),
        (_, old) => vec![old.clone()].into(),
    }
}

/// Removes, replaces or adds up to three fields.
fn change(config: &mut Value, fields: &[(String, Value)], numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let mut all = Vec::new();
        places(config, "", &mut all);
        let place = numbers.choose(&all).clone();
        let (parent, name) = place.rsplit_once('/').expect("a place below the root");
        match numbers.below(4) {
            0 => match config.pointer_mut(parent).expect("the parent") {
                Value::Object(map) => _ = map.remove(name),
                Value::Array(list) => _ = list.remove(name.parse().expect("an index")),
                _ => unreachable!("parents are objects and lists"),
            },
            1 => {
                let (field, value) = numbers.choose(fields).clone();
                let value = if numbers.below(2) == 0 { another_value(numbers, &value) } else { value };
                match config.pointer_mut(parent).expect("the parent") {
                    Value::Object(map) => _ = map.insert(field, value),
                    Value::Array(list) => list.push(value),
                    _ => unreachable!("parents are objects and lists"),
                }
            }
            _ => {
                let value = config.pointer_mut(&place).expect("the place");
                *value = another_value(numbers, value);
            }
        }
        if config.as_object().is_none_or(serde_json::Map::is_empty) {
            return;
        }
    }
}

/// What holds for every configuration that is accepted.
fn check_accepted(config: &ModelConfig) {
    config.validate("checked again").unwrap();
    // As a packed file stores it.
    let stored = serde_json::to_string(config).unwrap();
    assert_eq!(serde_json::from_str::<ModelConfig>(&stored).unwrap(), *config, "{stored}");
    let widths = config.widths();
    for attention in (0..config.n_layers()).filter_map(|layer_idx| config.attention(layer_idx)) {
        assert!(attention.n_heads <= widths.n_heads && attention.kv_dim() <= widths.kv_dim);
        assert!(attention.rope.is_none_or(|rope| rope < config.ropes.len()));
    }
    let size = CacheSize::full(KvType::F16, config.context_len);
    let bytes = KvCache::bytes(config, size);
    let windows = Some(WindowBound { pass_rows_max: 512, reserve: WINDOW_RESERVE });
    assert!(KvCache::bytes(config, CacheSize { windows, ..size }) <= bytes);
    let _ = SessionOptions::default().memory_bytes(config);
    for rope in config.ropes.iter().filter(|rope| rope.rotary_dim <= 64) {
        RopeTable::new(rope).grow(2, config.context_len);
    }
}

/// Of a sentence encoder, whose files are several.
#[test]
fn changed_configurations_of_encoders_are_refused_or_valid() {
    let _turn = turn();
    for (i, name) in ["bert", "xlm-roberta"].into_iter().enumerate() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/encoders").join(name);
        let files: Vec<(&str, Value)> = CONFIG_FILES
            .iter()
            .filter_map(|file| {
                Some((*file, serde_json::from_str(&fs::read_to_string(folder.join(file)).ok()?).ok()?))
            })
            .collect();
        let fields = known_fields(
            &files.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect::<Vec<_>>(),
        );
        let mut numbers = Numbers(i as u64);
        let (mut n_accepted, mut n_refused) = (0, 0);
        for round in 0..N_CHANGED {
            let mut changed = files.clone();
            let at = numbers.below(files.len());
            change(&mut changed[at].1, &fields, &mut numbers);
            let text_of = |name: &str| {
                Ok(changed.iter().find(|(file, _)| *file == name).map(|(_, value)| value.to_string()))
            };
            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage();
            let read = panic::catch_unwind(|| parse_encoder_config("folder", &text_of))
                .unwrap_or_else(|_| panic!("{name}, round {round}: a panic with {changed:?}"));
            let used = MEMORY.peak_usage().saturating_sub(before);
            let allowed =
                MEMORY_MAX + 64 * changed.iter().map(|(_, value)| value.to_string().len()).sum::<usize>();
            assert!(used <= allowed, "{name}, round {round}: {used} bytes of {allowed} with {changed:?}");
            match read {
                Ok(config) => {
                    assert!((3..=config.n_positions - config.first_position).contains(&config.tokens_max));
                    assert!(config.hidden_dim.is_multiple_of(config.n_heads));
                    n_accepted += 1;
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("folder") && !message.contains('\n'), "{message}");
                    n_refused += 1;
                }
            }
        }
        assert!(n_accepted > 0 && n_refused > 0, "{name}: {n_accepted} accepted, {n_refused} refused");
    }
}

/// The configuration; `None` if it is of a family, or has a part, that is not implemented.
fn read(name: &str, config: &Value) -> Option<ModelConfig> {
    match parse_config(&config.to_string(), name) {
        Ok(config) => Some(config),
        Err(ConfigError::UnknownArchitecture { .. } | ConfigError::Unsupported { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_family_has_a_configuration() {
    let _turn = turn();
    let known: Vec<ModelConfig> =
        configs().into_iter().filter_map(|(name, config)| read(&name, &config)).collect();
    known.iter().for_each(check_accepted);
    for name in Architecture::names() {
        assert!(
            known.iter().any(|config| config.architecture.name() == name),
            "no configuration of {name} in tests/golden or tests/model_files/families.rs"
        );
    }
}

#[test]
fn changed_configurations_are_refused_or_valid() {
    let _turn = turn();
    let configs = configs();
    let fields = known_fields(&configs);
    let folder = tempfile::tempdir().unwrap();
    for (i, (name, config)) in configs.iter().enumerate() {
        let mut numbers = Numbers(i as u64);
        let (mut n_accepted, mut n_refused) = (0, 0);
        // Golden models also open with their weights.
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let has_weights = golden.join("model.safetensors").exists();
        if has_weights {
            fs::copy(golden.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        }
        for round in 0..N_CHANGED {
            let mut changed = config.clone();
            change(&mut changed, &fields, &mut numbers);
            let text = changed.to_string();
            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage();
            let read = panic::catch_unwind(|| parse_config(&text, "config.json"))
                .unwrap_or_else(|_| panic!("{name}, round {round}: a panic with {text}"));
            let used = MEMORY.peak_usage().saturating_sub(before);
            // A JSON value takes up to 80 bytes for two of its text.
            let allowed = MEMORY_MAX + 64 * text.len();
            assert!(used <= allowed, "{name}, round {round}: {used} bytes of {allowed} with {text}");
            match read {
                Ok(config) => {
                    panic::catch_unwind(|| check_accepted(&config))
                        .unwrap_or_else(|_| panic!("{name}, round {round}: accepted {text}"));
                    n_accepted += 1;
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("config.json") && !message.contains('\n'), "{message}");
                    n_refused += 1;
                }
            }
            if has_weights && round % 8 == 0 {
                fs::write(folder.path().join("config.json"), &text).unwrap();
                let opened = panic::catch_unwind(|| Checkpoint::open(folder.path()).map(drop));
                let opened = opened.unwrap_or_else(|_| panic!("{name}, round {round}: a panic with {text}"));
                let _ = opened.map_err(|error| error.to_string());
            }
        }
        let is_known = self::read(name, config).is_some();
        assert!(
            (n_accepted > 0 || !is_known) && n_refused > 0,
            "{name}: {n_accepted} accepted, {n_refused} refused"
        );
    }
}
