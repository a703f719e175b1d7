//! Times of the tokens of running streams, beside a long prompt and without, and the first token of the prompt, beside the streams and alone.
//!
//! Each token is one step: drafts are off, unless `--drafts` is given. Every prompt has other tokens, so nothing of it is kept. Windows without
//! and with a prompt alternate.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use refrain::{CancelToken, Drafting, Engine, EngineOptions, SessionOptions};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions, Server};
use serde_json::json;

use crate::support::MODEL;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "prompt [MODEL.gguf] [--tokens 4096] [--streams 1] [--rounds 3] [--seconds 5] [--threads N] [--drafts]";

struct Options {
    model: Option<String>,
    tokens: usize,
    streams: usize,
    rounds: usize,
    seconds: f64,
    threads: Option<usize>,
    drafts: bool,
}

impl Options {
    fn read(arguments: &[String]) -> Outcome<Self> {
        let mut options = Self {
            model: None,
            tokens: 4096,
            streams: 1,
            rounds: 3,
            seconds: 5.0,
            threads: None,
            drafts: false,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(USAGE);
            match name.as_str() {
                "--tokens" => options.tokens = value()?.parse()?,
                "--streams" => options.streams = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--threads" => options.threads = Some(value()?.parse()?),
                "--drafts" => options.drafts = true,
                name if !name.starts_with('-') => options.model = Some(name.to_owned()),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }
}

pub(crate) fn measure(arguments: &[String]) -> Outcome {
    let options = Options::read(arguments)?;
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    let engine_options = EngineOptions { n_threads: options.threads, ..EngineOptions::default() };
    let engine = Engine::open(options.model.as_deref().unwrap_or(fixture), engine_options)?;
    let context_len = engine.config().context_len.min(2 * options.tokens);
    let n_prompt = options.tokens.min(context_len - 2);
    let theirs = engine.clone();
    let drafting = if options.drafts { Drafting::Auto } else { Drafting::Off };
    let load = move || {
        let mut loaded = Loaded::new(theirs.clone());
        loaded.session = SessionOptions { context_len: Some(context_len), drafting, ..loaded.session };
        Ok(loaded)
    };
    let models = Models::new([ModelSpec::new(MODEL, load).with_pinned(true)])?;
    let mut serve = ServeOptions::default();
    (serve.port, serve.limits) = (0, Limits::default());
    let server = Server::bind(serve, models)?;
    let stop = CancelToken::new();
    let bench = Bench {
        address: server.local_addr(),
        n_prompt,
        vocab_size: engine.config().vocab_size as u64,
        n_prompts: AtomicUsize::new(0),
    };
    let theirs = stop.clone();
    let serving = std::thread::spawn(move || server.run(&theirs));
    let model = options.model.as_deref().unwrap_or("fixture");
    println!(
        "{model}, a prompt of {n_prompt} tokens beside {} streams, {} rounds",
        options.streams, options.rounds
    );
    println!("| | p50, ms | p99, ms | longest, ms | tokens |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let (mut quiet, mut beside, mut alone_s, mut beside_s) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        alone_s.push(bench.first_token()?);
        let window = || {
            std::thread::sleep(Duration::from_secs_f64(options.seconds));
            Ok(())
        };
        quiet.extend(bench.stream(options.streams, window)?.1);
        let (first, gaps) = bench.stream(options.streams, || bench.first_token())?;
        beside.extend(gaps);
        beside_s.push(first);
    }
    for (name, gaps) in [("quiet", &mut quiet), ("beside a prompt", &mut beside)] {
        gaps.sort_by(f64::total_cmp);
        let at =
            |share: f64| gaps.get(((gaps.len() as f64 * share) as usize).min(gaps.len().saturating_sub(1)));
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| 1e3 * at(share).copied().unwrap_or(f64::NAN));
        println!("| {name} | {p50:.2} | {p99:.2} | {longest:.2} | {} |", gaps.len());
    }
    let seconds = |all: &[f64]| all.iter().map(|s| format!("{s:.2}")).collect::<Vec<_>>().join(", ");
    println!("first token of the prompt: alone {} s, beside {} s", seconds(&alone_s), seconds(&beside_s));
    stop.cancel();
    serving.join().map_err(|_| "the server has panicked")??;
    Ok(())
}

struct Bench {
    address: SocketAddr,
    n_prompt: usize,
    vocab_size: u64,
    n_prompts: AtomicUsize,
}

impl Bench {
    /// Seconds until the first token of a new prompt.
    fn first_token(&self) -> Outcome<f64> {
        let number = self.n_prompts.fetch_add(1, Ordering::Relaxed) as u64;
        let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Behind the control tokens that many vocabularies begin with.
            (x >> 33) % (self.vocab_size / 2) + self.vocab_size / 4
        };
        let tokens: Vec<u64> = (0..self.n_prompt).map(|_| next()).collect();
        let since = Instant::now();
        let body = json!({"prompt": tokens, "max_tokens": 1, "stream": true, "temperature": 0});
        let mut seconds = None;
        self.events(&body.to_string(), |_| {
            seconds.get_or_insert_with(|| since.elapsed().as_secs_f64());
            true
        })?;
        seconds.ok_or_else(|| "the prompt has no token".into())
    }

    /// Times between the tokens of `n` streams while `work` runs, once all of them decode.
    fn stream<T>(&self, n: usize, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Vec<f64>)> {
        let (measures, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let (n_decoding, gaps) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let streams = |number: usize| {
            let mut seed = number;
            while !ends.load(Ordering::Relaxed) {
                seed += n;
                let body = json!({
                    "prompt": "The train left the station at nine, and", "max_tokens": 2000, "stream": true,
                    "temperature": 1.0, "top_p": 1.0, "seed": seed,
                });
                let (mut last, mut n_tokens) = (None::<Instant>, 0);
                let read = self.events(&body.to_string(), |now| {
                    let before = last.replace(now);
                    n_tokens += 1;
                    n_decoding.fetch_add(usize::from(n_tokens == 20), Ordering::Relaxed);
                    if let Some(before) = before.filter(|_| measures.load(Ordering::Relaxed)) {
                        gaps.lock().expect("no thread panics").push((now - before).as_secs_f64());
                    }
                    !ends.load(Ordering::Relaxed)
                });
                read.expect("the server answers");
            }
        };
        let streams = &streams;
        let done = std::thread::scope(|scope| {
            (0..n).for_each(|number| drop(scope.spawn(move || streams(number))));
            while n_decoding.load(Ordering::Relaxed) < n {
                std::thread::sleep(Duration::from_millis(1));
            }
            measures.store(true, Ordering::Relaxed);
            let done: Outcome<T> = work();
            measures.store(false, Ordering::Relaxed);
            ends.store(true, Ordering::Relaxed);
            done
        })?;
        Ok((done, gaps.into_inner().expect("no thread panics")))
    }

    /// Sends a request and calls `token` with the time of each event that has text, until it returns `false`.
    fn events(&self, body: &str, mut token: impl FnMut(Instant) -> bool) -> Outcome {
        let mut connection = TcpStream::connect(self.address)?;
        connection.set_nodelay(true)?;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(body.as_bytes())?;
        for (number, line) in BufReader::new(connection).lines().enumerate() {
            let line = line?;
            if number == 0 && !line.contains(" 200 ") {
                return Err(line.into());
            }
            let Some(event) = line.strip_prefix("data: ") else { continue };
            if event == "[DONE]" || (event.contains("\"text\":") && !token(Instant::now())) {
                break;
            }
        }
        Ok(())
    }
}
