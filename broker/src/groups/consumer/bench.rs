//! Members of consumer groups on the coordinator's bench, for tests.

use odradek_protocol::ids::{PartitionIndex, TopicId};

use super::assignment::Partitions;
use super::context::Refusal;
use crate::groups::bench::{Bench, GROUP, image_of};
use crate::groups::messages::{
    ConsumerGroupDescription, ConsumerHeartbeatReply, ConsumerHeartbeatRequest, GroupReply,
    GroupRequest,
};
use crate::groups::names::{Epoch, GroupId, MemberId, TopicName};
use crate::metadata::image::MetadataImage;

/// The id of the topic that [`image_of`] gives this number.
pub(crate) fn topic_id(number: u8) -> TopicId {
    TopicId::from_bytes([number; 16])
}

/// Partitions of the topic of this number.
pub(crate) fn partitions(number: u8, indexes: &[i32]) -> Partitions {
    let indexes = indexes.iter().copied().map(PartitionIndex::new);
    indexes.map(|index| (topic_id(number), index)).collect()
}

/// Indexes of the partitions, whatever their topics.
pub(crate) fn indexes(partitions: &Partitions) -> Vec<i32> {
    partitions.iter().map(|(_, index)| index.get()).collect()
}

/// Metadata with these topics, at a later offset than the last.
pub(crate) fn set_topics(bench: &Bench, topics: &[(&str, u8, i32)]) {
    let before = bench.config.metadata.load().next_offset();
    let mut image: MetadataImage = image_of(topics);
    let next = before.plus(1);
    image
        .apply(&[], next)
        .unwrap_or_else(|error| panic!("{error}"));
    bench.config.metadata.store(image.into());
}

/// The first heartbeat of a member.
pub(crate) fn joining(member: &str, topics: &[&str]) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest {
        epoch: Epoch::JOINING,
        rebalance_timeout_ms: Some(60_000),
        topics: Some(topics.iter().map(|topic| TopicName::new(topic)).collect()),
        owned: Some(Partitions::default()),
        ..going_on(member, 0)
    }
}

/// A heartbeat that says nothing new.
pub(crate) fn going_on(member: &str, epoch: i32) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest {
        group: GroupId::new(GROUP),
        member: MemberId::new(member),
        epoch: Epoch::new(epoch),
        instance: None,
        rack: None,
        rebalance_timeout_ms: None,
        topics: None,
        regex: None,
        assignor: None,
        owned: None,
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
    }
}

impl Bench {
    /// Sends a heartbeat of a consumer.
    pub(crate) fn beat(
        &mut self,
        request: ConsumerHeartbeatRequest,
    ) -> Result<ConsumerHeartbeatReply, Refusal> {
        let token = self.ask(GroupRequest::ConsumerHeartbeat(request));
        match self.reply(token) {
            Some(GroupReply::ConsumerHeartbeat(reply)) => reply,
            other => panic!("{other:?} answers a heartbeat"),
        }
    }

    /// Says what a member has; its epoch, and what it is told to have.
    pub(crate) fn owns(
        &mut self,
        member: &str,
        epoch: i32,
        owned: Partitions,
    ) -> (i32, Option<Vec<i32>>) {
        let mut request = going_on(member, epoch);
        request.owned = Some(owned);
        let reply = self.beat(request).unwrap_or_else(|e| panic!("{e:?}"));
        (reply.epoch.get(), reply.assignment.as_ref().map(indexes))
    }

    /// The group in detail.
    pub(crate) fn described(&mut self) -> ConsumerGroupDescription {
        let token = self.ask(GroupRequest::ConsumerDescribe(GroupId::new(GROUP)));
        match self.reply(token) {
            Some(GroupReply::ConsumerDescribe(Some(described))) => described,
            other => panic!("{other:?} describes the group"),
        }
    }
}
