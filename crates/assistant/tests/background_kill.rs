//! Background work in processes that are killed at any point: the next one is given the same tasks, goes on, and comes to the results of a
//! process that was never killed. The child processes are this test program, started again.

#[path = "../../../index/tests/child_support/mod.rs"]
mod child_support;
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use child_support::Child;
use refrain_assistant::{
    AnswerRequest, Assistant, AssistantOptions, Background, BackgroundPlan, BackgroundTask, Conditions,
    JobOptions, Passage, Prefetch, SummarizeRequest,
};
use support::{Place, changed, engine, options};

/// The environment variable with the folder of a child.
const FOLDER: &str = "REFRAIN_TEST_BACKGROUND";

/// Notes of a place.
const N_NOTES: usize = 8;

fn note(folder: &Path, i: usize) -> PathBuf {
    folder.join(format!("notes/{i}.md"))
}

/// Short chunks, so that prompts are kept several times while they are computed.
fn options_of_all() -> AssistantOptions {
    changed(options(), |it| it.session.prefill_chunk = 16)
}

fn assistant(folder: &Path) -> Assistant {
    let builder = Assistant::builder(engine()).notes(folder.join("index")).store(folder.join("store"));
    builder.options(options_of_all()).build().expect("opens after a kill")
}

fn prefetch(i: usize) -> AnswerRequest {
    let text = format!("The trip {i} to Aniarda begins on Saturday. Ada comes along. ").repeat(12);
    changed(AnswerRequest::new("When does the trip begin?"), |it| {
        it.passages = Some(vec![Passage::new("Trip", text)]);
    })
}

fn tasks(folder: &Path) -> Vec<BackgroundTask> {
    let of_note = |i: usize| {
        [
            BackgroundTask::Prefetch(Prefetch::Answer(prefetch(i))),
            BackgroundTask::Summarize(SummarizeRequest::notes([note(folder, i)])),
        ]
    };
    [BackgroundTask::Index].into_iter().chain((0..N_NOTES).flat_map(of_note)).collect()
}

fn work(assistant: &Assistant, folder: &Path, budget: Duration) -> Background {
    let plan = changed(BackgroundPlan::default(), |it| it.budget = budget);
    let mut work = Background::new(assistant, plan);
    tasks(folder).into_iter().for_each(|task| _ = work.add(task));
    work
}

/// Works in slices of 2 ms, and says what is done, until it is killed. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let assistant = assistant(&folder);
    let mut out = std::io::stdout();
    writeln!(out, "\nbegun").expect("a parent");
    let mut work = work(&assistant, &folder, Duration::from_millis(2));
    while work.n_left() > 0 {
        let run = work.run(Conditions::default);
        assert!(run.failed.is_empty(), "{:?}", run.failed);
        for number in run.done {
            let word = if run.already.contains(&number) { "already" } else { "done" };
            writeln!(out, "\n{word} {number}").expect("a parent");
        }
    }
    writeln!(out, "\nended").expect("a parent");
    // The parent kills it.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Kills children until one has ended, and compares. Returns the number of kills.
fn place_of_kills(begin: u64) -> u64 {
    let place = Place::new();
    let folder = place.folder.path();
    for i in 0..N_NOTES {
        let text = format!("# Repair {i}\n\nQulittus {i} takes care of the repair of the car {i}.\n");
        place.write(&format!("{i}.md"), &text);
    }
    // The roots are known, and nothing is read.
    let mut writer =
        refrain_index::notes::NotesWriter::open(&place.path("index"), Default::default()).expect("opens");
    writer.add(&[place.notes()]).expect("exists");
    drop(writer);
    let mut done = vec![false; tasks(folder).len()];
    let mut n_kills = 0;
    loop {
        let round = begin + n_kills;
        let child = Child::start(child_support::command("child").env(FOLDER, folder));
        let mut has_ended = false;
        // A later child says more lines before it comes to something new.
        let n_lines = (round * 5 % 7 + 1).min(1 + n_kills * 2) as usize;
        // Longer each time, so that any machine comes to an end.
        let longer = Duration::from_micros(round * 7919 % 60_000 + n_kills * 5000);
        child.kill(n_lines, longer, |line| {
            match line.split_once(' ') {
                Some(("done", number)) => {
                    let number: usize = number.parse().expect("a number");
                    assert!(!done[number], "round {round}: {number} was done before");
                    done[number] = true;
                }
                Some(("already", number)) => done[number.parse::<usize>().expect("a number")] = true,
                _ => {}
            }
            has_ended |= line == "ended";
            has_ended || !line.is_empty() && line.split(' ').count() <= 2
        });
        n_kills += 1;
        if has_ended {
            break;
        }
        assert!(n_kills < 1000, "no child comes to an end");
    }
    assert!(done.iter().all(|done| *done), "{done:?}");
    // A process that was never killed has the same.
    let (killed, calm) = (assistant(folder), Assistant::builder(engine()).options(options_of_all()));
    let calm = calm.notes(folder.join("index")).build().expect("builds");
    for i in 0..N_NOTES {
        let request = || SummarizeRequest::notes([note(folder, i)]);
        let again = killed.summarize(request(), JobOptions::default()).expect("starts").run().expect("runs");
        let alone = calm.summarize(request(), JobOptions::default()).expect("starts").run().expect("runs");
        assert_eq!((again.previous.as_deref(), &again.text), (Some(&*alone.text), &alone.text));
        let answer = |of: &Assistant| of.answer(prefetch(i), JobOptions::default()).unwrap().run().unwrap();
        let (again, alone) = (answer(&killed), answer(&calm));
        assert_eq!(again.text, alone.text);
        assert_eq!(again.report.stats[0].prefilled_tokens, 0, "its prompt is kept");
    }
    n_kills
}

#[test]
fn killed_work_goes_on() {
    let n_kills: u64 = (0..2).map(|place| place_of_kills(17 * place)).sum();
    assert!(n_kills > 2, "{n_kills} kills");
}

#[test]
#[ignore = "many minutes: 1,000 rounds"]
fn work_killed_1000_times_goes_on() {
    let (mut n_kills, mut n_places) = (0, 0);
    while n_kills < 1000 {
        n_kills += place_of_kills(n_kills);
        n_places += 1;
    }
    println!("{n_kills} kills of {n_places} places");
}
