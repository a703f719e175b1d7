//! Setters of option structs, which apps cannot write as literals: fields may be added.

/// Writes one chainable setter per field.
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

pub(crate) use setters;
