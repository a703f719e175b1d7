//! Conversations of random turns, each answer beside that of plain decoding.

use refrain::device::{MemoryPressure, PowerState, ThermalState};
use refrain::drafting::{
    AcceptanceFloor, Calibration, DraftPolicy, DraftRows, DraftSource, EchoConfig, PruningConfig,
    ReuseConfig, SkipRules,
};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Endless, Random};
use refrain::internals::error::SessionProblem;
use refrain::state::WindowCache;
use refrain::{
    CancelToken, Drafting, DryOptions, ErrorKind, Event, FinishReason, GenerateOptions, KvType,
    OwnedGeneration, Sampling, Session, SessionOptions, Summary, TokenId, step_together,
};
use refrain_grammar::Grammar;

use crate::common::{LogitsRecorder, Rng, Run, cancelled_token, plain, run};
use crate::grammars;
use crate::world::{World, chance, pick};

/// What was compared.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub generations: usize,
    pub tokens: usize,
    pub steps: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
    pub with_grammar: usize,
    pub in_shared_passes: usize,
    /// Generations that were left or cancelled before their end.
    pub in_part: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.generations += other.generations;
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.accepted += other.accepted;
        self.with_grammar += other.with_grammar;
        self.in_shared_passes += other.in_shared_passes;
        self.in_part += other.in_part;
    }
}

/// Up to three sessions of an engine, some turns long.
pub(crate) fn hold(world: &mut World, rng: &mut Rng, tally: &mut Tally) {
    let grammars: Vec<Grammar> = match &world.vocabulary {
        Some(vocabulary) if chance(rng, 30) => {
            grammars::all(vocabulary).into_iter().map(|(_, grammar, _)| grammar).collect()
        }
        _ => Vec::new(),
    };
    let mut talks: Vec<Talk> = (0..pick(rng, &[1, 1, 2, 3])).map(|_| Talk::new(world, rng)).collect();
    for _ in 0..1 + rng.below(4) {
        report_device(world, rng);
        let turns: Vec<Turn> = talks.iter_mut().map(|talk| talk.turn(world, &grammars, rng)).collect();
        let shared = talks.len() > 1 && chance(rng, 70);
        answer(world, &mut talks, turns, shared, rng, tally);
    }
    world.engine.device().set_memory_pressure(MemoryPressure::Normal);
    world.engine.device().set_thermal_state(ThermalState::Nominal);
}

fn report_device(world: &World, rng: &mut Rng) {
    if chance(rng, 25) {
        let levels = [
            MemoryPressure::Normal,
            MemoryPressure::Normal,
            MemoryPressure::Warning,
            MemoryPressure::Critical,
        ];
        world.engine.device().set_memory_pressure(pick(rng, &levels));
    }
    if chance(rng, 15) {
        let states =
            [ThermalState::Nominal, ThermalState::Fair, ThermalState::Serious, ThermalState::Critical];
        world.engine.device().set_thermal_state(pick(rng, &states));
        world
            .engine
            .device()
            .set_power_state(pick(rng, &[PowerState::Mains, PowerState::Battery, PowerState::Saver]));
    }
}

/// A session with the options of its reference.
struct Talk {
    session: Option<Session>,
    kv_type: KvType,
    drafts: String,
}

impl Talk {
    fn new(world: &World, rng: &mut Rng) -> Self {
        let wanted = pick(rng, KvType::ALL);
        let fits = |kv_type| world.reference.session(SessionOptions { kv_type, ..plain() }).is_ok();
        // A head may not divide into the blocks of a type.
        let kv_type = if fits(wanted) { wanted } else { KvType::F16 };
        let options = session_options(kv_type, world, rng);
        let drafts = format!("{options:?}");
        let session = world.engine.session(options).unwrap_or_else(|error| panic!("{error}: {drafts}"));
        Self { session: Some(session), kv_type, drafts }
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("no generation runs")
    }

    /// Changes the text, and everything that must not matter.
    fn turn(&mut self, world: &World, grammars: &[Grammar], rng: &mut Rng) -> Turn {
        let n_tokens = self.session().tokens().len();
        if n_tokens > 1 && chance(rng, 30) {
            let cut_max = if chance(rng, 50) { n_tokens.min(4) } else { n_tokens };
            let cut = 1 + rng.below(cut_max);
            self.session().truncate(n_tokens - cut).unwrap();
        }
        let room = self.session().context_len() - self.session().tokens().len();
        let n_added = 1 + rng.below(120).min(room.saturating_sub(2));
        let tokens = text(rng, world.n_text_tokens, n_added);
        self.session().append_tokens(&tokens[..tokens.len().min(room)]).unwrap();
        match rng.below(8) {
            0 => {
                let cancelled = self.session().prefill(&cancelled_token(), |_, _| {});
                if let Err(error) = cancelled {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
                }
            }
            1 => drop(self.session().prefill_chunk(&CancelToken::new()).unwrap()),
            2 => self.session().prefill(&CancelToken::new(), |_, _| {}).unwrap(),
            3 => self.session().release_memory(),
            _ => {}
        }
        if chance(rng, 20) {
            self.session = Some(self.session().fork().unwrap());
        }
        if chance(rng, 15) {
            self.restore(world, rng);
        }
        Turn::new(self, world, grammars, rng)
    }

