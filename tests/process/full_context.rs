//! The edge of the context: the KV cache has a slot for every token of the context and, behind them, one for each row
//! of a verification batch. The widest draft is therefore verified until the context is full to its last token, and
//! longer texts are a typed error.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::{DraftPolicy, DraftRows, DraftSource};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Endless, Random};
use refrain::internals::model::KvCache;
use refrain::internals::model::kv_cache::KvCacheError;
use refrain::{
    Engine, ErrorKind, FinishReason, GenerateOptions, KvType, Session, SessionError, SessionOptions, TokenId,
};

use crate::common::{Tiny, VOCAB_SIZE, plain, prompt, run_in};

const CONTEXT_LEN: usize = 100;

fn endless() -> GenerateOptions {
    GenerateOptions { max_tokens: usize::MAX, ignore_eos: true, ..GenerateOptions::default() }
}

fn session(engine: &Engine, options: SessionOptions, prompt: &[TokenId]) -> Session {
    let options = SessionOptions { context_len: Some(CONTEXT_LEN), history: false, ..options };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(prompt).unwrap();
    session
}

fn sources(prompt: &[TokenId], known: &[TokenId]) -> Vec<Box<dyn DraftSource>> {
    vec![
        Box::new(AlwaysRight::new(prompt.len(), known.to_vec())),
        Box::new(AlwaysWrong::new(prompt.len(), known.to_vec())),
        Box::new(Random::new(7, VOCAB_SIZE as u32)),
        Box::new(Endless::new(VOCAB_SIZE as u32)),
    ]
}

/// Prompts of every length, from room for many steps to room for one token. The last steps therefore reach the edge
/// with every number of remaining tokens; with drafts of 63 rows, padded and unpadded.
#[test]
fn the_context_fills_to_its_last_token_with_drafts_in_flight() {
    let engine = Tiny::default().engine(2);
    let mut n_wide = 0;
    for prompt_len in [CONTEXT_LEN - 40, CONTEXT_LEN - 7, CONTEXT_LEN - 3, CONTEXT_LEN - 2, CONTEXT_LEN - 1] {
        let prompt = prompt(3, prompt_len);
        let expected = run_in(&mut session(&engine, plain(), &prompt), endless(), usize::MAX);
        assert_eq!(
            (expected.tokens.len(), expected.finish),
            (CONTEXT_LEN - prompt_len, FinishReason::ContextFull)
        );
        for verify_lens in [vec![], vec![64]] {
            for rows in [DraftRows::Auto, DraftRows::Fixed(63)] {
                for source in sources(&prompt, &expected.tokens) {
                    let case = format!("{} after {prompt_len}, {rows:?}, {verify_lens:?}", source.name());
                    let policy = DraftPolicy { rows, ..DraftPolicy::default() };
                    let options = SessionOptions {
                        policy,
                        verify_rows_max: 64,
                        verify_lens: verify_lens.clone(),
                        ..SessionOptions::default()
                    };
                    let mut session = session(&engine, options, &prompt);
                    session.add_source(source).unwrap();
                    let found = run_in(&mut session, endless(), usize::MAX);
                    found.assert_equal(&expected, &case);
                    assert_eq!(session.tokens().len(), CONTEXT_LEN, "{case}");
                    n_wide += usize::from(found.stats.rows.total() > 8 * found.stats.steps);
                }
            }
        }
    }
    assert!(n_wide > 20, "only {n_wide} runs had wide drafts");
}

#[test]
fn a_full_context_is_a_typed_error_and_no_loss() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(3, CONTEXT_LEN - 2);
    let mut session = session(&engine, SessionOptions::default(), &prompt);
    run_in(&mut session, endless(), usize::MAX);
    let error = session.append_tokens(&prompt[..1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ContextFull, "{error:?}");
    let numbers = (error.value(), error.limit());
    assert_eq!(numbers, (Some((CONTEXT_LEN + 1) as f64), Some(CONTEXT_LEN as u64)));
    let full = run_in(&mut session, endless(), usize::MAX);
    assert_eq!((full.tokens.len(), full.finish), (0, FinishReason::ContextFull));
    // After truncation the session continues.
    session.truncate(CONTEXT_LEN - 3).unwrap();
    assert_eq!(run_in(&mut session, endless(), usize::MAX).tokens.len(), 3);
}

/// The cache has the length of context and batch together, rounded up to the layout.
#[test]
fn the_cache_is_sized_for_context_and_batch() {
    let tiny = Tiny::default();
    let engine = tiny.engine(1);
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    for (verify_rows_max, verify_lens, n_rows) in [(1, vec![], 1), (32, vec![], 32), (20, vec![8, 64], 64)] {
        let options = SessionOptions { verify_rows_max, verify_lens, ..plain() };
        let session = session(&engine, options, &prompt(1, 4));
        let kv_bytes = session.memory_usage() - session.draft_memory_usage() as u64;
        let bytes_of =
            |n_slots: usize| n_slots as u64 * KvCache::bytes_per_slot(checkpoint.config(), KvType::F16);
        // Keys are stored in panels of 16 slots.
        let slots = CONTEXT_LEN + n_rows..CONTEXT_LEN + n_rows + 16;
        let range = bytes_of(slots.start)..=bytes_of(slots.end) + 64 * 1024;
        assert!(range.contains(&kv_bytes), "{kv_bytes} bytes, not {range:?}");
    }
}

/// Bytes of anonymous memory that the process holds.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

/// 2 GiB of keys and values, of which a short text fills a few pages.
#[test]
#[cfg(target_os = "linux")]
fn the_slots_of_a_context_of_16_million_tokens_take_no_memory_before_they_are_written() {
    let engine = Tiny { n_layers: 1, context_len: 1 << 24, ..Tiny::DEFAULT }.engine(1);
    let before = resident_bytes();
    let options = SessionOptions { context_len: Some(1 << 24), history: false, ..SessionOptions::default() };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(&prompt(3, 20)).unwrap();
    let options = GenerateOptions { max_tokens: 20, ignore_eos: true, ..GenerateOptions::default() };
    let found = run_in(&mut session, options, usize::MAX);
    assert_eq!(found.tokens.len(), 20);
    let added = resident_bytes().saturating_sub(before);
    assert!(added < 256 << 20, "{added} bytes");
}

/// Each layer fits the memory of any machine that runs the test, and all layers fit none.
#[test]
#[cfg(target_os = "linux")]
fn a_context_that_cannot_be_filled_is_a_typed_error() {
    let engine = Tiny { n_layers: 640, hidden_dim: 32, context_len: 1 << 24, ..Tiny::DEFAULT }.engine(1);
    let options = SessionOptions { context_len: Some(1 << 24), ..SessionOptions::default() };
    let stated = options.memory_bytes(engine.config());
    let allows_anything = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap().trim() == "1";
    match engine.session(options).as_ref().map_err(SessionError::detail) {
        Err(Some(&KvCacheError::TooLarge { n_slots, bytes })) => {
            assert!(n_slots >= 1 << 24 && bytes > 1 << 40 && bytes < stated, "{bytes} of {stated} bytes");
        }
        Ok(_) if allows_anything => eprintln!("not tested: the system allocates anything"),
        other => panic!("{:?}", other.err()),
    }
}
