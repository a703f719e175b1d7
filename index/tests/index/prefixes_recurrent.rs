//! Prefixes of models with recurrent layers: restored where their state was kept, bit for bit, and nowhere else.

use std::path::Path;

use proptest::prelude::*;
use refrain::{Engine, GenerateOptions, Session, SessionOptions, TokenId};
use refrain_index::prefixes::{Label, PrefixOptions, PrefixStore};

use crate::prefixes_support::{computed, engine_options, files, plain, state};

/// Short convolutions, the gated delta rule, Mamba-2.
const FAMILIES: [&str; 3] = ["lfm2", "qwen3_5", "granitemoehybrid"];

fn engine(family: &str, n_threads: usize) -> Engine {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(family);
    Engine::open(golden, engine_options(n_threads)).expect("the golden model loads")
}

fn open(folder: &Path) -> PrefixStore {
    PrefixStore::open(folder, PrefixOptions::default()).expect("opens")
}

/// `n` tokens that no other seed gives.
fn tokens(seed: u32, n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((i * i * 7 + i * seed + 31 * seed) % 250)).collect()
}

fn session(engine: &Engine, options: SessionOptions, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(options).expect("a session");
    session.append_tokens(tokens).expect("fits");
    session
}

fn drafts() -> SessionOptions {
    SessionOptions { history: false, ..SessionOptions::default() }
}

/// The next `n` tokens.
fn answer(session: &mut Session, n: usize) -> Vec<TokenId> {
    let before = session.tokens().len();
    let options = GenerateOptions { max_tokens: n, ignore_eos: true, ..GenerateOptions::default() };
    session.generate(options).expect("starts").for_each(|event| drop(event.expect("generates")));
    session.tokens()[before..].to_vec()
}

/// Restores a prompt into a new session, whose state is that of a session that computed it.
fn restored(store: &PrefixStore, engine: &Engine, prompt: &[TokenId]) -> (Session, usize) {
    let mut session = session(engine, drafts(), prompt);
    let n = store.restore(&mut session, "a").expect("restores");
    assert_eq!(session.state().n_cached_tokens(), n);
    if n > 0 {
        assert!(state(&session) == state(&computed(engine, &prompt[..n + 1])), "{n} tokens have other bits");
    }
    (session, n)
}

#[test]
fn a_kept_prompt_and_its_answer_are_restored_in_another_process() {
    let prompt = tokens(1, 150);
    for family in FAMILIES {
        let (folder, first, second) =
            (tempfile::tempdir().expect("a folder"), engine(family, 1), engine(family, 2));
        let mut cold = session(&first, plain(), &prompt);
        let expected = answer(&mut cold, 30);
        let (all, next) = (cold.tokens().to_vec(), tokens(2, 20));
        assert_eq!(open(folder.path()).keep(&cold, "a", &[], usize::MAX).expect("keeps"), 179);
        cold.append_tokens(&next).expect("fits");
        let expected_next = answer(&mut cold, 20);

        let store = open(folder.path());
        let (mut same, n) = restored(&store, &second, &prompt);
        assert_eq!(n, 149, "{family}: the end of the prompt");
        assert_eq!(answer(&mut same, 30), expected, "{family}");
        let (mut on, n) = restored(&store, &second, &[&all[..], &next].concat());
        assert_eq!(n, 179, "{family}: the end of the answer");
        assert_eq!(answer(&mut on, 20), expected_next, "{family}");
        assert!(state(&on) == state(&cold), "{family}");
        // A prompt that parts from the answer has the state of the prompt; one that parts from the prompt computes it.
        assert_eq!(restored(&store, &second, &[&all[..160], &next].concat()).1, 149);
        assert_eq!(restored(&store, &second, &[&all[..149], &next].concat()).1, 149);
        assert_eq!(restored(&store, &second, &[&all[..148], &next].concat()).1, 0);
        // Behind what a session has computed, and not behind a part of it.
        let mut behind = session(&second, plain(), &prompt[..80]);
        behind.prefill(&refrain::CancelToken::new(), |_, _| {}).expect("computes");
        behind.append_tokens(&prompt[80..]).expect("fits");
        assert_eq!(store.restore(&mut behind, "a").expect("restores"), 149 - 79);
        assert_eq!(answer(&mut behind, 30), expected, "{family}");
        // What is stored is not written again.
        let before = files(folder.path()).len();
        store.keep(&same, "a", &[], usize::MAX).expect("keeps");
        assert_eq!(files(folder.path()).len(), before);
        assert!(store.verify().expect("reads").left_aside.is_empty());
        // Only the prompt: the program keeps this of an answer that no turn follows.
        store.clear().expect("clears");
        assert_eq!(store.keep(&same, "a", &[], 150).expect("keeps"), 149);
        assert_eq!(restored(&store, &second, &[&all[..], &next].concat()).1, 149);
        assert_eq!(store.keep(&same, "a", &[], 148).expect("keeps"), 0, "no state is known before");
    }
}

