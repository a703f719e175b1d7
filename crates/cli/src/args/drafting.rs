//! `--drafting KEY=VALUE,…`: the parts of drafting, and when it pauses.

use clap::Args;
use refrain::device::{MemoryPressure, ThermalState};
use refrain::drafting::{AcceptanceFloor, Calibration, DraftRows, EchoConfig, PruningConfig, ReuseConfig};
use refrain::{Engine, SessionOptions};
use refrain_program::args::{bytes, number, one_of, setting};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct DraftingArgs {
    /// Parts and policy of drafting, as KEY=VALUE,…. Never changes the output.
    ///
    /// rows=auto|N            draft rows per step: by their measured cost, or a number
    /// batch-max=N            maximum rows of a verification batch
    /// batch=N                pad every verification batch to N rows, as static shapes require
    /// calibration=WHICH      draft from the target's predictions after each token of the context:
    ///                        auto, off, in-context, or full (the whole vocabulary; slow)
    /// echo=on|off            draft from the target's predictions after the same one or two tokens
    /// echo-rows=N            echo: maximum rejected rows read per step
    /// echo-lists=N           echo: maximum kept predictions
    /// reuse=on|off           draft rejected tokens again that the target still finds likely
    /// reuse-probability=P    reuse: minimum probability of each token
    /// reuse-steps=N          reuse: steps for which a rejected draft is kept
    /// reuse-tokens=N         reuse: maximum kept tokens
    /// pruning-probability=P  with --pruning: minimum predicted probability of a kept node
    /// stake=SHARE|off        share of the time of an answer that drafts may lose
    /// floor=RATE             pause while the acceptance rate is below RATE
    /// floor-window=N         floor: steps over which the rate is measured
    /// floor-pause=N          floor: plain steps before drafting resumes; longer after each failure
    /// tokens-min=N           draft only answers that may have N tokens
    /// temp-max=T             draft only at temperatures up to T
    /// memory-min=BYTES       draft only while the system has so much memory available
    /// heat=STATE             simulate a thermal state: nominal, fair, serious, critical
    /// pressure=STATE         simulate memory pressure: normal, warning, critical
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',', value_parser = parse, verbatim_doc_comment)]
    pub(crate) drafting: Vec<Setting>,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    Rows(DraftRows),
    BatchMax(usize),
    Batch(usize),
    Calibration(Calibration),
    Echo(bool),
    EchoRows(u32),
    EchoLists(u32),
    Reuse(bool),
    ReuseProbability(f32),
    ReuseSteps(u32),
    ReuseTokens(u32),
    PruningProbability(f32),
    Stake(Option<f32>),
    Floor(f32),
    FloorWindow(usize),
    FloorPause(usize),
    TokensMin(usize),
    TempMax(f32),
    MemoryMin(u64),
    Heat(ThermalState),
    Pressure(MemoryPressure),
}

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const CALIBRATION: [(&str, Calibration); 4] = [
    ("auto", Calibration::Auto),
    ("off", Calibration::Off),
    ("in-context", Calibration::InContext),
    ("full", Calibration::Full),
];
const HEAT: [(&str, ThermalState); 4] = [
    ("nominal", ThermalState::Nominal),
    ("fair", ThermalState::Fair),
    ("serious", ThermalState::Serious),
    ("critical", ThermalState::Critical),
];
const PRESSURE: [(&str, MemoryPressure); 3] = [
    ("normal", MemoryPressure::Normal),
    ("warning", MemoryPressure::Warning),
    ("critical", MemoryPressure::Critical),
];

fn parse(text: &str) -> Result<Setting, String> {
    if matches!(text, "off" | "auto") {
        return Err(format!("these are parts of drafting; `--draft {text}` is for all of it"));
    }
    setting(text, |key, value| {
        Some(match key {
            "rows" if value == "auto" => Ok(Setting::Rows(DraftRows::Auto)),
            "rows" => number(value).map(|n| Setting::Rows(DraftRows::Fixed(n))),
            "batch-max" => number(value).map(Setting::BatchMax),
            "batch" => number(value).map(Setting::Batch),
            "calibration" => one_of(value, &CALIBRATION).map(Setting::Calibration),
            "echo" => one_of(value, &SWITCH).map(Setting::Echo),
            "echo-rows" => number(value).map(Setting::EchoRows),
            "echo-lists" => number(value).map(Setting::EchoLists),
            "reuse" => one_of(value, &SWITCH).map(Setting::Reuse),
            "reuse-probability" => number(value).map(Setting::ReuseProbability),
            "reuse-steps" => number(value).map(Setting::ReuseSteps),
            "reuse-tokens" => number(value).map(Setting::ReuseTokens),
            "pruning-probability" => number(value).map(Setting::PruningProbability),
            "stake" if value == "off" => Ok(Setting::Stake(None)),
            "stake" => number(value).map(|share| Setting::Stake(Some(share))),
            "floor" => number(value).map(Setting::Floor),
            "floor-window" => number(value).map(Setting::FloorWindow),
            "floor-pause" => number(value).map(Setting::FloorPause),
            "tokens-min" => number(value).map(Setting::TokensMin),
            "temp-max" => number(value).map(Setting::TempMax),
            "memory-min" => bytes(value).map(Setting::MemoryMin),
            "heat" => one_of(value, &HEAT).map(Setting::Heat),
            "pressure" => one_of(value, &PRESSURE).map(Setting::Pressure),
            _ => return None,
        })
    })
}

