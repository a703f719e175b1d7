//! The options of sampling.

use clap::Args;
use refrain::{DryOptions, Sampling, TokenId};

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Maximum number of output tokens, at most half of the context [default: 512, or a quarter].
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Temperature; 0 decodes greedily.
    ///
    /// The default is the model's own, else 0 for `run` and 0.7 for `chat`.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Seed of the random numbers: the same seed repeats the answer [default: a new one for each answer; the
    /// statistics show it].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep the K most likely tokens; 0 keeps all [default: the model's own, else 0].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities add up to P [default: the model's own, else 1 for
    /// `run` and 0.9 for `chat`].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens with less than P times the probability of the most likely token [default: the model's own,
    /// else 0].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Repetition penalty of the last 64 tokens: divides positive logits, multiplies negative ones; 1 is off
    /// [default: the model's own, else 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Subtract X once from the logit of each of the last 64 tokens; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract X from a token's logit for each of its occurrences in the last 64 tokens; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// DRY: penalty of a token that continues a repeated sequence; 0 is off, 0.8 is common [default: 0 for
    /// `run`; in `chat`, 0.8 for sequences of 4 or more tokens of the answer].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) dry_multiplier: Option<f32>,
    /// DRY: factor of the penalty per further token of the sequence.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.75,
        allow_negative_numbers = true,
        requires = "dry_multiplier"
    )]
    pub(crate) dry_base: f32,
    /// DRY: length of the shortest penalised sequence, in tokens.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "dry_multiplier")]
    pub(crate) dry_allowed_length: usize,
    /// DRY: number of newest tokens searched for repetitions.
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "dry_multiplier")]
    pub(crate) dry_penalty_last_n: usize,
    /// DRY: sequence breaker, a text over which no repeated sequence extends; `\n` is a line end, `none`
    /// clears the list. May be repeated [default: `\n`, `:`, `"` and `*`].
    #[arg(long, value_name = "TEXT", requires = "dry_multiplier")]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Add V to the logit of token ID; `-inf` forbids the token. May be repeated.
    #[arg(long, value_name = "ID=V", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
}

impl SamplingArgs {
    /// The options, with `defaults` for the missing ones. `--temp 0` is greedy decoding without defaults.
    pub(crate) fn sampling(&self, defaults: Sampling) -> Sampling {
        let defaults = if self.temp == Some(0.0) { Sampling::default() } else { defaults };
        Sampling {
            temperature: self.temp.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(defaults.repetition_penalty),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry: self.dry_multiplier.map_or(defaults.dry, |multiplier| self.dry(multiplier)),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            penalty_window: defaults.penalty_window,
        }
    }

    fn dry(&self, multiplier: f32) -> DryOptions {
        let given = self.dry_sequence_breaker.iter();
        let breakers = match given.len() {
            0 => DryOptions::default().breakers,
            _ => given.filter(|text| *text != "none").map(|text| text.replace("\\n", "\n")).collect(),
        };
        DryOptions {
            multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            window: self.dry_penalty_last_n,
            breakers,
            ..DryOptions::default()
        }
    }
}

fn parse_logit_bias(text: &str) -> Result<(TokenId, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("write TOKEN_ID=BIAS, for example 42=-inf")?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("`{bias}` is not a number"))?;
    Ok((TokenId(id), bias))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn options(line: &str, defaults: Sampling) -> Sampling {
        let words = std::iter::once("refrain").chain(line.split_whitespace());
        Line::parse_from(words).sampling.sampling(defaults)
    }

    #[test]
    fn the_command_line_comes_before_the_defaults() {
        let defaults = Sampling { temperature: 0.7, top_p: 0.9, top_k: 20, ..Sampling::default() };
        assert_eq!(options("", defaults.clone()), defaults);
        let given = options("--top-p 0.5 --seed 7", defaults.clone());
        assert_eq!(given, Sampling { top_p: 0.5, seed: Some(7), ..defaults.clone() });
        assert_eq!(options("--temp 0", defaults), Sampling::default());
    }

    #[test]
    fn the_options_of_dry_are_those_of_the_library_unless_given() {
        let dry = options("--dry-multiplier 0.8", Sampling::default()).dry;
        assert_eq!(dry, DryOptions { multiplier: 0.8, ..DryOptions::default() });
        let line = "--dry-multiplier 1 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 100";
        let dry = options(
            &format!("{line} --dry-sequence-breaker none --dry-sequence-breaker \\n"),
            Sampling::default(),
        )
        .dry;
        assert_eq!((dry.base, dry.allowed_length, dry.window), (2.0, 3, 100));
        assert_eq!(dry.breakers, ["\n"]);
        assert!(Line::try_parse_from(["refrain", "--dry-base", "2"]).is_err(), "it would do nothing");
    }

    #[test]
    fn logit_bias_names_a_token_and_a_number() {
        assert_eq!(parse_logit_bias("7=-inf"), Ok((TokenId(7), f32::NEG_INFINITY)));
        assert_eq!(parse_logit_bias(" 7 = 1.5"), Ok((TokenId(7), 1.5)));
        assert!(
            parse_logit_bias("7").is_err()
                && parse_logit_bias("-1=0").is_err()
                && parse_logit_bias("7=x").is_err()
        );
    }
}
