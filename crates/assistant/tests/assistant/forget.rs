//! Deletion across index, history, summaries and prefixes.

use std::time::{Duration, SystemTime};

use refrain_assistant::{
    AnswerRequest, Assistant, BuildError, ChatRequest, EditRequest, Forget, ForgetError, Forgotten, JobEvent,
    JobOptions, Passage, Prefetch, StoreError, SummarizeRequest, TaskError, Turn,
};
use refrain_index::NoteFilter;
use refrain_index::notes::{
    Metadata, NotesError, NotesIndex, NotesOptions, NotesWriter, Request, document_path, hand_in,
};

use crate::support::{self, Place, changed, engine, sample_notes};

/// A word of the note that is forgotten: answers, summaries and prompts repeat it.
const SECRET: &str = "Qulittus";
const OTHER: &str = "Aniarda";

fn place() -> Place {
    let place = Place::new();
    std::fs::copy(sample_notes().join("aniarda-travel.md"), place.notes().join("aniarda-travel.md")).unwrap();
    place.write("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car. The repair is planned for 18 August.\n");
    place.update();
    place
}

fn ask(assistant: &Assistant, question: &str) -> String {
    assistant.answer(AnswerRequest::new(question), JobOptions::default()).unwrap().run().unwrap().text
}

/// Makes answers, a summary, a conversation and a prefetched prompt from the note, and one answer from another. Returns the
/// summary.
fn use_notes(place: &Place, assistant: &Assistant) -> String {
    assert!(ask(assistant, "Who takes care of the repair of the car?").contains(SECRET));
    let request = SummarizeRequest::notes([place.notes().join("car.md")]);
    let summary = assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap();
    let mut chat = ChatRequest::new("Who repairs the car?");
    chat.n_passages = 1;
    assistant.conversation().say(chat, JobOptions::default()).unwrap().run().unwrap();
    let prefetch = Prefetch::Answer(AnswerRequest::new("When is the repair of the car?"));
    assert!(assistant.prefetch(prefetch, JobOptions::default()).unwrap().run().unwrap().n_kept > 0);
    ask(assistant, "Who comes along on the trip to Aniarda?");
    summary.text
}

/// The bytes under which a text may be stored: itself, and its token ids as the history and the prefixes write them.
fn forms(text: &str) -> Vec<Vec<u8>> {
    // A name begins with another token after a space, and a model may divide it in its own way: the end of it will do.
    let tokens = engine().tokenizer().encode(text, refrain::SpecialTokens::AsText).unwrap();
    let ids = tokens[tokens.len() - 2..].iter().flat_map(|token| token.0.to_le_bytes()).collect();
    vec![text.as_bytes().to_vec(), ids]
}

fn files_with(place: &Place, text: &str) -> Vec<std::path::PathBuf> {
    forms(text).iter().flat_map(|form| place.files_with(form)).collect()
}

#[test]
fn no_byte_of_a_forgotten_note_is_left() {
    let place = place();
    let assistant = place.with_store();
    let summary = use_notes(&place, &assistant);
    use_notes(&place, &assistant.in_namespace("other").unwrap());
    let kinds = |text: &str| {
        let found = files_with(&place, text);
        ["index", "history", "ledger", "prefixes"]
            .map(|kind| found.iter().any(|path| path.components().any(|part| part.as_os_str() == kind)))
    };
    let [in_index, in_history, _, in_prefixes] = kinds(SECRET);
    assert!(in_index && in_history && in_prefixes, "{:?}", files_with(&place, SECRET));
    assert!(place.files_with(summary.as_bytes()).iter().any(|path| path.ends_with("ledger")));
    let path = place.notes().join("car.md");
    let forgotten = assistant.forget(Forget::Note(path.clone())).unwrap();
    assert!(
        forgotten.n_answers >= 6 && forgotten.n_summaries == 2 && forgotten.n_prefix_blocks > 0,
        "{forgotten:?}"
    );
    assert!(!forgotten.is_notes_pending);
    assert_eq!(files_with(&place, SECRET), Vec::<std::path::PathBuf>::new());
    assert_eq!(place.files_with(summary.as_bytes()), Vec::<std::path::PathBuf>::new());
    // What has nothing to do with it is there.
    assert!(kinds(OTHER)[1] && assistant.notes().unwrap().n_passages() > 0);
    assert!(assistant.answer(AnswerRequest::new("Qulittus"), JobOptions::default()).is_err());
    drop(assistant);
    let reopened = place.with_store();
    assert_eq!(reopened.forget(Forget::Note(path)).unwrap(), Forgotten::default());
}

