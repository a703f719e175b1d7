//! The options of sampling.

use clap::Args;
use refrain::{GenerateOptions, Sampling, TokenId};

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Output tokens at most.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) max_tokens: usize,
    /// Keys the random numbers: the same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// 0 takes the most likely token; larger values vary more.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Keep the most likely tokens that reach this probability together.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make tokens that were seen less likely, by division; 1 is off.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Subtract from tokens that were seen; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract from tokens for each time they were seen; 0 is off.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Add to a token's logit; `-inf` forbids it. May be repeated.
    #[arg(long, value_name = "ID=V", value_parser = parse_logit_bias)]
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
    /// End before this text. May be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after the model's end token.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    pub(crate) fn generate_options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling: Sampling {
                temperature: self.temp,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repeat_penalty,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                logit_bias: self.logit_bias.clone(),
                seed: self.seed,
                ..Sampling::default()
            },
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..GenerateOptions::default()
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
    use super::*;

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
