//! The public error types, one for each family of calls. Each is a box of the [`Fault`] of the layer that failed.

use refrain_files::{ErrorKind, Facts, Fault, opaque_error};

use crate::kernels::{AllocError, PackError};

opaque_error! {
    /// An engine, a model or another file could not be opened, read, written, measured or used.
    LoadError(dyn Fault)
}

opaque_error! {
    /// A session could not be started or changed.
    SessionError(dyn Fault)
}

opaque_error! {
    /// A generation could not start or continue. The session keeps the committed tokens and stays usable.
    GenerateError(dyn Fault)
}

macro_rules! of_faults {
    ($($name:ident)*) => {
        $(
            impl<E: Fault> From<E> for $name {
                fn from(fault: E) -> Self {
                    Self(Box::new(fault))
                }
            }

            #[cfg(feature = "internals")]
            impl $name {
                /// The error of the layer, if it is of this type.
                pub fn detail<E: std::error::Error + 'static>(&self) -> Option<&E> {
                    self.0.hidden().unwrap_or(&*self.0).downcast_ref()
                }
            }
        )*
    };
}

of_faults!(LoadError SessionError GenerateError);

impl From<SessionError> for GenerateError {
    fn from(error: SessionError) -> Self {
        Self(error.0)
    }
}

/// The facts of a failed allocation.
pub(crate) fn of_alloc(error: &AllocError) -> Facts<'static> {
    Facts::new(ErrorKind::OutOfMemory).value(error.bytes)
}

/// The facts of a matrix that cannot be packed.
pub(crate) fn of_pack(error: &PackError) -> Facts<'static> {
    match error {
        PackError::Alloc(error) => of_alloc(error),
        _ => Facts::new(ErrorKind::Damaged),
    }
}
