//! Which files of a repository are one model: a GGUF file, the parts of a split one, or a Hugging Face folder.

use std::collections::BTreeMap;

use refrain_program::args::bytes_text;
use thiserror::Error;

/// Choices that an error lists; repositories have up to about thirty quantisations.
const CHOICES_MAX: usize = 40;
/// What a folder needs beside its weights. The program reads these files, the pooling of a sentence encoder, and no others.
const COMPANIONS: [&str; 12] = [
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// The file of a module that pools, behind the number of the module.
const POOLING: &str = "_Pooling/config.json";

const GGUF: &str = ".gguf";
const SAFETENSORS: &str = ".safetensors";

/// A file with its size in bytes.
pub(crate) type Sized<'a> = (&'a str, u64);

/// The files of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Paths, the one that is opened first.
    pub(crate) files: Vec<String>,
    pub(crate) bytes: u64,
    pub(crate) kind: UnitKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitKind {
    /// A GGUF file, or the parts of one.
    Gguf,
    /// Safetensors with configuration and tokenizer.
    Folder,
}

impl Unit {
    /// The text after `OWNER/NAME:` that names this model and no other of the repository.
    pub(crate) fn label(&self) -> &str {
        match self.kind {
            UnitKind::Gguf => &self.files[0],
            UnitKind::Folder => "safetensors",
        }
    }
}

/// No model, or no single one, was named.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ChooseError {
    #[error("there is no GGUF file, and no safetensors with config.json and tokenizer.json")]
    Nothing,
    #[error("the parts of `{file}` are not complete: {given} of {expected}")]
    Incomplete { file: String, given: usize, expected: usize },
    #[error("nothing matches `{pattern}`; there are: {choices}")]
    NoMatch { pattern: String, choices: String },
    #[error("there are several models: {choices}")]
    Several { choices: String },
}

/// The models in a list of files, in the order of their names.
pub(crate) fn units(files: &[Sized<'_>]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut split: BTreeMap<(&str, usize), Vec<(usize, Sized<'_>)>> = BTreeMap::new();
    let mut ggufs: Vec<Sized<'_>> = files.iter().copied().filter(|(path, _)| is_gguf(path)).collect();
    ggufs.sort_unstable();
    for (path, bytes) in ggufs {
        match part_of(path, GGUF) {
            Some((stem, index, count)) => {
                split.entry((stem, count)).or_default().push((index, (path, bytes)))
            }
            None => units.push(Unit { files: vec![path.to_owned()], bytes, kind: UnitKind::Gguf }),
        }
    }
    for ((_, count), mut parts) in split {
        // An incomplete set is no model.
        if is_complete(&mut parts, count) {
            let bytes = parts
                .iter()
                .map(|(_, (_, bytes))| bytes)
                .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            let files = parts.iter().map(|(_, (path, _))| (*path).to_owned()).collect();
            units.push(Unit { files, bytes, kind: UnitKind::Gguf });
        }
    }
    units.sort_by(|a, b| a.files.cmp(&b.files));
    units.extend(folder(files));
    units
}

/// The Hugging Face folder in a list of files.
fn folder(files: &[Sized<'_>]) -> Option<Unit> {
    let find = |name: &str| files.iter().copied().find(|(path, _)| *path == name);
    let (_, _) = (find("config.json")?, find("tokenizer.json").or_else(|| find("vocab.txt"))?);
    let weights: Vec<Sized<'_>> = match find("model.safetensors") {
        Some(single) => vec![single],
        None => {
            find("model.safetensors.index.json")?;
            let shards = files.iter().filter_map(|file| Some((part_of(file.0, SAFETENSORS)?, *file)));
            let shards: Vec<_> = shards.filter(|((stem, ..), _)| *stem == "model").collect();
            let &((_, _, count), _) = shards.first()?;
            let mut parts: Vec<_> = shards.into_iter().map(|((_, index, _), file)| (index, file)).collect();
            if !is_complete(&mut parts, count) {
                return None;
            }
            parts.into_iter().map(|(_, file)| file).collect()
        }
    };
    let is_sharded = weights[0].0 != "model.safetensors";
    let companions = COMPANIONS.iter().filter(|name| is_sharded || **name != "model.safetensors.index.json");
    let has_modules = find("modules.json").is_some();
    let is_pooling = |path: &str| has_modules && path.matches('/').count() == 1 && path.ends_with(POOLING);
    let pooling = files.iter().copied().filter(|(path, _)| is_pooling(path));
    let all: Vec<Sized<'_>> =
        companions.filter_map(|name| find(name)).chain(pooling).chain(weights).collect();
    Some(Unit {
        files: all.iter().map(|(path, _)| (*path).to_owned()).collect(),
        bytes: all.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes)),
        kind: UnitKind::Folder,
    })
}

