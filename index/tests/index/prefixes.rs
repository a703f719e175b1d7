//! Restored prefixes never change the output: tokens, texts and logits equal those of a session that computed its
//! prompt. Nothing forgotten, and nothing encrypted, is in a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use refrain::drafting::Calibration;
use refrain::{
    Drafting, Engine, Event, GenerateOptions, KvType, LogitsProcessor, ProcessorError, Role, Sampling,
    Session, SessionOptions, Stats, TokenId,
};
use refrain_index::prefixes::{Label, PrefixOptions, PrefixProblem, PrefixStore};

use crate::prefixes_support::{self, computed, engine, files, holds, plain, state, token_bytes};

const SYSTEM: &str = "You answer from the notes, in one sentence, and name the note that says it.";

const NOTES: [&str; 3] = [
    "# Trip\nThe train leaves at 08:15 from platform 4. Ada brings the tickets.",
    "# Ada Voss\nAda lives in Lisbon and repairs taps.",
    "# Meeting\nWe meet on 3 May at ten.",
];

fn samplings() -> [Sampling; 2] {
    [Sampling::default(), Sampling { temperature: 0.8, top_p: 0.95, seed: Some(5), ..Sampling::default() }]
}

fn open(folder: &Path, key: Option<[u8; 32]>) -> PrefixStore {
    PrefixStore::open(folder, PrefixOptions { key, ..PrefixOptions::default() }).expect("opens")
}

fn conversation(engine: &Engine, options: &SessionOptions, note: &str) -> Session {
    let mut session = engine.session(options.clone()).expect("a session");
    session.append_turn(Role::System, SYSTEM).expect("a turn");
    session.append_turn(Role::User, format!("{note}\n\nWhat does the note say?")).expect("a turn");
    session
}

/// Hashes the logits of each position.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<BTreeMap<usize, u64>>>);

impl LogitsProcessor for Recorder {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let hash = logits
            .iter()
            .fold(7u64, |hash, x| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01B3));
        self.0.lock().expect("no panic").insert(tokens.len(), hash);
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    text: String,
    logits: BTreeMap<usize, u64>,
}

fn answer(session: &mut Session, sampling: &Sampling) -> (Answer, Stats) {
    let recorder = Recorder::default();
    let options = GenerateOptions {
        max_tokens: 32,
        sampling: sampling.clone(),
        processors: vec![Box::new(recorder.clone())],
        ..GenerateOptions::default()
    };
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for event in session.generate(options).expect("starts") {
        match event.expect("generates") {
            Event::Token(token) => {
                tokens.push(token.id);
                text.push_str(&token.text);
            }
            Event::Done(summary) => {
                text.push_str(&summary.text);
                let logits = recorder.0.lock().expect("no panic").clone();
                return (Answer { tokens, text, logits }, summary.stats);
            }
            _ => {}
        }
    }
    unreachable!("a generation ends")
}

#[test]
fn a_conversation_continues_bit_for_bit_in_another_process() {
    // The second engine stands for another process, with another number of threads.
    let (first, second) = (engine(1), engine(3));
    for &kv_type in KvType::ALL {
        for drafting in [Drafting::Off, Drafting::Auto] {
            let options = SessionOptions {
                kv_type,
                drafting,
                history: false,
                calibration: Calibration::InContext,
                ..SessionOptions::default()
            };
            for sampling in &samplings() {
                let folder = tempfile::tempdir().expect("a folder");
                let mut cold = conversation(&first, &options, NOTES[0]);
                let (expected, _) = answer(&mut cold, sampling);
                let store = open(folder.path(), None);
                let n_kept = store.keep(&cold, "notes", &[], usize::MAX).expect("keeps");
                assert_eq!(n_kept, cold.tokens().len() - 1);

                let store = open(folder.path(), None);
                let mut warm = conversation(&second, &options, NOTES[0]);
                let n_prompt = warm.state_mut().encode().expect("encodes").len();
                assert_eq!(store.restore(&mut warm, "notes").expect("restores"), n_prompt - 1);
                let (found, stats) = answer(&mut warm, sampling);
                assert_eq!(found, expected, "{kv_type} {drafting:?}");
                assert_eq!((stats.cached_tokens, stats.prefilled_tokens), (n_prompt - 1, 0));

                // A second turn, in a session that has nothing but the texts.
                let mut next = engine_session_of(&second, &options, &warm);
                for session in [&mut cold, &mut next] {
                    session.append_turn(Role::User, "Who brings them?").expect("a turn");
                }
                let n_restored = store.restore(&mut next, "notes").expect("restores");
                assert!(n_restored > n_prompt, "{n_restored}: the answer is restored too");
                assert_eq!(answer(&mut next, sampling).0, answer(&mut cold, sampling).0, "second turn");

                // Another note: the system turn is shared.
                let mut other = conversation(&second, &options, NOTES[1]);
                let n_shared = store.restore(&mut other, "notes").expect("restores");
                assert!(n_shared > 20 && n_shared < n_prompt - 1, "{n_shared}");
                let (found, _) = answer(&mut other, sampling);
                assert_eq!(found, answer(&mut conversation(&first, &options, NOTES[1]), sampling).0);
            }
        }
    }
}

