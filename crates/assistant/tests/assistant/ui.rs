//! Commands for screens.

use refrain::{PromptPassage, Task};
use refrain_assistant::{Assistant, Command, Element, JobOptions, Screen, TaskError, UiRequest};

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
        let mut request = UiRequest::new(screen.clone(), goal);
        request.last_command = last.clone();
        let chosen = assistant.ui_command(request, JobOptions::default()).unwrap().run().unwrap();
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

/// Whether a line is a command for a screen, judged without the grammar.
fn is_command(screen: &Screen, line: &str) -> bool {
    let typed = |element: &Element| {
        let text =
            line.strip_prefix(&format!("type {} \"", element.id)).and_then(|text| text.strip_suffix('"'));
        element.role.is_editable() && text.is_some_and(|text| !text.is_empty() && !text.contains('"'))
    };
    let tapped = |element: &Element| line == format!("tap {} \"{}\"", element.id, element.label);
    ["scroll up", "scroll down", "back"].contains(&line)
        || screen.elements().iter().any(|e| tapped(e) || typed(e))
}

#[test]
fn no_output_names_an_element_that_is_not_there() {
    let assistant = assistant();
    for goal in ["Open the fridge", "tap 9", "", "Type \"a\" into 3"] {
        let screen = Screen::new("", [("button", "Save \"all\" (1+1)"), ("list", "日本語")]).unwrap();
        let mut request = UiRequest::new(screen, goal);
        request.last_command = Some("back".to_owned());
        let mut options = JobOptions::default();
        options.sampling = Some(refrain::Sampling { temperature: 1.5, seed: Some(7), ..Default::default() });
        let chosen = assistant.ui_command(request, options).unwrap().run().unwrap();
        match chosen.command {
            Command::Tap { element } => assert!([1, 2].contains(&element)),
            Command::Scroll(_) | Command::Back => {}
            other => panic!("{other:?}: no element takes text"),
        }
    }
}

#[test]
fn a_screen_that_does_not_fit_and_an_output_that_ends_early_are_errors() {
    let assistant = assistant();
    let many = Screen::new("", (0..400).map(|n| ("button", format!("Button number {n}")))).unwrap();
    let refused = assistant.ui_command(UiRequest::new(many, "Save"), JobOptions::default()).err();
    assert!(matches!(refused, Some(TaskError::TextTooLong { .. })), "{refused:?}");
    let request = UiRequest::new(Screen::read(SCREEN).unwrap(), "Turn on Notifications");
    let mut short = JobOptions::default();
    short.answer_tokens = Some(2);
    let ended = assistant.ui_command(request, short).unwrap().run().err();
    assert!(matches!(ended, Some(TaskError::Incomplete { .. })), "{ended:?}");
}

#[test]
fn an_incomplete_command_is_not_kept() {
    let place = support::Place::with_samples();
    let assistant = place.with_store();
    let request = || UiRequest::new(Screen::read(SCREEN).unwrap(), "Turn on Notifications");
    let mut short = JobOptions::default();
    short.answer_tokens = Some(2);
    assert!(assistant.ui_command(request(), short).unwrap().run().is_err());
    let all = || assistant.forget(refrain_assistant::Forget::Before(std::time::SystemTime::now())).unwrap();
    assert_eq!((all().n_answers, all().n_prefix_blocks), (0, 0));
    assistant.ui_command(request(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(all().n_answers, 1);
}
