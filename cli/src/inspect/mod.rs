//! `refrain inspect`: the contents of a model file or folder, and the parts that are not supported.
//!
//! Any well-formed container is shown, also an unsupported one. A malformed container is refused, as by loading.

mod container;
mod report;

use std::fmt::{self, Display};

use indicatif::HumanBytes;

use crate::args::InspectArgs;
use crate::failure::{Exit, Failure};
use crate::models;
use crate::terminal::{AnswerStream, visible};
use report::{Config, Report, TensorReport};

pub(crate) fn inspect(args: &InspectArgs) -> Result<Exit, Failure> {
    let path = args.path.as_deref().map(models::located).transpose()?;
    let report = container::open(path.as_deref(), args.verify)?;
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&serde_json::to_string(&report).expect("strings and numbers have a JSON form"))?;
    } else {
        for line in report.to_string().lines() {
            out.line(&visible(line))?;
        }
    }
    Ok(Exit::Done)
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files =
            if self.files.len() == 1 { "1 file".to_owned() } else { format!("{} files", self.files.len()) };
        writeln!(f, "{}: {}, {files}", self.path, self.format)?;
        if let Some(name) = &self.name {
            writeln!(f, "name          {name}")?;
        }
        writeln!(f, "architecture  {}", self.architecture.as_deref().unwrap_or("not stated"))?;
        if let Some(config) = &self.config {
            writeln!(f, "dimensions    {config}")?;
        }
        writeln!(f, "parameters    {}", self.parameters)?;
        let n_bytes = HumanBytes(self.types.iter().map(|total| total.bytes).sum());
        writeln!(f, "tensors       {} in {n_bytes}", self.tensors.len())?;
        for total in &self.types {
            writeln!(f, "              {:<8} {} in {}", total.ty, total.tensors, HumanBytes(total.bytes))?;
        }
        match &self.tokenizer {
            Some(tokenizer) => {
                let template = if tokenizer.chat_template { "a chat template" } else { "no chat template" };
                writeln!(f, "tokenizer     {} tokens, {template}", tokenizer.vocab_size)?;
                writeln!(f, "              ends with {}", tokenizer.end_tokens.join(", "))?;
                if !tokenizer.missing_bytes.is_empty() {
                    let bytes: Vec<_> = tokenizer.missing_bytes.iter().map(|b| format!("{b:02x}")).collect();
                    writeln!(f, "              no tokens for the bytes {}", bytes.join(" "))?;
                }
            }
            None => writeln!(f, "tokenizer     no usable one")?,
        }
        match self.unsupported.is_empty() {
            true => writeln!(f, "unsupported   nothing: this model runs")?,
            false => {
                self.unsupported.iter().try_for_each(|problem| writeln!(f, "unsupported   {problem}"))?
            }
        }
        if !self.metadata.is_empty() {
            writeln!(f, "\nmetadata")?;
        }
        for (key, value) in &self.metadata {
            writeln!(f, "  {key} = {value}")?;
        }
        writeln!(f, "\ntensors (rows first)")?;
        self.tensors.iter().try_for_each(|tensor| writeln!(f, "  {tensor}"))
    }
}

impl Display for TensorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<_> = self.shape.iter().map(u64::to_string).collect();
        write!(f, "{:<48} {:<8} {}", self.name, self.ty, shape.join(" × "))
    }
}

impl Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers, hidden {}, ", self.n_layers, self.hidden_dim)?;
        write!(f, "{} heads ({} for keys and values) of {}, ", self.n_heads, self.n_kv_heads, self.head_dim)?;
        write!(f, "ffn {}, vocabulary {}, context {}", self.ffn_dim, self.vocab_size, self.context_len)?;
        f.write_str(if self.tied_head { ", head tied to the embedding" } else { "" })
    }
}
