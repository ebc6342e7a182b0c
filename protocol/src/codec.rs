//! Primitives of Kafka's encodings, for records that are not requests or responses: the metadata
//! log and the coordinators' logs are written with the same strings, arrays and tagged fields.
//!
//! The decoder checks every length against its limits and against what is left of the input.

pub use kafka_wire_core::{
    ApiVersion, BufferTarget, DecodeError, DecodeLimits, Decoder, EncodeError, EncodeTarget,
    Encoder, KafkaDecode, KafkaEncode, StrBytes, TagOutcome, TaggedField, TaggedFields, Uuid,
};
