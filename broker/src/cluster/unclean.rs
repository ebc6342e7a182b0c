//! Carrying out elections that may lose records, on the metadata leader: at an operator's wish, and where
//! `unclean.leader.election.enable` says so for partitions that have been stuck for long.
//!
//! The replicas are asked what they have; what that comes to,
//! [`unclean_elections`](crate::metadata::controller::unclean_elections) decides.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::StreamExt;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_raft::GroupKey;
use tokio::time::Instant;

use crate::config::BrokerConfig;
use crate::fetch_sessions::TopicRef;
use crate::metadata::controller::unclean_elections::{
    NotElected, Testimony, UncleanElection, check_versions, elect_unclean, looks_stuck, witnesses,
};
use crate::metadata::image::{ConfigResource, MetadataImage, Topic};
use crate::metadata::service::MetadataService;
use crate::partitions::{LookupError, PartitionManager};
use crate::peer::{PROTOCOL_MAX, PROTOCOL_WITH_INCARNATIONS, PeerReply, PeerRequest, Peers};
use crate::topic_config::TopicConfig;

/// How long a replica may take to say what it has.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Replicas that are asked at a time.
const ASKED_AT_ONCE: usize = 8;
/// Partitions that are looked at at a time.
const AT_ONCE: usize = 16;
/// Partitions of one round; the others have their turn in the next.
const MOST_IN_A_ROUND: usize = 1_000;
/// How often one is decided on anew that has been changed meanwhile.
const ATTEMPTS: usize = 3;

/// What such an election works with.
pub struct Electing<'a> {
    /// The metadata, which this node leads.
    pub metadata: &'a MetadataService,
    /// The other nodes.
    pub peers: &'a Peers,
    /// The partitions of this broker.
    pub partitions: &'a PartitionManager,
}

impl Electing<'_> {
    /// Has a partition that has lost most of its voters go on with the replica that has the longest
    /// log.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn elect(
        &self,
        topic_id: TopicId,
        partition: PartitionIndex,
    ) -> Result<(), NotElected> {
        for _ in 0..ATTEMPTS {
            let image = self.metadata.image();
            let asked = witnesses(&image, topic_id, partition)?;
            let group = GroupKey::new(topic_id, partition);
            let heard: BTreeMap<NodeId, Testimony> = futures_util::stream::iter(asked)
                .map(|node| async move { (node, self.hear(node, group).await) })
                .buffer_unordered(ASKED_AT_ONCE)
                .collect()
                .await;
            let election = elect_unclean(&image, topic_id, partition, &heard)?;
            // Looked at last: who is asked has been connected to, and says what it speaks.
            let own = self.peers.local().node_id();
            check_versions(&image, PROTOCOL_WITH_INCARNATIONS, |node| {
                match node == own {
                    true => Some(PROTOCOL_MAX),
                    false => self.peers.protocol_with(node),
                }
            })?;
            let decided = election.clone();
            let written = self.metadata.run(move |image| {
                let records = decided.records(image);
                let is_done = records.is_some();
                (records.unwrap_or_default(), is_done)
            });
            match written.await {
                Ok(done) if done.value => {
                    say(&image, &election);
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => return Err(error.code().into()),
            }
        }
        // It keeps changing, so somebody looks after it.
        Err(ErrorCode::ElectionNotNeeded.into())
    }

    async fn hear(&self, node: NodeId, group: GroupKey) -> Testimony {
        if node == self.peers.local().node_id() {
            return own_testimony(self.partitions, group);
        }
        let question = PeerRequest::Standing(group);
        match self.peers.call_within(node, question, ANSWER_TIMEOUT).await {
            Ok(PeerReply::Standing(Some(standing))) => Testimony::Stands(standing),
            Ok(PeerReply::Standing(None)) => Testimony::Nothing,
            Ok(_) | Err(_) => Testimony::Silent,
        }
    }
}

/// What this broker's replica of a partition has, in whichever incarnation it is. One that is not open yet
/// says nothing: it may have everything.
pub(super) fn own_testimony(partitions: &PartitionManager, group: GroupKey) -> Testimony {
    match partitions.lookup(&TopicRef::Id(group.topic_id), group.partition) {
        Ok(partition) => Testimony::Stands(partition.group().standing()),
        Err(LookupError::Unopenable) => Testimony::Nothing,
        Err(
            LookupError::NotHere
            | LookupError::UnknownTopicId
            | LookupError::UnknownTopicOrPartition,
        ) => Testimony::Silent,
    }
}

/// What was given up, for whoever has to find out later.
fn say(image: &MetadataImage, election: &UncleanElection) {
    let topic = image
        .topic_by_id(election.topic_id)
        .map_or("", |topic| &*topic.name);
    let (kept, committed) = (election.kept_until, election.known_committed);
    tracing::warn!(
        topic,
        partition = election.partition.get(),
        leader = %election.begun.succession.founder,
        epoch = election.begun.incarnation.get(),
        kept_until = kept.get(),
        known_committed = committed.get(),
        known_lost = (committed.get() - kept.get()).max(0),
        unheard = ?election.unheard,
        "unclean election: most voters are given up, and with them every record beyond the log of the \
         new leader; what is known to be lost are the offsets from kept_until to known_committed, and \
         replicas that were not heard may have acknowledged more"
    );
}

