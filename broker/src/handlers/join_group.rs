//! JoinGroup (11): a consumer becomes, or stays, a member of its group.
//!
//! Waits for the end of the rebalance. Version 4 and later make a new member come back with the id
//! it is given (KIP-394), version 5 knows static members (KIP-345), version 9 tells a leader that
//! its assignment stands (KIP-814).

use std::net::IpAddr;

use odradek_protocol::messages::join_group_response::JoinGroupResponseMember;
use odradek_protocol::messages::{JoinGroupRequest, JoinGroupResponse, StrBytes};

use super::Reply;
use super::group_answers::{code_of, copy, instance_of, java_address, random_uuid};
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::error::GroupError;
use crate::groups::messages::{JoinReply, JoinRequest, JoinedMember, MemberProtocol};
use crate::groups::names::{GroupId, InstanceId, MemberId};
use crate::metadata::topic_name;

/// How much of a client's name its member id begins with, at most.
const MAX_PREFIX_CHARS: usize = 255;

/// Answers JoinGroup.
pub async fn handle(
    context: RequestContext,
    request: JoinGroupRequest,
) -> Reply<JoinGroupResponse> {
    let version = context.api_version;
    let client = Client {
        id: context.client_id.as_deref().unwrap_or_default(),
        address: context.connection.peer.ip(),
    };
    let reply = join(&context.broker.groups, version, &client, &request).await;
    Reply::Now(response(version, reply))
}

/// What a member is known by besides its request.
struct Client<'a> {
    id: &'a str,
    address: IpAddr,
}

async fn join(
    groups: &Service,
    version: i16,
    client: &Client<'_>,
    request: &JoinGroupRequest,
) -> JoinReply {
    let instance = instance_of(request.group_instance_id.as_ref());
    let is_named_well = |instance: &InstanceId| topic_name::validate(instance.as_str()).is_ok();
    if !instance.as_ref().is_none_or(is_named_well) {
        let member = MemberId::new(&request.member_id);
        return JoinReply::refused(GroupError::InvalidRequest, member);
    }
    let prefix = instance.as_ref().map_or(client.id, InstanceId::as_str);
    // A client id may be as long as a string can be, and the id of a member must fit into one.
    let prefix: String = prefix.chars().take(MAX_PREFIX_CHARS).collect();
    let protocols = request.protocols.iter().map(|protocol| MemberProtocol {
        name: protocol.name.as_str().to_owned(),
        metadata: copy(&protocol.metadata),
    });
    let join = JoinRequest {
        group: GroupId::new(&request.group_id),
        member: MemberId::new(&request.member_id),
        fresh_member: MemberId::new(&format!("{prefix}-{}", random_uuid())),
        instance,
        client_id: client.id.to_owned(),
        client_host: java_address(client.address),
        session_timeout_ms: request.session_timeout_ms,
        // Version 0 has one timeout for both.
        rebalance_timeout_ms: if version == 0 {
            request.session_timeout_ms
        } else {
            request.rebalance_timeout_ms
        },
        protocol_type: request.protocol_type.as_str().to_owned(),
        protocols: protocols.collect(),
        member_id_required: version >= 4,
        can_skip_assignment: version >= 9,
        reason: request
            .reason
            .as_ref()
            .map_or("not provided", StrBytes::as_str)
            .to_owned(),
    };
    groups.join(join).await
}

fn response(version: i16, reply: JoinReply) -> JoinGroupResponse {
    let mut response = JoinGroupResponse::default();
    response.error_code = code_of(reply.error);
    response.generation_id = reply.generation.get();
    response.protocol_type = reply.protocol_type.map(StrBytes::from);
    // Null only from version 7 on.
    response.protocol_name = match reply.protocol {
        Some(protocol) => Some(StrBytes::from(protocol)),
        None if version >= 7 => None,
        None => Some(StrBytes::default()),
    };
    response.leader = StrBytes::from(reply.leader.as_str());
    response.skip_assignment = reply.skip_assignment;
    response.member_id = StrBytes::from(reply.member.as_str());
    response.members = reply.members.into_iter().map(member_of).collect();
    response
}

fn member_of(joined: JoinedMember) -> JoinGroupResponseMember {
    let mut member = JoinGroupResponseMember::default();
    member.member_id = StrBytes::from(joined.member.as_str());
    member.group_instance_id = joined
        .instance
        .map(|instance| StrBytes::from(instance.as_str()));
    member.metadata = joined.metadata;
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_protocol_is_null_only_where_the_version_allows_it() {
        let reply = JoinReply::refused(GroupError::UnknownMember, MemberId::new("m"));
        assert_eq!(response(7, reply.clone()).protocol_name, None);
        assert_eq!(response(6, reply).protocol_name, Some(StrBytes::default()));
    }
}
