//! Templates: which fields a record's data holds, and how to walk them.
//!
//! Names and order of the fields are those of Linux, `security/integrity/ima/ima_template.c`. A
//! record of an unknown template is still replayed, since its data is hashed as it stands.
use super::bank::Bank;
use super::limits::MAX_FIELDS;

/// Byte order of the integers in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Little-endian: x86, ARM, or any machine booted with `ima_canonical_fmt`.
    Little,
    /// Big-endian: the native order of s390x and big-endian POWER.
    Big,
}

impl ByteOrder {
    /// `little` or `big`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ByteOrder::Little => "little",
            ByteOrder::Big => "big",
        }
    }

    /// Read a 32-bit integer at a position, if the bytes are there.
    #[inline]
    #[must_use]
    pub fn u32_at(self, data: &[u8], at: usize) -> Option<u32> {
        let bytes = data.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(match self {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        })
    }

    /// The four bytes of a 32-bit integer.
    #[inline]
    #[must_use]
    pub const fn u32_bytes(self, value: u32) -> [u8; 4] {
        match self {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }
}

/// One field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `d`: a bare SHA-1 or MD5 file digest.
    D,
    /// `n`: event name.
    N,
    /// `d-ng`: `algorithm:` NUL digest.
    DNg,
    /// `d-ngv2`: `type:algorithm:` NUL digest.
    DNgV2,
    /// `n-ng`: event name of any length.
    NNg,
    /// `sig`: the file signature, `security.ima`.
    Sig,
    /// `buf`: a measured buffer.
    Buf,
    /// `d-modsig`: digest without the appended signature.
    DModsig,
    /// `modsig`: the appended signature, PKCS#7.
    Modsig,
    /// `evmsig`: the EVM portable signature.
    EvmSig,
    /// `iuid`: owner of the inode.
    IUid,
    /// `igid`: group of the inode.
    IGid,
    /// `imode`: mode of the inode.
    IMode,
    /// `xattrnames`: names of the protected extended attributes.
    XattrNames,
    /// `xattrlengths`: their lengths, 32 bits each.
    XattrLengths,
    /// `xattrvalues`: their values, one after another.
    XattrValues,
}

impl Field {
    /// Every field with its kernel identifier.
    pub const ALL: [(Field, &'static str); 16] = [
        (Field::D, "d"),
        (Field::N, "n"),
        (Field::DNg, "d-ng"),
        (Field::DNgV2, "d-ngv2"),
        (Field::NNg, "n-ng"),
        (Field::Sig, "sig"),
        (Field::Buf, "buf"),
        (Field::DModsig, "d-modsig"),
        (Field::Modsig, "modsig"),
        (Field::EvmSig, "evmsig"),
        (Field::IUid, "iuid"),
        (Field::IGid, "igid"),
        (Field::IMode, "imode"),
        (Field::XattrNames, "xattrnames"),
        (Field::XattrLengths, "xattrlengths"),
        (Field::XattrValues, "xattrvalues"),
    ];

    /// The kernel's identifier of the field.
    #[must_use]
    pub fn id(self) -> &'static str {
        Field::ALL
            .iter()
            .find(|(field, _)| *field == self)
            .map_or("", |(_, id)| id)
    }

    fn from_id(id: &[u8]) -> Option<Field> {
        Field::ALL
            .iter()
            .find(|(_, known)| known.as_bytes() == id)
            .map(|(field, _)| *field)
    }

    /// Whether the field is the file digest that the template is about.
    #[must_use]
    pub const fn is_digest(self) -> bool {
        matches!(self, Field::D | Field::DNg | Field::DNgV2)
    }

    /// Whether the field is the event name.
    #[must_use]
    pub const fn is_name(self) -> bool {
        matches!(self, Field::N | Field::NNg)
    }

    /// Whether the field is text that ascii lists print without escaping.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Field::N | Field::NNg | Field::XattrNames)
    }
}

/// A template as named in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// The old `ima` template: no lengths, name padded with zeros to 256 bytes before hashing.
    Ima,
    /// A template with these fields, each with a 32-bit length.
    Fields(Vec<Field>),
    /// A name that says nothing about the data.
    Unknown,
}

