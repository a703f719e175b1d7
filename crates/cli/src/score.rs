//! `refrain model score`: the log-probabilities of a text, its perplexity, and the logits.

use std::io::{BufWriter, Write};
use std::path::Path;

use refrain::{
    CancelToken, Engine, EngineOptions, KvType, Quantize, Score, Session, SessionOptions, SpecialTokens,
    TokenId,
};
use refrain_files::replace::{Manner, replace_file};
use serde::Serialize;

use crate::args::{ScoreArgs, ScoreInput, WeightsArg};
use crate::failure::{Exit, Failure};
use crate::input::read_input;
use crate::interrupt::Interrupt;
use crate::load;
use crate::terminal::{AnswerStream, visible};

pub(crate) fn score(args: &ScoreArgs, interrupt: &Interrupt) -> Result<Exit, Failure> {
    let text = input_text(&args.input)?;
    let checkpoint = load::checkpoint(args.model.as_deref())?;
    let widens = args.weights == Some(WeightsArg::F32);
    let mut options = args.compute.engine_options();
    if let Some(streaming) = &mut options.streaming {
        let session = SessionOptions { kv_type: args.kv.kv_type(), ..SessionOptions::default() };
        streaming.reserved_bytes = session.memory_bytes(checkpoint.config());
    }
    if widens {
        options.quantize = Quantize::F32;
    }
    let engine = load::engine(&checkpoint, without_costs(options))?;
    let kv_type = if widens { KvType::F32 } else { args.kv.kv_type() };
    let mut session = scored_session(&engine, text.as_deref(), &args.input.tokens, kv_type)?;

    let cancel = CancelToken::new();
    let _cancelling = interrupt.cancels(cancel.clone());
    let score = match &args.logits {
        Some(path) => score_with_logits(&engine, &mut session, &cancel, path)?,
        None => session.score(&cancel, None)?,
    };
    let tokens = session.tokens();
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&json(&engine, tokens, &score))?;
    } else {
        print(&engine, tokens, &score, &mut out)?;
    }
    Ok(Exit::Done)
}

/// Skips the cost measurement of loading, because scoring does not draft.
fn without_costs(options: EngineOptions) -> EngineOptions {
    let costs = refrain::internals::draft::CostProfile::from_measurements(&[(1, 1.0)]);
    EngineOptions { cost_profile: Some(costs), ..options }
}

/// The text, which may be in a file.
fn input_text(input: &ScoreInput) -> Result<Option<String>, Failure> {
    match input.text.as_deref().map(|text| (text, text.strip_prefix('@'))) {
        Some((_, Some(path))) => read_input(Path::new(path)).map(Some),
        Some((text, None)) => Ok(Some(text.to_owned())),
        None => Ok(None),
    }
}

/// A session with the text or the tokens, and a context of exactly their length.
fn scored_session(
    engine: &Engine,
    text: Option<&str>,
    ids: &[u32],
    kv_type: KvType,
) -> Result<Session, Failure> {
    let tokenizer = engine.tokenizer();
    let mut tokens: Vec<TokenId> = ids.iter().copied().map(TokenId).collect();
    if let Some(text) = text {
        tokens.extend(tokenizer.bos().filter(|_| tokenizer.adds_bos()));
        let encoded = tokenizer.encode(text, SpecialTokens::AsText);
        tokens.extend(encoded.map_err(|error| Failure::input(error, "give a shorter text"))?);
    }
    let (n_tokens, n_tokens_max) = (tokens.len(), engine.config().context_len);
    if n_tokens < 2 {
        let problem = format!("the text has {n_tokens} tokens, and the first token has no probability");
        return Err(Failure::input(problem, "give at least two tokens"));
    }
    if n_tokens > n_tokens_max {
        let problem = format!("the text has {n_tokens} tokens, and the model's context {n_tokens_max}");
        return Err(Failure::input(problem, "give a shorter text"));
    }
    let options = SessionOptions { context_len: Some(n_tokens), kv_type, ..SessionOptions::default() };
    let mut session = engine.session(options)?;
    session.append_tokens(&tokens)?;
    Ok(session)
}

/// Scores, and writes the logits of each position as they are computed: together they may exceed the memory.
fn score_with_logits(
    engine: &Engine,
    session: &mut Session,
    cancel: &CancelToken,
    path: &Path,
) -> Result<Score, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("cannot write `{}`: {error} (check the folder and the disk)", path.display()),
        )
    };
    // The logits tell the text.
    replace_file(path, Manner::Private, |file| {
        let mut file = BufWriter::new(file);
        file.write_all(&logits_header(session.tokens().len(), engine.config().vocab_size)).map_err(cannot)?;
        let mut written = Ok(());
        let score = session.score(
            cancel,
            Some(&mut |logits: &[f32]| {
                if written.is_ok() {
                    written = logits.iter().try_for_each(|logit| file.write_all(&logit.to_le_bytes()));
                }
            }),
        )?;
        written.and_then(|()| file.flush()).map_err(cannot)?;
        Ok(score)
    })
}

/// The head of a safetensors file with the one tensor `logits`: length, then JSON, padded so that the data is
/// aligned.
fn logits_header(n_tokens: usize, vocab_size: usize) -> Vec<u8> {
    let n_bytes = n_tokens * vocab_size * size_of::<f32>();
    let mut json = format!(
        r#"{{"logits":{{"dtype":"F32","shape":[{n_tokens},{vocab_size}],"data_offsets":[0,{n_bytes}]}}}}"#
    );
    json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(8) - json.len()));
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json.into_bytes());
    header
}

fn print(engine: &Engine, tokens: &[TokenId], score: &Score, out: &mut AnswerStream) -> Result<(), Failure> {
    out.line("position     token  log-probability  text")?;
    for (position, &token) in tokens.iter().enumerate() {
        let log_probability = match position.checked_sub(1) {
            Some(i) => format!("{:.6}", score.log_probabilities[i]),
            None => "-".to_owned(),
        };
        let text = format!("{:?}", token_text(engine, token));
        out.line(&format!("{position:>8}  {token:>8}  {log_probability:>15}  {}", visible(&text)))?;
    }
    out.line(&format!("perplexity {:.6} over {} tokens", score.perplexity, score.log_probabilities.len()))?;
    Ok(())
}

fn json(engine: &Engine, tokens: &[TokenId], score: &Score) -> String {
    #[derive(Serialize)]
    struct Token {
        id: u32,
        text: String,
        log_probability: Option<f64>,
    }
    #[derive(Serialize)]
    struct Report {
        perplexity: f64,
        tokens: Vec<Token>,
    }
    let log_probabilities = std::iter::once(None).chain(score.log_probabilities.iter().copied().map(Some));
    let tokens = tokens.iter().zip(log_probabilities).map(|(&token, log_probability)| Token {
        id: token.0,
        text: token_text(engine, token),
        log_probability,
    });
    let report = Report { perplexity: score.perplexity, tokens: tokens.collect() };
    serde_json::to_string(&report).expect("strings and numbers have a JSON form")
}

fn token_text(engine: &Engine, token: TokenId) -> String {
    String::from_utf8_lossy(engine.tokenizer().token_bytes(token).unwrap_or_default()).into_owned()
}
