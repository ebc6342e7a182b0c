//! What has to change on this broker for it to hold what the metadata says: a comparison, no I/O.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};

use super::directory::{DirectoryKind, kind_of};
use super::index::{Index, LocalTopic, Slot};
use crate::metadata::image::{MetadataImage, PartitionState, Topic};
use crate::metadata::records::Begun;

/// A partition that this broker has to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) topic: Arc<str>,
    pub(super) topic_id: TopicId,
    pub(super) index: PartitionIndex,
    /// Voters of its group, if that is new.
    pub(super) voters: Vec<NodeId>,
    /// Whether a replica without data begins the group, with the other voters. Otherwise it waits
    /// for the leader to give it the log.
    pub(super) begins: bool,
    /// Whether the group has had a leader: a replica that begins it all the same has lost its data.
    pub(super) has_been_led: bool,
    /// Its group, if not the one that it was made with.
    pub(super) begun: Option<Begun>,
}

/// The difference between what is and what should be.
#[derive(Default)]
pub(super) struct Changes {
    /// Topics that are gone.
    pub(super) removed: Vec<Arc<LocalTopic>>,
    /// Partitions of topics that remain which others hold from now on.
    pub(super) released: Vec<(TopicId, PartitionIndex)>,
    /// Partitions whose replicas here are of another group than the partition's. They are among those
    /// to open.
    pub(super) superseded: Vec<(TopicId, PartitionIndex)>,
    /// Partitions to open, or to make.
    pub(super) added: Vec<Wanted>,
}

/// Compares the index with `image`. What neither side has changed since the image that the index knows is
/// passed over: the index holds what that image says.
pub(super) fn changes(index: &Index, image: &MetadataImage, node: NodeId) -> Changes {
    let mut changes = Changes::default();
    for change in image.topic_changes(index.image()) {
        if let Some(gone) = change
            .before
            .filter(|topic| image.topic_by_id(topic.id).is_none())
        {
            changes.removed.extend(index.topic(gone.id).map(Arc::clone));
        }
        if let Some(topic) = change.after {
            changes.released.extend(released(index, &topic, node));
            changes.superseded.extend(superseded(index, &topic, node));
            changes.added.extend(missing(index, &topic, node));
        }
    }
    changes
}

fn released(index: &Index, topic: &Topic, node: NodeId) -> Vec<(TopicId, PartitionIndex)> {
    let Some(local) = index.topic(topic.id) else {
        return Vec::new();
    };
    topic
        .indexed()
        .filter(|(at, partition)| {
            let is_held = !matches!(local.slot(*at), None | Some(Slot::Absent));
            is_held && !partition.replicas.contains(&node)
        })
        .map(|(at, _)| (topic.id, at))
        .collect()
}

/// Whether a replica here, if there is one, was opened for another group than the partition's.
fn is_superseded(
    index: &Index,
    topic: &Topic,
    at: PartitionIndex,
    partition: &PartitionState,
) -> bool {
    let slot = index.topic(topic.id).and_then(|local| local.slot(at));
    let opened_for = match slot {
        Some(Slot::Open(open)) => open.group().key().incarnation,
        // It was tried by what the index knows.
        Some(Slot::Unopenable) => {
            let known = index.image().topic_by_id(topic.id);
            match known.and_then(|known| known.partition(at)) {
                Some(known) => known.incarnation(),
                None => return false,
            }
        }
        Some(Slot::Absent) | None => return false,
    };
    opened_for != partition.incarnation()
}

fn superseded(index: &Index, topic: &Topic, node: NodeId) -> Vec<(TopicId, PartitionIndex)> {
    topic
        .indexed()
        .filter(|(_, partition)| partition.replicas.contains(&node))
        .filter(|(at, partition)| is_superseded(index, topic, *at, partition))
        .map(|(at, _)| (topic.id, at))
        .collect()
}

/// Voters of a partition's group if it is new, and whether a replica of it on `node` that has no
/// data may begin it. It may as long as nobody can have led the group: a node that has lost its data
/// may have acknowledged records and given votes, and must not take part as if it had not. With one
/// replica there is nobody else to ask.
fn beginning(partition: &PartitionState, node: NodeId) -> (Vec<NodeId>, bool) {
    let voters: Vec<NodeId> = partition
        .replicas
        .iter()
        .copied()
        .filter(|replica| !partition.adding_replicas.contains(replica))
        .collect();
    let never_led = partition.leader_epoch <= LeaderEpoch::new(0);
    let begins = (never_led || partition.replicas == [node]) && voters.contains(&node);
    (voters, begins)
}