/// Bytes of the digest in the old `ima` template.
pub const IMA_DIGEST_BYTES: usize = 20;
/// Bytes of the event name in the hashed data of the old `ima` template.
pub const IMA_NAME_BYTES: usize = 256;

impl Template {
    /// The template of that name: a built-in one, or a format string such as `d-ng|n-ng|sig`.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Template {
        use Field::{
            Buf, DModsig, DNg, DNgV2, EvmSig, IGid, IMode, IUid, Modsig, NNg, Sig, XattrLengths,
            XattrNames, XattrValues,
        };
        let fields: &[Field] = match name {
            b"ima" => return Template::Ima,
            b"ima-ng" => &[DNg, NNg],
            b"ima-sig" => &[DNg, NNg, Sig],
            b"ima-ngv2" => &[DNgV2, NNg],
            b"ima-sigv2" => &[DNgV2, NNg, Sig],
            b"ima-buf" => &[DNg, NNg, Buf],
            b"ima-modsig" => &[DNg, NNg, Sig, DModsig, Modsig],
            b"evm-sig" => &[
                DNg,
                NNg,
                EvmSig,
                XattrNames,
                XattrLengths,
                XattrValues,
                IUid,
                IGid,
                IMode,
            ],
            _ => return Template::from_format(name),
        };
        Template::Fields(fields.to_vec())
    }

    fn from_format(format: &[u8]) -> Template {
        let mut fields = Vec::new();
        for id in format.split(|byte| *byte == b'|') {
            match Field::from_id(id) {
                Some(field) if fields.len() < MAX_FIELDS => fields.push(field),
                _ => return Template::Unknown,
            }
        }
        Template::Fields(fields)
    }

    /// Walk the fields in a record's data; what does not fit the template is the error.
    ///
    /// # Errors
    ///
    /// The field at fault and why, when lengths and data disagree.
    #[inline]
    pub fn walk<'a>(
        &self,
        order: ByteOrder,
        data: &'a [u8],
        mut visit: impl FnMut(Field, &'a [u8]),
    ) -> Result<(), FieldFault> {
        match self {
            Template::Unknown => Ok(()),
            Template::Ima => {
                let (digest, name) = data.split_at_checked(IMA_DIGEST_BYTES).ok_or(FieldFault {
                    field: "d",
                    reason: "shorter than a digest",
                })?;
                visit(Field::D, digest);
                visit(Field::N, until_nul(name));
                Ok(())
            }
            Template::Fields(fields) => {
                let mut at = 0usize;
                for field in fields {
                    let fault = |reason| FieldFault {
                        field: field.id(),
                        reason,
                    };
                    let length = order
                        .u32_at(data, at)
                        .ok_or(fault("its length is cut off"))?;
                    at = at.saturating_add(4);
                    let end = at.saturating_add(length as usize);
                    let value = data.get(at..end).ok_or(fault("it ends beyond the data"))?;
                    visit(*field, value);
                    at = end;
                }
                if at == data.len() {
                    Ok(())
                } else {
                    Err(FieldFault {
                        field: "data",
                        reason: "bytes are left after the last field",
                    })
                }
            }
        }
    }
}

/// A field that contradicts its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// Identifier of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// The bytes before the first NUL.
#[must_use]
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or(bytes)
}

/// A file digest taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileDigest<'a> {
    /// `ima` or `verity` in the v2 form; empty otherwise.
    pub kind: &'a [u8],
    /// Name of the hash algorithm; empty in the field `d`.
    pub algorithm: &'a [u8],
    /// The digest.
    pub digest: &'a [u8],
}

