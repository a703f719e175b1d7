//! Verification batches, the walk, and sampling.
