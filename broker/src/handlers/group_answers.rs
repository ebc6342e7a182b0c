//! What the handlers of group APIs share: small steps between the wire and the coordinator.

use bytes::Bytes;
use odradek_protocol::ErrorCode;
use odradek_protocol::messages::StrBytes;

use crate::groups::error::GroupError;
use crate::groups::names::InstanceId;

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
