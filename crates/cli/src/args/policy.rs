//! The drafting policy and the device state.

use clap::{Args, ValueEnum};
use refrain::Engine;
use refrain::device::{MemoryPressure, ThermalState};
use refrain::drafting::{Acceptance, AcceptanceFloor, DraftPolicy, DraftRows, PidConfig, SkipRules};

use refrain_program::args::bytes;

#[derive(Debug, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Draft rows per step: `auto` (by their measured cost), a number, or `pid` (a controller holds the
    /// acceptance rate at --pid-acceptance). Never changes the output.
    #[arg(long, value_name = "auto|N|pid", default_value = "auto", value_parser = parse_rows)]
    pub(crate) draft_rows: RowsArg,
    /// With --draft-rows pid: the target acceptance rate.
    #[arg(long, value_name = "RATE", default_value_t = PidConfig::default().set_point)]
    pub(crate) pid_acceptance: f32,
    /// With --draft-rows pid: the proportional, integral and derivative gains, in rows [default: 4,1,1].
    #[arg(long, value_name = "P,I,D", value_parser = parse_gains)]
    pub(crate) pid_gains: Option<Gains>,
    /// Pause drafting while the acceptance rate is below RATE. Never changes the output.
    #[arg(long, value_name = "RATE")]
    pub(crate) acceptance_floor: Option<f32>,
    /// With --acceptance-floor: number of steps over which the rate is measured.
    #[arg(long, value_name = "N", default_value_t = AcceptanceFloor::default().window)]
    pub(crate) floor_window: usize,
    /// With --acceptance-floor: number of plain steps before drafting resumes; each further failure lengthens
    /// the pause.
    #[arg(long, value_name = "N", default_value_t = AcceptanceFloor::default().pause)]
    pub(crate) floor_pause: usize,
    /// Do not draft if the answer is limited to fewer than N tokens. Never changes the output.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) draft_min_tokens: usize,
    /// Do not draft at temperatures above T. Never changes the output.
    #[arg(long, value_name = "T")]
    pub(crate) draft_max_temp: Option<f32>,
    /// Do not draft while the system has less than BYTES of memory available. Never changes the output.
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "0")]
    pub(crate) draft_min_memory: u64,
    /// Simulate a thermal state, which reduces rows and threads. Never changes the output.
    #[arg(long, value_enum, default_value_t = HeatArg::Nominal)]
    pub(crate) heat: HeatArg,
    /// Simulate memory pressure, which frees caches that can be rebuilt. Never changes the output.
    #[arg(long, value_enum, default_value_t = PressureArg::Normal)]
    pub(crate) memory_pressure: PressureArg,
    /// LOSSY: also accept a draft token that the target did not choose, if it is in the target's top-p
    /// nucleus of P. The output differs from plain decoding, and the statistics report it.
    #[arg(long, value_name = "P")]
    pub(crate) lossy_top_p: Option<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowsArg {
    Auto,
    Fixed(usize),
    Pid,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum HeatArg {
    Nominal,
    Fair,
    Serious,
    Critical,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PressureArg {
    Normal,
    Warning,
    Critical,
}

/// The gains of a controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gains([f32; 3]);

fn parse_gains(text: &str) -> Result<Gains, String> {
    let gains: Result<Vec<f32>, _> = text.split(',').map(|gain| gain.trim().parse()).collect();
    let gains = gains.ok().and_then(|gains| gains.try_into().ok());
    gains.map(Gains).ok_or_else(|| "give three numbers, such as 4,1,1".to_owned())
}

fn parse_rows(text: &str) -> Result<RowsArg, String> {
    match text {
        "auto" => Ok(RowsArg::Auto),
        "pid" => Ok(RowsArg::Pid),
        _ => text.parse().map(RowsArg::Fixed).map_err(|_| "give auto, pid, or a number of rows".to_owned()),
    }
}

impl PolicyArgs {
    pub(super) fn policy(&self) -> DraftPolicy {
        let floor = AcceptanceFloor {
            window: self.floor_window,
            rate_min: self.acceptance_floor.unwrap_or_default(),
            pause: self.floor_pause,
        };
        DraftPolicy {
            rows: self.rows(),
            floor: self.acceptance_floor.map(|_| floor),
            skip: SkipRules {
                tokens_min: self.draft_min_tokens,
                temperature_max: self.draft_max_temp,
                available_bytes_min: self.draft_min_memory,
            },
        }
    }

    fn rows(&self) -> DraftRows {
        match self.draft_rows {
            RowsArg::Auto => DraftRows::Auto,
            RowsArg::Fixed(k) => DraftRows::Fixed(k),
            RowsArg::Pid => {
                let config = PidConfig { set_point: self.pid_acceptance, ..PidConfig::default() };
                DraftRows::Pid(match self.pid_gains {
                    None => config,
                    Some(Gains([proportional, integral, derivative])) => {
                        PidConfig { proportional, integral, derivative, ..config }
                    }
                })
            }
        }
    }

    pub(super) fn acceptance(&self) -> Acceptance {
        self.lossy_top_p.map_or(Acceptance::Strict, Acceptance::LossyTopP)
    }

    /// Reports the simulated state of the device to the engine.
    pub(crate) fn report_device(&self, engine: &Engine) {
        engine.device().set_thermal_state(match self.heat {
            HeatArg::Nominal => ThermalState::Nominal,
            HeatArg::Fair => ThermalState::Fair,
            HeatArg::Serious => ThermalState::Serious,
            HeatArg::Critical => ThermalState::Critical,
        });
        engine.device().set_memory_pressure(match self.memory_pressure {
            PressureArg::Normal => MemoryPressure::Normal,
            PressureArg::Warning => MemoryPressure::Warning,
            PressureArg::Critical => MemoryPressure::Critical,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_gains_are_read() {
        assert_eq!(parse_rows("auto"), Ok(RowsArg::Auto));
        assert_eq!(parse_rows("7"), Ok(RowsArg::Fixed(7)));
        assert_eq!(parse_rows("pid"), Ok(RowsArg::Pid));
        assert!(parse_rows("-1").is_err() && parse_rows("many").is_err());
        assert_eq!(parse_gains("4, 0.5,1"), Ok(Gains([4.0, 0.5, 1.0])));
        assert!(
            parse_gains("4,1").is_err() && parse_gains("4,1,x").is_err() && parse_gains("1,1,1,1").is_err()
        );
    }
}
