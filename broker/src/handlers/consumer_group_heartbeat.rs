//! ConsumerGroupHeartbeat (68): a consumer joins its group, tells that it is there and what it has, and
//! hears what it is to have (KIP-848).
//!
//! From version 1 on the client chooses its own id, and may subscribe by a regular expression
//! (KIP-1082, KIP-848). What a member leaves out has not changed since its last heartbeat.

use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_protocol::messages::consumer_group_heartbeat_request::TopicPartitions as OwnedTopic;
use odradek_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use odradek_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, StrBytes,
};

use super::Reply;
use super::group_answers::{instance_of, java_address, random_uuid};
use crate::context::RequestContext;
use crate::groups::Service;
use crate::groups::consumer::Refusal;
use crate::groups::consumer::assignment::Partitions;
use crate::groups::consumer::assignors::Assignor;
use crate::groups::error::GroupError;
use crate::groups::messages::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest};
use crate::groups::names::{Epoch, GroupId, MemberId, TopicName};
use crate::metadata::features;

/// First version whose client chooses its own id.
const FIRST_WITH_OWN_ID: i16 = 1;
/// "It did not change", for the rebalance timeout.
const UNCHANGED: i32 = -1;

/// Answers ConsumerGroupHeartbeat.
pub async fn handle(
    context: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
) -> Reply<ConsumerGroupHeartbeatResponse> {
    let answered = answer(&context, request).await;
    let mut response = ConsumerGroupHeartbeatResponse::default();
    match answered {
        Ok(reply) => {
            response.member_id = Some(StrBytes::from(reply.member.as_str()));
            response.member_epoch = reply.epoch.get();
            response.heartbeat_interval_ms = reply.heartbeat_interval_ms;
            response.assignment = reply.assignment.as_ref().map(assignment_of);
        }
        Err(refusal) => {
            response.error_code = refusal.error.code().code();
            response.error_message = Some(StrBytes::from(refusal.message));
        }
    }
    Reply::Now(response)
}

