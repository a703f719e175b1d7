//! What the errors of grammars mean for an app: kind, option, offset and limit.

use refrain_files::{ErrorKind, Facts, Fault};

use crate::error::{GrammarError, VocabularyError};
use crate::gbnf::GbnfProblem;

impl Fault for GrammarError {
    fn facts(&self) -> Facts<'_> {
        let of = Facts::new;
        match self {
            Self::TooLong { given, max, .. } => of(ErrorKind::OverLimit).over(*given, *max),
            Self::NotJson { .. } | Self::Refused { .. } | Self::EmptyChoice { .. } => {
                of(ErrorKind::InvalidArgument)
            }
            Self::Gbnf { offset, problem: GbnfProblem::Limit { given, max, .. }, .. } => {
                of(ErrorKind::OverLimit).at(*offset).over(*given, *max)
            }
            Self::Gbnf { offset, .. } => of(ErrorKind::InvalidArgument).at(*offset),
            Self::Schema { pointer, .. } => {
                let facts = of(ErrorKind::InvalidArgument);
                pointer.as_deref().map_or(facts, |pointer| facts.field(pointer))
            }
            Self::Busy { .. } => of(ErrorKind::WrongState),
            Self::NumberOfChoices { given, max } | Self::MarkerLength { given, max } => {
                of(ErrorKind::InvalidArgument).over(*given, *max)
            }
            Self::TooComplex { .. } => of(ErrorKind::OverLimit),
            Self::NoToken { .. } | Self::NotAllowed { .. } => of(ErrorKind::NoToken),
            Self::Parser { .. } => of(ErrorKind::Processor),
        }
    }
}

impl Fault for VocabularyError {
    fn facts(&self) -> Facts<'_> {
        Facts::new(ErrorKind::Unsupported).field("tokenizer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_name_the_part_of_a_schema() {
        let refused =
            GrammarError::Schema { pointer: Some("/properties/a".to_owned()), reason: "unknown".to_owned() };
        let facts = refused.facts();
        assert_eq!((facts.kind, facts.field), (ErrorKind::InvalidArgument, Some("/properties/a")));
        assert_eq!(VocabularyError::NoEndToken.facts().kind, ErrorKind::Unsupported);
    }
}
