//! A draft source over the text that a request predicts.

use refrain::TokenId;
use refrain::drafting::{Anchor, Candidates, Cursor, DraftSource, EvidenceClass, StepOutcome};
use refrain::internals::draft::PassagesSource;

/// The name of the source in statistics.
pub(crate) const NAME: &str = "prediction";

/// Tokens of the prompt's end before the predicted text, so that the source matches at the start of the output.
const LEAD: usize = 16;

/// Drafts from the predicted text: from its beginning, and after a difference from the place where both texts agree again.
#[derive(Debug, Clone)]
pub(crate) struct Prediction(PassagesSource);

impl Prediction {
    pub(crate) fn new(prompt: &[TokenId], predicted: &[TokenId]) -> Self {
        let lead = &prompt[prompt.len().saturating_sub(LEAD)..];
        Self(PassagesSource::new([[lead, predicted].concat().as_slice()]))
    }
}

impl DraftSource for Prediction {
    fn name(&self) -> &str {
        NAME
    }

    fn evidence(&self) -> EvidenceClass {
        self.0.evidence()
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.0.prime(committed);
    }

    fn truncate(&mut self, _len: usize) {
        self.0.truncate(0);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.0.anchors(committed, out);
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.0.expand(frontier, out);
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        self.0.observe(committed, step);
    }

    fn memory_usage(&self) -> u64 {
        self.0.memory_usage()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}
