//! Replication throttled as Kafka throttles it: for the replicas that topics name, up to a rate that
//! a broker has for all of them together.
//!
//! A leader holds back what it sends to throttled replicas that are out of sync
//! (`leader.replication.throttled.rate` and `.replicas`), a follower what it takes of throttled
//! partitions (`follower.replication.throttled.…`); what it does not take, its leader does not send.
//! A request may go while the rate is not used up, and then goes whole; what it takes beyond the
//! rate, the next ones wait for. Without rates nothing is looked at.
//!
//! Records that no entry stands for any more are held back in the same way, and all of them that this
//! broker takes by a rate of their own, `odradek.peer.records.rate`.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::Stream;
use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_raft::GroupKey;
use odradek_raft::rpc::AppendRequest;
use odradek_raft::wire;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::PeerLimits;
use crate::metadata::image::{ConfigMap, ConfigResource, MetadataImage, ResourceKind, Topic};
use crate::shared_map::SharedMap;

const LEADER_REPLICAS: &str = "leader.replication.throttled.replicas";
const FOLLOWER_REPLICAS: &str = "follower.replication.throttled.replicas";
/// Stands for all replicas of a topic.
const ALL_REPLICAS: &str = "*";
/// A rate that was not used for a while may be passed by what it allows in this time.
const BURST: Duration = Duration::from_secs(1);
/// A rate that is none.
const UNLIMITED: u64 = i64::MAX as u64;

/// Checks a value of the two topic settings: `*`, or `partition:broker` with commas.
pub(crate) fn check_replicas(value: &str) -> Result<(), String> {
    match replicas(value).find(|replica| replica.is_none()) {
        Some(_) => Err("elements are `partition:broker`, or `*` stands alone".to_owned()),
        None => Ok(()),
    }
}

fn replicas(value: &str) -> impl Iterator<Item = Option<(PartitionIndex, NodeId)>> {
    let listed = match value.trim() {
        ALL_REPLICAS => "",
        listed => listed,
    };
    let elements = listed.split(',').map(str::trim);
    elements.filter(|it| !it.is_empty()).map(|element| {
        let (partition, broker) = element.split_once(':')?;
        let number = |text: &str| text.parse::<i32>().ok().filter(|it| *it >= 0);
        Some((
            PartitionIndex::new(number(partition)?),
            NodeId::new(number(broker)?),
        ))
    })
}

/// Bytes a second, and how far ahead of them one is.
#[derive(Debug)]
struct Rate {
    bytes_per_second: AtomicU64,
    /// When everything that went would have gone at the rate.
    paid_at: Mutex<Instant>,
}

impl Rate {
    fn new() -> Self {
        Self {
            bytes_per_second: AtomicU64::new(UNLIMITED),
            paid_at: Mutex::new(Instant::now()),
        }
    }

    fn is_set(&self) -> bool {
        self.bytes_per_second.load(Ordering::Relaxed) < UNLIMITED
    }

    fn set(&self, bytes_per_second: u64) {
        let before = self
            .bytes_per_second
            .swap(bytes_per_second, Ordering::Relaxed);
        if before != bytes_per_second {
            // Nobody is to wait for what was taken at another rate.
            *self.paid_at.lock() = Instant::now();
        }
    }

    /// When the next request may go, unless it may go now.
    fn wait(&self, now: Instant) -> Option<Instant> {
        let paid_at = *self.paid_at.lock();
        (self.is_set() && paid_at > now).then_some(paid_at)
    }

    fn take(&self, bytes: usize, now: Instant) {
        let rate = self.bytes_per_second.load(Ordering::Relaxed).max(1);
        let cost = Duration::from_secs_f64((bytes as f64 / rate as f64).min(MAX_DEBT_SECONDS));
        let mut paid_at = self.paid_at.lock();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        *paid_at = (*paid_at).max(earliest) + cost;
    }
}

/// However low the rate, a request is paid for within a day.
const MAX_DEBT_SECONDS: f64 = 86_400.0;

/// The throttles of one broker.
#[derive(Debug)]
pub struct Throttles {
    node: NodeId,
    sending: Rate,
    taking: Rate,
    records: Rate,
    throttled: ArcSwap<Throttled>,
}

/// What the metadata says about who is throttled.
#[derive(Debug, Default)]
struct Throttled {
    image: Arc<MetadataImage>,
    /// Topics with throttled replicas.
    topics: SharedMap<TopicId, Arc<Replicas>>,
}

