//! Physical performance cores on Apple's systems and Windows, which distinguish cores only through a system
//! call.
//!
//! The two functions are declared here, because a dependency for each would add more code than it saves. Safe
//! code parses their results and is tested on every system.
#![allow(dead_code, reason = "a system has one of the two functions, or none; tests have both parsers")]

/// The number of performance cores by the system; `None` on other systems, or if the system gives none.
pub fn performance_cores() -> Option<usize> {
    system::performance_cores().filter(|&n_cores| n_cores > 0)
}

/// The cores of the fastest level of an Apple processor; all physical cores if it has no levels. `read`
/// returns a value of `sysctl`.
fn apple_cores(read: impl Fn(&std::ffi::CStr) -> Option<u32>) -> Option<usize> {
    // Level 0 is the fastest. Intel processors and some virtual ones have no levels.
    let names = [c"hw.perflevel0.physicalcpu", c"hw.physicalcpu"];
    let n_cores = names.into_iter().find_map(|name| read(name).filter(|&n_cores| n_cores > 0));
    n_cores.map(|n_cores| n_cores as usize)
}

/// `RelationProcessorCore`: the record describes a core.
const WINDOWS_CORE: u32 = 0;

/// Cores of the highest efficiency class in the records of `GetLogicalProcessorInformationEx`. Equal cores
/// have equal classes.
///
/// Layout of a record: relationship u32 · length of the record u32 · flags u8 · class u8 · more. `None` if a
/// record is malformed.
fn windows_cores(mut records: &[u8]) -> Option<usize> {
    let word =
        |bytes: &[u8], at: usize| bytes.get(at..at + 4).map(|bytes| [bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (mut class_max, mut n_cores) = (0, 0);
    while !records.is_empty() {
        let (relationship, len) =
            (u32::from_ne_bytes(word(records, 0)?), u32::from_ne_bytes(word(records, 4)?));
        let record = records.get(..len as usize).filter(|record| record.len() >= 10)?;
        let class = record[9];
        if relationship == WINDOWS_CORE && (n_cores == 0 || class >= class_max) {
            n_cores = if class > class_max { 1 } else { n_cores + 1 };
            class_max = class;
        }
        records = &records[record.len()..];
    }
    Some(n_cores)
}

#[cfg(all(target_vendor = "apple", not(miri)))]
mod system {
    use std::ffi::{CStr, c_char, c_int, c_void};

    unsafe extern "C" {
        /// From the C library of every Apple system.
        fn sysctlbyname(
            name: *const c_char,
            old: *mut c_void,
            old_len: *mut usize,
            new: *const c_void,
            new_len: usize,
        ) -> c_int;
    }

    pub(super) fn performance_cores() -> Option<usize> {
        super::apple_cores(read)
    }

    fn read(name: &CStr) -> Option<u32> {
        let (mut value, mut len) = (0u32, size_of::<u32>());
        let old = (&raw mut value).cast();
        // SAFETY: the name ends with a zero, `old` has room for `len` bytes, and no new value is set.
        let status = unsafe { sysctlbyname(name.as_ptr(), old, &raw mut len, std::ptr::null(), 0) };
        (status == 0 && len == size_of::<u32>()).then_some(value)
    }
}

#[cfg(all(windows, not(miri)))]
mod system {
    use std::ffi::c_void;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        /// Writes records of `relationship` to `buffer`; if `len` is too small, only sets it to their length.
        fn GetLogicalProcessorInformationEx(relationship: u32, buffer: *mut c_void, len: *mut u32) -> i32;
    }

    /// Maximum bytes of records: enough for thousands of cores.
    const BYTES_MAX: u32 = 1 << 20;

    pub(super) fn performance_cores() -> Option<usize> {
        let mut len = 0u32;
        // SAFETY: with a length of 0, only the length is written.
        unsafe { GetLogicalProcessorInformationEx(super::WINDOWS_CORE, std::ptr::null_mut(), &raw mut len) };
        if len == 0 || len > BYTES_MAX {
            return None;
        }
        // Records contain addresses, so the buffer is aligned for addresses.
        let mut records = vec![0u64; (len as usize).div_ceil(size_of::<u64>())];
        // SAFETY: the buffer has room for `len` bytes.
        let written = unsafe {
            GetLogicalProcessorInformationEx(super::WINDOWS_CORE, records.as_mut_ptr().cast(), &raw mut len)
        };
        if written == 0 {
            return None;
        }
        let bytes: Vec<u8> = records.into_iter().flat_map(u64::to_ne_bytes).collect();
        super::windows_cores(bytes.get(..len as usize)?)
    }
}

#[cfg(any(miri, not(any(target_vendor = "apple", windows))))]
mod system {
    pub(super) fn performance_cores() -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apples_fastest_level_counts() {
        // An M1 Pro, an Intel processor with two threads per core, and a virtual machine without any values.
        let m1: &[(&std::ffi::CStr, u32)] = &[
            (c"hw.physicalcpu", 10),
            (c"hw.logicalcpu", 10),
            (c"hw.perflevel0.physicalcpu", 8),
            (c"hw.perflevel1.physicalcpu", 2),
        ];
        let intel: &[(&std::ffi::CStr, u32)] = &[(c"hw.physicalcpu", 4), (c"hw.logicalcpu", 8)];
        let odd: &[(&std::ffi::CStr, u32)] = &[(c"hw.physicalcpu", 0)];
        for (values, expected) in [(m1, Some(8)), (intel, Some(4)), (odd, None), (&[], None)] {
            let read =
                |name: &std::ffi::CStr| values.iter().find(|value| value.0 == name).map(|value| value.1);
            assert_eq!(apple_cores(read), expected);
        }
    }

    /// A record as 64-bit Windows writes it, for a core with `n_threads` threads.
    fn record(relationship: u32, n_threads: u8, class: u8, n_groups: u16) -> Vec<u8> {
        let mut record = Vec::new();
        let len = 32 + 16 * u32::from(n_groups);
        record.extend(relationship.to_ne_bytes());
        record.extend(len.to_ne_bytes());
        record.extend([u8::from(n_threads > 1), class]);
        record.extend([0; 20]);
        record.extend(n_groups.to_ne_bytes());
        record.resize(len as usize, 0xff);
        record
    }

    #[test]
    fn the_highest_class_of_windows_counts_and_threads_do_not() {
        let core = |n_threads, class| record(WINDOWS_CORE, n_threads, class, 1);
        // Six performance cores with two threads each and eight efficiency cores, in either order.
        let hybrid: Vec<Vec<u8>> = (0..14).map(|i| if i < 6 { core(2, 1) } else { core(1, 0) }).collect();
        assert_eq!(windows_cores(&hybrid.concat()), Some(6));
        let reversed: Vec<Vec<u8>> = hybrid.into_iter().rev().collect();
        assert_eq!(windows_cores(&reversed.concat()), Some(6));
        // Three classes; then equal cores, which have class 0.
        let three = [core(1, 0), core(1, 1), core(2, 2), core(1, 1), core(2, 2)].concat();
        assert_eq!(windows_cores(&three), Some(2));
        assert_eq!(windows_cores(&vec![core(2, 0); 8].concat()), Some(8));
        // Records of other kinds and lengths, and no records.
        let mixed = [record(3, 2, 7, 1), core(2, 0), record(WINDOWS_CORE, 2, 0, 2)].concat();
        assert_eq!(windows_cores(&mixed), Some(2));
        assert_eq!(windows_cores(&[]), Some(0));
    }

    #[test]
    fn records_that_do_not_fit_are_refused() {
        let whole = [record(WINDOWS_CORE, 2, 0, 1), record(WINDOWS_CORE, 2, 0, 1)].concat();
        for len in (1..whole.len()).filter(|len| *len != whole.len() / 2) {
            assert_eq!(windows_cores(&whole[..len]), None, "{len} bytes");
        }
        for len in [0u32, 7, 9, u32::MAX] {
            let mut broken = whole.clone();
            broken[4..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(windows_cores(&broken), None, "a record of {len} bytes");
        }
    }

    #[test]
    fn this_system_is_asked() {
        assert_eq!(
            performance_cores().is_some(),
            cfg!(all(any(target_vendor = "apple", windows), not(miri)))
        );
    }
}