async fn answer(
    context: &RequestContext,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<ConsumerHeartbeatReply, Refusal> {
    if !features::serves_consumer_groups(&context.broker.metadata.image()) {
        return Err(GroupError::UnsupportedVersion.into());
    }
    let groups = &context.broker.groups;
    check(groups, context.api_version, &request)?;
    let mut asked = to_asked(&request);
    asked.client_id = context.client_id.clone().unwrap_or_default();
    asked.client_host = java_address(context.connection.peer.ip());
    groups.consumer_heartbeat(asked).await
}

/// Refuses what contradicts itself, before anybody is asked.
fn check(
    groups: &Service,
    version: i16,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<(), Refusal> {
    let epoch = Epoch::new(request.member_epoch);
    let refuse = |message: &str| Err(Refusal::new(GroupError::InvalidRequest, message));
    let is_blank = |text: &str| text.trim().is_empty();
    let is_blank_if_there = |text: &Option<StrBytes>| text.as_deref().is_some_and(is_blank);
    let needs_id =
        version >= FIRST_WITH_OWN_ID || epoch > Epoch::JOINING || epoch == Epoch::LEAVING;
    if needs_id && is_blank(&request.member_id) {
        return refuse("A member needs an id.");
    }
    if is_blank(&request.group_id) {
        return refuse("A group needs an id.");
    }
    if is_blank_if_there(&request.instance_id) {
        return refuse("An instance id, if there is one, is not empty.");
    }
    if is_blank_if_there(&request.rack_id) {
        return refuse("A rack, if there is one, is not empty.");
    }
    if epoch == Epoch::JOINING {
        if request.rebalance_timeout_ms == UNCHANGED {
            return refuse("A member that joins says how long a rebalance may take.");
        }
        if request
            .topic_partitions
            .as_ref()
            .is_none_or(|owned| !owned.is_empty())
        {
            return refuse("A member that joins has no partitions, and says so.");
        }
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return refuse("A member that joins says what it is subscribed to.");
        }
    } else if epoch == Epoch::AWAY && request.instance_id.is_none() {
        return refuse("Only a static member goes away for a while.");
    } else if epoch < Epoch::AWAY {
        return refuse("There is no such epoch.");
    }
    let known = &groups.consumer_settings().assignors;
    match &request.server_assignor {
        Some(name)
            if !known
                .iter()
                .any(|assignor| assignor.name() == name.as_str()) =>
        {
            let names: Vec<&str> = known.iter().copied().map(Assignor::name).collect();
            let message = format!("There is no assignor {name}, only {}.", names.join(", "));
            Err(Refusal::new(GroupError::UnsupportedAssignor, message))
        }
        Some(_) | None => Ok(()),
    }
}

fn to_asked(request: &ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeatRequest {
    let text = |text: &Option<StrBytes>| text.as_ref().map(|text| text.as_str().to_owned());
    let topics = request.subscribed_topic_names.as_ref().map(|names| {
        let mut topics: Vec<TopicName> = names.iter().map(|name| TopicName::new(name)).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    });
    let member = match request.member_id.is_empty() {
        true => MemberId::new(&random_uuid()),
        false => MemberId::new(&request.member_id),
    };
    ConsumerHeartbeatRequest {
        group: GroupId::new(&request.group_id),
        member,
        epoch: Epoch::new(request.member_epoch),
        instance: instance_of(request.instance_id.as_ref()),
        rack: text(&request.rack_id),
        rebalance_timeout_ms: Some(request.rebalance_timeout_ms).filter(|ms| *ms != UNCHANGED),
        topics,
        regex: text(&request.subscribed_topic_regex),
        assignor: text(&request.server_assignor),
        owned: request.topic_partitions.as_deref().map(owned_of),
        client_id: String::new(),
        client_host: String::new(),
    }
}

fn owned_of(topics: &[OwnedTopic]) -> Partitions {
    let partitions = topics.iter().flat_map(|topic| {
        let id: TopicId = topic.topic_id.into();
        let indexes = topic.partitions.iter().copied();
        indexes.map(move |index| (id, PartitionIndex::new(index)))
    });
    partitions.collect()
}

fn assignment_of(partitions: &Partitions) -> Assignment {
    let topics = partitions.topics().map(|(id, indexes)| {
        let mut topic = TopicPartitions::default();
        topic.topic_id = id.into();
        topic.partitions = indexes.iter().map(|index| index.get()).collect();
        topic
    });
    let mut assignment = Assignment::default();
    assignment.topic_partitions = topics.collect();
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::bench::service;

    fn joining() -> ConsumerGroupHeartbeatRequest {
        let mut request = ConsumerGroupHeartbeatRequest::default();
        request.group_id = StrBytes::from("g");
        request.member_id = StrBytes::from("m");
        request.rebalance_timeout_ms = 5;
        request.subscribed_topic_names = Some(vec![StrBytes::from("t")]);
        request.topic_partitions = Some(Vec::new());
        request
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_contradict_themselves_are_refused() {
        let groups = service().await;
        assert_eq!(check(&groups, 1, &joining()), Ok(()));
        type Change = fn(&mut ConsumerGroupHeartbeatRequest);
        let changes: &[(Change, GroupError)] = &[
            (
                |r| r.group_id = StrBytes::from(" "),
                GroupError::InvalidRequest,
            ),
            (
                |r| r.member_id = StrBytes::default(),
                GroupError::InvalidRequest,
            ),
            (
                |r| r.instance_id = Some(StrBytes::default()),
                GroupError::InvalidRequest,
            ),
            (
                |r| r.rack_id = Some(StrBytes::default()),
                GroupError::InvalidRequest,
            ),
            (|r| r.rebalance_timeout_ms = -1, GroupError::InvalidRequest),
            (|r| r.topic_partitions = None, GroupError::InvalidRequest),
            (
                |r| r.subscribed_topic_names = None,
                GroupError::InvalidRequest,
            ),
            (|r| r.member_epoch = -2, GroupError::InvalidRequest),
            (|r| r.member_epoch = -3, GroupError::InvalidRequest),
            (
                |r| r.server_assignor = Some(StrBytes::from("x")),
                GroupError::UnsupportedAssignor,
            ),
        ];
        for (at, (change, error)) in changes.iter().enumerate() {
            let mut request = joining();
            change(&mut request);
            let refused = check(&groups, 1, &request).map_err(|refusal| refusal.error);
            assert_eq!(refused, Err(*error), "change {at}");
        }
        let mut old = joining();
        old.member_id = StrBytes::default();
        assert_eq!(check(&groups, 0, &old), Ok(()));
        assert_eq!(to_asked(&old).member.as_str().len(), 36);
    }
}
