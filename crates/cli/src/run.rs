//! `refrain run`: one request in the user's own words, one answer.

use std::io::{self, IsTerminal};
use std::path::Path;

use refrain_assistant::{AssistantOptions, Passage, Prompts, WriteRequest};

use crate::args::{RunArgs, StatsFormat};
use crate::assisted::{Assisted, Shows};
use crate::context::Notes;
use crate::failure::{Exit, Failure};
use crate::grammar::Given;
use crate::input::{STANDARD_INPUT, piped_text, read_input};
use crate::interrupt::Interrupt;
use crate::terminal::{AnswerStream, note, print_legend};
use crate::{sampling, stats};

pub(crate) fn run(args: &RunArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    // Requests and texts are checked before a model is loaded.
    let (request, piped) = request(args.prompt.as_deref())?;
    if args.raw && piped.is_some() {
        let problem = "--raw continues one text, and there are two: PROMPT and standard input";
        return Err(Failure::usage(problem, "omit PROMPT, or redirect standard input from /dev/null"));
    }
    let mut passages = match args.context.is_empty() {
        true => Vec::new(),
        false => Notes::read(&args.context, None)?.whole()?,
    };
    passages.extend(piped.map(|text| Passage::new(STANDARD_INPUT, text)));
    let grammar = Given::read(&args.answer.grammar)?;
    let options = AssistantOptions::default();
    let assisted = Assisted::open(&args.answer.assist, None, options, Prompts::default(), sampling::for_run)?;
    let grammar = grammar.map(|grammar| grammar.compile(assisted.engine())).transpose()?;
    let options = args.answer.job(&assisted, grammar.as_ref());
    let assistant = &assisted.assistant;
    let job = if args.raw {
        assistant.continue_text(&request, options)?
    } else {
        if !assisted.setup.has_chat_template()? {
            note("the model has no chat template: it continues the prompt as plain text");
        }
        let mut request = WriteRequest::new(request);
        request.passages = passages;
        assistant.write(request, options)?
    };
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.note_end(&done.report);
    match args.answer.stats {
        StatsFormat::Text => stats::print(&done.report, &done.passages),
        StatsFormat::Json => {
            let json = stats::json(&assisted.setup, &done.text, &done.passages, &done.report);
            AnswerStream::stdout().line(&json.to_string())?;
        }
        StatsFormat::Off => {}
    }
    if AnswerStream::stdout().is_colored() && args.answer.stats != StatsFormat::Off {
        print_legend(&done.report.stats[0]);
    }
    Ok(Exit::Done)
}

/// The request, from the argument or from standard input; and the text on standard input beside an argument.
fn request(prompt: Option<&str>) -> Result<(String, Option<String>), Failure> {
    let (text, is_argument) = match prompt {
        Some(prompt) if prompt != "-" => (prompt.to_owned(), true),
        None if io::stdin().is_terminal() => (String::new(), false),
        _ => (read_input(Path::new("-"))?, false),
    };
    match text.trim().is_empty() {
        true => Err(Failure::usage("the request is empty", "give a PROMPT, or pipe one in")),
        false => Ok((text, if is_argument { piped_text()? } else { None })),
    }
}
