//! DeleteGroups (42): groups without members, and their offsets, go away (KIP-229).

use std::collections::HashSet;

use odradek_protocol::messages::delete_groups_response::DeletableGroupResult;
use odradek_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::Reply;
use super::group_answers::code_of_result;
use crate::context::RequestContext;
use crate::groups::names::GroupId;

/// Answers DeleteGroups. A group named twice is deleted, and answered, once.
pub async fn handle(
    context: RequestContext,
    request: DeleteGroupsRequest,
) -> Reply<DeleteGroupsResponse> {
    let mut response = DeleteGroupsResponse::default();
    let mut seen = HashSet::new();
    for id in request.groups_names {
        if !seen.insert(id.clone()) {
            continue;
        }
        let deleted = context.broker.groups.delete(GroupId::new(&id)).await;
        let mut result = DeletableGroupResult::default();
        result.error_code = code_of_result(&deleted);
        result.group_id = id;
        response.results.push(result);
    }
    Reply::Now(response)
}
