//! The system's clocks and random numbers.
//!
//! In a browser or in Node, Rust's standard library has neither for a module of WebAssembly (`wasm32-unknown-unknown`): its clocks
//! panic, and its hash maps have the same keys in every module. There JavaScript gives both.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
mod host {
    use std::hash::{BuildHasher, Hasher, RandomState};

    pub use std::time::{Instant, SystemTime, UNIX_EPOCH};

    /// A number that nobody guesses, from the operating system's random numbers by way of the keys of hash maps.
    pub fn random() -> u64 {
        RandomState::new().build_hasher().finish()
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod host {
    pub use web_time::{Instant, SystemTime, UNIX_EPOCH};

    /// A number that nobody guesses, from `crypto.getRandomValues`; the time, if there is no such function.
    pub fn random() -> u64 {
        let time = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        getrandom::u64().unwrap_or_else(|_| time())
    }
}

pub use host::*;
