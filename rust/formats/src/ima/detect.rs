//! Find out how a list is laid out, from its first records.
//!
//! Every layout is tried on the first records; the one under which most template hashes are right
//! wins, then the one under which most records can be read. So a list tells its byte order and its
//! bank itself, as far as it has an entry that is no violation.
use super::ascii;
use super::bank::{Bank, BankSet};
use super::hash::Digests;
use super::layout::{Format, KexecHeader, Layout, Options, KEXEC_HEADER_BYTES};
use super::limits::{DETECT_BYTES, DETECT_RECORDS, MAX_TEMPLATE_DATA_BYTES};
use super::record::{frame, is_zero, Parsed};
use super::template::{ByteOrder, Template};

/// A layout, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected {
    /// The layout.
    pub layout: Layout,
    /// Records looked at.
    pub records: usize,
    /// Of these, records whose template hash is right under the layout.
    pub verified: usize,
}

/// Result of a look at the input.
#[derive(Debug)]
pub(super) enum Answer {
    Found(Detected),
    More,
    Not(&'static str),
}

/// The layout, where the caller has said all of it.
pub(super) fn given(options: &Options) -> Option<Detected> {
    let (format, order, header_bank) = (options.format?, options.order?, options.header_bank?);
    let layout = Layout {
        format,
        order,
        header_bank,
        kexec: None,
    };
    Some(Detected {
        layout,
        records: 0,
        verified: 0,
    })
}

/// Whether data has the template hash; an all-zero hash (a violation) says nothing.
pub(super) fn hash_agrees(digests: &mut Digests, bank: Bank, hash: &[u8], data: &[u8]) -> bool {
    let mut set = BankSet::default();
    set.insert(bank);
    digests.compute(set, data);
    digests.get(bank) == hash
}

/// Find the layout of the list at the start of `input`.
pub(super) fn detect(input: &[u8], last: bool, options: &Options) -> Answer {
    let format = match options.format {
        Some(format) => format,
        None if input.len() < 64 && !last => return Answer::More,
        None if ascii::looks_like_head(input) => Format::Ascii,
        None => Format::Binary,
    };
    match format {
        Format::Ascii => detect_ascii(input, last, options),
        Format::Binary => detect_binary(input, last, options),
    }
}

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    verified: usize,
    known: usize,
    records: usize,
}

/// Best of the scored layouts; the earlier wins a draw.
#[derive(Default)]
struct Best(Option<(Score, Layout)>);

impl Best {
    fn offer(&mut self, score: Score, layout: Layout) {
        if self.0.is_none_or(|(best, _)| score > best) {
            self.0 = Some((score, layout));
        }
    }
}

fn detect_binary(input: &[u8], last: bool, options: &Options) -> Answer {
    let mut best = Best::default();
    let mut waiting = false;
    for order in ORDERS {
        let header = kexec_header(input, order).filter(|_| options.start_offset == 0);
        for kexec in [None, header]
            .into_iter()
            .skip(usize::from(header.is_none()))
            .rev()
        {
            for bank in Bank::ALL {
                if options.order.is_some_and(|given| given != order)
                    || options.header_bank.is_some_and(|given| given != bank)
                {
                    continue;
                }
                let layout = Layout {
                    format: Format::Binary,
                    order,
                    header_bank: bank,
                    kexec,
                };
                let (score, more) = score_binary(input, &layout);
                waiting |= more;
                best.offer(score, layout);
            }
        }
    }
    let enough = last || input.len() >= DETECT_BYTES;
    match best.0 {
        Some((score, layout)) if score.records > 0 => {
            if score.records < DETECT_RECORDS && !enough {
                return Answer::More;
            }
            found(score, layout)
        }
        _ if waiting && !last && input.len() < MAX_TEMPLATE_DATA_BYTES + DETECT_BYTES => {
            Answer::More
        }
        Some((_, layout)) if waiting => found(Score::default(), layout),
        _ if !enough => Answer::More,
        _ => Answer::Not("it is not an IMA measurement list: no layout fits its first record"),
    }
}

