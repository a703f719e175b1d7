//! What a process holds, as Linux counts it.

use std::fs;
use std::io;
use std::path::Path;

/// Open files, threads and memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) n_files: usize,
    pub(crate) n_threads: usize,
    /// Resident memory.
    pub(crate) rss_bytes: usize,
}

impl Sample {
    /// # Errors
    /// The process has ended, or this system has no `/proc`.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let folder = format!("/proc/{pid}");
        let status = fs::read_to_string(format!("{folder}/status"))?;
        let field = |name: &str| {
            let value = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(":")?.split_whitespace().next());
            value.and_then(|value| value.parse::<usize>().ok()).ok_or(io::ErrorKind::InvalidData)
        };
        let n_files = fs::read_dir(format!("{folder}/fd"))?.count();
        Ok(Self { n_files, n_threads: field("Threads")?, rss_bytes: field("VmRSS")? << 10 })
    }
}

/// Processor time of the threads in a folder of `/proc` whose names begin so.
pub(crate) fn cpu_seconds(tasks: &Path, name: &str) -> f64 {
    let Ok(tasks) = fs::read_dir(tasks) else { return 0.0 };
    let ticks = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (begin, rest) = stat.rsplit_once(')')?;
        let (_, thread) = begin.split_once('(')?;
        let mut fields = rest.split_whitespace().skip(11);
        let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        thread.starts_with(name).then_some(user + system)
    });
    // Linux reports times in hundredths of a second to all programs.
    ticks.sum::<f64>() / 100.0
}