#[test]
fn the_third_prompt_restores_what_two_have_shared() {
    for family in FAMILIES {
        let (folder, engine) = (tempfile::tempdir().expect("a folder"), engine(family, 1));
        let store = open(folder.path());
        let system = tokens(3, 150);
        let mut found = Vec::new();
        for user in 0..4 {
            let prompt = [&system[..], &tokens(10 + user, 40)].concat();
            let expected = answer(&mut session(&engine, plain(), &prompt), 12);
            let (mut session, n) = restored(&store, &engine, &prompt);
            assert_eq!(answer(&mut session, 12), expected, "{family}");
            found.push(n);
            store.keep(&session, "a", &[], usize::MAX).expect("keeps");
            let end = session.state().n_cached_tokens();
            assert!(state(&session) == state(&computed(&engine, &session.tokens()[..end + 1])), "{family}");
        }
        assert_eq!(found, [0, 0, 128, 128], "{family}: whole blocks of the system turn");
        assert!(store.verify().expect("reads").left_aside.is_empty());
    }
}

#[test]
fn forgetting_removes_every_state_that_knows_the_text() {
    for family in FAMILIES {
        let (folder, engine) = (tempfile::tempdir().expect("a folder"), engine(family, 1));
        let store = open(folder.path());
        let (text, note) = (tokens(4, 150), tokens(5, 30));
        let prompt = [&text[..], &note].concat();
        let mut cold = session(&engine, plain(), &prompt);
        cold.state_mut().remember(140);
        answer(&mut cold, 9);
        let label = |name: &str, tokens| Label { tokens, name: name.to_owned() };
        let labels = [label("note", 150..180), label("text", 0..150)];
        assert_eq!(store.keep(&cold, "a", &labels, usize::MAX).expect("keeps"), 188);
        assert_eq!(restored(&store, &engine, &prompt).1, 179);
        // Two shorter blocks and no whole one have tokens of the note; the state at 140 is that of the text alone.
        assert_eq!(store.forget("a", "note").expect("forgets"), 2);
        assert_eq!(restored(&store, &engine, &prompt).1, 140);
        assert_eq!(store.forget("a", "text").expect("forgets"), 3);
        assert_eq!(restored(&store, &engine, &prompt).1, 0);
        assert_eq!(store.status().expect("reads").n_blocks, 0);
    }
}

#[test]
fn a_small_store_keeps_whole_prefixes_or_none() {
    for family in FAMILIES {
        let (folder, engine) = (tempfile::tempdir().expect("a folder"), engine(family, 1));
        let cold = computed(&engine, &tokens(6, 150));
        let store = open(folder.path());
        store.keep(&cold, "a", &[], usize::MAX).expect("keeps");
        let needed = store.status().expect("reads").bytes;
        drop(store);
        for (max_bytes, n_kept) in [(needed, 149), (needed - 1, 0), (needed / 3, 0)] {
            let folder = tempfile::tempdir().expect("a folder");
            let options = PrefixOptions { max_bytes, ..PrefixOptions::default() };
            let store = PrefixStore::open(folder.path(), options).expect("opens");
            assert_eq!(store.keep(&cold, "a", &[], usize::MAX).expect("keeps"), n_kept);
            assert!(store.status().expect("reads").bytes <= max_bytes);
            assert_eq!(restored(&store, &engine, &tokens(6, 150)).1, n_kept);
            // A prompt that is kept later has the room of the older one.
            let other = computed(&engine, &tokens(7, 140));
            let n_other = store.keep(&other, "a", &[], usize::MAX).expect("keeps");
            assert!(store.status().expect("reads").bytes <= max_bytes);
            assert_eq!(restored(&store, &engine, &tokens(7, 140)).1, n_other);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Prompts that share beginnings of any length, kept and restored in any order, by sessions that go on, go back, and are forked: every
    /// session has the state of its tokens.
    #[test]
    fn any_order_of_keeping_and_restoring_gives_the_computed_bits(
        family in 0..FAMILIES.len(),
        // (what it begins with, its length, tokens of its own, answer, kept up to, truncated to)
        prompts in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..200, 1u32..90, 0usize..8, any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            1..7,
        ),
    ) {
        let (folder, engine) = (tempfile::tempdir().expect("a folder"), engine(FAMILIES[family], 1));
        let store = open(folder.path());
        let mut known: Vec<Vec<TokenId>> = vec![tokens(0, 130)];
        for (seed, (of, n_shared, n_own, n_answer, up_to, truncated)) in prompts.into_iter().enumerate() {
            let base = of.get(&known);
            let prompt = [&base[..n_shared.min(base.len())], &tokens(seed as u32 + 1, n_own)].concat();
            let (mut session, _) = restored(&store, &engine, &prompt);
            answer(&mut session, n_answer + 1);
            let up_to = up_to.index(2 * session.tokens().len());
            let n_kept = store.keep(&session, "a", &[], up_to).expect("keeps");
            prop_assert!(n_kept <= up_to);
            let all = session.tokens().to_vec();
            let n_restored = restored(&store, &engine, &all).1;
            prop_assert!(n_restored >= n_kept.min(all.len() - 1), "{n_restored} of {n_kept}");
            // Back to somewhere, and forward by what the store has.
            session.truncate(1 + truncated.index(all.len())).expect("plain");
            session.append_tokens(&tokens(40 + seed as u32, 10)).expect("fits");
            store.restore(&mut session, "a").expect("restores");
            let mut session = session.fork().expect("memory");
            answer(&mut session, 3);
            let n = session.state().n_cached_tokens();
            prop_assert!(state(&session) == state(&computed(&engine, &session.tokens()[..n + 1])));
            known.push(all);
        }
        prop_assert!(store.verify().expect("reads").left_aside.is_empty());
    }
}
