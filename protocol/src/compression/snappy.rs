//! Snappy as Kafka's clients write it: the Java library's framing (xerial), in which blocks stand
//! behind a 16-byte header with a big-endian length each, or one raw block, as librdkafka's
//! relatives have it.
//!
//! A block announces its expanded length. It is believed only up to the cap and to what so many
//! compressed bytes can possibly expand to; then the block's memory is taken, and reused.

use std::fmt;
use std::io::{self, Read};

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Magic, version, and lowest compatible version.
const HEADER_BYTES: usize = 16;
const VERSION: u32 = 1;
/// Expanded bytes of a written block: the Java library's default.
const BLOCK_BYTES: usize = 32 << 10;
/// Above what a snappy block can expand to, a byte: copies of up to 64 bytes take two at least.
const MAX_RATIO: usize = 64;

/// Decompresses either form.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    framed: bool,
    block: Vec<u8>,
    at: usize,
    /// Bytes that may still come out.
    left: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(compressed: &'a [u8], max_bytes: usize) -> Self {
        let framed = compressed.starts_with(&MAGIC);
        Self {
            rest: compressed,
            framed,
            block: Vec::new(),
            at: 0,
            left: max_bytes,
        }
    }

    /// The next block's compressed bytes, or `None` at the end.
    fn next_block(&mut self) -> io::Result<Option<&'a [u8]>> {
        if !self.framed {
            let all = std::mem::take(&mut self.rest);
            return Ok((!all.is_empty()).then_some(all));
        }
        // The header stands in front, and again wherever two streams were joined.
        while self.rest.starts_with(&MAGIC) {
            self.rest = self.rest.get(HEADER_BYTES..).ok_or_else(truncated)?;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (len, rest) = self.rest.split_first_chunk::<4>().ok_or_else(truncated)?;
        let len = u32::from_be_bytes(*len) as usize;
        let (block, rest) = rest.split_at_checked(len).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(Some(block))
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            let Some(compressed) = self.next_block()? else {
                return Ok(0);
            };
            let len = snap::raw::decompress_len(compressed)?;
            self.left = self
                .left
                .checked_sub(len)
                .ok_or_else(|| io::Error::other(TooLong))?;
            if len > compressed.len().saturating_mul(MAX_RATIO) {
                return Err(truncated());
            }
            self.block.resize(len, 0);
            snap::raw::Decoder::new().decompress(compressed, &mut self.block)?;
            self.at = 0;
        }
        let count = self.block.get(self.at..).unwrap_or_default().read(buffer)?;
        self.at += count;
        Ok(count)
    }
}

/// Compresses into the Java library's framing.
pub(super) fn compress(records: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(HEADER_BYTES + records.len() / 2 + 64);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&VERSION.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in records.chunks(BLOCK_BYTES) {
        let block = encoder.compress_vec(block)?;
        out.extend_from_slice(&(block.len() as u32).to_be_bytes());
        out.extend_from_slice(&block);
    }
    Ok(out)
}

/// Whether the reader stopped because a block announced more than the cap allows.
pub(super) fn is_too_long(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TooLong>())
}

fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "snappy stream is cut off or lies",
    )
}

#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a snappy block announces more than is allowed")
    }
}

impl std::error::Error for TooLong {}
