//! Draft models with recurrent layers: the output equals plain decoding, bit for bit, whether all of their drafts come true or none, and
//! through forks, truncations and cancelled prefills.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::internals::draft::{CostProfile, EvidenceClass};
use refrain::internals::kernels::IsaKind;
use refrain::{Drafting, Engine, EngineOptions, GenerateOptions};

use crate::common::{
    assert_cuts_agree, assert_turns_agree, drafts_with, isa, options, plain, random_prompt, run, samplings,
};
use crate::model_files::golden;

/// Short convolutions, the gated delta rule, Mamba-2 with experts and without.
const RECURRENT: [&str; 4] = ["lfm2", "qwen3_5", "granitemoehybrid", "granitemoehybrid-dense"];

/// All golden models have one vocabulary. Rows cost nothing, and passes of the draft model next to nothing.
fn pair(target: &str, draft: &str, n_threads: usize, isa: Option<IsaKind>) -> Engine {
    let costs = |us| Some(CostProfile::free_rows(us));
    let (n_threads, cost_profile) = (Some(n_threads), costs(100.0));
    let engine_options = EngineOptions { n_threads, isa, cost_profile, ..EngineOptions::default() };
    let engine = Engine::open(golden(target), engine_options).unwrap();
    let of_draft = DraftModelOptions { cost_profile: costs(0.01), ..DraftModelOptions::default() };
    engine.set_draft_model(&Checkpoint::open(golden(draft)).unwrap(), of_draft, |_, _| {}).unwrap();
    engine
}

#[test]
fn drafts_that_come_true_and_drafts_that_do_not_change_no_bit() {
    for draft in RECURRENT {
        for (target, agrees) in [(draft, true), ("qwen3", false)] {
            let engines = [(1, isa()), (3, isa()), (2, Some(IsaKind::Scalar))]
                .map(|(n_threads, isa)| pair(target, draft, n_threads, isa));
            for (n_prompt, sampling) in [1, 90].into_iter().zip(samplings()) {
                let options = || GenerateOptions { sampling: sampling.clone(), ..options(40) };
                let prompt = random_prompt(n_prompt as u64, n_prompt);
                let reference = run(&engines[0], plain(), Vec::new(), &prompt, options());
                for (i, rows) in [2, 5, 16, 64].into_iter().enumerate() {
                    let drafting = [Drafting::DraftModel, Drafting::Auto][i % 2];
                    let case = format!("{target} with {draft}, {rows} rows, {n_prompt} tokens");
                    let found =
                        run(&engines[i % 3], drafts_with(rows, drafting), Vec::new(), &prompt, options());
                    found.assert_equal(&reference, &case);
                    let source = found.stats.sources.last().expect("the draft model is the last source");
                    assert_eq!(source.evidence, EvidenceClass::DraftModel, "{case}");
                    let computed = source.computed.as_ref().expect("it computes");
                    assert!(computed.off.is_none() && computed.passes > 0, "{case}: {computed:?}");
                    let is_greedy = sampling.temperature == 0.0;
                    if agrees && is_greedy && drafting == Drafting::DraftModel && rows == 16 {
                        assert!(found.stats.steps < 30, "{case}: {} steps for 40 tokens", found.stats.steps);
                    }
                }
            }
        }
    }
}

#[test]
fn forks_truncations_and_cancelled_prefills_change_no_bit() {
    for draft in RECURRENT {
        let engine = pair("lfm2", draft, 2, isa());
        let mut session = engine.session(drafts_with(16, Drafting::DraftModel)).unwrap();
        let mut reference = engine.session(plain()).unwrap();
        assert_turns_agree(&mut session, &mut reference, || options(12));
        assert_cuts_agree(&mut session, &mut reference, || options(12), |_| ());
    }
}
