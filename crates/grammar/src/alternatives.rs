//! The continuations of a text where the grammar forces none: a few branches, each with the text that it forces.

use refrain::TokenId;

use crate::error::GrammarError;
use crate::parser::Parser;
use crate::vocabulary::Vocabulary;

/// Maximum number of branches. Where more are open, as in a string, the grammar says little about the next token.
const BRANCHES_MAX: usize = 24;

/// What the grammar says about the text after a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// These tokens follow.
    Forced(Vec<TokenId>),
    /// One of these branches follows. Branches begin with different tokens.
    Branches(Vec<Vec<TokenId>>),
    /// Too many branches.
    Open,
}

/// What the grammar says about the text after the parser's.
///
/// A branch begins at a byte. Its text is tokenised as a whole, as the model would write it; other tokenisations are left to the
/// model.
pub(crate) fn continuation(
    parser: &mut Parser,
    vocabulary: &Vocabulary,
) -> Result<Continuation, GrammarError> {
    let forced = parser.forced_tokens()?;
    if !forced.is_empty() {
        return Ok(Continuation::Forced(forced));
    }
    let mut branches: Vec<Vec<TokenId>> = Vec::new();
    if !parser.is_at_end() {
        let pending = parser.forced_bytes()?;
        let next = parser.next_bytes()?;
        if next.len() > BRANCHES_MAX {
            return Ok(Continuation::Open);
        }
        for byte in next {
            let branch = branch(parser, vocabulary, &pending, byte)?;
            let is_new = |token: &TokenId| branches.iter().all(|branch| branch.first() != Some(token));
            if branch.first().is_some_and(is_new) {
                branches.push(branch);
            }
        }
    }
    if parser.is_accepting()? {
        branches.extend(vocabulary.tokenizer().eos().iter().map(|&end| vec![end]));
    }
    Ok(Continuation::Branches(branches))
}

/// The tokens of the branch that begins with `byte` after the `pending` forced bytes; empty if the vocabulary has no tokens for
/// it. The parser is where it was.
fn branch(
    parser: &mut Parser,
    vocabulary: &Vocabulary,
    pending: &[u8],
    byte: u8,
) -> Result<Vec<TokenId>, GrammarError> {
    let mut text = pending.to_vec();
    text.push(byte);
    let Some(single) = text.iter().map(|&byte| vocabulary.byte_token(byte)).collect::<Option<Vec<_>>>()
    else {
        return Ok(Vec::new());
    };
    let before = parser.n_tokens();
    for token in single {
        if !parser.push(token)? {
            break;
        }
    }
    let is_whole = parser.n_tokens() == before + text.len();
    let mut tokens = Vec::new();
    if is_whole {
        let is_at_end = parser.is_at_end();
        if !is_at_end {
            text.extend(parser.forced_bytes()?);
        }
        tokens = vocabulary.tokenize(&text);
        let first = tokens.first().copied();
        if !is_at_end {
            parser.chop(vocabulary.trie(), &mut tokens)?;
        }
        if tokens.is_empty() {
            // Every token could be joined with what follows. The first one is still the likeliest.
            tokens.extend(first);
        }
    }
    let n_pushed = parser.n_tokens().saturating_sub(before);
    if n_pushed > 0 {
        parser.rollback(n_pushed)?;
    }
    Ok(tokens.into_iter().map(TokenId).collect())
}
