//! ListGroups (16): the groups that this broker coordinates, by state (KIP-518) and kind (KIP-848).

use odradek_protocol::messages::list_groups_response::ListedGroup;
use odradek_protocol::messages::{ListGroupsRequest, ListGroupsResponse, StrBytes};

use super::Reply;
use super::group_answers::code_of;
use crate::context::RequestContext;
use crate::groups::messages::{GroupListing, ListRequest};

/// Answers ListGroups.
pub async fn handle(
    context: RequestContext,
    request: ListGroupsRequest,
) -> Reply<ListGroupsResponse> {
    let lower = |names: &[StrBytes]| -> Vec<String> {
        names
            .iter()
            .map(|name| name.trim().to_lowercase())
            .collect()
    };
    let list = ListRequest {
        states: lower(&request.states_filter),
        kinds: lower(&request.types_filter),
    };
    let mut response = ListGroupsResponse::default();
    match context.broker.groups.list(&list).await {
        Ok(groups) => response.groups = groups.into_iter().map(listed).collect(),
        Err(error) => response.error_code = code_of(Some(error)),
    }
    Reply::Now(response)
}

fn listed(group: GroupListing) -> ListedGroup {
    let mut listed = ListedGroup::default();
    listed.group_id = StrBytes::from(group.group.as_str());
    listed.protocol_type = StrBytes::from(group.protocol_type);
    listed.group_state = StrBytes::from(group.state);
    listed.group_type = StrBytes::from(group.kind);
    listed
}
