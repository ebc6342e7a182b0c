//! The batches of a buffer, one after the other.

use super::error::BatchError;
use super::header::BatchHeader;

/// A whole batch and its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchView<'a> {
    /// The header.
    pub header: BatchHeader,
    /// All bytes of the batch, header included.
    pub bytes: &'a [u8],
}

/// Iterates over the whole batches in a buffer. Stops before an incomplete one, as a fetched
/// slice may end in it; what is left is [`BatchIter::rest`]. An impossible header is an error, and
/// nothing comes after it.
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    rest: &'a [u8],
}

impl<'a> BatchIter<'a> {
    /// Iterates over the batches in `buffer`.
    pub fn new(buffer: &'a [u8]) -> Self {
        Self { rest: buffer }
    }

    /// The bytes after the last whole batch.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len() < BatchHeader::SIZE {
            return None;
        }
        let header = match BatchHeader::parse(self.rest) {
            Ok(header) => header,
            Err(error) => {
                self.rest = &[];
                return Some(Err(error));
            }
        };
        let (bytes, rest) = self.rest.split_at_checked(header.size_in_bytes())?;
        self.rest = rest;
        Some(Ok(BatchView { header, bytes }))
    }
}
