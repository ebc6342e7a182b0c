//! The coordinators of all groups that this broker is responsible for.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and to the
//! broker that leads it. Whoever watches the metadata tells the service how many partitions there
//! really are (a later change of `offsets.topic.num.partitions` moves no group) and which of them
//! this broker leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use parking_lot::RwLock;

use super::config::CoordinatorConfig;
use super::coordinator::GroupCoordinator;
use super::error::GroupError;
use super::messages::{
    CommitRequest, DeleteOffsetsRequest, FetchRequest, FetchedTopic, GroupDescription,
    GroupListing, GroupReply, GroupRequest, HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest,
    ListRequest, SyncReply, SyncRequest,
};
use super::metrics;
use super::names::{GroupId, TopicName};
use super::partitioner::partition_of;
use super::runtime::{CoordinatorLog, Shard, ShardError, ShardOptions};
use crate::clock::Clock;

/// How often to look whether a coordinator has come up.
const START_POLL: Duration = Duration::from_millis(5);

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
    /// Partitions of the topic; 0 as long as there is no topic.
    partition_count: AtomicI32,
    shards: RwLock<HashMap<PartitionIndex, Shard<GroupCoordinator>>>,
}

/// Asks the shard of a group and takes the reply apart.
macro_rules! ask {
    ($service:expr, $group:expr, $request:expr, $variant:ident) => {{
        let group = $group.clone();
        match $service.ask(&group, $request).await {
            Ok(GroupReply::$variant(reply)) => Ok(reply),
            // A shard answers in kind.
            Ok(_) => Err(GroupError::NotAvailable),
            Err(error) => Err(error),
        }
    }};
}

