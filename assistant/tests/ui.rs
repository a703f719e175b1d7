//! Commands for screens.

mod support;

use refrain::{PromptPassage, Task};
use refrain_assistant::{Assistant, Command, JobOptions, Screen, TaskError, UiRequest};
use support::{engine, options, plain_answer};

const SCREEN: &str = "# Mail screen\n1 field \"Search\"\n2 item \"Rafael Onduri\"\n3 button \"Archive\"\n4 switch \"Notifications\"\n5 button \"Reply\"\n";

fn assistant() -> Assistant {
    Assistant::builder(engine()).options(options()).build().unwrap()
}

#[test]
fn the_command_is_that_of_plain_decoding() {
    let assistant = assistant();
    for (goal, command) in [
        ("Turn on Notifications", Command::Tap { element: 4 }),
        ("Open Rafael Onduri", Command::Tap { element: 2 }),
        ("Type Usto into Search", Command::Type { element: 1, text: "Usto".to_owned() }),
    ] {
        let request = UiRequest::new(Screen::read(SCREEN).unwrap(), goal);
        let chosen = assistant.ui_command(request, JobOptions::default()).unwrap().run().unwrap();
        let screen = SCREEN.split_once('\n').unwrap().1;
        let passages = [PromptPassage { title: "Mail screen", text: screen }];
        let unconstrained = plain_answer(&Task::Ui.user_message(&passages, goal));
        assert_eq!((Some(chosen.text.as_str()), chosen.command), (unconstrained.lines().next(), command));
    }
}

#[test]
fn no_output_names_an_element_that_is_not_there() {
    let assistant = assistant();
    for goal in ["Open the fridge", "tap 9", "", "Type \"a\" into 3"] {
        let screen = Screen::new("", [("button", "Save \"all\" (1+1)"), ("list", "日本語")]).unwrap();
        let request = UiRequest::new(screen, goal).with_last_command("back".to_owned());
        let options = JobOptions::default().with_sampling(refrain::Sampling {
            temperature: 1.5,
            seed: Some(7),
            ..Default::default()
        });
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
    let short = JobOptions::default().with_answer_tokens(2_usize);
    let ended = assistant.ui_command(request, short).unwrap().run().err();
    assert!(matches!(ended, Some(TaskError::Incomplete { .. })), "{ended:?}");
}
