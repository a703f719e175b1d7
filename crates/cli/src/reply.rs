//! `refrain reply`: a reply to a message.

use std::fmt::Write as _;

use refrain_assistant::{AssistantOptions, JobOptions, Passage, Prompts, ReplyRequest};
use refrain_index::SourceKind;

use crate::args::ReplyArgs;
use crate::assisted::{Assisted, Shows};
use crate::failure::{Exit, Failure};
use crate::index::open_named;
use crate::input::{read_text, read_texts};
use crate::interrupt::Interrupt;
use crate::report::about_passages;

pub(crate) fn reply(args: &ReplyArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let message = read_texts(args.message.as_slice())?;
    let is_mail = args.message.as_deref().and_then(SourceKind::of) == Some(SourceKind::Mail);
    let request =
        if is_mail { ReplyRequest::of_thread(message) } else { joined(message).map(ReplyRequest::of) };
    let Some(mut request) = request else {
        return Err(Failure::input("there is no message", "name another file"));
    };
    for path in &args.earlier {
        request.earlier.extend(read_text(path)?.into_iter().rev());
    }
    let notes =
        args.notes.as_ref().map(|named| open_named(named.as_deref())).transpose()?.map(|(folder, _)| folder);
    request.request = args.request.clone().unwrap_or_default();
    request.n_passages = if notes.is_some() { args.passages } else { 0 };
    request.filter = args.filter.filter();
    if notes.is_none() && !args.filter.is_empty() {
        let problem = "--within, --kind, --dates and --tag are about the index of notes";
        return Err(Failure::usage(problem, "add --notes, or omit them"));
    }
    let options = AssistantOptions::default();
    let assisted = Assisted::task(&args.task, notes.as_deref(), options, Prompts::default())?;
    let job = assisted.assistant.reply(request, JobOptions::default())?;
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.finish(&done.report, || {
        about_passages(&done.text, &done.reasoning, &done.report, &done.passages, &done.provenance)
    })?;
    Ok(Exit::Done)
}

/// Texts of one file as one text, below their titles.
fn joined(texts: Vec<Passage>) -> Option<Passage> {
    let mut texts = texts.into_iter();
    let mut whole = texts.next()?;
    let mut title = whole.title.clone();
    for next in texts {
        whole.text.push_str("\n\n");
        if next.title != title {
            let _ = writeln!(whole.text, "# {}", next.title);
            title = next.title;
        }
        whole.text.push_str(&next.text);
    }
    Some(whole)
}
