//! Decoding of request bodies, within limits that follow from the frame.

use bytes::Bytes;
use kafka_wire::KafkaRequest;
use kafka_wire_core::{ApiVersion, DecodeLimits, Decoder};

use crate::error::ProtocolError;

/// Largest number of elements of any one array in a request.
const MAX_ARRAY_ELEMENTS: usize = 1_000_000;

/// Largest number of tagged fields of any one structure in a request.
const MAX_TAGGED_FIELDS: usize = 1_024;

/// Decodes a message off the front of `body`, which is what
/// [`crate::header::RequestHeader::parse`] left. Bytes behind the message are ignored, as Kafka
/// ignores them.
///
/// Byte and string fields of the message are slices of `body`: nothing is copied. Nothing is
/// reserved by a count that the bytes at hand cannot back.
pub fn decode<M: KafkaRequest>(body: Bytes, version: i16) -> Result<M, ProtocolError> {
    let version = ApiVersion::new(version);
    let limits = limits(body.len());
    let mut decoder = Decoder::new(body, limits)?;
    Ok(M::decode(&mut decoder, version)?)
}

/// Limits for a body of `len` bytes: no part can be larger than the whole, and an array has at
/// most as many elements as there are bytes.
fn limits(len: usize) -> DecodeLimits {
    let mut limits = DecodeLimits::default();
    limits.max_frame_bytes = len;
    limits.max_string_bytes = len;
    limits.max_bytes_bytes = len;
    limits.max_array_elements = len.min(MAX_ARRAY_ELEMENTS);
    limits.max_tagged_fields = len.min(MAX_TAGGED_FIELDS);
    limits.max_tag_bytes = len;
    limits.max_total_tag_bytes = len;
    limits
}
