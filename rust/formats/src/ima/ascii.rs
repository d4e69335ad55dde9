//! Lines of ascii lists, and the template data rebuilt from them.
//!
//! A line is: PCR index, template hash in hex, template name, and the fields, each after one space.
//! The kernel prints names unescaped, so a line break in a file name splits its line, and it has
//! already turned spaces in names into `_`: the binary list is the unambiguous one. What a line
//! says is turned back into the bytes that were hashed; lengths take the list's byte order.
//! Source: Linux, `ima_fs.c` (`ima_ascii_measurements_show`) and `ima_template_lib.c`.
use memchr::memchr;

use super::bank::Bank;
use super::limits::{MAX_EVENT_NAME_BYTES, MAX_FIELDS, MAX_PCR_INDEX, MAX_TEMPLATE_NAME_BYTES};
use super::record::ima_data;
use super::template::{ByteOrder, Field, Template, IMA_DIGEST_BYTES};

/// The part of a line before its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub pcr: u32,
    pub hash_hex: &'a [u8],
    pub template_name: &'a [u8],
    /// Text of the fields, after the space; `None` where the line ends at the name.
    pub fields: Option<&'a [u8]>,
}

/// A line that is no entry: distance of the fault, field and reason.
pub(super) type LineFault = (usize, &'static str, &'static str);

/// Most bytes before the template name: two for the PCR, two spaces and 128 hex digits.
pub(super) const HEAD_BYTES: usize = 2 + 1 + 128 + 1;

const fn nibble(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ => 0xff,
    }
}

static NIBBLES: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = nibble(byte as u8);
        byte += 1;
    }
    table
};

#[inline]
fn value_of(byte: u8) -> u8 {
    NIBBLES.get(byte as usize).copied().unwrap_or(0xff)
}

/// Append the bytes of hex text; false when it is not hex of whole bytes.
#[inline]
pub(super) fn unhex(text: &[u8], out: &mut Vec<u8>) -> bool {
    let mut bad = text.len() & 1 != 0;
    out.extend(text.chunks_exact(2).map(|pair| {
        let (high, low) = match *pair {
            [high, low] => (value_of(high), value_of(low)),
            _ => (0xff, 0xff),
        };
        bad |= (high | low) > 15;
        (high << 4) | (low & 15)
    }));
    !bad
}

/// Banks whose digests take that many hex digits.
pub(super) fn banks_of_hex(digits: usize) -> &'static [Bank] {
    match digits {
        40 => &[Bank::Sha1],
        64 => &[Bank::Sha256, Bank::Sm3],
        96 => &[Bank::Sha384],
        128 => &[Bank::Sha512],
        _ => &[],
    }
}

/// Whether text begins like an entry: PCR, space, as many hex digits as any bank has, space.
#[inline]
pub(super) fn looks_like_head(text: &[u8]) -> bool {
    let Some(hash_at) = hash_position(text) else {
        return false;
    };
    let Some(rest) = text.get(hash_at..) else {
        return false;
    };
    let window = rest.get(..129).unwrap_or(rest);
    memchr(b' ', window).is_some_and(|digits| {
        !banks_of_hex(digits).is_empty()
            && rest
                .get(..digits)
                .is_some_and(|hex| hex.iter().all(|b| value_of(*b) < 16))
    })
}

/// Where the hash begins, when a PCR index of one or two digits stands before it.
#[inline]
fn hash_position(text: &[u8]) -> Option<usize> {
    match *text {
        [b'0'..=b'9', b'0'..=b'9', b' ', ..] | [b' ', b'0'..=b'9', b' ', ..] => Some(3),
        [b'0'..=b'9', b' ', ..] => Some(2),
        _ => None,
    }
}

/// Take the head of a line apart.
#[inline]
pub(super) fn parse_head(line: &[u8]) -> Result<Head<'_>, LineFault> {
    let hash_at = hash_position(line).ok_or((0, "pcr", "the line does not begin with an index"))?;
    let pcr = line
        .iter()
        .take(hash_at - 1)
        .filter(|byte| byte.is_ascii_digit())
        .fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    if pcr > MAX_PCR_INDEX {
        return Err((0, "pcr", "it is not a PCR index"));
    }
    let rest = line.get(hash_at..).unwrap_or(&[]);
    let digits = memchr(b' ', rest).ok_or((hash_at, "template-hash", "nothing follows it"))?;
    let hash_hex = rest.get(..digits).unwrap_or(&[]);
    if banks_of_hex(digits).is_empty() {
        return Err((
            hash_at,
            "template-hash",
            "no bank has digests of that length",
        ));
    }
    let name_at = hash_at + digits + 1;
    let rest = line.get(name_at..).unwrap_or(&[]);
    let (template_name, fields) = match memchr(b' ', rest) {
        Some(space) => (rest.get(..space).unwrap_or(&[]), rest.get(space + 1..)),
        None => (rest, None),
    };
    if template_name.is_empty() || template_name.len() > MAX_TEMPLATE_NAME_BYTES {
        return Err((name_at, "template-name", "no template has such a name"));
    }
    if template_name.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err((name_at, "template-name", "it is not printable text"));
    }
    Ok(Head {
        pcr,
        hash_hex,
        template_name,
        fields,
    })
}

