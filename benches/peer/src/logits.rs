//! Both engines' logits for the same tokens, file by file: small models of every family, in f32.

use std::path::{Path, PathBuf};
use std::process::Command;

use refrain::Quantize;

use crate::agreement::{Agreement, TEXT_LEN, compare};
use crate::engines::{FlashAttention, KvKind, LlamaModels, Refrain, RefrainModel, Result};
use crate::random::Random;

/// Slots of both caches: a multiple of 256, to which llama.cpp rounds up. Families that choose their rotation by the context
/// then choose the same.
const N_SLOTS: usize = 256;

/// The options of a comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Models. Both engines keep the types of the weights, and f32 keys and values.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Threads of each engine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// A table with a line for each file. A file that an engine refuses has the reason in its line. Of several files, each is compared in a
/// process of its own, because llama.cpp ends the process for some files that it does not support.
pub fn compare_files(options: &Options) -> Result<String> {
    let mut table = String::from(
        "| file | least cosine | largest difference | over the largest logit | same first choice |\n| --- | --- | --- | --- | --- |\n",
    );
    for file in &options.files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let compared = match options.files.len() {
            1 => compare_file(file, usize::from(options.threads)).map(|agreement| line(&name, &agreement)),
            _ => compare_elsewhere(file, options),
        };
        table.push_str(&compared.unwrap_or_else(|error| format!("| {name} | – | – | – | {error} |\n")));
    }
    Ok(table)
}

fn line(name: &str, agreement: &Agreement) -> String {
    let Agreement { cosine_min, difference_max, relative_difference_max, same_argmax, n_rows, .. } =
        agreement;
    format!(
        "| {name} | {cosine_min:.7} | {difference_max:.2e} | {relative_difference_max:.2e} | {same_argmax} of {n_rows} |\n"
    )
}

/// The line of a file, from another process.
fn compare_elsewhere(file: &Path, options: &Options) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("logits").arg(file).args(["--threads", &options.threads.to_string()]);
    let output = command.output()?;
    let table = String::from_utf8(output.stdout)?;
    match table.lines().last().filter(|_| output.status.success()) {
        Some(line) => Ok(format!("{line}\n")),
        None => {
            let messages = String::from_utf8_lossy(&output.stderr);
            let assertion =
                messages.lines().find_map(|line| line.split_once("GGML_ASSERT")).map_or("", |(_, text)| text);
            Err(format!("llama.cpp ends the process {assertion}").into())
        }
    }
}

fn compare_file(path: &Path, n_threads: usize) -> Result<Agreement> {
    let llama = LlamaModels::start(n_threads, false)?;
    let ours = RefrainModel::load_as(path, n_threads, None, Quantize::Keep)?;
    let theirs = llama.load(path, true)?;
    let rollback = llama.rollbacks(&theirs, TEXT_LEN as u32)?[0];
    let text = Random::new(1).tokens(TEXT_LEN, ours.vocab_size());
    let mut ours = Refrain::new(&ours, N_SLOTS, KvKind::F32)?;
    let mut theirs = llama.sequence(&theirs, N_SLOTS, FlashAttention::Off, KvKind::F32, rollback)?;
    compare(&mut ours, &mut theirs, &text)
}
