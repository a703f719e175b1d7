//! The tokenizer files of a Hugging Face folder.

use std::path::Path;

use serde_json::Value;

use super::json::{self, ParsedJson};
use super::{Spec, Tokenizer, TokenizerError, TokenizerProblem, ids_of};
use refrain_containers::hf::HfFolder;
use refrain_trees::TokenId;

/// All files that this module reads.
pub const FOLDER_FILES: [&str; 5] = [
    "tokenizer.json",
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
    let Some(text) = text_of("tokenizer.json")? else {
        let (file, missing) = (place.to_owned(), "tokenizer.json".to_owned());
        return Err(TokenizerProblem::Missing { file, missing }.into());
    };
    let name = |file: &str| Path::new(place).join(file).display().to_string();
    let mut extras = Extras::default();
    if let Some(config) = text_of("tokenizer_config.json")? {
        extras.read_tokenizer_config(&config, &name("tokenizer_config.json"))?;
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
    Ok(from_json(&text, &name("tokenizer.json"), &extras)?)
}

pub(super) fn from_json(text: &str, file: &str, extras: &Extras) -> Result<Tokenizer, TokenizerProblem> {
    let ParsedJson { scheme, tokens, parts, first_token, inserts_space } = json::parse(text, file)?;
    let ids = ids_of(&tokens);
    let id_of = |text: &Option<String>| text.as_ref().and_then(|t| ids.get(t.as_str())).copied().map(TokenId);
    let bos = id_of(&extras.bos_token).or_else(|| id_of(&first_token));
    let adds_bos = extras.add_bos.unwrap_or_else(|| bos.is_some() && id_of(&first_token) == bos);
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
        eos,
        template: extras.template.clone(),
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