/// The model that `pattern` names; without a pattern the only GGUF file, or the safetensors if there is no GGUF file.
pub(crate) fn pick<'a>(units: &'a [Unit], pattern: Option<&str>) -> Result<&'a Unit, ChooseError> {
    let found: Vec<&Unit> = match pattern {
        Some(pattern) => {
            // A whole path names one file, whatever else ends like it.
            let exact = units.iter().filter(|unit| unit.label() == pattern);
            let exact: Vec<&Unit> = exact.collect();
            if exact.is_empty() {
                units.iter().filter(|unit| matches(unit, pattern)).collect()
            } else {
                exact
            }
        }
        None => {
            // Projectors of images and matrices of importance are GGUF files too, and no language models.
            let ggufs: Vec<&Unit> =
                units.iter().filter(|unit| unit.kind == UnitKind::Gguf && !is_helper(unit.label())).collect();
            if ggufs.is_empty() {
                units.iter().filter(|unit| unit.kind == UnitKind::Folder).collect()
            } else {
                ggufs
            }
        }
    };
    match (found.as_slice(), pattern) {
        ([unit], _) => Ok(unit),
        ([], None) => Err(ChooseError::Nothing),
        ([], Some(_)) if units.is_empty() => Err(ChooseError::Nothing),
        ([], Some(pattern)) => {
            let choices = choices(&units.iter().collect::<Vec<_>>());
            Err(ChooseError::NoMatch { pattern: pattern.to_owned(), choices })
        }
        _ => Err(ChooseError::Several { choices: choices(&found) }),
    }
}

