//! Runs the verification batch through the target.

use super::draft::Drafted;
use crate::cancel::CancelToken;
use crate::engine::session::{Session, Verified};
use crate::model::transformer::ForwardError;

/// Runs the tree's rows to their final hidden states.
///
/// # Errors
/// [`ForwardError`]; nothing is committed.
pub(super) fn verify(
    session: &mut Session,
    drafted: &Drafted,
    cancel: &CancelToken,
) -> Result<Verified, ForwardError> {
    let Session { shared, options, target, drafting, .. } = session;
    target.verify(shared, &drafting.tree, drafted.n_rows, &options.verify_lens, cancel)
}
