//! Where the text of a result comes from.

use crate::passage::Passage;
use crate::provenance::{CheckedSentence, CopiedSpan, Shown, SpanOptions, check_citations, copied_spans};

/// Where a text comes from, judged by the texts alone. Passages are named by their index in the result.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Provenance {
    /// The spans of the text that stand in a passage.
    pub copied: Vec<CopiedSpan>,
    /// The sentences, each with what supports it and its citations `[n]`, where 1 is the first passage. Only a template with
    /// numbered passages lets the model cite.
    pub sentences: Vec<CheckedSentence>,
}

impl Provenance {
    pub(crate) fn of(text: &str, passages: &[Passage]) -> Self {
        let documents: Vec<String> = passages
            .iter()
            .map(|passage| match &passage.source {
                Some(source) => source.path.to_string_lossy().into_owned(),
                None => passage.title.clone(),
            })
            .collect();
        let shown = passages.iter().zip(&documents).map(|(passage, document)| {
            let source = passage.source.as_ref().filter(|source| source.is_verbatim);
            Shown { document, at: source.map(|source| source.place.start as usize), text: &passage.text }
        });
        let shown: Vec<Shown<'_>> = shown.collect();
        let copied = copied_spans(text, &shown, SpanOptions::default());
        let sentences = check_citations(text, &shown, &copied);
        Self { copied, sentences }
    }
}
