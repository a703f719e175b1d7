//! Deletions by processes that are killed at any point: the next start finishes what was begun, and no byte of a forgotten note is
//! left in the index, answers, summaries or prefixes. The child processes are this test program, started again.

#[path = "../../../index/tests/child_support/mod.rs"]
mod child_support;
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use child_support::Child;
use refrain_assistant::{AnswerRequest, Assistant, Forget, JobOptions, SummarizeRequest};
use support::{Place, engine, options};

/// The environment variables with the folder of a child and the number of its first note.
const FOLDER: &str = "REFRAIN_TEST_FORGET";
const FIRST: &str = "REFRAIN_TEST_FORGET_FIRST";

/// Notes that one child has.
const NOTES_PER_CHILD: u64 = 12;

/// Digits that only note `i` has.
fn code(i: u64) -> String {
    format!("{:010}", (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 10_000_000_000)
}

fn note(folder: &Path, i: u64) -> PathBuf {
    folder.join(format!("notes/{i}.md"))
}

fn assistant(folder: &Path) -> Assistant {
    let builder = Assistant::builder(engine()).notes(folder.join("index")).store(folder.join("store"));
    builder.options(options()).build().expect("opens after a kill")
}

/// Makes answers and summaries of its notes and forgets two of three, until it is killed. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let first: u64 = std::env::var(FIRST).ok().and_then(|first| first.parse().ok()).expect("a number");
    let assistant = assistant(&folder);
    let mut out = std::io::stdout();
    for i in first..first + NOTES_PER_CHILD {
        let path = note(&folder, i);
        let mut question = AnswerRequest::new(format!("Who takes care of the repair {}?", code(i)));
        question.filter.folders = vec![path.clone()];
        assistant.answer(question, JobOptions::default()).expect("starts").run().expect("answers");
        if i % 2 == 0 {
            let request = SummarizeRequest::notes([path.clone()]);
            assistant.summarize(request, JobOptions::default()).expect("starts").run().expect("summarizes");
        }
        writeln!(out, "\nkept {i}").expect("a parent");
        if i % 3 > 0 {
            writeln!(out, "\nforgetting {i}").expect("a parent");
            assistant.forget(Forget::Note(path)).expect("forgets");
            writeln!(out, "\nforgotten {i}").expect("a parent");
        }
    }
    // The parent kills it.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn start(folder: &Path, first: u64) -> Child {
    Child::start(child_support::command("child").env(FOLDER, folder).env(FIRST, first.to_string()))
}

/// What a child said of its notes before it was killed.
#[derive(Default)]
struct Said {
    kept: Vec<u64>,
    forgetting: Vec<u64>,
    forgotten: Vec<u64>,
}

/// Kills a child some time after a number of lines.
fn kill(child: Child, n_lines: usize, longer: Duration) -> Said {
    let mut said = Said::default();
    child.kill(n_lines, longer, |line| {
        let Some((word, number)) = line.split_once(' ') else { return false };
        let list = match word {
            "kept" => &mut said.kept,
            "forgetting" => &mut said.forgetting,
            "forgotten" => &mut said.forgotten,
            _ => return false,
        };
        list.push(number.parse().expect("a number"));
        true
    });
    said
}

/// Kinds of files that hold a note: its text, or the ids of its digits.
fn kinds(place: &Place, i: u64) -> [bool; 4] {
    let tokens = engine().tokenizer().encode(&code(i), refrain::SpecialTokens::AsText).expect("encodes");
    assert!(tokens.len() >= 8, "too few tokens to be found by");
    let ids = tokens[1..].iter().flat_map(|token| token.0.to_le_bytes()).collect::<Vec<u8>>();
    let found = [place.files_with(code(i).as_bytes()), place.files_with(&ids)].concat();
    ["index", "history", "ledger", "prefixes"]
        .map(|kind| found.iter().any(|path| path.components().any(|part| part.as_os_str() == kind)))
}

/// Kills a child in each round, after a number of lines and a time that follow from `begin` and the round.
fn rounds(begin: u64, n_rounds: u64) {
    let place = Place::new();
    for i in 0..n_rounds * NOTES_PER_CHILD {
        let code = code(i);
        let text = format!("# Repair {code}\n\nQulittus {code} takes care of the repair {code}.\n");
        place.write(&format!("{i}.md"), &text);
    }
    place.update();
    let (mut n_in_all, mut n_begun) = (0, 0);
    for round in 0..n_rounds {
        let child = start(place.folder.path(), round * NOTES_PER_CHILD);
        let longer = Duration::from_micros((begin + round) * 7919 % 60_000);
        let said = kill(child, ((begin + round) * 5 % 21 + 1) as usize, longer);
        // What was forgotten is gone before anything is finished.
        for &i in &said.forgotten {
            assert_eq!(kinds(&place, i), [false; 4], "round {round}: {i} was forgotten");
        }
        drop(assistant(place.folder.path()));
        for i in said.kept {
            let [in_index, in_history, in_ledger, in_prefixes] = kinds(&place, i);
            if said.forgotten.contains(&i) {
                assert!(
                    !in_index && !in_history && !in_ledger && !in_prefixes,
                    "round {round}: {i} is there again"
                );
            } else if said.forgetting.contains(&i) {
                // Its intent was written, and all of it is gone, or nothing was done.
                n_begun += usize::from(!in_index);
                let is_left = in_history || in_ledger || in_prefixes;
                assert!(in_index == is_left, "round {round}: {i} is half there: {:?}", kinds(&place, i));
            } else {
                n_in_all += usize::from(in_history && in_prefixes);
                assert!(in_index && in_prefixes, "round {round}: {i} is lost: {:?}", kinds(&place, i));
            }
        }
    }
    assert!(n_in_all > 0, "nothing was ever kept");
    println!("{n_begun} deletions were finished by the next start");
}

#[test]
fn killed_deletions_are_finished() {
    rounds(0, 12);
}

#[test]
#[ignore = "many minutes: 500 rounds"]
fn deletions_killed_500_times_are_finished() {
    // Each place has few notes, because every file is searched for each of them.
    (0..500).step_by(20).for_each(|begin| rounds(begin, 20));
}
