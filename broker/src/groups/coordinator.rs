//! The state of one shard of the group coordinator: all groups of one partition of
//! `__consumer_offsets`, with their offsets.
//!
//! Pure: `(state, request, now) → effects`. Every record that it asks to be written is already in
//! its state, so the state is that of the log's end. The shell keeps replies back until the log
//! has committed that far, and throws the state away should a write fail.

mod consumer;

use std::collections::HashMap;

use odradek_protocol::ids::TimestampMs;
use odradek_storage::producer_state::EndTxnMarker;

use super::classic::{ClassicGroup, Context};
use super::config::CoordinatorConfig;
use super::ends::Ends;
use super::error::GroupError;
use super::group::Group;
use super::messages::{
    CommitPartition, CommitRequest, DeleteOffsetsRequest, Described, FetchRequest, FetchedTopic,
    GroupEffects, GroupListing, GroupReply, GroupRequest, GroupTimer, HeartbeatRequest, JoinReply,
    JoinRequest, LeaveRequest, ListRequest, SyncRequest,
};
use super::names::GroupId;
use super::offsets::OffsetStore;
use super::records::{DecodedRecord, GroupRecord, OffsetCommit, OffsetKey};
use crate::coordinator::StateMachine;
use crate::coordinator::effects::{ProducerIdentity, RequestToken};

/// All groups of one partition of `__consumer_offsets`.
#[derive(Debug)]
pub struct GroupCoordinator {
    config: CoordinatorConfig,
    groups: HashMap<GroupId, Group>,
    offsets: OffsetStore,
    ends: Ends,
}

