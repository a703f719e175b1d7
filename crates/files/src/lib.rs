//! Files whose names or contents come from outside, and files of the user.
//!
//! Every file of Refrain is opened, created and replaced here: models, stores, traces, an app's notes. The crate knows nothing
//! of their contents. It also has the shape of errors: what an app learns of a file, or of anything else, that cannot be used.
//!
//! It is a part of Refrain, outside semantic versioning: its names change with any release.

mod error;
mod open;
mod quiet;
pub mod replace;

pub use error::{ErrorKind, Facts, Fault};
pub use open::open_regular;
pub use quiet::{catch_quietly, is_caught};
