//! `refrain edit`: a text changed by an instruction, and the file in its place.

use std::io::{self, IsTerminal};
use std::path::Path;

use refrain::FinishReason;
use refrain_assistant::edit::EditDoubt;
use refrain_assistant::{
    AssistantOptions, EditCopies, EditPart, EditRequest, JobOptions, Prompts, StoreError, TaskError,
};
use refrain_files::replace::replace_contents;
use serde_json::json;

use crate::args::EditArgs;
use crate::assisted::{Assisted, Progressed, Shows, store_of};
use crate::failure::{Exit, Failure};
use crate::input::read_input;
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::report::about;
use crate::terminal::{ask_user, note, visible};

pub(crate) fn edit(args: &EditArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    if args.undo {
        return undo(args);
    }
    let (file, instruction) = what_to_edit(args)?;
    if args.in_place {
        check_in_place(args)?;
    }
    let text = read_input(file)?;
    let options = AssistantOptions::default();
    let assisted = Assisted::task(&args.task, None, options, Prompts::default())?;
    let mut request = EditRequest::new(text.as_str(), instruction);
    if let Some(within) = &args.within {
        request.part = part_of(within);
    }
    let request = if file == Path::new("-") { request } else { request.of_note(file)? };
    let job = assisted.assistant.edit(request, JobOptions::default())?;
    let shows = match (args.changes, args.in_place) {
        (true, _) => Shows::Changes(&text),
        (false, true) if args.yes => Shows::Nothing,
        (false, true) => Shows::Changes(&text),
        (false, false) => Shows::Text,
    };
    let mut progress = Progressed::default();
    let Some(done) = assisted.run_or_stop(job, interrupt, shows, &mut progress)? else {
        return stopped(args, &text, &progress);
    };
    for around in &done.around {
        let first = around.lines().next().unwrap_or_default();
        note(&visible(&format!("left out, because it is not of the text: {first}")));
    }
    if args.in_place {
        let ends_itself = matches!(done.report.finish, FinishReason::EndToken | FinishReason::Stop);
        if !ends_itself || done.report.n_cut > 0 || done.text.trim().is_empty() {
            let problem =
                format!("the new text of `{}` is not complete: the file is unchanged", args.file.display());
            return Err(Failure::new(Exit::Failed, format!("{problem} (raise --max-tokens or --ctx)")));
        }
        if done.text == text {
            note("nothing is changed");
        } else if is_wanted(args, &done.doubts)? {
            put_in_place(args, &text, &done.text)?;
        } else {
            note("the file is unchanged");
        }
    } else {
        done.doubts.iter().for_each(|doubt| note(&visible(&format!("check it: {doubt}"))));
    }
    assisted.finish(&done.report, || {
        let mut json = about(&done.text, &done.reasoning, &done.report);
        json["changes"] = json!(done.changes);
        json["doubts"] = json!(done.doubts);
        json["old_part"] = json!(done.old_part);
        json["new_part"] = json!(done.new_part);
        json["around"] = json!(done.around);
        json
    })?;
    Ok(Exit::Done)
}

/// Lines such as `12-20` or `12`, or a heading.
fn part_of(within: &str) -> EditPart {
    let (first, last) = within.split_once('-').unwrap_or((within, within));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => EditPart::Lines { first, last },
        _ => EditPart::Section(within.to_owned()),
    }
}

/// Ends an edit that Ctrl-C has stopped.
fn stopped(args: &EditArgs, text: &str, done: &Progressed) -> Result<Exit, Failure> {
    // Whoever said --yes is not there to choose.
    if !args.in_place || args.yes || done.n_windows.0 == 0 {
        note("ended by Ctrl-C; nothing of it is kept");
        return Err(TaskError::Cancelled.into());
    }
    note(&format!("ended by Ctrl-C; {} of {} windows are done", done.n_windows.0, done.n_windows.1));
    let new = done.with_rest(text);
    if new == text {
        note("nothing is changed");
    } else if is_wanted(args, &done.doubts)? {
        put_in_place(args, text, &new)?;
    } else {
        note("the file is unchanged");
    }
    Ok(Exit::Interrupted)
}

/// The file and the instruction. With one argument and piped input, the argument is the instruction.
fn what_to_edit(args: &EditArgs) -> Result<(&Path, &str), Failure> {
    if let Some(instruction) = &args.instruction {
        return Ok((&args.file, instruction));
    }
    let advice = "`refrain edit FILE INSTRUCTION`, or pipe the text to `refrain edit INSTRUCTION`";
    match args.file.to_str().filter(|&text| text != "-" && !args.in_place && !args.file.exists()) {
        Some(instruction) if !io::stdin().is_terminal() => Ok((Path::new("-"), instruction)),
        _ => Err(Failure::usage("the instruction is missing", advice)),
    }
}

