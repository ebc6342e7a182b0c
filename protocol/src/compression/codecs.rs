//! One arm a codec, over the crates that do the work.

use std::io::{self, Read, Write};

use bytes::Bytes;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use super::{Compression, snappy, zstandard};
use crate::batch::BatchError;

/// Kafka's default for `compression.zstd.level`.
const ZSTD_LEVEL: i32 = 3;
/// What stands for the library's own default in `compression.gzip.level`, as in Java's `Deflater`.
const GZIP_DEFAULT_LEVEL: i32 = -1;

/// A decompressor over `compressed`.
pub(super) fn reader<'a>(
    compression: Compression,
    compressed: &'a [u8],
    max_bytes: usize,
) -> Result<Box<dyn Read + 'a>, BatchError> {
    Ok(match compression {
        Compression::None => Box::new(compressed),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(compressed)),
        Compression::Snappy => Box::new(snappy::Reader::new(compressed, max_bytes)),
        Compression::Lz4 => Box::new(FrameDecoder::new(compressed)),
        Compression::Zstd => Box::new(zstandard::Reader::new(compressed, max_bytes)?),
    })
}

/// What a decompressor's error says about the batch.
pub(super) fn cause(error: io::Error, max_bytes: usize) -> BatchError {
    if snappy::is_too_long(&error) {
        return BatchError::ExpandsTooFar { limit: max_bytes };
    }
    BatchError::Undecompressible {
        reason: error.to_string(),
    }
}

pub(super) fn compress(
    compression: Compression,
    level: Option<i32>,
    records: &[u8],
) -> io::Result<Bytes> {
    let capacity = records.len() / 2 + 64;
    Ok(match compression {
        Compression::None => Bytes::copy_from_slice(records),
        Compression::Gzip => {
            let out = Vec::with_capacity(capacity);
            let level = match level.unwrap_or(GZIP_DEFAULT_LEVEL) {
                level @ 0..=9 => flate2::Compression::new(level.unsigned_abs()),
                _ => flate2::Compression::default(),
            };
            let mut encoder = flate2::write::GzEncoder::new(out, level);
            encoder.write_all(records)?;
            encoder.finish()?.into()
        }
        Compression::Snappy => snappy::compress(records)?.into(),
        // The library has no levels.
        Compression::Lz4 => {
            let info = FrameInfo::new()
                .block_mode(BlockMode::Independent)
                .block_size(BlockSize::Max64KB);
            let out = Vec::with_capacity(capacity);
            let mut encoder = FrameEncoder::with_frame_info(info, out);
            encoder.write_all(records)?;
            encoder.finish().map_err(io::Error::other)?.into()
        }
        Compression::Zstd => zstd::bulk::compress(records, level.unwrap_or(ZSTD_LEVEL))?.into(),
    })
}
