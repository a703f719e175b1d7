//! Outputs that end inside a draft: every pattern of accepted lengths 0..=3 over four steps, with an end token, a stop
//! string, a split character, the edge of the context, or a cancellation at each place.

use refrain::drafting::{Anchor, Candidate, Candidates, Cursor, DraftSource, EvidenceClass, StepOutcome};
use refrain::{Drafting, Engine, FinishReason, GenerateOptions, Sampling, Session, SessionOptions, TokenId};

use crate::common::{EOS, ForceAt, Run, Tiny, plain, prompt, run, run_in};

/// In each step drafts a given number of right tokens and then a wrong one.
#[derive(Clone)]
struct Scripted {
    /// The prompt and the output of plain decoding.
    known: Vec<TokenId>,
    /// Right tokens per step. After the last step nothing is drafted.
    script: Vec<usize>,
    step: usize,
    committed_len: usize,
}

impl Scripted {
    fn boxed(prompt: &[TokenId], output: &[TokenId], script: &[usize]) -> Box<dyn DraftSource> {
        let known = prompt.iter().chain(output).copied().collect();
        Box::new(Self { known, script: script.to_vec(), step: 0, committed_len: 0 })
    }
}

impl DraftSource for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    fn truncate(&mut self, _len: usize) {
        self.step = 0;
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.committed_len = committed.len();
        out.push(Anchor { cursor: Cursor(0), match_len: 8 });
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        let Some(&n_right) = self.script.get(self.step) else { return };
        for (parent, cursor) in frontier.iter().enumerate() {
            let depth = cursor.0 as usize;
            let Some(&right) = self.known.get(self.committed_len + depth) else { continue };
            let token = match depth.cmp(&n_right) {
                std::cmp::Ordering::Less => right,
                std::cmp::Ordering::Equal => TokenId((right.0 + 1) % 97),
                std::cmp::Ordering::Greater => continue,
            };
            out.push(Candidate {
                parent: parent as u32,
                token,
                probability: 0.9,
                // Otherwise the reliability table would count the wrong tokens against the right ones.
                match_len: if token == right { 64 } else { 1 },
                count: 1,
                next: Cursor(depth as u64 + 1),
            });
        }
    }

    fn observe(&mut self, _committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.step += 1;
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }

    fn memory_usage(&self) -> u64 {
        (self.known.len() * size_of::<TokenId>()) as u64
    }
}

const MAX_TOKENS: usize = 18;

/// Every pattern of accepted lengths 0..=3 over four steps.
fn scripts() -> impl Iterator<Item = [usize; 4]> {
    (0..256usize).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6 & 3])
}

struct Case {
    engine: Engine,
    prompt: Vec<TokenId>,
}

impl Case {
    fn new() -> Self {
        let tiny = Tiny { hidden_dim: 32, n_layers: 1, ..Tiny::default() };
        Self { engine: tiny.engine(1), prompt: prompt(2, 12) }
    }

    fn options(&self, forced: &[(usize, TokenId)], stop: &[&str]) -> GenerateOptions {
        let forced = forced.iter().map(|&(place, token)| (self.prompt.len() + place, token)).collect();
        GenerateOptions {
            max_tokens: MAX_TOKENS,
            sampling: Sampling { temperature: 0.8, seed: Some(4), ..Sampling::default() },
            stop: stop.iter().map(|s| (*s).to_owned()).collect(),
            processors: vec![Box::new(ForceAt(forced))],
            ..GenerateOptions::default()
        }
    }

    fn plain(&self, session: SessionOptions, options: GenerateOptions) -> Run {
        run(&self.engine, session, Vec::new(), &self.prompt, options)
    }

    /// A session with the script as its only source.
    fn scripted(&self, base: SessionOptions, output: &[TokenId], script: &[usize]) -> Session {
        let mut session = self
            .engine
            .session(SessionOptions { drafting: Drafting::OwnSources, history: false, ..base })
            .unwrap();
        session.add_source(Scripted::boxed(&self.prompt, output, script)).unwrap();
        session.append_tokens(&self.prompt).unwrap();
        session
    }

    /// Runs every script and compares with plain decoding. Scripts draft the output without the ending (`known`), so
    /// drafts continue behind the ending.
    fn check(
        &self,
        name: &str,
        session: &SessionOptions,
        known: &[TokenId],
        options: &dyn Fn() -> GenerateOptions,
    ) -> Run {
        let reference =
            self.plain(SessionOptions { drafting: plain().drafting, ..session.clone() }, options());
        for script in scripts() {
            let mut scripted = self.scripted(session.clone(), known, &script);
            let run = run_in(&mut scripted, options(), usize::MAX);
            run.assert_equal(&reference, &format!("{name}, script {script:?}"));
            let committed: Vec<TokenId> = self.prompt.iter().chain(&reference.tokens).copied().collect();
            assert_eq!(scripted.tokens(), committed, "{name}, script {script:?}");
        }
        reference
    }
}