/// Which partitions have looked stuck, and since when.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    since: HashMap<(TopicId, PartitionIndex), Instant>,
}

impl Stuck {
    /// Partitions that have been stuck for `wait` or longer and may lose records. Each is named again
    /// only after as long.
    pub(super) fn look(
        &mut self,
        now: Instant,
        wait: Duration,
        image: &MetadataImage,
        config: &BrokerConfig,
    ) -> Vec<(TopicId, PartitionIndex)> {
        let mut before = std::mem::take(&mut self.since);
        let mut due = Vec::new();
        for topic in image.topics() {
            let mut stuck = topic
                .indexed()
                .filter(|(_, state)| looks_stuck(image, state))
                .peekable();
            if stuck.peek().is_none() || !may_lose_records(image, config, topic) {
                continue;
            }
            for (index, _) in stuck {
                let place = (topic.id, index);
                let since = before.remove(&place).unwrap_or(now);
                let is_due = now.duration_since(since) >= wait && due.len() < MOST_IN_A_ROUND;
                if is_due {
                    due.push(place);
                }
                self.since.insert(place, if is_due { now } else { since });
            }
        }
        due
    }
}

fn may_lose_records(image: &MetadataImage, config: &BrokerConfig, topic: &Topic) -> bool {
    let own = image.config(&ConfigResource::topic(&*topic.name));
    TopicConfig::new(&config.topic_defaults, own).is_ok_and(|config| config.unclean_leader_election)
}

/// Elects for all of these.
pub(super) async fn elect_all(electing: Electing<'_>, due: Vec<(TopicId, PartitionIndex)>) {
    futures_util::stream::iter(due)
        .for_each_concurrent(AT_ONCE, |(topic_id, partition)| {
            let electing = &electing;
            async move {
                match electing.elect(topic_id, partition).await {
                    Ok(()) | Err(NotElected::Code(_)) => {
                        tracing::debug!(%topic_id, %partition, "a partition has been stuck");
                    }
                    Err(outdated @ NotElected::Outdated { .. }) => {
                        tracing::warn!(%topic_id, %partition, %outdated, "no unclean election");
                    }
                }
            }
        })
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::controller::register_broker;
    use crate::metadata::records::{ConfigRecord, MetadataRecord};
    use crate::metadata::test_support::{apply, image_with_brokers, topic, topic_id};

    const WAIT: Duration = Duration::from_secs(10);

    /// Two topics of two partitions, of which only the first may lose records; brokers 1 and 2 are away.
    fn image() -> MetadataImage {
        let mut image = image_with_brokers(&[1, 2, 3, 4]);
        apply(&mut image, &topic("may", 1, &[&[1, 2, 3], &[2, 3, 4]]));
        apply(&mut image, &topic("may-not", 2, &[&[1, 2, 3]]));
        let enable = MetadataRecord::Config(ConfigRecord {
            resource_type: 2,
            resource_name: "may".to_owned(),
            name: "unclean.leader.election.enable".to_owned(),
            value: Some("true".to_owned()),
        });
        apply(&mut image, &[enable]);
        for id in [1, 2] {
            let records = register_broker::fence(&image, NodeId::new(id), true);
            apply(&mut image, &records);
        }
        image
    }

    #[test]
    fn only_where_it_is_configured_and_after_the_wait() {
        let config = BrokerConfig::defaults();
        let (image, start) = (image(), Instant::now());
        let mut stuck = Stuck::default();
        let mut at = |ms| {
            let now = start + Duration::from_millis(ms);
            stuck.look(now, WAIT, &image, &config)
        };
        assert_eq!(at(0), []);
        assert_eq!(at(9_999), []);
        let first = (topic_id(1), PartitionIndex::new(0));
        // Partition 1 has lost its leader, and two of its replicas are there: it is asked all the same.
        let second = (topic_id(1), PartitionIndex::new(1));
        assert_eq!(at(10_000), [first, second]);
        assert_eq!(at(11_000), [], "each has its turn again only after as long");
        assert_eq!(at(20_000), [first, second]);
    }

    #[test]
    fn one_that_is_led_again_meanwhile_waits_from_the_start() {
        let config = BrokerConfig::defaults();
        let (away, start) = (image(), Instant::now());
        let mut back = away.clone();
        for id in [1, 2] {
            let records = register_broker::fence(&back, NodeId::new(id), false);
            apply(&mut back, &records);
        }
        let led = crate::metadata::records::PartitionChangeRecord {
            leader: Some(Some(NodeId::new(1))),
            ..crate::metadata::records::PartitionChangeRecord::of(
                topic_id(1),
                PartitionIndex::new(0),
            )
        };
        apply(&mut back, &[MetadataRecord::PartitionChange(led)]);
        let mut stuck = Stuck::default();
        let second = start + Duration::from_secs(9);
        assert_eq!(stuck.look(start, WAIT, &away, &config), []);
        assert_eq!(stuck.look(second, WAIT, &back, &config), []);
        let due = stuck.look(start + WAIT, WAIT, &away, &config);
        assert!(!due.contains(&(topic_id(1), PartitionIndex::new(0))));
    }
}
