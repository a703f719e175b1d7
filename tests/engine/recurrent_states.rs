//! States of models with recurrent layers, kept as bytes and restored: every later bit is that of a session that computed them.

use proptest::prelude::*;
use refrain::checkpoint::Checkpoint;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::SessionProblem;
use refrain::{CancelToken, Engine, KvType, Session, SessionOptions, TokenId};

use crate::common::{self, engine_f32, options, plain, run_in, samplings, tokens};
use crate::model_files::golden;

/// Short convolutions, the gated delta rule, Mamba-2.
const FAMILIES: [&str; 4] = ["lfm2", "qwen3_5", "granitemoehybrid", "granitemoehybrid-dense"];

fn engine(family: &str, n_threads: usize) -> Engine {
    engine_f32(&Checkpoint::open(golden(family)).unwrap(), n_threads)
}

fn with(engine: &Engine, options: SessionOptions, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(options).unwrap();
    session.append_tokens(tokens).unwrap();
    session
}

fn prefill(session: &mut Session) {
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
}

fn state(session: &Session, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut state = vec![7];
    session.state().write(range.clone(), &mut state).unwrap();
    assert_eq!(state.remove(0), 7);
    assert_eq!(state.len() as u64, session.state().bytes(range.len()));
    state
}

fn keys_values(session: &Session, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut state = Vec::new();
    session.state().write_keys_values(range.clone(), &mut state).unwrap();
    assert_eq!(state.len() as u64, session.state().keys_values_bytes(range.len()));
    state
}

/// The state of a session that computes these tokens at once.
fn computed(engine: &Engine, kv_type: KvType, tokens: &[TokenId]) -> Vec<u8> {
    // The newest token of a session is not computed.
    let mut session = with(engine, SessionOptions { kv_type, ..plain() }, &[tokens, &[TokenId(1)]].concat());
    prefill(&mut session);
    state(&session, 0..tokens.len())
}

