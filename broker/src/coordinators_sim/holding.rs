//! What a member of a group has, for how long it may count on it, and what it commits.
//!
//! A member lets go of everything once a session has passed since it sent the last request that the coordinator
//! took for a sign of life; so it has let go before the coordinator gives it to others.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex};

use super::checker::Commit;
use super::sabotage::Sabotage;
use super::world::{Process, SESSION_MS, TOPIC, TOPIC_NUMBER, World};
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitPartition, CommitRequest, CommitTopic};
use crate::groups::names::{GenerationId, GroupId, InstanceId, MemberId, TopicName};
use crate::metadata::test_support::topic_id;

/// How long a member waits for an answer that does not depend on others.
pub(super) const PATIENCE_MS: i64 = 1_500;

/// Who a member is to its coordinator.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub member: MemberId,
    pub instance: Option<InstanceId>,
    /// Or its epoch.
    pub generation: i32,
    /// Whether it is of the consumer protocol.
    pub knows_epochs: bool,
}

pub(super) struct Holding {
    pub world: Arc<World>,
    pub group: String,
    /// Who holds partitions: the static member whichever process it is, or the process.
    owner: String,
    /// The process.
    pub who: String,
    pub owned: BTreeSet<i32>,
    until_ms: i64,
    /// Time has run out while it had something.
    has_lost: bool,
}

/// Sets the end of a commit when the last that could carry it out is gone.
struct Copies(Arc<World>, Arc<Commit>);

impl Drop for Copies {
    fn drop(&mut self) {
        self.1.end(self.0.now_ms());
    }
}

impl Holding {
    /// Of the next process of a member.
    pub(super) fn of_next_process(
        world: &Arc<World>,
        group: &str,
        name: &str,
        instance: Option<&InstanceId>,
    ) -> Self {
        let who = format!("{name}.{}", world.checker.lock().number());
        if let Some(instance) = instance {
            world.checker.lock().succeed(group, instance.as_str());
        }
        Self {
            world: Arc::clone(world),
            group: group.to_owned(),
            owner: instance.map_or_else(|| who.clone(), |instance| instance.as_str().to_owned()),
            who,
            owned: BTreeSet::new(),
            until_ms: 0,
            has_lost: false,
        }
    }

    /// A request that was sent at `sent_ms` was taken for a sign of life. If time had run out by then,
    /// everything was lost nevertheless.
    pub(super) fn alive_at(&mut self, sent_ms: i64) {
        self.look_at_time();
        self.until_ms = self.until_ms.max(sent_ms + i64::from(SESSION_MS));
        let mut checker = self.world.checker.lock();
        for partition in &self.owned {
            checker.prolong(&self.group, *partition, &self.owner, self.until_ms);
        }
    }

    /// Whether there is time left.
    pub(super) fn is_alive(&self) -> bool {
        self.world.now_ms() < self.until_ms
    }

    fn look_at_time(&mut self) {
        if !self.is_alive() {
            self.lose_all();
        }
    }

    fn lose_all(&mut self) {
        self.has_lost |= !self.owned.is_empty();
        self.let_go_of_all();
    }

    /// Whether everything was lost since this was asked last, so that the member has to join anew whatever its
    /// coordinator says.
    pub(super) fn has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    pub(super) fn take(&mut self, partition: i32) {
        if !self.is_alive() || !self.owned.insert(partition) {
            return;
        }
        let now_ms = self.world.now_ms();
        self.world
            .note(&format!("{} takes {}-{partition}", self.who, self.group));
        let whom = (self.owner.as_str(), self.who.as_str());
        let what = (self.group.as_str(), partition);
        self.world
            .checker
            .lock()
            .take(what, whom, now_ms, self.until_ms);
    }

    pub(super) fn let_go(&mut self, partition: i32) {
        if self.owned.remove(&partition) {
            self.world.note(&format!(
                "{} lets go of {}-{partition}",
                self.who, self.group
            ));
            self.world
                .checker
                .lock()
                .let_go(&self.group, partition, &self.owner);
        }
    }

    pub(super) fn let_go_of_all(&mut self) {
        for partition in self.owned.clone() {
            self.let_go(partition);
        }
    }

