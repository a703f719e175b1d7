//! Published drafting rules in the engine: they draft, and the output is that of plain decoding.

mod common;

use common::{Tiny, plain, prompt, run};
use refrain::internals::draft::Baseline;
use refrain::{Drafting, GenerateOptions, SessionOptions, SourceKind};

#[test]
fn every_rule_drafts_and_changes_nothing() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(3, 120);
    let options = || GenerateOptions { max_tokens: 60, ignore_eos: true, ..GenerateOptions::default() };
    let expected = run(&engine, plain(), Vec::new(), &prompt, options());
    for baseline in Baseline::ALL {
        let session = SessionOptions { drafting: Drafting::Baseline(baseline), ..SessionOptions::default() };
        let run = run(&engine, session, Vec::new(), &prompt, options());
        assert_eq!(run.tokens, expected.tokens, "{baseline}");
        let [source] = run.stats.sources.as_slice() else { panic!("{baseline}: {:?}", run.stats.sources) };
        assert_eq!((source.name.as_str(), source.kind), (baseline.name(), SourceKind::Other));
        assert!(baseline == Baseline::Sam || source.drafted > 0, "{baseline} drafted nothing");
    }
}