    /// Goes on in a new session with the state of this one.
    fn restore(&mut self, world: &World, rng: &mut Rng) {
        let session = self.session();
        let (n, mut state) = (session.state().n_cached_tokens(), Vec::new());
        match session.state().write(0..n, &mut state) {
            Ok(()) => {}
            Err(error) => match error.detail() {
                Some(SessionProblem::StateEnd { .. } | SessionProblem::BoundedWindows) => return,
                _ => panic!("{error}"),
            },
        }
        let tokens = session.tokens().to_vec();
        let options = session_options(self.kv_type, world, rng);
        let windows = options.window_cache;
        self.drafts = format!("{options:?}");
        let mut restored = world.engine.session(options).unwrap();
        restored.append_tokens(&tokens).unwrap();
        match restored.state_mut().restore(0, &tokens[..n], &state) {
            // A generation computes its root again.
            Ok(n_restored) => assert!(n_restored <= n),
            Err(error) => {
                let is_bounded = matches!(error.detail(), Some(SessionProblem::BoundedWindows));
                assert!(is_bounded && windows == WindowCache::Bounded, "{error}");
            }
        }
        self.session = Some(restored);
    }
}

fn session_options(kv_type: KvType, world: &World, rng: &mut Rng) -> SessionOptions {
    let rows = match rng.below(2) {
        0 => DraftRows::Auto,
        _ => DraftRows::Fixed(1 + rng.below(63)),
    };
    let floor = AcceptanceFloor { window: 1 + rng.below(8), rate_min: 0.5, pause: 1 + rng.below(4) };
    let policy = DraftPolicy {
        rows,
        floor: chance(rng, 20).then_some(floor),
        skip: SkipRules { tokens_min: pick(rng, &[0, 0, 4]), ..SkipRules::default() },
        stake: pick(rng, &[None, Some(0.01), Some(0.3)]),
    };
    let echo = EchoConfig { rejected_rows: pick(rng, &[0, 1, 64]), lists_max: pick(rng, &[1, 50, 1 << 16]) };
    let reuse = ReuseConfig {
        threshold: pick(rng, &[0.0, 0.05, 0.3]),
        lifetime: 1 + rng.below(4) as u32,
        tokens_max: pick(rng, &[1, 8, 32, 255]),
    };
    let pruning = PruningConfig {
        threshold: pick(rng, &[0.0, 0.01, 0.5]),
        safeguards: if chance(rng, 70) { PruningConfig::default().safeguards } else { None },
        ..PruningConfig::default()
    };
    let drafting = match rng.below(10) {
        0..6 => Drafting::Auto,
        6 if world.has_draft_model => Drafting::DraftModel,
        7 => Drafting::OwnSources,
        8 => Drafting::AsClaimed,
        9 => Drafting::Off,
        _ => Drafting::Auto,
    };
    let verify_rows_max = pick(rng, &[1, 2, 3, 5, 8, 16, 33, 64]);
    SessionOptions {
        kv_type,
        window_cache: pick(rng, &[WindowCache::Full, WindowCache::Bounded]),
        drafting,
        policy,
        draft_model: chance(rng, 90),
        calibration: pick(
            rng,
            &[Calibration::Auto, Calibration::Off, Calibration::InContext, Calibration::Full],
        ),
        echo: chance(rng, 40).then_some(echo),
        reuse: chance(rng, 60).then_some(reuse),
        pruning: (world.is_pruned && chance(rng, 80)).then_some(pruning),
        namespace: pick(rng, &["a", "b"]).to_owned(),
        history: chance(rng, 60),
        verify_rows_max,
        verify_lens: pick(
            rng,
            &[Vec::new(), Vec::new(), vec![1, 4, 8, 16, 32, 64], vec![64], vec![verify_rows_max]],
        ),
        prefill_chunk: pick(rng, &[1, 7, 16, 64, 256]),
        projection_rows: pick(rng, &[1, 3, 8, 64]),
        ..SessionOptions::default()
    }
}

