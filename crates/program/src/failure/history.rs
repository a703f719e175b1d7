//! Failures of the history.

use refrain_index::HistoryError;

use super::Failure;
use crate::key::KEY_ADVICE;

impl From<HistoryError> for Failure {
    fn from(error: HistoryError) -> Self {
        let advice = match error {
            HistoryError::InUse { .. } => {
                "one process at a time forgets and repairs: wait for the other to end"
            }
            HistoryError::Damaged { .. } => {
                "`refrain history repair` drops what is damaged, and nothing else"
            }
            HistoryError::Key { .. } | HistoryError::Encrypted { .. } => KEY_ADVICE,
            HistoryError::ReadOnly { .. } => "check the permissions of the folder",
            HistoryError::NoSuchRecord { .. } => "`refrain history list` shows them",
            _ => "name another folder with --history",
        };
        Self::input(error, advice)
    }
}
