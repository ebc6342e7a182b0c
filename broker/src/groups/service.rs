//! The coordinators of all groups that this broker is responsible for.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and to the
//! broker that leads it.

use std::sync::Arc;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_storage::producer_state::EndTxnMarker;

use super::config::CoordinatorConfig;
use super::consumer::regexes::{self, Lookup};
use super::consumer::{GroupSettings, Refusal};
use super::coordinator::GroupCoordinator;
use super::error::GroupError;
use super::messages::{
    CommitRequest, ConsumerGroupDescription, ConsumerHeartbeatReply, ConsumerHeartbeatRequest,
    DeleteOffsetsRequest, Described, FetchRequest, FetchedTopic, GroupListing, GroupReply,
    GroupRequest, HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest, ListRequest, SyncReply,
    SyncRequest, TxnCommitRefusal, TxnCommitRequest,
};
use super::metrics;
use super::names::{GroupId, TopicName};
use crate::clock::Clock;
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::host::{Host, variant};
use crate::coordinator::hosting::Coordinators;
use crate::coordinator::{CoordinatorLog, Shard, ShardError, ShardOptions};
use crate::metadata::image::MetadataImage;

/// How often a commit in a transaction asks about it.
const MAX_VERIFICATIONS: usize = 4;

/// Name of the topic that holds groups and offsets.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// One result for each partition of each topic of a request, in the order asked.
pub type PartitionResults = Vec<Vec<Result<(), GroupError>>>;

impl From<ShardError> for GroupError {
    fn from(error: ShardError) -> Self {
        match error {
            ShardError::Loading => Self::Loading,
            ShardError::NotCoordinator => Self::NotCoordinator,
            ShardError::Unavailable => Self::NotAvailable,
        }
    }
}

/// The group coordinator of a broker.
#[derive(Debug)]
pub struct Service {
    config: CoordinatorConfig,
    clock: Arc<dyn Clock>,
    host: Host<GroupCoordinator>,
}

impl Coordinators for Service {
    type Machine = GroupCoordinator;
    type Beside = ();

    fn host(&self) -> &Host<GroupCoordinator> {
        &self.host
    }

    fn lead(&self, partition: PartitionIndex, log: Arc<dyn CoordinatorLog>) {
        let mut config = self.config.clone();
        config.max_record_bytes = log.max_record_bytes();
        let options = ShardOptions {
            label: format!("{OFFSETS_TOPIC}-{partition}"),
            ..ShardOptions::default()
        };
        let clock = Arc::clone(&self.clock);
        let make_state = move || GroupCoordinator::new(config.clone());
        let shard = Shard::start(make_state, log, clock, options);
        self.host.insert(partition, shard, ());
    }
}

impl Service {
    /// Tells of newer metadata.
    pub fn set_metadata(&self, image: Arc<MetadataImage>) {
        self.config.metadata.store(image);
    }

    /// The settings of consumer groups.
    pub fn consumer_settings(&self) -> &GroupSettings {
        &self.config.consumer
    }

