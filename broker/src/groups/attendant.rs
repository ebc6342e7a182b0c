//! Keeps the coordinators where they belong: on the partitions of `__consumer_offsets` that this
//! broker leads, for as long as it leads them.
//!
//! Follows the metadata for the topic, its number of partitions, and topics that go away, whose
//! offsets go too; and follows the leadership of every partition of the topic that is held here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_raft::Leadership;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Service;
use super::names::TopicName;
use super::partition_log::PartitionLog;
use super::service::OFFSETS_TOPIC;
use crate::metadata::image::{MetadataImage, Topic};
use crate::partition::Partition;
use crate::partitions::PartitionManager;

/// How soon coordinators that were busy are told again of topics that are gone.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Keeps the coordinators of a broker where they belong.
#[derive(Debug)]
pub struct Attendant {
    groups: Arc<Service>,
    partitions: Arc<PartitionManager>,
    commit_timeout: Duration,
    followed: HashMap<PartitionIndex, Followed>,
    /// Topics that are gone and of which not every coordinator knows.
    gone: Vec<(TopicName, TopicId)>,
}

/// A partition whose leadership is followed.
#[derive(Debug)]
struct Followed {
    partition: Arc<Partition>,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Attendant {
    /// An attendant of `groups`. `commit_timeout` is `offsets.commit.timeout.ms`.
    pub fn new(
        groups: Arc<Service>,
        partitions: Arc<PartitionManager>,
        commit_timeout: Duration,
    ) -> Self {
        Self {
            groups,
            partitions,
            commit_timeout,
            followed: HashMap::new(),
            gone: Vec::new(),
        }
    }

    /// Follows the metadata until its sender is gone.
    pub async fn run(mut self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        let mut image = Arc::clone(&images.borrow_and_update());
        loop {
            self.attend(&image).await;
            let changed = if self.gone.is_empty() {
                images.changed().await
            } else {
                let changed = tokio::time::timeout(RETRY_DELAY, images.changed()).await;
                changed.unwrap_or(Ok(()))
            };
            if changed.is_err() {
                return;
            }
            let next = Arc::clone(&images.borrow_and_update());
            self.gone.extend(topics_gone(&image, &next));
            image = next;
        }
    }

    async fn attend(&mut self, image: &MetadataImage) {
        match image.topic(OFFSETS_TOPIC) {
            Some(topic) => self.follow(image, topic).await,
            None => {
                self.groups.set_partition_count(None);
                self.followed.clear();
                for partition in self.groups.led() {
                    self.groups.resign(partition);
                }
            }
        }
        if !self.gone.is_empty() && self.groups.topics_deleted(&self.gone).await {
            self.gone.clear();
        }
    }

    async fn follow(&mut self, image: &MetadataImage, topic: &Topic) {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        self.groups.set_partition_count(Some(count));
        self.partitions
            .wait_until_reconciled(image.next_offset())
            .await;
        for (index, _) in topic.indexed() {
            let here = self.partitions.get(topic.id, index);
            if let Some(followed) = self.followed.get(&index) {
                let is_same = here
                    .as_ref()
                    .is_some_and(|here| Arc::ptr_eq(here, &followed.partition));
                if is_same {
                    continue;
                }
                // Others hold it, or it has come back as another replica.
                self.unfollow(index).await;
            }
            let Some(partition) = here else {
                continue;
            };
            let groups = Arc::clone(&self.groups);
            let following = follow_leadership(groups, Arc::clone(&partition), self.commit_timeout);
            let task = tokio::spawn(following);
            self.followed.insert(index, Followed { partition, task });
        }
    }

    /// Ends the coordinator of a partition that is not the one it was. What followed its leadership
    /// has ended before, and so starts none after.
    async fn unfollow(&mut self, index: PartitionIndex) {
        if let Some(mut followed) = self.followed.remove(&index) {
            followed.task.abort();
            let _ = (&mut followed.task).await;
            self.groups.resign(index);
        }
    }
}

/// Starts a coordinator when this broker begins to lead, and ends it when it no longer does.
async fn follow_leadership(
    groups: Arc<Service>,
    partition: Arc<Partition>,
    commit_timeout: Duration,
) {
    let index = partition.index();
    let mut leadership = partition.group().subscribe_leadership();
    let mut led = None;
    loop {
        let current = match *leadership.borrow_and_update() {
            // Before it is ready, the log may end below what an earlier leader acknowledged.
            Leadership::Leader { epoch, ready } => ready.then_some(epoch),
            Leadership::Follower { .. } | Leadership::Unknown => None,
        };
        if current != led {
            match current {
                Some(epoch) => {
                    let log = PartitionLog::new(Arc::clone(&partition), epoch, commit_timeout);
                    groups.lead(index, Arc::new(log));
                }
                None => groups.resign(index),
            }
            led = current;
        }
        if leadership.changed().await.is_err() {
            groups.resign(index);
            return;
        }
    }
}

/// The topics of `before` that are not in `after`; one that was made again under its name has
/// another id.
fn topics_gone(before: &MetadataImage, after: &MetadataImage) -> Vec<(TopicName, TopicId)> {
    before
        .topics()
        .filter(|topic| after.topic_by_id(topic.id).is_none())
        .map(|topic| (TopicName::new(&topic.name), topic.id))
        .collect()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::TimestampMs;

    use super::*;
    use crate::clock::ManualClock;
    use crate::groups::bench::Bench;
    use crate::groups::config::CoordinatorConfig;
    use crate::groups::messages::{FetchRequest, FetchTopic};
    use crate::groups::names::{GenerationId, GroupId, MemberId};
    use crate::groups::partitioner::partition_of;
    use crate::metadata::records::MetadataRecord;
    use crate::partitions::fixture::{Fixture, topic_id};

    const GROUPS: [&str; 4] = ["group", "b", "c", "d"];
    const PARTITIONS: i32 = 3;

    fn attended(fixture: &Fixture) -> (Arc<Service>, watch::Sender<Arc<MetadataImage>>) {
        let clock = Arc::new(ManualClock::starting_at(TimestampMs::new(1_000)));
        let groups = Arc::new(Service::new(CoordinatorConfig::default(), clock));
        let (images, followed) = watch::channel(fixture.image());
        let partitions = Arc::clone(&fixture.manager);
        let attendant = Attendant::new(Arc::clone(&groups), partitions, Duration::from_secs(5));
        tokio::spawn(attendant.run(followed));
        (groups, images)
    }

    async fn wait_for_coordinators(groups: &Service) {
        for partition in 0..PARTITIONS {
            let active = groups.wait_until_active(PartitionIndex::new(partition));
            let in_time = tokio::time::timeout(Duration::from_secs(20), active).await;
            in_time.expect("a coordinator comes up");
        }
    }

    async fn commit(groups: &Service, group: &str) {
        let nobody = MemberId::new("");
        let outside = GenerationId::new(-1);
        let mut request = Bench::commit_request(&nobody, outside, "data", 0, 7);
        request.group = GroupId::new(group);
        request.topics[0].topic_id = topic_id(2);
        assert_eq!(groups.commit(request).await, Ok(vec![vec![Ok(())]]));
    }

    async fn committed(groups: &Service, group: &str) -> Option<i64> {
        let request = FetchRequest {
            group: GroupId::new(group),
            topics: Some(vec![FetchTopic {
                topic: TopicName::new("data"),
                topic_id: TopicId::ZERO,
                partitions: vec![PartitionIndex::new(0)],
            }]),
        };
        let topics = groups.fetch(request).await.expect("a coordinator");
        let found = topics[0].partitions[0].1.as_ref();
        found.map(|found| found.offset.get())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn groups_live_on_the_partitions_of_their_topic_through_a_restart_and_a_deletion() {
        let mut fixture = Fixture::new();
        fixture.create_topic("data", 2, 1).await;
        let (groups, images) = attended(&fixture);
        assert_eq!(groups.partition_of("group"), None, "there is no topic yet");
        fixture.create_topic(OFFSETS_TOPIC, 1, PARTITIONS).await;
        // The coordinator's own topic works with the broker's timestamps too.
        fixture
            .set_config(OFFSETS_TOPIC, "message.timestamp.type", "LogAppendTime")
            .await;
        images.send_replace(fixture.image());
        wait_for_coordinators(&groups).await;
        for group in GROUPS {
            assert_eq!(
                groups.partition_of(group),
                Some(partition_of(group, PARTITIONS))
            );
            commit(&groups, group).await;
            assert_eq!(committed(&groups, group).await, Some(7));
        }
        drop((groups, images));

        let mut fixture = fixture.restart().await;
        let (groups, images) = attended(&fixture);
        wait_for_coordinators(&groups).await;
        for group in GROUPS {
            assert_eq!(committed(&groups, group).await, Some(7));
        }

        fixture
            .change(vec![MetadataRecord::RemoveTopic(topic_id(2))])
            .await;
        images.send_replace(fixture.image());
        for group in GROUPS {
            while committed(&groups, group).await.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }

        fixture
            .change(vec![MetadataRecord::RemoveTopic(topic_id(1))])
            .await;
        images.send_replace(fixture.image());
        while groups.partition_of("group").is_some() || !groups.led().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