/// Throttled replicas of a topic.
#[derive(Debug, Default, PartialEq)]
struct Replicas {
    /// Partitions whose leader, if this node is that, is throttled.
    sending: HashSet<PartitionIndex>,
    /// Partitions of which this node is a throttled follower.
    taking: HashSet<PartitionIndex>,
}

impl Throttles {
    /// Of node `node`, without a rate.
    pub fn new(node: NodeId) -> Arc<Self> {
        Arc::new(Self {
            node,
            sending: Rate::new(),
            taking: Rate::new(),
            records: Rate::new(),
            throttled: ArcSwap::default(),
        })
    }

    /// Takes over the rates.
    pub fn set_rates(&self, limits: &PeerLimits) {
        self.sending.set(limits.leader_throttled_rate);
        self.taking.set(limits.follower_throttled_rate);
        self.records.set(limits.records_rate);
    }

    /// Takes over which replicas are throttled, and which are in sync. Topics that are as they were are not
    /// looked at.
    pub fn follow(&self, image: &Arc<MetadataImage>) {
        let known = self.throttled.load_full();
        let mut topics = known.topics.clone();
        let of_topics = |resource: &ConfigResource| resource.kind == ResourceKind::Topic;
        let configured = image.config_changes(&known.image).into_iter();
        let configured = configured.map(|change| change.key).filter(of_topics);
        let changed = image.topic_changes(&known.image).into_iter();
        let changed = changed.map(|change| change.key.to_string());
        for name in configured.map(|resource| resource.name).chain(changed) {
            if let Some(before) = known.image.topic(&name) {
                topics.remove(&before.id);
            }
            if let Some(topic) = image.topic(&name) {
                let replicas = self.replicas_of(topic, image.config(&ConfigResource::topic(name)));
                if replicas != Replicas::default() {
                    topics.insert(topic.id, Arc::new(replicas));
                }
            }
        }
        self.throttled.store(Arc::new(Throttled {
            image: Arc::clone(image),
            topics,
        }));
    }

    fn replicas_of(&self, topic: &Topic, config: &ConfigMap) -> Replicas {
        Replicas {
            sending: self.named(topic, config, LEADER_REPLICAS),
            taking: self.named(topic, config, FOLLOWER_REPLICAS),
        }
    }

    fn named(&self, topic: &Topic, config: &ConfigMap, name: &str) -> HashSet<PartitionIndex> {
        match config.get(name) {
            None => HashSet::new(),
            Some(value) if value.trim() == ALL_REPLICAS => {
                topic.indexed().map(|(index, _)| index).collect()
            }
            Some(value) => replicas(value)
                .flatten()
                .filter(|(_, node)| *node == self.node)
                .map(|(partition, _)| partition)
                .collect(),
        }
    }

    /// Holds back what is sent to a replica.
    pub(super) fn sending<S>(
        self: &Arc<Self>,
        group: GroupKey,
        to: NodeId,
        requests: S,
    ) -> Held<S> {
        Held::new(self, group, Some(to), requests)
    }

    /// Holds back what is taken from a leader.
    pub(super) fn taking<S>(self: &Arc<Self>, group: GroupKey, requests: S) -> Held<S> {
        Held::new(self, group, None, requests)
    }

    /// Waits until records may be sent to a replica.
    pub(super) async fn until_may_send(&self, group: GroupKey, to: NodeId) {
        self.until_may(|| self.applicable(group, Some(to))).await;
    }

    /// So many bytes of records are sent to a replica.
    pub(super) fn sent(&self, group: GroupKey, to: NodeId, bytes: usize) {
        if let Some(rate) = self.applicable(group, Some(to)) {
            rate.take(bytes, Instant::now());
        }
    }

    /// So many bytes of records have come; waits until more may.
    pub(super) async fn received(&self, group: GroupKey, bytes: usize) {
        let own = || Some(&self.records).filter(|rate| rate.is_set());
        let of_group = || self.applicable(group, None);
        let now = Instant::now();
        for rate in [own(), of_group()].into_iter().flatten() {
            rate.take(bytes, now);
        }
        self.until_may(own).await;
        self.until_may(of_group).await;
    }

    async fn until_may<'a>(&'a self, rate: impl Fn() -> Option<&'a Rate>) {
        loop {
            let now = Instant::now();
            match rate().and_then(|rate| rate.wait(now)) {
                Some(until) => tokio::time::sleep_until(until.min(now + PAUSE_MAX)).await,
                None => return,
            }
        }
    }

    /// The rate that applies now; `to` is the replica that is sent to, if it is this node that sends.
    fn applicable(&self, group: GroupKey, to: Option<NodeId>) -> Option<&Rate> {
        let rate = match to {
            Some(_) => &self.sending,
            None => &self.taking,
        };
        if !rate.is_set() {
            return None;
        }
        let throttled = self.throttled.load();
        let replicas = throttled.topics.get(&group.topic_id)?;
        let applies = match to {
            Some(to) => {
                replicas.sending.contains(&group.partition) && !throttled.is_in_sync(group, to)
            }
            None => replicas.taking.contains(&group.partition),
        };
        applies.then_some(rate)
    }
}

