//! `refrain ui`: the next command for a screen.

use std::path::Path;

use refrain_assistant::{AssistantOptions, Command, JobOptions, Prompts, Screen, UiActions, UiTask};
use serde_json::{Value, json};

use crate::args::{UiArgs, is_none};
use crate::assisted::{Assisted, Shows};
use crate::failure::{Exit, Failure};
use crate::input::read_input;
use crate::interrupt::Interrupt;
use crate::report::about;
use crate::terminal::note;

pub(crate) fn ui(args: &UiArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let screen = read_screen(&args.screen)?;
    let mut task = UiTask::new(args.goal.as_str());
    // The demonstration has learnt prompts without the list.
    task.lists_actions = args.task.assist.model.model.is_some();
    if let Some(path) = &args.actions {
        task.actions = UiActions::from_json(&read_input(path)?).map_err(|error| {
            Failure::input(
                format!("`{}`: {error}", path.display()),
                "see `refrain ui --help-all` for their form",
            )
        })?;
    }
    for step in args.earlier.chunks(2) {
        let [path, command] = step else { continue };
        let path = Path::new(path);
        task.push(if is_none(path) { None } else { Some(read_screen(path)?) }, command);
    }
    if task.n_dropped() > 0 {
        note(&format!("the {} oldest screens are dropped", task.n_dropped()));
    }
    let assisted = Assisted::task(&args.task, None, AssistantOptions::default(), Prompts::default())?;
    let job = assisted.assistant.ui_command(&task, screen, JobOptions::default())?;
    let done = assisted.run(job, interrupt, Shows::Text)?;
    assisted.finish(&done.report, || {
        let mut json = about(&done.text, "", &done.report);
        json["command"] = command_json(&done.command);
        json
    })?;
    Ok(Exit::Done)
}

fn read_screen(path: &Path) -> Result<Screen, Failure> {
    Screen::read(&read_input(path)?).map_err(|error| {
        Failure::input(format!("`{}`: {error}", path.display()), "see `refrain ui --help-all` for its form")
    })
}

fn command_json(command: &Command) -> Value {
    match command {
        Command::Tap { element } => json!({"command": "tap", "element": element}),
        Command::LongPress { element } => json!({"command": "long_press", "element": element}),
        Command::Type { element, text } => json!({"command": "type", "element": element, "text": text}),
        Command::Swipe { element, direction } => {
            json!({"command": "swipe", "element": element, "direction": direction.name()})
        }
        Command::Scroll(direction) => json!({"command": "scroll", "direction": direction.name()}),
        Command::Back => json!({"command": "back"}),
        Command::Key(key) => json!({"command": "key", "key": key}),
        Command::Open(app) => json!({"command": "open", "app": app}),
        Command::Wait => json!({"command": "wait"}),
        Command::Ask(question) => json!({"command": "ask", "question": question}),
        Command::Done => json!({"command": "done"}),
        Command::NoAction => json!({"command": "none"}),
        Command::Own { name, arguments } => {
            // The grammar has made them.
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"command": name, "arguments": arguments})
        }
        other => json!({"command": format!("{other:?}")}),
    }
}
