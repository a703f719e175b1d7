//! The tasks of an assistant app on the engine [`refrain`].

pub mod edit;
pub mod provenance;

mod pieces;
