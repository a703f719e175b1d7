//! Times of the tokens of a session of the app, beside load on the server and without.
//!
//! The session runs in the server's process and takes turns at its gate, as an app's own generations do: in the foreground, or with
//! `--interactive` in turns with requests. Each token is one step: drafts are off. Windows without and with load alternate, and each loaded window is compared with the quiet ones around it.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, Event, GenerateOptions, Role, Sampling, SessionOptions,
};
use refrain_assistant::{Gate, Priority};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions, Server};

use crate::load::{Ending, STAGES, SlowClients, Stage, abort, cpu_seconds};
use crate::support::MODEL;

type Outcome = Result<(), Box<dyn Error>>;

const USAGE: &str = "session [MODEL.gguf] [--load none|slow|head|body|queue|prefill|decoding|end|aborts|all]… [--seconds 15] [--rounds 4] \
    [--rate 100] [--connections 1000] [--threads N] [--interactive]";

/// Tokens of each generation of the session; each begins with the same prompt, so that all windows have the same contexts.
const TOKENS: usize = 256;
const PROMPT: &str = "Write a story about a train, a dog and the sea.";

#[derive(Debug)]
struct Options {
    model: Option<String>,
    loads: Vec<String>,
    seconds: f64,
    rounds: usize,
    rate: f64,
    connections: usize,
    threads: Option<usize>,
    priority: Priority,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            model: None,
            loads: Vec::new(),
            seconds: 15.0,
            rounds: 4,
            rate: 100.0,
            connections: 1000,
            threads: None,
            priority: Priority::Foreground,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(USAGE);
            match name.as_str() {
                "--load" => options.loads.push(value()?.clone()),
                "--seconds" => options.seconds = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--rate" => options.rate = value()?.parse()?,
                "--connections" => options.connections = value()?.parse()?,
                "--threads" => options.threads = Some(value()?.parse()?),
                "--interactive" => options.priority = Priority::Interactive,
                name if !name.starts_with('-') => options.model = Some(name.to_owned()),
                _ => return Err(USAGE.into()),
            }
        }
        if options.loads.is_empty() {
            options.loads = ["none", "slow", "aborts", "all"].map(str::to_owned).to_vec();
        }
        Ok(options)
    }
}

/// Clients that abort requests, one after the other each.
const ABORTING: usize = 16;

pub(crate) fn measure(arguments: &[String]) -> Outcome {
    let options = Options::read(arguments)?;
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    let mut engine_options = EngineOptions::default();
    if let Some(n_threads) = options.threads {
        engine_options.n_threads = Some(n_threads);
    }
    let engine = Engine::open(options.model.as_deref().unwrap_or(fixture), engine_options)?;
    let theirs = engine.clone();
    let models =
        Models::new([ModelSpec::new(MODEL, move || Ok(Loaded::new(theirs.clone()))).with_pinned(true)])?;
    let gate = Arc::clone(models.gate());
    // All slow connections are open at once, and requests beside them.
    let mut limits = Limits::default();
    limits.connections = options.connections + 500;
    let mut serve = ServeOptions::default();
    (serve.port, serve.limits) = (0, limits);
    let server = Server::bind(serve, models)?;
    let address = server.local_addr();
    let stop = CancelToken::new();
    let their_stop = stop.clone();
    let serving = std::thread::spawn(move || server.run(&their_stop));

    println!(
        "{}, {} s a window, {} rounds",
        options.model.as_deref().unwrap_or("fixture"),
        options.seconds,
        options.rounds
    );
    println!(
        "| load | p50 | p99 quiet, ms | p99 loaded, ms | p99 ratio (least, greatest) | p50 ratio | tokens/s ratio | clients' CPU | server's CPU | done |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |");
    let mut session = Local { engine, gate, priority: options.priority };
    session.window(2.0)?;
    for load in &options.loads {
        let row = row(&mut session, address, load, &options)?;
        println!("{row}");
    }
    stop.cancel();
    serving.join().map_err(|_| "the server has panicked")??;
    Ok(())
}

