//! The options of sampling.

use clap::Args;
use refrain::{DryOptions, Sampling, TokenId};
use refrain_program::args::{number, setting};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Maximum number of output tokens [default: 512].
    ///
    /// At most half of the context. The default is at most a quarter of it.
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Temperature; 0 decodes greedily.
    ///
    /// The default is the model's own, else 0 for `run` and 0.7 for `chat`.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Seed of the random numbers: the same seed repeats the answer.
    ///
    /// The default is a new one for each answer; the statistics show it.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep the K most likely tokens; 0 keeps all.
    ///
    /// The default is the model's own, else 0.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities add up to P.
    ///
    /// The default is the model's own, else 1, and for `chat` 0.9.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens with less than P times the probability of the likeliest.
    ///
    /// The default is the model's own, else 0.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Penalties of tokens that repeat, as KEY=VALUE,….
    ///
    /// repeat=X      divide positive logits of the last 64 tokens by X, multiply negative ones; 1 is off
    /// presence=X    subtract X once from the logit of each of the last 64 tokens
    /// frequency=X   subtract X for each occurrence in the last 64 tokens
    /// dry=X         DRY: penalty of a token that continues a repeated sequence; 0 is off, 0.8 is common
    /// dry-base=X    DRY: factor of the penalty per further token of the sequence
    /// dry-length=N  DRY: tokens of the shortest penalised sequence
    /// dry-window=N  DRY: number of newest tokens searched for repetitions
    ///
    /// The defaults are the model's own repeat=, and in `chat` and the tasks a DRY that breaks loops of the answer.
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',', value_parser = parse_penalty, verbatim_doc_comment)]
    pub(crate) penalty: Vec<Penalty>,
    /// Add V to the logit of token ID; `-inf` forbids the token. May be repeated.
    #[arg(long, value_name = "ID=V", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
}

/// One setting of penalties.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Penalty {
    Repeat(f32),
    Presence(f32),
    Frequency(f32),
    Dry(f32),
    DryBase(f32),
    DryLength(usize),
    DryWindow(usize),
}

fn parse_penalty(text: &str) -> Result<Penalty, String> {
    setting(text, |key, value| {
        Some(match key {
            "repeat" => number(value).map(Penalty::Repeat),
            "presence" => number(value).map(Penalty::Presence),
            "frequency" => number(value).map(Penalty::Frequency),
            "dry" => number(value).map(Penalty::Dry),
            "dry-base" => number(value).map(Penalty::DryBase),
            "dry-length" => number(value).map(Penalty::DryLength),
            "dry-window" => number(value).map(Penalty::DryWindow),
            _ => return None,
        })
    })
}

impl SamplingArgs {
    /// The options, with `defaults` for the missing ones. `--temp 0` is greedy decoding without defaults.
    pub(crate) fn sampling(&self, defaults: Sampling) -> Sampling {
        let defaults = if self.temp == Some(0.0) { Sampling::default() } else { defaults };
        let mut sampling = Sampling {
            temperature: self.temp.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            ..defaults
        };
        if self.names_dry() {
            // Not the default one, which is limited to loops of the answer.
            sampling.dry = DryOptions::default();
        }
        for penalty in self.penalty.iter().copied() {
            match penalty {
                Penalty::Repeat(x) => sampling.repetition_penalty = x,
                Penalty::Presence(x) => sampling.presence_penalty = x,
                Penalty::Frequency(x) => sampling.frequency_penalty = x,
                Penalty::Dry(x) => sampling.dry.multiplier = x,
                Penalty::DryBase(x) => sampling.dry.base = x,
                Penalty::DryLength(n) => sampling.dry.allowed_length = n,
                Penalty::DryWindow(n) => sampling.dry.window = n,
            }
        }
        sampling
    }

    /// Whether the command line has a DRY of its own.
    pub(crate) fn names_dry(&self) -> bool {
        self.penalty.iter().any(|penalty| matches!(penalty, Penalty::Dry(_)))
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
    fn penalties_are_those_of_the_library_unless_given() {
        let dry = options("--penalty dry=0.8", Sampling::default()).dry;
        assert_eq!(dry, DryOptions { multiplier: 0.8, ..DryOptions::default() });
        let line = "--penalty dry=1,dry-base=2,dry-length=3 --penalty dry-window=100,repeat=1.1";
        let given = options(line, Sampling::default());
        assert_eq!((given.dry.base, given.dry.allowed_length, given.dry.window), (2.0, 3, 100));
        assert_eq!(given.repetition_penalty, 1.1);
        let loops = Sampling { dry: DryOptions::against_loops(), ..Sampling::default() };
        let changed = options("--penalty dry-base=2", loops.clone()).dry;
        assert_eq!(changed, DryOptions { base: 2.0, ..loops.dry });
        for text in ["dry", "dry=x", "dry-speed=1"] {
            assert!(Line::try_parse_from(["refrain", "--penalty", text]).is_err(), "{text}");
        }
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
