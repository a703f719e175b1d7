//! The limits of everything that a client sends or leaves open.

use std::time::Duration;

/// Limits of a server. What exceeds one is refused with the limit's number, or ends with the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a request's body. Default 8 MiB: a text of the longest prompt that tokenizers take (4 MiB), with escapes.
    pub body_bytes: usize,
    /// Bytes of a request's line and headers; at least 8192. Default 16 KiB.
    pub header_bytes: usize,
    /// Headers of a request. Default 64.
    pub headers: usize,
    /// Time for a request's headers, also the time that an idle connection stays open. Default 15 s.
    pub header_time: Duration,
    /// Time for a request's body. Default 30 s.
    pub body_time: Duration,
    /// How long a client may read no byte of a response. While the server waits for a client, the client must also read 16 KiB per
    /// second over this time. Default 30 s.
    pub stall_time: Duration,
    /// Open connections. If all are taken, 4 further ones answer `/health` and `/metrics`, and refuse other requests with status 503;
    /// the next ones wait in the backlog of the system. Default 512.
    pub connections: usize,
    /// Requests that compute, in turns. Each has a session in memory. Default 4.
    pub running: usize,
    /// Requests that wait; further ones are refused with status 429. Default 64.
    pub waiting: usize,
    /// Time that a request waits for its computation. Default 10 min.
    pub queue_time: Duration,
    /// Bytes of the bodies of all requests, from the first byte that is read to the end of the request; further ones are refused with
    /// status 429. Default 64 MiB.
    pub bodies_bytes: usize,
    /// Values of a request's JSON: numbers, strings, arrays, objects. Each takes about 100 bytes. Default 200,000.
    pub json_values: usize,
    /// Time of a request, from the start of its computation. Default 30 min.
    pub request_time: Duration,
    /// Time between comments in a stream without events. Default 5 s.
    pub ping_time: Duration,
    /// How long running requests may continue after a stop. Default 10 s.
    pub grace_time: Duration,
    /// Outputs of a request (`n`). Default 8.
    pub choices: usize,
    /// Messages of a conversation. Default 4096.
    pub messages: usize,
    /// Tools of a request. Default 128.
    pub tools: usize,
    /// Texts of a request for embeddings. Default 256.
    pub inputs: usize,
    /// Bytes of keys and values that are kept of recent prompts, per model. Default 512 MiB.
    pub warm_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            header_bytes: 16 << 10,
            headers: 64,
            header_time: Duration::from_secs(15),
            body_time: Duration::from_secs(30),
            stall_time: Duration::from_secs(30),
            connections: 512,
            running: 4,
            waiting: 64,
            queue_time: Duration::from_secs(10 * 60),
            bodies_bytes: 64 << 20,
            json_values: 200_000,
            request_time: Duration::from_secs(30 * 60),
            ping_time: Duration::from_secs(5),
            grace_time: Duration::from_secs(10),
            choices: 8,
            messages: 4096,
            tools: 128,
            inputs: 256,
            warm_bytes: 512 << 20,
        }
    }
}
