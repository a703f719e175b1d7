//! Load on a server: what slow and aborting clients cost a session beside it, and what the server still holds afterwards.
//!
//! ```sh
//! cargo run --release -p refrain-serve --example load -- session [MODEL.gguf]   # times of tokens, beside load and without
//! cargo run --release -p refrain-serve --example load -- prompt [MODEL.gguf]    # times of streams' tokens, beside a long prompt and without
//! cargo run --release -p refrain-serve --example load -- slow [N]               # 1,000 slow connections
//! cargo run --release -p refrain-serve --example load -- aborts [N]             # 10,000 aborted requests
//! cargo run --release -p refrain-serve --example load -- mixed [N]              # 100,000 requests, every answer compared
//! ```
//!
//! Linux only: it reads `/proc`. Clients and server are processes of their own; the clients of `session` have the lowest priority, because
//! they stand for other devices.

#[path = "../../tests/support/load/mod.rs"]
mod load;
mod prompt;
mod rounds;
mod session;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    if load::is_server() {
        load::serve_until_the_parent_ends();
        return Ok(());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |default: usize| arguments.get(1).map_or(Ok(default), |given| given.parse());
    match arguments.first().map(String::as_str) {
        Some("session") => session::measure(&arguments[1..]),
        // The clients of `session`.
        Some("generate") => session::generate(&arguments[1..]),
        Some("prompt") => prompt::measure(&arguments[1..]),
        Some("slow") => rounds::slow(number(1000)?),
        Some("aborts") => rounds::aborts(number(10_000)?),
        Some("mixed") => rounds::mixed(number(100_000)?),
        _ => Err("one of: session, prompt, slow, aborts, mixed".into()),
    }
}
