//! `refrain-bench import`: published traces as rows.

use std::io::{BufWriter, Write as _};

use refrain_files::replace::{Manner, ReplaceError, replace_file};
use refrain_program::failure::{Exit, Failure};
use refrain_program::print_line;

use crate::import::{ImportError, import};

use super::args::ImportArgs;

pub(super) fn run(args: &ImportArgs) -> Result<Exit, Failure> {
    let n_rows = replace_file(&args.out, Manner::Shared, |file| {
        let failed = |source| ReplaceError { action: "write", path: args.out.clone(), source };
        let mut out = BufWriter::new(file);
        let n_rows = import(args.format.format(), &args.files, args.task.as_deref(), |row| {
            serde_json::to_writer(&mut out, row).map_err(|error| failed(error.into()))?;
            Ok(out.write_all(b"\n").map_err(failed)?)
        })?;
        out.flush().map_err(failed)?;
        Ok::<_, ImportError>(n_rows)
    })?;
    print_line!("{n_rows} rows in {}", args.out.display());
    Ok(Exit::Done)
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Write(error) => error.into(),
            error => Self::input(error, "name a file of this format, as its repository has it"),
        }
    }
}
