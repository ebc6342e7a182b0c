//! Looking at every record of a batch, compressed or not, without holding more than a buffer.
//!
//! What is checked is what [`super::RecordWalker`] checks, so that the two agree on which batches
//! are well-formed; what is seen is what validation and lookups by time need. Keys, values and
//! headers are skipped, whatever their length.

use std::borrow::Cow;
use std::ops::ControlFlow;

use super::varint;
use super::walker::RecordWalker;
use crate::batch::{BatchError, BatchHeader, TimestampType};
use crate::compression::{Compression, DEFAULT_MAX_EXPANDED_BYTES, Expanding, decompress_capped};
use crate::ids::TimestampMs;

/// How far compressed records may expand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionLimits {
    /// Most bytes of all records of a batch together.
    pub max_batch_bytes: usize,
    /// Most bytes of one record: `max.decompressed.message.bytes`.
    pub max_record_bytes: usize,
}

impl Default for ExpansionLimits {
    fn default() -> Self {
        Self {
            max_batch_bytes: DEFAULT_MAX_EXPANDED_BYTES,
            // Kafka's default for max.decompressed.message.bytes.
            max_record_bytes: i32::MAX as usize - 8,
        }
    }
}

/// What a scan sees of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStamp {
    /// Offset, counted from the batch's base offset.
    pub offset_delta: i32,
    /// Timestamp, counted from the batch's base timestamp.
    pub timestamp_delta: i64,
    /// Whether the key is not null.
    pub has_key: bool,
}

/// Shows every record of a whole batch to `visit`, in order, until it breaks off. Unless it does,
/// the batch is found to hold exactly the records that its header counts.
pub fn scan_stamps(
    header: &BatchHeader,
    batch: &[u8],
    limits: ExpansionLimits,
    mut visit: impl FnMut(RecordStamp) -> ControlFlow<()>,
) -> Result<(), BatchError> {
    let compression = header.compression()?;
    if compression == Compression::None {
        for record in RecordWalker::of_batch(header, batch) {
            let record = record?;
            let stamp = RecordStamp {
                offset_delta: record.offset_delta,
                timestamp_delta: record.timestamp_delta,
                has_key: record.key.is_some(),
            };
            if visit(stamp).is_break() {
                break;
            }
        }
        return Ok(());
    }
    let stream = Expanding::new(
        compression,
        records_of(header, batch),
        limits.max_batch_bytes,
    )?;
    let mut reader = RecordReader {
        stream,
        index: 0,
        left: 0,
    };
    while reader.index < header.record_count {
        let stamp = reader.record(limits.max_record_bytes)?;
        if visit(stamp).is_break() {
            return Ok(());
        }
    }
    if reader.stream.fill()? {
        Ok(())
    } else {
        Err(BatchError::TrailingBytes {
            count: header.record_count,
        })
    }
}

/// The records of a whole batch, decompressed into memory if need be but to no more than
/// `max_bytes`, for a [`RecordWalker`].
pub fn expand<'a>(
    header: &BatchHeader,
    batch: &'a [u8],
    max_bytes: usize,
) -> Result<Cow<'a, [u8]>, BatchError> {
    let records = records_of(header, batch);
    match header.compression()? {
        Compression::None => Ok(Cow::Borrowed(records)),
        compression => decompress_capped(compression, records, max_bytes).map(Cow::Owned),
    }
}

/// The timestamp of a record with this delta: in a LogAppendTime batch, always the batch's.
pub fn record_timestamp(header: &BatchHeader, timestamp_delta: i64) -> TimestampMs {
    match header.timestamp_type() {
        TimestampType::LogAppendTime => header.max_timestamp,
        TimestampType::CreateTime => {
            TimestampMs::new(header.base_timestamp.get().wrapping_add(timestamp_delta))
        }
    }
}

fn records_of<'a>(header: &BatchHeader, batch: &'a [u8]) -> &'a [u8] {
    batch
        .get(BatchHeader::SIZE..header.size_in_bytes())
        .unwrap_or_default()
}

/// Reads records out of a decompressor's output.
struct RecordReader<'a> {
    stream: Expanding<'a>,
    /// Index of the current record.
    index: i32,
    /// Bytes of the current record that are still to come.
    left: usize,
}

impl RecordReader<'_> {
    fn record(&mut self, max_bytes: usize) -> Result<RecordStamp, BatchError> {
        // The length itself does not count towards the record's.
        self.left = varint::MAX_SHORT_BYTES;
        let len = self.length()?.ok_or_else(|| self.malformed())?;
        if len > max_bytes {
            return Err(BatchError::RecordTooLong {
                index: self.index,
                len,
                limit: max_bytes,
            });
        }
        self.left = len;
        self.byte()?;
        let timestamp_delta = varint::unzigzag(self.integer(varint::MAX_BYTES)?);
        let offset_delta = self.short_integer()?;
        let has_key = self.skip_nullable()?;
        self.skip_nullable()?;
        let headers = self.short_integer()?;
        if headers < 0 {
            return Err(self.malformed());
        }
        for _ in 0..headers {
            // A header has two bytes at least, so a count that cannot be backed ends early.
            if !self.skip_nullable()? {
                return Err(self.malformed());
            }
            self.skip_nullable()?;
        }
        if self.left != 0 {
            return Err(self.malformed());
        }
        self.index += 1;
        Ok(RecordStamp {
            offset_delta,
            timestamp_delta,
            has_key,
        })
    }

    /// A length and as many bytes. False if the length is negative, which is null.
    fn skip_nullable(&mut self) -> Result<bool, BatchError> {
        let Some(len) = self.length()? else {
            return Ok(false);
        };
        if len > self.left || !self.stream.skip(len)? {
            return Err(self.malformed());
        }
        self.left -= len;
        Ok(true)
    }

    /// A length, or `None` if it is negative.
    fn length(&mut self) -> Result<Option<usize>, BatchError> {
        Ok(usize::try_from(self.short_integer()?).ok())
    }

    fn short_integer(&mut self) -> Result<i32, BatchError> {
        Ok(varint::unzigzag_short(
            self.integer(varint::MAX_SHORT_BYTES)?,
        ))
    }

    /// The raw value of an integer of at most `max_len` bytes.
    fn integer(&mut self, max_len: usize) -> Result<u64, BatchError> {
        let mut raw = 0_u64;
        for at in 0..max_len as u32 {
            let byte = self.byte()?;
            raw |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok(raw);
            }
        }
        Err(self.malformed())
    }

    fn byte(&mut self) -> Result<u8, BatchError> {
        if self.left > 0
            && let Some(byte) = self.stream.byte()?
        {
            self.left -= 1;
            return Ok(byte);
        }
        Err(self.malformed())
    }

    fn malformed(&self) -> BatchError {
        BatchError::MalformedRecord { index: self.index }
    }
}
