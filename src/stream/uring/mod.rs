//! A queue of reads that one thread has under way: io_uring, where the system has it.

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

/// How long to leave the system alone that could not take a read, or be waited on, for want of memory.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A block that was read, or could not be.
pub(super) type Ended = (Work, Result<(), ReadFailure>);
