//! Where the text of an answer comes from: the spans that are copied from the passages shown to the model, and the passages that
//! the answer cites.
//!
//! Both are computed from the texts alone, so they do not depend on how the answer was generated.

mod citations;
mod live;
mod marks;
mod runs;
mod sentences;
mod spans;
mod support;

pub use citations::{CheckedCitation, CheckedSentence, CitationVerdict, check_citations};
pub use live::{LiveSentences, SentenceReady};
pub use sentences::sentences;
pub use spans::{CopiedSpan, Shown, SpanOptions, copied_spans};
pub use support::{SUPPORT_SHARE_MIN, Support};
