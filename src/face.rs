//! Macros of the public face: methods and fields for this project's own crates.

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

/// Makes the fields of an exported struct public with the feature `internals`, and private to this crate without it.
macro_rules! internal_fields {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        #[cfg(feature = "internals")]
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type),*
        }

        #[cfg(not(feature = "internals"))]
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type),*
        }
    };
}

pub(crate) use {internal_fields, internals};
