//! Compares the vocabularies of two models.

use thiserror::Error;

use refrain_tokenizer::Tokenizer;
use refrain_trees::TokenId;

/// The first difference between a target's vocabulary and a draft model's.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum VocabularyMismatch {
    /// The number of tokens differs.
    #[error("its vocabulary has {draft} tokens, the target's {target}")]
    Size {
        /// Tokens of the target's vocabulary.
        target: usize,
        /// Tokens of the draft model's.
        draft: usize,
    },
    /// A token id has another text.
    #[error("its token {id} is {draft}, the target's is {target}")]
    Entry {
        /// The token id.
        id: u32,
        /// Its text in the target's vocabulary, quoted and escaped.
        target: String,
        /// Its text in the draft model's vocabulary.
        draft: String,
    },
}

/// Compares the vocabularies token by token: their size, then each token's text and whether it is a control
/// token.
///
/// The models' output rows may be padded beyond the vocabulary, each differently: rows without a token are
/// never drafted.
pub(crate) fn check(target: &Tokenizer, draft: &Tokenizer) -> Result<(), VocabularyMismatch> {
    let sizes = (target.vocab_size(), draft.vocab_size());
    if sizes.0 != sizes.1 {
        return Err(VocabularyMismatch::Size { target: sizes.0, draft: sizes.1 });
    }
    let entry = |tokenizer: &Tokenizer, id: TokenId| {
        (tokenizer.token_bytes(id).map(<[u8]>::to_vec), tokenizer.is_special(id))
    };
    for id in (0..sizes.0 as u32).map(TokenId) {
        let (of_target, of_draft) = (entry(target, id), entry(draft, id));
        if of_target != of_draft {
            let (target, draft) = (shown(&of_target), shown(&of_draft));
            return Err(VocabularyMismatch::Entry { id: id.0, target, draft });
        }
    }
    Ok(())
}

/// Maximum characters of a token in a message.
const SHOWN_MAX: usize = 40;

fn shown((bytes, is_control): &(Option<Vec<u8>>, bool)) -> String {
    let Some(bytes) = bytes else { return "unused".to_owned() };
    let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN_MAX).collect();
    format!("{}{text:?}", if *is_control { "control token " } else { "" })
}
