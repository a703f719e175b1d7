//! Background work in slices of time, under the rules of a plan.

use std::time::Duration;

use refrain::device::{MemoryPressure, ThermalState};
use refrain_assistant::{
    AnswerRequest, Assistant, Background, BackgroundPlan, BackgroundRun, BackgroundTask, Conditions,
    JobOptions, Pause, Prefetch, SummarizeRequest, TaskError,
};

use crate::support::{Place, changed};

const QUESTION: &str = "Who comes along on the trip to Aniarda?";

fn tasks(place: &Place) -> Vec<BackgroundTask> {
    vec![
        BackgroundTask::Index,
        BackgroundTask::Prefetch(Prefetch::Answer(AnswerRequest::new(QUESTION))),
        BackgroundTask::Summarize(SummarizeRequest::notes([place.notes().join("aniarda-travel.md")])),
    ]
}

fn work(assistant: &Assistant, plan: BackgroundPlan, tasks: Vec<BackgroundTask>) -> Background {
    let mut work = Background::new(assistant, plan);
    tasks.into_iter().for_each(|task| _ = work.add(task));
    work
}

fn plan(budget: Duration) -> BackgroundPlan {
    changed(BackgroundPlan::default(), |it| it.budget = budget)
}

/// Runs until nothing is left, and returns all runs.
fn run_all(work: &mut Background) -> Vec<BackgroundRun> {
    let mut runs = Vec::new();
    while work.n_left() > 0 {
        runs.push(work.run(Conditions::default));
        assert!(runs.len() < 10_000, "no run makes a step");
    }
    runs
}

#[test]
fn slices_without_time_come_to_an_end_with_the_same_results() {
    let place = Place::with_samples();
    place.write("new.md", "# Boiler\n\nThe boiler is serviced by Qulittus Works on Monday.\n");
    let assistant = place.with_store();
    let mut sliced = work(&assistant, plan(Duration::ZERO), tasks(&place));
    let runs = run_all(&mut sliced);
    assert!(runs.len() > 3, "each makes one step: {}", runs.len());
    let done: Vec<usize> = runs.iter().flat_map(|run| run.done.clone()).collect();
    assert_eq!(done, [0, 1, 2]);
    assert!(runs.iter().all(|run| run.already.is_empty() && run.failed.is_empty() && run.pause.is_none()));
    assert!(assistant.note_files().unwrap().iter().any(|file| file.path.ends_with("new.md")));
    let answer =
        assistant.answer(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(answer.report.stats[0].prefilled_tokens, 0, "its prompt is kept");
    let request = SummarizeRequest::notes([place.notes().join("aniarda-travel.md")]);
    let summary = assistant.summarize(request.clone(), JobOptions::default()).unwrap().run().unwrap();
    let alone = place.assistant().summarize(request, JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(summary.previous, Some(alone.text));

    // Given again, as by an app that was killed, everything is done already.
    let run = work(&assistant, plan(Duration::from_secs(60)), tasks(&place)).run(Conditions::default);
    assert_eq!((&run.done[..], &run.already[..], run.n_left), (&[0, 1, 2][..], &[0, 1, 2][..], 0));
    // A note that has changed is summarised again.
    place.write(
        "aniarda-travel.md",
        "# Aniarda\n\nThe trip to Aniarda is cancelled, and nobody comes along.\n",
    );
    let run = work(&assistant, plan(Duration::from_secs(60)), tasks(&place)).run(Conditions::default);
    assert_eq!((&run.done[..], &run.already[..]), (&[0, 1, 2][..], &[][..]));
}

#[test]
fn rules_end_a_run_and_memory_is_given_back() {
    type Change = fn(&mut Conditions);
    let rules = changed(plan(Duration::from_secs(60)), |it| it.available_bytes_min = 1 << 30);
    let broken: [(Pause, Change); 6] = [
        (Pause::InUse, |it| it.is_idle = false),
        (Pause::NotCharging, |it| it.is_charging = false),
        (Pause::Heat, |it| it.thermal = ThermalState::Serious),
        (Pause::Memory, |it| it.pressure = MemoryPressure::Warning),
        (Pause::Memory, |it| it.available_bytes = Some(1 << 20)),
        // The gravest is named.
        (Pause::Memory, |it| (it.is_idle, it.pressure) = (false, MemoryPressure::Critical)),
    ];
    for (pause, change) in broken {
        let place = Place::with_samples();
        let assistant = place.with_store();
        let mut work = work(&assistant, rules, tasks(&place));
        let conditions = changed(Conditions::default(), change);
        let run = work.run(|| conditions);
        assert_eq!((run.pause, run.n_left, run.done.len()), (Some(pause), 3, 0));
        // In the middle of a task, too.
        let mut n_asked = 0;
        let run = work.run(|| {
            n_asked += 1;
            if n_asked > 2 { conditions } else { Conditions::default() }
        });
        assert_eq!((run.pause, run.n_left), (Some(pause), 2), "two steps: the index, and a part of a prompt");
        assert_eq!(run_all(&mut work).len(), 1);
    }
    let open = changed(rules, |it| {
        (it.needs_idle, it.needs_charging) = (false, false);
        (it.thermal_max, it.pressure_max) = (ThermalState::Critical, MemoryPressure::Critical);
        it.available_bytes_min = 0;
    });
    let worst = changed(Conditions::default(), |it| {
        (it.is_idle, it.is_charging, it.available_bytes) = (false, false, Some(0));
        (it.thermal, it.pressure) = (ThermalState::Critical, MemoryPressure::Critical);
    });
    assert_eq!(open.pause(&worst), None);
}

#[test]
fn a_task_that_fails_stops_no_other() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let mut all = tasks(&place);
    all.insert(1, BackgroundTask::Summarize(SummarizeRequest::notes([place.path("none.md")])));
    let run = work(&assistant, plan(Duration::from_secs(60)), all).run(Conditions::default);
    assert_eq!((&run.done[..], run.n_left), (&[0, 2, 3][..], 0));
    assert!(matches!(&run.failed[..], [(1, TaskError::NoSuchNote { .. })]), "{:?}", run.failed);
    // Without a store there is nothing to keep.
    let run = work(&place.assistant(), plan(Duration::from_secs(60)), tasks(&place)).run(Conditions::default);
    let failed: Vec<bool> = run.failed.iter().map(|(_, error)| matches!(error, TaskError::NoStore)).collect();
    assert_eq!((&run.done[..], &failed[..]), (&[0][..], &[true, true][..]));
}