impl Service {
    /// A service that coordinates nothing yet.
    pub fn new(config: CoordinatorConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            config,
            clock,
            partition_count: AtomicI32::new(0),
            shards: RwLock::new(HashMap::new()),
        }
    }

    /// Tells how many partitions the topic has; `None` if it does not exist.
    pub fn set_partition_count(&self, count: Option<i32>) {
        self.partition_count
            .store(count.unwrap_or(0), Ordering::Release);
    }

    /// The partition that `group` belongs to; `None` as long as the topic does not exist.
    pub fn partition_of(&self, group: &str) -> Option<PartitionIndex> {
        match self.partition_count.load(Ordering::Acquire) {
            0 => None,
            count => Some(partition_of(group, count)),
        }
    }

    /// This broker leads `partition` from now on, in the term of `log`. Must be called within a
    /// runtime, on which the coordinator then loads.
    pub fn lead(&self, partition: PartitionIndex, log: Arc<dyn CoordinatorLog>) {
        let mut config = self.config.clone();
        // Leaves room for the batch around a record.
        config.max_record_bytes = log.max_batch_bytes().saturating_sub(1_024);
        let options = ShardOptions {
            label: format!("{OFFSETS_TOPIC}-{partition}"),
            ..ShardOptions::default()
        };
        let clock = Arc::clone(&self.clock);
        let shard = Shard::start(
            move || GroupCoordinator::new(config.clone()),
            log,
            clock,
            options,
        );
        let mut shards = self.shards.write();
        shards.insert(partition, shard);
        metrics::coordinators(shards.len());
    }

    /// This broker no longer leads `partition`. Requests that wait there fail.
    pub fn resign(&self, partition: PartitionIndex) {
        let mut shards = self.shards.write();
        shards.remove(&partition);
        metrics::coordinators(shards.len());
    }

    /// The partitions whose coordinator runs here.
    pub fn led(&self) -> Vec<PartitionIndex> {
        self.shards.read().keys().copied().collect()
    }

    /// Waits until the coordinator of `partition` answers.
    pub async fn wait_until_active(&self, partition: PartitionIndex) {
        let is_active = || {
            let shards = self.shards.read();
            shards.get(&partition).is_some_and(Shard::is_active)
        };
        while !is_active() {
            tokio::time::sleep(START_POLL).await;
        }
    }

    fn shard_of(&self, group: &str) -> Result<Shard<GroupCoordinator>, GroupError> {
        let partition = self.partition_of(group).ok_or(GroupError::NotCoordinator)?;
        self.shards
            .read()
            .get(&partition)
            .cloned()
            .ok_or(GroupError::NotCoordinator)
    }

    async fn ask(&self, group: &GroupId, request: GroupRequest) -> Result<GroupReply, GroupError> {
        let shard = self.shard_of(group.as_str())?;
        Ok(shard.call(request).await?)
    }

    /// JoinGroup. Waits for the rebalance.
    pub async fn join(&self, request: JoinRequest) -> JoinReply {
        let member = request.member.clone();
        let reply = ask!(self, request.group, GroupRequest::Join(request), Join)
            .unwrap_or_else(|error| JoinReply::refused(error, member));
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
        ask!(self, request.group, GroupRequest::Sync(request), Sync)?
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// What the member has to do instead of going on.
    pub async fn heartbeat(&self, request: HeartbeatRequest) -> Result<(), GroupError> {
        let result = ask!(
            self,
            request.group,
            GroupRequest::Heartbeat(request),
            Heartbeat
        );
        match result {
            // It will know better once it has loaded; until then the member is given the benefit.
            Err(GroupError::Loading) => Ok(()),
            Ok(result) => result,
            Err(error) => Err(error),
        }
    }

    /// LeaveGroup: one result a member.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn leave(
        &self,
        request: LeaveRequest,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        ask!(self, request.group, GroupRequest::Leave(request), Leave)?
    }

    /// OffsetCommit.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn commit(&self, request: CommitRequest) -> Result<PartitionResults, GroupError> {
        let results = ask!(self, request.group, GroupRequest::Commit(request), Commit)??;
        let landed = results.iter().flatten().filter(|result| result.is_ok());
        metrics::committed(landed.count());
        Ok(results)
    }

    /// OffsetFetch of one group.
    ///
    /// # Errors
    /// There is no coordinator here.
    pub async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedTopic>, GroupError> {
        ask!(self, request.group, GroupRequest::Fetch(request), Fetch)
    }

    /// DescribeGroups of one group; `None` if it does not exist.
    ///
    /// # Errors
    /// There is no coordinator here.
    pub async fn describe(&self, group: GroupId) -> Result<Option<GroupDescription>, GroupError> {
        ask!(self, group, GroupRequest::Describe(group), Describe)
    }

    /// DeleteGroups of one group.
    ///
    /// # Errors
    /// Why the group still exists, or that it does not.
    pub async fn delete(&self, group: GroupId) -> Result<(), GroupError> {
        ask!(self, group, GroupRequest::Delete(group), Delete)?
    }

    /// OffsetDelete.
    ///
    /// # Errors
    /// The request failed as a whole.
    pub async fn delete_offsets(
        &self,
        request: DeleteOffsetsRequest,
    ) -> Result<PartitionResults, GroupError> {
        ask!(
            self,
            request.group,
            GroupRequest::DeleteOffsets(request),
            DeleteOffsets
        )?
    }

    /// ListGroups: the groups coordinated here.
    ///
    /// # Errors
    /// A coordinator is loading, so the list would have a hole.
    pub async fn list(&self, request: &ListRequest) -> Result<Vec<GroupListing>, GroupError> {
        let shards: Vec<_> = self.shards.read().values().cloned().collect();
        let mut groups = Vec::new();
        for shard in shards {
            match shard.call(GroupRequest::List(request.clone())).await {
                Ok(GroupReply::List(listed)) => groups.extend(listed),
                // Whoever leads the partition now lists its groups.
                Err(ShardError::NotCoordinator) => {}
                Ok(_) => return Err(GroupError::NotAvailable),
                Err(error) => return Err(error.into()),
            }
        }
        groups.sort_unstable_by(|one, other| one.group.cmp(&other.group));
        Ok(groups)
    }

    /// Forgets the offsets committed for topics that are gone. False if a coordinator did not get
    /// to it; then it has to be told again.
    pub async fn topics_deleted(&self, topics: &[(TopicName, TopicId)]) -> bool {
        let shards: Vec<_> = self.shards.read().values().cloned().collect();
        let mut done = true;
        for shard in shards {
            let told = shard
                .call(GroupRequest::TopicsDeleted(topics.to_vec()))
                .await;
            done &= !matches!(told, Err(ShardError::Loading | ShardError::Unavailable));
        }
        done
    }
}