/// A new session with the turns of another.
fn engine_session_of(engine: &Engine, options: &SessionOptions, other: &Session) -> Session {
    let mut session = engine.session(options.clone()).expect("a session");
    other.turns().iter().for_each(|turn| session.append_message(turn.clone()).expect("a turn"));
    session
}

#[test]
fn a_fork_and_a_shortened_session_are_those_of_a_computed_one() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let store = open(folder.path(), None);
    let tokens: Vec<TokenId> = (0..150).map(|i| TokenId(10 + i * i % 200)).collect();
    let kept = computed(&engine, &tokens);
    store.keep(&kept, "a", &[], usize::MAX).expect("keeps");
    let mut session = engine.session(plain()).expect("a session");
    session.append_tokens(&tokens).expect("fits");
    store.restore(&mut session, "a").expect("restores");
    let fork = session.fork().expect("memory");
    assert!(state(&fork) == state(&kept));
    session.truncate(77).expect("plain");
    session.append_tokens(&tokens[100..]).expect("fits");
    assert_eq!(store.restore(&mut session, "a").expect("restores"), 0, "77 are in the session already");
    let computed = computed(&engine, session.tokens());
    session.prefill(&refrain::CancelToken::new(), |_, _| {}).expect("computes");
    assert!(state(&session) == state(&computed));
}

#[test]
fn nothing_is_shared_between_namespaces_models_and_types_of_cache() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let draft = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/draft.gguf");
    let other = Engine::open(draft, prefixes_support::engine_options(1)).expect("the fixture loads");
    let store = open(folder.path(), None);
    let tokens: Vec<TokenId> = (0..100).map(|i| TokenId(10 + i)).collect();
    store.keep(&computed(&engine, &tokens), "a", &[], usize::MAX).expect("keeps");
    let restored = |engine: &Engine, kv_type, namespace| {
        let mut session = engine.session(SessionOptions { kv_type, ..plain() }).expect("a session");
        session.append_tokens(&tokens).expect("fits");
        store.restore(&mut session, namespace).expect("restores")
    };
    assert_eq!(restored(&engine, KvType::F16, "a"), 99);
    assert_eq!(restored(&engine, KvType::F16, "b"), 0);
    assert_eq!(restored(&engine, KvType::F16, ""), 0);
    assert_eq!(restored(&engine, KvType::F32, "a"), 0);
    assert_eq!(restored(&other, KvType::F16, "a"), 0);
    // One namespace has several models, and forgetting means all of them.
    store.keep(&computed(&other, &tokens), "a", &[], usize::MAX).expect("keeps");
    store.keep(&computed(&engine, &tokens), "b", &[], usize::MAX).expect("keeps");
    assert_eq!(store.forget_namespace("a").expect("forgets"), 4);
    assert_eq!([restored(&engine, KvType::F16, "a"), restored(&other, KvType::F16, "a")], [0, 0]);
    assert_eq!(restored(&engine, KvType::F16, "b"), 99);
    assert_eq!(store.clear().expect("clears"), 2);
    assert_eq!(files(folder.path()).len(), 2, "two locks");
}

