//! SyncGroup (14): a member asks for its assignment; the leader brings everybody's.
//!
//! Waits for the leader. From version 5 on the client says which protocol it believes in (KIP-559).

use odradek_protocol::messages::{StrBytes, SyncGroupRequest, SyncGroupResponse};

use super::Reply;
use super::group_answers::{code_of_result, copy, instance_of};
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::error::GroupError;
use crate::groups::messages::{SyncReply, SyncRequest};
use crate::groups::names::{GenerationId, GroupId, MemberId};

/// Answers SyncGroup.
pub async fn handle(
    context: RequestContext,
    request: SyncGroupRequest,
) -> Reply<SyncGroupResponse> {
    let reply = sync(&context.broker.groups, context.api_version, &request).await;
    let mut response = SyncGroupResponse::default();
    response.error_code = code_of_result(&reply);
    if let Ok(reply) = reply {
        response.protocol_type = reply.protocol_type.map(StrBytes::from);
        response.protocol_name = reply.protocol.map(StrBytes::from);
        response.assignment = reply.assignment;
    }
    Reply::Now(response)
}

async fn sync(
    groups: &Service,
    version: i16,
    request: &SyncGroupRequest,
) -> Result<SyncReply, GroupError> {
    let says_its_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
    if version >= 5 && !says_its_protocol {
        return Err(GroupError::InconsistentProtocol);
    }
    let text = |text: &StrBytes| text.as_str().to_owned();
    groups
        .sync(SyncRequest {
            group: GroupId::new(&request.group_id),
            member: MemberId::new(&request.member_id),
            instance: instance_of(request.group_instance_id.as_ref()),
            generation: GenerationId::new(request.generation_id),
            protocol_type: request.protocol_type.as_ref().map(text),
            protocol: request.protocol_name.as_ref().map(text),
            assignments: request
                .assignments
                .iter()
                .map(|assigned| {
                    (
                        MemberId::new(&assigned.member_id),
                        copy(&assigned.assignment),
                    )
                })
                .collect(),
        })
        .await
}
