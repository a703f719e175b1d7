//! The tokenizer files of a Hugging Face folder.

use std::path::Path;

use serde_json::{Map, Value, json as value};

use super::error::{TokenizerError, TokenizerProblem, check_limit};
use super::infill::InfillIds;
use super::json::{self, ParsedJson};
use super::limits::VOCAB_SIZE_MAX;
use super::tokenizer::{Spec, Tokenizer, ids_of};
use refrain_containers::hf::HfFolder;
use refrain_trees::TokenId;

/// All files that this module reads.
pub const FOLDER_FILES: [&str; 6] = [
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
];

/// The content of the files beside `tokenizer.json`.
#[derive(Default)]
pub(super) struct Extras {
    bos_token: Option<String>,
    eos_token: Option<String>,
    add_bos: Option<bool>,
    eos_ids: Vec<u64>,
    template: Option<String>,
}

pub(super) fn from_folder(folder: &HfFolder) -> Result<Tokenizer, TokenizerError> {
    from_files(&folder.path().display().to_string(), &|name| Ok(folder.text(name)?))
}

/// Reads the texts of [`FOLDER_FILES`]. Error messages name `place` as their origin.
pub(super) fn from_files(
    place: &str,
    text_of: &dyn Fn(&str) -> Result<Option<String>, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    let name = |file: &str| Path::new(place).join(file).display().to_string();
    let mut extras = Extras::default();
    let config = text_of("tokenizer_config.json")?;
    if let Some(config) = &config {
        extras.read_tokenizer_config(config, &name("tokenizer_config.json"))?;
    }
    // The list of `generation_config.json` comes first; older folders have it only in the model's `config.json`.
    for file in ["generation_config.json", "config.json"] {
        if let Some(config) = text_of(file)? {
            extras.read_eos_ids(&config, &name(file))?;
        }
    }
    if let Some(template) = text_of("chat_template.jinja")? {
        extras.template = Some(template);
    }
    if let Some(text) = text_of("tokenizer.json")? {
        return Ok(from_json(&text, &name("tokenizer.json"), &extras)?);
    }
    let Some(vocabulary) = text_of("vocab.txt")? else {
        let (file, missing) = (place.to_owned(), "tokenizer.json".to_owned());
        return Err(TokenizerProblem::Missing { file, missing }.into());
    };
    let config = match &config {
        Some(config) => parse_object(config, &name("tokenizer_config.json"))?,
        None => Map::new(),
    };
    let file = name("vocab.txt");
    Ok(from_json(&of_vocabulary(&vocabulary, &config, &file)?.to_string(), &file, &extras)?)
}

/// The `tokenizer.json` of a WordPiece vocabulary with a token on each line, as BERT's first folders have it.
fn of_vocabulary(
    vocabulary: &str,
    config: &Map<String, Value>,
    file: &str,
) -> Result<Value, TokenizerProblem> {
    let flag = |field: &str, default: bool| config.get(field).and_then(Value::as_bool).unwrap_or(default);
    let token =
        |field: &str, default: &str| config.get(field).and_then(Value::as_str).unwrap_or(default).to_owned();
    let tokens: Vec<&str> = vocabulary.lines().map(str::trim_end).collect();
    let [unknown, cls, sep] =
        [("unk_token", "[UNK]"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]")].map(|(f, d)| token(f, d));
    let pad = token("pad_token", "[PAD]");
    let mask = token("mask_token", "[MASK]");
    let special = [&unknown, &cls, &sep, &pad, &mask];
    let added: Vec<Value> = (0..)
        .zip(&tokens)
        .filter(|(_, text)| special.iter().any(|special| special == *text))
        .map(|(id, text): (u64, _)| value!({ "id": id, "content": text, "special": true, "normalized": false }))
        .collect();
    check_limit(file, "tokens", tokens.len(), VOCAB_SIZE_MAX)?;
    let mut entries = Map::new();
    for (id, text) in (0_u32..).zip(&tokens) {
        if entries.insert((*text).to_owned(), id.into()).is_some() {
            let (file, token) = (file.to_owned(), (*text).to_owned());
            return Err(TokenizerProblem::DuplicateToken { file, token, id });
        }
    }
    Ok(value!({
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars", true),
            "strip_accents": config.get("strip_accents").and_then(Value::as_bool),
            "lowercase": flag("do_lower_case", true),
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": cls, "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": sep, "type_id": 0 } },
            ],
        },
        "model": { "type": "WordPiece", "unk_token": unknown, "vocab": entries },
    }))
}

