//! Whether two models speak of the same tokens.

use thiserror::Error;

use crate::token::TokenId;
use crate::tokenizer::Tokenizer;

/// The first difference between a target's vocabulary and a draft model's.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum VocabularyMismatch {
    /// One has more tokens.
    #[error("its vocabulary has {draft} tokens, the target's {target}")]
    Size {
        /// Tokens of the target's vocabulary.
        target: usize,
        /// Tokens of the draft model's.
        draft: usize,
    },
    /// A number stands for different text.
    #[error("its token {id} is {draft}, the target's is {target}")]
    Entry {
        /// The number.
        id: u32,
        /// What it stands for to the target, quoted and escaped.
        target: String,
        /// What it stands for to the draft model.
        draft: String,
    },
}

/// Compares the vocabularies token by token: their number, then what each stands for and whether it is a control token.
///
/// The models' own vocabularies may be padded beyond it, each as it likes: rows without a token are never drafted.
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

/// Characters of a token that a message shows.
const SHOWN_MAX: usize = 40;

fn shown((bytes, is_control): &(Option<Vec<u8>>, bool)) -> String {
    let Some(bytes) = bytes else { return "unused".to_owned() };
    let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN_MAX).collect();
    format!("{}{text:?}", if *is_control { "control token " } else { "" })
}