#[test]
fn scripts_force_the_lengths_they_name() {
    let case = Case::new();
    let options = || case.options(&[], &[]);
    let known = case.plain(plain(), options()).tokens;
    for script in scripts() {
        let mut session = case.scripted(SessionOptions::default(), &known, &script);
        let run = run_in(&mut session, options(), usize::MAX);
        assert_eq!(run.tokens, known);
        let committed: usize = script.iter().map(|n| n + 1).sum();
        assert_eq!(
            run.stats.steps,
            4 + MAX_TOKENS - committed,
            "{script:?}: {:?}",
            run.stats.acceptance_lengths
        );
        assert_eq!(run.stats.sources[0].accepted, script.iter().sum::<usize>());
    }
}

#[test]
fn end_token_in_each_place() {
    let case = Case::new();
    let known = case.plain(plain(), case.options(&[], &[])).tokens;
    for place in 0..MAX_TOKENS - 1 {
        // Drafted and reached: the end token itself is part of the script.
        let mut known = known.clone();
        known[place] = EOS;
        let reference = case.check(&format!("end at {place}"), &SessionOptions::default(), &known, &|| {
            case.options(&[(place, EOS)], &[])
        });
        assert_eq!((reference.finish, reference.tokens.len()), (FinishReason::EndToken, place + 1));
    }
}

#[test]
fn stop_string_in_each_place() {
    let case = Case::new();
    for place in 0..MAX_TOKENS - 3 {
        let forced: Vec<_> = (place..).zip(*b"#$%").map(|(p, b)| (p, TokenId(u32::from(b)))).collect();
        let known = case.plain(plain(), case.options(&forced, &[])).tokens;
        let reference = case.check(&format!("stop at {place}"), &SessionOptions::default(), &known, &|| {
            case.options(&forced, &["#$%", "#$&"])
        });
        assert_eq!((reference.finish, reference.tokens.len()), (FinishReason::Stop, place + 3));
        assert!(!reference.text().contains('#'));
    }
}

#[test]
fn split_character_in_each_place() {
    let case = Case::new();
    for place in 0..MAX_TOKENS - 4 {
        let forced: Vec<_> = (place..).zip("🦀".bytes()).map(|(p, b)| (p, TokenId(u32::from(b)))).collect();
        let known = case.plain(plain(), case.options(&forced, &[])).tokens;
        let reference = case.check(&format!("crab at {place}"), &SessionOptions::default(), &known, &|| {
            case.options(&forced, &[])
        });
        assert!(reference.text().contains('🦀'), "{:?}", reference.texts);
        let whole = reference.texts.iter().position(|t| t.contains('🦀')).unwrap();
        assert_eq!(whole, place + 3, "a character comes out whole, with its last byte");
    }
}

#[test]
fn context_edge_in_each_place() {
    let case = Case::new();
    let known = case.plain(plain(), case.options(&[], &[])).tokens;
    for place in 0..MAX_TOKENS - 1 {
        let session =
            SessionOptions { context_len: Some(case.prompt.len() + place + 1), ..SessionOptions::default() };
        let reference = case.check(&format!("edge at {place}"), &session, &known, &|| case.options(&[], &[]));
        assert_eq!((reference.finish, reference.tokens.len()), (FinishReason::ContextFull, place + 1));
    }
}

#[test]
fn cancel_in_each_place() {
    let case = Case::new();
    let options = || case.options(&[], &[]);
    let known = case.plain(plain(), options()).tokens;
    for script in scripts() {
        for place in 1..MAX_TOKENS - 1 {
            let mut session = case.scripted(SessionOptions::default(), &known, &script);
            let run = run_in(&mut session, options(), place);
            assert_eq!(run.tokens, known[..place], "script {script:?}");
            assert_eq!(run.finish, FinishReason::Cancelled);
            let committed: Vec<TokenId> = case.prompt.iter().chain(&known[..place]).copied().collect();
            assert_eq!(session.tokens(), committed, "the session holds what the app has seen");
            if place % 5 == 0 {
                let rest = run_in(&mut session, options(), usize::MAX);
                assert_eq!(rest.tokens[..MAX_TOKENS - place], known[place..], "and goes on from there");
            }
        }
    }
}
