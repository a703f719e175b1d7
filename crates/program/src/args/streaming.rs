//! The options of a model that is larger than memory.

use clap::Args;
use refrain::streaming::{Pinned, StreamOptions};

use super::size::bytes;

/// The layers that stay in memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct StreamingArgs {
    /// Stream a packed model from flash within a budget, such as 1GiB.
    ///
    /// As many layers stay in memory as fit beside the KV cache. The process exceeds the budget by at most 64 MiB. Never changes the
    /// output.
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "pinned_layers")]
    pub memory: Option<u64>,
    /// Stream a packed model from flash with N of its layers in memory.
    ///
    /// Never changes the output.
    #[arg(long, value_name = "N")]
    pub pinned_layers: Option<usize>,
    /// Limit reads to BYTES per second, to simulate a slower disk.
    #[arg(long, value_name = "BYTES", value_parser = bandwidth)]
    pub flash_bandwidth: Option<u64>,
}

impl StreamingArgs {
    /// The streaming options; `None` keeps all weights in memory.
    pub fn stream_options(&self) -> Option<StreamOptions> {
        let pinned = match (self.memory, self.pinned_layers, self.flash_bandwidth) {
            (Some(bytes), _, _) => Pinned::Memory(bytes),
            (None, Some(n_layers), _) => Pinned::Layers(n_layers),
            // A read limit without a number of layers streams all layers.
            (None, None, Some(_)) => Pinned::Layers(0),
            (None, None, None) => return None,
        };
        let mut options = StreamOptions::new(pinned);
        options.bandwidth_max = self.flash_bandwidth;
        Some(options)
    }
}

/// Parses the bandwidth of a simulated disk, in bytes per second.
pub fn bandwidth(text: &str) -> Result<u64, String> {
    let min = StreamOptions::BANDWIDTH_MIN;
    bytes(text).and_then(|given| {
        if given < min { Err(format!("the minimum is {min} bytes per second")) } else { Ok(given) }
    })
}
