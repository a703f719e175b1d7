//! The options of a model that is larger than memory.

use clap::Args;
use refrain::streaming::{Pinned, StreamOptions};

/// The layers that stay in memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Streaming")]
pub(crate) struct StreamingArgs {
    /// Stream a packed model from flash within a memory budget (512MiB, 1GiB, 2000000000). As many layers
    /// stay in memory as fit beside the KV cache. The process exceeds the budget by at most 64 MiB. Never
    /// changes the output.
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "pinned_layers")]
    pub(crate) memory: Option<u64>,
    /// Stream a packed model from flash with N of its layers in memory. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) pinned_layers: Option<usize>,
    /// Limit reads to BYTES per second, to simulate a slower disk.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    pub(crate) flash_bandwidth: Option<u64>,
}

impl StreamingArgs {
    /// The streaming options; `None` keeps all weights in memory.
    pub(crate) fn stream_options(&self) -> Option<StreamOptions> {
        let pinned = match (self.memory, self.pinned_layers, self.flash_bandwidth) {
            (Some(bytes), _, _) => Pinned::Memory(bytes),
            (None, Some(n_layers), _) => Pinned::Layers(n_layers),
            // A read limit without a number of layers streams all layers.
            (None, None, Some(_)) => Pinned::Layers(0),
            (None, None, None) => return None,
        };
        Some(StreamOptions { bandwidth_max: self.flash_bandwidth, ..StreamOptions::new(pinned) })
    }
}

/// Parses the bandwidth of a simulated disk, in bytes per second.
pub(super) fn bandwidth(text: &str) -> Result<u64, String> {
    let min = StreamOptions::BANDWIDTH_MIN;
    bytes(text).and_then(|given| {
        if given < min { Err(format!("the minimum is {min} bytes per second")) } else { Ok(given) }
    })
}

/// Parses a number of bytes: digits and an optional unit. `k`, `M` and `G` are decimal; `Ki`, `Mi` and `Gi`
/// binary; a `B` may follow.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
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
        }
        for text in
            ["", "GiB", "-1", "1.5GiB", "1TiB", "1 2", "99999999999999999999", "18446744073709551615k"]
        {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
