//! A compiled grammar, and the generations that it constrains.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use refrain::GenerateOptions;

use crate::compile;
use crate::compiled::{Compiled, OutputStart};
use crate::drafts::GrammarDrafts;
use crate::error::{GrammarError, GrammarKind};
use crate::gbnf;
use crate::lark;
use crate::limits::{CHOICES_MAX, FORCED_BYTES_MAX, GRAMMAR_BYTES_MAX, MARKER_BYTES_MAX, STRING_BYTES_MAX};
use crate::marker::Marker;
use crate::mask::{GrammarMask, MaskAhead};
use crate::schema::{self, JsonOptions, Numbers};
use crate::vocabulary::Vocabulary;

/// A grammar that constrains outputs. Clones share the compiled grammar.
///
/// Compiling it checks it: a grammar that is invalid, not supported or too complex is an error here, before any decoding. A
/// limit that only shows while a text is parsed ends the generation with an error.
#[derive(Clone)]
pub struct Grammar {
    compiled: Arc<Compiled>,
}

impl Grammar {
    /// Outputs that are JSON and valid under a JSON Schema (draft 2020-12 and earlier, as far as llguidance supports them).
    /// Properties come in the order of the schema.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`], [`GrammarError::NotJson`]; [`GrammarError::Schema`]: the schema is invalid or has a keyword
    /// or format that is not supported; [`GrammarError::Refused`]: it is too complex.
    pub fn json_schema(
        vocabulary: &Vocabulary,
        schema: &str,
        options: JsonOptions,
    ) -> Result<Self, GrammarError> {
        check_len(GrammarKind::JsonSchema, schema.len(), GRAMMAR_BYTES_MAX)?;
        let text = schema.to_owned();
        let describe = move |numbers: &mut Numbers| {
            Ok(TopLevelGrammar::from_json_schema(schema::read(&text, options, numbers)?))
        };
        Self::compile(vocabulary, GrammarKind::JsonSchema, describe).map_err(|error| match error {
            GrammarError::Refused { reason, .. } => schema::refused(schema, reason),
            error => error,
        })
    }

    /// Outputs that a regular expression matches from beginning to end (syntax of the crate `regex`, without anchors,
    /// look-around and lazy repetition).
    ///
    /// # Errors
    /// [`GrammarError::TooLong`], [`GrammarError::Refused`].
    pub fn regex(vocabulary: &Vocabulary, regex: &str) -> Result<Self, GrammarError> {
        check_len(GrammarKind::Regex, regex.len(), FORCED_BYTES_MAX)?;
        let grammar = TopLevelGrammar::from_regex(regex);
        Self::compile(vocabulary, GrammarKind::Regex, |_| Ok(grammar))
    }

    /// Outputs that are one of these texts.
    ///
    /// # Errors
    /// [`GrammarError::NumberOfChoices`], [`GrammarError::EmptyChoice`], [`GrammarError::TooLong`],
    /// [`GrammarError::Refused`].
    pub fn choices<S: AsRef<str>>(
        vocabulary: &Vocabulary,
        choices: impl IntoIterator<Item = S>,
    ) -> Result<Self, GrammarError> {
        let (mut regex, mut n_choices, mut n_bytes) = (String::new(), 0, 0);
        for (index, choice) in choices.into_iter().enumerate() {
            let choice = choice.as_ref();
            n_bytes += choice.len();
            if choice.is_empty() {
                return Err(GrammarError::EmptyChoice { index });
            }
            n_choices = index + 1;
            if n_choices > CHOICES_MAX {
                return Err(GrammarError::NumberOfChoices { given: n_choices, max: CHOICES_MAX });
            }
            check_len(GrammarKind::Choices, n_bytes, STRING_BYTES_MAX)?;
            check_len(GrammarKind::Choices, choice.len(), FORCED_BYTES_MAX)?;
            regex.push_str(if index == 0 { "(?:" } else { "|" });
            choice.chars().for_each(|c| push_literal(&mut regex, c));
        }
        if n_choices == 0 {
            return Err(GrammarError::NumberOfChoices { given: 0, max: CHOICES_MAX });
        }
        regex.push(')');
        let grammar = TopLevelGrammar::from_regex(&regex);
        Self::compile(vocabulary, GrammarKind::Choices, |_| Ok(grammar))
    }

    /// Outputs of a context-free grammar in llguidance's variant of Lark's syntax. It may name control tokens, as `<|name|>`.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`], [`GrammarError::Refused`].
    pub fn lark(vocabulary: &Vocabulary, grammar: &str) -> Result<Self, GrammarError> {
        check_len(GrammarKind::Lark, grammar.len(), GRAMMAR_BYTES_MAX)?;
        let text = grammar.to_owned();
        let describe =
            move |numbers: &mut Numbers| Ok(TopLevelGrammar::from_lark(lark::rewrite(&text, numbers)?));
        Self::compile(vocabulary, GrammarKind::Lark, describe)
    }

