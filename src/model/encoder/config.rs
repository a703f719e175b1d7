//! The hyper-parameters of an encoder: `config.json`, and what sentence-transformers writes beside it.

use serde_json::Value;

use crate::model::arch::keys::Object;
use crate::model::checkpoint::CheckpointError;
use crate::model::config::{
    ConfigError, FFN_DIM_MAX, HEAD_DIM_MAX, HIDDEN_DIM_MAX, N_HEADS_MAX, N_LAYERS_MAX, VOCAB_SIZE_MAX,
};
use refrain_containers::hf::HfError;

/// Maximum rows of the table of positions (published: up to 8,194).
pub const POSITIONS_MAX: usize = 1 << 16;
/// Maximum kinds of parts (published: up to 4).
const TYPES_MAX: usize = 1 << 10;
/// Maximum length of a prompt, in bytes (published: about 100).
pub const PROMPT_BYTES_MAX: usize = 4096;
/// Maximum modules of a folder (published: up to 4).
const MODULES_MAX: usize = 16;
/// Tokens around a text, and one of it.
const TOKENS_MIN: usize = 3;

const CONFIG: &str = "config.json";
const MODULES: &str = "modules.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const TOKENIZER: &str = "tokenizer_config.json";
/// The names that sentence-transformers gives the file with the length of texts; the first that is there counts.
const LENGTHS: [&str; 3] =
    ["sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"];

/// The files that [`parse_encoder_config`] reads, with the usual place of the pooling.
pub const CONFIG_FILES: [&str; 8] =
    [CONFIG, MODULES, PROMPTS, TOKENIZER, LENGTHS[0], LENGTHS[1], LENGTHS[2], "1_Pooling/config.json"];

/// A family's name in `config.json`, and whether its positions begin behind the number of the padding token.
const FAMILIES: [(&str, bool); 3] = [("bert", false), ("roberta", true), ("xlm-roberta", true)];

/// How the rows of a text become its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows, those of the tokens around the text included.
    Mean,
    /// The first row.
    FirstToken,
}

/// The hyper-parameters of an encoder, within their limits.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// Layers.
    pub n_layers: usize,
    /// Elements of a row, and of a vector.
    pub hidden_dim: usize,
    /// Heads, which divide a row.
    pub n_heads: usize,
    /// Elements inside the feed-forward part.
    pub ffn_dim: usize,
    /// Rows of the table of words.
    pub vocab_size: usize,
    /// Rows of the table of positions.
    pub n_positions: usize,
    /// The row of a text's first token in that table.
    pub first_position: usize,
    /// Rows of the table of kinds of parts. Texts are of the first kind.
    pub n_types: usize,
    /// Added to the variance in layer norms.
    pub norm_eps: f32,
    /// How rows become a vector.
    pub pooling: Pooling,
    /// Tokens of a text that are read, those around it included.
    pub tokens_max: usize,
    /// Whether texts are converted to lower case before they are encoded.
    pub lowercases: bool,
    /// Precedes a request.
    pub query_prompt: String,
    /// Precedes a passage.
    pub passage_prompt: String,
}

/// Whether a `config.json` is that of an encoder of this family. One that is no JSON is none.
pub fn is_encoder(config: &str) -> bool {
    let config: Option<Value> = serde_json::from_str(config).ok();
    let name = config.as_ref().and_then(|config| config.get("model_type")?.as_str());
    name.is_some_and(|name| FAMILIES.iter().any(|(family, _)| *family == name))
}

