//! Stored profiles: measured for any model, used on the machine and model of the measurement, corrected by learning.

use std::path::PathBuf;
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::{MachineProfile, ProfileOptions};
use refrain::internals::error::ProfileError;
use refrain::{Engine, EngineOptions, ErrorKind, GenerateOptions, KvType, SessionOptions, TokenId};

use crate::common::{self, Tiny, prompt};
use crate::model_files::Gguf;

/// A measurement that takes hardly any time.
fn quick() -> ProfileOptions {
    ProfileOptions {
        contexts: vec![128],
        rows: vec![1, 4, 16],
        prefill: vec![8],
        entry_time: Duration::from_millis(5),
        ..ProfileOptions::default()
    }
}

fn engine(n_threads: usize, profile: Option<MachineProfile>) -> Engine {
    let checkpoint = Checkpoint::from_gguf_bytes(Tiny::default().gguf().into(), "tiny").unwrap();
    let options = EngineOptions { n_threads: Some(n_threads), profile, ..EngineOptions::default() };
    Engine::load(&checkpoint, options, |_, _| {}).unwrap()
}

/// `profile` after a change of its file.
fn changed(profile: &MachineProfile, change: impl Fn(&mut serde_json::Value)) -> MachineProfile {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("p.json");
    profile.write(&path).unwrap();
    let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    MachineProfile::read(&path).unwrap()
}

/// Runs one generation of `n_tokens` tokens in a new session.
fn generate(engine: &Engine, options: SessionOptions, n_tokens: usize) -> Vec<TokenId> {
    let mut session = engine.session(SessionOptions { history: false, ..options }).unwrap();
    session.append_tokens(&prompt(3, 20)).unwrap();
    let options = GenerateOptions { max_tokens: n_tokens, ignore_eos: true, ..GenerateOptions::default() };
    common::run_in(&mut session, options, usize::MAX).tokens
}

#[test]
fn a_profile_is_used_for_what_it_was_measured_with_only() {
    let first = engine(1, None);
    let profile = first.device().measure_profile(&quick(), |_, _| {}).unwrap();
    let mismatch = |profile: MachineProfile, n_threads: usize, kv_type: KvType| {
        let engine = engine(n_threads, Some(profile));
        let mismatch = engine.device().profile_mismatch(kv_type)?;
        assert_eq!(mismatch.kind(), ErrorKind::Mismatch);
        assert!(mismatch.field().is_some_and(|field| mismatch.to_string().contains(field)), "{mismatch}");
        Some(mismatch.to_string())
    };
    assert_eq!(mismatch(profile.clone(), 1, KvType::F16), None);
    let threads = mismatch(profile.clone(), 2, KvType::F16).unwrap();
    assert!(threads.contains("threads 1") && threads.contains("here it is 2"), "{threads}");
    let kv = mismatch(profile.clone(), 1, KvType::F32).unwrap();
    assert!(kv.contains("KV type f16") && kv.contains("here it is f32"), "{kv}");
    let elsewhere = changed(&profile, |json| json["key"]["cpu"] = "Another CPU".into());
    let cpu = mismatch(elsewhere, 1, KvType::F16).unwrap();
    assert!(cpu.contains("CPU Another CPU"), "{cpu}");
    // Without a profile there is no mismatch.
    assert!(first.device().profile_mismatch(KvType::F16).is_none());
}

#[test]
fn a_profile_changes_no_token() {
    let plain = engine(1, None);
    let profile = plain.device().measure_profile(&quick(), |_, _| {}).unwrap();
    let expected = generate(&plain, SessionOptions::default(), 40);
    let profiled = engine(1, Some(profile));
    assert!(profiled.device().profile().is_some());
    assert_eq!(generate(&profiled, SessionOptions::default(), 40), expected);
}

#[test]
fn what_generations_learn_of_the_device_is_kept() {
    let profile = engine(1, None).device().measure_profile(&quick(), |_, _| {}).unwrap();
    // The measured device was ten times faster.
    let faster = changed(&profile, |json| {
        for list in ["verify", "projection", "prefill"] {
            for cost in json[list].as_array_mut().unwrap() {
                cost["us"] = (cost["us"].as_f64().unwrap() / 10.0).into();
            }
        }
    });
    let engine = engine(1, Some(faster));
    let before = engine.device().cost_profile();
    // One token each: no single generation could learn this much.
    for _ in 0..60 {
        generate(&engine, SessionOptions::default(), 1);
    }
    let after = engine.device().cost_profile();
    for rows in [1, 4, 16] {
        let factor = after.verify_us(rows, 1) / before.verify_us(rows, 1);
        assert!((4.0..17.0).contains(&factor), "{rows} rows cost {factor} times as much");
    }
    // A session that cannot use the profile ignores it.
    generate(&engine, SessionOptions { kv_type: KvType::F32, ..SessionOptions::default() }, 20);
    assert_eq!(engine.device().cost_profile().verify_us(1, 1), after.verify_us(1, 1));
}

#[test]
fn a_model_trained_for_a_few_tokens_is_measured() {
    for trained_len in [2u32, 32, 64, 65] {
        let mut gguf = Gguf::tiny();
        gguf.set("llama.context_length", trained_len);
        let checkpoint = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "tiny").unwrap();
        let options = EngineOptions { n_threads: Some(1), ..EngineOptions::default() };
        let engine = Engine::load(&checkpoint, options, |_, _| {}).unwrap();
        let options = ProfileOptions { rows: vec![1, 64], ..quick() };
        let profile = engine.device().measure_profile(&options, |_, _| {}).unwrap();
        let contexts: Vec<usize> = profile.verify().iter().map(|cost| cost.context).collect();
        let expected: &[usize] = if trained_len == 65 { &[0, 0, 1, 1] } else { &[0, 0] };
        assert_eq!(contexts, expected, "{trained_len}");
        assert_eq!(profile.prefill()[0].rows, 8.min(trained_len as usize));
    }
}

#[test]
fn measuring_nothing_is_refused() {
    let engine = engine(1, None);
    let nothing = ProfileOptions { rows: Vec::new(), ..quick() };
    let error = engine.device().measure_profile(&nothing, |_, _| {}).unwrap_err();
    assert!(matches!(error.detail(), Some(ProfileError::NothingToMeasure { option: "rows" })), "{error}");
    let everything = ProfileOptions { contexts: vec![usize::MAX], prefill: vec![usize::MAX], ..quick() };
    let profile = engine.device().measure_profile(&everything, |_, _| {}).unwrap();
    assert_eq!(profile.verify().last().map(|cost| cost.context), Some(512 - 64));
}
