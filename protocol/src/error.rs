//! What can be wrong with the bytes of a connection, by cause.
//!
//! Causes that concern a record batch are [`crate::batch::BatchError`]: they go into a response,
//! whereas most of these end the connection.

use kafka_wire_core::{DecodeError, EncodeError};

/// A frame, header or body that cannot be read or written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// The length prefix is negative.
    #[error("frame length {length} is negative")]
    NegativeFrameLength {
        /// The prefix as it stood on the wire.
        length: i32,
    },
    /// The frame is too short to hold any request header.
    #[error("frame of {length} bytes is too short for a request header")]
    FrameTooShort {
        /// The announced length in bytes.
        length: usize,
    },
    /// The frame is longer than the limit that applies to it.
    #[error("frame of {length} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The announced length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// No API of Kafka's has this key.
    #[error("unknown API key {key}")]
    UnknownApiKey {
        /// The key as it stood on the wire.
        key: i16,
    },
    /// The API exists, but not at this version.
    #[error("{api:?} has no version {version}")]
    UnsupportedVersion {
        /// The API.
        api: crate::api::ApiKey,
        /// The version as it stood on the wire.
        version: i16,
    },
    /// A header or body does not follow its schema.
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// A response cannot be represented at the version it is to be sent in.
    #[error("cannot encode: {0}")]
    NotRepresentable(#[from] EncodeError),
    /// A response is longer than a frame can be (2³¹−1 bytes).
    #[error("response of {length} bytes does not fit a frame")]
    ResponseTooLarge {
        /// Length in bytes, without the prefix.
        length: usize,
    },
}
