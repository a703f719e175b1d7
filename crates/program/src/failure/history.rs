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
            HistoryError::Key { .. } | HistoryError::Encrypted { .. } => KEY_ADVICE,
            HistoryError::ReadOnly { .. } => "check the permissions of the folder",
            _ => "check the folder and the disk",
        };
        Self::input(error, advice)
    }
}
