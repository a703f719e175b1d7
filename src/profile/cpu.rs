//! The CPU's name, as part of the key of time measurements.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

/// Maximum bytes read of `/proc/cpuinfo`; one processor takes about 1.5 kB.
const CPUINFO_BYTES_MAX: u64 = 1 << 20;

/// Maximum characters of a name.
const NAME_CHARS_MAX: usize = 200;

/// The CPU's model name; if the system does not report it, the architecture and the system.
pub fn cpu_name() -> String {
    let name = brand().or_else(|| {
        let mut text = String::new();
        File::open("/proc/cpuinfo").ok()?.take(CPUINFO_BYTES_MAX).read_to_string(&mut text).ok()?;
        name_in_cpuinfo(&text)
    });
    name.unwrap_or_else(|| format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS))
}

/// The name from the x86 `cpuid` instruction, on any system.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn brand() -> Option<String> {
    use std::arch::x86_64::__cpuid;

    /// Returns the number of the last extended leaf. Leaves 2 to 4 after it contain the name, 16 bytes each.
    const EXTENDED: u32 = 0x8000_0000;
    let last = __cpuid(EXTENDED).eax;
    if last < EXTENDED + 4 {
        return None;
    }
    let leaves = (2..=4).map(|leaf| __cpuid(EXTENDED + leaf));
    let words = leaves.flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).take_while(|&byte| byte != 0).collect();
    joined(String::from_utf8_lossy(&bytes).split_whitespace(), " ")
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn brand() -> Option<String> {
    None
}

/// The names in Linux's `/proc/cpuinfo`. On ARM a name consists of the implementer and part numbers.
fn name_in_cpuinfo(text: &str) -> Option<String> {
    let values = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.filter(|(name, _)| name.trim().eq_ignore_ascii_case(key));
        found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty()).collect::<Vec<_>>()
    };
    let makers = values("CPU implementer");
    let kinds = makers.iter().zip(values("CPU part")).map(|(maker, part)| format!("{maker}:{part}"));
    let names = ["model name", "Hardware"].into_iter().flat_map(values);
    let all: BTreeSet<String> = names.chain(kinds).collect();
    joined(all.iter().map(String::as_str), ", ")
}

/// `None` if there are no parts.
fn joined<'a>(parts: impl Iterator<Item = &'a str>, separator: &str) -> Option<String> {
    let name = parts.collect::<Vec<_>>().join(separator);
    (!name.is_empty()).then(|| name.chars().take(NAME_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_processor_is_named_once() {
        let x86 =
            "processor\t: 0\nmodel name\t: A CPU @ 3.1GHz\n\nprocessor\t: 1\nmodel name\t: A CPU @ 3.1GHz\n";
        assert_eq!(name_in_cpuinfo(x86).as_deref(), Some("A CPU @ 3.1GHz"));
        let phone = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd46\n\nprocessor\t: 1\nCPU implementer\t: 0x41\n\
                     CPU part\t: 0xd4e\n\nprocessor\t: 2\nCPU implementer\t: 0x41\nCPU part\t: 0xd46\n\nHardware\t: Chip 8\n";
        assert_eq!(name_in_cpuinfo(phone).as_deref(), Some("0x41:0xd46, 0x41:0xd4e, Chip 8"));
        for nothing in ["", "processor\t: 0\n", "model name\t:\n", "no colons\n"] {
            assert_eq!(name_in_cpuinfo(nothing), None, "{nothing}");
        }
        let long = format!("model name: {}\n", "x".repeat(10_000));
        assert_eq!(name_in_cpuinfo(&long).map(|name| name.len()), Some(NAME_CHARS_MAX));
    }

    #[test]
    fn this_machine_has_the_same_name_each_time() {
        assert!(!cpu_name().is_empty());
        assert_eq!(cpu_name(), cpu_name());
    }
}
