//! Reading uncompressed records one by one, as views into the batch.

use super::varint::{take_i32, take_i64};
use crate::batch::{BatchError, BatchHeader};

/// One record, as slices of the batch it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Offset, counted from the batch's base offset.
    pub offset_delta: i32,
    /// Timestamp in milliseconds, counted from the batch's base timestamp.
    pub timestamp_delta: i64,
    /// Key, or `None` if null.
    pub key: Option<&'a [u8]>,
    /// Value, or `None` if null.
    pub value: Option<&'a [u8]>,
    pub(super) header_count: i32,
    pub(super) headers: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// The headers, in order; keys may repeat.
    pub fn headers(&self) -> HeaderIter<'a> {
        HeaderIter {
            left: self.header_count,
            rest: self.headers,
        }
    }
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderView<'a> {
    /// Key: UTF-8 by convention, which nobody checks.
    pub key: &'a [u8],
    /// Value, or `None` if null.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    left: i32,
    rest: &'a [u8],
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = HeaderView<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        take_header(&mut self.rest)
    }
}

/// Walks over uncompressed records without allocating. Every record is checked completely before
/// it is handed out: lengths, header count, and that its parts fill it exactly. After the last
/// record that the batch counts, left-over bytes are an error. Nothing comes after an error.
#[derive(Clone, Debug)]
pub struct RecordWalker<'a> {
    rest: &'a [u8],
    next_index: i32,
    count: i32,
    failed: bool,
}

impl<'a> RecordWalker<'a> {
    /// Walks over `count` records in `records`, the bytes after a batch's header, decompressed.
    pub fn new(records: &'a [u8], count: i32) -> Self {
        Self {
            rest: records,
            next_index: 0,
            count,
            failed: false,
        }
    }

    /// Walks over the records of a whole uncompressed batch.
    pub fn of_batch(header: &BatchHeader, batch: &'a [u8]) -> Self {
        Self::new(
            batch
                .get(BatchHeader::SIZE..header.size_in_bytes())
                .unwrap_or_default(),
            header.record_count,
        )
    }

    #[inline]
    fn fail(&mut self, error: BatchError) -> Option<Result<RecordView<'a>, BatchError>> {
        self.failed = true;
        Some(Err(error))
    }
}

impl<'a> Iterator for RecordWalker<'a> {
    type Item = Result<RecordView<'a>, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let index = self.next_index;
        if index >= self.count {
            if self.rest.is_empty() {
                return None;
            }
            return self.fail(BatchError::TrailingBytes { count: self.count });
        }
        match take_record(&mut self.rest) {
            Some(record) => {
                self.next_index += 1;
                Some(Ok(record))
            }
            None => self.fail(BatchError::MalformedRecord { index }),
        }
    }
}

#[inline(always)]
fn take_record<'a>(rest: &mut &'a [u8]) -> Option<RecordView<'a>> {
    let len = usize::try_from(take_i32(rest)?).ok()?;
    let (mut body, after) = rest.split_at_checked(len)?;
    let (_attributes, fields) = body.split_first()?;
    body = fields;
    let timestamp_delta = take_i64(&mut body)?;
    let offset_delta = take_i32(&mut body)?;
    let key = take_nullable(&mut body)?;
    let value = take_nullable(&mut body)?;
    let header_count = take_i32(&mut body)?;
    let headers = body;
    if header_count != 0 {
        check_headers(headers, header_count)?;
    } else if !headers.is_empty() {
        return None;
    }
    *rest = after;
    Some(RecordView {
        offset_delta,
        timestamp_delta,
        key,
        value,
        header_count,
        headers,
    })
}

/// Whether `headers` is exactly `count` headers.
fn check_headers(mut headers: &[u8], count: i32) -> Option<()> {
    // A header has two bytes at least, so a count that the bytes cannot back ends early.
    let count = usize::try_from(count).ok()?;
    for _ in 0..count {
        take_header(&mut headers)?;
    }
    headers.is_empty().then_some(())
}

#[inline]
fn take_header<'a>(rest: &mut &'a [u8]) -> Option<HeaderView<'a>> {
    Some(HeaderView {
        key: take_nullable(rest)??,
        value: take_nullable(rest)?,
    })
}

/// A length and as many bytes; any negative length is null.
#[inline(always)]
fn take_nullable<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let Ok(len) = usize::try_from(take_i32(rest)?) else {
        return Some(None);
    };
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(Some(taken))
}
