//! The state of one shard of the group coordinator: all groups of one partition of
//! `__consumer_offsets`, with their offsets.
//!
//! Pure: `(state, request, now) → effects`. Every record that it asks to be written is already in
//! its state, so the state is that of the log's end. The shell keeps replies back until the log
//! has committed that far, and throws the state away should a write fail.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use odradek_protocol::ids::TimestampMs;

use super::classic::{ClassicGroup, Context};
use super::config::CoordinatorConfig;
use super::effects::RequestToken;
use super::error::GroupError;
use super::messages::{
    CommitPartition, CommitRequest, DeleteOffsetsRequest, FetchRequest, GroupEffects, GroupReply,
    GroupRequest, GroupTimer, HeartbeatRequest, JoinReply, JoinRequest, LeaveRequest, ListRequest,
    SyncRequest,
};
use super::names::GroupId;
use super::offsets::OffsetStore;
use super::records::{DecodedRecord, GroupRecord, OffsetCommit, OffsetKey};
use super::runtime::StateMachine;

/// The only kind of group so far, by its name.
pub const KIND_CLASSIC: &str = "classic";

/// All groups of one partition of `__consumer_offsets`.
#[derive(Debug)]
pub struct GroupCoordinator {
    config: CoordinatorConfig,
    groups: HashMap<GroupId, ClassicGroup>,
    offsets: OffsetStore,
}

impl GroupCoordinator {
    /// A shard without groups.
    pub fn new(config: CoordinatorConfig) -> Self {
        Self {
            config,
            groups: HashMap::new(),
            offsets: OffsetStore::default(),
        }
    }

    /// Number of groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The offsets of all groups.
    pub fn offsets(&self) -> &OffsetStore {
        &self.offsets
    }

    /// The groups, in no order.
    pub fn groups(&self) -> impl Iterator<Item = &ClassicGroup> {
        self.groups.values()
    }

    /// Takes account of a record from the log. `now` stands in where the record has no time.
    pub fn apply(&mut self, record: GroupRecord, now: TimestampMs) {
        match record {
            GroupRecord::Offset(key, commit) => self.apply_offset(&key, commit, now),
            GroupRecord::Group(id, Some(metadata)) => {
                let memory = &self.config.member_memory;
                let group = ClassicGroup::from_record(id.clone(), metadata, memory);
                self.groups.insert(id, group);
            }
            GroupRecord::Group(id, None) => {
                self.groups.remove(&id);
            }
        }
    }

    /// A commit by somebody who is in no group makes a group that only stores offsets.
    fn apply_offset(&mut self, key: &OffsetKey, commit: Option<OffsetCommit>, now: TimestampMs) {
        if commit.is_some() && !self.groups.contains_key(&key.group) {
            let group = ClassicGroup::new(key.group.clone(), now);
            self.groups.insert(key.group.clone(), group);
        }
        self.offsets.apply(key, commit);
    }

    /// The log has been read to its end.
    fn start(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        for group in self.groups.values_mut() {
            group.loaded(&mut cx);
        }
        self.schedule_retention(effects);
    }

    fn schedule_retention(&self, effects: &mut GroupEffects) {
        effects.set_timer(
            GroupTimer::OffsetRetention,
            self.config.offsets_retention_check_interval_ms,
        );
    }

    /// Handles a request; its reply is in the effects of this call or of a later one.
    fn answer(
        &mut self,
        token: RequestToken,
        request: GroupRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let reply = match request {
            GroupRequest::Join(request) => return self.join(token, request, now, effects),
            GroupRequest::Sync(request) => return self.sync(token, request, now, effects),
            GroupRequest::Heartbeat(request) => {
                GroupReply::Heartbeat(self.heartbeat(&request, now, effects))
            }
            GroupRequest::Leave(request) => GroupReply::Leave(self.leave(&request, now, effects)),
            GroupRequest::Commit(request) => GroupReply::Commit(self.commit(request, now, effects)),
            GroupRequest::Fetch(request) => GroupReply::Fetch(self.fetch(&request)),
            GroupRequest::Describe(group) => {
                GroupReply::Describe(self.groups.get(&group).map(ClassicGroup::description))
            }
            GroupRequest::List(request) => GroupReply::List(self.list(&request)),
            GroupRequest::Delete(group) => GroupReply::Delete(self.delete(&group, now, effects)),
            GroupRequest::DeleteOffsets(request) => {
                GroupReply::DeleteOffsets(self.delete_offsets(request, now, effects))
            }
            GroupRequest::TopicsDeleted(topics) => {
                let records = self.offsets.tombstones_of_topics(&topics);
                self.write_offsets(records, now, effects);
                GroupReply::TopicsDeleted
            }
        };
        effects.reply(token, reply);
    }

