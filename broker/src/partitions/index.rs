//! Which partitions this broker holds, by topic name and by topic id.
//!
//! An index never changes: the manager makes a new one and swaps it in, so that looking a
//! partition up takes no lock, and a change costs what it changes. Invariant: a name and an id that lead
//! to a topic lead to the same one.

use std::sync::Arc;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, TopicId};

use crate::fetch_sessions::TopicRef;
use crate::metadata::image::MetadataImage;
use crate::partition::Partition;
use crate::shared_map::SharedMap;

/// Why a partition was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No topic has this id.
    #[error("no topic has this id")]
    UnknownTopicId,
    /// No topic has this name, or it has no such partition.
    #[error("no such topic or partition")]
    UnknownTopicOrPartition,
    /// The partition exists, but not on this broker, or not yet.
    #[error("the partition is not open on this broker")]
    NotHere,
    /// The partition is on this broker and could not be opened.
    #[error("the partition cannot be opened")]
    Unopenable,
}

impl LookupError {
    /// The code that a client gets for this cause.
    pub fn error_code(self) -> ErrorCode {
        match self {
            Self::UnknownTopicId => ErrorCode::UnknownTopicId,
            Self::UnknownTopicOrPartition => ErrorCode::UnknownTopicOrPartition,
            Self::NotHere => ErrorCode::NotLeaderOrFollower,
            Self::Unopenable => ErrorCode::KafkaStorageError,
        }
    }
}

/// A partition's place in its topic.
#[derive(Clone, Default)]
pub(super) enum Slot {
    /// Not on this broker, or not yet.
    #[default]
    Absent,
    /// Open.
    Open(Arc<Partition>),
    /// Its data could not be opened; the cause has been logged.
    Unopenable,
}

/// The partitions of one topic.
#[derive(Clone)]
pub(super) struct LocalTopic {
    pub(super) id: TopicId,
    pub(super) name: Arc<str>,
    slots: Vec<Slot>,
}

impl LocalTopic {
    pub(super) fn slot(&self, index: PartitionIndex) -> Option<&Slot> {
        self.slots.get(usize::try_from(index.get()).ok()?)
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(partition) => Some(partition),
            Slot::Absent | Slot::Unopenable => None,
        })
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Index {
    image: Arc<MetadataImage>,
    by_id: SharedMap<TopicId, Arc<LocalTopic>>,
    by_name: SharedMap<Arc<str>, Arc<LocalTopic>>,
}

impl Index {
    /// The metadata that the index answers "unknown" by.
    pub(super) fn image(&self) -> &Arc<MetadataImage> {
        &self.image
    }

