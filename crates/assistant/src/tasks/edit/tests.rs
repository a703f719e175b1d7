//! Edits with a model that answers as a function does.

use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use refrain::internals::draft::CostProfile;
use refrain::{Engine, EngineOptions, FinishReason, Message, Origin, Role, Stats, TextKind};

use super::*;
use crate::edit::part::{EditPart, EditPartError};
use crate::edit::{DiffEvent, EditDoubt};
use crate::options::AssistantOptions;
use crate::step::{JobEvent, Next, TextEvent, Written};

/// An assistant whose sessions have this context.
fn assistant(context_len: usize) -> Assistant {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let open = || {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let cost_profile = Some(CostProfile::free_rows(100.0));
        let options = EngineOptions { n_threads: Some(1), cost_profile, ..EngineOptions::default() };
        Engine::open(model, options).unwrap()
    };
    let mut options = AssistantOptions::default();
    options.session.context_len = Some(context_len);
    Assistant::builder(ENGINE.get_or_init(open).clone()).options(options).build().unwrap()
}

/// What an edit shows and returns if a model answers its prompts with what `model` makes of their texts.
struct Run {
    edit: Edit,
    /// The turns of each prompt.
    prompts: Vec<Vec<Message>>,
    events: Vec<JobEvent<Edit>>,
}

fn run(assistant: &Assistant, request: EditRequest, mut model: impl FnMut(&str) -> String) -> Run {
    let instruction = request.instruction.clone();
    let (mut next, mut events) = Editing::begin(assistant, request, JobOptions::default()).unwrap();
    let mut prompts = Vec::new();
    loop {
        match next {
            Next::Done(edit) => return Run { edit, prompts, events: events.into() },
            Next::Together(_) => unreachable!("windows depend on each other"),
            Next::Generate(prompt, mut step) => {
                let message = prompt.messages.last().unwrap().content.clone();
                let end = format!("\n\nRequest: {}", instruction.trim());
                let text =
                    message.strip_prefix("Edit the text.\n\n").and_then(|text| text.strip_suffix(&end));
                let n_prompt = assistant.count_turns(&prompt.messages).unwrap();
                let n_output = prompt.generate.as_ref().unwrap().max_tokens;
                assert!(n_prompt + n_output <= assistant.context_len(), "{n_prompt} and {n_output}");
                prompts.push(prompt.messages);
                let written = model(text.unwrap());
                for piece in written.split_inclusive([' ', '\n']) {
                    let text = piece.to_owned();
                    let event = TextEvent { text, kind: TextKind::Answer, origin: Origin::Target };
                    step.text(event, &mut events);
                }
                let written = Written {
                    session: assistant.session("edit", false).unwrap(),
                    text: written,
                    reasoning: String::new(),
                    finish: FinishReason::EndToken,
                    seed: None,
                    stats: Stats::default(),
                    not_kept: None,
                };
                next = step.written(written, &mut events).unwrap();
            }
        }
    }
}

/// Checks that the events tell the result.
fn check(old: &str, run: &Run) {
    let Run { edit, events, .. } = run;
    let (mut streamed, mut changes, mut windows) = (String::new(), Vec::new(), Vec::new());
    for event in events {
        match event {
            JobEvent::Text(text) => streamed.push_str(&text.text),
            JobEvent::Edit(change) => changes.push(change.clone()),
            JobEvent::Window { old, new, .. } => windows.push((old.clone(), new.clone())),
            _ => {}
        }
    }
    assert_eq!((&streamed, &changes), (&edit.text, &edit.changes));
    let (mut text, mut at) = (String::new(), 0);
    for change in &changes {
        match change {
            DiffEvent::Keep { old: kept, new } => {
                assert_eq!((kept.start, new.start), (at, text.len()));
                text.push_str(&old[kept.clone()]);
                at = kept.end;
            }
            DiffEvent::Insert { new, .. } => {
                assert_eq!(new.start, text.len());
                text.push_str(&edit.text[new.clone()]);
            }
            DiffEvent::Delete { old } => {
                assert_eq!(old.start, at);
                at = old.end;
            }
        }
    }
    assert_eq!((at, &text), (old.len(), &edit.text));
    assert_eq!(old[..edit.old_part.start], edit.text[..edit.new_part.start]);
    assert_eq!(old[edit.old_part.end..], edit.text[edit.new_part.end..]);
    for pair in windows.windows(2) {
        assert_eq!((pair[0].0.end, pair[0].1.end), (pair[1].0.start, pair[1].1.start));
    }
    if let (Some(first), Some(last)) = (windows.first(), windows.last()) {
        assert_eq!((first.0.start, last.0.end), (edit.old_part.start, edit.old_part.end));
        assert_eq!((first.1.start, last.1.end), (edit.new_part.start, edit.new_part.end));
        let n = windows.len();
        assert!(n > 1 && matches!(&events[0], JobEvent::Estimate(estimate) if estimate.n_prompts == n));
    }
}

