//! `Builder::key`: one key for the index, the history, the prefixes and the ledger.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use refrain_assistant::{
    AnswerRequest, Assistant, BuildError, ChatRequest, Forget, ForgetError, JobOptions, StoreError,
    SummarizeRequest, forget,
};
use refrain_index::KeyProblem;
use refrain_index::notes::{NotesError, NotesOptions, NotesWriter};

use crate::support::{self, Place, engine};

const KEY: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];
const SECRET: &str = "Qulittus";

fn place(key: Option<[u8; 32]>) -> Place {
    let place = Place::new();
    place.write("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car.\n");
    place.write("trip.md", "# Trip\n\nThe ferry to Aniarda leaves at noon.\n");
    let mut writer =
        NotesWriter::open(&place.path("index"), NotesOptions { key, ..NotesOptions::default() }).unwrap();
    writer.add(&[place.notes()]).unwrap();
    writer.update(&mut |_, _| ControlFlow::Continue(())).unwrap();
    place
}

fn open(place: &Place, key: Option<[u8; 32]>) -> Result<Assistant, BuildError> {
    let builder = place.builder().store(place.path("store"));
    key.into_iter().fold(builder, |builder, key| builder.key(key)).build()
}

fn use_notes(place: &Place, assistant: &Assistant) {
    let question = AnswerRequest::new("Who takes care of the repair of the car?");
    assert!(assistant.answer(question, JobOptions::default()).unwrap().run().unwrap().text.contains(SECRET));
    let request = SummarizeRequest::notes([place.notes().join("car.md")]);
    assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap();
    let mut chat = ChatRequest::new("Who repairs the car?");
    chat.n_passages = 1;
    assistant.conversation().say(chat, JobOptions::default()).unwrap().run().unwrap();
}

/// The files of store and index.
fn files(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    ["store", "index"].iter().flat_map(|name| support::files(&place.path(name))).collect()
}

/// A text as it may be stored: as it is, in hexadecimal digits, and as the end of its token ids.
fn forms(text: &str) -> Vec<Vec<u8>> {
    let tokens = engine().tokenizer().encode(text, refrain::SpecialTokens::AsText).unwrap();
    let ids = tokens[tokens.len() - 2..].iter().flat_map(|token| token.0.to_le_bytes()).collect();
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    vec![text.as_bytes().to_vec(), text.to_lowercase().into_bytes(), digits.into_bytes(), ids]
}

#[test]
fn nothing_of_a_session_can_be_read_and_all_of_it_is_used_again() {
    let place = place(Some(KEY));
    let assistant = open(&place, Some(KEY)).unwrap();
    use_notes(&place, &assistant);
    drop(assistant);
    let files = files(&place);
    for kind in ["history", "prefixes", "ledger", "words"] {
        assert!(files.keys().any(|path| path.components().any(|part| part.as_os_str() == kind)), "{kind}");
    }
    for text in [SECRET, "repair of the car", "Aniarda", "car.md", "default", "conversation", "summary"] {
        for form in forms(text) {
            let has = |bytes: &[u8]| bytes.windows(form.len()).any(|window| window == form);
            let found: Vec<_> = files.iter().filter(|(_, bytes)| has(bytes)).map(|(path, _)| path).collect();
            assert!(found.is_empty(), "{text}: {found:?}");
        }
    }
    let assistant = open(&place, Some(KEY)).unwrap();
    let request = SummarizeRequest::notes([place.notes().join("car.md")]);
    let summary = assistant.summarize(request, JobOptions::default()).unwrap().run().unwrap();
    assert!(summary.previous.is_some(), "the summary was kept");
    let question = AnswerRequest::new("Who takes care of the repair of the car?");
    let answer = assistant.answer(question, JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(answer.report.stats[0].prefilled_tokens, 0, "the prompt was kept");
}

#[test]
fn a_store_opens_with_its_key_alone_and_loses_nothing() {
    for (of_store, tried, problem) in [
        (Some(KEY), Some(OTHER), KeyProblem::Wrong),
        (Some(KEY), None, KeyProblem::Missing),
        (None, Some(KEY), KeyProblem::NotEncrypted),
    ] {
        let place = place(of_store);
        use_notes(&place, &open(&place, of_store).unwrap());
        let before = files(&place);
        let without_index = |key: Option<[u8; 32]>| {
            let builder = Assistant::builder(engine()).store(place.path("store"));
            key.into_iter().fold(builder, |builder, key| builder.key(key)).build()
        };
        match without_index(tried) {
            Err(BuildError::Store(StoreError::Key { problem: found, .. })) => assert_eq!(found, problem),
            other => panic!("{other:?}"),
        }
        let refused = open(&place, tried);
        assert!(matches!(refused, Err(BuildError::Notes(NotesError::Key { .. }))), "{refused:?}");
        let (store, index) = (place.path("store"), place.path("index"));
        for what in [Forget::Everything, Forget::Note(place.notes().join("car.md"))] {
            let refused = forget(Some(&store), Some(&index), tried.as_ref(), [what]);
            assert!(matches!(refused, Err(ForgetError::Store(StoreError::Key { .. }))), "{refused:?}");
        }
        let after = files(&place);
        for (path, bytes) in &before {
            assert_eq!(after.get(path), Some(bytes), "{path:?}");
        }
        drop(open(&place, of_store).unwrap());
    }
}

#[test]
fn deletion_reaches_everything_with_a_key() {
    let place = place(Some(KEY));
    let assistant = open(&place, Some(KEY)).unwrap();
    use_notes(&place, &assistant);
    let car = place.notes().join("car.md");
    let forgotten = assistant.forget(Forget::Note(car.clone())).unwrap();
    assert!(
        forgotten.n_answers >= 2 && forgotten.n_summaries == 1 && forgotten.n_prefix_blocks > 0,
        "{forgotten:?}"
    );
    assert!(!forgotten.is_notes_pending && assistant.notes().unwrap().passages_of(&car).unwrap().is_empty());
    use_notes_of_trip(&assistant);
    drop(assistant);
    let (store, index) = (place.path("store"), place.path("index"));
    let all = forget(Some(&store), Some(&index), Some(&KEY), [Forget::Everything]).unwrap();
    assert!(all.n_answers > 0, "{all:?}");
    let assistant = open(&place, Some(KEY)).unwrap();
    assert_eq!(assistant.notes().unwrap().n_passages(), 0);
}

fn use_notes_of_trip(assistant: &Assistant) {
    let question = AnswerRequest::new("When does the ferry to Aniarda leave?");
    assistant.answer(question, JobOptions::default()).unwrap().run().unwrap();
}
