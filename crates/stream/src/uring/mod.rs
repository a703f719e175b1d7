//! A queue of concurrent reads for one thread: io_uring, if the system has it.

// The processors that the crate `io-uring` supports; `Cargo.toml` has the same condition.
#[cfg_attr(
    not(all(
        target_os = "linux",
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64"
        )
    )),
    path = "absent.rs"
)]
mod system;

use std::time::Duration;

use super::ReadFailure;
use super::queue::Work;

pub(super) use system::Uring;

/// Delay before a refused submission or wait is retried. The system refuses them if it lacks memory.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A block whose read has ended, with its result.
pub(super) type Ended = (Work, Result<(), ReadFailure>);
