//! `refrain config completions` and `refrain config man`.

use crate::args::{CompletionsArgs, ManArgs, command_line};
use crate::failure::{Exit, Failure};
use crate::terminal::{AnswerStream, note};

pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line(), "refrain", &mut script);
    AnswerStream::stdout().line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}

pub(crate) fn man(args: &ManArgs) -> Result<Exit, Failure> {
    let folder = &args.folder;
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command_line(), folder));
    written.map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot write to `{}`: {error}", folder.display()))
    })?;
    note(&format!("`man --local-file {}` shows a page", folder.join("refrain-run.1").display()));
    Ok(Exit::Done)
}