fn found(score: Score, layout: Layout) -> Answer {
    Answer::Found(Detected {
        layout,
        records: score.records,
        verified: score.verified,
    })
}

fn score_binary(input: &[u8], layout: &Layout) -> (Score, bool) {
    let mut score = Score::default();
    let mut at = if layout.kexec.is_some() {
        KEXEC_HEADER_BYTES
    } else {
        0
    };
    let (mut scratch, mut digests) = (Vec::new(), Digests::default());
    while score.records < DETECT_RECORDS {
        let rest = input.get(at..).unwrap_or(&[]);
        match frame(rest, layout.order, layout.header_bank.size(), b"") {
            Parsed::Whole(raw) => {
                let data = raw.body.hashed(&mut scratch);
                score.records += 1;
                let known = Template::from_name(raw.template_name) != Template::Unknown;
                score.known += usize::from(known);
                let bank = layout.header_bank;
                if hash_agrees(&mut digests, bank, raw.template_hash, data) {
                    score.verified += 1;
                }
                at = at.saturating_add(raw.size);
            }
            Parsed::More(..) => return (score, true),
            Parsed::Bad(..) => return (score, false),
        }
    }
    (score, false)
}

fn kexec_header(input: &[u8], order: ByteOrder) -> Option<KexecHeader> {
    let bytes: &[u8; KEXEC_HEADER_BYTES] = input.first_chunk()?;
    let version = match order {
        ByteOrder::Little => u16::from_le_bytes([bytes[0], bytes[1]]),
        ByteOrder::Big => u16::from_be_bytes([bytes[0], bytes[1]]),
    };
    let number = |at: usize| {
        let raw: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(match order {
            ByteOrder::Little => u64::from_le_bytes(raw),
            ByteOrder::Big => u64::from_be_bytes(raw),
        })
    };
    let (buffer_bytes, count) = (number(8)?, number(16)?);
    let plausible = version == 1
        && bytes[2..8].iter().all(|byte| *byte == 0)
        && buffer_bytes >= KEXEC_HEADER_BYTES as u64
        && count <= buffer_bytes;
    plausible.then_some(KexecHeader {
        buffer_bytes,
        count,
    })
}

fn detect_ascii(input: &[u8], last: bool, options: &Options) -> Answer {
    let lines: Vec<&[u8]> = input
        .split(|byte| *byte == b'\n')
        .take(DETECT_RECORDS)
        .collect();
    if lines.len() < DETECT_RECORDS && !last && input.len() < DETECT_BYTES {
        return Answer::More;
    }
    let digits = match lines.first().map(|line| ascii::parse_head(line)) {
        Some(Ok(head)) => head.hash_hex.len(),
        _ => return Answer::Not("it is not an IMA measurement list: its first line is no entry"),
    };
    let mut best = Best::default();
    for order in ORDERS {
        for bank in ascii::banks_of_hex(digits) {
            if options.order.is_some_and(|given| given != order)
                || options.header_bank.is_some_and(|given| given != *bank)
            {
                continue;
            }
            let layout = Layout {
                format: Format::Ascii,
                order,
                header_bank: *bank,
                kexec: None,
            };
            best.offer(score_ascii(&lines, &layout), layout);
        }
    }
    match best.0 {
        Some((score, layout)) => found(score, layout),
        None => Answer::Not("its template hashes are not of the bank that was named"),
    }
}

fn score_ascii(lines: &[&[u8]], layout: &Layout) -> Score {
    let mut score = Score::default();
    let (mut data, mut hash, mut digests) = (Vec::new(), Vec::new(), Digests::default());
    for line in lines {
        let Ok(head) = ascii::parse_head(line) else {
            continue;
        };
        score.records += 1;
        let template = Template::from_name(head.template_name);
        hash.clear();
        let nuls = ascii::XATTR_NULS[0];
        if ascii::unhex(head.hash_hex, &mut hash)
            && !is_zero(&hash)
            && ascii::rebuild(&template, head.fields, layout.order, nuls, &mut data)
            && hash_agrees(&mut digests, layout.header_bank, &hash, &data)
        {
            score.verified += 1;
        }
    }
    score
}
