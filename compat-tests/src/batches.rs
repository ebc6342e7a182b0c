//! Record batches of format 2, made by hand, so that each field can be made wrong.
//!
//! Independent of the broker's own batch code on purpose; only the CRC-32C and the codecs come from crates.

use std::io::Write;

use anyhow::Result;
use bytes::{BufMut, Bytes, BytesMut};

/// How the records of a batch are compressed (the low three bits of the attributes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    None,
    /// RFC 1952.
    Gzip,
    /// Raw snappy, as librdkafka writes it.
    SnappyRaw,
    /// Snappy in xerial's framing, as the Java client writes it.
    SnappyXerial,
    /// LZ4 frames with independent blocks.
    Lz4,
    /// LZ4 frames with linked blocks.
    Lz4Linked,
    /// Zstandard.
    Zstd,
}

impl Codec {
    /// Every codec and framing.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Gzip,
        Self::SnappyRaw,
        Self::SnappyXerial,
        Self::Lz4,
        Self::Lz4Linked,
        Self::Zstd,
    ];

    /// The codec's number in the attributes.
    pub fn id(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::SnappyRaw | Self::SnappyXerial => 2,
            Self::Lz4 | Self::Lz4Linked => 3,
            Self::Zstd => 4,
        }
    }

    /// Compresses `plain`.
    pub fn compress(self, plain: &[u8]) -> Result<Vec<u8>> {
        Ok(match self {
            Self::None => plain.to_vec(),
            Self::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(plain)?;
                encoder.finish()?
            }
            Self::SnappyRaw => snap::raw::Encoder::new().compress_vec(plain)?,
            Self::SnappyXerial => {
                // Magic, version 1, lowest compatible version 1, then blocks of big-endian length and raw snappy.
                let mut out = vec![
                    0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1,
                ];
                for block in plain.chunks(32 * 1024) {
                    let block = snap::raw::Encoder::new().compress_vec(block)?;
                    out.extend(u32::try_from(block.len())?.to_be_bytes());
                    out.extend(block);
                }
                out
            }
            Self::Lz4 | Self::Lz4Linked => {
                let mode = if self == Self::Lz4 {
                    lz4_flex::frame::BlockMode::Independent
                } else {
                    lz4_flex::frame::BlockMode::Linked
                };
                let info = lz4_flex::frame::FrameInfo::new()
                    .block_mode(mode)
                    .block_size(lz4_flex::frame::BlockSize::Max64KB);
                let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
                encoder.write_all(plain)?;
                encoder.finish()?
            }
            Self::Zstd => zstd::bulk::compress(plain, 3)?,
        })
    }
}

/// One record of a batch.
#[derive(Clone, Debug, Default)]
pub struct RecordSpec {
    /// The key; none is null.
    pub key: Option<Bytes>,
    /// The value; none is null.
    pub value: Option<Bytes>,
    /// Headers in order; keys may repeat.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    /// Overrides the offset delta, which is otherwise the record's index.
    pub offset_delta: Option<i64>,
}

impl RecordSpec {
    /// A record with a value only.
    pub fn value(value: impl Into<Bytes>) -> Self {
        Self {
            value: Some(value.into()),
            ..Self::default()
        }
    }

    /// A record with key and value.
    pub fn keyed(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self {
            key: Some(key.into()),
            value: Some(value.into()),
            ..Self::default()
        }
    }

    /// The same at a time.
    pub fn at(mut self, timestamp: i64) -> Self {
        self.timestamp = timestamp;
        self
    }
}

/// A batch with every field open to change; [`BatchSpec::build`] gives its bytes.
#[derive(Clone, Debug)]
pub struct BatchSpec {
    /// Records in order.
    pub records: Vec<RecordSpec>,
    /// How they are compressed.
    pub codec: Codec,
    /// Format version.
    pub magic: i8,
    /// Offset of the first record; a broker sets its own.
    pub base_offset: i64,
    /// Leader epoch; a broker sets its own.
    pub leader_epoch: i32,
    /// Attribute bits besides the codec.
    pub attributes: i16,
    /// −1 for none.
    pub producer_id: i64,
    /// −1 for none.
    pub producer_epoch: i16,
    /// −1 for none.
    pub base_sequence: i32,
    /// Overrides the number of records in the header.
    pub record_count: Option<i32>,
    /// Overrides the last offset delta in the header.
    pub last_offset_delta: Option<i32>,
    /// Overrides the maximum timestamp in the header.
    pub max_timestamp: Option<i64>,
    /// Bytes after the last record, before compression.
    pub trailing: Vec<u8>,
    /// Already compressed records in place of `records`.
    pub payload: Option<Bytes>,
    /// Added to the length field.
    pub length_error: i32,
    /// Flips bits of the CRC.
    pub crc_error: u32,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            codec: Codec::None,
            magic: 2,
            base_offset: 0,
            leader_epoch: -1,
            attributes: 0,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: None,
            last_offset_delta: None,
            max_timestamp: None,
            trailing: Vec::new(),
            payload: None,
            length_error: 0,
            crc_error: 0,
        }
    }
}

