//! The header in front of every request.

use bytes::Bytes;
use kafka_wire_core::{ApiVersion, DecodeLimits, Decoder, KafkaDecode, StrBytes};

use crate::api::{self, ApiKey};
use crate::error::ProtocolError;
use crate::ids::CorrelationId;

/// A request's header, of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Key of the API, known to exist.
    pub api_key: ApiKey,
    /// Version of the API. Not yet checked against what is served.
    pub api_version: i16,
    /// Number that the response must carry.
    pub correlation_id: CorrelationId,
    /// Name the client gives itself.
    pub client_id: Option<StrBytes>,
}

impl RequestHeader {
    /// Reads the header off the front of a frame (without its length prefix) and leaves the body.
    ///
    /// The version of the header follows from the API and its version: the header of a flexible
    /// request ends in tagged fields, which are skipped.
    pub fn parse(frame: &mut Bytes) -> Result<Self, ProtocolError> {
        let key = match frame.get(..2) {
            Some(&[high, low]) => i16::from_be_bytes([high, low]),
            _ => {
                return Err(ProtocolError::FrameTooShort {
                    length: frame.len(),
                });
            }
        };
        let api_version = match frame.get(2..4) {
            Some(&[high, low]) => i16::from_be_bytes([high, low]),
            _ => {
                return Err(ProtocolError::FrameTooShort {
                    length: frame.len(),
                });
            }
        };
        let api_key = ApiKey::from_key(key).ok_or(ProtocolError::UnknownApiKey { key })?;
        let header_version =
            kafka_wire::request_header_version(api::request_is_flexible(api_key, api_version));
        let mut limits = DecodeLimits::default();
        limits.max_frame_bytes = frame.len();
        let mut decoder = Decoder::new(frame.clone(), limits)?;
        let header =
            kafka_wire::RequestHeader::decode(&mut decoder, ApiVersion::new(header_version))?;
        *frame = decoder.take_bytes(decoder.remaining())?;
        Ok(Self {
            api_key,
            api_version,
            correlation_id: CorrelationId::new(header.correlation_id),
            client_id: header.client_id,
        })
    }
}
