//! Commands for screens.

use refrain::{PromptPassage, Task};
use refrain_assistant::{
    Assistant, Command, Element, JobOptions, Screen, TaskError, UiAction, UiActions, UiCommand, UiTask,
    UiVerb,
};

use crate::support::{self, engine, options, plain_answer};

const SCREEN: &str = "# Mail screen\n1 field \"Search\"\n2 item \"Rafael Onduri\"\n3 button \"Archive\"\n4 switch \"Notifications\"\n5 button \"Reply\"\n";

fn assistant() -> Assistant {
    Assistant::builder(engine()).options(options()).build().unwrap()
}

/// The recorded screens of the fixture model, with goal, last action and command.
fn rows() -> Vec<(Screen, String, Option<String>, String)> {
    let rows =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/rows.jsonl")).unwrap();
    let rows = rows.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let rows = rows.filter(|row| row["task"] == "ui").map(|row| {
        let prompt = row["prompt"].as_str().unwrap();
        let (_, prompt) = prompt.split_once("\n\n").unwrap();
        let (prompt, goal) = prompt.split_once("\n\nGoal: ").unwrap();
        let (screen, last) = match prompt.split_once("\n\n# Last action\n") {
            Some((screen, last)) => (screen, Some(last.to_owned())),
            None => (prompt, None),
        };
        let command = row["response"].as_str().unwrap().lines().next().unwrap().to_owned();
        (Screen::read(screen).unwrap(), goal.to_owned(), last, command)
    });
    rows.collect()
}

#[test]
fn recorded_goals_give_the_commands_of_plain_decoding() {
    let assistant = assistant();
    let (mut n_rows, mut n_legal, mut n_right) = (0, 0, 0);
    for (screen, goal, last, command) in rows() {
        let shown = screen.to_string();
        let mut passages = vec![PromptPassage::new(screen.title(), &shown)];
        passages.extend(last.as_deref().map(|text| PromptPassage::new("Last action", text)));
        let unconstrained = plain_answer(&Task::Ui.user_message(&passages, &goal));
        let mut task = learnt(goal);
        last.into_iter().for_each(|last| task.push(None, last));
        let chosen = choose(&assistant, &task, &screen);
        // Where plain decoding writes a command for the screen, the grammar changes nothing.
        let line = unconstrained.lines().next().unwrap_or_default();
        if is_command(&screen, line) {
            assert_eq!(chosen.text, line);
            n_legal += 1;
        }
        assert!(is_command(&screen, &chosen.text), "{}", chosen.text);
        n_right += usize::from(chosen.text == command);
        n_rows += 1;
    }
    assert!(n_rows >= 20 && n_legal >= 4 && n_right >= 4, "{n_right} and {n_legal} of {n_rows}");
}

/// A goal whose prompts have the form that the fixture model has learnt.
fn learnt(goal: impl Into<String>) -> UiTask {
    let mut task = UiTask::new(goal);
    task.lists_actions = false;
    task
}

fn choose(assistant: &Assistant, task: &UiTask, screen: &Screen) -> UiCommand {
    assistant.ui_command(task, screen.clone(), JobOptions::default()).unwrap().run().unwrap()
}

/// Whether a line is a command for a screen, judged without the grammar.
fn is_command(screen: &Screen, line: &str) -> bool {
    let quoted = |text: Option<&str>| {
        let text = text.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
        text.is_some_and(|text| !text.is_empty() && !text.contains('"'))
    };
    let of_element = |Element { id, role, label, .. }: &Element| {
        let id = id.as_deref().unwrap();
        let touched = ["tap", "long_press"].iter().any(|verb| line == format!("{verb} {id} \"{label}\""));
        let swiped = DIRECTIONS.iter().any(|direction| line == format!("swipe {id} {direction}"));
        touched || swiped || (role.is_editable() && quoted(line.strip_prefix(&format!("type {id} "))))
    };
    let keys = UiActions::default().keys().iter().any(|key| line == format!("key {key}"));
    ["scroll up", "scroll down", "back", "wait", "done", "none"].contains(&line)
        || keys
        || DIRECTIONS.iter().any(|direction| line == format!("swipe {direction}"))
        || ["open ", "ask "].iter().any(|verb| quoted(line.strip_prefix(verb)))
        || screen.elements().iter().any(of_element)
}

const DIRECTIONS: [&str; 4] = ["up", "down", "left", "right"];

#[test]
fn no_output_names_an_element_that_is_not_there() {
    let assistant = assistant();
    for goal in ["Open the fridge", "tap 9", "", "Type \"a\" into 3"] {
        let screen = Screen::new("", [("button", "Save \"all\" (1+1)"), ("list", "日本語")]).unwrap();
        let mut task = UiTask::new(goal);
        task.push(None, "back");
        let mut options = JobOptions::default();
        options.sampling = Some(refrain::Sampling { temperature: 1.5, seed: Some(7), ..Default::default() });
        let chosen = assistant.ui_command(&task, screen.clone(), options).unwrap().run().unwrap();
        assert!(is_command(&screen, &chosen.text), "{}", chosen.text);
        assert_eq!(task.command(&screen, &chosen.text), Some(chosen.command));
    }
}

