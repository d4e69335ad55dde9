//! Standard input as lines, and what may interrupt the wait for one.

use super::request::MAX_LINE_BYTES;
use crate::sys::fd;
use std::io;
use std::os::fd::AsFd;

const CHUNK: usize = 16 * 1024;

/// What the input holds next.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line, without its end.
    Whole(Vec<u8>),
    /// Nothing whole yet: wait until the input is readable, then call `fill`.
    Incomplete,
    /// The end of input, possibly after a last line that had no end.
    End(Option<Vec<u8>>),
}

/// Bytes that were read and not yet given out.
#[derive(Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    searched: usize,
    ended: bool,
}

impl Input {
    /// The next line, from what has been read so far.
    pub fn next(&mut self) -> Line {
        let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
        if let Some(length) = unsearched.iter().position(|&byte| byte == b'\n') {
            let end = self.searched + length;
            let line = self.bytes.get(self.start..end).unwrap_or_default().to_vec();
            self.start = end + 1;
            self.searched = self.start;
            return Line::Whole(line);
        }
        self.searched = self.bytes.len();
        if !self.ended {
            return Line::Incomplete;
        }
        let rest = self.bytes.get(self.start..).unwrap_or_default().to_vec();
        self.start = self.bytes.len();
        Line::End(Some(rest).filter(|rest| !rest.is_empty()))
    }

    /// Read once more; an error if a line has grown past the limit.
    pub fn fill<F: AsFd>(&mut self, source: &F) -> io::Result<()> {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        let filled = self.bytes.len();
        if filled > MAX_LINE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a line is longer than {MAX_LINE_BYTES} bytes"),
            ));
        }
        self.bytes.resize(filled + CHUNK, 0);
        let free = self.bytes.get_mut(filled..).unwrap_or_default();
        let count = fd::read(source.as_fd(), free);
        self.bytes.truncate(filled + *count.as_ref().unwrap_or(&0));
        self.ended = count? == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::calls::pipe;

    #[test]
    fn lines_are_put_together_from_pieces_and_the_rest_is_given_at_the_end() {
        let (from, to) = pipe().unwrap();
        let mut input = Input::default();
        assert_eq!(input.next(), Line::Incomplete);
        fd::write_all(to.as_fd(), b"one\ntw").unwrap();
        input.fill(&from).unwrap();
        assert_eq!(input.next(), Line::Whole(b"one".to_vec()));
        assert_eq!(input.next(), Line::Incomplete);
        fd::write_all(to.as_fd(), b"o\n\nthr").unwrap();
        input.fill(&from).unwrap();
        assert_eq!(input.next(), Line::Whole(b"two".to_vec()));
        assert_eq!(input.next(), Line::Whole(Vec::new()));
        drop(to);
        assert_eq!(input.next(), Line::Incomplete);
        input.fill(&from).unwrap();
        assert_eq!(input.next(), Line::End(Some(b"thr".to_vec())));
        assert_eq!(input.next(), Line::End(None));
    }
}
