//! A table as a file: its pairs and a description, then the SHA-256 of both.
use std::collections::BTreeMap;
use std::io::{Read, Write};

use sha2::{Digest as _, Sha256};

use super::column::{Column, KEY_BYTES};
use super::error::PolicyError;
use super::table::{DigestTable, MAX_DIGEST_BYTES, MAX_NAME_BYTES};

/// Longest description.
const MAX_META_BYTES: u64 = 256 << 20;
/// First bytes of a file; the last is the version of the layout.
const MAGIC: &[u8; 8] = b"EXCPOL\x00\x01";

impl DigestTable {
    /// Write the table and a description, then the SHA-256 of both; returns that digest.
    ///
    /// The digest depends on the pairs and the description alone, not on the order in which they
    /// were read.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, meta: &[u8], to: &mut impl Write) -> std::io::Result<[u8; 32]> {
        let mut out = Hashing {
            to,
            hash: Sha256::new(),
        };
        out.put(MAGIC)?;
        out.put(&(meta.len() as u64).to_be_bytes())?;
        out.put(meta)?;
        out.put(&(self.columns.len() as u64).to_be_bytes())?;
        for (name, column) in &self.columns {
            out.put(&(name.len() as u64).to_be_bytes())?;
            out.put(name.as_bytes())?;
            out.put(&(column.digest_bytes as u64).to_be_bytes())?;
            out.put(&(column.len() as u64).to_be_bytes())?;
            for shard in &column.shards {
                out.put(shard)?;
            }
        }
        let digest: [u8; 32] = out.hash.finalize().into();
        to.write_all(&digest)?;
        Ok(digest)
    }

    /// Read what `write_to` wrote: the table, the description and the digest.
    ///
    /// # Errors
    /// When it is no compiled policy, is damaged, or is not sorted.
    pub fn read_from(
        from: &mut impl Read,
    ) -> Result<(DigestTable, Vec<u8>, [u8; 32]), PolicyError> {
        let mut input = Checked {
            from,
            hash: Sha256::new(),
            offset: 0,
        };
        let mut magic = [0u8; 8];
        input.fill(&mut magic, "magic")?;
        if &magic != MAGIC {
            return Err(PolicyError::at(
                0,
                "magic",
                "not a compiled policy of this version",
            ));
        }
        let meta = input.sized("description", MAX_META_BYTES)?;
        let columns = input.number("algorithms", 64)?;
        let mut table = DigestTable {
            columns: BTreeMap::new(),
        };
        for _ in 0..columns {
            let name = input.sized("algorithm", MAX_NAME_BYTES as u64)?;
            let name = String::from_utf8(name)
                .map_err(|_| PolicyError::at(input.offset, "algorithm", "not UTF-8"))?;
            if table
                .columns
                .keys()
                .next_back()
                .is_some_and(|last| *last >= name)
            {
                return Err(PolicyError::at(input.offset, "algorithm", "out of order"));
            }
            let column = input.column()?;
            table.columns.insert(name, column);
        }
        let expected: [u8; 32] = input.hash.finalize().into();
        let mut found = [0u8; 32];
        let read = input.from.read_exact(&mut found);
        if read.is_err() || found != expected {
            return Err(PolicyError::at(
                input.offset,
                "digest",
                "the file is damaged",
            ));
        }
        match input.from.read(&mut [0u8]) {
            Ok(0) => Ok((table, meta, expected)),
            _ => Err(PolicyError::at(
                input.offset,
                "digest",
                "bytes after the end",
            )),
        }
    }
}

struct Hashing<'a, W: Write> {
    to: &'a mut W,
    hash: Sha256,
}

impl<W: Write> Hashing<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

struct Checked<'a, R: Read> {
    from: &'a mut R,
    hash: Sha256,
    offset: u64,
}

impl<R: Read> Checked<'_, R> {
    fn fill(&mut self, to: &mut [u8], field: &'static str) -> Result<(), PolicyError> {
        self.from
            .read_exact(to)
            .map_err(|error| PolicyError::at(self.offset, field, error.to_string()))?;
        self.hash.update(&*to);
        self.offset = self.offset.saturating_add(to.len() as u64);
        Ok(())
    }

    fn number(&mut self, field: &'static str, limit: u64) -> Result<u64, PolicyError> {
        let mut bytes = [0u8; 8];
        let at = self.offset;
        self.fill(&mut bytes, field)?;
        let number = u64::from_be_bytes(bytes);
        if number > limit {
            return Err(PolicyError::at(
                at,
                field,
                format!("{number} exceeds {limit}"),
            ));
        }
        Ok(number)
    }

    fn sized(&mut self, field: &'static str, limit: u64) -> Result<Vec<u8>, PolicyError> {
        let mut left = usize::try_from(self.number(field, limit)?).unwrap_or(0);
        let mut bytes = Vec::new();
        while left > 0 {
            // In pieces, so that a wrong length cannot make us reserve what is not there.
            let piece = left.min(1 << 20);
            let start = bytes.len();
            bytes.resize(start.saturating_add(piece), 0);
            self.fill(bytes.get_mut(start..).unwrap_or(&mut []), field)?;
            left = left.saturating_sub(piece);
        }
        Ok(bytes)
    }

    fn column(&mut self) -> Result<Column, PolicyError> {
        let size = self.number("digest size", MAX_DIGEST_BYTES as u64)?;
        if size == 0 {
            return Err(PolicyError::at(self.offset, "digest size", "is 0"));
        }
        let count = self.number("count", u64::MAX)?;
        let mut column = Column::new(usize::try_from(size).unwrap_or(0));
        let mut row = vec![0u8; column.record_bytes()];
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..count {
            self.fill(&mut row, "record")?;
            if last.as_ref().is_some_and(|last| *last >= row) {
                return Err(PolicyError::at(self.offset, "record", "out of order"));
            }
            if let Some((key, digest)) = row.split_at_checked(KEY_BYTES) {
                let key: [u8; KEY_BYTES] = key.try_into().unwrap_or_default();
                column.push(&key, digest);
            }
            match &mut last {
                Some(last) => last.copy_from_slice(&row),
                None => last = Some(row.clone()),
            }
        }
        for shard in &mut column.shards {
            shard.shrink_to_fit();
        }
        column.index();
        Ok(column)
    }
}