    /// Outputs of a grammar in llama.cpp's GBNF, from its rule `root`. A grammar without recursion, and one whose next byte always tells what
    /// comes, cost as much as a Lark grammar; any other is parsed letter by letter, which large vocabularies make slow or too complex.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`]; [`GrammarError::Gbnf`]: it cannot be read, or names tokens; [`GrammarError::Refused`]: it is too complex.
    pub fn gbnf(vocabulary: &Vocabulary, grammar: &str) -> Result<Self, GrammarError> {
        check_len(GrammarKind::Gbnf, grammar.len(), GRAMMAR_BYTES_MAX)?;
        let text = grammar.to_owned();
        let describe = move |numbers: &mut Numbers| {
            let lark = lark::rewrite(&gbnf::to_lark(&text)?, numbers).map_err(|error| match error {
                GrammarError::Refused { reason, .. } => {
                    GrammarError::Refused { kind: GrammarKind::Gbnf, reason }
                }
                error => error,
            })?;
            Ok(TopLevelGrammar::from_lark(lark))
        };
        Self::compile(vocabulary, GrammarKind::Gbnf, describe)
    }

    /// The same grammar for the text after `marker`, such as `</think>`. The text up to the marker is free, but does not end
    /// the output. The constrained text begins with the token after the marker: a token with bytes behind the marker's end is
    /// not allowed there. The marker is found in the texts of all tokens, control tokens included.
    ///
    /// # Errors
    /// [`GrammarError::MarkerLength`].
    pub fn after(&self, marker: &str) -> Result<Self, GrammarError> {
        if !(1..=MARKER_BYTES_MAX).contains(&marker.len()) {
            return Err(GrammarError::MarkerLength { given: marker.len(), max: MARKER_BYTES_MAX });
        }
        let Compiled { vocabulary, start, .. } = &*self.compiled;
        let (vocabulary, start, marker) = (vocabulary.clone(), Arc::clone(start), Some(Marker::new(marker)));
        Ok(Self { compiled: Arc::new(Compiled { vocabulary, start, marker }) })
    }

    /// Constrains a generation: adds the mask after the other processors, and the drafts.
    #[must_use]
    pub fn constrain(&self, options: GenerateOptions) -> GenerateOptions {
        self.constrain_ahead(options).0
    }

    /// As [`constrain`](Self::constrain), with a handle that computes masks between passes: for a server, whose other requests wait for
    /// the end of a pass.
    #[must_use]
    pub fn constrain_ahead(&self, mut options: GenerateOptions) -> (GenerateOptions, MaskAhead) {
        let start = Arc::new(OutputStart::default());
        let mask = GrammarMask::new(Arc::clone(&self.compiled), Arc::clone(&start));
        let ahead = mask.ahead();
        options.processors.push(Box::new(mask));
        options.sources.push(Box::new(GrammarDrafts::new(Arc::clone(&self.compiled), start)));
        (options, ahead)
    }

    /// The mask alone, for one generation: the same output as with [`constrain`](Self::constrain), without drafts from the
    /// grammar.
    pub fn mask(&self) -> GrammarMask {
        GrammarMask::new(Arc::clone(&self.compiled), Arc::default())
    }

    #[cfg(test)]
    pub(crate) fn compiled(&self) -> &Arc<Compiled> {
        &self.compiled
    }

    /// Bytes that the compiled grammar takes, about; each generation takes two copies of them.
    pub fn memory_usage(&self) -> usize {
        self.compiled.start.memory_usage()
    }

    fn compile(
        vocabulary: &Vocabulary,
        kind: GrammarKind,
        describe: impl FnOnce(&mut Numbers) -> Result<TopLevelGrammar, GrammarError> + Send + 'static,
    ) -> Result<Self, GrammarError> {
        let start = Arc::new(compile::compile(vocabulary, kind, describe)?);
        Ok(Self { compiled: Arc::new(Compiled { vocabulary: vocabulary.clone(), start, marker: None }) })
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compiled { vocabulary, marker, .. } = &*self.compiled;
        f.debug_struct("Grammar")
            .field("vocabulary", vocabulary)
            .field("marker", marker)
            .finish_non_exhaustive()
    }
}

fn check_len(kind: GrammarKind, given: usize, max: usize) -> Result<(), GrammarError> {
    if given > max { Err(GrammarError::TooLong { kind, given, max }) } else { Ok(()) }
}

/// Appends a character that stands for itself in a regular expression. Of the other characters `\<` and `\>` would be
/// boundaries of words.
fn push_literal(regex: &mut String, c: char) {
    if r"\.+*?()|[]{}^$#&-~".contains(c) {
        regex.push('\\');
    }
    regex.push(c);
}
