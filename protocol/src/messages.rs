//! The message types of the wire, as the generated codec gives them.
//!
//! Everything outside this crate takes the types from here, so that the codec behind them can be
//! replaced in one place. Its structs are open-ended (`#[non_exhaustive]`), hence [`message!`]
//! for building them.

pub use kafka_wire::*;
pub use kafka_wire_core::{
    ApiVersion, Bytes, BytesMut, DecodeError, DecodeLimits, EncodeError, KafkaDecode, KafkaEncode,
    StrBytes, TaggedField, TaggedFields, Uuid, VersionRange,
};

/// Builds a message from its defaults and the named fields: `message!(Type { field: value, other })`.
///
/// The type is a path to one of the structs in [`crate::messages`]; a field without a value takes
/// the variable of its name.
#[macro_export]
macro_rules! message {
    ($ty:path { $($field:ident $(: $value:expr)?),* $(,)? }) => {{
        #[allow(unused_mut)]
        let mut built = <$ty as ::core::default::Default>::default();
        $($crate::message!(@set built $field $($value)?);)*
        built
    }};
    (@set $built:ident $field:ident $value:expr) => {
        $built.$field = $value
    };
    (@set $built:ident $field:ident) => {
        $built.$field = $field
    };
}

pub use crate::message;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_defaults_plus_the_named_fields() {
        let throttle_time_ms = 7;
        let built = message!(HeartbeatResponse {
            throttle_time_ms,
            error_code: 3,
        });
        assert_eq!((built.throttle_time_ms, built.error_code), (7, 3));
        let nested = message!(metadata_response::MetadataResponseBroker { node_id: 1 });
        assert_eq!(nested.node_id, 1);
        assert_eq!(nested.port, 0);
    }
}
