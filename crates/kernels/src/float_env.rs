//! The floating-point environment: how this thread rounds, and whether it flushes subnormal numbers to zero.
//!
//! Audio and graphics code often sets flush-to-zero or denormals-are-zero for its threads, and a thread
//! inherits both from the thread that starts it. Both change the bits of sums. All code that computes results
//! therefore runs under a [`FloatEnv`]. It sets the IEEE 754 default (to nearest, ties to even; subnormal
//! numbers kept; no traps) and restores the caller's setting at its end.
//!
//! Each worker of the pool holds one for its whole life, and every section holds one on the calling thread. A
//! caller that computes outside a section holds one itself. A nested one costs one read of the control
//! register, some nanoseconds.
//!
//! **Soundness.** Rust and LLVM assume the default environment wherever floats are computed, and changing it
//! by `_mm_setcsr` is undefined behaviour. Another environment therefore comes from foreign code, whose
//! calling convention requires that the control bits are restored when the call returns. `FloatEnv`
//! establishes the environment that Rust assumes during all computation, and then restores the caller's. The
//! compiler may not move a load or a store across the two switches, because each of them is inline assembly
//! that clobbers memory. Floats that are loaded and stored between the switches are therefore computed there.
//! A function that creates a `FloatEnv` must not take floats by value and compute with them.

use std::marker::PhantomData;

/// The IEEE 754 default environment on this thread. Dropping it restores the previous environment.
///
/// On x86 (with SSE) and AArch64. Elsewhere it does nothing, because no code is known to change the
/// environment of those systems. Several must be dropped in the opposite order of their creation.
#[must_use = "the environment is restored when this is dropped"]
pub struct FloatEnv {
    /// The caller's control register, if it differs from the default.
    found: Option<control::Register>,
    /// The register belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl FloatEnv {
    /// Sets the default environment.
    #[inline]
    #[allow(clippy::bad_bit_mask, reason = "systems without such a register have an empty mask")]
    pub fn ieee() -> Self {
        let found = control::read();
        let is_default = found & control::MASK == control::DEFAULT;
        if !is_default {
            control::write(found & !control::MASK | control::DEFAULT);
        }
        Self { found: (!is_default).then_some(found), _not_send: PhantomData }
    }
}

impl Drop for FloatEnv {
    #[inline]
    fn drop(&mut self) {
        if let Some(found) = self.found {
            control::write(found);
        }
    }
}

/// MXCSR.
#[cfg(all(any(target_arch = "x86_64", all(target_arch = "x86", target_feature = "sse2")), not(miri)))]
mod control {
    use std::arch::asm;

    pub(super) type Register = u32;

    /// Denormals are zero (6), exception masks (7–12), rounding (13, 14), flush to zero (15). Bits 0–5 only
    /// report exceptions.
    pub(super) const MASK: Register = 0xffc0;
    /// All exceptions masked.
    pub(super) const DEFAULT: Register = 0x1f80;

    #[inline]
    pub(super) fn read() -> Register {
        let mut found: Register = 0;
        // SAFETY: writes the four bytes of `found` and changes no flag.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut found, options(nostack, preserves_flags)) };
        found
    }

    #[inline]
    pub(super) fn write(value: Register) {
        // SAFETY: reads the four bytes of `value`: contents of the register with the control bits of the
        // default or of the caller. No reserved bit is set, which would raise an exception. The module
        // comment covers computing in another environment.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
    }
}

/// FPCR.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    use std::arch::asm;

    pub(super) type Register = u64;

    /// Every bit is a control bit: rounding (22, 23), flush to zero (24, and 19 for f16), default NaN (25),
    /// traps (8–15), and additions of later versions of the architecture.
    pub(super) const MASK: Register = u64::MAX;
    pub(super) const DEFAULT: Register = 0;

    #[inline]
    pub(super) fn read() -> Register {
        let found: Register;
        // SAFETY: reads a register that every AArch64 program may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) found, options(nostack, preserves_flags)) };
        found
    }

    #[inline]
    pub(super) fn write(value: Register) {
        // SAFETY: the value is 0 or was read from the register. The module comment covers computing in
        // another environment.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack, preserves_flags)) };
    }
}

#[cfg(any(
    miri,
    not(any(
        target_arch = "x86_64",
        all(target_arch = "x86", target_feature = "sse2"),
        target_arch = "aarch64"
    ))
))]
mod control {
    pub(super) type Register = u32;
    pub(super) const MASK: Register = 0;
    pub(super) const DEFAULT: Register = 0;

    pub(super) fn read() -> Register {
        0
    }

    pub(super) fn write(_value: Register) {}
}

/// Foreign floating-point environments, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::control;

    /// The current bits of the controls that `FloatEnv` sets.
    pub fn current() -> u64 {
        u64::from(control::read() & control::MASK)
    }

    /// Runs `f` on a thread that rounds towards zero and flushes subnormal numbers, as foreign code may leave
    /// it, and checks afterwards that the thread still does so. `None` if the environment cannot be changed.
    ///
    /// `f` must not compute with floats outside a `FloatEnv`.
    pub fn on_odd_thread<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        let odd: control::Register = 0b11 << 22 | 1 << 24;
        #[cfg(not(all(target_arch = "aarch64", not(miri))))]
        let odd: control::Register = (control::DEFAULT | 0b11 << 13 | 1 << 15 | 1 << 6) & control::MASK;
        if odd == control::DEFAULT {
            return None;
        }
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let found = control::read();
                control::write(found & !control::MASK | odd);
                let result = f();
                let after = control::read() & control::MASK;
                control::write(found);
                assert_eq!(after, odd, "the caller's environment is restored");
                result
            });
            Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}
