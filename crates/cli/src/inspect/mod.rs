//! `refrain model inspect`: the contents of a model file or folder, and the parts that are not supported.
//!
//! Any well-formed container is shown, also an unsupported one. A malformed container is refused, as by loading.

mod container;
mod cost;
mod layers;
mod need;
mod report;

use std::fmt::{self, Display};

use indicatif::HumanBytes;

use crate::args::InspectArgs;
use crate::failure::{Exit, Failure};
use crate::models;
use crate::terminal::{AnswerStream, visible};
use cost::{EstimatedSpeed, MeasuredSpeed, Memory, Speed, WeightsMemory};
use need::Need;
use report::{Config, Report, TensorReport};

pub(crate) fn inspect(args: &InspectArgs) -> Result<Exit, Failure> {
    let path = args.path.as_deref().map(models::located).transpose()?;
    let mut report = container::open(path.as_deref(), args.verify)?;
    if let Some(checkpoint) = report.checkpoint.take() {
        report.need = Some(Need::new(&checkpoint, args)?);
    }
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
        for (i, kind) in self.layers.iter().enumerate() {
            let title = if i == 0 { "layers" } else { "" };
            writeln!(f, "{title:<13} {} × {}", kind.count, kind.summary)?;
        }
        if let Some(config) = self.config.as_ref().filter(|config| !config.multipliers.is_empty()) {
            writeln!(f, "multipliers   {}", config.multipliers.join(", "))?;
        }
        writeln!(f, "parameters    {}", self.parameters)?;
        let n_bytes = HumanBytes(self.types.iter().map(|total| total.bytes).sum());
        writeln!(f, "tensors       {} in {n_bytes}", self.tensors.len())?;
        for total in &self.types {
            writeln!(f, "              {:<8} {} in {}", total.ty, total.tensors, HumanBytes(total.bytes))?;
        }
        if let Some(memory) = &self.memory {
            write!(f, "{memory}")?;
        }
        if let Some(need) = &self.need {
            write!(f, "{need}")?;
        }
        if let Some(speed) = &self.speed {
            writeln!(f, "speed         {speed}")?;
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

impl Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one = self.weights.windows(2).all(|two| two[0].bytes == two[1].bytes);
        match self.weights.first().filter(|_| is_one) {
            Some(weights) => writeln!(f, "memory        weights {}", HumanBytes(weights.bytes))?,
            None => {
                let by_option = |weights: &WeightsMemory| {
                    format!("{} with --quantize {}", HumanBytes(weights.bytes), weights.quantize)
                };
                let weights: Vec<_> = self.weights.iter().map(by_option).collect();
                writeln!(f, "memory        weights {}", weights.join(", "))?;
            }
        }
        for kv in self.kv_cache.iter().filter(|kv| kv.bytes_per_token > 0) {
            let (a_token, all) = (HumanBytes(kv.bytes_per_token), HumanBytes(kv.bytes));
            let n_tokens = self.context_len_default;
            write!(f, "              KV cache {:<5} {a_token} a token, {all} for {n_tokens}", kv.kv_type)?;
            if kv.bounded_bytes < kv.bytes {
                write!(f, ", {} with --window-cache bounded", HumanBytes(kv.bounded_bytes))?;
            }
            writeln!(f)?;
        }
        if self.state_bytes > 0 {
            writeln!(f, "              recurrent state {} a sequence", HumanBytes(self.state_bytes))?;
        }
        let (session, n_tokens) = (HumanBytes(self.session_bytes), self.context_len_default);
        writeln!(f, "              a session of {n_tokens} tokens at most {session} in all, with f16")
    }
}

impl Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = match self {
            Self::Measured(measured) => measured,
            Self::Estimated(estimated) => return write!(f, "{estimated}"),
            Self::Unknown(reason) => return f.write_str(reason),
        };
        for (i, speed) in measured.decode.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{:.1} tokens/s after {} tokens", speed.tokens_per_s, speed.context)?;
        }
        let MeasuredSpeed { quantize, kv_type, isa, n_threads, .. } = measured;
        write!(f, ", without drafts ({n_threads} threads, {isa}, --quantize {quantize}, --kv {kv_type})")
    }
}

impl Display for EstimatedSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens_per_s, bytes_per_token, read_bytes_per_s, isa, n_threads, reason } = self;
        writeln!(f, "at most about {tokens_per_s:.1} tokens/s without drafts, an estimate: {reason}")?;
        let (bytes, rate) = (HumanBytes(*bytes_per_token), HumanBytes(*read_bytes_per_s as u64));
        write!(
            f,
            "              a token reads {bytes} of weights from memory, {rate} a second ({n_threads} threads, {isa})"
        )
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
