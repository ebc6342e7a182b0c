//! LeaveGroup (13): members leave, or an administrator removes them.
//!
//! Up to version 2 one member leaves and the answer has one error; from version 3 on there are
//! several, each with its own (KIP-345).

use odradek_protocol::messages::leave_group_response::MemberResponse;
use odradek_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse, StrBytes};

use super::Reply;
use super::group_answers::{code_of, code_of_result, instance_of};
use crate::context::RequestContext;
use crate::groups::error::GroupError;
use crate::groups::messages::{LeaveRequest, LeavingMember};
use crate::groups::names::{GroupId, MemberId};

/// Why a member leaves, where it does not say.
const NO_REASON: &str = "not provided";

/// Answers LeaveGroup.
pub async fn handle(
    context: RequestContext,
    request: LeaveGroupRequest,
) -> Reply<LeaveGroupResponse> {
    let leave = LeaveRequest {
        group: GroupId::new(&request.group_id),
        members: leaving(context.api_version, &request),
    };
    let members = leave.members.clone();
    let result = context.broker.groups.leave(leave).await;
    Reply::Now(response(context.api_version, &members, &result))
}

fn leaving(version: i16, request: &LeaveGroupRequest) -> Vec<LeavingMember> {
    if version <= 2 {
        return vec![LeavingMember {
            member: MemberId::new(&request.member_id),
            instance: None,
            reason: NO_REASON.to_owned(),
        }];
    }
    let members = request.members.iter().map(|member| LeavingMember {
        member: MemberId::new(&member.member_id),
        instance: instance_of(member.group_instance_id.as_ref()),
        reason: member
            .reason
            .as_ref()
            .map_or(NO_REASON, StrBytes::as_str)
            .to_owned(),
    });
    members.collect()
}

fn response(
    version: i16,
    members: &[LeavingMember],
    result: &Result<Vec<Result<(), GroupError>>, GroupError>,
) -> LeaveGroupResponse {
    let mut response = LeaveGroupResponse::default();
    let results = match result {
        Ok(results) => results,
        Err(error) => {
            response.error_code = code_of(Some(*error));
            return response;
        }
    };
    if version <= 2 {
        response.error_code = results.first().map_or(0, code_of_result);
        return response;
    }
    let answer = |(member, result): (&LeavingMember, &Result<(), GroupError>)| {
        let mut answer = MemberResponse::default();
        answer.member_id = StrBytes::from(member.member.as_str());
        answer.group_instance_id = member
            .instance
            .as_ref()
            .map(|instance| StrBytes::from(instance.as_str()));
        answer.error_code = code_of_result(result);
        answer
    };
    response.members = members.iter().zip(results).map(answer).collect();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_carry_the_one_error_at_the_top() {
        let members = [LeavingMember {
            member: MemberId::new("m"),
            instance: None,
            reason: String::new(),
        }];
        let results = Ok(vec![Err(GroupError::UnknownMember)]);
        let old = response(2, &members, &results);
        assert_eq!((old.error_code, old.members.len()), (25, 0));
        let new = response(3, &members, &results);
        assert_eq!((new.error_code, new.members[0].error_code), (0, 25));
        let failed = response(5, &members, &Err(GroupError::NotCoordinator));
        assert_eq!((failed.error_code, failed.members.len()), (16, 0));
    }
}
