//! Sizes in bytes, as every option takes them and every message has them.

/// Parses a number of bytes: digits and an optional unit. `k`, `M` and `G` are decimal; `Ki`, `Mi` and `Gi`
/// binary; a `B` may follow.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().trim_end_matches(['B', 'b']) {
        "" => 1,
        "k" | "K" => 1_000,
        "M" | "m" => 1_000_000,
        "G" | "g" => 1_000_000_000,
        "Ki" | "KI" | "ki" => 1 << 10,
        "Mi" | "MI" | "mi" => 1 << 20,
        "Gi" | "GI" | "gi" => 1u64 << 30,
        _ => return Err("units are kB, MB, GB, KiB, MiB and GiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "give a number of bytes, such as 512MiB".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "too many bytes".to_owned())
}

/// As [`bytes`], for what this machine can address.
pub fn addressable_bytes(text: &str) -> Result<usize, String> {
    bytes(text).and_then(|n| usize::try_from(n).map_err(|_| "too many bytes".to_owned()))
}

/// Bytes for people: `4.7 GB`.
pub fn bytes_text(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("512MiB", 512 << 20),
            ("1GiB", 1 << 30),
            ("1 GiB", 1 << 30),
            ("2G", 2_000_000_000),
            ("3kB", 3000),
            ("7KiB", 7 << 10),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
            assert_eq!(addressable_bytes(text), Ok(expected as usize), "{text}");
        }
        for text in
            ["", "GiB", "-1", "1.5GiB", "1TiB", "1 2", "99999999999999999999", "18446744073709551615k"]
        {
            assert!(bytes(text).is_err() && addressable_bytes(text).is_err(), "{text}");
        }
    }
}
