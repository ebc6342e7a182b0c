//! Zstandard, with one decompression context a thread that is used again.
//!
//! Making a context costs more than decompressing a small batch does. An idle one keeps its window
//! buffer, so a context is kept only while little has gone through it.

use std::cell::RefCell;
use std::io::{self, Read};

use zstd::stream::raw::{Decoder, Operation};

use crate::batch::BatchError;

/// A context that has produced more than this is given back to the allocator.
const MAX_PRODUCED_BY_IDLE: usize = 1 << 20;

thread_local! {
    static IDLE: RefCell<Option<Decoder<'static>>> = const { RefCell::new(None) };
}

/// Decompresses one or more frames.
pub(super) struct Reader<'a> {
    /// Absent only while the reader is dropped.
    context: Option<Decoder<'static>>,
    rest: &'a [u8],
    produced: usize,
    /// A frame has begun and not ended.
    in_frame: bool,
}

impl<'a> Reader<'a> {
    /// Fails if the first frame itself announces more than `max_bytes`.
    pub(super) fn new(compressed: &'a [u8], max_bytes: usize) -> Result<Self, BatchError> {
        // Without an announcement, or without a frame, decompression finds out.
        if let Ok(Some(announced)) = zstd::zstd_safe::get_frame_content_size(compressed)
            && announced > max_bytes as u64
        {
            return Err(BatchError::ExpandsTooFar { limit: max_bytes });
        }
        let context = match IDLE.take() {
            Some(context) => context,
            None => Decoder::new().map_err(|error| BatchError::Undecompressible {
                reason: error.to_string(),
            })?,
        };
        Ok(Self {
            context: Some(context),
            rest: compressed,
            produced: 0,
            in_frame: false,
        })
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(context) = self.context.as_mut().filter(|_| !buffer.is_empty()) else {
            return Ok(0);
        };
        loop {
            if self.rest.is_empty() && !self.in_frame {
                return Ok(0);
            }
            let step = context.run_on_buffers(self.rest, buffer)?;
            self.rest = self.rest.get(step.bytes_read..).unwrap_or_default();
            self.in_frame = step.remaining != 0;
            if !self.in_frame {
                context.reinit()?;
            }
            if step.bytes_written > 0 {
                self.produced = self.produced.saturating_add(step.bytes_written);
                return Ok(step.bytes_written);
            }
            if self.rest.is_empty() && self.in_frame {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "zstd frame is cut off",
                ));
            }
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some(mut context) = self.context.take()
            && self.produced <= MAX_PRODUCED_BY_IDLE
            && context.reinit().is_ok()
        {
            IDLE.set(Some(context));
        }
    }
}
