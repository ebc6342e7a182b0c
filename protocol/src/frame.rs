//! Cutting a byte stream into request frames, with limits that hold before memory is taken.
//!
//! The decoder never allocates. Its caller reads into one buffer and is told, once the length and
//! the first eight bytes of a frame are there, how long the frame is and which API it is for
//! ([`FrameEvent::Announced`]): that is the moment to reserve memory from the budget, and to
//! refuse. A frame that is too long or impossible is an error as soon as its first four bytes are.

use bytes::{Bytes, BytesMut};

use crate::api::ApiKey;
use crate::error::ProtocolError;
use crate::ids::CorrelationId;

/// Bytes of the length prefix.
pub const LENGTH_PREFIX_BYTES: usize = 4;

/// Frames up to this length count as they are.
const ORDINARY_BYTES: usize = 64 << 10;

/// API key, API version and correlation id: what every request starts with.
const HEAD_BYTES: usize = 8;

/// How long a request frame may be, by what is known of its sender. All in bytes, without the
/// length prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Before authentication.
    pub unauthenticated_max_bytes: usize,
    /// APIs that carry record batches or group assignments: `socket.request.max.bytes`.
    pub bulk_max_bytes: usize,
    /// Every other API. Their messages can turn into many small objects that take many times the
    /// bytes of the frame ([`FrameHead::memory_bytes`]), so this is kept well below the bulk limit.
    pub other_max_bytes: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            unauthenticated_max_bytes: 64 << 10,
            bulk_max_bytes: 100 << 20,
            other_max_bytes: 8 << 20,
        }
    }
}

impl FrameLimits {
    /// The limits under `socket.request.max.bytes = max_bytes`; none is above it.
    pub fn with_request_max_bytes(max_bytes: usize) -> Self {
        let defaults = Self::default();
        Self {
            unauthenticated_max_bytes: defaults.unauthenticated_max_bytes.min(max_bytes),
            bulk_max_bytes: max_bytes,
            other_max_bytes: defaults.other_max_bytes.min(max_bytes),
        }
    }

    fn for_api(&self, key: i16) -> usize {
        if is_bulk(key) {
            self.bulk_max_bytes
        } else {
            self.other_max_bytes
        }
    }
}

/// Whether requests of this API are mostly records or opaque bytes, which stay one piece.
fn is_bulk(key: i16) -> bool {
    matches!(
        ApiKey::from_key(key),
        Some(
            ApiKey::Produce
                | ApiKey::JoinGroup
                | ApiKey::SyncGroup
                | ApiKey::OffsetCommit
                | ApiKey::TxnOffsetCommit
        )
    )
}

/// What is known of a frame before it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Length in bytes, without the prefix.
    pub length: usize,
    /// API key, not yet known to exist.
    pub api_key: i16,
    /// API version, not yet known to be served.
    pub api_version: i16,
    /// Number that the response must carry.
    pub correlation_id: CorrelationId,
}

impl FrameHead {
    /// Memory that the request may take once it is decoded: what to reserve for it.
    ///
    /// More than the frame's own bytes only for large frames of arrays: an array of empty strings
    /// takes 32 bytes for every one in the frame. Small ones of those are not worth the waiting.
    pub fn memory_bytes(&self) -> usize {
        if self.length <= ORDINARY_BYTES || is_bulk(self.api_key) {
            return self.length;
        }
        let decoded_per_byte = match ApiKey::from_key(self.api_key) {
            // An element of no more than a few times its encoded size.
            Some(ApiKey::Fetch | ApiKey::ListOffsets) => 4,
            _ => 32,
        };
        self.length.saturating_mul(decoded_per_byte)
    }
}

/// What the decoder found at the front of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// Read at least this many more bytes into the buffer, then ask again.
    Incomplete {
        /// Missing bytes. At most the rest of an announced frame.
        missing: usize,
    },
    /// A frame has begun. Comes once a frame; ask again once memory is reserved for it.
    Announced(FrameHead),
    /// A frame is complete and off the buffer.
    Frame {
        /// As announced.
        head: FrameHead,
        /// Header and body, without the length prefix; shares the buffer's memory.
        bytes: Bytes,
    },
}

/// Finds frames at the front of a connection's read buffer.
#[derive(Debug)]
pub struct FrameDecoder {
    limits: FrameLimits,
    authenticated: bool,
    announced: Option<FrameHead>,
}

impl FrameDecoder {
    /// A decoder for a connection that is yet to authenticate.
    pub fn new(limits: FrameLimits) -> Self {
        Self {
            limits,
            authenticated: false,
            announced: None,
        }
    }

    /// From the next frame on, the limits for known peers apply.
    pub fn set_authenticated(&mut self) {
        self.authenticated = true;
    }

    /// The announced frame has been read past the decoder, from its length prefix to its end.
    pub fn frame_taken(&mut self) {
        self.announced = None;
    }

    /// Looks at the front of `buffer`. After an error the stream cannot be followed any further.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<FrameEvent, ProtocolError> {
        if let Some(head) = self.announced {
            let total = LENGTH_PREFIX_BYTES + head.length;
            if buffer.len() < total {
                return Ok(FrameEvent::Incomplete {
                    missing: total - buffer.len(),
                });
            }
            self.announced = None;
            let mut frame = buffer.split_to(total);
            let bytes = frame.split_off(LENGTH_PREFIX_BYTES).freeze();
            return Ok(FrameEvent::Frame { head, bytes });
        }

        let Some((&prefix, rest)) = buffer.split_first_chunk::<LENGTH_PREFIX_BYTES>() else {
            return Ok(FrameEvent::Incomplete {
                missing: LENGTH_PREFIX_BYTES + HEAD_BYTES - buffer.len(),
            });
        };
        let length = self.check_length(i32::from_be_bytes(prefix))?;
        let Some(&[k0, k1, v0, v1, c0, c1, c2, c3]) = rest.first_chunk::<HEAD_BYTES>() else {
            return Ok(FrameEvent::Incomplete {
                missing: HEAD_BYTES - rest.len(),
            });
        };
        let head = FrameHead {
            length,
            api_key: i16::from_be_bytes([k0, k1]),
            api_version: i16::from_be_bytes([v0, v1]),
            correlation_id: CorrelationId::new(i32::from_be_bytes([c0, c1, c2, c3])),
        };
        if self.authenticated {
            let limit = self.limits.for_api(head.api_key);
            if length > limit {
                return Err(ProtocolError::FrameTooLarge { length, limit });
            }
        }
        self.announced = Some(head);
        Ok(FrameEvent::Announced(head))
    }

    /// The checks that need the length alone.
    fn check_length(&self, length: i32) -> Result<usize, ProtocolError> {
        let length =
            usize::try_from(length).map_err(|_| ProtocolError::NegativeFrameLength { length })?;
        if length < HEAD_BYTES {
            return Err(ProtocolError::FrameTooShort { length });
        }
        let limit = if self.authenticated {
            self.limits.bulk_max_bytes.max(self.limits.other_max_bytes)
        } else {
            self.limits.unauthenticated_max_bytes
        };
        if length > limit {
            return Err(ProtocolError::FrameTooLarge { length, limit });
        }
        Ok(length)
    }
}
