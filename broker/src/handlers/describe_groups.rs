//! DescribeGroups (15): classic groups in detail, each in the order asked.
//!
//! A group that does not exist, or is of another kind, is described as Dead; version 6 also says so with
//! an error (KIP-1043).

use odradek_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use odradek_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, StrBytes};

use super::Reply;
use super::group_answers::{ALL_OPERATIONS, code_of};
use crate::context::RequestContext;
use crate::groups::error::GroupError;
use crate::groups::messages::{Described, MemberDescription};
use crate::groups::names::GroupId;

/// First version that tells of operations.
const FIRST_WITH_OPERATIONS: i16 = 3;
/// First version that reports a missing group as an error.
const FIRST_WITH_NOT_FOUND: i16 = 6;
/// Answers DescribeGroups.
pub async fn handle(
    context: RequestContext,
    request: DescribeGroupsRequest,
) -> Reply<DescribeGroupsResponse> {
    let version = context.api_version;
    let mut response = DescribeGroupsResponse::default();
    for id in request.groups {
        let described = context.broker.groups.describe(GroupId::new(&id)).await;
        let mut group = answer(version, id, described);
        if version >= FIRST_WITH_OPERATIONS
            && request.include_authorized_operations
            && group.error_code == 0
        {
            group.authorized_operations = ALL_OPERATIONS;
        }
        response.groups.push(group);
    }
    Reply::Now(response)
}

fn answer(version: i16, id: StrBytes, described: Result<Described, GroupError>) -> DescribedGroup {
    let mut group = DescribedGroup::default();
    match described {
        Ok(Described::Classic(description)) => {
            group.group_state = StrBytes::from(description.state);
            group.protocol_type = StrBytes::from(description.protocol_type);
            group.protocol_data = StrBytes::from(description.protocol);
            group.members = description.members.into_iter().map(member_of).collect();
        }
        Ok(none @ (Described::Missing | Described::OtherKind)) => {
            group.group_state = StrBytes::from("Dead");
            if version >= FIRST_WITH_NOT_FOUND {
                group.error_code = code_of(Some(GroupError::GroupNotFound));
                group.error_message = Some(StrBytes::from(match none {
                    Described::OtherKind => format!("Group {id} is not a classic group."),
                    _ => format!("Group {id} not found."),
                }));
            }
        }
        Err(error) => group.error_code = code_of(Some(error)),
    }
    group.group_id = id;
    group
}

fn member_of(description: MemberDescription) -> DescribedGroupMember {
    let mut member = DescribedGroupMember::default();
    member.member_id = StrBytes::from(description.member.as_str());
    member.group_instance_id = description
        .instance
        .map(|instance| StrBytes::from(instance.as_str()));
    member.client_id = StrBytes::from(description.client_id);
    member.client_host = StrBytes::from(description.client_host);
    member.member_metadata = description.metadata;
    member.member_assignment = description.assignment;
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_does_not_exist_is_dead_and_from_version_6_an_error() {
        let old = answer(5, StrBytes::from("g"), Ok(Described::Missing));
        assert_eq!((old.error_code, old.group_state.as_str()), (0, "Dead"));
        assert_eq!(old.error_message, None);
        let new = answer(6, StrBytes::from("g"), Ok(Described::Missing));
        assert_eq!((new.error_code, new.group_state.as_str()), (69, "Dead"));
        assert!(new.error_message.is_some());
    }
}