pub(super) fn from_json(text: &str, file: &str, extras: &Extras) -> Result<Tokenizer, TokenizerProblem> {
    let ParsedJson { scheme, tokens, parts, first_token, last_token, inserts_space } =
        json::parse(text, file)?;
    let ids = ids_of(&tokens);
    let id_of = |text: &Option<String>| text.as_ref().and_then(|t| ids.get(t.as_str())).copied().map(TokenId);
    let bos = id_of(&extras.bos_token).or_else(|| id_of(&first_token));
    let adds_bos = extras.add_bos.unwrap_or_else(|| bos.is_some() && id_of(&first_token) == bos);
    let closing = id_of(&last_token);
    let mut eos: Vec<TokenId> = id_of(&extras.eos_token).into_iter().collect();
    for &id in &extras.eos_ids {
        match u32::try_from(id) {
            Ok(id) => eos.push(TokenId(id)),
            Err(_) => {
                let (file, vocab_size) = (file.to_owned(), tokens.len());
                return Err(TokenizerProblem::IdOutOfRange { file, field: "eos_token_id", id, vocab_size });
            }
        }
    }
    Tokenizer::build(Spec {
        parts,
        scheme,
        strips_first_space: inserts_space,
        bos,
        adds_bos,
        closing,
        eos,
        template: extras.template.clone(),
        infill: InfillIds::default(),
        tokens,
    })
}

impl Extras {
    fn read_tokenizer_config(&mut self, text: &str, file: &str) -> Result<(), TokenizerProblem> {
        let config = parse_object(text, file)?;
        let wrong = |field: &str, expected| TokenizerProblem::WrongType {
            file: file.to_owned(),
            field: field.to_owned(),
            expected,
        };
        let token = |field: &str| match config.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            // The longer form: an added token with its options.
            Some(Value::Object(token)) => match token.get("content").and_then(Value::as_str) {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(wrong(field, "a token's text")),
            },
            Some(_) => Err(wrong(field, "a token's text")),
        };
        self.bos_token = token("bos_token")?;
        self.eos_token = token("eos_token")?;
        self.add_bos = match config.get("add_bos_token") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(add)) => Some(*add),
            Some(_) => return Err(wrong("add_bos_token", "true or false")),
        };
        self.template = match config.get("chat_template") {
            None | Some(Value::Null) => None,
            Some(Value::String(template)) => Some(template.clone()),
            Some(Value::Array(templates)) => Some(default_template(templates).ok_or_else(|| {
                wrong("chat_template", "a text, or a list of {name, template} with one named default")
            })?),
            Some(_) => return Err(wrong("chat_template", "a text or a list of {name, template}")),
        };
        Ok(())
    }

    fn read_eos_ids(&mut self, text: &str, file: &str) -> Result<(), TokenizerProblem> {
        let config = parse_object(text, file)?;
        let wrong = || TokenizerProblem::WrongType {
            file: file.to_owned(),
            field: "eos_token_id".to_owned(),
            expected: "a token id or a list of them",
        };
        // The configuration of a model with several parts has the text model's ids one level deeper.
        let inner = config.get("text_config").and_then(|text| text.get("eos_token_id"));
        match config.get("eos_token_id").filter(|ids| !ids.is_null()).or(inner) {
            None | Some(Value::Null) => {}
            Some(Value::Array(ids)) => {
                for id in ids {
                    self.eos_ids.push(id.as_u64().ok_or_else(wrong)?);
                }
            }
            Some(id) => self.eos_ids.push(id.as_u64().ok_or_else(wrong)?),
        }
        Ok(())
    }
}

fn parse_object(text: &str, file: &str) -> Result<serde_json::Map<String, Value>, TokenizerProblem> {
    serde_json::from_str(text)
        .map_err(|e| TokenizerProblem::Json { file: file.to_owned(), reason: e.to_string() })
}

fn default_template(templates: &[Value]) -> Option<String> {
    let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
    templates.iter().find(named)?.get("template")?.as_str().map(str::to_owned)
}
