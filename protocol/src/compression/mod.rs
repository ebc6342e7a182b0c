//! The compression codecs of record batches: streaming in, whole runs out.
//!
//! Decompression never trusts a length. Output is produced a buffer at a time and counted against
//! a cap; where a format announces the length of its output (snappy blocks, zstd frames) the
//! announcement is checked before memory is taken for it.

mod codecs;
mod snappy;
mod zstandard;

use std::io::Read;

use bytes::Bytes;

use crate::batch::BatchError;

/// Most bytes that the records of one batch may expand to, unless configured otherwise: far above
/// what a producer's batch holds, far below what an expansion bomb does.
pub const DEFAULT_MAX_EXPANDED_BYTES: usize = 256 << 20;

/// Compression of the records of a batch, by its id in the batch's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Not compressed.
    #[default]
    None = 0,
    /// RFC 1952, possibly of several members.
    Gzip = 1,
    /// Snappy: written framed as the Java clients' library does, read so and raw.
    Snappy = 2,
    /// LZ4 frames: written in independent blocks of 64 KiB, read in linked ones too.
    Lz4 = 3,
    /// Zstandard frames.
    Zstd = 4,
}

impl Compression {
    /// Every codec, in the order of ids.
    pub const ALL: &'static [Self] = &[Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec of an id in the attributes.
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The id in the attributes.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Kafka's name for it in `compression.type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Compresses `records`, at the codec's default level in Kafka.
pub fn compress(compression: Compression, records: &[u8]) -> Result<Bytes, BatchError> {
    pack(compression, None, records)
}

/// Compresses `records` at a level, which counts for gzip (1 to 9, −1 for its default) and zstd
/// (−131072 to 22).
pub fn compress_at_level(
    compression: Compression,
    level: i32,
    records: &[u8],
) -> Result<Bytes, BatchError> {
    pack(compression, Some(level), records)
}

fn pack(compression: Compression, level: Option<i32>, records: &[u8]) -> Result<Bytes, BatchError> {
    codecs::compress(compression, level, records).map_err(|error| BatchError::Uncompressible {
        reason: error.to_string(),
    })
}

/// Decompresses into memory, but no more than `max_bytes`: one byte over is
/// [`BatchError::ExpandsTooFar`]. Memory grows with what has come out, not with what is announced.
pub fn decompress_capped(
    compression: Compression,
    compressed: &[u8],
    max_bytes: usize,
) -> Result<Vec<u8>, BatchError> {
    let mut stream = Expanding::new(compression, compressed, max_bytes)?;
    let mut out = Vec::new();
    while !stream.fill()? {
        out.extend_from_slice(stream.buffered());
        stream.discard_buffered();
    }
    Ok(out)
}

/// Bytes of output held at a time.
const BUFFER_BYTES: usize = 16 << 10;

/// The output of a decompressor, through one small buffer, counted against a cap.
pub(crate) struct Expanding<'a> {
    reader: Box<dyn Read + 'a>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    left: usize,
    max_bytes: usize,
}

impl<'a> Expanding<'a> {
    /// Starts to decompress; fails if `compressed` announces more than `max_bytes`.
    pub(crate) fn new(
        compression: Compression,
        compressed: &'a [u8],
        max_bytes: usize,
    ) -> Result<Self, BatchError> {
        Ok(Self {
            reader: codecs::reader(compression, compressed, max_bytes)?,
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            left: max_bytes,
            max_bytes,
        })
    }

    /// What has been produced and not yet taken.
    pub(crate) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn discard_buffered(&mut self) {
        self.start = self.end;
    }

    /// Produces more if nothing is buffered. True at the end of the output.
    pub(crate) fn fill(&mut self) -> Result<bool, BatchError> {
        if self.start < self.end {
            return Ok(false);
        }
        let count = loop {
            match self.reader.read(&mut self.buffer) {
                Ok(count) => break count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(codecs::cause(error, self.max_bytes)),
            }
        };
        self.left = self
            .left
            .checked_sub(count)
            .ok_or(BatchError::ExpandsTooFar {
                limit: self.max_bytes,
            })?;
        self.start = 0;
        self.end = count;
        Ok(count == 0)
    }

    /// The next byte, or `None` at the end of the output.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<Option<u8>, BatchError> {
        if self.start == self.end && self.fill()? {
            return Ok(None);
        }
        let byte = self.buffer.get(self.start).copied();
        self.start += 1;
        Ok(byte)
    }

    /// Skips `count` bytes. False if the output ends before.
    #[inline]
    pub(crate) fn skip(&mut self, mut count: usize) -> Result<bool, BatchError> {
        loop {
            let step = count.min(self.end - self.start);
            self.start += step;
            count -= step;
            if count == 0 {
                return Ok(true);
            }
            if self.fill()? {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests;
