//! Cut a list, given in pieces, into records.
use memchr::memchr;

use super::ascii;
use super::detect::{self, Detected};
use super::hash::Digests;
use super::layout::{Format, Layout, Options, KEXEC_HEADER_BYTES};
use super::limits::{MAX_LINE_BYTES, MAX_NAME_LINES, MAX_TEMPLATES};
use super::record::{self, Fault, Parsed, Record};
use super::template::{Field, Template};

/// What the framer found.
#[derive(Debug)]
pub enum Step<'a> {
    /// The next record.
    Record(Record<'a>),
    /// More input is needed.
    More,
    /// The end: of the input, or of what can be read (see [`Framer::fault`]).
    End,
}

/// What the start of the input tells of its layout.
#[derive(Debug)]
pub enum Found {
    /// The layout.
    Layout(Layout),
    /// More input is needed.
    More,
    /// The input is empty, or no list (see [`Framer::fault`]).
    Nothing,
}

/// Cuts input into records; keeps no input.
#[derive(Debug)]
pub struct Framer {
    options: Options,
    detected: Option<Detected>,
    detect_at_bytes: usize,
    offset: u64,
    line: u64,
    index: u64,
    fault: Option<Fault>,
    names: Vec<(Vec<u8>, Template)>,
    current: usize,
    hash: Vec<u8>,
    data: Vec<u8>,
    digests: Digests,
}