/// Whether a pattern names this model: `*` and `?` match a whole path, other text is the file's name or its last part, such as `Q4_0`.
fn matches(unit: &Unit, pattern: &str) -> bool {
    if unit.kind == UnitKind::Folder {
        return false;
    }
    let path = unit.label().to_ascii_lowercase();
    let pattern = pattern.to_ascii_lowercase();
    if pattern.contains(['*', '?']) {
        return unit
            .files
            .iter()
            .any(|file| is_like(file.to_ascii_lowercase().as_bytes(), pattern.as_bytes()));
    }
    if is_helper(&path) {
        return false;
    }
    let name = path.rsplit('/').next().unwrap_or(&path);
    let whole = || name.strip_suffix(GGUF).unwrap_or(name);
    let stem = part_of(name, GGUF).map_or_else(whole, |(stem, ..)| stem);
    let is_end =
        stem.strip_suffix(&*pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']));
    is_end || name == pattern || path.split('/').rev().skip(1).any(|folder| folder == pattern)
}

/// Whether `text` is like a pattern with `*` (any bytes) and `?` (one byte).
fn is_like(text: &[u8], pattern: &[u8]) -> bool {
    // The newest `*` takes one byte more whenever the rest does not fit, so the time is at most a product of the lengths.
    let (mut at, mut next, mut star) = (0, 0, None);
    while at < text.len() {
        match pattern.get(next) {
            Some(b'*') => {
                star = Some((next, at));
                next += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[at] => (at, next) = (at + 1, next + 1),
            _ => match star {
                Some((star_next, star_at)) => {
                    star = Some((star_next, star_at + 1));
                    (at, next) = (star_at + 1, star_next + 1);
                }
                None => return false,
            },
        }
    }
    pattern[next..].iter().all(|&byte| byte == b'*')
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(GGUF)
}

fn is_helper(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

/// Sorts the parts of one model by their numbers; whether each from 1 to `count` is there once.
fn is_complete(parts: &mut [(usize, Sized<'_>)], count: usize) -> bool {
    parts.sort_unstable();
    parts.len() == count && parts.iter().enumerate().all(|(at, (index, _))| at + 1 == *index)
}

/// Stem, number and count of a part such as `model-00001-of-00003.gguf`; numbers begin at 1.
fn part_of<'a>(path: &'a str, ending: &str) -> Option<(&'a str, usize, usize)> {
    let stem = path.strip_suffix(ending)?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, index) = stem.rsplit_once('-')?;
    let number = |text: &str| {
        // Five digits; the count of some repositories has six.
        let is_number = (5..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<usize>().ok()).flatten()
    };
    let (index, count) = (number(index)?, number(count)?);
    (1..=count).contains(&index).then_some((stem, index, count))
}

/// The first file of an incomplete set, for an error that names it.
pub(crate) fn incomplete(files: &[Sized<'_>]) -> Option<ChooseError> {
    let mut counts: BTreeMap<(&str, usize), (usize, &str)> = BTreeMap::new();
    for &(path, _) in files {
        if let Some((stem, _, count)) = part_of(path, GGUF).or_else(|| part_of(path, SAFETENSORS)) {
            counts.entry((stem, count)).or_insert((0, path)).0 += 1;
        }
    }
    let found = counts.into_iter().find(|((_, expected), (given, _))| given != expected);
    found.map(|((_, expected), (given, file))| ChooseError::Incomplete {
        file: file.to_owned(),
        given,
        expected,
    })
}

fn choices(units: &[&Unit]) -> String {
    let shown: Vec<String> = units
        .iter()
        .take(CHOICES_MAX)
        .map(|unit| format!("{} ({})", unit.label(), bytes_text(unit.bytes)))
        .collect();
    let more = units.len().saturating_sub(CHOICES_MAX);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTISED: [Sized<'_>; 8] = [
        ("README.md", 1),
        ("m-Q4_0.gguf", 10),
        ("m-Q4_0_4_4.gguf", 11),
        ("m-IQ4_0.gguf", 12),
        ("m.Q8_0.gguf", 20),
        ("mmproj-Q4_0.gguf", 5),
        ("BF16/m-BF16-00001-of-00002.gguf", 30),
        ("BF16/m-BF16-00002-of-00002.gguf", 31),
    ];

    fn label(files: &[Sized<'_>], pattern: Option<&str>) -> Result<String, ChooseError> {
        pick(&units(files), pattern).map(|unit| unit.label().to_owned())
    }

    #[test]
    fn a_quantisation_names_one_file() {
        for (pattern, expected) in [
            ("Q4_0", "m-Q4_0.gguf"),
            ("q4_0", "m-Q4_0.gguf"),
            ("m-Q4_0.gguf", "m-Q4_0.gguf"),
            ("Q8_0", "m.Q8_0.gguf"),
            ("*8*", "m.Q8_0.gguf"),
            ("bf16", "BF16/m-BF16-00001-of-00002.gguf"),
            ("mmproj-Q4_0.gguf", "mmproj-Q4_0.gguf"),
        ] {
            assert_eq!(label(&QUANTISED, Some(pattern)).as_deref(), Ok(expected), "{pattern}");
        }
        let units = units(&QUANTISED);
        let split = pick(&units, Some("BF16")).unwrap();
        assert_eq!((split.files.len(), split.bytes), (2, 61));
    }

    #[test]
    fn several_choices_are_listed_with_their_sizes() {
        let error = label(&QUANTISED, None).unwrap_err().to_string();
        assert!(error.contains("m-Q4_0.gguf (10 B)") && !error.contains("mmproj"), "{error}");
        let error = label(&QUANTISED, Some("Q3_K")).unwrap_err().to_string();
        assert!(error.contains("`Q3_K`") && error.contains("m.Q8_0.gguf"), "{error}");
        let several = label(&QUANTISED, Some("*q4*")).unwrap_err();
        assert!(matches!(several, ChooseError::Several { .. }), "{several}");
        assert_eq!(label(&[("README.md", 1)], None), Err(ChooseError::Nothing));
    }

    #[test]
    fn safetensors_come_with_configuration_and_tokenizer() {
        let mut files = vec![
            ("config.json", 1),
            ("tokenizer.json", 2),
            ("model.safetensors", 3),
            ("pytorch_model.bin", 9),
            ("onnx/model.onnx", 9),
            ("generation_config.json", 1),
        ];
        let units_of = units(&files);
        let unit = pick(&units_of, None).unwrap();
        assert_eq!(
            unit.files,
            ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]
        );
        assert_eq!(unit.bytes, 7);
        files.extend([("modules.json", 1), ("1_Pooling/config.json", 1), ("a/1_Pooling/config.json", 1)]);
        let encoder = units(&files);
        let encoder = &pick(&encoder, None).unwrap().files;
        assert!(encoder.len() == 6 && encoder.contains(&"1_Pooling/config.json".to_owned()), "{encoder:?}");
        files.push(("m.gguf", 5));
        assert_eq!(label(&files, None).as_deref(), Ok("m.gguf"));
        assert_eq!(label(&files, Some("safetensors")).as_deref(), Ok("safetensors"));

        let sharded = [
            ("config.json", 1),
            ("tokenizer.json", 2),
            ("model.safetensors.index.json", 1),
            ("model-00001-of-00002.safetensors", 3),
            ("model-00002-of-00002.safetensors", 3),
        ];
        assert_eq!(pick(&units(&sharded), None).unwrap().files.len(), 5);
        assert_eq!(label(&sharded[1..], None), Err(ChooseError::Nothing), "without config.json");
        assert_eq!(
            label(&sharded[..4], None),
            Err(ChooseError::Nothing),
            "one of two shards, as after an unfinished pull"
        );
        assert!(incomplete(&sharded[..4]).unwrap().to_string().contains("1 of 2"));
    }

    #[test]
    fn an_incomplete_set_is_no_model() {
        let files = [("m-00001-of-00003.gguf", 1), ("m-00003-of-00003.gguf", 1)];
        assert_eq!(label(&files, None), Err(ChooseError::Nothing));
        let named = incomplete(&files).unwrap().to_string();
        assert!(named.contains("2 of 3"), "{named}");
        assert_eq!(units(&[("m-00000-of-00000.gguf", 1)]).len(), 1, "no part's name");
    }

    /// The obvious matcher.
    fn is_like_slowly(text: &[u8], pattern: &[u8]) -> bool {
        match (pattern.first(), text.first()) {
            (None, first) => first.is_none(),
            (Some(b'*'), _) => (0..=text.len()).any(|at| is_like_slowly(&text[at..], &pattern[1..])),
            (Some(&byte), Some(&first)) => {
                (byte == b'?' || byte == first) && is_like_slowly(&text[1..], &pattern[1..])
            }
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_obvious_matcher_does(text in "[ab.]{0,8}", pattern in "[ab.*?]{0,6}") {
            prop_assert_eq!(is_like(text.as_bytes(), pattern.as_bytes()), is_like_slowly(text.as_bytes(), pattern.as_bytes()));
        }

        #[test]
        fn every_model_is_named_by_its_label(names in proptest::collection::btree_set("[a-c]{1,2}(-Q[48])?(-0000[12]-of-00002)?\\.gguf", 0..8)) {
            let files: Vec<Sized<'_>> = names.iter().map(|name| (name.as_str(), 1)).collect();
            let units = units(&files);
            for unit in &units {
                prop_assert_eq!(pick(&units, Some(unit.label())), Ok(unit));
            }
        }
    }
}
