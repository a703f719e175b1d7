//! Limits of the readers. No reader recurses, and each does work in proportion to the length of a file: a limit below
//! bounds what would otherwise grow faster. What lies behind a limit is left out, and the report names it
//! ([`SkipReason::Limit`](crate::notes::SkipReason::Limit)).

/// Maximum units (messages, events) of a file.
pub(super) const UNITS_MAX: usize = 1 << 18;

/// Maximum length of the text that is made of a file whose text is not its bytes, in bytes. A table repeats its names in each row, and
/// a packed file may have a thousand times its length.
pub(super) const TEXT_BYTES_MAX: usize = 32 << 20;

/// Maximum length of a name of a column or of a key, in bytes. It is repeated for each value.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Maximum length of a row of a table with quoted line ends, in bytes. A quote that does not end until there is a character.
pub(super) const ROW_BYTES_MAX: usize = 1 << 20;

/// Maximum number of cells of a row. Spreadsheets have as many columns. What stands behind is a part of the last cell.
pub(super) const CELLS_MAX: usize = 1 << 14;

/// Maximum length of what the parts of a file unpack to, together, in bytes. The text of a long book has five million.
pub(super) const UNPACKED_BYTES_MAX: usize = 32 << 20;

/// Maximum number of files in an archive.
pub(super) const ARCHIVE_ENTRIES_MAX: usize = 10_000;

/// Maximum length of the name of a file in an archive, in bytes. Longer ones are not looked for.
pub(super) const ARCHIVE_NAME_BYTES_MAX: usize = 1024;

/// Maximum number of chapters of a book.
pub(super) const CHAPTERS_MAX: usize = 5000;

/// Maximum length of what the streams of a PDF unpack to, together, in bytes. Drawings count too.
pub(super) const PDF_UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Maximum number of objects of a PDF.
pub(super) const PDF_OBJECTS_MAX: usize = 1 << 20;

/// Maximum number of values of an object of a PDF, and their depth. Other objects count as empty.
pub(super) const PDF_VALUES_MAX: usize = 1 << 18;
pub(super) const PDF_DEPTH_MAX: usize = 64;

/// Maximum number of pages of a PDF.
pub(super) const PDF_PAGES_MAX: usize = 20_000;

/// Maximum number of forms that the pages of a PDF show, and their depth. Further ones are not shown.
pub(super) const PDF_FORMS_MAX: usize = 20_000;
pub(super) const PDF_FORM_DEPTH_MAX: usize = 8;

/// Maximum depth of saved states in a page of a PDF.
pub(super) const PDF_STATES_MAX: usize = 256;

/// Maximum number of codes of all fonts of a PDF, and length of the text of one in units of UTF-16.
pub(super) const PDF_CODES_MAX: usize = 1 << 19;
pub(super) const PDF_CODE_CHARS_MAX: usize = 16;

/// Maximum depth of values in JSON.
pub(super) const JSON_DEPTH_MAX: usize = 128;

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
