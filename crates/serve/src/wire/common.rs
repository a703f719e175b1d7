//! Fields that several endpoints have.

use refrain::TokenId;
use refrain_assistant::Priority;
use serde_json::{Value, json};

use super::fields::Fields;
use crate::error::{ApiError, ApiResult};
use crate::work::{Annotation, Effort, Origin, SamplingFields, TokenLogprob, Usage};

/// Fields that say who asks, or what is stored elsewhere. They change no output.
pub(crate) const IGNORED: [&str; 8] = [
    "user",
    "safety_identifier",
    "store",
    "prompt_cache_retention",
    "prompt_cache_options",
    "cache_prompt",
    "id_slot",
    "request_id",
];

/// Maximum bytes of keys and names.
pub(crate) const KEY_BYTES_MAX: usize = 512;
/// Stop strings of a request.
const STOP_MAX: usize = 4;
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
        repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0)?,
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
    })
}

fn logit_bias(fields: &mut Fields<'_>) -> ApiResult<Vec<(TokenId, f32)>> {
    let path = fields.path("logit_bias");
    let map = match fields.value("logit_bias") {
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

/// `stop`: a string or up to four.
pub(crate) fn stop(fields: &mut Fields<'_>) -> ApiResult<Vec<String>> {
    let path = fields.path("stop");
    let wrong = || ApiError::field(&path, format!("a string or 1 to {STOP_MAX} strings are expected"));
    let texts: Vec<String> = match fields.value("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() <= STOP_MAX => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    match texts.iter().position(|text| !(1..=refrain::STOP_BYTES_MAX).contains(&text.len())) {
        Some(index) => {
            let (given, max) = (texts[index].len(), refrain::STOP_BYTES_MAX);
            Err(ApiError::field(path, format!("string {index} has {given} bytes, outside 1..={max}")))
        }
        None => Ok(texts),
    }
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

/// `metadata`: pairs of strings without a meaning here, within the limits of the OpenAI API.
pub(crate) fn metadata(fields: &mut Fields<'_>) -> ApiResult<()> {
    let path = fields.path("metadata");
    let is_pair = |(key, value): (&String, &Value)| {
        key.len() <= 64 && value.as_str().is_some_and(|value| value.chars().count() <= 512)
    };
    match fields.value("metadata") {
        None => Ok(()),
        Some(Value::Object(pairs)) if pairs.len() <= 16 && pairs.iter().all(is_pair) => Ok(()),
        Some(_) => {
            Err(ApiError::field(path, "at most 16 pairs of strings are expected, of 64 and 512 characters"))
        }
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
        Some(index) => (None, Some(Effort { level: EFFORTS[index], path })),
    })
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

/// Token probabilities of chat answers and responses.
pub(crate) fn logprobs_json(tokens: &[TokenLogprob]) -> Vec<Value> {
    let entry = |text: &[u8], logprob: f32| {
        let token = String::from_utf8_lossy(text);
        json!({ "token": token, "logprob": finite(logprob), "bytes": text })
    };
    let of = |token: &TokenLogprob| {
        let mut value = entry(&token.bytes, token.logprob);
        value["top_logprobs"] =
            token.top.iter().map(|(bytes, logprob)| entry(bytes, *logprob)).collect::<Vec<_>>().into();
        value
    };
    tokens.iter().map(of).collect()
}

/// OpenAI's number for what is never chosen; JSON has no infinity.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
