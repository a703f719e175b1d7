//! The limits of this machine, so that a time can be stated as a share of them.

mod bandwidth;
mod int8;
mod threads;

use serde::Serialize;

/// The machine and its measured limits.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub n_threads: usize,
    /// Reads from memory by all threads: the best of the measurements before and between the files.
    pub read_bytes_per_s: f64,
    /// Multiply-adds of 8-bit integers by all threads; `None` if the CPU has no VNNI.
    pub int8_macs_per_s: Option<f64>,
    /// The load average of the last minute before the measurement: above about 0 the machine was not quiet.
    pub load_before: Option<f64>,
}

impl Machine {
    /// Measures with `n_threads`; takes a few seconds and 1 GiB of memory.
    pub fn measure(n_threads: usize) -> Self {
        let load_before = load_average();
        Self {
            cpu: cpu_name(),
            n_threads,
            read_bytes_per_s: bandwidth::read_bytes_per_s(n_threads),
            int8_macs_per_s: int8::macs_per_s(n_threads),
            load_before,
        }
    }

    /// Measures the reads once more and keeps the larger limit: a virtual machine's share of the memory bandwidth
    /// changes by the minute.
    pub fn measure_reads_again(&mut self) {
        self.read_bytes_per_s = self.read_bytes_per_s.max(bandwidth::read_bytes_per_s(self.n_threads));
    }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

/// The load average of the last minute, if the system provides it.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
