//! Heartbeat (12): a member says that it is alive, and learns whether it must join again.

use odradek_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use super::Reply;
use super::group_answers::{code_of_result, instance_of};
use crate::context::RequestContext;
use crate::groups::messages;
use crate::groups::names::{GenerationId, GroupId, MemberId};

/// Answers Heartbeat.
pub async fn handle(
    context: RequestContext,
    request: HeartbeatRequest,
) -> Reply<HeartbeatResponse> {
    let heartbeat = messages::HeartbeatRequest {
        group: GroupId::new(&request.group_id),
        member: MemberId::new(&request.member_id),
        instance: instance_of(request.group_instance_id.as_ref()),
        generation: GenerationId::new(request.generation_id),
    };
    let result = context.broker.groups.heartbeat(heartbeat).await;
    let mut response = HeartbeatResponse::default();
    response.error_code = code_of_result(&result);
    Reply::Now(response)
}
