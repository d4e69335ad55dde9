//! Entries taken apart into the values that a policy or a reader looks at.
use super::bank::BankSet;
use super::hash::Digests;
use super::layout::Layout;
use super::record::Record;
use super::template::{until_nul, Field, FieldFault, FileDigest};

/// An entry's values; borrowed from the input.
#[derive(Clone, Debug, Default)]
pub struct Row<'a> {
    /// The file digest; empty where the template has none.
    pub digest: FileDigest<'a>,
    /// The event name, without its NUL; `None` where the template has none.
    pub name: Option<&'a [u8]>,
    /// The file signature; `None` where the template has none, empty where the file has none.
    pub signature: Option<&'a [u8]>,
    /// The measured buffer; `None` where the template has none.
    pub buf: Option<&'a [u8]>,
    /// The other fields, in their order.
    pub others: Vec<(Field, &'a [u8])>,
    /// Whether the template hash is that of the data; `None` for violations and unknown data.
    pub hash_matches: Option<bool>,
    /// The first field that contradicts the template.
    pub fault: Option<FieldFault>,
}

/// Take an entry apart, and compare its template hash.
#[must_use]
pub fn row_of<'a>(record: &Record<'a>, layout: &Layout, digests: &mut Digests) -> Row<'a> {
    let mut row = fields_of(record, layout);
    row.compare_hash(record, layout, digests);
    row
}

/// Take an entry apart; its template hash is not looked at.
#[inline]
#[must_use]
pub fn fields_of<'a>(record: &Record<'a>, layout: &Layout) -> Row<'a> {
    let mut row = Row::default();
    let Some(data) = record.data else { return row };
    let mut fault = None;
    let walked = record
        .template
        .walk(layout.order, data, |field, value| match field {
            Field::D | Field::DNg | Field::DNgV2 => match FileDigest::parse(field, value) {
                Ok(digest) => row.digest = digest,
                Err(found) => fault = fault.or(Some(found)),
            },
            Field::N | Field::NNg => row.name = Some(until_nul(value)),
            Field::Sig => row.signature = Some(value),
            Field::Buf => row.buf = Some(value),
            other => row.others.push((other, value)),
        });
    row.fault = walked.err().or(fault);
    row
}

impl Row<'_> {
    /// Note whether the template hash is that of the data.
    pub fn compare_hash(&mut self, record: &Record<'_>, layout: &Layout, digests: &mut Digests) {
        let Some(data) = record.data else { return };
        if !record.is_violation() {
            let mut wanted = BankSet::default();
            wanted.insert(layout.header_bank);
            digests.compute(wanted, data);
            self.hash_matches = Some(digests.get(layout.header_bank) == record.template_hash);
        }
    }
}
