//! What a member of a group holds by what its coordinator told it, what it commits for it, and what it asks about it.
//!
//! A member knows that it holds its partitions for one session timeout after it sent a heartbeat that was answered
//! well: no coordinator throws it out before that. When the time is over it must take it that others hold them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use kafka_protocol::messages::OffsetCommitResponse;

use super::Shared;
use super::coordinator::Coordinator;
use crate::cluster::history::{Fetched, Owned, Partition};
use crate::groups::{offset_commit, offset_fetch};
use crate::wire::Wire;

/// How long one answer may take before a request is made again.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// The session timeout of every member, which campaigns have their clusters allow.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between heartbeats.
pub(super) const HEARTBEAT_PAUSE: Duration = Duration::from_millis(150);

/// Who a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub member: String,
    /// The group's generation, or the member's epoch.
    pub generation: i32,
}

/// See the module.
pub struct Holdings {
    shared: Shared,
    group: String,
    classic: bool,
    /// In which generation, and from when on.
    held: BTreeMap<Partition, (Identity, Duration)>,
    /// Until when.
    lease: Duration,
}

impl Holdings {
    /// Holds nothing.
    pub fn new(shared: Shared, group: &str, classic: bool) -> Self {
        Self {
            shared,
            group: group.to_owned(),
            classic,
            held: BTreeMap::new(),
            lease: Duration::ZERO,
        }
    }

    /// A heartbeat that was sent then has been answered well.
    pub fn renewed(&mut self, sent: Duration) {
        self.lease = self.lease.max(sent + SESSION_TIMEOUT);
    }

    /// Whether others may hold by now what it holds.
    pub fn is_over(&self) -> bool {
        !self.held.is_empty() && self.shared.recorder.now() >= self.lease
    }

    /// What it holds.
    pub fn partitions(&self) -> Vec<Partition> {
        self.held.keys().copied().collect()
    }

    /// It has just been told that it holds these, and no others, as `identity`.
    pub fn are(&mut self, identity: &Identity, partitions: &[Partition]) {
        let gone: Vec<Partition> = self
            .partitions()
            .into_iter()
            .filter(|held| !partitions.contains(held))
            .collect();
        for partition in gone {
            self.let_go(partition);
        }
        let now = self.shared.recorder.now();
        for &partition in partitions {
            let new = || (identity.clone(), now);
            self.held.entry(partition).or_insert_with(new);
        }
    }

    fn let_go(&mut self, partition: Partition) {
        let Some((identity, from)) = self.held.remove(&partition) else {
            return;
        };
        let until = self.shared.recorder.now().min(self.lease);
        let owned = Owned {
            group: self.group.clone(),
            member: identity.member,
            generation: identity.generation,
            classic: self.classic,
            partition,
            from,
            until,
        };
        if owned.from < owned.until {
            let recorder = &self.shared.recorder;
            recorder.note(|history| history.owned.push(owned));
        }
    }

    /// It lets go of everything.
    pub fn let_all_go(&mut self) {
        for partition in self.partitions() {
            self.let_go(partition);
        }
    }

    /// Commits an offset for a partition, once; the error code.
    pub fn commit(
        &self,
        coordinator: &mut Coordinator,
        version: i16,
        identity: &Identity,
        partition: Partition,
    ) -> Result<i16> {
        let recorder = &self.shared.recorder;
        let who = (identity.member.as_str(), identity.generation);
        let (index, offset) = recorder.commit_begins(&self.group, who, partition);
        let rows = [(self.shared.topic.name.as_str(), partition, offset)];
        let request = offset_commit(
            version,
            &self.group,
            identity.generation,
            &identity.member,
            &rows,
        );
        let code = |answer: &OffsetCommitResponse| {
            let mut rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
            rows.next().map_or(-1, |row| row.error_code)
        };
        let answer = coordinator.ask(version, &request, ANSWER_PATIENCE, code)?;
        recorder.commit_ends(index, code(&answer));
        Ok(code(&answer))
    }

    /// Asks what is committed for a partition, once, and writes the answer down.
    pub fn fetch(&self, coordinator: &mut Coordinator, partition: Partition) -> Result<()> {
        // The node is known once there is a connection.
        coordinator.wire(ANSWER_PATIENCE)?;
        let node = coordinator.node().unwrap_or(-1);
        let wire = coordinator.wire(ANSWER_PATIENCE)?;
        let fetched = fetch_committed(&self.shared, wire, &self.group, &[partition], node);
        if !matches!(fetched, Ok(0)) {
            coordinator.forget();
        }
        fetched.map(drop)
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        self.let_all_go();
    }
}

/// Asks the node at the other end what a group has committed, and writes the answer down; its error code.
pub(super) fn fetch_committed(
    shared: &Shared,
    wire: &mut Wire,
    group: &str,
    partitions: &[Partition],
    node: i32,
) -> Result<i16> {
    let rows = [(shared.topic.name.as_str(), partitions)];
    let request = offset_fetch(7, group, Some(&rows));
    let invoked = shared.recorder.now();
    let answer = wire.call(7, &request)?;
    let completed = shared.recorder.now();
    if answer.error_code != 0 {
        return Ok(answer.error_code);
    }
    let topic = answer
        .topics
        .first()
        .context("an answer without the topic")?;
    let fetched: Vec<Fetched> = topic
        .partitions
        .iter()
        .filter(|row| row.error_code == 0)
        .map(|row| Fetched {
            group: group.to_owned(),
            partition: row.partition_index,
            invoked,
            completed,
            offset: row.committed_offset,
            node,
        })
        .collect();
    shared
        .recorder
        .note(|history| history.fetched.extend(fetched));
    Ok(0)
}
