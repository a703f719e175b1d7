//! Both engines on real text, for published models: tokens, logits and perplexity.

use std::path::{Path, PathBuf};

use refrain::SpecialTokens;
use serde::Serialize;

use crate::agreement::Agreement;
use crate::engines::{Engine, FlashAttention, KvKind, LlamaModels, Logits, Refrain, RefrainModel, Result};

/// Maximum tokens of a passage, and of a pass over it.
const PASSAGE_LEN: usize = 512;
const PASS_LEN: usize = 64;

/// The options of a comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A published model.
    file: PathBuf,
    /// Texts; of a `.jsonl` file each string of each row is one.
    #[arg(required = true)]
    texts: Vec<PathBuf>,
    /// Passages of up to 512 tokens whose logits are compared, from texts all over the list.
    #[arg(long, default_value_t = 16)]
    passages: usize,
    /// Threads of each engine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// The agreement of the engines.
#[derive(Debug, Serialize)]
pub struct Comparison {
    n_texts: usize,
    n_tokens: usize,
    /// The first few texts with different tokens.
    differing: Vec<String>,
    n_differing: usize,
    /// Over all positions of the passages.
    agreement: Agreement,
    /// For the passages' own next tokens.
    perplexity_refrain: f64,
    perplexity_llama: f64,
}

/// Compares the engines on the texts.
///
/// # Errors
/// A file cannot be read, no text has 64 tokens, or an engine fails. Differences are not errors; the later comparisons
/// use Refrain's tokens for both engines.
pub fn compare(options: &Options) -> Result<Comparison> {
    let n_threads = usize::from(options.threads);
    let theirs = LlamaModels::start(n_threads, false)?;
    let their_model = theirs.load(&options.file, true)?;
    let our_model = RefrainModel::load(&options.file, n_threads, None)?;

    let mut texts = Vec::new();
    options.texts.iter().try_for_each(|path| read(path, &mut texts))?;
    let (mut encoded, mut differing) = (Vec::with_capacity(texts.len()), Vec::new());
    for text in &texts {
        let ours = our_model.tokenizer().encode(text, SpecialTokens::Parse)?;
        let ours: Vec<u32> = ours.iter().map(|token| token.0).collect();
        if their_model
            .vocab()
            .tokenize(text.as_bytes(), false, true)
            .iter()
            .map(|t| t.0 as u32)
            .ne(ours.iter().copied())
        {
            differing.push(text.chars().take(60).collect());
        }
        encoded.push(ours);
    }

    let mut ours = Refrain::new(&our_model, PASSAGE_LEN, KvKind::F16)?;
    let rollback = theirs.rollbacks(&their_model, PASS_LEN as u32)?[0];
    let mut llama = theirs.sequence(&their_model, PASSAGE_LEN, FlashAttention::Off, KvKind::F16, rollback)?;
    let mut agreement = Agreement::new(llama.name());
    let mut surprise = [0.0; 2];
    let long: Vec<&Vec<u32>> = encoded.iter().filter(|tokens| tokens.len() >= PASS_LEN).collect();
    let n_passages = options.passages.min(long.len());
    if n_passages == 0 {
        return Err(format!("no text of {PASS_LEN} tokens to compare logits on").into());
    }
    let mut n_next = 0;
    for i in 0..n_passages {
        let tokens = long[i * long.len() / n_passages];
        let tokens = &tokens[..tokens.len().min(PASSAGE_LEN)];
        for (n_before, pass) in tokens.chunks(PASS_LEN).enumerate().map(|(n, pass)| (n * PASS_LEN, pass)) {
            ours.verify(pass, Logits::All)?;
            llama.verify(pass, Logits::All)?;
            ours.keep(pass.len())?;
            llama.keep(pass.len())?;
            for row in 0..pass.len() {
                agreement.add(ours.logits(row), llama.logits(row));
                let Some(&next) = tokens.get(n_before + row + 1) else { continue };
                surprise[0] += surprisal(ours.logits(row), next);
                surprise[1] += surprisal(llama.logits(row), next);
                n_next += 1;
            }
        }
        ours.clear()?;
        llama.clear()?;
    }
    let [perplexity_refrain, perplexity_llama] = surprise.map(|sum| (sum / f64::from(n_next)).exp());
    let (n_texts, n_tokens) = (texts.len(), encoded.iter().map(Vec::len).sum());
    let n_differing = differing.len();
    differing.truncate(5);
    Ok(Comparison {
        n_texts,
        n_tokens,
        differing,
        n_differing,
        agreement,
        perplexity_refrain,
        perplexity_llama,
    })
}

fn read(path: &Path, texts: &mut Vec<String>) -> Result<()> {
    let file = std::fs::read_to_string(path)?;
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        texts.push(file);
        return Ok(());
    }
    for line in file.lines().filter(|line| !line.trim().is_empty()) {
        let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
        texts.extend(row.values().filter_map(|value| value.as_str()).map(str::to_owned));
    }
    Ok(())
}

/// The negative log-likelihood of a token, in nats.
fn surprisal(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_choice_of_four_takes_two_bits() {
        assert!((surprisal(&[3.0; 4], 2) - 2.0 * 2f64.ln()).abs() < 1e-9);
        assert!(surprisal(&[0.0, 20.0], 1) < 1e-8);
    }
}
