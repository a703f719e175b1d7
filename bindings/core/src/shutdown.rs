//! `close()` for generated languages.
//!
//! In Kotlin, every object of UniFFI has a `close()` already, which frees the handle, so a method of that name cannot be generated.

use crate::error::FfiError;
#[cfg(feature = "notes")]
use crate::{Assistant, Conversation, Notes};
use crate::{Engine, History, Job, Session};

macro_rules! shutdown {
    ($($object:ident)*) => {
        $(
            #[uniffi::export]
            impl $object {
                /// Closes the object, as `close` of the same object in other languages does: later calls are the error `closed`.
                ///
                /// # Errors
                /// `forked`, `reentrant`.
                pub fn shutdown(&self) -> Result<(), FfiError> {
                    self.close()
                }
            }
        )*
    };
}

shutdown!(Engine History Job Session);

#[cfg(feature = "notes")]
shutdown!(Assistant Conversation Notes);
