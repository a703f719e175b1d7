//! Macros of the public face: setters of option structs, and methods for this project's own crates.

/// Writes one chainable setter per field. Apps cannot write these structs as literals, because fields may be added.
macro_rules! setters {
    ($type:ty { $($setter:ident: $field:ident: $kind:ty),* $(,)? }) => {
        impl $type {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $setter(mut self, $field: impl Into<$kind>) -> Self {
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}

/// Makes methods of exported types public with the feature `internals`, and private to this crate without it.
macro_rules! internals {
    ($($(#[$meta:meta])* fn $name:ident $(<$($generic:tt),*>)? ($($args:tt)*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[cfg(feature = "internals")]
            $(#[$meta])*
            pub fn $name $(<$($generic),*>)? ($($args)*) $(-> $result)? $body

            #[cfg(not(feature = "internals"))]
            $(#[$meta])*
            pub(crate) fn $name $(<$($generic),*>)? ($($args)*) $(-> $result)? $body
        )*
    };
}

pub(crate) use {internals, setters};
