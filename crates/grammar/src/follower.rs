//! Follows one output through a grammar: the free text before the marker, the constrained text, the end.
//!
//! The state is kept between calls. A longer output costs its new tokens; an output that differs is rolled back to the common
//! start first.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;
use refrain::TokenId;

use crate::compiled::Compiled;
use crate::error::GrammarError;
use crate::marker::Found;
use crate::parser::{Mask, Parser};
use crate::vocabulary::Vocabulary;

/// The state of a grammar behind an output.
pub(crate) struct Follower {
    grammar: Arc<Compiled>,
    parser: Parser,
    /// The output followed so far: free tokens, parsed tokens, end tokens.
    tokens: Vec<TokenId>,
    /// For each free token: the state of the marker's search behind it.
    free: Vec<usize>,
    /// Number of free tokens, once the constrained text has begun.
    n_free: Option<usize>,
    n_end_tokens: usize,
}

/// What may follow an output.
pub(crate) enum Allowed<'g> {
    /// Any token but the end tokens and these.
    AllBut(&'g [TokenId]),
    /// The tokens of the mask.
    Tokens(SimpleVob),
    /// The end tokens.
    End,
}

impl Follower {
    pub(crate) fn new(grammar: Arc<Compiled>) -> Self {
        let parser = grammar.start.parser();
        let n_free = grammar.marker.is_none().then_some(0);
        Self { grammar, parser, tokens: Vec::new(), free: Vec::new(), n_free, n_end_tokens: 0 }
    }

    /// Moves to `output`. After an error the state is that of the longest allowed start.
    ///
    /// # Errors
    /// [`GrammarError::NotAllowed`]; errors of the parser.
    pub(crate) fn follow(&mut self, output: &[TokenId]) -> Result<(), GrammarError> {
        let n_common = self.tokens.iter().zip(output).take_while(|(old, new)| old == new).count();
        if n_common < self.tokens.len() {
            self.truncate(n_common)?;
        }
        for &token in &output[n_common..] {
            if !self.push(token)? {
                return Err(GrammarError::NotAllowed { position: self.tokens.len(), token: token.0 });
            }
        }
        Ok(())
    }

