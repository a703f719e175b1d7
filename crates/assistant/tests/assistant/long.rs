//! Long texts: edits in windows, and summaries that go on after a stop.

use refrain_assistant::{
    Assistant, AssistantOptions, EditPart, EditRequest, Estimate, Forget, JobEvent, JobOptions,
    SummarizeRequest, Summary, TaskError,
};

use crate::support::{Place, changed, engine, options};

fn note() -> String {
    let day = |n: usize| {
        format!("## Day {n}\n\nThe trip {n} starts at {n} o'clock. Qulittus Works repairs the car.\n\n")
    };
    let days: String = (0..30).map(day).collect();
    format!("---\ntags: [trip]\n---\n\n{}\n", days.trim_end())
}

fn editor() -> Assistant {
    let options = changed(AssistantOptions::default(), |it| it.session.context_len = Some(512));
    Assistant::builder(engine()).options(options).build().unwrap()
}

#[test]
fn a_long_note_is_edited_window_by_window() {
    let (old, assistant) = (note(), editor());
    let job = assistant.edit(EditRequest::new(&*old, "Say ten o'clock."), JobOptions::default()).unwrap();
    let (mut streamed, mut windows, mut estimates) = (String::new(), Vec::new(), Vec::new());
    let edit = job.run_with(|event| match event {
        JobEvent::Text(text) => streamed.push_str(&text.text),
        JobEvent::Window { index, old, new, .. } => windows.push((*index, old.clone(), new.clone())),
        JobEvent::Estimate(estimate) => estimates.push(*estimate),
        _ => {}
    });
    let edit = edit.unwrap();
    assert_eq!(streamed, edit.text);
    assert!(edit.text.starts_with("---\ntags: [trip]\n---\n") && edit.text.ends_with('\n'));
    assert!(estimates[0].n_prompts > 3 && estimates[0].read_tokens > 500, "{:?}", estimates[0]);
    assert!(estimates.windows(2).all(|pair| pair[0].n_prompts > pair[1].n_prompts));
    // The first window is edited as a text of its own.
    let (_, place, new) = &windows[0];
    let alone =
        assistant.edit(EditRequest::new(&old[place.clone()], "Say ten o'clock."), JobOptions::default());
    let alone = alone.unwrap().run().unwrap();
    assert_eq!(edit.text[new.clone()], alone.text);
}

