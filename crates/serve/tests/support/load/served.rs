//! A server in a process of its own, so that its files, threads and memory can be counted apart from the clients'.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use refrain::{CancelToken, Engine, EngineOptions};
use refrain_serve::{Limits, Loaded, ModelKind, ModelSpec, Models, ServeOptions, Server};

use super::mixed::Client;
use super::sample::Sample;
use crate::support::{EMBEDDER, MODEL, engine};

/// Models that are loaded at a request and unloaded for each other.
pub(crate) const LOADED_IN_TURN: [&str; 2] = ["second", "third"];

/// Set in the server's process.
const VARIABLE: &str = "REFRAIN_SERVE_LOAD";

/// Kept prompts of a model. Small, so that a round fills it and forgets.
const WARM_BYTES: usize = 16 << 20;

/// Whether this process was started by [`Served::start`].
pub(crate) fn is_server() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Serves the fixture model at a free port, which it prints, until the standard input ends.
pub(crate) fn serve_until_the_parent_ends() {
    let mut limits = Limits::default();
    limits.warm_bytes = WARM_BYTES;
    let mut options = ServeOptions::default();
    options.port = 0;
    options.limits = limits;
    let server = Server::bind(options, models()).expect("it binds");
    println!("http://{}", server.local_addr());
    let stop = CancelToken::new();
    let theirs = stop.clone();
    std::thread::spawn(move || {
        // The parent sends nothing.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        theirs.cancel();
    });
    server.run(&stop).expect("it serves");
}

fn models() -> Models {
    let pinned = |name: &str| ModelSpec::new(name, || Ok(Loaded::new(engine()))).with_pinned(true);
    let fresh = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        ModelSpec::new(name, move || Ok(Loaded::new(Engine::open(path, EngineOptions::default())?)))
    };
    let [second, third] = LOADED_IN_TURN.map(fresh);
    let embedder = pinned(EMBEDDER).with_kind(ModelKind::Embedding);
    // The two pinned ones and one more.
    let budget = 3 * engine().memory_usage() as usize;
    Models::new([pinned(MODEL), embedder, second, third]).expect("four names").with_budget(budget)
}

/// A running server process. Dropping it stops the server.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Served {
    /// Starts `command`, which must call [`serve_until_the_parent_ends`].
    pub(crate) fn start(command: &mut Command) -> Self {
        let piped = command.env(VARIABLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = output.lines().map(|line| line.expect("UTF-8"));
        let address = lines.find_map(|line| line.split_once("http://")?.1.trim().parse().ok());
        let address = address.expect("the server prints its address");
        // Whatever a test harness prints at the end must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn sample(&self) -> Sample {
        Sample::of(self.pid()).expect("the server runs")
    }

    /// Waits until no request and no other connection is left, and counts what the server holds.
    pub(crate) fn sample_at_rest(&self) -> Sample {
        let mut client = Client::new(self.address);
        loop {
            let metrics = client.metrics();
            let rests = ["refrain_connections 1", "refrain_requests_running 0", "refrain_requests_waiting 0"];
            if rests.iter().all(|line| metrics.lines().any(|given| given == *line)) {
                return self.sample();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait();
        if !std::thread::panicking() {
            assert!(ended.expect("it was started").success(), "the server has failed");
        }
    }
}
