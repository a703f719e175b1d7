//! The bits of a result do not depend on the calling thread's floating-point environment.

use std::hint::black_box;
use std::sync::Mutex;

use crate::float_env::testing::{current, on_odd_thread};
use crate::{FloatEnv, Pool};

/// Bits that differ if subnormal numbers are flushed or read as zero, or if quotients are rounded towards
/// zero.
#[inline(never)]
fn probe() -> [u32; 3] {
    let flushed = black_box(f32::MIN_POSITIVE) * black_box(0.5);
    let read_as_zero = black_box(f32::from_bits(1)) * black_box(2f32.powi(30));
    let rounded = black_box(2.0f32) / black_box(3.0);
    [flushed.to_bits(), read_as_zero.to_bits(), rounded.to_bits()]
}

#[test]
fn the_default_is_set_and_the_callers_restored() {
    let default = current();
    let probed = probe();
    drop(FloatEnv::ieee());
    assert_eq!((current(), probe()), (default, probed), "a thread that has the default keeps it");
    let ran = on_odd_thread(|| {
        let odd = current();
        assert_ne!(odd, default);
        let outer = FloatEnv::ieee();
        assert_eq!((current(), probe()), (default, probed));
        let inner = FloatEnv::ieee();
        assert_eq!(probe(), probed);
        drop(inner);
        assert_eq!((current(), probe()), (default, probed), "the outer one is still there");
        drop(outer);
        assert_eq!(current(), odd);
    });
    if ran.is_none() {
        println!("skipped: the environment cannot be changed here");
    }
}

#[test]
fn an_environment_is_restored_by_a_panic_too() {
    on_odd_thread(|| {
        let odd = current();
        let panicked = std::panic::catch_unwind(|| {
            let _env = FloatEnv::ieee();
            panic!("planted");
        });
        assert!(panicked.is_err());
        assert_eq!(current(), odd);
    });
}

/// Workers inherit the environment of the thread that starts them.
#[test]
fn every_thread_of_a_section_computes_in_the_default() {
    let probed = probe();
    for n_threads in [1, 2, 3] {
        on_odd_thread(|| {
            let pool = Pool::new(n_threads);
            let seen = Mutex::new(Vec::new());
            let note = |worker: usize, range: std::ops::Range<usize>| {
                // Long enough for every worker to take part.
                std::thread::sleep(std::time::Duration::from_millis(2 * range.len() as u64));
                seen.lock().unwrap().push((worker, probe()));
            };
            // A machine that is busy may run the section without some of them.
            for _ in 0..1000 {
                pool.run(24, &note);
                let seen = seen.lock().unwrap();
                if (0..n_threads).all(|worker| seen.iter().any(|&(other, _)| other == worker)) {
                    break;
                }
            }
            pool.run_sized(1, 2, 1, &note);
            let seen = seen.into_inner().unwrap();
            assert!(seen.iter().all(|&(_, bits)| bits == probed), "{n_threads} threads: {seen:x?}");
            assert!((0..n_threads).all(|worker| seen.iter().any(|&(other, _)| other == worker)));
        });
    }
}
