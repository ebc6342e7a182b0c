//! What OffsetCommit and TxnOffsetCommit have in common: every partition asked for is answered once, in the order asked,
//! and only those that exist are for the coordinator.

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use odradek_protocol::messages::StrBytes;

use crate::groups::messages::{CommitPartition, CommitTopic};
use crate::groups::names::TopicName;
use crate::groups::service::PartitionResults;
use crate::metadata::image::MetadataImage;

/// How a request names a topic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named<'a> {
    /// By its name, as older versions do.
    Name(&'a str),
    /// By its id.
    Id(TopicId),
}

/// The fields of a partition, which both requests have.
pub(super) fn commit_partition(
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: Option<&StrBytes>,
) -> CommitPartition {
    let metadata = metadata.map(|text| text.as_str()).unwrap_or_default();
    CommitPartition {
        partition: PartitionIndex::new(partition),
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::new(leader_epoch),
        metadata: metadata.to_owned(),
    }
}

/// The rows of a request, topic by topic in the order asked.
#[derive(Debug, Default)]
pub(super) struct CommitRows {
    /// Why each partition is not for the coordinator.
    faults: Vec<Vec<Option<ErrorCode>>>,
    known: Vec<CommitTopic>,
}

impl CommitRows {
    /// Takes the next topic of the request.
    pub fn push(
        &mut self,
        image: &MetadataImage,
        named: Named<'_>,
        asked: impl Iterator<Item = CommitPartition>,
    ) {
        let (topic, missing) = match named {
            Named::Id(id) => (image.topic_by_id(id), ErrorCode::UnknownTopicId),
            Named::Name(name) => (image.topic(name), ErrorCode::UnknownTopicOrPartition),
        };
        let mut faults = Vec::new();
        let mut partitions = Vec::new();
        for partition in asked {
            let fault = match topic {
                None => Some(missing),
                Some(topic) => {
                    let is_missing = topic.partition(partition.partition).is_none();
                    is_missing.then_some(ErrorCode::UnknownTopicOrPartition)
                }
            };
            faults.push(fault);
            if fault.is_none() {
                partitions.push(partition);
            }
        }
        self.faults.push(faults);
        if let Some(topic) = topic.filter(|_| !partitions.is_empty()) {
            self.known.push(CommitTopic {
                topic: TopicName::new(&topic.name),
                topic_id: topic.id,
                partitions,
            });
        }
    }

    /// Takes what is for the coordinator.
    pub fn take_known(&mut self) -> Vec<CommitTopic> {
        std::mem::take(&mut self.known)
    }

    /// The code of every row, after the coordinator's results for those that were taken.
    pub fn codes(self, results: &Result<PartitionResults, ErrorCode>) -> Vec<Vec<ErrorCode>> {
        let mut committed = results.iter().flatten();
        let failed = results.as_ref().err().copied();
        let topics = self.faults.into_iter().map(|faults| {
            let is_known = faults.iter().any(Option::is_none);
            let results = is_known.then(|| committed.next()).flatten();
            let mut results = results.map_or(&[][..], Vec::as_slice).iter();
            let codes = faults.into_iter().map(|fault| {
                fault.or(failed).unwrap_or_else(|| match results.next() {
                    Some(Ok(())) => ErrorCode::None,
                    Some(Err(error)) => error.code(),
                    None => ErrorCode::UnknownServerError,
                })
            });
            codes.collect()
        });
        topics.collect()
    }
}