    /// A service that coordinates nothing yet.
    pub fn new(config: CoordinatorConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            config,
            clock,
            host: Host::new(metrics::coordinators),
        }
    }

    async fn ask<T>(
        &self,
        group: &GroupId,
        request: GroupRequest,
        take: impl FnOnce(GroupReply) -> Option<T>,
    ) -> Result<T, GroupError> {
        Ok(self.host.ask(group.as_str(), request, take).await?)
    }

    /// JoinGroup. Waits for the rebalance.
    pub async fn join(&self, request: JoinRequest) -> JoinReply {
        let member = request.member.clone();
        let group = request.group.clone();
        let asked = GroupRequest::Join(request);
        let reply = self.ask(&group, asked, variant!(GroupReply::Join)).await;
        let reply = reply.unwrap_or_else(|error| JoinReply::refused(error, member));
        // One member of each generation is told that it leads.
        if reply.error.is_none() && reply.member == reply.leader {
            metrics::generation();
        }
        reply
    }

    /// SyncGroup. Waits for the leader's assignment.
    ///
    /// # Errors
    /// What the member has to do instead.
    pub async fn sync(&self, request: SyncRequest) -> Result<SyncReply, GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::Sync(request);
        self.ask(&group, asked, variant!(GroupReply::Sync)).await?
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// What the member has to do instead of going on.
    pub async fn heartbeat(&self, request: HeartbeatRequest) -> Result<(), GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::Heartbeat(request);
        match self
            .ask(&group, asked, variant!(GroupReply::Heartbeat))
            .await
        {
            // It will know better once it has loaded; until then the member is given the benefit. Not where
            // another may have loaded by now, which counts the member's time and may have given away what it has.
            Err(GroupError::Loading) => match self.may_coordinate(&group) {
                true => Ok(()),
                false => Err(GroupError::NotCoordinator),
            },
            Ok(result) => result,
            Err(error) => Err(error),
        }
    }

    /// Whether the group's coordinator is here, and nobody else's yet.
    fn may_coordinate(&self, group: &GroupId) -> bool {
        let partition = self.host.partition_of(group.as_str());
        let shard = partition.and_then(|partition| self.host.shard(partition).ok());
        shard.is_some_and(|shard| shard.holds_lease())
    }

    /// LeaveGroup: one result a member.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn leave(
        &self,
        request: LeaveRequest,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::Leave(request);
        self.ask(&group, asked, variant!(GroupReply::Leave)).await?
    }

    /// OffsetCommit.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn commit(&self, request: CommitRequest) -> Result<PartitionResults, GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::Commit(request);
        let results = self
            .ask(&group, asked, variant!(GroupReply::Commit))
            .await??;
        count_committed(&results);
        Ok(results)
    }

    /// TxnOffsetCommit. `verify` asks the coordinator of transactions whether the group's partition
    /// is part of the transaction.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn commit_in_transaction<E: From<GroupError>, F: Future<Output = Result<(), E>>>(
        &self,
        mut request: TxnCommitRequest,
        verify: impl Fn(PartitionIndex) -> F,
    ) -> Result<PartitionResults, E> {
        let group = request.commit.group.clone();
        let partition = self.host.partition_of(group.as_str());
        let partition = partition.ok_or(GroupError::NotCoordinator)?;
        for _ in 0..MAX_VERIFICATIONS {
            let asked = GroupRequest::CommitInTransaction(request.clone());
            let take = variant!(GroupReply::CommitInTransaction);
            match self.ask(&group, asked, take).await? {
                Ok(results) => {
                    count_committed(&results);
                    return Ok(results);
                }
                Err(TxnCommitRefusal::Failed(error)) => return Err(error.into()),
                Err(TxnCommitRefusal::Unverified(moment)) => {
                    verify(partition).await?;
                    request.verified = Some(moment);
                }
            }
        }
        // Its transactions end faster than they can be asked about.
        Err(GroupError::NotAvailable.into())
    }

    /// Writes the end of a transaction into a partition of the topic; what was committed in it takes
    /// effect, or is forgotten. Whether the marker is good is known before.
    ///
    /// # Errors
    /// There is no coordinator here, or it cannot write.
    pub async fn end_transaction(
        &self,
        partition: PartitionIndex,
        producer: ProducerIdentity,
        marker: EndTxnMarker,
    ) -> Result<(), GroupError> {
        let shard = self.host.shard(partition)?;
        shard
            .call(GroupRequest::EndTransaction(producer, marker))
            .await?;
        Ok(())
    }

    /// OffsetFetch of one group.
    ///
    /// # Errors
    /// There is no coordinator here, or the member that asks is not who or where it says.
    pub async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedTopic>, GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::Fetch(request);
        self.ask(&group, asked, variant!(GroupReply::Fetch)).await?
    }

    /// ConsumerGroupHeartbeat. What regular expressions match is looked up afterwards, on a thread of
    /// its own.
    ///
    /// # Errors
    /// What the member has to do instead.
    pub async fn consumer_heartbeat(
        self: &Arc<Self>,
        request: ConsumerHeartbeatRequest,
    ) -> Result<ConsumerHeartbeatReply, Refusal> {
        let group = request.group.clone();
        let request = GroupRequest::ConsumerHeartbeat(request);
        let take = variant!(GroupReply::ConsumerHeartbeat);
        let mut reply = self.ask(&group, request, take).await??;
        if let Some(lookup) = reply.lookup.take() {
            tokio::spawn(Arc::clone(self).look_up(group, lookup));
        }
        Ok(reply)
    }

    async fn look_up(self: Arc<Self>, group: GroupId, lookup: Lookup) {
        let image = self.config.metadata.load_full();
        let now = self.clock.wall();
        let found = tokio::task::spawn_blocking(move || regexes::look_up(&lookup, &image, now));
        let Ok(found) = found.await else {
            return;
        };
        let request = GroupRequest::LookedUp(group.clone(), found);
        if let Err(error) = self.ask(&group, request, |_| Some(())).await {
            // The next heartbeat that finds it overdue begins anew.
            tracing::warn!(%group, %error, "what expressions match is not taken account of");
        }
    }

    /// ConsumerGroupDescribe of one group; `None` if there is no such consumer group.
    ///
    /// # Errors
    /// There is no coordinator here.
    pub async fn describe_consumer(
        &self,
        group: GroupId,
    ) -> Result<Option<ConsumerGroupDescription>, GroupError> {
        let request = GroupRequest::ConsumerDescribe(group.clone());
        let take = variant!(GroupReply::ConsumerDescribe);
        self.ask(&group, request, take).await
    }

    /// DescribeGroups of one group.
    ///
    /// # Errors
    /// There is no coordinator here.
    pub async fn describe(&self, group: GroupId) -> Result<Described, GroupError> {
        let asked = GroupRequest::Describe(group.clone());
        self.ask(&group, asked, variant!(GroupReply::Describe))
            .await
    }

    /// DeleteGroups of one group.
    ///
    /// # Errors
    /// Why the group still exists, or that it does not.
    pub async fn delete(&self, group: GroupId) -> Result<(), GroupError> {
        let asked = GroupRequest::Delete(group.clone());
        self.ask(&group, asked, variant!(GroupReply::Delete))
            .await?
    }

    /// OffsetDelete.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn delete_offsets(
        &self,
        request: DeleteOffsetsRequest,
    ) -> Result<PartitionResults, GroupError> {
        let group = request.group.clone();
        let asked = GroupRequest::DeleteOffsets(request);
        let take = variant!(GroupReply::DeleteOffsets);
        self.ask(&group, asked, take).await?
    }

    /// ListGroups: the groups coordinated here.
    ///
    /// # Errors
    /// A coordinator is loading, so the list would have a hole.
    pub async fn list(&self, request: &ListRequest) -> Result<Vec<GroupListing>, GroupError> {
        let asked = || GroupRequest::List(request.clone());
        let listed = self.host.collect(asked, variant!(GroupReply::List)).await;
        let mut groups = listed?;
        groups.sort_unstable_by(|one, other| one.group.cmp(&other.group));
        Ok(groups)
    }

    /// Forgets the offsets committed for topics that are gone. False if a coordinator did not get
    /// to it; then it has to be told again.
    pub async fn topics_deleted(&self, topics: &[(TopicName, TopicId)]) -> bool {
        let mut done = true;
        for shard in self.host.shards() {
            let told = shard
                .call(GroupRequest::TopicsDeleted(topics.to_vec()))
                .await;
            done &= !matches!(told, Err(ShardError::Loading | ShardError::Unavailable));
        }
        done
    }
}