#[test]
fn a_job_that_was_started_before_a_deletion_keeps_nothing() {
    let place = place();
    let assistant = place.with_store();
    let mut job = assistant
        .answer(AnswerRequest::new("Who takes care of the repair of the car?"), JobOptions::default())
        .unwrap();
    job.next();
    let conversation = assistant.conversation();
    let chat = || changed(ChatRequest::new("Who repairs the car?"), |it| it.n_passages = 1);
    conversation.say(chat(), JobOptions::default()).unwrap().run().unwrap();
    assistant.forget(Forget::Note(place.notes().join("car.md"))).unwrap();
    assert!(job.run().unwrap().text.contains(SECRET));
    conversation.say(chat(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(files_with(&place, SECRET), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_conversation_is_forgotten_alone() {
    let place = place();
    let assistant = place.with_store();
    let conversation = assistant.conversation();
    conversation.say(ChatRequest::new("My word is Zanzibar."), JobOptions::default()).unwrap().run().unwrap();
    ask(&assistant, "Who comes along on the trip to Aniarda?");
    let forgotten = assistant.forget(Forget::Conversation(conversation.id())).unwrap();
    assert!((forgotten.n_answers, forgotten.n_summaries) == (1, 0) && forgotten.n_prefix_blocks > 0);
    assert_eq!(forms("Zanzibar").iter().flat_map(|form| place.files_with(form)).count(), 0);
    assert_eq!(
        assistant.forget(Forget::Before(SystemTime::now() - Duration::from_secs(3600))).unwrap().n_answers,
        0
    );
    let before = assistant.forget(Forget::Before(SystemTime::now() + Duration::from_secs(1))).unwrap();
    assert!(before.n_answers == 1 && before.n_prefix_blocks > 0, "{before:?}");
}

#[test]
fn everything_is_forgotten() {
    let place = place();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    assistant.forget(Forget::Everything).unwrap();
    assert_eq!([SECRET, OTHER].iter().flat_map(|text| files_with(&place, text)).count(), 0);
    assert_eq!(assistant.notes().unwrap().n_passages(), 0);
}

#[test]
fn without_a_store_the_memory_is_forgotten() {
    let place = place();
    let assistant = place.assistant();
    let question = "Who takes care of the repair of the car?";
    let drafted = || {
        let answer =
            assistant.answer(AnswerRequest::new(question), JobOptions::default()).unwrap().run().unwrap();
        answer.report.stats[0]
            .sources
            .iter()
            .filter(|s| s.name.as_str() == "history")
            .map(|s| s.drafted)
            .sum::<usize>()
    };
    assert_eq!(drafted(), 0);
    assert!(drafted() > 0);
    place.write("other.md", "# Car repair\n\nMaster Grybras takes care of the repair of the car.\n");
    place.update();
    assistant.notes().unwrap().refresh().unwrap();
    assistant.forget(Forget::Note(place.notes().join("car.md"))).unwrap();
    assert_eq!(drafted(), 0);
    assert_eq!(place.files_with(SECRET.as_bytes()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn passages_of_the_app_are_forgotten_with_the_note_that_they_name() {
    let place = place();
    let assistant = place.with_store();
    let note = place.notes().join("elsewhere.md");
    let passage =
        Passage::new("Car", "Qulittus Works takes care of the repair of the car.").of_note(&note).unwrap();
    let mut request = AnswerRequest::new("Who takes care of the repair of the car?");
    request.passages = Some(vec![passage]);
    assert!(assistant.answer(request, JobOptions::default()).unwrap().run().unwrap().text.contains(SECRET));
    assert_eq!(assistant.forget(Forget::Note(note)).unwrap().n_answers, 1);
    let found = files_with(&place, SECRET);
    assert!(found.iter().all(|path| path.starts_with(place.path("index"))), "{found:?}");
}

const TEXT: &str = "Qulittus Works takes care of the repair of the car.";

/// A passage of a note, which need not exist.
fn passage_of(note: &std::path::Path) -> Passage {
    Passage::new("Car", TEXT).of_note(note).unwrap()
}

fn ask_about(assistant: &Assistant, note: &std::path::Path) {
    let request = AnswerRequest::new("Who takes care of the repair of the car?");
    let job = assistant
        .answer(changed(request, |it| it.passages = Some(vec![passage_of(note)])), JobOptions::default());
    assert!(job.unwrap().run().unwrap().text.contains(SECRET));
}

#[test]
fn a_folder_is_forgotten_without_an_index() {
    let place = place();
    let builder = Assistant::builder(engine()).options(support::options()).store(place.path("store"));
    let assistant = builder.build().unwrap();
    ask_about(&assistant, &place.path("mine/deep/car.md"));
    ask_about(&assistant, &place.path("mine2/car.md"));
    let prefetch = Prefetch::Answer(changed(AnswerRequest::new(""), |it| {
        it.passages = Some(vec![passage_of(&place.path("mine/deep/other.md"))])
    }));
    assistant.prefetch(prefetch, JobOptions::default()).unwrap().run().unwrap();
    let in_store = || files_with(&place, SECRET).iter().any(|path| path.starts_with(place.path("store")));
    assert_eq!(assistant.forget(Forget::Note(place.path("min"))).unwrap(), Forgotten::default());
    let forgotten = assistant.forget(Forget::Note(place.path("mine"))).unwrap();
    assert!(forgotten.n_answers == 1 && forgotten.n_prefix_blocks > 0, "{forgotten:?}");
    assert!(in_store(), "the note of another folder");
    assert_eq!(assistant.forget(Forget::Note(place.path("mine2"))).unwrap().n_answers, 1);
    assert!(!in_store());
}

#[cfg(unix)]
#[test]
fn a_note_is_forgotten_under_all_its_names() {
    // The link lies in the notes, outside of them, and the file gets another name.
    for case in ["link", "hard", "renamed", "folder"] {
        let place = place();
        let car = place.notes().join("car.md");
        std::fs::create_dir(place.path("out")).unwrap();
        let named = match case {
            "link" => {
                std::os::unix::fs::symlink(&car, place.path("out/other.md")).unwrap();
                place.path("out/other.md")
            }
            "hard" => {
                std::fs::hard_link(&car, place.path("out/other.md")).unwrap();
                place.path("out/other.md")
            }
            "folder" => {
                std::os::unix::fs::symlink(place.notes(), place.path("out/notes")).unwrap();
                place.path("out/notes")
            }
            _ => place.notes().join("renamed.md"),
        };
        let assistant = place.with_store();
        use_notes(&place, &assistant);
        if case == "renamed" {
            std::fs::rename(&car, &named).unwrap();
        }
        let forgotten = assistant.forget(Forget::Note(named)).unwrap();
        assert!(forgotten.n_answers >= 3 && forgotten.n_prefix_blocks > 0, "{case}: {forgotten:?}");
        let found = files_with(&place, SECRET);
        let found: Vec<_> = found.iter().filter(|path| !path.starts_with(place.path("out"))).collect();
        assert_eq!(found, Vec::<&std::path::PathBuf>::new(), "{case}");
    }
}

#[test]
fn edits_and_summaries_of_a_note_s_text_are_forgotten_with_it() {
    let place = place();
    let assistant = place.with_store();
    let note = place.path("mine/car.md");
    let edit = EditRequest::new(TEXT, "Say bike.").of_note(&note).unwrap();
    assistant.edit(edit, JobOptions::default()).unwrap().run().unwrap();
    let summary = SummarizeRequest::text("Car", TEXT).of_note(&note).unwrap();
    assistant.summarize(summary, JobOptions::default()).unwrap().run().unwrap();
    let forgotten = assistant.forget(Forget::Note(place.path("mine"))).unwrap();
    assert!(forgotten.n_answers == 2 && forgotten.n_summaries == 1, "{forgotten:?}");
    assert!(files_with(&place, SECRET).iter().all(|path| path.starts_with(place.path("index"))));
}

#[test]
fn a_conversation_that_is_continued_knows_the_notes_of_its_turns() {
    let place = place();
    let assistant = place.with_store();
    let conversation = assistant.conversation();
    let mut chat = ChatRequest::new("Who repairs the car?");
    chat.n_passages = 1;
    conversation.say(chat, JobOptions::default()).unwrap().run().unwrap();
    let turns = conversation.turns();
    assert!(turns[0].notes == [place.notes().join("car.md")] && turns[1].notes == turns[0].notes);
    // As an app stores them.
    let stored: Vec<_> = turns.iter().map(|turn| (turn.message.clone(), turn.notes.clone())).collect();
    let id = conversation.id();
    assistant.forget(Forget::Before(SystemTime::now())).unwrap();
    drop((conversation, assistant));
    let assistant = place.with_store();
    let turns = stored.into_iter().map(|(message, notes)| changed(Turn::new(message), |it| it.notes = notes));
    let again = assistant.open_conversation(id, turns);
    again.say(ChatRequest::new("Who?"), JobOptions::default()).unwrap().run().unwrap();
    assert!(!forms(SECRET).iter().flat_map(|form| place.files_with(form)).collect::<Vec<_>>().is_empty());
    let forgotten = assistant.forget(Forget::Note(place.notes().join("car.md"))).unwrap();
    assert!(forgotten.n_answers == 1 && forgotten.n_prefix_blocks > 0, "{forgotten:?}");
    assert_eq!(files_with(&place, SECRET), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_cancelled_summary_keeps_no_answer_of_its_parts() {
    let place = place();
    let mut options = support::options();
    options.n_parts_max = 3;
    let assistant = place.builder().options(options).store(place.path("store")).build().unwrap();
    let text: String =
        (0..120).map(|n| format!("The trip {n} starts at {n} and ends on Monday.\n\n")).collect();
    let request = || SummarizeRequest::text("Trips", text.as_str()).with_id("trips");
    let mut job = assistant.summarize(request(), JobOptions::default()).unwrap();
    let cancel = job.cancel_token();
    let mut n_parts = 0;
    let ended = job.by_ref().find_map(|event| match event {
        Ok(JobEvent::Part { .. }) => {
            n_parts += 1;
            if n_parts == 2 {
                cancel.cancel();
            }
            None
        }
        Ok(_) => None,
        Err(error) => Some(error),
    });
    assert!(matches!(ended, Some(TaskError::Cancelled)), "{ended:?}");
    drop(job);
    let all = || assistant.forget(Forget::Before(SystemTime::now())).unwrap();
    let forgotten = all();
    assert!((forgotten.n_answers, forgotten.n_summaries) == (0, 0), "{forgotten:?}");
    let summary = assistant.summarize(request(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(all().n_answers, summary.parts.len() + 1);
}

#[test]
fn the_parts_of_a_summary_are_labelled_with_their_own_notes() {
    let place = Place::new();
    let filler = "The trip starts at nine and ends on Monday, as every year before.\n\n".repeat(60);
    let first = place.write("a.md", &format!("# First\n\nZanzibar is far.\n\n{filler}"));
    let second = place.write("b.md", &format!("# Second\n\n{filler}\n\nQulittus is the end.\n"));
    place.update();
    let assistant = place.with_store();
    let request = SummarizeRequest::notes([&first, &second]);
    let summary = assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap();
    assert!(summary.parts.len() >= 3, "{}", summary.parts.len());
    let in_prefixes = |text: &str| {
        let found = forms(text).iter().flat_map(|form| place.files_with(form)).collect::<Vec<_>>();
        found.iter().filter(|path| path.starts_with(place.path("store/prefixes"))).count()
    };
    assert!(in_prefixes("Qulittus") > 0 && in_prefixes("Zanzibar") > 0);
    assistant.forget(Forget::Note(second)).unwrap();
    assert_eq!(in_prefixes("Qulittus"), 0);
    assert!(in_prefixes("Zanzibar") > 0, "the prompt of the first part shows the first note alone");
}

#[test]
fn a_note_that_waits_for_another_writer_is_not_shown() {
    let place = place();
    let assistant = place.with_store();
    let other = NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap();
    let question = || AnswerRequest::new("Who takes care of the repair of the car?");
    let shows = |assistant: &Assistant| {
        let answer = assistant.answer(question(), JobOptions::default()).map(|job| job.run().unwrap());
        answer.is_ok_and(|answer| answer.passages.iter().any(|passage| passage.text.contains(SECRET)))
    };
    assert!(shows(&assistant));
    let car = place.notes().join("car.md");
    assert!(assistant.forget(Forget::Note(car.clone())).unwrap().is_notes_pending);
    assert!(!shows(&assistant) && !shows(&place.assistant()), "also after a restart");
    let summary = assistant.summarize(SummarizeRequest::notes([&car]), JobOptions::default());
    assert!(matches!(summary, Err(TaskError::NoSuchNote { .. })));
    drop(other);
    // The next writer carries it out. A note that is added again is shown.
    drop(NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap());
    assert!(!shows(&assistant));
    let mut writer = NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap();
    writer.add(&[&car]).unwrap();
    writer.update(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    drop(writer);
    assistant.notes().unwrap().refresh().unwrap();
    assert!(shows(&assistant));
}

#[test]
fn without_a_model_the_same_is_deleted() {
    let place = place();
    let assistant = place.with_store();
    let summary = use_notes(&place, &assistant);
    let (store, index) = (place.path("store"), place.path("index"));
    let forget = |what| refrain_assistant::forget(Some(&store), Some(&index), None, [what]);
    let car = place.notes().join("car.md");
    let refused = forget(Forget::Note(car.clone()));
    let Err(refrain_assistant::ForgetError::Store(StoreError::InUse { by_this_process: true, .. })) = refused
    else {
        panic!("{refused:?}")
    };
    let second = place.builder().store(place.path("store")).build();
    assert!(matches!(second, Err(BuildError::Store(StoreError::InUse { by_this_process: true, .. }))));
    drop(assistant);
    let forgotten = forget(Forget::Note(car)).unwrap();
    assert!(forgotten.n_answers >= 3 && forgotten.n_summaries == 1 && forgotten.n_prefix_blocks > 0);
    assert_eq!(files_with(&place, SECRET), Vec::<std::path::PathBuf>::new());
    assert_eq!(place.files_with(summary.as_bytes()), Vec::<std::path::PathBuf>::new());
    assert!(!files_with(&place, OTHER).is_empty());
    assert!(forget(Forget::Everything).unwrap().n_answers >= 1);
    assert_eq!(files_with(&place, OTHER), Vec::<std::path::PathBuf>::new());
    // Where nothing is kept, nothing is created.
    let nowhere = place.path("nowhere");
    let nothing =
        refrain_assistant::forget(Some(&nowhere), Some(&nowhere), None, [Forget::Everything]).unwrap();
    assert!(nothing == Forgotten::default() && !nowhere.exists());
}

/// Forgets without a model.
fn forget_at(place: &Place, what: Forget) -> Result<Forgotten, ForgetError> {
    refrain_assistant::forget(Some(&place.path("store")), Some(&place.path("index")), None, [what])
}

const NO_FILES: [std::path::PathBuf; 0] = [];

#[cfg(unix)]
#[test]
fn names_that_are_not_unicode_are_forgotten() {
    use std::os::unix::ffi::OsStrExt;
    let place = place();
    let odd = place.path("").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&odd).unwrap();
    let mut writer = NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap();
    writer.add(&[&odd]).unwrap();
    drop(writer);
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    ask_about(&assistant, &odd.join("a.md"));
    drop(assistant);
    assert_eq!(forget_at(&place, Forget::Note(odd.join("a.md"))).unwrap().n_answers, 1);
    // Also as a root, and as the folder of the index.
    let index = place.path("").join(std::ffi::OsStr::from_bytes(b"in\xffdex"));
    std::fs::rename(place.path("index"), &index).unwrap();
    refrain_assistant::forget(Some(&place.path("store")), Some(&index), None, [Forget::Everything]).unwrap();
    assert_eq!(files_with(&place, SECRET), NO_FILES);
    assert_eq!(NotesIndex::roots_in(&index, None).unwrap(), Some(vec![]));
}

#[test]
fn the_folder_of_something_else_is_refused_and_the_store_stays_usable() {
    let place = place();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    drop(assistant);
    let (store, notes, car) = (place.path("store"), place.notes(), place.notes().join("car.md"));
    let refused = refrain_assistant::forget(Some(&store), Some(&notes), None, [Forget::Note(car.clone())]);
    assert!(matches!(refused, Err(ForgetError::Notes(NotesError::Foreign { .. }))), "{refused:?}");
    // An empty folder gets no index.
    std::fs::create_dir(place.path("empty")).unwrap();
    let forgotten =
        refrain_assistant::forget(Some(&store), Some(&place.path("empty")), None, [Forget::Note(car)]);
    assert!(forgotten.unwrap().n_answers >= 3);
    assert_eq!(std::fs::read_dir(place.path("empty")).unwrap().count(), 0);
    place.with_store();
}

#[test]
fn an_index_that_cannot_be_changed_keeps_nothing_else_from_being_deleted() {
    let place = place();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    let car = place.notes().join("car.md");
    let other = NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap();
    let inbox = place.path("index/.inbox");
    std::fs::create_dir_all(&inbox).unwrap();
    (0..512).for_each(|n| std::fs::write(inbox.join(format!("{n:03}.request")), "").unwrap());
    let in_store = || files_with(&place, SECRET).iter().any(|path| path.starts_with(place.path("store")));
    let mut assistant = assistant;
    for _ in 0..2 {
        let failed = assistant.forget(Forget::Note(car.clone()));
        assert!(matches!(failed, Err(ForgetError::Unfinished { .. })), "{failed:?}");
        assert!(!in_store());
        // The note is in the index, and no search shows it.
        assert!(!files_with(&place, SECRET).is_empty());
        let question = AnswerRequest::new("Who takes care of the repair of the car?");
        let answer = assistant.answer(question, JobOptions::default()).map(|job| job.run().unwrap());
        let shows = |passage: &Passage| passage.text.contains(SECRET);
        assert!(!answer.is_ok_and(|answer| answer.passages.iter().any(shows)));
        assert_eq!(std::fs::read_to_string(place.path("store/ledger")).unwrap().matches("forget").count(), 1);
        drop(assistant);
        assistant = place.with_store();
    }
    drop((assistant, other));
    std::fs::remove_dir_all(inbox).unwrap();
    place.with_store();
    assert_eq!(files_with(&place, SECRET), NO_FILES);
}

#[test]
fn a_damaged_index_is_forgotten_with_its_roots() {
    let place = place();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    drop(assistant);
    hand_in(&place.path("index"), None, &Request::Add(vec![place.path("store")])).unwrap();
    std::fs::write(place.path("index/words/meta.json"), "x").unwrap();
    assert!(NotesIndex::open(&place.path("index")).is_err());
    forget_at(&place, Forget::Everything).unwrap();
    assert_eq!(NotesIndex::roots_in(&place.path("index"), None).unwrap(), Some(vec![]));
    assert_eq!(files_with(&place, SECRET), NO_FILES);
}

#[test]
fn a_store_without_its_ledger_is_forgotten() {
    for what in ["all", "note"] {
        let place = place();
        let assistant = place.with_store();
        use_notes(&place, &assistant);
        drop(assistant);
        std::fs::remove_file(place.path("store/ledger")).unwrap();
        let what = match what {
            "all" => Forget::Everything,
            _ => Forget::Note(place.notes().join("car.md")),
        };
        assert!(forget_at(&place, what).unwrap().n_answers >= 4);
        assert_eq!(files_with(&place, SECRET), NO_FILES);
    }
}

#[test]
fn damaged_answers_are_forgotten() {
    for is_all in [false, true] {
        let place = place();
        let assistant = place.with_store();
        use_notes(&place, &assistant);
        drop(assistant);
        // A bit before the name, in each log: its answers are not listed any more, and the file is set aside.
        let form = forms(SECRET).remove(1);
        let in_history = || {
            place.files_with(&form).into_iter().filter(|path| path.starts_with(place.path("store/history")))
        };
        for path in in_history() {
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.windows(form.len()).position(|window| window == form).unwrap();
            bytes[at - 4] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        drop(place.with_store());
        let is_aside =
            |path: std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("damaged.");
        assert!(in_history().any(is_aside));
        let what = if is_all { Forget::Everything } else { Forget::Note(place.notes().join("car.md")) };
        forget_at(&place, what).unwrap();
        assert_eq!(files_with(&place, SECRET), NO_FILES);
    }
}

#[cfg(unix)]
#[test]
fn a_note_that_is_gone_is_forgotten_through_a_link() {
    let place = place();
    std::os::unix::fs::symlink(place.notes(), place.path("link")).unwrap();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    std::fs::remove_file(place.notes().join("car.md")).unwrap();
    let forgotten = assistant.forget(Forget::Note(place.path("link/car.md"))).unwrap();
    assert!(forgotten.n_answers >= 3 && forgotten.n_prefix_blocks > 0, "{forgotten:?}");
    let found: Vec<_> =
        files_with(&place, SECRET).into_iter().filter(|path| !path.starts_with(place.path("link"))).collect();
    assert_eq!(found, NO_FILES);
}

#[test]
fn several_deletions_run_at_once_and_leave_the_requests_of_others() {
    let place = place();
    let assistant = place.with_store();
    use_notes(&place, &assistant);
    drop(assistant);
    hand_in(&place.path("index"), None, &Request::Update).unwrap();
    let what = ["car.md", "aniarda-travel.md"].map(|name| Forget::Note(place.notes().join(name)));
    let forgotten =
        refrain_assistant::forget(Some(&place.path("store")), Some(&place.path("index")), None, what)
            .unwrap();
    assert!(forgotten.n_answers >= 4, "{forgotten:?}");
    assert_eq!([SECRET, OTHER].iter().flat_map(|text| files_with(&place, text)).count(), 0);
    assert_eq!(NotesIndex::open(&place.path("index")).unwrap().status().unwrap().n_requests, 1);
}

#[test]
fn a_conversation_that_begins_after_a_deletion_is_kept() {
    let place = place();
    let assistant = place.with_store();
    let conversation = assistant.conversation();
    assistant.forget(Forget::Everything).unwrap();
    conversation.say(ChatRequest::new("My word is Zanzibar."), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(assistant.forget(Forget::Conversation(conversation.id())).unwrap().n_answers, 1);
}

#[test]
fn a_document_without_a_file_is_forgotten_with_what_was_made_from_it() {
    let place = place();
    let text = "# Bicycle\n\nQulittus Works takes care of the repair of the bicycle. The repair is planned for 18 August.";
    let put = || {
        let mut writer = NotesWriter::open(&place.path("index"), NotesOptions::default()).unwrap();
        writer.put(b"rows/1", text, &Metadata::default()).unwrap();
    };
    put();
    let assistant = place.with_store();
    assistant.forget(Forget::Note(place.notes().join("car.md"))).unwrap();
    let answer = || {
        let mut request = AnswerRequest::new("Who takes care of the repair of the bicycle?");
        request.filter = NoteFilter::within(["document:/rows"]);
        assistant.answer(request, JobOptions::default()).unwrap().run()
    };
    let answered = answer().unwrap();
    assert!(answered.text.contains(SECRET), "{}", answered.text);
    let source = answered.passages[0].source.as_ref().unwrap();
    assert_eq!(source.document_id().as_deref(), Some(&b"rows/1"[..]));
    assert!(!assistant.note(&document_path(b"rows/1").unwrap()).unwrap().is_empty());
    assert!(
        assistant.note_files().unwrap().iter().any(|file| file.path == document_path(b"rows/1").unwrap())
    );
    let forgotten = assistant.forget(Forget::Note(document_path(b"rows").unwrap())).unwrap();
    assert!(forgotten.n_answers == 1 && forgotten.n_prefix_blocks > 0, "{forgotten:?}");
    for form in forms(SECRET) {
        assert!(place.files_with(&form).is_empty());
    }
    assert!(place.files_with(b"rows/1").is_empty());
    // Everything means these too.
    put();
    assistant.notes().unwrap().refresh().unwrap();
    answer().unwrap();
    assistant.forget(Forget::Everything).unwrap();
    assert!(place.files_with(SECRET.as_bytes()).is_empty());
    assert_eq!(assistant.notes().unwrap().status().unwrap().n_documents, 0);
}