#[test]
fn a_restored_session_continues_bit_for_bit() {
    let text = tokens(150);
    for family in FAMILIES {
        // The second engine stands for another process.
        let (first, second) = (engine(family, 1), engine(family, 3));
        for kv_type in [KvType::F16, KvType::F32] {
            for sampling in samplings() {
                let generate = || refrain::GenerateOptions { sampling: sampling.clone(), ..options(24) };
                let plain = || SessionOptions { kv_type, ..plain() };
                let mut whole = with(&first, plain(), &text);
                whole.state_mut().remember(96);
                let expected = run_in(&mut whole, generate(), usize::MAX);
                let n_cached = whole.state().n_cached_tokens();
                assert_eq!(whole.state().ends(), Some(vec![96, 149, n_cached]), "{family}");
                for end in [96, 149] {
                    // In one part, in parts that begin anywhere, and behind tokens that are cached already.
                    for (n_cached, cuts) in [(0, &[][..]), (0, &[1, 64, 65]), (37, &[]), (37, &[20, 50])] {
                        for drafts in [false, true] {
                            let options =
                                SessionOptions { history: false, kv_type, ..SessionOptions::default() };
                            let mut session =
                                with(&second, if drafts { options } else { plain() }, &text[..n_cached + 1]);
                            prefill(&mut session);
                            session.append_tokens(&text[n_cached + 1..]).unwrap();
                            assert_eq!(session.state().key(), whole.state().key());
                            let mut restoration = session.state_mut();
                            let mut start = 0;
                            for &cut in cuts {
                                let part = keys_values(&whole, start..cut);
                                assert_eq!(
                                    restoration.add(start, &text[start..cut], &part).unwrap(),
                                    cut.max(n_cached)
                                );
                                start = cut;
                            }
                            let part = state(&whole, start..end);
                            assert_eq!(restoration.add(start, &text[start..end], &part).unwrap(), end);
                            assert_eq!(session.state().n_cached_tokens(), end);
                            assert_eq!(state(&session, 0..end), computed(&first, kv_type, &text[..end]));
                            if drafts {
                                let right = AlwaysRight::new(text.len(), expected.tokens.clone());
                                session.add_source(Box::new(right)).unwrap();
                            }
                            let mut fork = session.fork().unwrap();
                            for (session, case) in [(&mut session, "restored"), (&mut fork, "fork")] {
                                let run = run_in(session, generate(), usize::MAX);
                                let case = format!(
                                    "{family} {kv_type}: {case} at {end} by {cuts:?} behind {n_cached}"
                                );
                                assert_eq!(run.tokens, expected.tokens, "{case}");
                                if !drafts {
                                    run.assert_equal(&expected, &case);
                                }
                                assert_eq!(
                                    (run.stats.cached_tokens, run.stats.prefilled_tokens),
                                    (end, 149 - end)
                                );
                            }
                            let n = session.state().n_cached_tokens();
                            let all = session.tokens()[..n].to_vec();
                            assert_eq!(state(&session, 0..n), computed(&first, kv_type, &all), "{family}");
                            assert_eq!(state(&fork, 0..n), state(&session, 0..n));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_restored_session_goes_back_to_what_it_knows() {
    let text = tokens(150);
    for family in FAMILIES {
        let engine = engine(family, 1);
        let mut whole = with(&engine, plain(), &text);
        whole.state_mut().remember(100);
        prefill(&mut whole);
        for (end, len, left) in [
            (149, 150, 149),
            (149, 149, 149),
            (149, 148, 0),
            (149, 75, 0),
            (149, 0, 0),
            (100, 149, 149),
            (100, 148, 100),
            (100, 100, 100),
            (100, 99, 0),
        ] {
            let kept = state(&whole, 0..end);
            let mut session = with(&engine, plain(), &text);
            session.state_mut().restore(0, &text[..end], &kept).unwrap();
            run_in(&mut session, options(9), usize::MAX);
            session.truncate(len).unwrap();
            assert_eq!(session.state().n_cached_tokens(), left, "{family}: to {len} behind {end}");
            session.append_tokens(&tokens(30)[10..]).unwrap();
            prefill(&mut session);
            let all = session.tokens().to_vec();
            let n = all.len() - 1;
            assert_eq!(
                state(&session, 0..n),
                computed(&engine, KvType::F16, &all[..n]),
                "{family}: to {len} behind {end}"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let text = tokens(60);
    for family in FAMILIES {
        let engine = engine(family, 1);
        let mut whole = with(&engine, plain(), &text);
        whole.state_mut().remember(32);
        prefill(&mut whole);
        let mut out = vec![7];
        for (range, at) in [(0..31, 31), (0..33, 33), (32..58, 58), (0..0, 0)] {
            let refused = whole.state().write(range, &mut out).unwrap_err();
            match refused.detail() {
                Some(SessionProblem::StateEnd { end, known }) => {
                    assert_eq!((*end, known), (at, &vec![32, 59]));
                }
                _ => panic!("{refused:?}"),
            }
        }
        let refused = whole.state().write(0..60, &mut out);
        assert!(
            matches!(
                refused.as_ref().unwrap_err().detail(),
                Some(SessionProblem::StateRange { n_cached: 59, .. })
            ),
            "{refused:?}"
        );
        assert_eq!(out, [7]);
        let error = whole.state().write(0..40, &mut out).unwrap_err().to_string();
        assert!(error.contains("position 40") && error.contains("[32, 59]"), "{error}");

        let kept = state(&whole, 0..59);
        let mut session = with(&engine, plain(), &text);
        for bytes in [&kept[..kept.len() - 1], &kept[1..], &[], &[&kept[..], &[0]].concat()] {
            let refused = session.state_mut().restore(0, &text[..59], bytes);
            assert!(
                matches!(refused.as_ref().unwrap_err().detail(), Some(SessionProblem::StateLength { .. })),
                "{refused:?}"
            );
        }
        // Keys and values alone are not a state.
        let part = keys_values(&whole, 0..59);
        let refused = session.state_mut().restore(0, &text[..59], &part);
        assert!(
            matches!(refused.as_ref().unwrap_err().detail(), Some(SessionProblem::StateLength { .. })),
            "{refused:?}"
        );
        // A state is that of all of its tokens, so none is restored if one differs, or if the newest is among them.
        let mut other = text.clone();
        other[58].0 ^= 1;
        assert_eq!(with(&engine, plain(), &other).state_mut().restore(0, &text[..59], &kept).unwrap(), 0);
        assert_eq!(
            with(&engine, plain(), &text[..59]).state_mut().restore(0, &text[..59], &kept).unwrap(),
            0
        );
        // Parts whose end never comes are given up; a gap, or a length between the two, is an error in any part.
        let mut restoration = session.state_mut();
        assert_eq!(restoration.add(0, &text[..32], &keys_values(&whole, 0..32)).unwrap(), 32);
        let gap = restoration.add(33, &text[33..59], &state(&whole, 33..59));
        assert!(
            matches!(
                gap.as_ref().unwrap_err().detail(),
                Some(SessionProblem::StateRange { start: 33, n_cached: 32, .. })
            ),
            "{gap:?}"
        );
        let rest = state(&whole, 32..59);
        let short = restoration.add(32, &text[32..59], &rest[..rest.len() - 4]);
        assert!(
            matches!(short.as_ref().unwrap_err().detail(), Some(SessionProblem::StateLength { .. })),
            "{short:?}"
        );
        assert_eq!(session.state().n_cached_tokens(), 0);
        prefill(&mut session);
        assert_eq!(state(&session, 0..59), kept, "{family}");
        // The state of no further token still completes the parts before it.
        let mut session = with(&engine, plain(), &text);
        let mut restoration = session.state_mut();
        restoration.add(0, &text[..32], &keys_values(&whole, 0..32)).unwrap();
        assert_eq!(restoration.add(32, &[], &state(&whole, 32..32)).unwrap(), 32);
        assert_eq!(session.state().n_cached_tokens(), 32);
        assert_eq!(state(&session, 0..32), state(&whole, 0..32));
    }
}

#[derive(Debug, Clone)]
enum Action {
    Append(usize),
    Generate(usize),
    Remember(usize),
    Prefill,
    Truncate(prop::sample::Index),
    Fork,
    Keep(prop::sample::Index),
    /// In a new session, behind some tokens of its own, in two parts.
    Restore {
        kept: prop::sample::Index,
        cached: prop::sample::Index,
        cut: prop::sample::Index,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (1usize..60).prop_map(Action::Append),
        2 => (1usize..12).prop_map(Action::Generate),
        2 => (0usize..40).prop_map(Action::Remember),
        2 => Just(Action::Prefill),
        2 => index().prop_map(Action::Truncate),
        1 => Just(Action::Fork),
        3 => index().prop_map(Action::Keep),
        3 => (index(), index(), index()).prop_map(|(kept, cached, cut)| Action::Restore { kept, cached, cut }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever a session has been through, its state at every known position is that of its tokens.
    #[test]
    fn any_history_gives_the_state_of_the_tokens(
        family in 0..FAMILIES.len(),
        drafts in any::<bool>(),
        actions in prop::collection::vec(action(), 1..14),
    ) {
        let engine = engine(FAMILIES[family], 1);
        let options = SessionOptions { history: false, ..SessionOptions::default() };
        let options = || SessionOptions { prefill_chunk: 23, ..if drafts { options.clone() } else { plain() } };
        let mut session = with(&engine, options(), &[TokenId(9)]);
        let mut n_appended = 0;
        // (tokens, keys and values, whole state) from position 0 on
        let mut kept: Vec<(Vec<TokenId>, Vec<u8>, Vec<u8>)> = Vec::new();
        for action in actions {
            match action {
                Action::Append(n) if session.tokens().len() + n < 300 => {
                    session.append_tokens(&tokens(n_appended + n)[n_appended..]).unwrap();
                    n_appended += n;
                }
                Action::Append(_) => {}
                Action::Generate(n) => drop(run_in(&mut session, common::options(n), usize::MAX)),
                Action::Remember(ahead) => {
                    let n_cached = session.state().n_cached_tokens();
                    session.state_mut().remember(n_cached + ahead);
                }
                Action::Prefill => prefill(&mut session),
                Action::Truncate(to) => session.truncate(1 + to.index(session.tokens().len())).unwrap(),
                Action::Fork => session = session.fork().unwrap(),
                Action::Keep(at) => {
                    let ends = session.state().ends().unwrap();
                    if !ends.is_empty() {
                        let end = *at.get(&ends);
                        kept.push((session.tokens()[..end].to_vec(), keys_values(&session, 0..end), state(&session, 0..end)));
                    }
                }
                Action::Restore { kept: of, cached, cut } if !kept.is_empty() => {
                    let (text, _, whole) = of.get(&kept);
                    let (n_cached, cut) = (cached.index(text.len()), cut.index(text.len()));
                    let mut giver = with(&engine, options(), &[&text[..], &[TokenId(3)]].concat());
                    prop_assert_eq!(giver.state_mut().restore(0, text, whole).unwrap(), text.len());
                    session = with(&engine, options(), &text[..n_cached + 1]);
                    prefill(&mut session);
                    session.append_tokens(&[&text[n_cached + 1..], &[TokenId(3)]].concat()).unwrap();
                    let mut restoration = session.state_mut();
                    restoration.add(0, &text[..cut], &keys_values(&giver, 0..cut)).unwrap();
                    let end = restoration.add(cut, &text[cut..], &state(&giver, cut..text.len())).unwrap();
                    prop_assert_eq!(end, text.len());
                }
                Action::Restore { .. } => {}
            }
            for end in session.state().ends().unwrap() {
                prop_assert!(state(&session, 0..end) == computed(&engine, KvType::F16, &session.tokens()[..end]), "at {end}");
            }
        }
    }
}
