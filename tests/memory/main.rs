//! Bounds of memory. Apart from the other programs, because an allocator records the peak of the whole process, and because the system is
//! asked for the memory of the process. Each test holds [`turn`] from its first line to its last.

#[path = "../common/mod.rs"]
mod common;
mod graph_memory;
mod load_memory;
#[path = "../model_files/mod.rs"]
mod model_files;
mod session_memory;
mod template_memory;
mod tokenizer_memory;

use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The counter counts all threads, so tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