impl Throttled {
    fn is_in_sync(&self, group: GroupKey, node: NodeId) -> bool {
        let topic = self.image.topic_by_id(group.topic_id);
        topic
            .and_then(|topic| topic.partition(group.partition))
            .is_some_and(|partition| partition.isr.contains(&node))
    }
}

/// Requests that are held back where a throttle applies.
pub(super) struct Held<S> {
    throttles: Arc<Throttles>,
    group: GroupKey,
    to: Option<NodeId>,
    requests: S,
    pause: Option<Pin<Box<Sleep>>>,
}

/// How long a pause lasts before it is looked again whether the throttle still applies.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl<S> Held<S> {
    fn new(throttles: &Arc<Throttles>, group: GroupKey, to: Option<NodeId>, requests: S) -> Self {
        Self {
            throttles: Arc::clone(throttles),
            group,
            to,
            requests,
            pause: None,
        }
    }

    /// Pending while the next request must wait.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let now = Instant::now();
            let rate = self.throttles.applicable(self.group, self.to);
            match rate.and_then(|rate| rate.wait(now)) {
                Some(until) => {
                    let until = until.min(now + PAUSE_MAX);
                    self.pause = Some(Box::pin(tokio::time::sleep_until(until)));
                }
                None => return Poll::Ready(()),
            }
        }
    }
}

