//! What the handlers of group APIs share: small steps between the wire and the coordinator.

use std::net::IpAddr;

use bytes::Bytes;
use odradek_protocol::ErrorCode;
use odradek_protocol::messages::StrBytes;

use crate::groups::error::GroupError;
use crate::groups::names::InstanceId;

/// Everything that can be authorized on a group, as bits: read, delete, describe, describe
/// configs, alter configs. Without an authorizer everybody may.
pub(super) const ALL_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// The code on the wire.
pub(super) fn code_of(error: Option<GroupError>) -> i16 {
    error.map_or(ErrorCode::None, GroupError::code).code()
}

/// The code on the wire for a result without a value.
pub(super) fn code_of_result<T>(result: &Result<T, GroupError>) -> i16 {
    code_of(result.as_ref().err().copied())
}

/// Bytes of their own. A slice would keep the whole request frame in memory for as long as the
/// coordinator holds it.
pub(super) fn copy(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// `group.instance.id` of a request.
pub(super) fn instance_of(id: Option<&StrBytes>) -> Option<InstanceId> {
    id.map(|id| InstanceId::new(id))
}

/// A random UUID of version 4 as text, as Kafka's member ids end with one.
pub(super) fn random_uuid() -> String {
    let random: u128 = rand::random();
    let uuid = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{uuid:032x}");
    let part = |range| hex.get(range).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32)
    )
}

/// An address as Java prints it, which is what tools expect to find in a group's record.
pub(super) fn java_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("/{address}"),
        IpAddr::V6(address) => {
            let parts: Vec<String> = address
                .segments()
                .iter()
                .map(|segment| format!("{segment:x}"))
                .collect();
            format!("/{}", parts.join(":"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_java_prints_them() {
        assert_eq!(java_address([127, 0, 0, 1].into()), "/127.0.0.1");
        assert_eq!(
            java_address([0, 0, 0, 0, 0, 0, 0, 1].into()),
            "/0:0:0:0:0:0:0:1"
        );
    }

    #[test]
    fn member_ids_end_with_a_random_uuid_of_version_4() {
        let uuid = random_uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&uuid.as_bytes()[19]));
        assert_ne!(uuid, random_uuid());
    }
}
