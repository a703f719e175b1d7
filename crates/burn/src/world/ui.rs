//! Phone screens with goals, and the next command.

use super::document::Chat;
use super::lexicon::Lexicon;
use super::template::fill;
use refrain::{PromptPassage, Task};

/// The element and the action of a goal.
struct Step {
    goal: String,
    /// Role and label of the element, if the goal needs one.
    element: Option<(&'static str, String)>,
    command: &'static str,
    reason: String,
}

const BUTTONS: &[(&str, &str)] = &[
    ("Save", "save the [note|changes|page]"),
    ("Send", "send the [mail|message|report]"),
    ("Delete", "delete the [note|mail|photo]"),
    ("Cancel", "cancel the [order|booking|change]"),
    ("Share", "share the [photo|note|page]"),
    ("Reply", "reply to the [mail|message]"),
    ("Next", "go to the next [page|step]"),
    ("Back", "go back [to the last page|one step]"),
    ("Add to cart", "put the [book|lamp|jacket] into the cart"),
    ("Sign in", "sign in to the [shop|app|bank]"),
    ("New note", "start a new note"),
    ("Print", "print the [ticket|page|receipt]"),
    ("Archive", "archive the [mail|chat]"),
    ("Edit", "edit the [profile|note|list]"),
];
const SWITCHES: &[&str] = &[
    "Wi-Fi",
    "Bluetooth",
    "Dark mode",
    "Location",
    "Notifications",
    "Airplane mode",
    "Auto sync",
    "Night light",
    "Battery saver",
    "Vibration",
    "Backup",
    "Hotspot",
];
const FIELDS: &[&str] =
    &["Search", "Name", "Title", "To", "City", "Subject", "Message", "Company", "Address"];

fn entry(words: &mut Lexicon) -> String {
    match words.rng.below(5) {
        0 => words.person(),
        1 => words.place(),
        2 => words.company(),
        3 => words.brand(),
        _ => words.first_name(),
    }
}

fn step(words: &mut Lexicon) -> Step {
    match words.rng.below(6) {
        0 => {
            let (label, goal) = BUTTONS[words.rng.below(BUTTONS.len())];
            let goal = fill(&mut words.rng, goal, &[]);
            let reason = format!("The {label} button will {goal}.");
            Step { goal, element: Some(("button", label.to_owned())), command: "tap", reason }
        }
        1 => {
            let label = words.rng.pick(SWITCHES).to_owned();
            let state = words.rng.pick(&["on", "off"]);
            let goal = format!("turn {state} {label}");
            let reason = format!("The {label} switch turns it {state}.");
            Step { goal, element: Some(("switch", label)), command: "tap", reason }
        }
        2 | 3 => {
            let label = entry(words);
            let goal = fill(
                &mut words.rng,
                "[open {l}|open the entry {l}|show me {l}|choose {l}]",
                &[('l', &label)],
            );
            let reason = fill(
                &mut words.rng,
                "[This opens {l}.|{l} is in the list.|The entry {l} is what we want.]",
                &[('l', &label)],
            );
            Step { goal, element: Some(("item", label)), command: "tap", reason }
        }
        4 => {
            let (label, text) = (words.rng.pick(FIELDS).to_owned(), entry(words));
            let goal = fill(
                &mut words.rng,
                "[enter {t} as {l}|type {t} into {l}|fill {l} with {t}]",
                &[('t', &text), ('l', &label)],
            );
            let reason = format!("The {label} field takes the text {text}.");
            Step { goal, element: Some(("field", format!("{label}\u{1}{text}"))), command: "type", reason }
        }
        _ => {
            let label = entry(words);
            let goal = fill(&mut words.rng, "[open {l}|show me {l}|find {l}]", &[('l', &label)]);
            let reason = format!("{label} is not on the screen yet.");
            Step { goal, element: None, command: "scroll down", reason }
        }
    }
}

fn distractor(words: &mut Lexicon) -> (&'static str, String) {
    match words.rng.below(5) {
        0 => ("button", BUTTONS[words.rng.below(BUTTONS.len())].0.to_owned()),
        1 => ("switch", words.rng.pick(SWITCHES).to_owned()),
        2 => ("field", words.rng.pick(FIELDS).to_owned()),
        _ => ("item", entry(words)),
    }
}

/// A chat of one screen and one command.
pub fn chat(words: &mut Lexicon) -> Chat {
    let step = step(words);
    let (wanted, typed) = match &step.element {
        Some((role, label)) => {
            let (label, typed) =
                label.split_once('\u{1}').map_or((label.as_str(), None), |(l, t)| (l, Some(t)));
            (Some((*role, label.to_owned())), typed)
        }
        None => (None, None),
    };
    let mut elements: Vec<(&str, String)> = Vec::new();
    let count = words.rng.range(3, 9);
    while elements.len() < count {
        let element = distractor(words);
        let taken = wanted.iter().chain(&elements).any(|(_, label)| *label == element.1);
        let is_goal = step.element.is_none() && step.goal.contains(&element.1);
        if !taken && !is_goal {
            elements.push(element);
        }
    }
    let at = words.rng.below(count);
    if let Some(wanted) = &wanted {
        elements[at] = wanted.clone();
    }
    let lines: Vec<String> = elements
        .iter()
        .enumerate()
        .map(|(i, (role, label))| format!("{} {role} \"{label}\"", i + 1))
        .collect();
    let app = words.rng.pick(&[
        "Mail", "Notes", "Settings", "Shop", "Contacts", "Calendar", "Maps", "Music", "Bank", "Photos",
    ]);
    let title = format!("{app} screen");
    let screen = lines.join("\n");
    let mut shown = vec![PromptPassage::new(&title, &screen)];
    let last = fill(&mut words.rng, "[scroll down|tap 1|tap 2|tap 3|back]", &[]);
    if words.rng.percent(25) {
        shown.push(PromptPassage::new("Last action", &last));
    }
    let message = Task::Ui.user_message(&shown, &super::template::capitalised(&step.goal));
    let command = match (&wanted, typed) {
        (Some(_), Some(text)) => format!("{} {} \"{text}\"", step.command, at + 1),
        (Some((_, label)), None) => format!("{} {} \"{label}\"", step.command, at + 1),
        (None, _) => step.command.to_owned(),
    };
    Chat::single(message, format!("{command}\n{}", step.reason))
}
