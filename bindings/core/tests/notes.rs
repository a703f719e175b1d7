//! Notes and the assistant's tasks.

#![cfg(feature = "notes")]

use std::sync::Arc;

use refrain_ffi::{
    AskRequest, Assistant, AssistantOptions, ChatRequest, Document, EditRequest, Engine, EngineOptions,
    ErrorKind, Event, FfiError, Forget, GenerateOptions, JobResult, NoteFilter, Notes, NotesOptions, Passage,
    Place, PutRequest, ReplyRequest, SearchRequest, SessionOptions, SummarizeRequest, TaskRequest, UiRequest,
    Units, document_path,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");

fn engine(units: Units) -> Arc<Engine> {
    let options = EngineOptions {
        threads: Some(1),
        measure_ms: Some(0),
        units: Some(units),
        ..EngineOptions::new(MODEL)
    };
    Engine::open(options, None).unwrap()
}

struct Folders(tempfile::TempDir);

impl Folders {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        std::fs::create_dir(&notes).unwrap();
        std::fs::write(notes.join("kitchen.md"), "# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.")
            .unwrap();
        std::fs::write(notes.join("car.md"), "# Car\n\nQulittus Works takes care of the repair of the car.")
            .unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn notes(&self) -> Arc<Notes> {
        let options = NotesOptions {
            folder: self.path("index"),
            languages: None,
            embedder: None,
            key: None,
            units: None,
        };
        Notes::open(options).unwrap()
    }
}

fn kind<T>(outcome: Result<T, FfiError>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

fn run(assistant: &Assistant, request: TaskRequest) -> Result<JobResult, FfiError> {
    let options = GenerateOptions { max_tokens: Some(48), ..GenerateOptions::default() };
    assistant.start(request, options)?.wait()
}

#[test]
fn notes_are_added_searched_and_forgotten() {
    let folders = Folders::new();
    let notes = folders.notes();
    assert_eq!(
        kind(notes.search(SearchRequest { text: "tap".to_owned(), ..Default::default() })),
        Some(ErrorKind::NotFound)
    );
    let job = notes.add(vec![folders.path("notes")]).unwrap();
    let update = job.wait().unwrap().update.unwrap();
    assert_eq!((update.added, update.is_incomplete), (2, false));
    let events = job.next_events(0).unwrap();
    assert!(matches!(&events[0], Event::Progress { done, total, .. } if done <= total), "{events:?}");
    let search = SearchRequest { text: "Who is repairing the tap?".to_owned(), ..SearchRequest::default() };
    let hits = notes.search(search.clone()).unwrap();
    assert_eq!((hits[0].title.as_str(), &hits[0].document), ("Kitchen", &None));
    let Place { start, end } = hits[0].matched[0];
    assert!(hits[0].snippet[start as usize..end as usize].to_lowercase().contains("tap"));
    let filter = NoteFilter { kinds: vec!["mail".to_owned()], ..NoteFilter::default() };
    assert_eq!(notes.search(SearchRequest { filter: Some(filter), ..search.clone() }).unwrap(), []);
    let unknown = NoteFilter { kinds: vec!["letter".to_owned()], ..NoteFilter::default() };
    assert_eq!(
        kind(notes.search(SearchRequest { filter: Some(unknown), ..search })),
        Some(ErrorKind::InvalidArgument)
    );
    assert_eq!(notes.files().unwrap().len(), 2);
    let forgotten = notes.forget(vec![folders.path("notes/kitchen.md")]).unwrap().wait().unwrap();
    assert_eq!(forgotten.update.unwrap().removed, 1);
    assert_eq!(
        notes.update().unwrap().wait().unwrap().update.unwrap().added,
        0,
        "what is forgotten stays so"
    );
    notes.close().unwrap();
    assert_eq!(kind(notes.files()), Some(ErrorKind::Closed));
}

#[test]
fn documents_are_put_with_a_cursor() {
    let folders = Folders::new();
    let notes = folders.notes();
    let document =
        |id: &str, text: &str| Document { id: id.to_owned(), text: text.to_owned(), ..Document::default() };
    let request = PutRequest {
        documents: vec![document("row/1", "The tap drips."), document("row/2", "The train to Oslo.")],
        remove: Vec::new(),
        cursor: Some("7".to_owned()),
    };
    let change = notes.put(request).unwrap();
    let changes = notes.documents_since(0).unwrap();
    assert_eq!((changes.change, changes.put.len(), changes.put[0].id.as_str()), (change, 2, "row/1"));
    assert_eq!(notes.cursor().unwrap().as_deref(), Some("7"));
    let hits = notes.search(SearchRequest { text: "Oslo".to_owned(), ..SearchRequest::default() }).unwrap();
    assert_eq!(hits[0].document.as_deref(), Some("row/2"));
    assert_eq!(hits[0].path, document_path("row/2".to_owned()));
    let remove = PutRequest { remove: vec!["row/1".to_owned()], ..PutRequest::default() };
    notes.put(remove).unwrap();
    assert_eq!(notes.documents_since(change).unwrap().removed, ["row/1"]);
}

#[test]
fn tasks_give_text_with_sources() {
    let folders = Folders::new();
    folders.notes().add(vec![folders.path("notes")]).unwrap().wait().unwrap();
    let engine = engine(Units::Utf8);
    let options = AssistantOptions {
        notes: Some(folders.path("index")),
        store: Some(folders.path("store")),
        ..AssistantOptions::default()
    };
    let assistant = engine.assistant(options.clone()).unwrap();
    assert_eq!(kind(engine.assistant(options)), Some(ErrorKind::InUse));
    let ask = |question: &str| AskRequest { question: question.to_owned(), ..AskRequest::default() };
    let answer = run(&assistant, TaskRequest::Ask(ask("Who takes care of the repair of the car?"))).unwrap();
    assert_eq!(answer.sources[0].title, "Car");
    assert!(answer.sources[0].path.as_ref().unwrap().ends_with("car.md"));
    for sentence in &answer.sentences {
        let Place { start, end } = sentence.place;
        assert!(answer.text.get(start as usize..end as usize).is_some());
    }
    assert_eq!(kind(run(&assistant, TaskRequest::Ask(ask("Zyzzyva quokka?")))), Some(ErrorKind::NotInNotes));
    let kept = run(&assistant, TaskRequest::PrefetchAsk(ask("Who repairs the tap?"))).unwrap();
    assert!(kept.kept_tokens.is_some_and(|n| n > 0));

    let texts =
        vec![Passage { title: String::new(), text: "The tap drips. Ada repairs it.".to_owned(), note: None }];
    let summarize = SummarizeRequest { texts: texts.clone(), ..SummarizeRequest::default() };
    let summary = run(&assistant, TaskRequest::Summarize(summarize.clone())).unwrap();
    assert_eq!(summary.sources.len(), 1);
    let both = SummarizeRequest { query: Some("tap".to_owned()), ..summarize };
    assert_eq!(kind(run(&assistant, TaskRequest::Summarize(both))), Some(ErrorKind::InvalidArgument));
    let reply =
        ReplyRequest { message: texts[0].clone(), request: "Accept.".to_owned(), ..ReplyRequest::default() };
    assert_eq!(run(&assistant, TaskRequest::Reply(reply)).unwrap().sources.len(), 1);
    let ui = UiRequest {
        screen: "1 button \"Sign in\"\n2 button \"Help\"".to_owned(),
        goal: "Sign in.".to_owned(),
        ..UiRequest::default()
    };
    let command = run(&assistant, TaskRequest::Ui(ui.clone())).unwrap().command.unwrap();
    assert_ne!(command.kind, "other");
    let grammar = GenerateOptions { json_schema: Some("{}".to_owned()), ..GenerateOptions::default() };
    assert_eq!(kind(assistant.start(TaskRequest::Ui(ui), grammar)), Some(ErrorKind::InvalidArgument));
    let forgotten = assistant.forget(Forget::Note { path: folders.path("notes/car.md") }).unwrap();
    assert!(forgotten.answers > 0, "{forgotten:?}");
    let bad = Forget::Conversation { id: "0123456789abcdeg".to_owned() };
    assert_eq!(kind(assistant.forget(bad)), Some(ErrorKind::InvalidArgument));
}

#[test]
fn a_conversation_is_stored_and_continued() {
    let engine = engine(Units::Utf8);
    let options = AssistantOptions {
        session: Some(SessionOptions { context_len: Some(512), ..SessionOptions::default() }),
        ..AssistantOptions::default()
    };
    let assistant = engine.assistant(options).unwrap();
    let conversation = assistant.conversation(None, Vec::new()).unwrap();
    let say = |text: &str| ChatRequest { text: text.to_owned(), ..ChatRequest::default() };
    let options = GenerateOptions { max_tokens: Some(16), sentences: true, ..GenerateOptions::default() };
    conversation.say(say("Who repairs the tap?"), options.clone()).unwrap().wait().unwrap();
    let (id, turns) = (conversation.id().unwrap(), conversation.turns().unwrap());
    assert_eq!((id.len(), turns.len()), (16, 2));
    let continued = assistant.conversation(Some(id.clone()), turns).unwrap();
    assert_eq!(continued.id().unwrap(), id);
    let [text, other] = [continued, conversation].map(|conversation| {
        conversation.say(say("And the door?"), options.clone()).unwrap().wait().unwrap().text
    });
    assert_eq!(text, other);
}

#[test]
fn an_edit_shows_its_changes_in_the_units_of_the_language() {
    let text = "Das Café 🎉 öffnet am Montag. Ada Voss repariert den Hahn.";
    let [utf8, utf16] = [Units::Utf8, Units::Utf16].map(|units| {
        let assistant = engine(units).assistant(AssistantOptions::default()).unwrap();
        let request = EditRequest {
            text: text.to_owned(),
            instruction: "Change Montag to Freitag.".to_owned(),
            ..EditRequest::default()
        };
        run(&assistant, TaskRequest::Edit(request)).unwrap()
    });
    assert_eq!(utf8.text, utf16.text);
    assert_eq!(utf8.changes.len(), utf16.changes.len());
    let (old, new): (Vec<u16>, Vec<u16>) =
        (text.encode_utf16().collect(), utf16.text.encode_utf16().collect());
    for (bytes, units) in utf8.changes.iter().zip(&utf16.changes) {
        let of_bytes = |text: &str, place: Place| text[place.start as usize..place.end as usize].to_owned();
        let of_units = |text: &[u16], place: Place| {
            String::from_utf16(&text[place.start as usize..place.end as usize]).unwrap()
        };
        assert_eq!(of_bytes(text, bytes.old), of_units(&old, units.old));
        assert_eq!(of_bytes(&utf8.text, bytes.new), of_units(&new, units.new));
    }
    // A place between the two units of a character is refused.
    let assistant = engine(Units::Utf16).assistant(AssistantOptions::default()).unwrap();
    let at = text.encode_utf16().position(|unit| unit >= 0xd800).unwrap() as u64;
    let request = EditRequest {
        text: text.to_owned(),
        instruction: "Shorter.".to_owned(),
        selection: Some(Place { start: 0, end: at + 1 }),
        ..EditRequest::default()
    };
    let Err(FfiError::Failed { info }) = run(&assistant, TaskRequest::Edit(request)) else {
        panic!("refused")
    };
    assert_eq!((info.kind, info.field.as_deref()), (ErrorKind::InvalidArgument, Some("selection")));
}