impl GroupCoordinator {
    /// A shard without groups.
    pub fn new(config: CoordinatorConfig) -> Self {
        Self {
            config,
            groups: HashMap::new(),
            offsets: OffsetStore::default(),
            ends: Ends::default(),
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
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Takes account of a record from the log. `now` stands in where the record has no time.
    pub fn apply(&mut self, record: GroupRecord, now: TimestampMs) {
        match record {
            GroupRecord::Offset(key, commit) => self.apply_offset(&key, commit, now),
            GroupRecord::Group(id, Some(metadata)) => {
                let memory = &self.config.member_memory;
                let group = ClassicGroup::from_record(id.clone(), metadata, memory);
                self.groups.insert(id, Group::classic(group));
            }
            // A group that has gone over to the other protocol has left its old record behind.
            GroupRecord::Group(id, None) => {
                if self
                    .groups
                    .get(&id)
                    .is_some_and(|group| group.as_classic().is_some())
                {
                    self.groups.remove(&id);
                }
            }
            GroupRecord::Consumer(id, record) => self.apply_consumer(&id, &record),
        }
    }

    /// A commit by somebody who is in no group makes a group that only stores offsets.
    fn apply_offset(&mut self, key: &OffsetKey, commit: Option<OffsetCommit>, now: TimestampMs) {
        if commit.is_some() {
            self.ensure_group(&key.group, now);
        }
        self.offsets.apply(key, commit);
    }

    pub(super) fn ensure_group(&mut self, id: &GroupId, now: TimestampMs) {
        if !self.groups.contains_key(id) {
            let group = ClassicGroup::new(id.clone(), now);
            self.groups.insert(id.clone(), Group::classic(group));
        }
    }

    /// Whether a commit in a transaction is acceptable to the group.
    pub(super) fn check_transactional_commit(
        &self,
        request: &CommitRequest,
    ) -> Result<(), GroupError> {
        match self.groups.get(&request.group) {
            Some(Group::Classic(group)) => group.check_transactional_commit(request),
            Some(Group::Consumer(group)) => {
                let says_nothing = request.generation.get() < 0
                    && request.member.is_empty()
                    && request.instance.is_none();
                match says_nothing {
                    true => Ok(()),
                    false => Self::check_consumer_commit(group, request),
                }
            }
            None if request.generation.get() < 0 => Ok(()),
            None => Err(request.no_such_group),
        }
    }

    pub(super) fn offsets_mut(&mut self) -> &mut OffsetStore {
        &mut self.offsets
    }

    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    pub(super) fn ends_mut(&mut self) -> &mut Ends {
        &mut self.ends
    }

    /// The groups in the order of their ids: what is done to all of them is done in the same order
    /// whenever the same happens.
    fn groups_in_order(&mut self) -> impl Iterator<Item = &mut Group> {
        let mut groups: Vec<_> = self.groups.iter_mut().collect();
        groups.sort_unstable_by_key(|(one, _)| *one);
        groups.into_iter().map(|(_, group)| group)
    }

    /// The log has been read to its end.
    fn start(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        let config = self.config.clone();
        let mut cx = Context {
            config: &config,
            now,
            effects,
        };
        for group in self.groups_in_order().filter_map(Group::as_classic_mut) {
            group.loaded(&mut cx);
        }
        self.start_consumer_groups(now, effects);
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
            GroupRequest::Describe(group) => GroupReply::Describe(self.describe(&group)),
            GroupRequest::ConsumerHeartbeat(request) => {
                GroupReply::ConsumerHeartbeat(self.consumer_heartbeat(request, now, effects))
            }
            GroupRequest::ConsumerDescribe(group) => {
                GroupReply::ConsumerDescribe(self.describe_consumer(&group))
            }
            GroupRequest::LookedUp(group, found) => {
                self.looked_up(&group, found, now, effects);
                GroupReply::LookedUp
            }
            GroupRequest::List(request) => GroupReply::List(self.list(&request)),
            GroupRequest::Delete(group) => GroupReply::Delete(self.delete(&group, now, effects)),
            GroupRequest::DeleteOffsets(request) => {
                GroupReply::DeleteOffsets(self.delete_offsets(request, now, effects))
            }
            GroupRequest::CommitInTransaction(request) => {
                GroupReply::CommitInTransaction(self.commit_in_transaction(request, now, effects))
            }
            GroupRequest::EndTransaction(producer, marker) => {
                self.end_transaction(producer, marker, effects);
                GroupReply::EndTransaction
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
        let id = match timer {
            GroupTimer::OffsetRetention => {
                self.expire_offsets(now, effects);
                self.schedule_retention(effects);
                return;
            }
            GroupTimer::Session(group, _)
            | GroupTimer::Join(group)
            | GroupTimer::Sync(group)
            | GroupTimer::Rebalance(group, _)
            | GroupTimer::MemberJoin(group, _)
            | GroupTimer::MemberSync(group, _) => group,
        };
        let group = match self.groups.get_mut(id) {
            Some(Group::Classic(group)) => group,
            Some(Group::Consumer(_)) => return self.wake_consumer(id, timer, now, effects),
            None => return,
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
            // Of a consumer group that it was once.
            GroupTimer::Rebalance(..)
            | GroupTimer::MemberJoin(..)
            | GroupTimer::MemberSync(..)
            | GroupTimer::OffsetRetention => {}
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
        if effects.is_scarce {
            return effects.reply(token, refuse(GroupError::NotAvailable));
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
        match self.groups.get(&id) {
            Some(Group::Consumer(group)) if !group.is_empty() => {
                let reply = self.join_consumer(request, now, effects);
                return effects.reply(token, GroupReply::Join(reply));
            }
            Some(Group::Consumer(_)) if request.member.is_empty() => {
                tracing::info!(group = %id, "the empty consumer group becomes a classic one");
                self.remove_group(&id, now, effects);
            }
            Some(Group::Classic(_)) => {}
            Some(Group::Consumer(_)) | None if request.member.is_empty() => {}
            Some(Group::Consumer(_)) | None => {
                return effects.reply(token, refuse(GroupError::UnknownMember));
            }
        }
        let is_new = !self.groups.contains_key(&id);
        let written = effects.records.len();
        let entry = self.groups.entry(id.clone());
        let entry = entry.or_insert_with(|| Group::classic(ClassicGroup::new(id.clone(), now)));
        let Some(group) = entry.as_classic_mut() else {
            return;
        };
        let mut cx = Context {
            config: &self.config,
            now,
            effects,
        };
        group.join(token, request, &mut cx);
        if is_new && group.is_deserted() {
            self.groups.remove(&id);
        } else if is_new && effects.records.len() == written {
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
        let reply = match self.groups.get_mut(&request.group) {
            _ if request.group.is_empty() => Err(GroupError::InvalidGroupId),
            Some(Group::Classic(group)) => {
                let mut cx = Context {
                    config: &self.config,
                    now,
                    effects,
                };
                return group.sync(token, request, &mut cx);
            }
            Some(Group::Consumer(_)) => {
                self.ask_as_classic(&request.group, now, effects, |group, cx| {
                    group.sync_classic(&request, cx)
                })
            }
            None => Err(GroupError::UnknownMember),
        };
        effects.reply(token, GroupReply::Sync(reply));
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
        let group = match self.groups.get_mut(&request.group) {
            Some(Group::Classic(group)) => group,
            Some(Group::Consumer(_)) => {
                return self.ask_as_classic(&request.group, now, effects, |group, cx| {
                    group.heartbeat_classic(request, cx)
                });
            }
            None => return Err(GroupError::UnknownMember),
        };
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
        let group = match self.groups.get_mut(&request.group) {
            Some(Group::Classic(group)) => group,
            Some(Group::Consumer(_)) => {
                return Ok(self.leave_consumer(request, now, effects));
            }
            None => {
                let unknown = |_| Err(GroupError::UnknownMember);
                return Ok(request.members.iter().map(unknown).collect());
            }
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
            Some(Group::Classic(group)) => {
                let mut cx = Context {
                    config: &self.config,
                    now,
                    effects,
                };
                group.accept_commit(&request, &mut cx)?;
            }
            Some(Group::Consumer(group)) => Self::check_consumer_commit(group, &request)?,
            None if request.generation.get() < 0 => {}
            None => return Err(request.no_such_group),
        }
        if effects.is_scarce {
            return Err(GroupError::NotAvailable);
        }
        let (records, results) = self.to_records(request, now);
        self.write_offsets(records, now, effects);
        Ok(results)
    }

    /// The records of a commit that is accepted, and what becomes of each partition.
    pub(super) fn to_records(
        &self,
        request: CommitRequest,
        now: TimestampMs,
    ) -> (Vec<GroupRecord>, Vec<Vec<Result<(), GroupError>>>) {
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
        (records, results)
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

    fn fetch(&self, request: &FetchRequest) -> Result<Vec<FetchedTopic>, GroupError> {
        self.check_fetch(request)?;
        Ok(match &request.topics {
            Some(topics) => self
                .offsets
                .fetch(&request.group, topics, request.require_stable),
            None => self
                .offsets
                .fetch_all(&request.group, request.require_stable),
        })
    }

    fn describe(&self, id: &GroupId) -> Described {
        match self.groups.get(id) {
            Some(Group::Classic(group)) => Described::Classic(group.description()),
            Some(Group::Consumer(_)) => Described::OtherKind,
            None => Described::Missing,
        }
    }

    fn list(&self, request: &ListRequest) -> Vec<GroupListing> {
        let is_wanted = |names: &[String], name: &str| {
            names.is_empty() || names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
        };
        self.groups
            .values()
            .filter(|group| is_wanted(&request.kinds, group.kind()))
            .filter(|group| is_wanted(&request.states, group.state_name()))
            .map(Group::listing)
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
        match self.groups.remove(id) {
            Some(Group::Classic(mut group)) => {
                let mut cx = Context {
                    config: &self.config,
                    now,
                    effects,
                };
                group.dismiss(&mut cx);
                effects.records.push(GroupRecord::Group(id.clone(), None));
            }
            Some(Group::Consumer(group)) => {
                let tombstones = group.tombstones().into_iter();
                let records = tombstones.map(|record| GroupRecord::Consumer(id.clone(), record));
                effects.records.extend(records);
            }
            None => {}
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
                if self.offsets.get(&key).is_some() || self.offsets.staged().has(&key) {
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
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|(id, _)| *id);
        for (id, group) in groups {
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

    fn replay_in_transaction(
        &mut self,
        producer: ProducerIdentity,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        now: TimestampMs,
    ) {
        match GroupRecord::decode(key, value) {
            Ok(DecodedRecord::Known(GroupRecord::Offset(key, Some(commit)))) => {
                self.stage(producer, &key, commit, now);
            }
            Ok(_) => tracing::warn!("a record that is no commit stands in a transaction"),
            Err(error) => tracing::error!(%error, "a damaged group record is passed over"),
        }
    }

    fn replay_end(&mut self, producer: ProducerIdentity, marker: EndTxnMarker, _now: TimestampMs) {
        self.offsets.end_transaction(producer.id, !marker.aborted);
    }

    fn loaded(&mut self, now: TimestampMs, effects: &mut GroupEffects) {
        // Moments of an earlier life are all in the past.
        self.ends = Ends::beginning_at(now);
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

    fn only_reads(&self, request: &GroupRequest) -> bool {
        match request {
            GroupRequest::Fetch(_)
            | GroupRequest::Describe(_)
            | GroupRequest::ConsumerDescribe(_)
            | GroupRequest::List(_) => true,
            GroupRequest::Heartbeat(request) => {
                !matches!(self.groups.get(&request.group), Some(Group::Consumer(_)))
            }
            GroupRequest::Join(_)
            | GroupRequest::Sync(_)
            | GroupRequest::Leave(_)
            | GroupRequest::Commit(_)
            | GroupRequest::ConsumerHeartbeat(_)
            | GroupRequest::LookedUp(..)
            | GroupRequest::Delete(_)
            | GroupRequest::DeleteOffsets(_)
            | GroupRequest::CommitInTransaction(_)
            | GroupRequest::EndTransaction(..)
            | GroupRequest::TopicsDeleted(_) => false,
        }
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
    use crate::coordinator::LogRecord as _;
    let mut view = std::collections::BTreeMap::new();
    for (id, group) in &coordinator.groups {
        match group {
            Group::Classic(group) => {
                let record = group.to_record();
                let is_written = group.is_settled() && !group.listing().protocol_type.is_empty();
                let value = is_written.then(|| record.encode_value()).flatten();
                view.insert(record.encode_key(), value);
            }
            Group::Consumer(group) => {
                for record in consumer::records_of(group) {
                    let record = GroupRecord::Consumer(id.clone(), record);
                    view.insert(record.encode_key(), record.encode_value());
                }
            }
        }
        for topic in coordinator.offsets.fetch_all(id, false) {
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
