//! Deletion across index, history, summaries and prefixes.

mod support;

use std::time::{Duration, SystemTime};

use refrain_assistant::{
    AnswerRequest, Assistant, ChatRequest, Forget, Forgotten, JobOptions, Passage, Prefetch, SummarizeRequest,
};
use support::{Place, engine, sample_notes};

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
    let chat = ChatRequest::new("Who repairs the car?").with_n_passages(1_usize);
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
    let chat = || ChatRequest::new("Who repairs the car?").with_n_passages(1_usize);
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
    let request = AnswerRequest::new("Who takes care of the repair of the car?").with_passages(vec![passage]);
    assert!(assistant.answer(request, JobOptions::default()).unwrap().run().unwrap().text.contains(SECRET));
    assert_eq!(assistant.forget(Forget::Note(note)).unwrap().n_answers, 1);
    let found = files_with(&place, SECRET);
    assert!(found.iter().all(|path| path.starts_with(place.path("index"))), "{found:?}");
}
