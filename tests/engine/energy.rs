//! Energy in the statistics, by a counter of the app, and the device reports that touch no output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use refrain::device::{EnergyMeter, IsaKind, KernelsNotice, PowerState};
use refrain::{Engine, EngineOptions, GenerateOptions, SessionOptions, Stats};

use crate::common::{Tiny, plain, prompt};

/// A counter that advances by a joule with every reading.
#[derive(Default)]
struct Counting(AtomicU64);

impl EnergyMeter for Counting {
    fn joules(&self) -> Option<f64> {
        Some(self.0.fetch_add(1, Relaxed) as f64)
    }
}

/// A counter that cannot be read.
struct Broken;

impl EnergyMeter for Broken {
    fn joules(&self) -> Option<f64> {
        None
    }
}

fn generate(engine: &Engine, options: SessionOptions) -> (String, Stats) {
    let mut session = engine.session(options).unwrap();
    session.append_tokens(&prompt(3, 40)).unwrap();
    let options = GenerateOptions { max_tokens: 16, ignore_eos: true, ..GenerateOptions::default() };
    let summary = session.generate(options).unwrap();
    let mut text = String::new();
    let summary = summary.run(|token| {
        text += &token.text;
        std::ops::ControlFlow::Continue(())
    });
    (text, summary.unwrap().stats)
}

#[test]
fn the_statistics_have_the_joules_of_decoding() {
    let engine = Tiny::DEFAULT.engine(2);
    engine.device().set_energy_meter(Some(Arc::new(Counting::default())));
    let (_, stats) = generate(&engine, plain());
    let energy = stats.energy.expect("there is a counter");
    // One reading after the prefill, one at the end.
    assert_eq!((energy.decode_joules, energy.joules_per_token), (1.0, 1.0 / 16.0));
    assert!(serde_json::to_string(&stats).unwrap().contains("joules_per_token"));

    engine.device().set_energy_meter(Some(Arc::new(Broken)));
    assert_eq!(generate(&engine, plain()).1.energy, None);
    assert_eq!(engine.device().measure_energy().unwrap(), None);
    engine.device().set_energy_meter(None);
    let (_, stats) = generate(&engine, plain());
    assert_eq!(stats.energy, None);
    assert!(!serde_json::to_string(&stats).unwrap().contains("joules"));
    assert_eq!(engine.device().measure_energy().unwrap(), None);
}

#[test]
fn every_number_of_threads_is_measured() {
    let engine = Tiny::DEFAULT.engine(3);
    let counter = Arc::new(Counting::default());
    engine.device().set_energy_meter(Some(counter));
    let measured = engine.device().measure_energy().unwrap().expect("there is a counter");
    assert_eq!(measured.iter().map(|row| row.n_threads).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(measured.iter().all(|row| row.joules_per_token > 0.0 && row.tokens_per_s > 0.0));
}

#[test]
fn power_states_and_measured_times_change_no_output() {
    let engine = Tiny::DEFAULT.engine(3);
    let (expected, _) = generate(&engine, SessionOptions::default());
    for state in [PowerState::Saver, PowerState::Battery, PowerState::Mains] {
        engine.device().set_power_state(state);
        assert_eq!(engine.device().power_state(), state);
        assert_eq!(generate(&engine, SessionOptions::default()).0, expected, "{state:?}");
    }
    let bytes = Tiny::DEFAULT.gguf();
    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(50)] {
        let checkpoint =
            refrain::checkpoint::Checkpoint::from_gguf_bytes(bytes.clone().into(), "tiny").unwrap();
        let options = EngineOptions {
            n_threads: Some(2),
            quantize: refrain::Quantize::Keep,
            measure_time: Some(time),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&checkpoint, options, |_, _| {}).unwrap();
        assert_eq!(generate(&engine, SessionOptions::default()).0, expected, "{time:?}");
    }
}

#[test]
fn nothing_is_measured_if_the_app_says_so() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
    let options =
        EngineOptions { n_threads: Some(1), measure_time: Some(Duration::ZERO), ..EngineOptions::default() };
    let engine = Engine::open(path, options).unwrap();
    let costs = engine.device().cost_profile();
    // A quarter of a row for each further one.
    assert!((costs.verify_us(8, 1) / costs.verify_us(1, 1) - 2.75).abs() < 1e-3, "{costs:?}");
}

#[test]
fn scalar_kernels_are_a_notice_unless_they_were_asked_for() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
    let open = |isa: Option<IsaKind>| {
        let mut options = EngineOptions {
            n_threads: Some(1),
            measure_time: Some(Duration::ZERO),
            ..EngineOptions::default()
        };
        options.isa = isa;
        Engine::open(path, options).unwrap()
    };
    assert_eq!(open(Some(IsaKind::Scalar)).device().kernels_notice(), None);
    let engine = open(None);
    assert_eq!(engine.device().kernels_notice(), KernelsNotice::of_this_machine());
    assert_eq!(engine.device().kernels_notice().is_some(), engine.device().isa() == IsaKind::Scalar);
}