#[test]
fn forgetting_a_note_leaves_no_byte_of_it_and_what_does_not_follow_it() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let store = open(folder.path(), None);
    // The first 100 tokens are common; a note follows; then the request.
    let part =
        |seed: u32, n: u32| (0..n).map(move |i| TokenId(10 + (i * i * 3 + i * seed) % 97 + seed)).collect();
    let [common, trip, taps, request]: [Vec<TokenId>; 4] =
        [part(1, 100), part(31, 60), part(67, 60), part(5, 30)];
    let prompt = |note: &[TokenId]| [&common[..], note, &request].concat();
    let label = |name: &str, tokens| Label { tokens, name: name.to_owned() };
    for (note, name) in [(&trip, "note:trip.md"), (&taps, "note:taps.md")] {
        let labels = [label(name, 100..160), label("conversation:1", 0..190)];
        store.keep(&computed(&engine, &prompt(note)), "a", &labels[..1], usize::MAX).expect("keeps");
        // Kept again with another label: it has both.
        store.keep(&computed(&engine, &prompt(note)), "b", &labels[1..], usize::MAX).expect("keeps");
        store.keep(&computed(&engine, &prompt(note)), "b", &labels[..1], usize::MAX).expect("keeps");
    }
    let restored = |note: &[TokenId], namespace| {
        let mut session = engine.session(plain()).expect("a session");
        session.append_tokens(&prompt(note)).expect("fits");
        store.restore(&mut session, namespace).expect("restores")
    };
    let of_note = token_bytes(&trip[..8]);
    assert!(holds(folder.path(), &of_note));
    // A damaged file and one that is being written are forgotten too.
    for namespace in ["a", "b"] {
        let labels = ["note:none.md", "note:trip.md", "note:other.md"];
        assert!(store.forget_all(namespace, &labels).expect("forgets") >= 2);
        assert_eq!(store.forget(namespace, "note:trip.md").expect("forgets"), 0);
    }
    assert!(!holds(folder.path(), &of_note));
    assert_eq!(restored(&trip, "a"), 100);
    assert_eq!(restored(&taps, "a"), 189);
    assert_eq!(restored(&taps, "b"), 189);
    assert_eq!(store.forget("b", "conversation:1").expect("forgets"), 3);
    assert_eq!((restored(&taps, "a"), restored(&taps, "b")), (189, 0));
    assert!(store.verify().expect("reads").left_aside.is_empty());
}

#[test]
fn with_a_key_no_file_and_no_name_reveals_anything() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let tokens: Vec<TokenId> = (0..140).map(|i| TokenId(10 + i * i % 200)).collect();
    let session = computed(&engine, &tokens);
    let labels = [Label { tokens: 10..20, name: "note:secret-label.md".to_owned() }];
    let (plain_bytes, state) = (token_bytes(&tokens[..6]), state(&session));
    let sample =
        state.chunks(32).find(|bytes| bytes.iter().filter(|&&byte| byte != 0).count() > 24).expect("numbers");
    let names = |folder: &Path| {
        let mut names: Vec<String> =
            files(folder).into_keys().map(|path| path.display().to_string()).collect();
        names.retain(|name| !name.ends_with(".lock"));
        names
    };
    let mut all_names = Vec::new();
    for key in [None, Some([1; 32]), Some([2; 32])] {
        let below = tempfile::tempdir_in(folder.path()).expect("a folder");
        let store = open(below.path(), key);
        assert_eq!(store.keep(&session, "secret-namespace", &labels, usize::MAX).expect("keeps"), 139);
        let relative = |name: String| name.replace(&below.path().display().to_string(), "");
        all_names.push(names(below.path()).into_iter().map(relative).collect::<Vec<_>>());
        for secret in [&b"secret-label"[..], b"secret-namespace"] {
            assert!(!holds(below.path(), secret));
        }
        assert_eq!(holds(below.path(), &plain_bytes), key.is_none());
        assert_eq!(holds(below.path(), sample), key.is_none());
        assert_eq!(store.verify().expect("reads").n_tokens, 139);
        let mut warm = engine.session(plain()).expect("a session");
        warm.append_tokens(&tokens).expect("fits");
        assert_eq!(store.restore(&mut warm, "secret-namespace").expect("restores"), 139);
        assert!(prefixes_support::state(&warm) == state);
        assert_eq!(store.forget("secret-namespace", "note:secret-label.md").expect("forgets"), 3);
        // What another key, or none, wrote is removed: it could not be forgotten.
        store.keep(&session, "secret-namespace", &labels, usize::MAX).expect("keeps");
        for other in [None, Some([1; 32]), Some([2; 32])].into_iter().filter(|other| *other != key) {
            let store = open(below.path(), other);
            let mut cold = engine.session(plain()).expect("a session");
            cold.append_tokens(&tokens).expect("fits");
            assert_eq!(store.restore(&mut cold, "secret-namespace").expect("restores"), 0);
            let left = names(below.path());
            assert!(left.is_empty() && store.status().expect("reads").left_aside.is_empty(), "{left:?}");
        }
    }
    // The same prompt has other names under another key.
    let flat: Vec<&String> = all_names.iter().flatten().collect();
    let distinct: std::collections::HashSet<&&String> = flat.iter().collect();
    assert_eq!((flat.len(), distinct.len()), (12, 12), "{all_names:?}");
}

