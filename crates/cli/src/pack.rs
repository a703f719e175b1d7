//! `refrain model pack`: writes a model in the layout of the kernels, as one file that is read without conversion, mapped or streamed.

use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

use indicatif::HumanBytes;
use refrain::LoadError;
use refrain::internals::model::packed::{MAGIC, PackSummary, WritePackedError, pack as pack_checkpoint};
use refrain::internals::model::weights::LoadOptions;
use refrain_files::open_regular;
use serde::Serialize;

use crate::args::PackArgs;
use crate::failure::{Exit, Failure};
use crate::load;
use crate::progress::Progress;
use crate::terminal::{AnswerStream, visible};

pub(crate) fn pack(args: &PackArgs) -> Result<Exit, Failure> {
    refuse_to_replace(&args.out)?;
    let checkpoint = load::checkpoint(Some(&args.model))?;
    // Without a usable tokenizer, a packed model could not be run. It is refused before the work.
    let tokenizer = checkpoint.tokenizer();
    tokenizer.map_err(LoadError::from)?;
    let source_bytes = checkpoint.weights_bytes();
    let start = Instant::now();
    let summary = {
        let progress = Progress::bytes("packing");
        let progress = |done, total| progress.set(done, total);
        let quantize = args.quantize.quantize();
        let options = LoadOptions { quantize, progress: Some(&progress), ..LoadOptions::default() };
        pack_checkpoint(&checkpoint, &args.out, options).map_err(failure)?
    };
    let report = Report::new(&args.out, source_bytes, &summary, start.elapsed().as_secs_f64());
    let mut out = AnswerStream::stdout();
    match args.json {
        true => out.line(&serde_json::to_string(&report).expect("strings and numbers have a JSON form"))?,
        false => out.line(&visible(&report.to_string()))?,
    }
    Ok(Exit::Done)
}

/// Refuses to replace any file except a packed file: replacing another file is probably a mistake, such as
/// arguments in the wrong order.
fn refuse_to_replace(out: &Path) -> Result<(), Failure> {
    let problem = match begins_with_magic(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(true) => return Ok(()),
        Ok(false) => format!("`{}` exists and is not a packed file", out.display()),
        Err(error) => format!("`{}` exists and cannot be read: {error}", out.display()),
    };
    Err(Failure::usage(problem, "name another file, or remove this one"))
}

fn begins_with_magic(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    open_regular(path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

pub(crate) fn failure(error: WritePackedError) -> Failure {
    match error {
        WritePackedError::Write { .. } | WritePackedError::Replace { .. } => {
            Failure::new(Exit::Failed, format!("{error} (check the folder and the disk)"))
        }
        WritePackedError::OutOfRange { .. } => Failure::usage(error, "choose a value in the range"),
        WritePackedError::AlreadyPacked { .. } | WritePackedError::DraftHead { .. } => {
            Failure::new(Exit::Input, error.to_string())
        }
        _ => Failure::input(error, "`refrain model inspect` shows what the model holds"),
    }
}

/// The result, for people and programs.
#[derive(Serialize)]
struct Report {
    path: String,
    source_weights_bytes: u64,
    file_bytes: u64,
    weights_bytes: u64,
    sections: usize,
    identity: String,
    seconds: f64,
}

impl Report {
    fn new(out: &Path, source_weights_bytes: u64, summary: &PackSummary, seconds: f64) -> Self {
        Self {
            path: out.display().to_string(),
            source_weights_bytes,
            file_bytes: summary.file_bytes,
            weights_bytes: summary.weights_bytes,
            sections: summary.n_sections,
            identity: summary.identity.to_string(),
            seconds,
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [source, file] = [self.source_weights_bytes, self.file_bytes].map(HumanBytes);
        let Self { path, sections, identity, seconds, .. } = self;
        write!(f, "{path}: {source} of weights packed into {file}, {sections} sections, in {seconds:.1} s ")?;
        write!(f, "(identity {identity})")
    }
}