fn long_note(ends: &str) -> String {
    let paragraph = |n: usize| {
        format!(
            "## Day {n}\n\nOn day {n} the train leaves at {n} and the tap drips.\n\nAda Voss comes at {n}.\n\n"
        )
    };
    let body: String = (0..40).map(paragraph).collect();
    format!("---\ntitle: Days\n---\n\n{}\n", body.trim_end()).replace('\n', ends)
}

#[test]
fn a_long_note_is_edited_in_windows() {
    for ends in ["\n", "\r\n"] {
        let (old, assistant) = (long_note(ends), assistant(768));
        let request = || EditRequest::new(&*old, "Say bus.");
        let copied = run(&assistant, request(), str::to_owned);
        check(&old, &copied);
        assert_eq!(copied.edit.text, old, "byte for byte");
        assert!(copied.prompts.len() >= 5 && copied.edit.doubts.is_empty(), "{}", copied.prompts.len());
        assert!(copied.edit.changes.iter().all(|change| matches!(change, DiffEvent::Keep { .. })));
        let changed = run(&assistant, request(), |text| text.replace("train", "bus"));
        check(&old, &changed);
        assert_eq!(changed.edit.text, old.replace("train", "bus"));
        // The prompt of a window shows the end of the one before, and what became of it.
        assert_eq!(changed.prompts[0].len(), 1);
        let [before, answer, window] = &changed.prompts[1][..] else { panic!("{:?}", changed.prompts[1]) };
        assert_eq!((before.role, answer.role, window.role), (Role::User, Role::Assistant, Role::User));
        assert!(before.content.contains("Ada Voss") && !answer.content.contains("Request"));
        assert!(copied.prompts.iter().flatten().all(|turn| !turn.content.contains("title: Days")));
    }
}

#[test]
fn a_window_is_edited_as_a_text_of_its_own() {
    let (old, assistant) = (long_note("\n"), assistant(512));
    let whole = run(&assistant, EditRequest::new(&*old, "Say bus."), str::to_owned);
    let JobEvent::Window { old: place, .. } =
        whole.events.iter().find(|event| matches!(event, JobEvent::Window { .. })).unwrap()
    else {
        unreachable!()
    };
    let alone = run(&assistant, EditRequest::new(&old[place.clone()], "Say bus."), str::to_owned);
    assert_eq!(alone.prompts, whole.prompts[..1]);
}

#[test]
fn selections_lines_and_sections_alone_are_edited() {
    let (old, assistant) = (long_note("\n"), assistant(512));
    let upper = |part: EditPart| {
        let mut request = EditRequest::new(&*old, "In capitals.");
        request.part = part;
        let run = run(&assistant, request, str::to_uppercase);
        check(&old, &run);
        assert_eq!(run.prompts.len(), 1);
        let place = run.edit.old_part.clone();
        assert_eq!(run.edit.text[run.edit.new_part.clone()], old[place.clone()].to_uppercase());
        old[place].to_owned()
    };
    let start = old.find("Ada").unwrap();
    assert_eq!(upper(EditPart::Bytes(start..start + 8)), "Ada Voss");
    assert_eq!(upper(EditPart::Lines { first: 5, last: 5 }), "## Day 0\n");
    let section = "## Day 7\n\nOn day 7 the train leaves at 7 and the tap drips.\n\nAda Voss comes at 7.\n\n";
    for title in ["Day 7", "## Day 7", "day  7"] {
        assert_eq!(upper(EditPart::Section(title.to_owned())), section);
    }
    let last = upper(EditPart::Section("Day 39".to_owned()));
    assert!(last.ends_with("comes at 39.\n"));
}