impl<S: Stream<Item = AppendRequest> + Unpin> Stream for Held<S> {
    type Item = AppendRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AppendRequest>> {
        let this = &mut *self;
        ready!(this.poll_pause(cx));
        let request = ready!(Pin::new(&mut this.requests).poll_next(cx));
        if let Some(request) = &request
            && let Some(rate) = this.throttles.applicable(this.group, this.to)
        {
            let bytes = wire::append_request_len(request).unwrap_or(0);
            rate.take(bytes, Instant::now());
        }
        Poll::Ready(request)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::metadata::records::{ConfigRecord, MetadataRecord};
    use crate::metadata::test_support;
    use crate::peer::tests::append_request;

    /// Kafka's number of the resource type "topic".
    const TOPIC: i8 = 2;

    #[test]
    fn lists_of_replicas_are_checked_as_kafka_checks_them() {
        for value in ["", "*", " * ", "0:1", "0:1,12:3", "0:1, 2:3 "] {
            assert_eq!(check_replicas(value), Ok(()), "{value}");
        }
        for value in ["0", "0:", ":1", "0:1;2:3", "*,0:1", "-1:2", "a:b"] {
            assert!(check_replicas(value).is_err(), "{value}");
        }
    }

    /// Throttles of a node in a cluster with topic `t` of two partitions on nodes 1, 2 and 3.
    fn throttled(node: i32, config: &[(&str, &str)], isr: &[i32]) -> Arc<Throttles> {
        let mut records = test_support::topic("t", 7, &[&[1, 2, 3], &[1, 2, 3]]);
        for record in &mut records {
            if let MetadataRecord::Partition(partition) = record {
                partition.isr = test_support::nodes(isr);
            }
        }
        for (name, value) in config {
            records.push(MetadataRecord::Config(ConfigRecord {
                resource_type: TOPIC,
                resource_name: "t".to_owned(),
                name: (*name).to_owned(),
                value: Some((*value).to_owned()),
            }));
        }
        let mut image = MetadataImage::default();
        test_support::apply(&mut image, &records);
        let throttles = Throttles::new(NodeId::new(node));
        throttles.follow(&Arc::new(image));
        throttles
    }

    fn rates(leader: u64, follower: u64) -> PeerLimits {
        PeerLimits {
            leader_throttled_rate: leader,
            follower_throttled_rate: follower,
            ..PeerLimits::impatient()
        }
    }

    fn key(partition: i32) -> GroupKey {
        GroupKey::new(TopicId::from_bytes([7; 16]), PartitionIndex::new(partition))
    }

    #[test]
    fn a_throttle_applies_to_the_replicas_that_are_named_and_out_of_sync() {
        let leader = throttled(1, &[(LEADER_REPLICAS, "0:1,1:2")], &[1, 2]);
        let applies = |partition, to: i32| {
            leader
                .applicable(key(partition), Some(NodeId::new(to)))
                .is_some()
        };
        assert!(!applies(0, 3), "without a rate");
        leader.set_rates(&rates(1_000, UNLIMITED));
        assert!(applies(0, 3));
        assert!(!applies(0, 2), "in sync");
        assert!(!applies(1, 3), "of another leader");
        assert!(leader.applicable(key(0), None).is_none());

        let follower = throttled(3, &[(FOLLOWER_REPLICAS, "*")], &[1, 2]);
        follower.set_rates(&rates(UNLIMITED, 1_000));
        assert!(follower.applicable(key(1), None).is_some());
        assert!(follower.applicable(key(1), Some(NodeId::new(2))).is_none());
    }

    #[test]
    fn a_throttle_that_follows_the_metadata_step_by_step_is_one_that_sees_the_end() {
        let mut image = MetadataImage::default();
        let step = Throttles::new(NodeId::new(1));
        let set = |name: &str, value: Option<&str>| {
            MetadataRecord::Config(ConfigRecord {
                resource_type: TOPIC,
                resource_name: name.to_owned(),
                name: LEADER_REPLICAS.to_owned(),
                value: value.map(str::to_owned),
            })
        };
        let topic = |name: &str, number| test_support::topic(name, number, &[&[1, 2], &[1, 2]]);
        for (records, throttled) in [
            (topic("t", 7), vec![]),
            (vec![set("t", Some("*"))], vec![(7, 2)]),
            (topic("u", 8), vec![(7, 2)]),
            (vec![set("u", Some("1:1"))], vec![(7, 2), (8, 1)]),
            (
                vec![MetadataRecord::RemoveTopic(test_support::topic_id(7))],
                vec![(8, 1)],
            ),
            (topic("t", 9), vec![(8, 1)]),
            (vec![set("u", None), set("t", Some("0:1"))], vec![(9, 1)]),
        ] {
            test_support::apply(&mut image, &records);
            step.follow(&Arc::new(image.clone()));
            let known = step.throttled.load();
            let topics = known.topics.iter();
            let found: Vec<_> = topics.map(|(id, it)| (*id, it.sending.len())).collect();
            let expected = throttled.into_iter();
            let expected: Vec<_> = expected
                .map(|(number, count)| (test_support::topic_id(number), count))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn records_come_at_a_rate_of_their_own_and_at_that_of_a_throttled_replica() {
        let throttles = throttled(3, &[(FOLLOWER_REPLICAS, "0:3")], &[1, 2]);
        throttles.set_rates(&PeerLimits {
            records_rate: 10_000,
            ..rates(UNLIMITED, 1_000)
        });
        let start = Instant::now();
        for _ in 0..10 {
            throttles.received(key(1), 5_000).await;
        }
        let took = start.elapsed().as_secs_f64();
        assert!((3.9..5.1).contains(&took), "{took} s");
        let start = Instant::now();
        for _ in 0..10 {
            throttles.received(key(0), 1_000).await;
        }
        let took = start.elapsed().as_secs_f64();
        assert!((8.9..10.1).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_keeps_to_the_rate_and_goes_on_when_there_is_none() {
        let throttles = throttled(3, &[(FOLLOWER_REPLICAS, "0:3")], &[1, 2]);
        throttles.set_rates(&rates(UNLIMITED, 10_000));
        let requests =
            |count| futures_util::stream::iter((0..count).map(|i| append_request(i, 900)));
        let each = wire::append_request_len(&append_request(0, 900)).expect("sendable");
        let start = Instant::now();
        let count = throttles.taking(key(0), requests(100)).count().await;
        assert_eq!(count, 100);
        // The end of the stream waits like a request.
        let expected = (each * 100) as f64 / 10_000.0;
        let took = start.elapsed().as_secs_f64();
        assert!((expected - 1.1..expected + 0.1).contains(&took), "{took} s");

        // The other partition is not throttled.
        let start = Instant::now();
        assert_eq!(throttles.taking(key(1), requests(100)).count().await, 100);
        assert_eq!(start.elapsed(), Duration::ZERO);

        // A rate that is lifted holds nobody any longer than a second.
        throttles.set_rates(&rates(UNLIMITED, 1));
        let mut held = throttles.taking(key(0), requests(3));
        held.next().await;
        held.next().await;
        let start = Instant::now();
        throttles.set_rates(&rates(UNLIMITED, UNLIMITED));
        assert!(held.next().await.is_some());
        assert!(start.elapsed() <= PAUSE_MAX);
    }
}
