//! Default number of threads of the forward pass: one per physical performance core.
//!
//! A second thread on a core shares the core's multipliers. A small core takes memory bandwidth from the
//! other cores and does little of the work. Linux and Android describe the cores in files; Apple's systems and
//! Windows have queries. If the system does not distinguish cores, every processor counts.

use std::collections::BTreeSet;
use std::path::Path;

use crate::kernels;

/// Maximum processors in a list from the system.
const CPUS_MAX: usize = 4096;

/// Maximum threads; no phone or laptop has more cores.
pub(super) const THREADS_MAX: usize = 256;

/// Physical performance cores that this process may use; at least 1.
pub(super) fn n_performance_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    // Only `available` includes the container's CPU share; both include the processor affinity.
    let n_cores = performance_cores(Path::new("/")).or_else(kernels::performance_cores);
    n_cores.map_or(available, |n| n.min(available)).max(1)
}

/// The count from the files of Linux and Android under `root`; `None` on other systems.
fn performance_cores(root: &Path) -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let status = read("proc/self/status")?;
    let allowed = cpu_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
    // Hybrid x86 lists its performance cores. ARM gives each processor a capacity; the fastest has 1024.
    let named = read("sys/devices/cpu_core/cpus").and_then(|list| cpu_list(&list));
    let stated = |cpu: usize| -> Option<u64> {
        read(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"))?.trim().parse().ok()
    };
    // Kernels of older phones report no capacities.
    let little = match named.is_none() && allowed.iter().all(|&cpu| stated(cpu).is_none()) {
        true => read("proc/cpuinfo").map(|text| little_cores(&text)).unwrap_or_default(),
        false => BTreeSet::new(),
    };
    let capacity = |cpu: usize| match &named {
        Some(named) => u64::from(named.contains(&cpu)),
        None if little.contains(&cpu) => CAPACITY_LITTLE,
        None => stated(cpu).unwrap_or(CAPACITY_MAX),
    };
    let capacities: Vec<(usize, u64)> = allowed.iter().map(|&cpu| (cpu, capacity(cpu))).collect();
    let largest = capacities.iter().map(|&(_, capacity)| capacity).max()?;
    // A phone's middle cores have at least three quarters of the largest capacity, its small cores a quarter
    // to a third.
    let fast = capacities.into_iter().filter(|&(_, capacity)| capacity.saturating_mul(2) >= largest);
    let cores: BTreeSet<usize> = fast
        .map(|(cpu, _)| {
            read(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
                .and_then(|list| cpu_list(&list)?.first().copied())
                .unwrap_or(cpu)
        })
        .collect();
    Some(cores.len())
}

/// Capacity of the fastest processor on ARM; a small core is assumed to have about a quarter.
const CAPACITY_MAX: u64 = 1024;
const CAPACITY_LITTLE: u64 = 256;

/// Implementers and parts of small ARM cores, as in `/proc/cpuinfo`: Cortex-A53, A35, A55, A510 and A520, and
/// Qualcomm's versions of the first three.
const LITTLE_PARTS: [(&str, &str); 8] = [
    ("0x41", "0xd03"),
    ("0x41", "0xd04"),
    ("0x41", "0xd05"),
    ("0x41", "0xd46"),
    ("0x41", "0xd80"),
    ("0x51", "0x801"),
    ("0x51", "0x803"),
    ("0x51", "0x805"),
];

/// The small cores, from the text of `/proc/cpuinfo`.
fn little_cores(cpuinfo: &str) -> BTreeSet<usize> {
    let (mut little, mut cpu, mut maker) = (BTreeSet::new(), None, "");
    for (key, value) in cpuinfo.lines().filter_map(|line| line.split_once(':')) {
        match (key.trim(), value.trim()) {
            ("processor", value) => cpu = value.parse::<usize>().ok().filter(|&cpu| cpu < CPUS_MAX),
            ("CPU implementer", value) => maker = value,
            ("CPU part", part) if LITTLE_PARTS.contains(&(maker, part)) => little.extend(cpu),
            _ => {}
        }
    }
    little
}

/// Parses a processor list like `0-3,8`.
fn cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system root with the given files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const STATUS: &str = "proc/self/status";

    #[test]
    fn threads_of_one_core_count_once() {
        let sibling = |cpu| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let (zero, one, two, three) = (sibling(0), sibling(1), sibling(2), sibling(3));
        let root = machine(&[
            (STATUS, "Name:\tx\nCpus_allowed_list:\t0-3\n"),
            (&zero, "0,2\n"),
            (&one, "1,3\n"),
            (&two, "0,2\n"),
            (&three, "1,3\n"),
        ]);
        assert_eq!(performance_cores(root.path()), Some(2));
    }

    #[test]
    fn small_cores_do_not_count() {
        let names: Vec<String> =
            (0..8).map(|cpu| format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity")).collect();
        let capacities = ["280\n", "280\n", "280\n", "280\n", "870\n", "870\n", "870\n", "1024\n"];
        let mut files: Vec<(&str, &str)> =
            names.iter().zip(capacities).map(|(name, capacity)| (name.as_str(), capacity)).collect();
        files.push((STATUS, "Cpus_allowed_list:\t0-7\n"));
        assert_eq!(performance_cores(machine(&files).path()), Some(4));
        // If the process may run only on small cores, they count.
        files.pop();
        files.push((STATUS, "Cpus_allowed_list:\t0,2-3\n"));
        assert_eq!(performance_cores(machine(&files).path()), Some(3));
    }

    /// A kernel without capacities: 4 × Cortex-A55 and 4 × Cortex-A78.
    #[test]
    fn small_cores_are_known_by_their_parts() {
        let processor = |cpu: usize, part: &str| {
            format!(
                "processor\t: {cpu}\nBogoMIPS\t: 26.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n\
                 CPU variant\t: 0x2\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
            )
        };
        let phone: String =
            (0..8).map(|cpu| processor(cpu, if cpu < 4 { "0xd05" } else { "0xd41" })).collect();
        let small: String = (0..8).map(|cpu| processor(cpu, "0xd03")).collect();
        let status = (STATUS, "Cpus_allowed_list:\t0-7\n");
        for (text, expected) in
            [(phone.as_str(), 4), (&small, 8), ("", 8), ("processor: x\nCPU part: 0xd05\n", 8)]
        {
            let root = machine(&[status, ("proc/cpuinfo", text)]);
            assert_eq!(performance_cores(root.path()), Some(expected), "{text}");
        }
        // Capacities take precedence over parts.
        let stated = "sys/devices/system/cpu/cpu0/cpu_capacity";
        let root = machine(&[status, ("proc/cpuinfo", &phone), (stated, "1024\n")]);
        assert_eq!(performance_cores(root.path()), Some(8));
    }

    #[test]
    fn hybrid_processors_name_their_performance_cores() {
        let root = machine(&[(STATUS, "Cpus_allowed_list:\t0-7\n"), ("sys/devices/cpu_core/cpus", "0-3\n")]);
        assert_eq!(performance_cores(root.path()), Some(4));
    }

    #[test]
    fn where_nothing_is_told_every_processor_counts() {
        assert_eq!(performance_cores(machine(&[]).path()), None);
        assert_eq!(performance_cores(machine(&[(STATUS, "Cpus_allowed_list:\t0-4\n")]).path()), Some(5));
        for broken in ["", "x", "0-", "3-1", "0-99999999999", "7-18446744073709551615"] {
            let status = format!("Cpus_allowed_list:\t{broken}\n");
            assert_eq!(performance_cores(machine(&[(STATUS, &status)]).path()), None, "{broken}");
        }
        assert!(n_performance_cores() >= 1);
    }
}
