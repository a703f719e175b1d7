//! Commands for recorded screens: the share of recorded commands that the grammar allows, how often the model chooses the recorded one,
//! and tokens per step.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example ui_rows -- MODEL.gguf ROWS.jsonl [--every 8] [--screens 2] [--minutes 12]
//! ```
//!
//! A row has `subtask` (`droidtask` or `android_world`), `session`, `app_task`, `prompt` and `response`, as MobileLLM/AutoDroid and
//! gyaanantia/android_world_agents have them. The rows before of a task are its steps, with the recorded commands. The model chooses at
//! every n-th row of a subtask. AndroidWorld's lists name what is neither button nor image `icon`: its role counts as unknown.

use std::error::Error;
use std::time::{Duration, Instant};

use refrain::{Engine, EngineOptions};
use refrain_assistant::{
    Assistant, Command, Direction, Element, JobOptions, Screen, ScreenError, TaskError, UiActions, UiTask,
    UiVerb,
};
use serde_json::Value;

/// A row: the screen, and the recorded command as a text, if there is one.
struct Row {
    goal: String,
    screen: Result<Screen, ScreenError>,
    recorded: Option<String>,
}

/// The text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let behind = text.split_once(start)?.1;
    Some(behind.split_once(end).map_or(behind, |(inner, _)| inner))
}

fn quoted(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', "'")
}

/// `tap 4 "Sign in"`.
fn touch(verb: &str, id: &str, screen: &Screen) -> String {
    let label = screen.element(id).map_or("", |element| element.label.as_str());
    format!("{verb} {id} \"{label}\"")
}

fn droid_task(row: &Value) -> Option<Row> {
    let (prompt, response) = (row["prompt"].as_str()?, row["response"].as_str()?);
    let screen = Screen::read(between(prompt, "Current UI state: \n", "\nAnswer with")?);
    let label = response.rsplit_once("- id=")?.1;
    let (id, rest) = label.split_once(" - action=")?;
    let (action, text) = rest.split_once(" - input text=")?;
    let recorded = screen.as_ref().ok().map(|screen| match (id, action) {
        ("-1", _) => "done".to_owned(),
        (id, "input") => format!("type {id} \"{}\"", quoted(text)),
        (id, _) => touch("tap", id, screen),
    });
    Some(Row { goal: between(prompt, "Task: ", "\n")?.to_owned(), screen, recorded })
}

fn android_world(row: &Value) -> Option<Row> {
    let (prompt, response) = (row["prompt"].as_str()?, row["response"].as_str()?);
    let goal = between(prompt, "The current user goal/request is: ", "\n")?.to_owned();
    let list = between(prompt, "UI elements on the current screen:\n", "\n\n")?;
    let screen = if list.starts_with("UI element") { Screen::read(list) } else { lettered(list) };
    let action: Value = serde_json::from_str(response.rsplit_once("Action:")?.1.trim()).ok()?;
    let text = |key: &str| action[key].as_str().map(quoted).unwrap_or_default();
    let id = action["index"].as_u64().map(|index| index.to_string());
    let recorded = screen.as_ref().ok().and_then(|screen| {
        let touched = |verb| id.as_deref().map(|id| touch(verb, id, screen));
        match action["action_type"].as_str()? {
            "click" => touched("tap"),
            "long_press" => touched("long_press"),
            "input_text" => Some(format!("type {} \"{}\"", id.as_deref()?, text("text"))),
            "scroll" => Some(format!("scroll {}", text("direction"))),
            "swipe" => Some(format!("swipe {}", text("direction"))),
            "open_app" => Some(format!("open \"{}\"", text("app_name"))),
            "navigate_back" => Some("back".to_owned()),
            "navigate_home" => Some("key home".to_owned()),
            "keyboard_enter" => Some("key enter".to_owned()),
            "wait" => Some("wait".to_owned()),
            "status" if text("goal_status") == "complete" => Some("done".to_owned()),
            "status" => Some("none".to_owned()),
            _ => None,
        }
    });
    Some(Row { goal, screen, recorded })
}

/// A list whose lines have letters: `C. "Phone" icon`. The answers count from 0.
fn lettered(list: &str) -> Result<Screen, ScreenError> {
    let mut elements: Vec<Element> = Vec::new();
    for line in list.lines() {
        let parts =
            line.split_once(". \"").and_then(|(letters, rest)| Some((letters, rest.rsplit_once("\" ")?)));
        let Some((letters, (label, role))) = parts else { continue };
        if letters.is_empty() || letters.len() > 2 || !letters.bytes().all(|byte| byte.is_ascii_uppercase()) {
            continue;
        }
        let index = letters.bytes().fold(0, |sum, byte| sum * 26 + u32::from(byte - b'A') + 1) - 1;
        let role = if role == "icon" { "" } else { role };
        elements.push(Element::new(role, label).with_id(index.to_string()));
    }
    Screen::new("", elements)
}

