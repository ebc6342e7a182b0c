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

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(key: i16, version: i16, rest: &[u8]) -> Bytes {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes.extend_from_slice(&version.to_be_bytes());
        bytes.extend_from_slice(&77_i32.to_be_bytes());
        bytes.extend_from_slice(rest);
        bytes.into()
    }

    #[test]
    fn both_header_versions_leave_exactly_the_body() {
        let client = [&[0, 3][..], b"abc"].concat();
        // Metadata is flexible from version 9 on: then tagged fields follow, here one of two bytes.
        let old = [&client[..], b"body"].concat();
        let new = [&client[..], &[1, 5, 2, 9, 9], b"body"].concat();
        for (version, rest) in [(8, old), (9, new)] {
            let mut bytes = frame(3, version, &rest);
            let header = RequestHeader::parse(&mut bytes).expect("is well-formed");
            assert_eq!(header.api_key, ApiKey::Metadata);
            assert_eq!(header.api_version, version);
            assert_eq!(header.correlation_id.get(), 77);
            assert_eq!(header.client_id.as_deref(), Some("abc"));
            assert_eq!(bytes, b"body"[..]);
        }
        let mut bytes = frame(3, 0, &[0xff, 0xff]);
        let header = RequestHeader::parse(&mut bytes).expect("is well-formed");
        assert_eq!(header.client_id, None);
        assert!(bytes.is_empty());
    }

    #[test]
    fn api_versions_of_the_future_still_has_a_readable_header() {
        let mut bytes = frame(18, 99, &[0xff, 0xff, 0]);
        let header = RequestHeader::parse(&mut bytes).expect("is well-formed");
        assert_eq!(
            (header.api_key, header.api_version),
            (ApiKey::ApiVersions, 99)
        );
    }

    #[test]
    fn headers_that_end_early_or_name_no_api_are_refused() {
        let whole = frame(3, 9, &[0, 3, b'a', b'b', b'c', 0]);
        for cut in 0..whole.len() {
            assert!(
                RequestHeader::parse(&mut whole.slice(..cut)).is_err(),
                "{cut}"
            );
        }
        assert_eq!(
            RequestHeader::parse(&mut frame(1000, 0, &[0xff, 0xff])),
            Err(ProtocolError::UnknownApiKey { key: 1000 })
        );
        let not_utf8 = RequestHeader::parse(&mut frame(3, 8, &[0, 1, 0xff]));
        assert!(matches!(not_utf8, Err(ProtocolError::Malformed(_))));
        let negative = RequestHeader::parse(&mut frame(3, 8, &[0xff, 0xfe]));
        assert!(matches!(negative, Err(ProtocolError::Malformed(_))));
    }
}