/// Reads the files of a folder. `text_of` gives the text of a file, and `None` if there is none.
///
/// # Errors
/// A file cannot be read, a field is missing, has another type or is outside its limits, or the folder asks for something that is not
/// implemented: another activation or pooling, positions that are no table, further modules.
pub fn parse_encoder_config(
    place: &str,
    text_of: &dyn Fn(&str) -> Result<Option<String>, HfError>,
) -> Result<EncoderConfig, CheckpointError> {
    let folder = Folder { place, text_of };
    let Some(config) = folder.json(CONFIG)? else {
        return Err(HfError::MissingFile { folder: place.to_owned(), file: CONFIG }.into());
    };
    let mut parsed = of_model(&config.object()?)?;
    parsed.pooling = pooling(&folder, parsed.hidden_dim)?;
    parsed.tokens_max = parsed.n_positions - parsed.first_position;
    let mut stated = None;
    for name in LENGTHS {
        if let Some(lengths) = folder.json(name)? {
            let lengths = lengths.object()?;
            stated = lengths.count("max_seq_length")?;
            parsed.lowercases = lengths.flag("do_lower_case")?.unwrap_or(false);
            if let Some(given) = stated {
                lengths.check_count("max_seq_length", given, TOKENS_MIN, usize::MAX)?;
            }
            break;
        }
    }
    // Without a length of its own, a folder has that of its tokenizer; some write 10³⁰.
    if stated.is_none()
        && let Some(tokenizer) = folder.json(TOKENIZER)?
    {
        let given = tokenizer.object()?.number("model_max_length")?;
        stated = given.filter(|&given| given >= TOKENS_MIN as f64).map(|given| given.min(1e9) as usize);
    }
    parsed.tokens_max = stated.map_or(parsed.tokens_max, |stated| stated.min(parsed.tokens_max));
    if let Some(prompts) = folder.json(PROMPTS)? {
        read_prompts(&prompts.object()?, &mut parsed)?;
    }
    Ok(parsed)
}

/// The fields of `config.json`.
fn of_model(config: &Object<'_>) -> Result<EncoderConfig, CheckpointError> {
    let name = config.required_text("model_type")?;
    let Some(&(_, behind_padding)) = FAMILIES.iter().find(|(family, _)| *family == name) else {
        return Err(config.unsupported("model_type", name).into());
    };
    let count = |field: &str, min: usize, max: usize| -> Result<usize, ConfigError> {
        let value = config.required_count(field)?;
        config.check_count(field, value, min, max)?;
        Ok(value)
    };
    let hidden_dim = count("hidden_size", 1, HIDDEN_DIM_MAX)?;
    let n_heads = count("num_attention_heads", 1, N_HEADS_MAX)?;
    if !hidden_dim.is_multiple_of(n_heads) {
        let (left, right) =
            (format!("hidden_size = {hidden_dim}"), format!("num_attention_heads = {n_heads}"));
        return Err(ConfigError::Inconsistent { file: config.file().to_owned(), left, right }.into());
    }
    config.check_count("hidden_size / num_attention_heads", hidden_dim / n_heads, 1, HEAD_DIM_MAX)?;
    let act = config.text("hidden_act")?.unwrap_or("gelu");
    if act != "gelu" {
        return Err(config.unsupported("hidden_act", act).into());
    }
    let positions = config.text("position_embedding_type")?.unwrap_or("absolute");
    if positions != "absolute" {
        return Err(config.unsupported("position_embedding_type", positions).into());
    }
    for field in ["is_decoder", "add_cross_attention"] {
        if config.flag(field)?.unwrap_or(false) {
            return Err(config.unsupported(field, true).into());
        }
    }
    if let Some(value) = config.get("quantization_config") {
        return Err(config.unsupported("quantization_config", value).into());
    }
    let n_positions = count("max_position_embeddings", TOKENS_MIN, POSITIONS_MAX)?;
    // Roberta's positions follow from those of padding, whose number they begin behind.
    let first_position = match behind_padding {
        true => config.count("pad_token_id")?.unwrap_or(1).saturating_add(1),
        false => 0,
    };
    config.check_count("pad_token_id", first_position, 0, n_positions - TOKENS_MIN)?;
    let norm_eps = config.number("layer_norm_eps")?.unwrap_or(1e-12) as f32;
    if !(norm_eps > 0.0 && norm_eps < 1.0) {
        return Err(config.out_of_range("layer_norm_eps", norm_eps, "a number above 0 and below 1").into());
    }
    Ok(EncoderConfig {
        n_layers: count("num_hidden_layers", 1, N_LAYERS_MAX)?,
        hidden_dim,
        n_heads,
        ffn_dim: count("intermediate_size", 1, FFN_DIM_MAX)?,
        vocab_size: count("vocab_size", 1, VOCAB_SIZE_MAX)?,
        n_positions,
        first_position,
        n_types: count("type_vocab_size", 1, TYPES_MAX)?,
        norm_eps,
        pooling: Pooling::Mean,
        tokens_max: n_positions - first_position,
        lowercases: false,
        query_prompt: String::new(),
        passage_prompt: String::new(),
    })
}

