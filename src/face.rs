//! A macro of the public face: methods for this project's own crates.

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

pub(crate) use internals;