    pub(super) fn set_image(&mut self, image: Arc<MetadataImage>) {
        self.image = image;
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = &Arc<LocalTopic>> {
        self.by_id.values()
    }

    pub(super) fn topic(&self, id: TopicId) -> Option<&Arc<LocalTopic>> {
        self.by_id.get(&id)
    }

    pub(super) fn get(&self, id: TopicId, index: PartitionIndex) -> Option<&Arc<Partition>> {
        open(self.by_id.get(&id)?, index)
    }

    pub(super) fn get_by_name(&self, name: &str, index: PartitionIndex) -> Option<&Arc<Partition>> {
        open(self.by_name.get(name)?, index)
    }

    pub(super) fn lookup(
        &self,
        topic: &TopicRef,
        index: PartitionIndex,
    ) -> Result<Arc<Partition>, LookupError> {
        let local = match topic {
            TopicRef::Name(name) => self.by_name.get(&**name),
            TopicRef::Id(id) => self.by_id.get(id),
        };
        match local.and_then(|local| local.slot(index)) {
            Some(Slot::Open(partition)) => return Ok(Arc::clone(partition)),
            Some(Slot::Unopenable) => return Err(LookupError::Unopenable),
            Some(Slot::Absent) | None => {}
        }
        let (known, unknown) = match topic {
            TopicRef::Name(name) => {
                let unknown = LookupError::UnknownTopicOrPartition;
                (self.image.topic(name), unknown)
            }
            TopicRef::Id(id) => (self.image.topic_by_id(*id), LookupError::UnknownTopicId),
        };
        match known.map(|topic| topic.partition(index)) {
            Some(Some(_)) => Err(LookupError::NotHere),
            Some(None) => Err(LookupError::UnknownTopicOrPartition),
            None => Err(unknown),
        }
    }

    /// Puts a partition in its place.
    pub(super) fn insert(&mut self, id: TopicId, name: &Arc<str>, at: PartitionIndex, slot: Slot) {
        let Ok(at) = usize::try_from(at.get()) else {
            return;
        };
        let mut topic = match self.by_id.get(&id) {
            Some(topic) => LocalTopic::clone(topic),
            None => LocalTopic {
                id,
                name: Arc::clone(name),
                slots: Vec::new(),
            },
        };
        if topic.slots.len() <= at {
            topic.slots.resize_with(at + 1, Slot::default);
        }
        if let Some(place) = topic.slots.get_mut(at) {
            *place = slot;
        }
        let topic = Arc::new(topic);
        self.by_name
            .insert(Arc::clone(&topic.name), Arc::clone(&topic));
        self.by_id.insert(id, topic);
    }

    /// Empties a partition's place, and returns what stood there.
    pub(super) fn take(&mut self, id: TopicId, at: PartitionIndex) -> Slot {
        let (Some(topic), Ok(at)) = (self.by_id.get(&id), usize::try_from(at.get())) else {
            return Slot::Absent;
        };
        let mut topic = LocalTopic::clone(topic);
        let taken = topic.slots.get_mut(at).map(std::mem::take);
        let topic = Arc::new(topic);
        self.by_name
            .insert(Arc::clone(&topic.name), Arc::clone(&topic));
        self.by_id.insert(id, topic);
        taken.unwrap_or_default()
    }

    /// Takes a topic out.
    pub(super) fn remove(&mut self, id: TopicId) -> Option<Arc<LocalTopic>> {
        let topic = self.by_id.remove(&id)?;
        // A topic made again under this name may stand there already.
        if self
            .by_name
            .get(&topic.name)
            .is_some_and(|named| named.id == id)
        {
            self.by_name.remove(&topic.name);
        }
        Some(topic)
    }
}

fn open(topic: &LocalTopic, index: PartitionIndex) -> Option<&Arc<Partition>> {
    match topic.slot(index)? {
        Slot::Open(partition) => Some(partition),
        Slot::Absent | Slot::Unopenable => None,
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::Offset;

    use super::*;
    use crate::metadata::test_support::{topic, topic_id};

    const ID: TopicId = topic_id(1);

    fn image_with_one_partition() -> Arc<MetadataImage> {
        let mut image = MetadataImage::default();
        let records = topic("orders", 1, &[&[1]]);
        image.apply(&records, Offset::new(2)).expect("applies");
        Arc::new(image)
    }

    fn fault(index: &Index, topic: TopicRef, partition: i32) -> LookupError {
        match index.lookup(&topic, PartitionIndex::new(partition)) {
            Ok(_) => panic!("nothing is open"),
            Err(error) => error,
        }
    }

    #[test]
    fn what_is_not_open_is_told_apart_from_what_does_not_exist() {
        let mut index = Index::default();
        let by_name = || TopicRef::Name("orders".into());
        assert_eq!(
            fault(&index, by_name(), 0),
            LookupError::UnknownTopicOrPartition
        );
        assert_eq!(
            fault(&index, TopicRef::Id(ID), 0),
            LookupError::UnknownTopicId
        );
        index.set_image(image_with_one_partition());
        assert_eq!(fault(&index, by_name(), 0), LookupError::NotHere);
        assert_eq!(fault(&index, TopicRef::Id(ID), 0), LookupError::NotHere);
        for missing in [-1, 1, i32::MAX] {
            assert_eq!(
                fault(&index, TopicRef::Id(ID), missing),
                LookupError::UnknownTopicOrPartition
            );
        }
    }

    #[test]
    fn a_partition_that_cannot_be_opened_is_a_storage_error_not_a_missing_one() {
        let mut index = Index::default();
        index.insert(
            ID,
            &"orders".into(),
            PartitionIndex::new(1),
            Slot::Unopenable,
        );
        assert_eq!(fault(&index, TopicRef::Id(ID), 1), LookupError::Unopenable);
    }

    #[test]
    fn removing_an_old_topic_leaves_a_new_one_of_its_name() {
        let mut index = Index::default();
        let (name, new_id): (Arc<str>, _) = ("orders".into(), TopicId::from_bytes([2; 16]));
        index.insert(ID, &name, PartitionIndex::new(0), Slot::Unopenable);
        index.insert(new_id, &name, PartitionIndex::new(0), Slot::Unopenable);
        assert!(index.remove(ID).is_some());
        assert_eq!(
            fault(&index, TopicRef::Name(name), 0),
            LookupError::Unopenable
        );
    }
}
