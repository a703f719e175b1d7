//! Fields and parts of answers that several endpoints have.

use refrain::TokenId;
use refrain_assistant::Priority;
use serde_json::{Value, json};

use crate::api::shared::{stops, window};
use crate::error::{ApiError, ApiResult};
use crate::json::fields::{Fields, is_empty};
use crate::work::{Annotation, Dry, Effort, Finish, Format, Origin, SamplingFields, Usage};

/// When a field means its absence.
#[derive(Clone, Copy)]
enum Neutral {
    Never,
    Number(f64),
    Flag(bool),
}

/// Fields of other servers that would change the output, which this server cannot honour, and the values at which they do not.
const UNSUPPORTED: [(&str, Neutral); 57] = [
    // Filters and samplers.
    ("typical_p", Neutral::Number(1.0)),
    ("typical", Neutral::Number(1.0)),
    ("tfs_z", Neutral::Number(1.0)),
    ("tfs", Neutral::Number(1.0)),
    ("top_a", Neutral::Number(0.0)),
    ("top_n_sigma", Neutral::Number(-1.0)),
    ("epsilon_cutoff", Neutral::Number(0.0)),
    ("eta_cutoff", Neutral::Number(0.0)),
    ("mirostat", Neutral::Number(0.0)),
    ("mirostat_mode", Neutral::Number(0.0)),
    ("dynatemp_range", Neutral::Number(0.0)),
    ("xtc_probability", Neutral::Number(0.0)),
    ("smoothing_factor", Neutral::Number(0.0)),
    ("guidance_scale", Neutral::Number(1.0)),
    ("cfg_scale", Neutral::Number(1.0)),
    ("negative_prompt", Neutral::Never),
    ("samplers", Neutral::Never),
    ("sampler_seq", Neutral::Never),
    ("sampler_order", Neutral::Never),
    ("no_repeat_ngram_size", Neutral::Number(0.0)),
    ("logits_processors", Neutral::Never),
    ("custom_token_bans", Neutral::Never),
    ("bad_words", Neutral::Never),
    ("banned_strings", Neutral::Never),
    ("banned_tokens", Neutral::Never),
    ("allowed_token_ids", Neutral::Never),
    // Searches over several outputs.
    ("use_beam_search", Neutral::Flag(false)),
    ("num_beams", Neutral::Number(1.0)),
    ("length_penalty", Neutral::Number(1.0)),
    // The end of an output.
    ("ignore_eos", Neutral::Flag(false)),
    ("ban_eos_token", Neutral::Flag(false)),
    ("min_tokens", Neutral::Number(0.0)),
    ("min_length", Neutral::Number(0.0)),
    ("stop_token_ids", Neutral::Never),
    ("include_stop_str_in_output", Neutral::Flag(false)),
    ("skip_special_tokens", Neutral::Flag(true)),
    // Grammars.
    ("grammar", Neutral::Never),
    ("grammar_string", Neutral::Never),
    ("json_schema", Neutral::Never),
    ("guided_json", Neutral::Never),
    ("guided_regex", Neutral::Never),
    ("guided_choice", Neutral::Never),
    ("guided_grammar", Neutral::Never),
    ("structured_outputs", Neutral::Never),
    // The prompt, and the model.
    ("chat_template", Neutral::Never),
    ("truncate_prompt_tokens", Neutral::Never),
    ("images", Neutral::Never),
    ("plugins", Neutral::Never),
    ("search_parameters", Neutral::Never),
    ("lora", Neutral::Never),
    ("prompt_embeds", Neutral::Never),
    // The reasoning, and what an answer shows.
    ("thinking_token_budget", Neutral::Never),
    ("include_reasoning", Neutral::Flag(true)),
    ("prompt_logprobs", Neutral::Never),
    ("logprob_token_ids", Neutral::Never),
    ("return_tokens_as_token_ids", Neutral::Flag(false)),
    ("n_probs", Neutral::Number(0.0)),
];

/// Refuses what would change the output and is not supported, whatever endpoint the field is meant for.
pub(crate) fn refuse_unsupported(fields: &mut Fields<'_>) -> ApiResult<()> {
    refuse_unsupported_but(fields, &[])
}

/// As [`refuse_unsupported`], without some fields, which have no effect.
pub(crate) fn refuse_unsupported_but(fields: &mut Fields<'_>, noted: &[&str]) -> ApiResult<()> {
    for (name, neutral) in UNSUPPORTED.iter().filter(|(name, _)| !noted.contains(name)) {
        let (name, neutral) = (*name, *neutral);
        let is_neutral = |value: &Value| match (value, neutral) {
            (value, _) if is_empty(value) => true,
            (Value::Number(number), Neutral::Number(neutral)) => number.as_f64() == Some(neutral),
            (Value::Bool(flag), Neutral::Flag(neutral)) => *flag == neutral,
            _ => false,
        };
        fields.refuse_unless(name, is_neutral, "is not supported, and would change the output")?;
    }
    Ok(())
}

/// The field that [`grammar`] reads.
pub(crate) const GRAMMAR: &str = "grammar";

/// `grammar`, as llama.cpp has it. A request has one form of its output.
pub(crate) fn grammar(fields: &mut Fields<'_>, format: Format) -> ApiResult<Format> {
    match (fields.string(GRAMMAR)?.filter(|grammar| !grammar.is_empty()), format) {
        (None, format) => Ok(format),
        (Some(grammar), Format::Text) => Ok(Format::Gbnf(grammar.to_owned())),
        (Some(_), _) => {
            Err(ApiError::field(GRAMMAR, "is not supported together with a format of the answer"))
        }
    }
}

