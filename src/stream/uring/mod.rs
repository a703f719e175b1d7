//! A queue of concurrent reads of one thread: io_uring, where the system has it.

// The processors that the crate `io-uring` is built for; `Cargo.toml` has the same condition.
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

/// The delay before a refused submission or wait is tried again; the system refuses them for lack of memory.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A block whose read has ended, with its result.
pub(super) type Ended = (Work, Result<(), ReadFailure>);