/// The pooling that the modules name. A folder without modules has the mean, as in sentence-transformers.
fn pooling(folder: &Folder<'_>, hidden_dim: usize) -> Result<Pooling, CheckpointError> {
    let Some(modules) = folder.json(MODULES)? else { return Ok(Pooling::Mean) };
    let file = &modules.file;
    let wrong = |expected| ConfigError::WrongType {
        file: file.clone(),
        field: "modules".to_owned(),
        expected,
        found: modules.value.to_string().chars().take(60).collect(),
    };
    let list = modules.value.as_array().ok_or_else(|| wrong("a list of modules"))?;
    if list.len() > MODULES_MAX {
        let (value, allowed) = (list.len().to_string(), format!("0 to {MODULES_MAX}"));
        let (file, field) = (file.clone(), "modules".to_owned());
        return Err(ConfigError::OutOfRange { file, field, value, allowed }.into());
    }
    let mut found = Pooling::Mean;
    for module in list {
        let module = Object::new(file, "", module.as_object().ok_or_else(|| wrong("a list of objects"))?);
        let (kind, path) = (module.required_text("type")?, module.text("path")?.unwrap_or_default());
        match kind.rsplit('.').next().unwrap_or(kind) {
            "Transformer" if path.is_empty() => {}
            "Pooling" => found = of_pooling(folder, &module, path, hidden_dim)?,
            // Vectors have length 1 in any case: their dot products are compared.
            "Normalize" => {}
            "Transformer" => return Err(module.unsupported("path", path).into()),
            _ => return Err(module.unsupported("type", kind).into()),
        }
    }
    Ok(found)
}

fn of_pooling(
    folder: &Folder<'_>,
    module: &Object<'_>,
    path: &str,
    hidden_dim: usize,
) -> Result<Pooling, CheckpointError> {
    // A name inside the folder, on every system.
    let is_plain = !path.is_empty()
        && path.len() <= 255
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if !is_plain {
        return Err(module.unsupported("path", path).into());
    }
    let name = format!("{path}/{CONFIG}");
    let Some(config) = folder.json(&name)? else {
        return Err(ConfigError::Missing { file: module.file().to_owned(), field: name }.into());
    };
    let config = config.object()?;
    if let Some(dimension) = config.count("word_embedding_dimension")?
        && dimension != hidden_dim
    {
        let (left, right) =
            (format!("word_embedding_dimension = {dimension}"), format!("hidden_size = {hidden_dim}"));
        return Err(ConfigError::Inconsistent { file: config.file().to_owned(), left, right }.into());
    }
    if config.flag("include_prompt")? == Some(false) {
        return Err(config.unsupported("include_prompt", false).into());
    }
    if let Some(mode) = config.text("pooling_mode")? {
        return match mode {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::FirstToken),
            _ => Err(config.unsupported("pooling_mode", mode).into()),
        };
    }
    let mut found = None;
    for (mode, value) in config.entries() {
        if !mode.starts_with("pooling_mode_") || value.as_bool() == Some(false) {
            continue;
        }
        let pooling = match mode {
            "pooling_mode_mean_tokens" => Pooling::Mean,
            "pooling_mode_cls_token" => Pooling::FirstToken,
            _ => return Err(config.unsupported(mode, value).into()),
        };
        if found.replace(pooling).is_some() || value.as_bool().is_none() {
            return Err(config.unsupported(mode, value).into());
        }
    }
    found.ok_or_else(|| config.unsupported("pooling_mode", "none").into())
}