/// Attribute bit: timestamps are the broker's.
pub const LOG_APPEND_TIME: i16 = 1 << 3;
/// Attribute bit: part of a transaction.
pub const TRANSACTIONAL: i16 = 1 << 4;
/// Attribute bit: control batch.
pub const CONTROL: i16 = 1 << 5;

impl BatchSpec {
    /// A plain batch.
    pub fn of(records: Vec<RecordSpec>) -> Self {
        Self {
            records,
            ..Self::default()
        }
    }

    /// A plain batch of `count` small values at one time.
    pub fn small(count: usize, timestamp: i64) -> Self {
        Self::of(
            (0..count)
                .map(|i| RecordSpec::value(format!("value-{i}")).at(timestamp))
                .collect(),
        )
    }

    /// The same with a codec.
    pub fn compressed(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// The same from an idempotent producer.
    pub fn from_producer(
        mut self,
        producer_id: i64,
        producer_epoch: i16,
        base_sequence: i32,
    ) -> Self {
        self.producer_id = producer_id;
        self.producer_epoch = producer_epoch;
        self.base_sequence = base_sequence;
        self
    }

    /// The batch's bytes.
    pub fn build(&self) -> Result<Bytes> {
        let base_timestamp = self.records.first().map_or(-1, |record| record.timestamp);
        let max_timestamp = self
            .records
            .iter()
            .map(|record| record.timestamp)
            .max()
            .unwrap_or(-1);
        let payload = match &self.payload {
            Some(payload) => payload.to_vec(),
            None => {
                let mut plain = Vec::new();
                for (index, record) in self.records.iter().enumerate() {
                    let offset_delta = match record.offset_delta {
                        Some(delta) => delta,
                        None => i64::try_from(index)?,
                    };
                    put_record(
                        &mut plain,
                        record,
                        record.timestamp - base_timestamp,
                        offset_delta,
                    )?;
                }
                plain.extend(&self.trailing);
                self.codec.compress(&plain)?
            }
        };
        let count = i32::try_from(self.records.len())?;
        let mut checked = BytesMut::new();
        checked.put_i16(self.attributes | self.codec.id());
        checked.put_i32(self.last_offset_delta.unwrap_or(count - 1));
        checked.put_i64(base_timestamp);
        checked.put_i64(self.max_timestamp.unwrap_or(max_timestamp));
        checked.put_i64(self.producer_id);
        checked.put_i16(self.producer_epoch);
        checked.put_i32(self.base_sequence);
        checked.put_i32(self.record_count.unwrap_or(count));
        checked.put_slice(&payload);
        let mut batch = BytesMut::new();
        batch.put_i64(self.base_offset);
        // Leader epoch, magic and CRC come before the part that the CRC covers.
        batch.put_i32(i32::try_from(checked.len())? + 9 + self.length_error);
        batch.put_i32(self.leader_epoch);
        batch.put_i8(self.magic);
        batch.put_u32(crc32c::crc32c(&checked) ^ self.crc_error);
        batch.put_slice(&checked);
        Ok(batch.freeze())
    }
}

fn put_record(
    out: &mut Vec<u8>,
    record: &RecordSpec,
    timestamp_delta: i64,
    offset_delta: i64,
) -> Result<()> {
    let mut body = vec![0];
    put_varint(&mut body, timestamp_delta);
    put_varint(&mut body, offset_delta);
    put_bytes(&mut body, record.key.as_deref())?;
    put_bytes(&mut body, record.value.as_deref())?;
    put_varint(&mut body, i64::try_from(record.headers.len())?);
    for (key, value) in &record.headers {
        put_bytes(&mut body, Some(key.as_bytes()))?;
        put_bytes(&mut body, value.as_deref())?;
    }
    put_varint(out, i64::try_from(body.len())?);
    out.extend(body);
    Ok(())
}

fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) -> Result<()> {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, i64::try_from(bytes.len())?);
            out.extend(bytes);
        }
    }
    Ok(())
}

/// Appends a zigzag-coded variable-length integer.
pub fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// An old message set of format 0 or 1 with one message.
pub fn old_message(magic: i8, value: &[u8], timestamp: i64) -> Result<Bytes> {
    let mut checked = BytesMut::new();
    checked.put_i8(magic);
    checked.put_i8(0);
    if magic > 0 {
        checked.put_i64(timestamp);
    }
    checked.put_i32(-1);
    checked.put_i32(i32::try_from(value.len())?);
    checked.put_slice(value);
    let mut set = BytesMut::new();
    set.put_i64(0);
    set.put_i32(i32::try_from(checked.len())? + 4);
    let mut crc = flate2::Crc::new();
    crc.update(&checked);
    set.put_u32(crc.sum());
    set.put_slice(&checked);
    Ok(set.freeze())
}