#[test]
fn every_kind_of_command_can_be_written() {
    let assistant = assistant();
    let screen = Screen::new("Mail", [Element::new("field", "To").with_id("e7")]).unwrap();
    for verb in UiVerb::ALL {
        let mut task = UiTask::new("Go on");
        task.actions = UiActions::default().with_verbs(&[verb]);
        let job = assistant.ui_command(&task, screen.clone(), JobOptions::default()).unwrap();
        let chosen = match job.run() {
            // The fixture model may write on, where a text is free.
            Err(TaskError::Incomplete { text }) if ["type", "ask", "open"].contains(&verb.name()) => {
                assert!(text.starts_with(verb.name()), "{text}");
                continue;
            }
            chosen => chosen.unwrap(),
        };
        assert_eq!(chosen.text.split(' ').next(), Some(verb.name()), "{}", chosen.text);
        assert!(is_command(&screen, &chosen.text), "{}", chosen.text);
        assert_eq!(chosen.command.is_last(), matches!(verb, UiVerb::Done | UiVerb::NoAction));
    }
    let mut task = UiTask::new("Go on");
    task.actions = UiActions::default().with_verbs(&[]);
    let nothing = assistant.ui_command(&task, screen, JobOptions::default()).err();
    assert!(matches!(nothing, Some(TaskError::Nothing { .. })), "{nothing:?}");
}

#[test]
fn an_action_of_the_app_names_elements_of_the_screen() {
    let assistant = assistant();
    let json = r#"{"commands": [], "actions": [
        {"name": "archive", "description": "Moves a mail.", "parameters": {
            "properties": {"element": {"x-element": true}, "folder": {"enum": ["old", "spam"]}},
            "required": ["element", "folder"]}},
        {"name": "refresh"},
        {"name": "fill", "parameters": {"properties": {"in": {"x-element": "type"}}, "required": ["in"]}}]}"#;
    let screen = Screen::new("Mail", [("item", "Ada / \"x\""), ("item", "Jonas")]).unwrap();
    for (goal, seed) in
        [("Archive the mail of Jonas", None), ("Go on", Some(1)), ("Go on", Some(2)), ("", Some(3))]
    {
        let mut task = UiTask::new(goal);
        task.actions = UiActions::from_json(json).unwrap();
        let mut options = JobOptions::default();
        options.sampling =
            seed.map(|seed| refrain::Sampling { temperature: 2.0, seed: Some(seed), ..Default::default() });
        let chosen = assistant.ui_command(&task, screen.clone(), options).unwrap().run().unwrap();
        let Command::Own { name, arguments } = &chosen.command else { panic!("{chosen:?}") };
        let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
        match name.as_str() {
            "archive" => {
                assert!(["1", "2"].contains(&arguments["element"].as_str().unwrap()), "{arguments}");
                assert!(["old", "spam"].contains(&arguments["folder"].as_str().unwrap()), "{arguments}");
                assert_eq!(arguments.as_object().unwrap().len(), 2);
            }
            "refresh" => assert_eq!(arguments, serde_json::json!({})),
            // No element takes text.
            name => panic!("{name}"),
        }
    }
    // Beside the other commands.
    let mut task = UiTask::new("Go on");
    let action = r#"{"name": "archive", "parameters": {"properties": {"n": {"type": "integer"}}}}"#;
    task.actions = UiActions::default().with_action(UiAction::from_json(action).unwrap()).unwrap();
    let chosen = choose(&assistant, &task, &screen);
    assert_eq!(task.command(&screen, &chosen.text), Some(chosen.command));
}

#[test]
fn steps_are_shown_as_far_as_they_fit() {
    let assistant = assistant();
    let screen = Screen::read(SCREEN).unwrap();
    let large = Screen::new("Large", (0..120).map(|n| ("button", format!("Button number {n}")))).unwrap();
    let mut task = learnt("Turn on Notifications");
    task.push(large, "scroll down");
    task.push(screen.clone(), "scroll up");
    let chosen = choose(&assistant, &task, &screen);
    let [left_out] = &chosen.report.left_out[..] else { panic!("{:?}", chosen.report.left_out) };
    assert!(left_out.title == "Step 1: Large" && left_out.n_tokens > 100, "{left_out:?}");
    // The grammar and the steps' drafts change no output.
    let plain = choose(&assistant.without_drafts(), &task, &screen);
    assert_eq!(plain.text, chosen.text);
    task.n_screens = 0;
    assert!(choose(&assistant, &task, &screen).report.left_out.is_empty());
}

#[test]
fn a_screen_that_does_not_fit_and_an_output_that_ends_early_are_errors() {
    let assistant = assistant();
    let many = Screen::new("", (0..400).map(|n| ("button", format!("Button number {n}")))).unwrap();
    let refused = assistant.ui_command(&learnt("Save"), many, JobOptions::default()).err();
    assert!(matches!(refused, Some(TaskError::TextTooLong { .. })), "{refused:?}");
    let (task, screen) = (learnt("Turn on Notifications"), Screen::read(SCREEN).unwrap());
    let mut short = JobOptions::default();
    short.answer_tokens = Some(2);
    let ended = assistant.ui_command(&task, screen, short).unwrap().run().err();
    assert!(matches!(ended, Some(TaskError::Incomplete { .. })), "{ended:?}");
}

#[test]
fn an_incomplete_command_is_not_kept() {
    let place = support::Place::with_samples();
    let assistant = place.with_store();
    let (task, screen) = (learnt("Turn on Notifications"), || Screen::read(SCREEN).unwrap());
    let mut short = JobOptions::default();
    short.answer_tokens = Some(2);
    assert!(assistant.ui_command(&task, screen(), short).unwrap().run().is_err());
    let all = || assistant.forget(refrain_assistant::Forget::Before(std::time::SystemTime::now())).unwrap();
    assert_eq!((all().n_answers, all().n_prefix_blocks), (0, 0));
    assistant.ui_command(&task, screen(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(all().n_answers, 1);
}
