//! What a list may contain before it is refused: bounds on every length a record announces.

/// Highest PCR index: IMA keeps the measured PCRs of an inode in one 64-bit mask.
pub const MAX_PCR_INDEX: u32 = 63;
/// Longest template name or format string, in bytes.
pub const MAX_TEMPLATE_NAME_BYTES: usize = 255;
/// Longest event name of the old `ima` template, in bytes (`IMA_EVENT_NAME_LEN_MAX`).
pub const MAX_EVENT_NAME_BYTES: usize = 255;
/// Longest template data of one record, in bytes; buffers measured into `ima-buf` are the longest.
pub const MAX_TEMPLATE_DATA_BYTES: usize = 16 << 20;
/// Longest line of an ascii list, in bytes (two hex digits for each byte, and the head).
pub const MAX_LINE_BYTES: usize = 2 * MAX_TEMPLATE_DATA_BYTES + 4096;
/// Most line breaks that a file name in an ascii list may contain.
pub const MAX_NAME_LINES: usize = 64;
/// Fields in one template.
pub const MAX_FIELDS: usize = 32;
/// Records looked at to find the byte order and the header's bank.
pub const DETECT_RECORDS: usize = 16;
/// Bytes after which the layout is decided on what has been seen.
pub const DETECT_BYTES: usize = 1 << 16;
/// Findings of one kind listed in full; more are only counted.
pub const MAX_LISTED: usize = 1000;
/// Different template names counted apart.
pub const MAX_TEMPLATES: usize = 64;