    /// A timer that an earlier call set has fired.
    fn wake(&mut self, timer: &GroupTimer, now: TimestampMs, effects: &mut GroupEffects) {
        let group = match timer {
            GroupTimer::OffsetRetention => {
                self.expire_offsets(now, effects);
                self.schedule_retention(effects);
                return;
            }
            GroupTimer::Session(group, _) | GroupTimer::Join(group) | GroupTimer::Sync(group) => {
                group
            }
        };
        let Some(group) = self.groups.get_mut(group) else {
            return;
        };
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        match timer {
            GroupTimer::Session(_, member) => group.session_timer_fired(member, &mut cx),
            GroupTimer::Join(_) => group.join_timer_fired(&mut cx),
            GroupTimer::Sync(_) => group.sync_timer_fired(&mut cx),
            GroupTimer::OffsetRetention => {}
        }
    }

    fn join(
        &mut self,
        token: RequestToken,
        mut request: JoinRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let refuse = |error| GroupReply::Join(JoinReply::refused(error, request.member.clone()));
        if request.group.is_empty() {
            return effects.reply(token, refuse(GroupError::InvalidGroupId));
        }
        let allowed =
            self.config.group_min_session_timeout_ms..=self.config.group_max_session_timeout_ms;
        if !allowed.contains(&request.session_timeout_ms) {
            return effects.reply(token, refuse(GroupError::InvalidSessionTimeout));
        }
        // A protocol named twice would count for two members.
        let mut seen = std::collections::HashSet::new();
        request
            .protocols
            .retain(|protocol| seen.insert(protocol.name.clone()));
        let id = request.group.clone();
        let (group, is_new) = match self.groups.entry(id.clone()) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(_) if !request.member.is_empty() => {
                return effects.reply(token, refuse(GroupError::UnknownMember));
            }
            Entry::Vacant(entry) => (entry.insert(ClassicGroup::new(id.clone(), now)), true),
        };
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        group.join(token, request, &mut cx);
        if is_new && group.is_deserted() {
            self.groups.remove(&id);
        } else if is_new && effects.records.is_empty() {
            // The group exists from now on, also for the next coordinator.
            let group = ClassicGroup::new(id, now);
            effects.records.push(group.to_record());
        }
    }

    fn sync(
        &mut self,
        token: RequestToken,
        request: SyncRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        let error = if request.group.is_empty() {
            GroupError::InvalidGroupId
        } else if let Some(group) = self.groups.get_mut(&request.group) {
            let mut cx = Context {
                config: &self.config,
                now,
                effects,
            };
            return group.sync(token, request, &mut cx);
        } else {
            GroupError::UnknownMember
        };
        effects.reply(token, GroupReply::Sync(Err(error)));
    }

    fn heartbeat(
        &mut self,
        request: &HeartbeatRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<(), GroupError> {
        if request.group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        let group = self
            .groups
            .get_mut(&request.group)
            .ok_or(GroupError::UnknownMember)?;
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        group.heartbeat(request, &mut cx)
    }

    fn leave(
        &mut self,
        request: &LeaveRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        if request.group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        let Some(group) = self.groups.get_mut(&request.group) else {
            let unknown = |_| Err(GroupError::UnknownMember);
            return Ok(request.members.iter().map(unknown).collect());
        };
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        Ok(group.leave(&request.members, &mut cx))
    }

    fn commit(
        &mut self,
        request: CommitRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<Vec<Vec<Result<(), GroupError>>>, GroupError> {
        match self.groups.get_mut(&request.group) {
            Some(group) => {
                let mut cx = Context {
                    config: &self.config,
                    now,
                    effects,
                };
                group.accept_commit(&request, &mut cx)?;
            }
            None if request.generation.get() < 0 => {}
            None => return Err(request.no_such_group),
        }
        let expires_at = match request.retention_ms {
            Some(retention_ms) => TimestampMs::new(now.get().saturating_add(retention_ms)),
            None => TimestampMs::NONE,
        };
        let mut records = Vec::new();
        let mut results = Vec::with_capacity(request.topics.len());
        for topic in request.topics {
            let mut topic_results = Vec::with_capacity(topic.partitions.len());
            for partition in topic.partitions {
                if self.is_metadata_too_large(&partition) {
                    topic_results.push(Err(GroupError::OffsetMetadataTooLarge));
                    continue;
                }
                let key = OffsetKey {
                    group: request.group.clone(),
                    topic: topic.topic.clone(),
                    partition: partition.partition,
                };
                let commit = OffsetCommit {
                    offset: partition.offset,
                    leader_epoch: partition.leader_epoch,
                    metadata: partition.metadata.into(),
                    committed_at: now,
                    expires_at,
                    topic_id: topic.topic_id,
                };
                records.push(GroupRecord::Offset(key, Some(commit)));
                topic_results.push(Ok(()));
            }
            results.push(topic_results);
        }
        self.write_offsets(records, now, effects);
        Ok(results)
    }

    /// Kafka measures the metadata in Java's characters, which are UTF-16 units. Whatever the
    /// configuration says, a record must fit into a batch.
    fn is_metadata_too_large(&self, partition: &CommitPartition) -> bool {
        let limit = self.config.offset_metadata_max_bytes;
        let len = partition.metadata.len();
        len > self.config.max_record_bytes
            || (len > limit && partition.metadata.encode_utf16().count() > limit)
    }

    /// Brings `records`, which are all about offsets, into the state and has them written.
    fn write_offsets(
        &mut self,
        records: Vec<GroupRecord>,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        for record in &records {
            if let GroupRecord::Offset(key, commit) = record {
                self.apply_offset(key, commit.clone(), now);
            }
        }
        effects.records.extend(records);
    }

    fn fetch(&self, request: &FetchRequest) -> Vec<super::messages::FetchedTopic> {
        match &request.topics {
            Some(topics) => self.offsets.fetch(&request.group, topics),
            None => self.offsets.fetch_all(&request.group),
        }
    }

    fn list(&self, request: &ListRequest) -> Vec<super::messages::GroupListing> {
        let is_wanted = |names: &[String], name: &str| {
            names.is_empty() || names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
        };
        if !is_wanted(&request.kinds, KIND_CLASSIC) {
            return Vec::new();
        }
        self.groups
            .values()
            .filter(|group| is_wanted(&request.states, group.state_name()))
            .map(ClassicGroup::listing)
            .collect()
    }

    fn delete(
        &mut self,
        id: &GroupId,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<(), GroupError> {
        let group = self.groups.get(id).ok_or(GroupError::GroupNotFound)?;
        if !group.is_empty() {
            return Err(GroupError::NonEmptyGroup);
        }
        let offsets = self.offsets.tombstones_of_group(id);
        self.write_offsets(offsets, now, effects);
        self.remove_group(id, now, effects);
        Ok(())
    }

    fn remove_group(&mut self, id: &GroupId, now: TimestampMs, effects: &mut GroupEffects) {
        if let Some(mut group) = self.groups.remove(id) {
            let mut cx = Context {
                config: &self.config,
                now,
                effects,
            };
            group.dismiss(&mut cx);
            effects.records.push(GroupRecord::Group(id.clone(), None));
        }
    }

    fn delete_offsets(
        &mut self,
        request: DeleteOffsetsRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) -> Result<Vec<Vec<Result<(), GroupError>>>, GroupError> {
        if request.group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        let group = self
            .groups
            .get(&request.group)
            .ok_or(GroupError::GroupNotFound)?;
        group.check_offset_delete()?;
        let mut records = Vec::new();
        let mut results = Vec::with_capacity(request.topics.len());
        for (topic, partitions) in request.topics {
            let subscribed = group.is_subscribed_to(&topic);
            let mut topic_results = Vec::with_capacity(partitions.len());
            for partition in partitions {
                if subscribed {
                    topic_results.push(Err(GroupError::SubscribedToTopic));
                    continue;
                }
                topic_results.push(Ok(()));
                let key = OffsetKey {
                    group: request.group.clone(),
                    topic: topic.clone(),
                    partition,
                };
                if self.offsets.get(&key).is_some() {
                    records.push(GroupRecord::Offset(key, None));
                }
            }
            results.push(topic_results);
        }
        self.write_offsets(records, now, effects);
        Ok(results)
    }

    /// Drops the offsets that have outlived their retention, and groups that have nothing left.
    fn expire_offsets(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        let mut records = Vec::new();
        let mut done = Vec::new();
        for (id, group) in &self.groups {
            let retention_ms = self.config.offsets_retention_ms;
            let (expired, none_left) = self.offsets.expire(id, group, now, retention_ms);
            records.extend(expired);
            if none_left && group.is_deserted() {
                done.push(id.clone());
            }
        }
        if !records.is_empty() || !done.is_empty() {
            tracing::info!(
                offsets = records.len(),
                groups = done.len(),
                "offsets expired"
            );
        }
        self.write_offsets(records, now, effects);
        for id in done {
            self.remove_group(&id, now, effects);
        }
    }
}

impl StateMachine for GroupCoordinator {
    type Request = GroupRequest;
    type Reply = GroupReply;
    type Record = GroupRecord;
    type Timer = GroupTimer;

    fn replay(&mut self, key: Option<&[u8]>, value: Option<&[u8]>, now: TimestampMs) {
        match GroupRecord::decode(key, value) {
            Ok(DecodedRecord::Known(record)) => self.apply(record, now),
            Ok(DecodedRecord::Unknown(kind)) => {
                tracing::debug!(kind, "a record of another kind of group is passed over");
            }
            Err(error) => tracing::error!(%error, "a damaged group record is passed over"),
        }
    }

    fn loaded(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        self.start(now, effects);
    }

    fn handle(
        &mut self,
        token: RequestToken,
        request: GroupRequest,
        now: TimestampMs,
        effects: &mut GroupEffects,
    ) {
        self.answer(token, request, now, effects);
    }

    fn timer_fired(&mut self, timer: GroupTimer, now: TimestampMs, effects: &mut GroupEffects) {
        self.wake(&timer, now, effects);
    }
}

/// What survives a restart: the committed offsets and, of every group that is not in the middle
/// of a rebalance and had members once, its record. For comparing a live coordinator with a replayed one.
#[cfg(test)]
pub(super) fn persistent_view(
    coordinator: &GroupCoordinator,
) -> std::collections::BTreeMap<bytes::Bytes, Option<bytes::Bytes>> {
    use super::runtime::LogRecord as _;
    let mut view = std::collections::BTreeMap::new();
    for (id, group) in &coordinator.groups {
        let record = group.to_record();
        let is_written = group.is_settled() && !group.listing().protocol_type.is_empty();
        let value = is_written.then(|| record.encode_value()).flatten();
        view.insert(record.encode_key(), value);
        for topic in coordinator.offsets.fetch_all(id) {
            for (partition, _) in topic.partitions {
                let key = OffsetKey {
                    group: id.clone(),
                    topic: topic.topic.clone(),
                    partition,
                };
                let commit = coordinator.offsets.get(&key).cloned();
                let record = GroupRecord::Offset(key, commit);
                view.insert(record.encode_key(), record.encode_value());
            }
        }
    }
    view
}