/// Tokens that repeat words, or that do not.
fn text(rng: &mut Rng, n_text_tokens: usize, n: usize) -> Vec<TokenId> {
    let mut token = |n| TokenId(rng.below(n) as u32);
    let words: Vec<Vec<TokenId>> = (0..5).map(|_| (0..4).map(|_| token(n_text_tokens)).collect()).collect();
    let repeats = token(4).0 > 0;
    let mut tokens = Vec::new();
    while tokens.len() < n {
        match repeats {
            true => tokens.extend(&words[token(words.len()).index()]),
            false => tokens.push(token(n_text_tokens)),
        }
    }
    tokens.truncate(n);
    tokens
}

/// What one generation is asked for.
struct Turn {
    prompt: Vec<TokenId>,
    max_tokens: usize,
    sampling: Sampling,
    stop: Vec<String>,
    ignore_eos: bool,
    grammar: Option<Grammar>,
    /// Tokens after which the app leaves. `None`: it takes all.
    take: Option<usize>,
    /// Plain decoding of the whole.
    expected: Run,
}

impl Turn {
    fn new(talk: &mut Talk, world: &World, grammars: &[Grammar], rng: &mut Rng) -> Self {
        let prompt = talk.session().tokens().to_vec();
        let grammar = (!grammars.is_empty() && chance(rng, 70)).then(|| pick(rng, grammars));
        let letter = char::from(b'a' + rng.below(26) as u8).to_string();
        let mut turn = Self {
            prompt,
            max_tokens: 1 + rng.below(40),
            sampling: sampling(rng),
            stop: if chance(rng, 20) { vec![letter] } else { Vec::new() },
            ignore_eos: grammar.is_none() && chance(rng, 50),
            grammar,
            take: chance(rng, 25).then(|| rng.below(12)),
            expected: Run {
                tokens: Vec::new(),
                texts: Vec::new(),
                finish: FinishReason::Cancelled,
                logits: Default::default(),
                origins: Vec::new(),
                stats: Default::default(),
            },
        };
        let mut options = turn.options();
        options.processors.extend(turn.grammar.iter().map(|grammar| Box::new(grammar.mask()) as _));
        let session = SessionOptions { kv_type: talk.kv_type, ..plain() };
        turn.expected = run(&world.reference, session, Vec::new(), &turn.prompt, options);
        turn
    }

    fn options(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..GenerateOptions::default()
        }
    }

    /// The options of the generation that drafts, with sources of its own that know the answer, or nothing.
    fn drafted(&self, world: &World, rng: &mut Rng) -> GenerateOptions {
        let (prompt_len, known) = (self.prompt.len(), self.expected.tokens.clone());
        let vocab_size = world.engine.config().vocab_size as u32;
        let mut options = self.options();
        if chance(rng, 60) {
            let source: Box<dyn DraftSource> = match rng.below(6) {
                0..3 => Box::new(AlwaysRight::new(prompt_len, known)),
                3 => Box::new(AlwaysWrong::new(prompt_len, known)),
                // Half of the drafts are not tokens of the model.
                4 => Box::new(Random::new(rng.next_u64(), 2 * vocab_size)),
                _ => Box::new(Endless::new(vocab_size)),
            };
            options.sources.push(source);
        }
        match &self.grammar {
            Some(grammar) => grammar.constrain(options),
            None => options,
        }
    }
}

fn sampling(rng: &mut Rng) -> Sampling {
    if chance(rng, 40) {
        return Sampling::default();
    }
    let dry = DryOptions { multiplier: 0.8, ..DryOptions::default() };
    Sampling {
        temperature: pick(rng, &[0.0, 0.3, 1.0, 2.5]),
        top_p: pick(rng, &[1.0, 0.9, 0.3]),
        repetition_penalty: pick(rng, &[1.0, 1.2]),
        frequency_penalty: pick(rng, &[0.0, 0.2]),
        presence_penalty: pick(rng, &[0.0, 0.3]),
        penalty_window: pick(rng, &[1, 16, 64]),
        logit_bias: if chance(rng, 30) { vec![(TokenId(101), 2.5)] } else { Vec::new() },
        dry: if chance(rng, 30) { dry } else { DryOptions::default() },
        seed: Some(rng.next_u64()),
        ..Sampling::default()
    }
}

/// A generation and what it gave.
struct Answer {
    generation: OwnedGeneration,
    recorder: LogitsRecorder,
    tokens: Vec<TokenId>,
    texts: Vec<String>,
    /// Tokens after which the app leaves.
    take: usize,
    cancel: CancelToken,
    summary: Option<Summary>,
    is_left: bool,
}