impl<'a> FileDigest<'a> {
    /// Take a digest field apart: `d`, `d-ng`, `d-ngv2` or `d-modsig`.
    ///
    /// # Errors
    ///
    /// When a `:` and NUL do not stand before the digest, or the digest's length is not the
    /// algorithm's. A violation carries zeros whose number differs between kernels; any number of
    /// zeros is accepted there.
    pub fn parse(field: Field, value: &'a [u8]) -> Result<Self, FieldFault> {
        let fault = |reason| FieldFault {
            field: field.id(),
            reason,
        };
        if field == Field::D {
            return Ok(FileDigest {
                digest: value,
                ..FileDigest::default()
            });
        }
        let nul = value
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(fault("no NUL after its name"))?;
        let (head, rest) = value.split_at_checked(nul).ok_or(fault("it is cut off"))?;
        let digest = rest.get(1..).unwrap_or(&[]);
        let head = head
            .strip_suffix(b":")
            .ok_or(fault("no ':' after its algorithm"))?;
        let (kind, algorithm) = match head.iter().position(|byte| *byte == b':') {
            Some(colon) if field == Field::DNgV2 => (
                head.get(..colon).unwrap_or(&[]),
                head.get(colon + 1..).unwrap_or(&[]),
            ),
            None if field == Field::DNgV2 => return Err(fault("no type before its algorithm")),
            _ => (&[][..], head),
        };
        let size = digest_bytes(algorithm);
        if size.is_some_and(|size| size != digest.len()) && digest.iter().any(|byte| *byte != 0) {
            return Err(fault("its length is not that of its algorithm"));
        }
        Ok(FileDigest {
            kind,
            algorithm,
            digest,
        })
    }
}

/// Bytes of a digest of the named algorithm (names as in the kernel's `hash_algo_name`).
#[must_use]
pub fn digest_bytes(algorithm: &[u8]) -> Option<usize> {
    Some(match algorithm {
        b"md4" | b"md5" | b"rmd128" | b"tgr128" => 16,
        b"sha1" | b"rmd160" | b"tgr160" => 20,
        b"tgr192" => 24,
        b"sha224" => 28,
        b"sha256" | b"sm3" | b"sm3-256" | b"rmd256" | b"streebog256" | b"sha3-256" | b"wp256" => 32,
        b"rmd320" => 40,
        b"sha384" | b"sha3-384" | b"wp384" => 48,
        b"sha512" | b"sha3-512" | b"wp512" | b"streebog512" => 64,
        _ => return None,
    })
}

/// The bank whose digests a file digest's algorithm makes, if any.
#[must_use]
pub fn bank_of(algorithm: &[u8]) -> Option<Bank> {
    std::str::from_utf8(algorithm)
        .ok()
        .and_then(Bank::from_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_strings_name_their_fields() {
        assert_eq!(
            Template::from_name(b"n-ng|sig|d-ng"),
            Template::Fields(vec![Field::NNg, Field::Sig, Field::DNg])
        );
        assert_eq!(
            Template::from_name(b"sig"),
            Template::Fields(vec![Field::Sig])
        );
        assert_eq!(Template::from_name(b"ima-cgpath"), Template::Unknown);
        assert_eq!(Template::from_name(b""), Template::Unknown);
    }

    #[test]
    fn a_length_beyond_the_data_is_a_fault_of_its_field() {
        let template = Template::from_name(b"d-ng|n-ng");
        let data = [2, 0, 0, 0, b'a', b'b', 9, 0, 0, 0, b'x'];
        let fault = template.walk(ByteOrder::Little, &data, |_, _| ());
        assert_eq!(
            fault,
            Err(FieldFault {
                field: "n-ng",
                reason: "it ends beyond the data"
            })
        );
    }

    #[test]
    fn file_digests_are_taken_apart() {
        let value = [b"verity:sha256:\0".as_slice(), &[7; 32]].concat();
        let digest = FileDigest::parse(Field::DNgV2, &value);
        let expected = FileDigest {
            kind: b"verity",
            algorithm: b"sha256",
            digest: &[7; 32],
        };
        assert_eq!(digest, Ok(expected));
        let short = [b"sha256:\0".as_slice(), &[7; 31]].concat();
        assert!(FileDigest::parse(Field::DNg, &short).is_err());
        let zeros = [b"sha256:\0".as_slice(), &[0; 20]].concat();
        assert!(FileDigest::parse(Field::DNg, &zeros).is_ok());
    }
}
