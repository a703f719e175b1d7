//! Texts from C, and buffers for C.

use std::ffi::c_char;
use std::slice;
use std::sync::PoisonError;

use refrain_ffi::{ErrorKind, FfiError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handles::library;

/// Bytes of the library, which the caller frees with refrain_buffer_free.
#[derive(Debug)]
#[repr(C)]
pub struct Buffer {
    /// The bytes, with a NUL behind them. NULL of an empty buffer.
    pub data: *mut c_char,
    /// Their number, without the NUL.
    pub len: usize,
}

impl Buffer {
    /// No bytes.
    pub const EMPTY: Self = Self { data: std::ptr::null_mut(), len: 0 };

    /// A buffer with a text, noted as one that C has.
    fn new(text: String) -> Self {
        let len = text.len();
        let mut bytes = text.into_bytes();
        bytes.push(0);
        let bytes: *mut [u8] = Box::into_raw(bytes.into_boxed_slice());
        let data = bytes.cast::<c_char>();
        let mut buffers = library().buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(data.addr(), len + 1);
        Self { data, len }
    }

    /// Frees the bytes.
    ///
    /// # Errors
    /// [`ErrorKind::StaleHandle`]: they are not of the library, or were freed.
    pub(crate) fn free(&mut self) -> Result<(), FfiError> {
        let Self { data, .. } = std::mem::replace(self, Self::EMPTY);
        if data.is_null() {
            return Ok(());
        }
        let known = library().buffers.lock().unwrap_or_else(PoisonError::into_inner).remove(&data.addr());
        let Some(len) = known else {
            return Err(FfiError::new(
                ErrorKind::StaleHandle,
                "the buffer is not of the library, or was freed",
            ));
        };
        // SAFETY: `new` has made a box of this address and length, and the entry that says so was there until now.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(data.cast::<u8>(), len)) });
        Ok(())
    }
}

/// A text of C.
///
/// # Errors
/// [`ErrorKind::NullPointer`], [`ErrorKind::NotUtf8`]; [`ErrorKind::OverLimit`]: no memory has so many bytes.
///
/// # Safety
/// Unless `data` is null, it points to `len` bytes that do not change while the text is used.
pub(crate) unsafe fn text<'a>(data: *const c_char, len: usize, name: &str) -> Result<&'a str, FfiError> {
    if len == 0 {
        return Ok("");
    }
    if data.is_null() {
        return Err(FfiError::new(ErrorKind::NullPointer, format!("{name} is NULL")).with_field(name));
    }
    if isize::try_from(len).is_err() {
        return Err(FfiError::over(ErrorKind::OverLimit, name, len as u64, isize::MAX as u64));
    }
    // SAFETY: it is not null, and the caller promises the rest.
    let bytes = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) };
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let mut failed =
            FfiError::new(ErrorKind::NotUtf8, format!("{name} is not UTF-8 at byte {at}")).with_field(name);
        failed.set_offset(at as u64);
        failed
    })
}

/// A record of C, as JSON. The empty text is an object without fields.
///
/// # Errors
/// As [`text`], and [`ErrorKind::NotJson`].
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn record<T: DeserializeOwned>(
    data: *const c_char,
    len: usize,
    name: &str,
) -> Result<T, FfiError> {
    // SAFETY: the caller promises it.
    let text = unsafe { text(data, len, name) }?;
    let text = if text.is_empty() { "{}" } else { text };
    serde_json::from_str(text).map_err(|error| FfiError::json(text, &error).with_field(name))
}

/// A place of C that receives a value.
pub(crate) struct Out<'a, T>(&'a mut T);

impl<'a, T> Out<'a, T> {
    /// # Errors
    /// [`ErrorKind::NullPointer`].
    ///
    /// # Safety
    /// Unless it is null, the pointer is valid for writes and used by nobody else during the call. It need not be initialised.
    pub(crate) unsafe fn new(place: *mut T, empty: T) -> Result<Self, FfiError> {
        if place.is_null() {
            return Err(FfiError::new(ErrorKind::NullPointer, "the pointer for the result is NULL"));
        }
        // SAFETY: it is not null, and the caller promises the rest.
        unsafe {
            place.write(empty);
            Ok(Self(&mut *place))
        }
    }

    pub(crate) fn set(self, value: T) {
        *self.0 = value;
    }
}

impl Out<'_, Buffer> {
    /// Gives a record as JSON.
    pub(crate) fn json(self, value: &impl Serialize) {
        // (Records are texts, numbers and lists of them.)
        self.set(Buffer::new(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())));
    }

    /// Gives a text.
    pub(crate) fn text(self, text: String) {
        self.set(Buffer::new(text));
    }
}