impl Answer {
    /// Takes the events that are there, until the app leaves.
    fn drain(&mut self, case: &str) {
        while !self.ended() && !self.generation.awaits_pass() {
            if self.tokens.len() >= self.take {
                self.is_left = true;
                return;
            }
            match self.generation.next().unwrap_or_else(|| panic!("no event: {case}")) {
                Ok(Event::Token(token)) => {
                    self.tokens.push(token.id);
                    self.texts.push(token.text);
                }
                Ok(Event::Done(summary)) => {
                    self.texts.push(summary.text.clone());
                    self.summary = Some(summary);
                }
                other => panic!("{other:?}: {case}"),
            }
        }
    }

    fn ended(&self) -> bool {
        self.is_left || self.summary.is_some()
    }
}

/// Runs the generations of a turn, and compares them.
fn answer(
    world: &World,
    talks: &mut [Talk],
    turns: Vec<Turn>,
    shared: bool,
    rng: &mut Rng,
    tally: &mut Tally,
) {
    let mut answers: Vec<Answer> = Vec::new();
    for (talk, turn) in talks.iter_mut().zip(&turns) {
        let mut options = turn.drafted(world, rng);
        let recorder = LogitsRecorder::default();
        options.processors.insert(0, Box::new(recorder.clone()));
        let session = talk.session.take().expect("no generation runs");
        let generation =
            OwnedGeneration::new(session, options).unwrap_or_else(|refused| panic!("{:?}", refused.error));
        let take = turn.take.unwrap_or(usize::MAX);
        let cancel = generation.cancel_token();
        let (tokens, texts) = (Vec::new(), Vec::new());
        answers.push(Answer {
            generation,
            recorder,
            tokens,
            texts,
            take,
            cancel,
            summary: None,
            is_left: false,
        });
    }
    let case = |talk: &Talk, turn: &Turn| {
        let Turn { max_tokens, sampling, stop, take, .. } = turn;
        let n = turn.prompt.len();
        let with_grammar = turn.grammar.is_some();
        format!(
            "{n} tokens, {max_tokens} more, take {take:?}, stop {stop:?}, grammar {with_grammar}, shared {shared}, {sampling:?}; {}",
            talk.drafts
        )
    };
    while answers.iter().any(|answer| !answer.ended()) {
        if shared {
            let mut members: Vec<_> = answers
                .iter_mut()
                .filter(|answer| !answer.ended() && (answer.tokens.is_empty() || chance(rng, 80)))
                .map(|answer| &mut answer.generation)
                .collect();
            step_together(&mut members);
        }
        for (answer, (talk, turn)) in answers.iter_mut().zip(talks.iter().zip(&turns)) {
            if answer.ended() {
                continue;
            }
            if shared {
                answer.drain(&case(talk, turn));
            } else {
                step_together(&mut [&mut answer.generation]);
                answer.drain(&case(talk, turn));
            }
        }
    }
    for ((answer, talk), turn) in answers.into_iter().zip(talks).zip(&turns) {
        let case = case(talk, turn);
        check(&answer, turn, &case);
        let stats = answer.generation.stats();
        tally.generations += 1;
        tally.tokens += answer.tokens.len();
        tally.steps += stats.steps;
        tally.accepted += stats.sources.iter().map(|source| source.accepted).sum::<usize>();
        tally.with_grammar += usize::from(turn.grammar.is_some());
        tally.in_shared_passes += usize::from(shared);
        tally.in_part += usize::from(answer.is_left);
        if answer.is_left && chance(rng, 50) {
            answer.cancel.cancel();
        }
        let session = answer.generation.into_session();
        assert_eq!(
            session.tokens(),
            [&turn.prompt[..], &answer.tokens].concat(),
            "the session's tokens: {case}"
        );
        talk.session = Some(session);
    }
}

fn check(answer: &Answer, turn: &Turn, case: &str) {
    let Turn { expected, prompt, .. } = turn;
    let found = answer.recorder.0.lock().unwrap();
    match &answer.summary {
        Some(summary) => {
            assert_eq!(answer.tokens, expected.tokens, "tokens: {case}");
            assert_eq!(answer.texts, expected.texts, "texts: {case}");
            assert_eq!(summary.finish, expected.finish, "finish: {case}");
            assert_eq!(*found, expected.logits, "bits of the logits: {case}");
        }
        None => {
            let n = answer.tokens.len();
            assert_eq!(answer.tokens, expected.tokens[..n], "tokens: {case}");
            assert_eq!(answer.texts, expected.texts[..n], "texts: {case}");
            let taken = |logits: &std::collections::BTreeMap<usize, u64>| {
                logits.range(..prompt.len() + n).map(|(&at, &bits)| (at, bits)).collect::<Vec<_>>()
            };
            assert_eq!(taken(&found), taken(&expected.logits), "bits of the logits: {case}");
        }
    }
}