/// The prompts of requests and passages, under the names that sentence-transformers looks for.
fn read_prompts(config: &Object<'_>, parsed: &mut EncoderConfig) -> Result<(), CheckpointError> {
    let Some(prompts) = config.object("prompts")? else { return Ok(()) };
    let prompt = |names: &[&str]| -> Result<String, ConfigError> {
        for name in names {
            if let Some(prompt) = prompts.text(name)? {
                prompts.check_count(name, prompt.len(), 0, PROMPT_BYTES_MAX)?;
                return Ok(prompt.to_owned());
            }
        }
        Ok(String::new())
    };
    let default = config.text("default_prompt_name")?;
    let names = |own: &[&'static str]| own.iter().copied().chain(default).collect::<Vec<_>>();
    parsed.query_prompt = prompt(&names(&["query"]))?;
    parsed.passage_prompt = prompt(&names(&["document", "passage", "corpus"]))?;
    Ok(())
}

/// The files of a model.
struct Folder<'a> {
    place: &'a str,
    text_of: &'a dyn Fn(&str) -> Result<Option<String>, HfError>,
}

impl Folder<'_> {
    fn json(&self, name: &str) -> Result<Option<JsonFile>, CheckpointError> {
        let Some(text) = (self.text_of)(name)? else { return Ok(None) };
        let file = std::path::Path::new(self.place).join(name).display().to_string();
        match serde_json::from_str(&text) {
            Ok(value) => Ok(Some(JsonFile { file, value })),
            Err(error) => Err(ConfigError::NotJson { file, reason: error.to_string() }.into()),
        }
    }
}

struct JsonFile {
    file: String,
    value: Value,
}