/// NULs after `xattrnames`: kernels count the terminator once or twice.
pub(super) const XATTR_NULS: [usize; 3] = [1, 2, 0];

/// Append the template data that a line's fields stand for; false when they do not determine it.
pub(super) fn rebuild(
    template: &Template,
    fields: Option<&[u8]>,
    order: ByteOrder,
    xattr_nuls: usize,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    match template {
        Template::Unknown => false,
        Template::Ima => {
            let text = fields.unwrap_or(&[]);
            let split = memchr(b' ', text).unwrap_or(text.len());
            let name = text.get(split.saturating_add(1)..).unwrap_or(&[]);
            let mut digest = Vec::with_capacity(IMA_DIGEST_BYTES);
            if !unhex(text.get(..split).unwrap_or(&[]), &mut digest)
                || digest.len() != IMA_DIGEST_BYTES
                || name.len() > MAX_EVENT_NAME_BYTES
            {
                return false;
            }
            ima_data(&digest, name, out);
            true
        }
        Template::Fields(kinds) => {
            let mut values = [&[][..]; MAX_FIELDS];
            let Some(values) = values.get_mut(..kinds.len()) else {
                return false;
            };
            split_fields(kinds, fields.unwrap_or(&[]), values)
                && kinds
                    .iter()
                    .zip(values)
                    .all(|(field, text)| put_field(*field, text, order, xattr_nuls, out))
        }
    }
}

/// Give each field its text; spaces beyond the separators belong to the first name.
#[inline]
fn split_fields<'a>(kinds: &[Field], text: &'a [u8], values: &mut [&'a [u8]]) -> bool {
    let name = kinds
        .iter()
        .position(|field| field.is_text())
        .unwrap_or(kinds.len());
    let mut rest = text;
    for value in values.iter_mut().take(name) {
        (*value, rest) = cut(rest, memchr(b' ', rest));
    }
    for value in values.iter_mut().skip(name.saturating_add(1)).rev() {
        // From the right: a text without enough separators has lost its empty last fields.
        let (before, after) = match memchr::memrchr(b' ', rest) {
            Some(at) => (rest.get(..at), rest.get(at + 1..)),
            None => (Some(rest), Some(&[][..])),
        };
        *value = after.unwrap_or(&[]);
        rest = before.unwrap_or(&[]);
    }
    if let Some(value) = values.get_mut(name) {
        *value = rest;
        return true;
    }
    rest.is_empty()
}

#[inline]
fn cut(text: &[u8], at: Option<usize>) -> (&[u8], &[u8]) {
    let at = at.unwrap_or(text.len());
    (
        text.get(..at).unwrap_or(&[]),
        text.get(at.saturating_add(1)..).unwrap_or(&[]),
    )
}

#[inline]
fn put_field(
    field: Field,
    text: &[u8],
    order: ByteOrder,
    xattr_nuls: usize,
    out: &mut Vec<u8>,
) -> bool {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let good = match field {
        Field::NNg | Field::N => {
            out.extend_from_slice(text);
            out.push(0);
            true
        }
        Field::XattrNames => {
            out.extend_from_slice(text);
            let nuls = if text.is_empty() { 0 } else { xattr_nuls };
            out.extend(std::iter::repeat_n(0, nuls));
            true
        }
        Field::DNg | Field::DNgV2 | Field::DModsig => put_digest(text, out),
        Field::IUid | Field::IGid | Field::IMode => put_number(field, text, order, out),
        Field::D
        | Field::Sig
        | Field::Buf
        | Field::Modsig
        | Field::EvmSig
        | Field::XattrLengths
        | Field::XattrValues => unhex(text, out),
    };
    let length = out.len().saturating_sub(at).saturating_sub(4);
    if let (Some(to), Ok(length)) = (out.get_mut(at..at + 4), u32::try_from(length)) {
        to.copy_from_slice(&order.u32_bytes(length));
    }
    good
}

#[inline]
fn put_digest(text: &[u8], out: &mut Vec<u8>) -> bool {
    if text.is_empty() {
        return true;
    }
    let Some(colon) = memchr::memrchr(b':', text) else {
        return false;
    };
    let (head, hex) = text.split_at(colon + 1);
    out.extend_from_slice(head);
    out.push(0);
    unhex(hex, out)
}

fn put_number(field: Field, text: &[u8], order: ByteOrder, out: &mut Vec<u8>) -> bool {
    if text.is_empty() {
        return true;
    }
    let number: Option<u32> = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    match (number, field, order) {
        (None, _, _) => return false,
        (Some(number), Field::IMode, order) => {
            let Ok(mode) = u16::try_from(number) else {
                return false;
            };
            out.extend_from_slice(&match order {
                ByteOrder::Little => mode.to_le_bytes(),
                ByteOrder::Big => mode.to_be_bytes(),
            });
        }
        (Some(number), _, order) => out.extend_from_slice(&order.u32_bytes(number)),
    }
    true
}
