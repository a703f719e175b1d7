//! Metadata values.

/// Declares the types of values: number in the file, variant, Rust type, and name in the specification.
macro_rules! types {
    ($($id:literal $variant:ident($type:ty) $name:literal;)*) => {
        /// A metadata value.
        #[derive(Clone, PartialEq, Debug)]
        pub enum GgufValue {
            $(
                #[doc = concat!("Type ", $id, ".")]
                $variant($type),
            )*
        }

        /// An array of metadata values of one type, stored compactly; arrays in an array may have different types.
        #[derive(Clone, PartialEq, Debug)]
        pub enum GgufArray {
            $(
                #[doc = concat!("Of type ", $id, ".")]
                $variant(Vec<$type>),
            )*
        }

        impl GgufValue {
            /// The number of the type in the file.
            pub fn type_id(&self) -> u32 {
                match self { $(Self::$variant(_) => $id,)* }
            }

            /// The name of the type, as the specification writes it.
            pub fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }
        }

        impl GgufArray {
            /// The number of the elements' type in the file.
            pub fn type_id(&self) -> u32 {
                match self { $(Self::$variant(_) => $id,)* }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(values) => values.len(),)* }
            }
        }

        $(
            impl From<$type> for GgufValue {
                fn from(value: $type) -> Self {
                    Self::$variant(value)
                }
            }

            impl From<Vec<$type>> for GgufValue {
                fn from(values: Vec<$type>) -> Self {
                    Self::Array(GgufArray::$variant(values))
                }
            }
        )*
    };
}

types! {
    0 U8(u8) "uint8";
    1 I8(i8) "int8";
    2 U16(u16) "uint16";
    3 I16(i16) "int16";
    4 U32(u32) "uint32";
    5 I32(i32) "int32";
    6 F32(f32) "float32";
    7 Bool(bool) "bool";
    8 String(String) "string";
    9 Array(GgufArray) "array";
    10 U64(u64) "uint64";
    11 I64(i64) "int64";
    12 F64(f64) "float64";
}

impl GgufValue {
    /// The value of any integer type, if it is not negative. Writers use different widths.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value of a float type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value of an array.
    pub fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

impl GgufArray {
    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of an array of strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The elements of an array of floats (32 bits).
    pub fn as_f32s(&self) -> Option<&[f32]> {
        match self {
            Self::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The elements of an array of bools.
    pub fn to_bools(&self) -> Option<Vec<bool>> {
        match self {
            Self::Bool(v) => Some(v.clone()),
            _ => None,
        }
    }

    /// The elements of an array of floats.
    pub fn to_f64s(&self) -> Option<Vec<f64>> {
        match self {
            Self::F32(v) => Some(v.iter().map(|&v| f64::from(v)).collect()),
            Self::F64(v) => Some(v.clone()),
            _ => None,
        }
    }

    /// The elements of an array of any integer type; `None` if one is negative.
    pub fn to_u64s(&self) -> Option<Vec<u64>> {
        fn all<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|&v| v.try_into().ok()).collect()
        }
        match self {
            Self::U8(v) => all(v),
            Self::I8(v) => all(v),
            Self::U16(v) => all(v),
            Self::I16(v) => all(v),
            Self::U32(v) => all(v),
            Self::I32(v) => all(v),
            Self::U64(v) => all(v),
            Self::I64(v) => all(v),
            _ => None,
        }
    }
}

impl From<&str> for GgufValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}