impl JsonFile {
    fn object(&self) -> Result<Object<'_>, ConfigError> {
        let map = self.value.as_object().ok_or_else(|| ConfigError::NotJson {
            file: self.file.clone(),
            reason: "not an object".to_owned(),
        })?;
        Ok(Object::new(&self.file, "", map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINILM: &str = r#"{"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6,
        "intermediate_size": 1536, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "type_vocab_size": 2, "vocab_size": 30522, "pad_token_id": 0, "position_embedding_type": "absolute"}"#;

    /// The configuration of these files, `config.json` first with changed fields.
    fn parsed(changes: Value, files: &[(&str, Value)]) -> Result<EncoderConfig, String> {
        let mut config: Value = serde_json::from_str(MINILM).unwrap();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        let text_of = |name: &str| {
            let other = files.iter().find(|(file, _)| *file == name).map(|(_, value)| value.to_string());
            Ok(if name == CONFIG { Some(config.to_string()) } else { other })
        };
        parse_encoder_config("folder", &text_of).map_err(|error| error.to_string())
    }

    fn modules(path: &str) -> Value {
        let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
        json!([module("Transformer", ""), module("Pooling", path), module("Normalize", "2_Normalize")])
    }

    #[test]
    fn the_files_of_sentence_transformers_count() {
        let plain = parsed(json!({}), &[]).unwrap();
        assert_eq!((plain.pooling, plain.tokens_max, plain.first_position), (Pooling::Mean, 512, 0));
        let files = [
            (MODULES, modules("1_Pooling")),
            (
                "1_Pooling/config.json",
                json!({"word_embedding_dimension": 384, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}),
            ),
            (LENGTHS[0], json!({"max_seq_length": 256, "do_lower_case": true})),
            (PROMPTS, json!({"prompts": {"query": "query: ", "passage": "passage: "}})),
            (TOKENIZER, json!({"model_max_length": 128})),
        ];
        let all = parsed(json!({}), &files).unwrap();
        assert_eq!((all.pooling, all.tokens_max, all.lowercases), (Pooling::FirstToken, 256, true));
        assert_eq!((&*all.query_prompt, &*all.passage_prompt), ("query: ", "passage: "));
        let cut = [(TOKENIZER, json!({"model_max_length": 128}))];
        assert_eq!(parsed(json!({}), &cut).unwrap().tokens_max, 128);
        let any = [(TOKENIZER, json!({"model_max_length": 1e30}))];
        assert_eq!(parsed(json!({}), &any).unwrap().tokens_max, 512);
        let roberta = json!({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1});
        let roberta = parsed(roberta, &[]).unwrap();
        assert_eq!((roberta.first_position, roberta.tokens_max), (2, 512));
    }

    #[test]
    fn what_is_not_computed_is_refused_with_file_and_field() {
        let huge = 1_u64 << 40;
        for (changes, has) in [
            (json!({"model_type": "distilbert"}), "`model_type` = distilbert"),
            (json!({"hidden_act": "gelu_new"}), "`hidden_act` = gelu_new"),
            (json!({"position_embedding_type": "relative_key"}), "relative_key"),
            (json!({"is_decoder": true}), "`is_decoder` = true"),
            (json!({"hidden_size": huge}), "`hidden_size` is 1099511627776, allowed is 1 to 262144"),
            (json!({"hidden_size": 385}), "`hidden_size = 385` and `num_attention_heads = 12`"),
            (json!({"num_hidden_layers": huge}), "`num_hidden_layers`"),
            (json!({"num_attention_heads": 0}), "`num_attention_heads` is 0, allowed is 1 to"),
            (json!({"intermediate_size": huge}), "`intermediate_size`"),
            (json!({"vocab_size": huge}), "`vocab_size`"),
            (json!({"type_vocab_size": 0}), "`type_vocab_size`"),
            (json!({"max_position_embeddings": huge}), "`max_position_embeddings`"),
            (json!({"max_position_embeddings": 2}), "`max_position_embeddings`"),
            (json!({"model_type": "roberta", "pad_token_id": 511}), "`pad_token_id`"),
            (json!({"layer_norm_eps": -1.0}), "`layer_norm_eps`"),
            (json!({"hidden_size": "384"}), "`hidden_size` should be"),
            (json!({"vocab_size": null}), "`vocab_size` is missing"),
        ] {
            let error = parsed(changes.clone(), &[]).unwrap_err();
            assert!(error.contains("folder/config.json") && error.contains(has), "{changes}: {error}");
        }
        let pooling = |config: Value| {
            parsed(json!({}), &[(MODULES, modules("1_Pooling")), ("1_Pooling/config.json", config)])
                .unwrap_err()
        };
        for (config, has) in [
            (json!({"pooling_mode_max_tokens": true}), "`pooling_mode_max_tokens` = true"),
            (json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}), "pooling_mode"),
            (json!({"pooling_mode_mean_tokens": "yes"}), "`pooling_mode_mean_tokens` = \"yes\""),
            (json!({"pooling_mode_mean_tokens": false}), "`pooling_mode` = none"),
            (json!({"pooling_mode": "lasttoken"}), "`pooling_mode` = lasttoken"),
            (
                json!({"word_embedding_dimension": 768, "pooling_mode_mean_tokens": true}),
                "do not fit together",
            ),
            (json!([]), "not an object"),
        ] {
            let error = pooling(config.clone());
            assert!(error.contains("1_Pooling/config.json") && error.contains(has), "{config}: {error}");
        }
        for (name, value, has) in [
            (MODULES, modules("../other"), "`path` = ../other"),
            (MODULES, modules("1_Pooling"), "`1_Pooling/config.json` is missing"),
            (
                MODULES,
                json!([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]),
                "models.Dense",
            ),
            (MODULES, json!([{"type": "models.Transformer", "path": "0_Transformer"}]), "0_Transformer"),
            (MODULES, json!({}), "a list of modules"),
            (MODULES, json!(vec![json!({}); 20]), "`modules` is 20"),
            (LENGTHS[0], json!({"max_seq_length": 2}), "`max_seq_length` is 2"),
            (PROMPTS, json!({"prompts": {"query": "x".repeat(5000)}}), "is 5000, allowed is 0 to 4096"),
        ] {
            let error = parsed(json!({}), &[(name, value)]).unwrap_err();
            assert!(error.contains(&format!("folder/{name}")) && error.contains(has), "{error}");
        }
    }
}
