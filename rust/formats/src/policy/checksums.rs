//! Checksum lists as `sha256sum` and its family write them, plain or with `--tag`.
//!
//! Names are bytes. A line that begins with `\` has `\\`, `\n` and `\r` escaped in its name.
use super::error::PolicyError;
use super::table::{algorithm_of_size, DigestTableBuilder, MAX_DIGEST_BYTES};

/// Longest line taken.
const MAX_LINE_BYTES: usize = 1 << 20;

/// What a list held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines with a digest.
    pub digests: u64,
    /// Empty lines.
    pub blank: u64,
    /// Lines that begin with `#`.
    pub comments: u64,
    /// Names that do not begin with `/`.
    pub relative: u64,
}

/// A list, read piece by piece.
#[derive(Debug)]
pub struct ChecksumReader<'a> {
    builder: &'a mut DigestTableBuilder,
    root: Option<Vec<u8>>,
    line: u64,
    counts: Counts,
    error: Option<PolicyError>,
}

impl<'a> ChecksumReader<'a> {
    /// Read into a builder; names that do not begin with `/` are put below `root`, if there is one.
    #[must_use]
    pub fn new(builder: &'a mut DigestTableBuilder, root: Option<Vec<u8>>) -> Self {
        ChecksumReader {
            builder,
            root,
            line: 0,
            counts: Counts::default(),
            error: None,
        }
    }

    /// Take all whole lines, and the rest if it is the last piece; returns how much was taken.
    pub fn process(&mut self, data: &[u8], last: bool) -> usize {
        let mut done = 0usize;
        while self.error.is_none() {
            let left = data.get(done..).unwrap_or(&[]);
            let (line, used) = match memchr::memchr(b'\n', left) {
                Some(end) => (left.get(..end).unwrap_or(&[]), end.saturating_add(1)),
                None if last && !left.is_empty() => (left, left.len()),
                None => {
                    if left.len() > MAX_LINE_BYTES {
                        let reason = format!("longer than {MAX_LINE_BYTES} bytes");
                        self.error = Some(PolicyError::in_line(
                            self.line.saturating_add(1),
                            "line",
                            reason,
                        ));
                    }
                    return done;
                }
            };
            done = done.saturating_add(used);
            self.line = self.line.saturating_add(1);
            if let Err((field, reason)) = self.take(line) {
                self.error = Some(PolicyError::in_line(self.line, field, reason));
            }
        }
        data.len()
    }

    /// What was read.
    ///
    /// # Errors
    /// The first line that is no checksum.
    pub fn finish(self) -> Result<Counts, PolicyError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.counts),
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), (&'static str, String)> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            self.counts.blank = self.counts.blank.saturating_add(1);
            return Ok(());
        }
        if line.starts_with(b"#") {
            self.counts.comments = self.counts.comments.saturating_add(1);
            return Ok(());
        }
        if line.contains(&0) {
            return Err(("line", "NUL byte: lists of -z are not read".to_owned()));
        }
        let (escaped, rest) = match line.strip_prefix(b"\\") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (algorithm, digits, name) = split(rest)?;
        if name.is_empty() {
            return Err(("name", "no file name".to_owned()));
        }
        let mut digest = [0u8; MAX_DIGEST_BYTES];
        let digest = unhex(digits, &mut digest).ok_or_else(|| {
            let text = String::from_utf8_lossy(digits.get(..digits.len().min(40)).unwrap_or(&[]));
            ("digest", format!("{text:?} is not a hexadecimal digest"))
        })?;
        let by_size = algorithm_of_size(digest.len());
        let algorithm = match (algorithm, by_size) {
            (Some(name), _) => name,
            (None, Some(name)) => name,
            (None, None) => {
                let reason = format!("{} bytes fit no algorithm", digest.len());
                return Err(("digest", reason));
            }
        };
        let unescaped;
        let name = if escaped {
            unescaped = unescape(name)?;
            unescaped.as_slice()
        } else {
            name
        };
        self.push(name, algorithm, digest)
    }

    fn push(
        &mut self,
        name: &[u8],
        algorithm: &str,
        digest: &[u8],
    ) -> Result<(), (&'static str, String)> {
        let rooted;
        let mut name = name;
        if !name.starts_with(b"/") {
            if let Some(root) = &self.root {
                let below = name.strip_prefix(b"./").unwrap_or(name);
                rooted = [root.as_slice(), below].concat();
                name = rooted.as_slice();
            } else {
                self.counts.relative = self.counts.relative.saturating_add(1);
            }
        }
        self.builder
            .push(name, algorithm, digest)
            .map_err(|reason| ("digest", reason))?;
        self.counts.digests = self.counts.digests.saturating_add(1);
        Ok(())
    }
}

/// Algorithm if the line names it, hexadecimal digits, name.
type Parts<'a> = (Option<&'static str>, &'a [u8], &'a [u8]);