#[test]
fn foreign_files_stay_and_are_reported() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let store = open(folder.path(), None);
    let tokens: Vec<TokenId> = (0..70).map(|i| TokenId(10 + i)).collect();
    store.keep(&computed(&engine, &tokens), "a", &[], usize::MAX).expect("keeps");
    let inside =
        files(folder.path()).into_iter().find(|(path, _)| path.extension().is_none()).expect("a block").0;
    let namespace = inside.parent().expect("a folder").to_owned();
    let block = files(&namespace).into_iter().next().expect("a block").0;
    let foreign = [folder.path().join("readme.txt"), namespace.join("notes.txt"), namespace.join("0-1-2-3")];
    foreign.iter().for_each(|path| std::fs::write(path, "text").expect("written"));
    // Another version of the format.
    let mut bytes = std::fs::read(&block).expect("a file");
    bytes[8] = 9;
    std::fs::write(&block, &bytes).expect("written");
    let status = store.status().expect("reads");
    let foreign_found =
        status.left_aside.iter().filter(|file| matches!(file.problem, PrefixProblem::Foreign)).count();
    let versions = |file: &&refrain_index::prefixes::LeftAside| {
        matches!(file.problem, PrefixProblem::Version { given: 9, .. })
    };
    assert_eq!((foreign_found, status.left_aside.iter().filter(versions).count()), (3, 1), "{status:?}");
    store.clear().expect("clears");
    drop(store);
    let mut left: Vec<_> = files(folder.path()).into_keys().collect();
    left.retain(|path| !path.ends_with("CHANGES.lock"));
    let mut foreign = foreign.to_vec();
    foreign.sort();
    assert_eq!(left, foreign);
    // What cannot be listed is an error, not a panic.
    let file = folder.path().join("readme.txt");
    assert!(PrefixStore::open(&file, PrefixOptions::default()).is_err());
}

#[test]
fn a_store_is_shared_by_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<PrefixStore>();
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let store = open(folder.path(), None);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (engine, store) = (&engine, &store);
            scope.spawn(move || {
                for i in 0..6u32 {
                    let tokens: Vec<TokenId> = (0..100)
                        .map(|j| TokenId(10 + j % 50 + if j > 70 { (thread + i) % 4 * 50 } else { 0 }))
                        .collect();
                    let mut session = engine.session(plain()).expect("a session");
                    session.append_tokens(&tokens).expect("fits");
                    store.restore(&mut session, "a").expect("restores");
                    session.prefill(&refrain::CancelToken::new(), |_, _| {}).expect("computes");
                    assert!(state(&session) == state(&computed(engine, &tokens)));
                    store.keep(&session, "a", &[], usize::MAX).expect("keeps");
                }
            });
        }
    });
    assert!(store.verify().expect("reads").left_aside.is_empty());
}

/// Of a prompt that comes once, nothing but hashes is written; what two prompts begin with is stored, and what comes again whole.
#[test]
fn what_comes_twice_is_kept() {
    for key in [None, Some([7; 32])] {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, store) = (engine(1), open(folder.path(), key));
        let tokens =
            |from: u32| (0..200).map(|i| TokenId(if i < 100 { 5 + i } else { from + i })).collect::<Vec<_>>();
        let sessions = [10, 400].map(|from| computed(&engine, &tokens(from)));
        let label = |name: &str| [Label { tokens: 130..200, name: name.to_owned() }];
        let keep = |session: &Session, name: &str| {
            store.keep_repeated(session, "a", &label(name), 199).expect("kept")
        };
        assert_eq!(keep(&sessions[0], "one"), 0);
        assert!(!holds(folder.path(), &token_bytes(&tokens(10)[..8])));
        assert_eq!(store.status().expect("lists").bytes, 0);
        // The whole blocks of the common beginning.
        assert_eq!(keep(&sessions[1], "two"), 64);
        assert_eq!(keep(&sessions[1], "two"), 199);
        let restored = |from: u32| {
            let mut session = engine.session(plain()).expect("a session");
            session.append_tokens(&tokens(from)).expect("fits");
            let n = store.restore(&mut session, "a").expect("restores");
            assert!(state(&session) == state(&computed(&engine, &tokens(from)[..=n])));
            n
        };
        assert_eq!((restored(400), restored(10)), (199, 100));
        // Another namespace has seen nothing, and what was seen is forgotten with anything.
        assert_eq!(store.keep_repeated(&sessions[0], "b", &[], 199).expect("kept"), 0);
        let seen = |folder: &Path| files(folder).iter().filter(|(path, _)| path.ends_with("seen")).count();
        assert_eq!(seen(folder.path()), 2);
        store.forget("a", "nothing").expect("forgets");
        store.clear().expect("forgets");
        assert_eq!(seen(folder.path()), 0);
        assert_eq!(keep(&sessions[0], "one"), 0);
        // A list that is anything is no error.
        let list =
            files(folder.path()).into_iter().find(|(path, _)| path.ends_with("seen")).expect("a list").0;
        std::fs::write(&list, vec![7; 100_001]).expect("written");
        assert_eq!(keep(&sessions[0], "one"), 0);
        assert_eq!(keep(&sessions[0], "one"), 199);
        assert!(std::fs::metadata(&list).expect("a list").len() <= 4096 * 16);
    }
}