    /// Waits for `answer`, and lets go of everything when time runs out meanwhile.
    pub(super) async fn while_alive<T>(&mut self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            let until = self.world.dice.clock().at_ms(self.until_ms);
            tokio::select! {
                biased;
                answer = &mut answer => {
                    self.look_at_time();
                    return answer;
                }
                () = tokio::time::sleep_until(until), if !self.owned.is_empty() => {
                    self.lose_all();
                }
            }
        }
    }

    pub(super) async fn pause(&mut self, from_ms: i64, to_ms: i64) {
        let world = Arc::clone(&self.world);
        self.while_alive(world.dice.pause(from_ms, to_ms)).await;
    }

    /// Commits how far one of the partitions has been read. Nobody waits for it.
    pub(super) fn commit(&self, standing: &Standing) {
        let owned: Vec<i32> = self.owned.iter().copied().collect();
        let Some(partition) = owned.get(self.world.dice.index(owned.len())) else {
            return;
        };
        commit(&self.world, &self.group, &self.who, *partition, standing);
    }

    /// A thread of the process commits what it had, much later.
    pub(super) fn wake_up_later(&self, times: usize, standing: Standing) {
        let (world, group, who) = (
            Arc::clone(&self.world),
            self.group.clone(),
            self.who.clone(),
        );
        let owned: Vec<i32> = self.owned.iter().copied().collect();
        tokio::spawn(async move {
            for _ in 0..times {
                world.dice.pause(500, 7_000).await;
                if let Some(partition) = owned.get(world.dice.index(owned.len())) {
                    commit(&world, &group, &who, *partition, &standing);
                }
            }
        });
    }
}

/// Sends a commit of a process.
fn commit(world: &Arc<World>, group: &str, who: &str, partition: i32, standing: &Standing) {
    let world = Arc::clone(world);
    let commit = world
        .checker
        .lock()
        .commit(group, partition, who, world.now_ms());
    let request = request(group, partition, commit.number, standing);
    let copies = Arc::new(Copies(Arc::clone(&world), Arc::clone(&commit)));
    let acknowledges_all = world.sabotage == Some(Sabotage::AcknowledgeRefused);
    let handle = move |process: Arc<Process>| -> BoxFuture<'static, Result<(), GroupError>> {
        let (request, copies) = (request.clone(), Arc::clone(&copies));
        Box::pin(async move {
            let committed = process.groups.commit(request).await;
            drop(copies);
            let result = committed.and_then(|results| results[0][0]);
            match result {
                Err(
                    GroupError::IllegalGeneration
                    | GroupError::UnknownMember
                    | GroupError::StaleMemberEpoch,
                ) if acknowledges_all => Ok(()),
                other => other,
            }
        })
    };
    let node = world.leader_hint(world.coordinator_of_group(group));
    tokio::spawn(async move {
        let answer = world.ask(node, PATIENCE_MS, handle).await;
        world.note(&format!(
            "commit {} of {} to {}-{}: {answer:?}",
            commit.number, commit.who, commit.group, commit.partition
        ));
        match answer {
            Ok(Ok(())) => world.checker.lock().acknowledged(&commit, world.now_ms()),
            Ok(Err(_)) => world.checker.lock().counts.fenced += 1,
            Err(_) => {}
        }
    });
}

fn request(group: &str, partition: i32, number: u64, standing: &Standing) -> CommitRequest {
    CommitRequest {
        group: GroupId::new(group),
        member: standing.member.clone(),
        instance: standing.instance.clone(),
        generation: GenerationId::new(standing.generation),
        retention_ms: None,
        no_such_group: GroupError::IllegalGeneration,
        knows_epochs: standing.knows_epochs,
        topics: topics(partition, number),
    }
}

/// The offset of one partition, which is a number that no other commit has.
pub(super) fn topics(partition: i32, number: u64) -> Vec<CommitTopic> {
    vec![CommitTopic {
        topic: TopicName::new(TOPIC),
        topic_id: topic_id(TOPIC_NUMBER),
        partitions: vec![CommitPartition {
            partition: PartitionIndex::new(partition),
            offset: Offset::new(number as i64),
            leader_epoch: LeaderEpoch::NONE,
            metadata: String::new(),
        }],
    }]
}