#[test]
fn what_cannot_be_edited_is_refused() {
    use EditPartError::NoSection;
    let assistant = assistant(512);
    let refused = |text: &str, part: EditPart, instruction: &str| {
        let mut request = EditRequest::new(text, instruction);
        request.part = part;
        assistant.edit(request, JobOptions::default()).unwrap_err()
    };
    assert!(matches!(refused("", EditPart::Whole, "x"), TaskError::Nothing { .. }));
    assert!(matches!(refused("a \n b", EditPart::Bytes(1..3), "x"), TaskError::Nothing { .. }));
    assert!(matches!(refused("a", EditPart::Section("a".into()), "x"), TaskError::Part(NoSection { .. })));
    let line = "x".repeat(50_000_000);
    let max = EditRequest::BYTES_MAX;
    let error = refused(&line, EditPart::Whole, "x");
    assert!(matches!(error, TaskError::TextTooLarge { bytes: 50_000_000, max: given } if given == max));
    let long = "Explain it well. ".repeat(200);
    assert!(matches!(refused(&long, EditPart::Whole, &long), TaskError::RequestTooLong { .. }));
    let front = format!("---\ntitle: {}\n---\n", "word ".repeat(2000));
    assert!(matches!(refused(&front, EditPart::Whole, "x"), TaskError::Nothing { .. }), "front matter alone");
}

#[test]
fn a_heading_alone_and_a_long_line_are_edited() {
    let assistant = assistant(512);
    let heading = run(&assistant, EditRequest::new("# Trip\n", "In capitals."), str::to_uppercase);
    assert_eq!(heading.edit.text, "# TRIP\n");
    for unit in ["word and ", "語", "a."] {
        let line = unit.repeat(2000);
        let copied = run(&assistant, EditRequest::new(&*line, "Fix it."), str::to_owned);
        check(&line, &copied);
        assert!(copied.edit.text == line && copied.prompts.len() > 1);
    }
}

#[test]
fn what_is_written_around_a_window_does_not_reach_the_note() {
    let (old, assistant) = (long_note("\n"), assistant(768));
    let chatty =
        |text: &str| format!("Here is the edited text:\n\n```\n{}\n```\n", text.replace("train", "bus"));
    let run = run(&assistant, EditRequest::new(&*old, "Say bus."), chatty);
    check(&old, &run);
    assert_eq!(run.edit.text, old.replace("train", "bus"));
    assert_eq!(run.edit.around.len(), run.prompts.len());
    assert!(run.prompts.iter().flatten().all(|turn| !turn.content.contains("Here is")));
}

#[test]
fn a_window_that_loses_its_words_is_doubted() {
    let (old, assistant) = (long_note("\n"), assistant(768));
    let mut n = 0;
    let run = run(&assistant, EditRequest::new(&*old, "Fix it."), |text| {
        n += 1;
        if n == 2 { "I cannot do that, sorry about it.".to_owned() } else { text.to_owned() }
    });
    check(&old, &run);
    assert!(matches!(run.edit.doubts[..], [EditDoubt::DropsMost { .. }]), "{:?}", run.edit.doubts);
    let of_windows: Vec<usize> = run
        .events
        .iter()
        .filter_map(|event| match event {
            JobEvent::Window { doubts, .. } => Some(doubts.len()),
            _ => None,
        })
        .collect();
    assert_eq!((of_windows[1], of_windows.iter().sum::<usize>()), (1, 1));
    // In the prompt of the next one, which text became of which is not known.
    assert_eq!(run.prompts[2].len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn windows_join_to_the_text(
        text in "(# [a-c]{1,3}|([a-c]{1,6} ){1,12}|[a-cé]{1,9}\\.|- x|\n|\n\n|\n\n\n|  ){20,120}",
        is_crlf: bool,
        shift in 0usize..3,
    ) {
        let text = if is_crlf { text.replace('\n', "\r\n") } else { text };
        prop_assume!(!text.trim().is_empty());
        let assistant = assistant(256);
        let copied = run(&assistant, EditRequest::new(&*text, "Fix it."), |text| format!("{}{text}\n", " ".repeat(shift)));
        check(&text, &copied);
        prop_assert_eq!(&copied.edit.text, &text);
        let changed = run(&assistant, EditRequest::new(&*text, "Fix it."), |text| text.replace('a', "z"));
        check(&text, &changed);
        let start = changed.edit.old_part.start;
        prop_assert_eq!(&changed.edit.text, &(text[..start].to_owned() + &text[start..].replace('a', "z")));
    }
}