/// Sequence breakers of DRY, as the engine bounds them.
const BREAKERS_MAX: usize = 64;
const BREAKER_BYTES_MAX: usize = 256;
/// Biases of a request: OpenAI's limit is the same order.
const BIAS_MAX: usize = 1024;

/// Temperature, filters, penalties, biases, seed.
pub(crate) fn sampling(fields: &mut Fields<'_>) -> ApiResult<SamplingFields> {
    Ok(SamplingFields {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as usize),
        min_p: fields.number("min_p", 0.0..=1.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        // The second name is that of llama.cpp.
        repetition_penalty: fields
            .number("repetition_penalty", 0.01..=100.0)?
            .or(fields.number("repeat_penalty", 0.01..=100.0)?),
        penalty_window: window(fields, "repeat_last_n")?,
        dry: dry(fields)?,
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
    })
}

/// The options of DRY, by the names of llama.cpp.
fn dry(fields: &mut Fields<'_>) -> ApiResult<Dry> {
    let breakers = fields.value("dry_sequence_breakers").is_some();
    Ok(Dry {
        multiplier: fields.number("dry_multiplier", 0.0..=100.0)?,
        base: fields.number("dry_base", 1.0..=10.0)?,
        allowed_length: fields.count("dry_allowed_length", 1)?,
        window: window(fields, "dry_penalty_last_n")?,
        breakers: match breakers {
            true => Some(fields.texts("dry_sequence_breakers", BREAKERS_MAX, BREAKER_BYTES_MAX)?),
            false => None,
        },
    })
}

fn logit_bias(fields: &mut Fields<'_>) -> ApiResult<Vec<(TokenId, f32)>> {
    let path = fields.path("logit_bias");
    let bias = || json!({ "type": "number", "minimum": -100, "maximum": 100 });
    let schema = || json!({ "type": "object", "additionalProperties": bias() });
    let map = match fields.described("logit_bias", schema) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(ApiError::field(path, "an object of token ids and numbers is expected")),
    };
    if map.len() > BIAS_MAX {
        return Err(ApiError::field(path, format!("{} entries are more than {BIAS_MAX}", map.len())));
    }
    let entry = |(token, bias): (&String, &Value)| {
        // In one form only, so that no token is named twice.
        let id = token.parse::<u32>().ok().filter(|id| id.to_string() == *token);
        let token = id.map(TokenId);
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        Some((token?, bias? as f32))
    };
    let entries: Option<Vec<_>> = map.iter().map(entry).collect();
    entries.ok_or_else(|| ApiError::field(path, "token ids with numbers in -100..=100 are expected"))
}

/// `stop`: a string, or several.
pub(crate) fn stop(fields: &mut Fields<'_>) -> ApiResult<Vec<String>> {
    stops(fields, "stop")
}

/// `service_tier`: `flex` is background work.
pub(crate) fn priority(fields: &mut Fields<'_>) -> ApiResult<Priority> {
    let tiers = ["auto", "default", "priority", "flex", "scale"];
    Ok(match fields.choice("service_tier", &tiers)? {
        Some(3) => Priority::Background,
        _ => Priority::Interactive,
    })
}

/// The tier of a priority.
pub(crate) fn tier_name(priority: Priority) -> &'static str {
    match priority {
        Priority::Background => "flex",
        Priority::Interactive | Priority::Foreground => "default",
    }
}

/// `model`; absent: the first model of the server.
pub(crate) fn model(fields: &mut Fields<'_>) -> ApiResult<Option<String>> {
    Ok(fields.string("model")?.map(str::to_owned))
}

/// Levels of reasoning. `medium` is the default of the OpenAI API, and means that of the model where the template knows no levels.
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// `reasoning_effort`, which is at `path`: whether the model reasons, and how much.
pub(crate) fn effort(
    fields: &mut Fields<'_>,
    name: &'static str,
    path: &'static str,
) -> ApiResult<(Option<bool>, Option<Effort>)> {
    Ok(match fields.choice(name, &EFFORTS)? {
        None => (None, None),
        Some(0) => (Some(false), None),
        Some(index) => (None, Some(Effort { level: EFFORTS[index], neutral: "medium", path })),
    })
}

/// Why an output has ended.
pub(crate) fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

pub(crate) fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": { "cached_tokens": usage.cached, "audio_tokens": 0 },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted_prediction,
            "rejected_prediction_tokens": usage.rejected_prediction,
            "audio_tokens": 0,
        },
    })
}

/// The fields of a citation in the API's form; further fields name the place in the document.
pub(crate) fn annotation_json(annotation: &Annotation) -> Value {
    json!({
        "start_index": annotation.start,
        "end_index": annotation.end,
        "title": annotation.title,
        "url": annotation.url,
        "document": annotation.document,
        "document_start": annotation.place.start,
        "document_end": annotation.place.end,
        "is_exact": annotation.is_exact,
    })
}

/// The name of a token's origin.
pub(crate) fn origin_name(origin: &Origin) -> &str {
    match origin {
        Origin::Target => "target",
        Origin::Draft(name) => name.as_str(),
    }
}
