//! Engine and sessions.
