//! Limits of the readers. No reader recurses, and each does work in proportion to the length of a file: a limit below
//! bounds what would otherwise grow faster. What lies behind a limit is left out, and the report names it
//! ([`SkipReason::Limit`](crate::notes::SkipReason::Limit)).

/// Maximum units (messages, events) of a file.
pub(super) const UNITS_MAX: usize = 1 << 18;

/// Maximum depth of parts and messages in a message. Each level is read once more, and forwarded mail has a few.
pub(super) const MAIL_DEPTH_MAX: usize = 16;

/// Maximum parts of a message, at all depths. A digest of a mailing list has a hundred.
pub(super) const MAIL_PARTS_MAX: usize = 1000;

/// Length of the start of a `Content-Type`, `Content-Disposition` or `Date` that is read, in bytes. The parser compares each
/// parameter with all before it.
pub(super) const MAIL_FIELD_BYTES_MAX: usize = 1024;

/// Maximum length of an encoded word in a header, in bytes. RFC 2047 allows 75.
pub(super) const MAIL_WORD_BYTES_MAX: usize = 1024;

/// Maximum length of a boundary of parts, in bytes. RFC 2046 allows 70.
pub(super) const MAIL_BOUNDARY_BYTES_MAX: usize = 200;

/// Maximum values of one property of an event, such as its attendees.
pub(super) const EVENT_VALUES_MAX: usize = 1000;

/// Maximum elements of a screen. A screen has a few hundred; each takes about 100 bytes of memory while it is read.
pub(super) const XML_NODES_MAX: u32 = 100_000;

/// Maximum attributes of an element. The parser compares each with all before it.
pub(super) const XML_ATTRIBUTES_MAX: usize = 256;

/// Maximum prefixes of namespaces in a file. The parser copies those of an element to each element in it, and compares
/// each with all.
pub(super) const XML_PREFIXES_MAX: usize = 64;

/// Maximum texts of an element.
pub(super) const XML_TEXTS_MAX: usize = 64;