fn missing(index: &Index, topic: &Topic, node: NodeId) -> Vec<Wanted> {
    let local = index.topic(topic.id);
    let is_missing = |at: PartitionIndex, partition: &PartitionState| {
        let slot = local.and_then(|local| local.slot(at));
        matches!(slot, None | Some(Slot::Absent)) || is_superseded(index, topic, at, partition)
    };
    topic
        .indexed()
        .filter(|(at, partition)| partition.replicas.contains(&node) && is_missing(*at, partition))
        .map(|(at, partition)| wanted(topic, at, partition, node))
        .collect()
}

fn wanted(topic: &Topic, at: PartitionIndex, partition: &PartitionState, node: NodeId) -> Wanted {
    let (voters, begins) = beginning(partition, node);
    Wanted {
        topic: Arc::clone(&topic.name),
        topic_id: topic.id,
        index: at,
        voters,
        begins,
        has_been_led: partition.leader_epoch > LeaderEpoch::new(0),
        begun: partition.begun,
    }
}

/// What the metadata says of a partition, if it has a replica here.
pub(super) fn wanted_of(
    image: &MetadataImage,
    topic_id: TopicId,
    at: PartitionIndex,
    node: NodeId,
) -> Option<Wanted> {
    let topic = image.topic_by_id(topic_id)?;
    let partition = topic.partition(at)?;
    let is_here = partition.replicas.contains(&node);
    is_here.then(|| wanted(topic, at, partition, node))
}

/// A directory found at the start, with the topic id that its `partition.metadata` gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundDirectory {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) topic_id: Option<TopicId>,
    /// Whether there is any record data in it.
    pub(super) has_data: bool,
}

/// What becomes of the directories found at the start.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    /// Directories of partitions that this broker holds.
    pub(super) known: HashMap<(TopicId, PartitionIndex), PathBuf>,
    /// Directories of no partition of this broker, to be set aside: path, topic, index, id.
    pub(super) stray: Vec<(PathBuf, String, PartitionIndex, TopicId)>,
    /// Directories whose `partition.metadata` is lost or unreadable, but whose name is that of a
    /// partition of this broker: to be given it again.
    pub(super) nameless: Vec<(TopicId, PartitionIndex, PathBuf)>,
    /// Partitions of this broker that were on their way into the log directory.
    pub(super) unfinished: Vec<(TopicId, PartitionIndex)>,
    /// Directories to be removed: deletions and moves that were cut short, and ones that were made for a
    /// partition whose `partition.metadata` was never written.
    pub(super) leftover: Vec<PathBuf>,
    /// Directories of topics that the metadata says were deleted, with the name of the directory: to
    /// be removed, too, but whole.
    pub(super) doomed: Vec<(PathBuf, String, TopicId)>,
}

