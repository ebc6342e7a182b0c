//! Members of the consumer protocol (KIP-848), dynamic or static.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::PartitionIndex;

use super::holding::{Holding, PATIENCE_MS, Standing};
use super::world::{Process, REBALANCE_MS, TOPIC, TOPIC_NUMBER, World};
use crate::groups::consumer::assignment::Partitions;
use crate::groups::error::GroupError;
use crate::groups::messages::ConsumerHeartbeatRequest;
use crate::groups::names::{Epoch, GroupId, InstanceId, MemberId, TopicName};
use crate::metadata::test_support::topic_id;

/// A member as it is started.
#[derive(Clone, Debug)]
pub(super) struct Consumer {
    pub group: String,
    pub name: String,
    pub instance: Option<InstanceId>,
}

struct Member {
    has: Holding,
    as_started: Consumer,
    id: MemberId,
    epoch: Epoch,
    /// The coordinator may not know what the member has.
    is_to_tell: bool,
}

/// Plays a member for as long as the world is there, one process after the other.
pub(super) async fn play(world: Arc<World>, member: Consumer) {
    world.dice.pause(0, 1_500).await;
    loop {
        let (group, instance) = (&member.group, member.instance.as_ref());
        let has = Holding::of_next_process(&world, group, &member.name, instance);
        let mut playing = Member {
            id: MemberId::new(&has.who),
            has,
            as_started: member.clone(),
            epoch: Epoch::JOINING,
            is_to_tell: true,
        };
        playing.live().await;
        world.dice.pause(1, 800).await;
    }
}

impl Member {
    fn world(&self) -> Arc<World> {
        Arc::clone(&self.has.world)
    }

    fn standing(&self) -> Standing {
        Standing {
            member: self.id.clone(),
            instance: self.as_started.instance.clone(),
            generation: self.epoch.get(),
            knows_epochs: true,
        }
    }

    fn join_anew(&mut self) {
        self.has.let_go_of_all();
        self.epoch = Epoch::JOINING;
        self.is_to_tell = true;
    }

    async fn live(&mut self) {
        let world = self.world();
        loop {
            if self.has.has_lost() || (self.epoch != Epoch::JOINING && !self.has.is_alive()) {
                self.join_anew();
            }
            let sent_ms = world.now_ms();
            let request = self.heartbeat(self.epoch);
            match self.send(request).await {
                Some(Ok(reply)) => {
                    let given = reply.assignment.map(|given| {
                        let indexes = given.iter().map(|(_, index)| index.get());
                        indexes.collect::<BTreeSet<i32>>()
                    });
                    // Since when the coordinator waits for it to let go of something is not known: it may have
                    // been told before. It is taken out before a session has passed from now, maybe.
                    let is_to_let_go = given
                        .as_ref()
                        .is_some_and(|given| !self.has.owned.is_subset(given));
                    if !is_to_let_go {
                        self.has.alive_at(sent_ms);
                    }
                    if self.has.has_lost() {
                        self.join_anew();
                        continue;
                    }
                    self.epoch = reply.epoch;
                    let owned = self.has.owned.clone();
                    if let Some(given) = given {
                        for partition in owned.difference(&given) {
                            self.has.let_go(*partition);
                        }
                        for partition in given {
                            self.has.take(partition);
                        }
                    }
                    // What it has now is acknowledged with the next heartbeat, at once.
                    self.is_to_tell = self.has.owned != owned;
                    if self.is_to_tell {
                        continue;
                    }
                }
                Some(Err(GroupError::FencedMemberEpoch | GroupError::UnknownMember)) => {
                    self.join_anew()
                }
                Some(Err(GroupError::FencedInstance)) => return,
                // What of the request was taken account of is not known.
                Some(Err(_)) | None => self.is_to_tell = true,
            }
            self.has.pause(200, 900).await;
            if self.epoch != Epoch::JOINING && self.has.is_alive() && world.dice.chance(1, 2) {
                self.has.commit(&self.standing());
            }
            if !world.is_calm() && world.dice.chance(1, 25) {
                match world.dice.below(4) {
                    0 => return self.leave().await,
                    1 => {
                        self.has.wake_up_later(1, self.standing());
                        return;
                    }
                    _ => {
                        self.has.pause(1_000, 6_000).await;
                        self.has.commit(&self.standing());
                        self.has.wake_up_later(2, self.standing());
                    }
                }
            }
        }
    }

    fn heartbeat(&self, epoch: Epoch) -> ConsumerHeartbeatRequest {
        let tells = self.is_to_tell;
        let owned = self.has.owned.iter();
        let owned: Partitions = owned
            .map(|partition| (topic_id(TOPIC_NUMBER), PartitionIndex::new(*partition)))
            .collect();
        ConsumerHeartbeatRequest {
            group: GroupId::new(&self.as_started.group),
            member: self.id.clone(),
            epoch,
            instance: self.as_started.instance.clone(),
            rack: None,
            rebalance_timeout_ms: tells.then_some(REBALANCE_MS),
            topics: tells.then(|| vec![TopicName::new(TOPIC)]),
            regex: None,
            assignor: None,
            owned: tells.then_some(owned),
            client_id: self.as_started.name.clone(),
            client_host: "/127.0.0.1".to_owned(),
        }
    }

    async fn send(
        &mut self,
        request: ConsumerHeartbeatRequest,
    ) -> Option<Result<crate::groups::messages::ConsumerHeartbeatReply, GroupError>> {
        let world = self.world();
        let epoch = request.epoch;
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
            let request = request.clone();
            Box::pin(async move { process.groups.consumer_heartbeat(request).await })
        };
        let place = world.coordinator_of_group(&self.as_started.group);
        let asked = world.ask_once(world.leader_hint(place), PATIENCE_MS, handle);
        let reply = self.has.while_alive(asked).await;
        let reply = reply.map(|reply| reply.map_err(|refusal| refusal.error));
        world.note(&format!("{} beats at {epoch}: {reply:?}", self.has.who));
        reply.ok()
    }

    async fn leave(&mut self) {
        let world = self.world();
        self.has.let_go_of_all();
        let epoch = match self.as_started.instance.is_some() && world.dice.chance(1, 2) {
            true => Epoch::AWAY,
            false => Epoch::LEAVING,
        };
        let request = self.heartbeat(epoch);
        // Whether it hears of it or not, it is gone.
        let _ = self.send(request).await;
    }
}