    /// What may follow.
    ///
    /// # Errors
    /// Errors of the parser.
    pub(crate) fn allowed(&mut self) -> Result<Allowed<'_>, GrammarError> {
        let Some(n_free) = self.n_free else {
            let marker = self.grammar.marker.as_ref().expect("free text ends with a marker");
            return Ok(Allowed::AllBut(
                marker.overshooting(self.state(), self.grammar.vocabulary.tokenizer()),
            ));
        };
        if self.n_end_tokens > 0 {
            return Ok(Allowed::End);
        }
        match self.parser.mask().map_err(|error| error.behind(n_free))? {
            Mask::Tokens(mask) => Ok(Allowed::Tokens(mask)),
            Mask::End => Ok(Allowed::End),
        }
    }

    /// Moves to `output` and computes what may follow, before it is asked for. An error shows when it is.
    pub(crate) fn compute_ahead(&mut self, output: &[TokenId]) {
        if self.follow(output).is_ok()
            && let Some(parser) = self.parser()
        {
            parser.mask_ahead();
        }
    }

    /// Whether a token may follow. In free text, every token may.
    ///
    /// # Errors
    /// Errors of the parser.
    pub(crate) fn allows(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        let is_end = self.grammar.vocabulary.is_end(token);
        match self.n_free {
            None => Ok(true),
            Some(_) if self.n_end_tokens > 0 => Ok(is_end),
            Some(n_free) if is_end => self.parser.is_accepting().map_err(|error| error.behind(n_free)),
            Some(n_free) => self.parser.allows(token).map_err(|error| error.behind(n_free)),
        }
    }

    /// The parser, if the constrained text has begun and not ended.
    pub(crate) fn parser(&mut self) -> Option<&mut Parser> {
        (self.n_free.is_some() && self.n_end_tokens == 0).then_some(&mut self.parser)
    }

    /// The grammar's vocabulary, as a handle of its own.
    pub(crate) fn vocabulary(&self) -> Vocabulary {
        self.grammar.vocabulary.clone()
    }

    /// The state of the marker's search behind the free text.
    fn state(&self) -> usize {
        self.free.last().copied().unwrap_or(0)
    }

    /// Follows one more token; `false` and unchanged if it is not allowed.
    fn push(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        let is_end = self.grammar.vocabulary.is_end(token);
        let is_allowed = match self.n_free {
            None => !is_end && self.push_free(token),
            Some(n_free) if is_end => {
                let ends = self.n_end_tokens > 0
                    || self.parser.is_accepting().map_err(|error| error.behind(n_free))?;
                self.n_end_tokens += usize::from(ends);
                ends
            }
            Some(n_free) => {
                self.n_end_tokens == 0 && self.parser.push(token).map_err(|error| error.behind(n_free))?
            }
        };
        if is_allowed {
            self.tokens.push(token);
        }
        Ok(is_allowed)
    }

    /// Follows a token of the free text; `false` and unchanged if the marker ends inside the token.
    fn push_free(&mut self, token: TokenId) -> bool {
        let marker = self.grammar.marker.as_ref().expect("free text ends with a marker");
        let bytes = self.grammar.vocabulary.tokenizer().token_bytes(token).unwrap_or_default();
        let state = match marker.find(self.state(), bytes) {
            Found::Part(state) => state,
            Found::Whole => {
                self.n_free = Some(self.free.len() + 1);
                0
            }
            Found::Inside => return false,
        };
        self.free.push(state);
        true
    }

    /// Drops the tokens from `len` on.
    fn truncate(&mut self, len: usize) -> Result<(), GrammarError> {
        let n_parsed = self.n_free.map_or(0, |n_free| self.tokens.len() - n_free - self.n_end_tokens);
        self.tokens.truncate(len);
        self.free.truncate(len);
        self.n_free = self.n_free.filter(|&n_free| n_free <= len);
        let n_behind = self.n_free.map_or(0, |n_free| len - n_free);
        let n_kept = n_parsed.min(n_behind);
        self.n_end_tokens = n_behind - n_kept;
        if n_kept == n_parsed {
            return Ok(());
        }
        if self.parser.rollback(n_parsed - n_kept).is_ok() {
            return Ok(());
        }
        // Lark grammars that count tokens cannot be rolled back.
        self.parser = self.grammar.start.parser();
        let n_free = self.n_free.unwrap_or(len);
        for &token in &self.tokens[n_free..n_free + n_kept] {
            self.parser.push(token).map_err(|error| error.behind(n_free))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use refrain::{Engine, EngineOptions};

    use super::*;
    use crate::{Grammar, JsonOptions, Vocabulary};

    const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    const SCHEMA: &str = r#"{"type": "object", "properties": {"kind": {"enum": ["one", "once", "two"]}, "text": {"type": "string"},
        "n": {"type": "number"}}, "required": ["kind", "text"]}"#;

    fn grammars() -> &'static [Grammar] {
        static GRAMMARS: std::sync::OnceLock<Vec<Grammar>> = std::sync::OnceLock::new();
        GRAMMARS.get_or_init(|| {
            let engine = Engine::open(FIXTURE, EngineOptions::default()).expect("the fixture model");
            let vocabulary = Vocabulary::of_engine(&engine).expect("a vocabulary");
            let grammar = |options| Grammar::json_schema(&vocabulary, SCHEMA, options).expect("a schema");
            let compact = grammar(JsonOptions::default());
            let spaced = grammar(JsonOptions { whitespace: true });
            let after = Grammar::regex(&vocabulary, "(a|b c)*!").unwrap().after("the").unwrap();
            let counted = Grammar::lark(&vocabulary, "start: a \"!\"\na[max_tokens=4]: /[a-z ]+/\n").unwrap();
            vec![compact, spaced, after, counted]
        })
    }

    /// The tokens that may follow.
    fn tokens(follower: &mut Follower) -> Vec<u32> {
        let vocab_size = follower.grammar.vocabulary.tokenizer().vocab_size() as u32;
        let ends: Vec<u32> = follower.grammar.vocabulary.tokenizer().eos().iter().map(|id| id.0).collect();
        match follower.allowed().expect("a mask") {
            Allowed::Tokens(mask) => mask.iter().collect(),
            Allowed::End => ends,
            Allowed::AllBut(forbidden) => (0..vocab_size)
                .filter(|&id| !forbidden.contains(&TokenId(id)) && !ends.contains(&id))
                .collect(),
        }
    }

    proptest! {
        /// After any movement between texts, a follower allows what a new one allows.
        #[test]
        fn a_follower_that_was_rolled_back_equals_a_new_one(
            grammar in 0usize..4,
            moves in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<prop::sample::Index>(), 0..6)), 1..8),
        ) {
            let grammar = &grammars()[grammar];
            let mut follower = Follower::new(Arc::clone(grammar.compiled()));
            let mut text = Vec::new();
            for (kept, further) in moves {
                text.truncate(kept.index(text.len() + 1));
                follower.follow(&text).expect("a text that was allowed");
                for token in further {
                    let allowed = tokens(&mut follower);
                    text.push(TokenId(allowed[token.index(allowed.len())]));
                    follower.follow(&text).expect("an allowed token");
                }
                let mut new = Follower::new(Arc::clone(grammar.compiled()));
                new.follow(&text).expect("the same text");
                prop_assert_eq!(tokens(&mut follower), tokens(&mut new), "after {:?}", &text);
            }
        }
    }
}
