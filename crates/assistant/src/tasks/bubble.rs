//! What a chat bubble shows of an answer, in one call.

use std::path::PathBuf;

use refrain_index::Locator;

use super::answer::AnswerRequest;
use super::chat::ChatAnswer;
use super::from_passages::Answer;
use super::provenance::Provenance;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::JobOptions;
use crate::passage::{LeftOut, Passage};
use crate::provenance::{CheckedSentence, CitationVerdict, CopiedSpan};
use crate::searched::Searched;
use crate::step::Report;

/// What a chat bubble shows: the text, where its parts come from, and what the model was not shown.
///
/// Every place is a range of bytes of [`text`](Self::text), on character boundaries.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Bubble {
    /// The answer, with its citations such as `[1]`.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// What the model was shown, in the order of the numbers that the text cites.
    pub sources: Vec<BubbleSource>,
    /// The parts of the text that are copied from a source; a span's passage is the index in `sources`.
    pub copied: Vec<CopiedSpan>,
    /// The sentences, each with its support and its citations. Indices of passages are those of `sources`.
    pub sentences: Vec<CheckedSentence>,
    /// What the notes were searched for; `None` if they were not.
    pub searched: Option<Searched>,
    /// What the model was not shown, though it was found or given.
    pub left_out: Vec<LeftOut>,
    /// Whether the text ends at a limit of tokens, not at its own end.
    pub is_cut: bool,
    /// How it came about.
    pub report: Report,
}

/// A source below a chat bubble.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BubbleSource {
    /// The number that the text cites, from 1.
    pub number: usize,
    /// The title of its passage; may be empty.
    pub title: String,
    /// The note, as an absolute path; `None` for the app's own text.
    pub path: Option<PathBuf>,
    /// The line or page on which the passage begins.
    pub locator: Option<Locator>,
    /// The passage, as it was shown.
    pub text: String,
    /// Whether a citation names it and holds.
    pub is_cited: bool,
    /// The sentences of the text that it supports, by their index.
    pub supports: Vec<usize>,
}

impl Bubble {
    /// The sentences that no source supports, by their index: an app marks them.
    pub fn unsupported(&self) -> impl Iterator<Item = usize> {
        let missing = self.sentences.iter().enumerate().filter(|(_, sentence)| sentence.support.is_missing());
        missing.map(|(index, _)| index)
    }

    fn new(
        (text, reasoning): (String, String),
        passages: Vec<Passage>,
        searched: Option<Searched>,
        provenance: Provenance,
        report: Report,
    ) -> Self {
        let Provenance { copied, sentences } = provenance;
        let sources = passages.into_iter().enumerate().map(|(index, passage)| {
            let Passage { title, text, source } = passage;
            let (path, locator) = source.map_or((None, None), |source| (Some(source.path), source.locator));
            let number = index + 1;
            let is_supported =
                |(_, sentence): &(usize, &CheckedSentence)| sentence.support.passage() == Some(index);
            let mut citations = sentences.iter().flat_map(|sentence| &sentence.citations);
            BubbleSource {
                number,
                title,
                path,
                locator,
                text,
                is_cited: citations.any(|citation| {
                    citation.number == number && citation.verdict == CitationVerdict::Supports
                }),
                supports: sentences.iter().enumerate().filter(is_supported).map(|(index, _)| index).collect(),
            }
        });
        let sources = sources.collect();
        let (left_out, is_cut) = (report.left_out.clone(), report.n_cut > 0);
        Self { text, reasoning, sources, copied, sentences, searched, left_out, is_cut, report }
    }
}

impl From<Answer> for Bubble {
    fn from(answer: Answer) -> Self {
        let Answer { text, reasoning, passages, searched, provenance, report } = answer;
        Self::new((text, reasoning), passages, searched, provenance, report)
    }
}

/// Turns that were left out of the conversation ([`ChatAnswer::dropped`]) are no part of it.
impl From<ChatAnswer> for Bubble {
    fn from(answer: ChatAnswer) -> Self {
        let ChatAnswer { text, reasoning, passages, searched, provenance, report, dropped: _ } = answer;
        Self::new((text, reasoning), passages, searched, provenance, report)
    }
}

impl Assistant {
    /// Answers a question from notes with citations, and gives all that a chat bubble shows. As [`answer`](Self::answer) with the prompt
    /// [`Prompts::cited_answer`](crate::Prompts::cited_answer): models cite passages as `[1]` if they follow instructions.
    ///
    /// ```
    /// use refrain::{Engine, EngineOptions};
    /// use refrain_assistant::{AnswerRequest, Assistant, JobOptions, Passage};
    ///
    /// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    /// let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    /// let mut request = AnswerRequest::new("Who takes care of the repair of the car?");
    /// request.passages = Some(vec![Passage::new("Car repair", "Qulittus Works takes care of the repair of the car.")]);
    /// let bubble = assistant.ask(request, JobOptions::default())?.run()?;
    /// println!("{}", bubble.text);
    /// for source in &bubble.sources {
    ///     println!("[{}] {}", source.number, source.title);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub fn ask(&self, request: AnswerRequest, options: JobOptions) -> Result<Job<Bubble>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let layout = self.answer_layout(&self.prompts().cited_answer, request, &options)?;
        Ok(self.job_from_passages("answer", None, layout, options, n_forgotten, Bubble::from))
    }
}