fn count_committed(results: &PartitionResults) {
    let landed = results.iter().flatten().filter(|result| result.is_ok());
    metrics::committed(landed.count());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use odradek_protocol::ids::TimestampMs;

    use super::*;
    use crate::clock::ManualClock;
    use crate::coordinator::memory_log::MemoryLog;
    use crate::groups::names::{GenerationId, MemberId};

    /// A coordinator whose writes failed because others lead, and that has not been told so, loads for as
    /// long as that takes. Members that asked it were told all the while that they were in their group,
    /// and kept partitions that the new coordinator had long given to others.
    #[tokio::test(start_paused = true)]
    async fn whoever_loads_tells_members_nothing_once_another_may_coordinate() {
        let log = Arc::new(MemoryLog::new());
        log.make_unreadable(true);
        let clock = ManualClock::starting_at(TimestampMs::new(1_000));
        let service = Service::new(CoordinatorConfig::default(), Arc::new(clock));
        service.host.set_partition_count(Some(1));
        service.lead(PartitionIndex::new(0), Arc::clone(&log) as _);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let beat = || HeartbeatRequest {
            group: GroupId::new("g"),
            member: MemberId::new("m"),
            instance: None,
            generation: GenerationId::new(3),
        };
        assert_eq!(service.heartbeat(beat()).await, Ok(()));
        log.end_lease();
        let refused = service.heartbeat(beat()).await;
        assert_eq!(refused, Err(GroupError::NotCoordinator));
    }
}
