//! Damaged files are refused in bounded memory. Apart from `memory`: the cases that `proptest` makes outside [`turn`] would be counted there.

mod damaged_files;
#[path = "../model_files/mod.rs"]
mod model_files;
mod mutated_configs;

use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The counter counts all threads, so measured reads take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