impl DraftingArgs {
    /// `options` with the settings, the later ones of a key before the earlier ones.
    pub(super) fn apply(&self, mut options: SessionOptions) -> SessionOptions {
        let (mut echo, mut echoes) = (EchoConfig::default(), false);
        let (mut reuse, mut reuses) = (ReuseConfig::default(), true);
        let (mut floor, mut has_floor) = (AcceptanceFloor::default(), false);
        let mut pruning = PruningConfig::default();
        for setting in self.drafting.iter().copied() {
            match setting {
                Setting::Rows(rows) => options.policy.rows = rows,
                Setting::BatchMax(n) => options.verify_rows_max = n,
                Setting::Batch(n) => {
                    options.verify_rows_max = n;
                    options.verify_lens = vec![n];
                }
                Setting::Calibration(calibration) => options.calibration = calibration,
                Setting::Echo(is_on) => echoes = is_on,
                Setting::EchoRows(n) => echo.rejected_rows = n,
                Setting::EchoLists(n) => echo.lists_max = n,
                Setting::Reuse(is_on) => reuses = is_on,
                Setting::ReuseProbability(p) => reuse.threshold = p,
                Setting::ReuseSteps(n) => reuse.lifetime = n,
                Setting::ReuseTokens(n) => reuse.tokens_max = n,
                Setting::PruningProbability(p) => pruning.threshold = p,
                Setting::Stake(share) => options.policy.stake = share,
                Setting::Floor(rate) => (floor.rate_min, has_floor) = (rate, true),
                Setting::FloorWindow(n) => floor.window = n,
                Setting::FloorPause(n) => floor.pause = n,
                Setting::TokensMin(n) => options.policy.skip.tokens_min = n,
                Setting::TempMax(t) => options.policy.skip.temperature_max = Some(t),
                Setting::MemoryMin(n) => options.policy.skip.available_bytes_min = n,
                Setting::Heat(_) | Setting::Pressure(_) => {}
            }
        }
        options.echo = echoes.then_some(echo);
        options.reuse = reuses.then_some(reuse);
        options.policy.floor = has_floor.then_some(floor);
        options.pruning = Some(pruning);
        options
    }

    /// Reports the simulated state of the device to the engine.
    pub(crate) fn report_device(&self, engine: &Engine) {
        for setting in &self.drafting {
            match setting {
                Setting::Heat(state) => engine.device().set_thermal_state(*state),
                Setting::Pressure(pressure) => engine.device().set_memory_pressure(*pressure),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(settings: &[&str]) -> SessionOptions {
        let drafting = settings.iter().map(|text| parse(text).unwrap()).collect();
        DraftingArgs { drafting }.apply(SessionOptions::default())
    }

    #[test]
    fn settings_are_those_of_the_options() {
        let none = format!("{:?}", applied(&[]));
        assert_eq!(none, format!("{:?}", SessionOptions::default()));
        let options = applied(&["rows=7", "batch=8", "echo=on", "echo-rows=3", "reuse=off", "floor=0.5"]);
        assert!(matches!(options.policy.rows, DraftRows::Fixed(7)) && options.reuse.is_none());
        assert_eq!((options.verify_rows_max, &options.verify_lens[..]), (8, &[8][..]));
        assert_eq!(options.echo.map(|echo| echo.rejected_rows), Some(3));
        assert_eq!(options.policy.floor.map(|floor| floor.rate_min), Some(0.5));
        let options = applied(&["floor-window=3", "temp-max=0.5", "memory-min=1GiB", "rows=auto"]);
        assert!(options.policy.floor.is_none(), "a window alone sets no floor");
        assert_eq!(options.policy.skip.temperature_max, Some(0.5));
        assert_eq!(options.policy.skip.available_bytes_min, 1 << 30);
        for text in ["rows=-1", "rows=many", "echo=1", "heat=hot", "speed=9", "rows"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("off").unwrap_err().contains("--draft off"));
    }
}