#[test]
fn an_edit_of_a_selection_is_that_of_its_text_alone() {
    let assistant = editor();
    let old = "The tap drips.\n\nThe car repair is planned for 18 August.\n\nBring the map.";
    let start = old.find("The car").unwrap();
    let end = old.find("\n\nBring").unwrap();
    let mut request = EditRequest::new(old, "Say 19 August.");
    request.part = EditPart::Bytes(start..end);
    let edit = assistant.edit(request, JobOptions::default()).unwrap().run().unwrap();
    let alone = EditRequest::new(&old[start..end], "Say 19 August.");
    let alone = assistant.edit(alone, JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(edit.text, [&old[..start], &alone.text, &old[end..]].concat());
    assert_eq!((edit.old_part, edit.new_part), (start..end, start..start + alone.text.len()));
}

#[test]
fn who_ends_an_edit_may_keep_the_windows_that_are_done() {
    let (old, assistant) = (note(), editor());
    let job = assistant.edit(EditRequest::new(&*old, "Say ten o'clock."), JobOptions::default()).unwrap();
    let (mut text, mut done) = (String::new(), None);
    for event in job {
        match event.unwrap() {
            JobEvent::Text(piece) => text.push_str(&piece.text),
            JobEvent::Window { old, new, .. } => {
                done = Some((old, new));
                break;
            }
            _ => {}
        }
    }
    let (window, new) = done.unwrap();
    let kept = [&text[..new.end], &old[window.end..]].concat();
    assert!(kept.starts_with(&old[..window.start]) && kept.ends_with(&old[window.end..]));
}

fn long_text() -> String {
    let paragraph =
        |n: usize| format!("The trip {n} starts at {n} o'clock and costs {n} euros. It ends on Monday.\n\n");
    (0..300).map(paragraph).collect()
}

/// A context in which the text has many parts, and their summaries fit one prompt.
fn short() -> AssistantOptions {
    changed(options(), |it| it.session.context_len = Some(1024))
}

fn trips() -> SummarizeRequest {
    SummarizeRequest::text("Trips", long_text()).with_id("trips")
}

/// Runs a summary up to its result or its error, and cancels after some parts.
fn summarized(
    assistant: &Assistant,
    request: SummarizeRequest,
    n_parts: usize,
) -> (Result<Summary, TaskError>, Vec<Estimate>) {
    let job = assistant.summarize(request, JobOptions::default()).unwrap();
    let (cancel, mut estimates, mut n) = (job.cancel_token(), Vec::new(), 0);
    let result = job.run_with(|event| match event {
        JobEvent::Estimate(estimate) => estimates.push(*estimate),
        JobEvent::Part { .. } => {
            n += 1;
            if n == n_parts {
                cancel.cancel();
            }
        }
        _ => {}
    });
    (result, estimates)
}

#[test]
fn parts_at_the_same_time_equal_parts_one_after_the_other() {
    let run = |n: usize| {
        let options = changed(short(), |it| (it.n_parts_max, it.n_parts_together) = (7, n));
        let assistant = Assistant::builder(engine()).options(options).build().unwrap();
        summarized(&assistant, trips(), usize::MAX)
    };
    let (alone, estimates) = run(1);
    let alone = alone.unwrap();
    assert_eq!((alone.parts.len(), alone.report.stats.len(), alone.n_kept_parts), (7, 8, 0));
    assert!(estimates[0].n_prompts == 8 && estimates[0].read_tokens > 1000, "{:?}", estimates[0]);
    assert!(estimates.windows(2).all(|pair| pair[0].n_prompts > pair[1].n_prompts));
    assert!(estimates.iter().all(|estimate| !estimate.time.is_zero()));
    for n in [2, 4, 16] {
        let together = run(n).0.unwrap();
        assert_eq!((&together.text, &together.parts), (&alone.text, &alone.parts), "{n}");
        let n_tokens =
            |summary: &Summary| summary.report.stats.iter().map(|it| it.tokens).collect::<Vec<_>>();
        assert_eq!(n_tokens(&together), n_tokens(&alone), "in order");
    }
}

#[test]
fn sampled_parts_have_one_seed() {
    let options = changed(short(), |it| {
        it.n_parts_max = 3;
        it.sampling.temperature = 0.8;
    });
    let assistant = Assistant::builder(engine()).options(options).build().unwrap();
    let drawn = summarized(&assistant, trips(), usize::MAX).0.unwrap();
    let seed = drawn.report.seed.unwrap();
    let mut again = JobOptions::default();
    let mut sampling = AssistantOptions::default().sampling;
    (sampling.temperature, sampling.seed) = (0.8, Some(seed));
    again.sampling = Some(sampling);
    let again = assistant.summarize(trips(), again).unwrap().run().unwrap();
    assert_eq!((again.text, again.parts), (drawn.text, drawn.parts));
}

#[test]
fn a_summary_goes_on_after_a_stop() {
    let place = Place::with_samples();
    let options = || changed(short(), |it| (it.n_parts_max, it.n_parts_together) = (5, 1));
    let whole =
        summarized(&place.builder().options(options()).build().unwrap(), trips(), usize::MAX).0.unwrap();
    let open = || place.builder().options(options()).store(place.path("store")).build().unwrap();
    let assistant = open();
    let (stopped, _) = summarized(&assistant, trips(), 2);
    assert!(matches!(stopped, Err(TaskError::Cancelled)));
    // Also after the end of the process.
    drop(assistant);
    let assistant = open();
    let (rest, estimates) = summarized(&assistant, trips(), usize::MAX);
    let rest = rest.unwrap();
    assert_eq!((&rest.text, &rest.parts, rest.n_kept_parts), (&whole.text, &whole.parts, 2));
    assert_eq!(rest.report.stats.len(), 4, "three parts and the last prompt");
    assert!(estimates.last().unwrap().n_prompts < estimates[0].n_prompts);
    // Another request, other options and another namespace have other parts.
    let mut other = trips();
    other.request = "In one sentence.".to_owned();
    assert_eq!(summarized(&assistant, other, usize::MAX).0.unwrap().n_kept_parts, 0);
    let elsewhere = assistant.in_namespace("other").unwrap();
    assert_eq!(summarized(&elsewhere, trips(), usize::MAX).0.unwrap().n_kept_parts, 0);
    assert_eq!(summarized(&assistant, trips(), usize::MAX).0.unwrap().n_kept_parts, 5);
    // A text without a name keeps none.
    let nameless = || SummarizeRequest::text("Trips", long_text() + "x");
    for _ in 0..2 {
        assert_eq!(summarized(&assistant, nameless(), usize::MAX).0.unwrap().n_kept_parts, 0);
    }
}

#[test]
fn kept_parts_are_deleted_with_their_note() {
    let place = Place::with_samples();
    let (a, b) = (place.notes().join("a.md"), place.notes().join("b.md"));
    let options = changed(short(), |it| it.n_parts_max = 4);
    let assistant = place.builder().options(options).store(place.path("store")).build().unwrap();
    let of = |path: &std::path::Path| trips().of_note(path).unwrap();
    let n_kept =
        |path: &std::path::Path| summarized(&assistant, of(path), usize::MAX).0.unwrap().n_kept_parts;
    assert_eq!((n_kept(&a), n_kept(&a)), (0, 4));
    // The parts of equal texts are equal, whatever the note is.
    assert_eq!(n_kept(&b), 4);
    let part = summarized(&assistant, of(&a), usize::MAX).0.unwrap().parts[0].clone();
    let forms = serde_json::to_string(&part).unwrap();
    let is_in_ledger = || {
        let text = std::fs::read_to_string(place.path("store/ledger")).unwrap();
        text.contains(forms.trim_matches('"'))
    };
    assert!(is_in_ledger());
    assistant.forget(Forget::Note(a.clone())).unwrap();
    assistant.forget(Forget::Note(b.clone())).unwrap();
    assert!(!is_in_ledger());
    assert_eq!(n_kept(&a), 0);
}