fn split(line: &[u8]) -> Result<Parts<'_>, (&'static str, String)> {
    if let Some(parts) = split_tagged(line)? {
        return Ok(parts);
    }
    let end = line.iter().position(|byte| *byte == b' ');
    let Some((digits, rest)) = end.and_then(|end| line.split_at_checked(end)) else {
        return Err(("line", "no space after a digest".to_owned()));
    };
    let rest = rest.get(1..).unwrap_or(&[]);
    // The second character marks text (space) or binary (asterisk); old BSD lists have none.
    let name = match rest.first() {
        Some(b' ' | b'*') => rest.get(1..).unwrap_or(&[]),
        _ => rest,
    };
    Ok((None, digits, name))
}

/// `SHA256 (name) = digits`; `None` when the line has not this form.
fn split_tagged(line: &[u8]) -> Result<Option<Parts<'_>>, (&'static str, String)> {
    let Some(open) = memchr::memmem::find(line, b" (") else {
        return Ok(None);
    };
    let Some(close) = memchr::memmem::rfind(line, b") = ") else {
        return Ok(None);
    };
    let tag = line.get(..open).unwrap_or(&[]);
    if tag.is_empty() || close < open.saturating_add(2) || !tag.iter().all(tag_byte) {
        return Ok(None);
    }
    let digits = line.get(close.saturating_add(4)..).unwrap_or(&[]);
    if algorithm_of_size(tag.len() / 2).is_some() && tag.iter().all(u8::is_ascii_hexdigit) {
        return Ok(None); // a plain line whose name looks like a tag's end
    }
    let known = [
        ("MD5", "md5"),
        ("SHA1", "sha1"),
        ("SHA224", "sha224"),
        ("SHA256", "sha256"),
        ("SHA384", "sha384"),
        ("SHA512", "sha512"),
        ("SM3", "sm3_256"),
    ];
    let Some((_, name)) = known.iter().find(|(known, _)| known.as_bytes() == tag) else {
        let tag = String::from_utf8_lossy(tag).into_owned();
        return Err((
            "algorithm",
            format!("{tag:?} is none that IMA measures with"),
        ));
    };
    let inner = line.get(open.saturating_add(2)..close).unwrap_or(&[]);
    Ok(Some((Some(name), digits, inner)))
}

fn tag_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Decode hexadecimal digits into a buffer; `None` when they are not that.
pub(super) fn unhex<'a>(digits: &[u8], to: &'a mut [u8; MAX_DIGEST_BYTES]) -> Option<&'a [u8]> {
    if digits.is_empty() || digits.len() % 2 != 0 || digits.len() > 2 * MAX_DIGEST_BYTES {
        return None;
    }
    for (byte, pair) in to.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = *pair else { return None };
        let high = char::from(high).to_digit(16)?;
        let low = char::from(low).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    to.get(..digits.len() / 2)
}

fn unescape(name: &[u8]) -> Result<Vec<u8>, (&'static str, String)> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        match bytes.next() {
            Some(b'\\') => out.push(b'\\'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            _ => return Err(("name", "unknown escape after a backslash".to_owned())),
        }
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::table::Verdict;
    use super::*;

    fn read(text: &[u8], piece: usize) -> (DigestTableBuilder, Result<Counts, PolicyError>) {
        let mut builder = DigestTableBuilder::default();
        let mut reader = ChecksumReader::new(&mut builder, None);
        let (mut from, mut to) = (0usize, 0usize);
        while to < text.len() {
            to = to.saturating_add(piece).min(text.len());
            from += reader.process(text.get(from..to).unwrap(), to == text.len());
        }
        let counts = reader.finish();
        (builder, counts)
    }

    #[test]
    fn plain_binary_escaped_and_tagged_lines_are_read_in_any_pieces() {
        let hex = "ab".repeat(32);
        let text = format!(
            "# made today\r\n{hex}  /bin/a\n{hex} */bin/b\r\n\n\\{hex}  /bin/c\\\\d\\ne\n\
             SHA256 (/bin/x) = y) = {hex}\n{hex} /bin/old\n{hex}  /odd (z) = 1"
        );
        for piece in [1, 2, 7, 64, 1000] {
            let (builder, counts) = read(text.as_bytes(), piece);
            let counts = counts.unwrap();
            let seen = (
                counts.digests,
                counts.blank,
                counts.comments,
                counts.relative,
            );
            assert_eq!(seen, (6, 1, 1, 0));
            let table = builder.finish();
            let names: [&[u8]; 6] = [
                b"/bin/a",
                b"/bin/b",
                b"/bin/c\\d\ne",
                b"/bin/x) = y",
                b"/bin/old",
                b"/odd (z) = 1",
            ];
            for name in names {
                let verdict = table.lookup(name, "sha256", &[0xab; 32]);
                assert_eq!(verdict, Verdict::Allowed, "{name:?}");
            }
        }
    }

    #[test]
    fn first_bad_line_is_named() {
        let hex = "ab".repeat(32);
        for (bad, field) in [
            ("hello", "line"),
            ("zz  /bin/a", "digest"),
            ("abcd  /bin/a", "digest"),
            ("BLAKE2b (/bin/a) = abcd", "algorithm"),
        ] {
            let text = format!("{hex}  /bin/a\n\n{bad}\n{hex}  /bin/b\n");
            let error = read(text.as_bytes(), 5).1.unwrap_err();
            assert_eq!((error.line, error.field), (Some(3), field));
        }
    }
}