/// Refuses `--in-place` where it could do harm, before a model is loaded.
fn check_in_place(args: &EditArgs) -> Result<(), Failure> {
    if args.file == Path::new("-") {
        return Err(Failure::usage("standard input cannot be replaced", "omit --in-place"));
    }
    if args.task.assist.model.model.is_none() {
        let problem = "the demonstration model inside this program writes into no file";
        return Err(Failure::usage(
            problem,
            "name a model with --model; `refrain` alone helps to choose one",
        ));
    }
    let is_seen = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    if !args.yes && (args.task.json || !is_seen) {
        let problem = "--in-place shows the changes on a terminal and asks";
        return Err(Failure::usage(problem, "--yes replaces the file without a question"));
    }
    if store_of(&args.task.assist).is_none() && args.task.assist.store.is_none() {
        let problem = "there is no folder that could keep the old text";
        return Err(Failure::usage(problem, "name one with --store, or keep nothing with --store none"));
    }
    Ok(())
}

/// Whether the file is to be replaced by a text with these doubts: as the options say, or the user's answer.
fn is_wanted(args: &EditArgs, doubts: &[EditDoubt]) -> Result<bool, Failure> {
    let file = args.file.display();
    let doubts: Vec<String> = match args.force {
        true => Vec::new(),
        false => doubts.iter().map(ToString::to_string).collect(),
    };
    if args.yes {
        return match doubts.is_empty() {
            true => Ok(true),
            false => {
                let problem = format!("{}: `{file}` is unchanged", doubts.join("; "));
                Err(Failure::new(Exit::Failed, format!("{problem} (--force replaces it all the same)")))
            }
        };
    }
    for doubt in &doubts {
        note(&visible(&format!("check it: {doubt}")));
    }
    // A habit answers with one letter.
    let (wanted, question): (&[&str], _) = match doubts.is_empty() {
        true => (&["y", "yes"], "[y/N]"),
        false => (&["yes"], "(`yes` replaces it)"),
    };
    let answer = ask_user(&visible(&format!("Replace `{file}`? {question} ")))?;
    Ok(wanted.contains(&answer.trim().to_lowercase().as_str()))
}

/// Replaces the file, unless it was changed since `old` was read, and keeps `old`.
fn put_in_place(args: &EditArgs, old: &str, new: &str) -> Result<(), Failure> {
    if read_input(&args.file)? != old {
        let problem = format!("`{}` was changed meanwhile: it is not replaced", args.file.display());
        return Err(Failure::new(Exit::Failed, problem));
    }
    if let Some(folder) = store_of(&args.task.assist) {
        EditCopies::in_store(folder, key()?.as_ref()).keep(&args.file, old, new).map_err(not_copied)?;
    }
    replace(&args.file, new)?;
    if store_of(&args.task.assist).is_some() {
        note(&visible(&format!("`refrain edit --undo {}` brings the old text back", args.file.display())));
    }
    Ok(())
}

fn not_copied(error: StoreError) -> Failure {
    let advice = "the file is unchanged; --store none keeps no old text";
    Failure::new(Exit::Failed, format!("{error} ({advice})"))
}

/// `refrain edit --undo`.
fn undo(args: &EditArgs) -> Result<Exit, Failure> {
    let file = args.file.display();
    let key = key()?;
    let copies = store_of(&args.task.assist).map(|folder| EditCopies::in_store(folder, key.as_ref()));
    let copy =
        copies.as_ref().map(|copies| copies.newest(&args.file)).transpose().map_err(not_copied)?.flatten();
    let (Some(copies), Some(copy)) = (copies, copy) else {
        let problem = format!("no text of `{file}` is kept that `edit --in-place` has replaced");
        return Err(Failure::input(problem, "--store names another store"));
    };
    // A file that is gone has no changes to lose.
    let current = if args.file.exists() { Some(read_input(&args.file)?) } else { None };
    if let Some(current) = current.filter(|current| !copy.is_before(current)) {
        if !args.force {
            let problem = format!("`{file}` was changed since the edit, and is left as it is");
            return Err(Failure::input(problem, "--force brings the old text back and keeps this one"));
        }
        copies.keep(&args.file, &current, &copy.text).map_err(not_copied)?;
    }
    replace(&args.file, &copy.text)?;
    copies.remove(copy).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    note(&visible(&format!("`{file}` has its old text again")));
    Ok(Exit::Done)
}

/// Replaces a file's text; its permissions, links and names stay.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(replace_contents(path, text.as_bytes())?)
}