fn verb(command: &Command) -> &'static str {
    match command {
        Command::Tap { .. } => "tap",
        Command::LongPress { .. } => "long_press",
        Command::Type { .. } => "type",
        Command::Swipe { direction: Direction::Up | Direction::Down, .. } | Command::Scroll(_) => "scroll",
        Command::Swipe { .. } => "swipe",
        Command::Done => "done",
        Command::NoAction => "none",
        _ => "other",
    }
}

#[derive(Default)]
struct Sums {
    rows: usize,
    screens: usize,
    valid: usize,
    chosen: usize,
    too_long: usize,
    right: usize,
    verbs: usize,
    tokens: usize,
    steps: usize,
    time: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut files, mut numbers) = (Vec::new(), [8.0, 2.0, 12.0]);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match ["--every", "--screens", "--minutes"].iter().position(|name| *name == arg) {
            Some(at) => numbers[at] = args.next().ok_or("a number is missing")?.parse()?,
            None => files.push(arg),
        }
    }
    let [model, rows] = &files[..] else { return Err("give MODEL.gguf and ROWS.jsonl".into()) };
    let [every, n_screens, minutes] = numbers;
    let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let rows = std::fs::read_to_string(rows)?;
    println!(
        "| rows | all | screens read | recorded commands valid | asked | valid | right | right kind | tokens | per step | ms |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for subtask in ["droidtask", "android_world"] {
        let (mut sums, mut task, mut of) = (Sums::default(), UiTask::new(""), Value::Null);
        // Half of the time for each.
        let end = if subtask == "droidtask" { Instant::now() + (end - Instant::now()) / 2 } else { end };
        for line in rows.lines() {
            let value: Value = serde_json::from_str(line)?;
            if value["subtask"] != subtask {
                continue;
            }
            let row = if subtask == "droidtask" { droid_task(&value) } else { android_world(&value) };
            sums.rows += 1;
            let Some(Row { goal, screen: Ok(screen), recorded }) = row else { continue };
            sums.screens += 1;
            let key = Value::from(vec![value["session"].clone(), value["app_task"].clone()]);
            if key != of || (subtask == "droidtask" && goal != task.goal) {
                (task, of) = (UiTask::new(goal), key);
                task.n_screens = n_screens as usize;
                if subtask == "droidtask" {
                    task.actions =
                        UiActions::default().with_verbs(&[UiVerb::Tap, UiVerb::Type, UiVerb::Done]);
                }
            }
            let expected = recorded.as_deref().and_then(|text| task.command(&screen, text));
            sums.valid += usize::from(expected.is_some());
            if sums.rows % every as usize == 0 && Instant::now() < end {
                let started = Instant::now();
                let job = match assistant.ui_command(&task, screen.clone(), JobOptions::default()) {
                    Err(TaskError::TextTooLong { .. }) => {
                        sums.too_long += 1;
                        continue;
                    }
                    job => job?,
                };
                let chosen = job.run()?;
                sums.time += started.elapsed();
                sums.chosen += 1;
                sums.right += usize::from(Some(&chosen.command) == expected.as_ref());
                sums.verbs += usize::from(expected.as_ref().map(verb) == Some(verb(&chosen.command)));
                let (tokens, steps) = chosen.report.tokens_and_steps();
                (sums.tokens, sums.steps) = (sums.tokens + tokens, sums.steps + steps);
            }
            task.push(screen, recorded.unwrap_or_default());
        }
        let Sums { rows, screens, valid, chosen, right, verbs, tokens, steps, time, too_long } = sums;
        let of = |n: usize| format!("{:.0} %", 100.0 * n as f64 / chosen.max(1) as f64);
        println!(
            "| {subtask} | {rows} | {screens} | {valid} ({:.1} %) | {chosen} | {chosen} | {right} ({}) | {verbs} ({}) | {:.1} | {:.2} | {:.0} |",
            100.0 * valid as f64 / rows.max(1) as f64,
            of(right),
            of(verbs),
            tokens as f64 / chosen.max(1) as f64,
            tokens as f64 / steps.max(1) as f64,
            time.as_secs_f64() * 1e3 / chosen.max(1) as f64,
        );
        if too_long > 0 {
            eprintln!("{subtask}: {too_long} screens do not fit the context");
        }
    }
    Ok(())
}
