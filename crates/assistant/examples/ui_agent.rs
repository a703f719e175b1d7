//! An agent on recorded screens, in the forms of several platforms: the model chooses a command, and can only name elements that are
//! there and take it. The recorded command is carried out, so that each task goes on to its last screen, where it is `done`.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example ui_agent [MODEL.gguf]
//! ```

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use refrain::{Engine, EngineOptions};
use refrain_assistant::{Assistant, Command, JobOptions, Screen, UiAction, UiTask};

/// A goal, and the screens with the commands that a person gave.
type Recording = (&'static str, &'static [(&'static str, &'static str)]);

const RECORDINGS: [Recording; 4] = [
    (
        "Turn on Night light",
        &[
            ("settings.xml", "tap 3 \"Display\""),
            ("display.txt", "tap 1 \"Night light\""),
            ("night-light.txt", "done"),
        ],
    ),
    (
        "Sign in as Ada and archive the mail of Ada",
        &[
            ("sign-in.yaml", "type e5 \"Ada\""),
            ("inbox.txt", "archive {\"element\":\"12\",\"folder\":\"old\"}"),
            ("inbox.txt", "done"),
        ],
    ),
    (
        "Find the folder Letters",
        &[
            ("tasks.html", "type 7 \"Letters\""),
            ("editor.xml", "ask \"Print it or save it?\""),
            ("editor.xml", "done"),
        ],
    ),
    (
        "Open chapter 3",
        &[("settings-ios.txt", "tap 0x600003a40700 \"Moby-Dick chapter 3\""), ("display.txt", "done")],
    ),
];

/// An action of the mail app, whose first argument is the id of an element.
const ARCHIVE: &str = r#"{
    "name": "archive",
    "description": "Moves a mail to a folder.",
    "parameters": {
        "type": "object",
        "properties": {"element": {"x-element": true}, "folder": {"enum": ["old", "spam"]}},
        "required": ["element", "folder"]
    }
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let given = std::env::args().nth(1).map(PathBuf::from);
    // The fixture model has learnt prompts without the list of commands.
    let lists_actions = given.is_some();
    let model = given.unwrap_or_else(|| here.join("../../fixtures/target.gguf"));
    let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    for (goal, recording) in RECORDINGS {
        println!("{goal}");
        let mut task = UiTask::new(goal);
        task.lists_actions = lists_actions;
        task.actions = task.actions.with_action(UiAction::from_json(ARCHIVE)?)?;
        for (name, recorded) in recording {
            let screen = Screen::read(&fs::read_to_string(here.join("examples/screens").join(name))?)?;
            let chosen = assistant.ui_command(&task, screen.clone(), JobOptions::default())?.run()?;
            let (tokens, steps) = chosen.report.tokens_and_steps();
            let form = screen.form().map(|form| form.to_string()).unwrap_or_default();
            println!("  {name} ({form}): the model: {} ({tokens} tokens in {steps} steps)", chosen.text);
            let command =
                task.command(&screen, recorded).ok_or("the recorded command does not fit its screen")?;
            println!("  {:width$} carried out: {recorded}", "", width = name.len() + form.len() + 3);
            if command == Command::Done {
                println!("  done, after {} steps", task.steps().len());
            }
            task.push(screen, recorded);
        }
    }
    Ok(())
}
