//! Summaries of texts and notes.

use refrain::{PromptPassage, Task};
use refrain_assistant::{JobEvent, JobOptions, LeftOutReason, SummarizeRequest, TaskError};

use crate::support::{Place, changed, options, plain_answer};

fn message(passages: &[(&str, &str)], request: &str) -> String {
    let passages: Vec<_> = passages.iter().map(|&(title, text)| PromptPassage::new(title, text)).collect();
    Task::Summarize.user_message(&passages, request)
}

#[test]
fn a_text_that_fits_is_summarised_in_one_prompt() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let text = "The Epville trip starts with the train at 7 pm.\n\nThe Epville trip ends on Saturday.";
    let mut request = SummarizeRequest::text("Epville trip", text);
    request.request = "What matters most?".to_owned();
    let summary = assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(summary.text, plain_answer(&message(&[("Epville trip", text)], "What matters most?")));
    assert_eq!((summary.parts.len(), summary.report.left_out.len()), (0, 0));
}

#[test]
fn notes_are_summarised_whole_and_in_order() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let paths = [place.notes().join("aniarda-travel.md")];
    let summary =
        assistant.summarize(SummarizeRequest::notes(paths), JobOptions::default()).unwrap().run().unwrap();
    let shown: Vec<_> = summary.passages.iter().map(|p| (p.title.as_str(), p.text.as_str())).collect();
    assert_eq!(summary.text, plain_answer(&message(&shown, "")));
    let missing = SummarizeRequest::notes([place.notes().join("none.md")]);
    assert!(matches!(assistant.summarize(missing, JobOptions::default()), Err(TaskError::NoSuchNote { .. })));
}

#[test]
fn a_long_text_is_summarised_in_parts() {
    let place = Place::with_samples();
    let assistant = place.builder().options(changed(options(), |it| it.n_parts_max = 3)).build().unwrap();
    let paragraph =
        |n: usize| format!("The trip {n} starts at {n} o'clock and costs {n} euros. It ends on Monday.\n\n");
    let text: String = (0..200).map(paragraph).collect();
    let job =
        assistant.summarize(SummarizeRequest::text("Trips", text.as_str()), JobOptions::default()).unwrap();
    let (mut parts, mut streamed) = (Vec::new(), String::new());
    let summary = job.run_with(|event| match event {
        JobEvent::Part { index, n_parts, text } => parts.push((*index, *n_parts, text.clone())),
        JobEvent::Text(text) => streamed.push_str(&text.text),
        _ => {}
    });
    let summary = summary.unwrap();
    assert_eq!(parts.iter().map(|part| (part.0, part.1)).collect::<Vec<_>>(), [(0, 3), (1, 3), (2, 3)]);
    assert_eq!(summary.parts, parts.iter().map(|part| part.2.clone()).collect::<Vec<_>>());
    assert_eq!((summary.report.stats.len(), &streamed), (4, &summary.text));
    // The last prompt shows the summaries of the parts.
    let merged: Vec<_> = summary.parts.iter().map(|part| ("Trips", part.as_str())).collect();
    assert_eq!(summary.text, plain_answer(&message(&merged, "")));
    // What is read and what is left out are the whole text.
    let left_out = &summary.report.left_out;
    assert!(left_out.iter().all(|left| left.reason == LeftOutReason::Parts) && left_out[0].n_tokens > 500);
}

#[test]
fn a_part_that_is_cut_is_counted() {
    let place = Place::with_samples();
    let cut = |n_tokens: usize| {
        let mut options = options();
        options.n_parts_max = 2;
        options.answer_tokens = Some(n_tokens);
        let assistant = place.builder().options(options).build().unwrap();
        let text = "The train to the harbour leaves at nine. Bring the map.\n\n".repeat(200);
        let job = assistant.summarize(SummarizeRequest::text("Trip", text), JobOptions::default()).unwrap();
        job.run().unwrap().report
    };
    let report = cut(3);
    assert_eq!((report.n_cut, report.stats.len()), (3, 3), "two parts and the last prompt");
    let report = cut(200);
    assert!(report.n_cut < 3, "{report:?}");
}

#[test]
fn a_summary_drafts_the_next_one_of_its_subject() {
    let place = Place::with_samples();
    let path = place.write("trip.md", "# Epville trip\n\nThe Epville trip begins with the train at 7 pm.\n");
    place.update();
    let assistant = place.with_store();
    let run = |assistant: &refrain_assistant::Assistant| {
        assistant.summarize(SummarizeRequest::notes([&path]), JobOptions::default()).unwrap().run().unwrap()
    };
    let first = run(&assistant);
    assert_eq!(first.previous, None);
    drop(assistant);
    place.write("trip.md", "# Epville trip\n\nThe Epville trip begins with the train at 8 pm.\n");
    place.update();
    let assistant = place.with_store();
    let second = run(&assistant);
    assert_eq!(second.previous, Some(first.text));
    let shown: Vec<_> = second.passages.iter().map(|p| (p.title.as_str(), p.text.as_str())).collect();
    assert_eq!(second.text, plain_answer(&message(&shown, "")));
    assert!(second.report.stats[0].sources.iter().any(|source| source.name.as_str() == "passages"));
    let other = assistant.in_namespace("other").unwrap();
    assert_eq!(run(&other).previous, None);
}

#[test]
fn texts_are_compared_by_note_or_id_and_never_by_title_alone() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let previous = |request: SummarizeRequest| {
        assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap().previous
    };
    let text = || SummarizeRequest::text("Trip", "The Epville trip begins at 7 pm.");
    assert_eq!((previous(text()), previous(text())), (None, None));
    let of_id = |id: &str| text().with_id(id);
    assert_eq!((previous(of_id("1")), previous(of_id("2"))), (None, None));
    assert!(previous(of_id("1")).is_some());
    let of_note = |name: &str| text().of_note(place.notes().join(name)).unwrap();
    assert_eq!((previous(of_note("a.md")), previous(of_note("b.md"))), (None, None));
    assert!(previous(of_note("b.md")).is_some());
}

#[test]
fn the_text_of_a_section_stays_as_it_is() {
    let place = Place::with_samples();
    let assistant = place.builder().options(options()).build().unwrap();
    let sentence = "The train leaves at nine and arrives at ten. ";
    let text = format!("# Log\n\n{}\n\nlast", sentence.repeat(15).trim());
    let summary = assistant
        .summarize(SummarizeRequest::text("", &*text), JobOptions::default())
        .unwrap()
        .run()
        .unwrap();
    assert_eq!(summary.passages.len(), 1);
    assert_eq!(text, format!("# Log\n\n{}", summary.passages[0].text));
}