/// Sorts the directories by what the metadata knows of them. `internal` names the topic whose
/// directory is not the partition manager's.
pub(super) fn inventory(
    found: Vec<FoundDirectory>,
    image: &MetadataImage,
    node: NodeId,
    internal: &str,
) -> Inventory {
    let holds = |topic: &Topic, at: PartitionIndex| {
        let partition = topic.partition(at);
        partition.is_some_and(|partition| partition.replicas.contains(&node))
    };
    let mut inventory = Inventory::default();
    for directory in found {
        let (topic, partition) = match kind_of(&directory.name) {
            DirectoryKind::Deleted => {
                inventory.leftover.push(directory.path);
                continue;
            }
            DirectoryKind::Future { topic, partition } => {
                let known = directory.topic_id.and_then(|id| image.topic_by_id(id));
                let is_ours =
                    known.filter(|known| *known.name == *topic && holds(known, partition));
                if let Some(known) = is_ours {
                    inventory.unfinished.push((known.id, partition));
                }
                inventory.leftover.push(directory.path);
                continue;
            }
            DirectoryKind::Stray => {
                if let Some(id) = directory.topic_id.filter(|id| image.has_deleted(*id)) {
                    inventory.doomed.push((directory.path, directory.name, id));
                }
                continue;
            }
            DirectoryKind::Other => continue,
            DirectoryKind::Partition { topic, .. } if topic == internal => continue,
            DirectoryKind::Partition { topic, partition } => (topic, partition),
        };
        let Some(topic_id) = directory.topic_id else {
            let namesake = image.topic(&topic).filter(|known| holds(known, partition));
            if let Some(known) = namesake.filter(|_| directory.has_data) {
                // Its records would otherwise go out of service while an empty partition takes
                // their place. The log itself is checked when it is opened.
                inventory
                    .nameless
                    .push((known.id, partition, directory.path));
            } else if directory.has_data {
                inventory
                    .stray
                    .push((directory.path, topic, partition, TopicId::ZERO));
            } else {
                inventory.leftover.push(directory.path);
            }
            continue;
        };
        let is_ours = image
            .topic_by_id(topic_id)
            .is_some_and(|known| *known.name == *topic && holds(known, partition));
        if is_ours {
            inventory
                .known
                .insert((topic_id, partition), directory.path);
        } else if image.has_deleted(topic_id) {
            // The process died after the topic was gone and before its directory was renamed.
            let (path, name) = (directory.path, directory.name);
            inventory.doomed.push((path, name, topic_id));
        } else {
            inventory
                .stray
                .push((directory.path, topic, partition, topic_id));
        }
    }
    inventory
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::Offset;

    use super::super::directory::doomed_name;
    use super::*;
    use odradek_raft::{Incarnation, RaftIndex, Succession};

    use crate::metadata::records::{MetadataRecord, PartitionChangeRecord};
    use crate::metadata::test_support::{topic, topic_id};

    fn image(records: &[MetadataRecord]) -> Arc<MetadataImage> {
        let mut image = MetadataImage::default();
        image.apply(records, Offset::new(9)).expect("applies");
        Arc::new(image)
    }

    fn added(changes: &Changes) -> Vec<(TopicId, i32)> {
        changes
            .added
            .iter()
            .map(|wanted| (wanted.topic_id, wanted.index.get()))
            .collect()
    }

    #[test]
    fn only_partitions_with_a_replica_here_are_added() {
        let image = image(&topic("a", 1, &[&[1], &[2], &[2, 1]]));
        let changes = changes(&Index::default(), &image, NodeId::new(1));
        assert_eq!(added(&changes), [(topic_id(1), 0), (topic_id(1), 2)]);
    }

    #[test]
    fn a_topic_made_again_is_removed_and_added() {
        let name: Arc<str> = "a".into();
        let mut index = Index::default();
        index.set_image(image(&topic("a", 1, &[&[1]])));
        index.insert(topic_id(1), &name, PartitionIndex::new(0), Slot::Unopenable);
        let changes = changes(&index, &image(&topic("a", 2, &[&[1]])), NodeId::new(1));
        assert_eq!(changes.removed.len(), 1);
        assert_eq!(changes.removed[0].id, topic_id(1));
        assert_eq!(added(&changes), [(topic_id(2), 0)]);
    }

    #[test]
    fn new_partitions_of_a_known_topic_are_added() {
        let name: Arc<str> = "a".into();
        let mut index = Index::default();
        index.set_image(image(&topic("a", 1, &[&[1]])));
        index.insert(topic_id(1), &name, PartitionIndex::new(0), Slot::Unopenable);
        let changes = changes(
            &index,
            &image(&topic("a", 1, &[&[1], &[1]])),
            NodeId::new(1),
        );
        assert!(changes.removed.is_empty());
        assert_eq!(added(&changes), [(topic_id(1), 1)]);
    }

    #[test]
    fn a_partition_that_others_hold_from_now_on_is_released_and_others_stay() {
        let name: Arc<str> = "a".into();
        let mut index = Index::default();
        index.set_image(image(&topic("a", 1, &[&[1, 2], &[1, 2], &[2]])));
        for at in 0..2 {
            index.insert(
                topic_id(1),
                &name,
                PartitionIndex::new(at),
                Slot::Unopenable,
            );
        }
        let after = image(&topic("a", 1, &[&[3, 2], &[1, 2], &[2]]));
        let changes = changes(&index, &after, NodeId::new(1));
        assert_eq!(changes.released, [(topic_id(1), PartitionIndex::new(0))]);
        assert!(changes.added.is_empty() && changes.removed.is_empty());
    }

    #[test]
    fn a_partition_that_got_another_group_is_closed_and_opened_in_that_one() {
        let name: Arc<str> = "a".into();
        let mut index = Index::default();
        let first = topic("a", 1, &[&[1, 2], &[1, 2], &[2]]);
        index.set_image(image(&first));
        for at in 0..2 {
            index.insert(
                topic_id(1),
                &name,
                PartitionIndex::new(at),
                Slot::Unopenable,
            );
        }
        let begun = Begun {
            incarnation: Incarnation::new(1005),
            succession: Succession {
                predecessor: Incarnation::FIRST,
                founder: NodeId::new(2),
                kept_end: RaftIndex::new(9),
                log_start: Offset::ZERO,
            },
        };
        let elected = |at| {
            MetadataRecord::PartitionChange(PartitionChangeRecord {
                begun: Some(begun),
                ..PartitionChangeRecord::of(topic_id(1), PartitionIndex::new(at))
            })
        };
        let after = image(&[first, vec![elected(1), elected(2)]].concat());
        let changes = changes(&index, &after, NodeId::new(1));
        assert_eq!(changes.superseded, [(topic_id(1), PartitionIndex::new(1))]);
        assert_eq!(added(&changes), [(topic_id(1), 1)]);
        assert_eq!(changes.added[0].begun, Some(begun));
    }

    #[test]
    fn a_group_is_begun_only_by_its_first_voters_and_only_if_nobody_can_have_led_it() {
        let state = |replicas: &[i32], adding: &[i32], epoch: i32| {
            let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect();
            PartitionState {
                replicas: nodes(replicas),
                isr: vec![],
                removing_replicas: vec![],
                adding_replicas: nodes(adding),
                leader: None,
                leader_epoch: LeaderEpoch::new(epoch),
                partition_epoch: 0,
                directories: vec![],
                begun: None,
            }
        };
        let begins = |state: PartitionState| beginning(&state, NodeId::new(1)).1;
        assert!(begins(state(&[1, 2, 3], &[], 0)));
        // Its disk may be new; the others must not take it for the one that voted.
        assert!(!begins(state(&[1, 2, 3], &[], 1)));
        assert!(!begins(state(&[2, 3, 1], &[1], 0)));
        assert!(begins(state(&[1], &[], 7)));
        let (voters, _) = beginning(&state(&[4, 1, 2], &[4], 0), NodeId::new(1));
        assert_eq!(voters, [NodeId::new(1), NodeId::new(2)]);
    }

    #[test]
    fn directories_of_unknown_topic_ids_are_set_aside_and_never_opened() {
        let found = |name: &str, topic_id: Option<TopicId>, has_data: bool| FoundDirectory {
            path: PathBuf::from(name),
            name: name.to_owned(),
            topic_id,
            has_data,
        };
        let mut known = topic("a", 1, &[&[1], &[1], &[1], &[1], &[2, 3]]);
        known.extend(topic("deleted", 8, &[&[1]]));
        known.push(MetadataRecord::RemoveTopic(topic_id(8)));
        let inventory = inventory(
            vec![
                found("a-0", Some(topic_id(1)), true),
                found("a-1", Some(topic_id(7)), true),
                found("a-2", None, true),
                found("a-3", None, false),
                found("a-4", Some(topic_id(1)), true),
                found("a-9", Some(topic_id(1)), true),
                found("b-0", Some(topic_id(1)), true),
                found(&doomed_name("a-0", topic_id(7)), None, true),
                found("a-5", Some(topic_id(8)), true),
                found("a-6.08-stray", Some(topic_id(8)), true),
                found("a-7.08-stray", None, true),
                found("a-0.07-stray", Some(topic_id(7)), true),
                found("__cluster_metadata-0", None, true),
                found("lost+found", None, false),
            ],
            &image(&known),
            NodeId::new(1),
            "__cluster_metadata",
        );
        assert_eq!(inventory.known.len(), 1);
        assert!(
            inventory
                .known
                .contains_key(&(topic_id(1), PartitionIndex::new(0)))
        );
        let stray: Vec<_> = inventory
            .stray
            .iter()
            .map(|(path, ..)| path.to_string_lossy().into_owned())
            .collect();
        assert_eq!(stray, ["a-1", "a-4", "a-9", "b-0"]);
        let doomed = inventory.doomed.iter().map(|(_, name, _)| name.as_str());
        assert_eq!(doomed.collect::<Vec<_>>(), ["a-5", "a-6.08-stray"]);
        // What lost only the file that says whose it is stays in service.
        assert_eq!(
            inventory.nameless,
            [(topic_id(1), PartitionIndex::new(2), PathBuf::from("a-2"))]
        );
        assert_eq!(
            inventory.leftover,
            [
                PathBuf::from("a-3"),
                PathBuf::from(doomed_name("a-0", topic_id(7)))
            ]
        );
    }
}
