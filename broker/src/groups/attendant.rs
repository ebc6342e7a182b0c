//! Keeps the coordinators of groups where they belong, and tells them of topics that go away, whose
//! offsets go too.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::TopicId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Service;
use super::names::TopicName;
use super::service::OFFSETS_TOPIC;
use crate::coordinator::hosting::Hosting;
use crate::metadata::image::MetadataImage;
use crate::partitions::PartitionManager;

/// How soon coordinators that were busy are told again of topics that are gone.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Keeps the coordinators of a broker where they belong.
#[derive(Debug)]
pub struct Attendant {
    groups: Arc<Service>,
    hosting: Hosting<Service>,
    /// Topics that are gone and of which not every coordinator knows.
    gone: Vec<(TopicName, TopicId)>,
}

impl Attendant {
    /// An attendant of `groups`. `commit_timeout` is `offsets.commit.timeout.ms`.
    pub fn new(
        groups: Arc<Service>,
        partitions: Arc<PartitionManager>,
        commit_timeout: Duration,
    ) -> Self {
        Self {
            hosting: Hosting::new(
                OFFSETS_TOPIC,
                Arc::clone(&groups),
                partitions,
                commit_timeout,
            ),
            groups,
            gone: Vec::new(),
        }
    }

    /// Follows the metadata until its sender is gone.
    pub async fn run(mut self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        let telling = tell_of_metadata(Arc::clone(&self.groups), images.clone());
        let _telling = AbortOnDrop(tokio::spawn(telling));
        let mut image = Arc::clone(&images.borrow_and_update());
        loop {
            self.attend(&image).await;
            let changed = if self.gone.is_empty() {
                self.hosting.changed(&mut images).await
            } else {
                let changed = self.hosting.changed(&mut images);
                let changed = tokio::time::timeout(RETRY_DELAY, changed).await;
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
        self.hosting.attend(image).await;
        if !self.gone.is_empty() && self.groups.topics_deleted(&self.gone).await {
            self.gone.clear();
        }
    }
}

/// Ends a task with its owner.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Has the coordinators see the newest metadata at once, whatever the attendant waits for.
async fn tell_of_metadata(groups: Arc<Service>, mut images: watch::Receiver<Arc<MetadataImage>>) {
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        groups.set_metadata(image);
        if images.changed().await.is_err() {
            return;
        }
    }
}

/// The topics of `before` that are not in `after`; one that was made again under its name has
/// another id.
fn topics_gone(before: &MetadataImage, after: &MetadataImage) -> Vec<(TopicName, TopicId)> {
    let gone = after.topics_gone(before).into_iter();
    gone.map(|topic| (TopicName::new(&topic.name), topic.id))
        .collect()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::{PartitionIndex, TimestampMs};

    use super::*;
    use crate::clock::ManualClock;
    use crate::coordinator::hosting::Coordinators as _;
    use crate::coordinator::partitioner::partition_of;
    use crate::groups::bench::Bench;
    use crate::groups::config::CoordinatorConfig;
    use crate::groups::messages::{FetchRequest, FetchTopic};
    use crate::groups::names::{GenerationId, GroupId, MemberId};
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
            let active = groups
                .host()
                .wait_until_active(PartitionIndex::new(partition));
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
            require_stable: false,
            group: GroupId::new(group),
            member: None,
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
    async fn a_group_goes_on_once_its_partitions_log_has_moved_though_the_metadata_has_not_changed()
    {
        let mut fixture = Fixture::with_others(1);
        fixture.create_topic("data", 2, 1).await;
        fixture.create_topic(OFFSETS_TOPIC, 1, PARTITIONS).await;
        let (groups, _images) = attended(&fixture);
        wait_for_coordinators(&groups).await;
        for group in GROUPS {
            commit(&groups, group).await;
        }
        for partition in 0..PARTITIONS {
            fixture.move_away(OFFSETS_TOPIC, partition).await;
        }
        let found = async {
            for group in GROUPS {
                // Until the coordinator has loaded there is none to ask.
                while groups.host().led().len() < PARTITIONS as usize {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                wait_for_coordinators(&groups).await;
                assert_eq!(committed(&groups, group).await, Some(7));
                commit(&groups, group).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), found).await;
        in_time.expect("coordinators come up again");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn groups_live_on_the_partitions_of_their_topic_through_a_restart_and_a_deletion() {
        let mut fixture = Fixture::new();
        fixture.create_topic("data", 2, 1).await;
        let (groups, images) = attended(&fixture);
        assert_eq!(
            groups.host().partition_of("group"),
            None,
            "there is no topic yet"
        );
        fixture.create_topic(OFFSETS_TOPIC, 1, PARTITIONS).await;
        // The coordinator's own topic works with the broker's timestamps too.
        fixture
            .set_config(OFFSETS_TOPIC, "message.timestamp.type", "LogAppendTime")
            .await;
        images.send_replace(fixture.image());
        wait_for_coordinators(&groups).await;
        for group in GROUPS {
            assert_eq!(
                groups.host().partition_of(group),
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
        while groups.host().partition_of("group").is_some() || !groups.host().led().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
