//! Default sampling options.

use refrain::checkpoint::GenerationDefaults;
use refrain::{DryOptions, Engine, Sampling};

use crate::terminal::{note_once, visible};

/// The defaults of `run`: the model's generation defaults, else greedy decoding of exactly what the model prefers.
pub(crate) fn for_run(engine: &Engine) -> Sampling {
    Sampling::default().with_model_defaults(stated(engine))
}

/// The defaults of tasks: greedy, so that they can be repeated, with loops of free text broken as in `chat`.
pub(crate) fn for_task(_: &Engine) -> Sampling {
    Sampling { dry: DryOptions::against_loops(), ..Sampling::default() }
}

/// The defaults of `chat`: the model's generation defaults, else options that are common for conversations. The model
/// inside this program is for reproducible examples and decodes greedily.
pub(crate) fn for_chat(engine: &Engine, is_embedded: bool) -> Sampling {
    match is_embedded {
        true => for_task(engine),
        false => conversational().with_model_defaults(stated(engine)),
    }
}

/// With greedy decoding, small models repeat one sentence without end. Most published chat models recommend a
/// temperature near 0.7 and a top-p near 0.9; DRY ends the remaining loops. It is limited to the answer and
/// to sequences of 4 or more tokens, so quotations from notes and common phrases are not penalised.
fn conversational() -> Sampling {
    let dry = DryOptions::against_loops();
    Sampling { temperature: 0.7, top_p: 0.9, dry, ..Sampling::default() }
}

/// The model's generation defaults. A notice names each value that cannot be used.
fn stated(engine: &Engine) -> &GenerationDefaults {
    let stated = engine.generation_defaults();
    for reason in &stated.left_aside {
        note_once(&visible(&format!("a sampling option of the model is left aside: {reason}")));
    }
    stated
}

/// The options in a few words, for the first line of a conversation.
pub(crate) fn describe(sampling: &Sampling) -> String {
    if sampling.temperature == 0.0 {
        let dry = if sampling.dry.is_on() { ", loops are broken" } else { "" };
        return format!("greedy decoding{dry}");
    }
    let mut parts = vec![format!("temperature {}", sampling.temperature)];
    let neutral = Sampling::default();
    let mut add = |name: &str, value: f64, neutral: f64| {
        if value != neutral {
            parts.push(format!("{name} {value}"));
        }
    };
    let short = |value: f32| (f64::from(value) * 1e4).round() / 1e4;
    add("top-k", sampling.top_k as f64, neutral.top_k as f64);
    add("top-p", short(sampling.top_p), short(neutral.top_p));
    add("min-p", short(sampling.min_p), short(neutral.min_p));
    add("repetition penalty", short(sampling.repetition_penalty), short(neutral.repetition_penalty));
    add("DRY", short(sampling.dry.multiplier), 0.0);
    format!("sampling with {}; --temp 0 decodes greedily", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_described_where_they_differ() {
        assert_eq!(describe(&Sampling::default()), "greedy decoding");
        let text = describe(&conversational());
        assert_eq!(text, "sampling with temperature 0.7, top-p 0.9, DRY 0.8; --temp 0 decodes greedily");
        assert!(conversational().check(10).is_ok());
    }
}