impl Framer {
    /// A framer at the start of its input.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Framer {
            detected: detect::given(&options),
            detect_at_bytes: 0,
            offset: options.start_offset,
            line: options.start_line.max(1),
            index: options.start_index,
            fault: None,
            names: Vec::new(),
            current: 0,
            hash: Vec::new(),
            data: Vec::new(),
            digests: Digests::default(),
            options,
        }
    }

    /// The layout, once known, and what it rests on.
    #[must_use]
    pub fn detected(&self) -> Option<&Detected> {
        self.detected.as_ref()
    }

    /// Why reading stopped, when it did.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Offset after the last record that was handed out.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Position in the list of the next record.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Line of the next record.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Template names seen, by slot.
    #[must_use]
    pub fn template_name(&self, slot: usize) -> Option<&[u8]> {
        self.names.get(slot).map(|(name, _)| name.as_slice())
    }

    /// Take the next record from `input` at `pos`, and move `pos` past it; the layout is known.
    ///
    /// `input` is what was not consumed yet, from the framer's offset on; `last` says that nothing
    /// follows it.
    #[inline]
    pub fn step<'a>(&'a mut self, input: &'a [u8], pos: &mut usize, last: bool) -> Step<'a> {
        if self.fault.is_some() {
            return Step::End;
        }
        let Some(detected) = self.detected else {
            return Step::End;
        };
        let rest = input.get(*pos..).unwrap_or(&[]);
        match detected.layout.format {
            Format::Binary => self.binary(&detected.layout, rest, pos, last),
            Format::Ascii => self.ascii(&detected.layout, rest, pos, last),
        }
    }

    /// Find out the layout from the start of the input; move `pos` past a kexec header.
    pub fn find_layout(&mut self, input: &[u8], pos: &mut usize, last: bool) -> Found {
        if let Some(detected) = self.detected {
            return Found::Layout(detected.layout);
        }
        let rest = input.get(*pos..).unwrap_or(&[]);
        if rest.is_empty() || (!last && rest.len() < self.detect_at_bytes) {
            return if last { Found::Nothing } else { Found::More };
        }
        match detect::detect(rest, last, &self.options) {
            detect::Answer::Found(detected) => {
                self.detected = Some(detected);
                if detected.layout.kexec.is_some() {
                    *pos = pos.saturating_add(KEXEC_HEADER_BYTES);
                    self.offset = self.offset.saturating_add(KEXEC_HEADER_BYTES as u64);
                }
                Found::Layout(detected.layout)
            }
            detect::Answer::More => {
                self.detect_at_bytes = rest.len().saturating_mul(2);
                Found::More
            }
            detect::Answer::Not(reason) => {
                self.fault = Some(Fault {
                    record_offset: self.offset,
                    offset: self.offset,
                    line: 0,
                    field: "list",
                    reason,
                    truncated: false,
                });
                Found::Nothing
            }
        }
    }

    fn fail(&mut self, at: usize, field: &'static str, reason: &'static str, truncated: bool) {
        let ascii = self
            .detected
            .is_some_and(|d| d.layout.format == Format::Ascii);
        self.fault = Some(Fault {
            record_offset: self.offset,
            offset: self.offset.saturating_add(at as u64),
            line: if ascii { self.line } else { 0 },
            field,
            reason,
            truncated,
        });
    }

    /// The slot of a template name; names beyond the limit share the last slot.
    #[inline]
    fn slot(&mut self, name: &[u8]) -> usize {
        if self
            .names
            .get(self.current)
            .is_some_and(|(known, _)| known == name)
        {
            return self.current;
        }
        self.find_slot(name)
    }

    fn find_slot(&mut self, name: &[u8]) -> usize {
        let found = self.names.iter().position(|(known, _)| known == name);
        self.current = match found {
            Some(slot) => slot,
            None => {
                self.names.truncate(MAX_TEMPLATES - 1);
                self.names.push((name.to_vec(), Template::from_name(name)));
                self.names.len() - 1
            }
        };
        self.current
    }

    #[inline]
    fn binary<'a>(
        &'a mut self,
        layout: &Layout,
        rest: &'a [u8],
        pos: &mut usize,
        last: bool,
    ) -> Step<'a> {
        let done = layout.kexec.is_some_and(|header| {
            self.offset
                >= self
                    .options
                    .start_offset
                    .saturating_add(header.buffer_bytes)
        });
        if rest.is_empty() || done {
            return if last || done { Step::End } else { Step::More };
        }
        let known = self
            .names
            .get(self.current)
            .map_or(&[][..], |(name, _)| name);
        let raw = match record::frame(rest, layout.order, layout.header_bank.size(), known) {
            Parsed::Whole(raw) => raw,
            Parsed::More(field, at) => {
                if last {
                    self.fail(at, field, "the list ends inside this field", true);
                    return Step::End;
                }
                return Step::More;
            }
            Parsed::Bad(at, field, reason) => {
                self.fail(at, field, reason, false);
                return Step::End;
            }
        };
        let slot = if raw.name_known {
            self.current
        } else {
            self.find_slot(raw.template_name)
        };
        let (index, offset) = (self.index, self.offset);
        self.index = index.saturating_add(1);
        self.offset = offset.saturating_add(raw.size as u64);
        *pos = pos.saturating_add(raw.size);
        let Some((_, template)) = self.names.get(slot) else {
            return Step::End;
        };
        Step::Record(Record {
            index,
            offset,
            end: self.offset,
            line: 0,
            pcr: raw.pcr,
            template_hash: raw.template_hash,
            template_name: raw.template_name,
            template,
            template_slot: slot,
            data: Some(raw.body.hashed(&mut self.data)),
        })
    }

    fn ascii<'a>(
        &'a mut self,
        layout: &Layout,
        rest: &'a [u8],
        pos: &mut usize,
        last: bool,
    ) -> Step<'a> {
        if rest.is_empty() {
            return if last { Step::End } else { Step::More };
        }
        let (line, mut size) = match memchr(b'\n', rest) {
            Some(end) => (rest.get(..end).unwrap_or(rest), end + 1),
            None if last => (rest, rest.len()),
            None if rest.len() > MAX_LINE_BYTES => {
                self.fail(0, "line", "it is beyond the limit of 32 MiB", false);
                return Step::End;
            }
            None => return Step::More,
        };
        let after = rest.get(size..).unwrap_or(&[]);
        if !last && after.len() < ascii::HEAD_BYTES + 2 {
            return Step::More;
        }
        let cut_off = size == line.len();
        let Some(head) = self.ascii_head(layout, line, cut_off) else {
            return Step::End;
        };
        let slot = self.slot(head.template_name);
        let mut known = self.rebuild(slot, head.fields, layout);
        let mut lines = 1u64;
        if !after.is_empty() && !ascii::looks_like_head(after) {
            // A line that is no entry: the rest of a name with line breaks, or rubbish.
            match self.join_lines(slot, &head, rest, size, layout, last) {
                Joined::Alone => known = self.rebuild(slot, head.fields, layout),
                Joined::Lines(count, bytes) => {
                    (lines, size, known) = (count, bytes, true);
                }
                Joined::More => return Step::More,
            }
        } else if cut_off && !(known && self.hash_agrees(layout)) {
            self.fail(line.len(), "line", "the list ends inside this line", true);
            return Step::End;
        }
        let (index, offset, number) = (self.index, self.offset, self.line);
        self.index = index.saturating_add(1);
        self.offset = offset.saturating_add(size as u64);
        self.line = number.saturating_add(lines);
        *pos = pos.saturating_add(size);
        let Some((_, template)) = self.names.get(slot) else {
            return Step::End;
        };
        Step::Record(Record {
            index,
            offset,
            end: self.offset,
            line: number,
            pcr: head.pcr,
            template_hash: &self.hash,
            template_name: head.template_name,
            template,
            template_slot: slot,
            data: known.then_some(self.data.as_slice()),
        })
    }

    /// Take the head of a line, and its hash into `self.hash`; a line that is no entry is the fault.
    fn ascii_head<'a>(
        &mut self,
        layout: &Layout,
        line: &'a [u8],
        cut_off: bool,
    ) -> Option<ascii::Head<'a>> {
        let head = match ascii::parse_head(line) {
            Ok(head) => head,
            Err((at, field, reason)) => {
                self.fail(at, field, reason, cut_off);
                return None;
            }
        };
        self.hash.clear();
        let reason = if !ascii::banks_of_hex(head.hash_hex.len()).contains(&layout.header_bank) {
            "it is not of the list's bank"
        } else if !ascii::unhex(head.hash_hex, &mut self.hash) {
            "it is not hex"
        } else {
            return Some(head);
        };
        self.fail(3, "template-hash", reason, cut_off);
        None
    }

    /// Rebuild the data of a line into `self.data`.
    #[inline]
    fn rebuild(&mut self, slot: usize, fields: Option<&[u8]>, layout: &Layout) -> bool {
        let Some((_, template)) = self.names.get(slot) else {
            return false;
        };
        let first = ascii::XATTR_NULS[0];
        if !ascii::rebuild(template, fields, layout.order, first, &mut self.data) {
            return false;
        }
        let ambiguous = matches!(template, Template::Fields(f) if f.contains(&Field::XattrNames));
        if ambiguous && !self.hash_agrees(layout) {
            for nuls in ascii::XATTR_NULS.iter().rev() {
                let Some((_, template)) = self.names.get(slot) else {
                    return false;
                };
                ascii::rebuild(template, fields, layout.order, *nuls, &mut self.data);
                if self.hash_agrees(layout) {
                    break;
                }
            }
        }
        true
    }

    /// Whether the data in hand has the template hash in hand, or none is expected.
    fn hash_agrees(&mut self, layout: &Layout) -> bool {
        detect::hash_agrees(
            &mut self.digests,
            layout.header_bank,
            &self.hash,
            &self.data,
        )
    }

    /// Try the lines after an entry as the rest of its name.
    fn join_lines(
        &mut self,
        slot: usize,
        head: &ascii::Head<'_>,
        rest: &[u8],
        first_size: usize,
        layout: &Layout,
        last: bool,
    ) -> Joined {
        // A violation's content is not authenticated: whatever follows can only be its name.
        let violation = record::is_zero(&self.hash);
        if !violation && self.hash_agrees(layout) {
            return Joined::Alone;
        }
        let Some(fields) = head.fields else {
            return Joined::Alone;
        };
        let fields_at = first_size.saturating_sub(1).saturating_sub(fields.len());
        let mut size = first_size;
        for count in 2..=MAX_NAME_LINES as u64 {
            let after = rest.get(size..).unwrap_or(&[]);
            if !last && after.len() < ascii::HEAD_BYTES + 2 {
                return Joined::More;
            }
            if after.is_empty() || ascii::looks_like_head(after) {
                break;
            }
            let (text_end, end) = match memchr(b'\n', after) {
                Some(at) => (size + at, size + at + 1),
                None if last => (rest.len(), rest.len()),
                None if after.len() > MAX_LINE_BYTES => break,
                None => return Joined::More,
            };
            let rebuilt = self.rebuild(slot, rest.get(fields_at..text_end), layout);
            let next = rest.get(end..).unwrap_or(&[]);
            let complete = if violation {
                if !last && next.len() < ascii::HEAD_BYTES + 2 {
                    return Joined::More;
                }
                next.is_empty() || ascii::looks_like_head(next)
            } else {
                self.hash_agrees(layout)
            };
            if rebuilt && complete {
                return Joined::Lines(count, end);
            }
            size = end;
        }
        Joined::Alone
    }
}

/// What the lines after an entry turned out to be.
enum Joined {
    /// Not part of it.
    Alone,
    /// So many lines, of so many bytes, are one entry.
    Lines(u64, usize),
    /// More input is needed to tell.
    More,
}
