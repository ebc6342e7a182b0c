//! Reading a segment's batches one after the other.
//!
//! Two ways: headers only, which skips the bodies, and whole batches with their CRC checked, for
//! recovery. Neither trusts a length further than the end it was given.

use std::io;
use std::sync::Arc;

use odradek_protocol::batch::{BatchHeader, verify_crc};

use crate::disk::DiskFile;

/// Bytes that a scan of headers reads at a time.
const HEADER_CHUNK_BYTES: usize = 8 * 1024;
/// Bytes that a scan of whole batches reads at a time.
const BODY_CHUNK_BYTES: usize = 1024 * 1024;

/// Why a scan stopped before its end.
#[derive(Debug)]
pub(crate) enum ScanError {
    /// The file could not be read.
    Io(io::Error),
    /// What stands at this position is not a whole, valid batch.
    Malformed { position: u32, what: String },
}

/// Walks over the batches of a segment from a batch boundary on.
pub(crate) struct BatchScanner {
    file: Arc<dyn DiskFile>,
    position: u32,
    end: u32,
    chunk_bytes: usize,
    buffer: Vec<u8>,
    buffer_at: u32,
}

impl BatchScanner {
    /// A scan of the headers in `position..end`.
    pub fn headers(file: Arc<dyn DiskFile>, position: u32, end: u32) -> Self {
        Self::new(file, position, end, HEADER_CHUNK_BYTES)
    }

    /// A scan of the batches in `position..end`.
    pub fn batches(file: Arc<dyn DiskFile>, position: u32, end: u32) -> Self {
        Self::new(file, position, end, BODY_CHUNK_BYTES)
    }

    fn new(file: Arc<dyn DiskFile>, position: u32, end: u32, chunk_bytes: usize) -> Self {
        Self {
            file,
            position,
            end,
            chunk_bytes,
            buffer: Vec::new(),
            buffer_at: position,
        }
    }

    /// Position of the next batch, or of what is not one.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// The next header, and the position of its batch. The batch lies whole within the end.
    pub fn next_header(&mut self) -> Result<Option<(BatchHeader, u32)>, ScanError> {
        let position = self.position;
        if position >= self.end {
            return Ok(None);
        }
        if ((self.end - position) as usize) < BatchHeader::SIZE {
            return Err(self.malformed("batch header breaks off"));
        }
        let bytes = self.window(BatchHeader::SIZE)?;
        let header = match BatchHeader::parse(bytes) {
            Ok(header) => header,
            Err(error) => return Err(self.malformed(error.to_string())),
        };
        if header.last_offset_delta < 0 {
            return Err(self.malformed("negative last offset delta"));
        }
        if header.size_in_bytes() > (self.end - position) as usize {
            return Err(self.malformed("batch breaks off"));
        }
        self.position = position + header.size_in_bytes() as u32;
        Ok(Some((header, position)))
    }

    /// The header of the next batch, whose CRC is right, and its position.
    pub fn next_batch(&mut self) -> Result<Option<(BatchHeader, u32)>, ScanError> {
        let Some((header, position)) = self.next_header()? else {
            return Ok(None);
        };
        let after = std::mem::replace(&mut self.position, position);
        let verified = verify_crc(&header, self.window(header.size_in_bytes())?);
        if let Err(error) = verified {
            return Err(self.malformed(error.to_string()));
        }
        self.position = after;
        Ok(Some((header, position)))
    }

    /// The whole batch whose header was returned for `position`.
    pub fn read_batch(&self, header: &BatchHeader, position: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; header.size_in_bytes()];
        self.file.read_exact_at(&mut bytes, u64::from(position))?;
        Ok(bytes)
    }

    /// `len` bytes at the current position, which lie within the end.
    fn window(&mut self, len: usize) -> Result<&[u8], ScanError> {
        let within = self.position >= self.buffer_at
            && (self.position - self.buffer_at) as usize + len <= self.buffer.len();
        if !within {
            let left = (self.end - self.position) as usize;
            self.buffer.clear();
            self.buffer.resize(len.max(self.chunk_bytes).min(left), 0);
            self.buffer_at = self.position;
            self.file
                .read_exact_at(&mut self.buffer, u64::from(self.position))
                .map_err(ScanError::Io)?;
        }
        let start = (self.position - self.buffer_at) as usize;
        self.buffer
            .get(start..start + len)
            .ok_or_else(|| ScanError::Io(io::ErrorKind::UnexpectedEof.into()))
    }

    fn malformed(&self, what: impl Into<String>) -> ScanError {
        ScanError::Malformed {
            position: self.position,
            what: what.into(),
        }
    }
}