/// One line of the table.
fn row(
    session: &mut Local,
    address: SocketAddr,
    load: &str,
    options: &Options,
) -> Result<String, Box<dyn Error>> {
    let mut quiet = vec![session.window(options.seconds)?];
    let (mut loaded, mut done) = (Vec::new(), String::new());
    let (mut client_cpu, mut server_cpu) = (0.0, 0.0);
    for _ in 0..options.rounds {
        let clients = Clients::start(address, load, options)?;
        let cpu_before = (clients.cpu(), served_cpu());
        loaded.push(session.window(options.seconds)?);
        client_cpu += clients.cpu() - cpu_before.0;
        server_cpu += served_cpu() - cpu_before.1;
        done = clients.stop()?;
        // Whatever the clients have left ends first.
        session.window(1.0)?;
        quiet.push(session.window(options.seconds)?);
    }
    let ratio = |value: fn(&Window) -> f64| {
        let ratios = loaded.iter().enumerate();
        let ratios =
            ratios.map(|(n, window)| value(window) / ((value(&quiet[n]) + value(&quiet[n + 1])) / 2.0));
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    };
    let middle = |values: &[f64]| (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    let mean = |windows: &[Window], value: fn(&Window) -> f64| {
        windows.iter().map(value).sum::<f64>() / windows.len() as f64
    };
    let p99 = ratio(|window| window.p99_ms);
    let seconds = options.seconds * options.rounds as f64;
    Ok(format!(
        "| {load} | {:.3} | {:.3} | {:.3} | {:.3} ({:.3}, {:.3}) | {:.3} | {:.3} | {:.1} % | {:.1} % | {done} |",
        mean(&quiet, |window| window.p50_ms),
        mean(&quiet, |window| window.p99_ms),
        mean(&loaded, |window| window.p99_ms),
        middle(&p99),
        p99[0],
        p99[p99.len() - 1],
        middle(&ratio(|window| window.p50_ms)),
        middle(&ratio(|window| window.per_second)),
        client_cpu / seconds * 100.0,
        server_cpu / seconds * 100.0,
    ))
}

/// Processor time of the server's own threads, without passes of the session.
fn served_cpu() -> f64 {
    cpu_seconds(Path::new("/proc/self/task"), "refrain-serve")
        + cpu_seconds(Path::new("/proc/self/task"), "refrain-request")
}

/// The session of the app.
struct Local {
    engine: Engine,
    gate: Arc<Gate>,
    priority: Priority,
}

/// Times per token in a window.
struct Window {
    p50_ms: f64,
    p99_ms: f64,
    per_second: f64,
}

impl Local {
    fn window(&mut self, seconds: f64) -> Result<Window, Box<dyn Error>> {
        let (since, mut times) = (Instant::now(), Vec::new());
        let cancel = CancelToken::new();
        // Ends of the text are forbidden: every generation has the same number of tokens.
        let ends = self.engine.tokenizer().eos().iter().map(|&end| (end, -100.0)).collect();
        let sampling = Sampling { logit_bias: ends, ..Sampling::default() };
        while since.elapsed().as_secs_f64() < seconds {
            let turn = self.gate.enter(self.priority, &cancel).ok_or("cancelled")?;
            let mut session = self
                .engine
                .session(SessionOptions { drafting: Drafting::Off, ..SessionOptions::default() })?;
            session.append_turn(Role::User, PROMPT)?;
            let generate = GenerateOptions {
                max_tokens: TOKENS,
                sampling: sampling.clone(),
                ..GenerateOptions::default()
            };
            let mut generation = session.generate(generate)?;
            generation.prefill(|_, _| {})?;
            drop(turn);
            let mut last = Instant::now();
            loop {
                let turn = self.gate.enter(self.priority, &cancel).ok_or("cancelled")?;
                let event = generation.next();
                drop(turn);
                match event.ok_or("the generation has ended early")?? {
                    Event::Token(_) => {
                        times.push(last.elapsed().as_secs_f64() * 1e3);
                        last = Instant::now();
                    }
                    Event::Done(_) => break,
                    _ => {}
                }
            }
        }
        let per_second = times.len() as f64 / since.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        Ok(Window { p50_ms: at(0.5), p99_ms: at(0.99), per_second })
    }
}

/// The process with the clients.
struct Clients {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Clients {
    /// Starts the clients, and waits until the slow ones are connected.
    fn start(address: SocketAddr, load: &str, options: &Options) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(std::env::current_exe()?)
            .args([
                "generate",
                &address.to_string(),
                load,
                &options.rate.to_string(),
                &options.connections.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        output.read_line(&mut String::new())?;
        Ok(Self { child, output })
    }

    fn cpu(&self) -> f64 {
        cpu_seconds(&Path::new("/proc").join(self.child.id().to_string()).join("task"), "")
    }

    /// Ends the clients. Returns what they say they have done.
    fn stop(mut self) -> Result<String, Box<dyn Error>> {
        drop(self.child.stdin.take());
        let mut done = String::new();
        self.output.read_to_string(&mut done)?;
        if !self.child.wait()?.success() {
            return Err("the clients have failed".into());
        }
        Ok(done.trim().to_owned())
    }
}

/// The clients, until the standard input ends.
pub(crate) fn generate(arguments: &[String]) -> Outcome {
    let [address, load, rate, connections] = arguments else { return Err(USAGE.into()) };
    let (address, rate): (SocketAddr, f64) = (address.parse()?, rate.parse()?);
    let is_slow = matches!(load.as_str(), "slow" | "all");
    let stages: &[Stage] = match load.as_str() {
        "none" | "slow" => &[],
        "head" => &[Stage::Head],
        "body" => &[Stage::Body],
        "queue" => &[Stage::Queue],
        "prefill" => &[Stage::Prefill],
        "decoding" => &[Stage::Decoding],
        "end" => &[Stage::End],
        "aborts" | "all" => &STAGES,
        _ => return Err(USAGE.into()),
    };
    let mut slow = SlowClients::open(address, if is_slow { connections.parse()? } else { 0 });
    println!("open");
    let has_ended = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&has_ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        theirs.store(true, Ordering::Relaxed);
    });
    let (n_begun, n_reached) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Outcome {
        let (has_ended, n_begun, n_reached) = (&has_ended, &n_begun, &n_reached);
        let since = Instant::now();
        // Each waits until its request has come to its stage.
        let aborting: Vec<_> = (0..if stages.is_empty() { 0 } else { ABORTING })
            .map(|_| {
                scope.spawn(move || -> std::io::Result<()> {
                    while !has_ended.load(Ordering::Relaxed) {
                        let due = since.elapsed().as_secs_f64() * rate;
                        let number = n_begun.fetch_add(1, Ordering::Relaxed);
                        if number as f64 >= due {
                            n_begun.fetch_sub(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(2));
                            continue;
                        }
                        let is_close = (number / stages.len()).is_multiple_of(2);
                        let ending = if is_close { Ending::Close } else { Ending::Reset };
                        let has_reached = abort(address, stages[number % stages.len()], ending, number)?;
                        n_reached.fetch_add(usize::from(has_reached), Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let mut n_ticked = 0;
        while !has_ended.load(Ordering::Relaxed) {
            // Each slow client sends or takes a byte a second, all at different times.
            let due = (since.elapsed().as_secs_f64() * slow.n_clients() as f64) as usize;
            slow.tick_some(n_ticked..due);
            n_ticked = due;
            std::thread::sleep(Duration::from_millis(2));
        }
        for thread in aborting {
            thread.join().map_err(|_| "a client has panicked")??;
        }
        Ok(())
    })?;
    let (n_begun, n_reached) = (n_begun.into_inner(), n_reached.into_inner());
    println!(
        "{n_begun} aborted ({n_reached} at their stage), {} slow, {} ended by the server",
        slow.n_open(),
        slow.n_ended
    );
    std::io::stdout().flush()?;
    Ok(())
}
