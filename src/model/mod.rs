//! Model files, weights and the forward pass.
