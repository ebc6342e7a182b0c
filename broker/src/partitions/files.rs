//! The manager's work on directories: what is found at the start, what is made, what is removed.
//! All of it blocks, and so runs on the blocking pool.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_storage::disk::Disk;

use super::PartitionManager;
use super::directory::{self, DirectoryKind};
use super::log_dir::LogDirectory;
use super::reconcile::{FoundDirectory, Inventory, Wanted, inventory};
use crate::metadata::image::MetadataImage;
use crate::metadata::topic_name::CLUSTER_METADATA;
use crate::partition::{Gone, Partition};

impl PartitionManager {
    /// Looks through the log directories, removes what a cut-short deletion left, sets strays
    /// aside, and returns where the partitions of `image` are. Moves that were cut short begin again.
    pub(super) async fn take_inventory(
        &self,
        image: &Arc<MetadataImage>,
    ) -> HashMap<(TopicId, PartitionIndex), PathBuf> {
        let mut known = HashMap::new();
        for log_dir in self.directories() {
            if log_dir.health().is_offline() {
                continue;
            }
            let disk = Arc::clone(&self.options.disk);
            let (image, path) = (Arc::clone(image), log_dir.path().to_path_buf());
            let node = self.options.node_id;
            let found =
                tokio::task::spawn_blocking(move || tidy(&*disk, &path, &image, node)).await;
            match found {
                Ok(Ok((found, unfinished))) => {
                    known.extend(found);
                    for partition in unfinished {
                        self.moves.begin(partition, log_dir);
                    }
                }
                Ok(Err(error)) => log_dir.health().fail(&error),
                Err(error) => log_dir.health().fail(&error),
            }
        }
        known
    }

    /// Makes the directory of a new partition; it is durable, and so is whose it is.
    pub(super) async fn make_directory(
        &self,
        wanted: &Wanted,
        directory: &LogDirectory,
    ) -> anyhow::Result<PathBuf> {
        let log_dir = directory.path().to_path_buf();
        let path = log_dir.join(directory::name_of(&wanted.topic, wanted.index));
        if wanted.begins && wanted.has_been_led {
            tracing::error!(
                path = %path.display(),
                "the directory of a partition is gone, and no other broker has a replica: it begins again without \
                 records; stop the broker and put the directory back if it is kept elsewhere"
            );
        }
        let (disk, topic_id) = (Arc::clone(&self.options.disk), wanted.topic_id);
        let made = path.clone();
        tokio::task::spawn_blocking(move || {
            directory::create(&*disk, &made, topic_id)?;
            disk.sync_dir(&log_dir)
        })
        .await?
        .with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Closes a partition whose group is the partition's no more, and leaves its data where it is: from
    /// here on this replica acknowledges nothing in that group, and votes for nobody.
    pub(super) async fn close(&self, partition: &Arc<Partition>) {
        tracing::warn!(
            ?partition,
            group = %partition.group().key(),
            "most voters of this group were given up: this replica leaves it"
        );
        partition.mark_gone(Gone::Superseded);
        let key = partition.group().key();
        if let Err(error) = self.options.raft.close_group(key).await {
            // What is on the disk is looked at when it is opened again.
            tracing::warn!(?partition, %error, "a partition was not closed cleanly");
        }
        partition.directory().partition_removed();
    }

    /// Closes a partition that is here no more and removes its data. The files go in the background;
    /// what is being read stays readable until it has been sent.
    pub(super) async fn remove(&self, partition: &Arc<Partition>, why: Gone) {
        partition.mark_gone(why);
        let key = partition.group().key();
        let deleted = self.options.raft.delete_group(key).await;
        partition.directory().partition_removed();
        let path = match deleted {
            Ok(path) => path,
            Err(error) => {
                tracing::error!(
                    topic = &**partition.topic(),
                    partition = partition.index().get(),
                    %error,
                    "the data of a partition that is here no more cannot be taken away"
                );
                return;
            }
        };
        let disk = Arc::clone(&self.options.disk);
        // The directory is renamed: from here on a restart finishes the removal.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = disk.remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "deleted data cannot be removed");
            }
        });
    }
}

/// Where the partitions in a log directory are, and which were on their way into it.
type Found = (
    HashMap<(TopicId, PartitionIndex), PathBuf>,
    Vec<(TopicId, PartitionIndex)>,
);

fn tidy(
    disk: &dyn Disk,
    log_dir: &Path,
    image: &MetadataImage,
    node: NodeId,
) -> anyhow::Result<Found> {
    let Inventory {
        mut known,
        unfinished,
        nameless,
        stray,
        leftover,
        doomed,
    } = inventory(scan(disk, log_dir)?, image, node, CLUSTER_METADATA);
    for path in leftover {
        tracing::info!(path = %path.display(), "finishing a removal that was cut short");
        disk.remove_dir_all(&path)?;
    }
    for (path, name, topic_id) in doomed {
        let goal = log_dir.join(directory::doomed_name(&name, topic_id));
        tracing::info!(path = %path.display(), %topic_id, "removing what is left of a deleted topic");
        disk.rename(&path, &goal)?;
        disk.sync_dir(log_dir)?;
        disk.remove_dir_all(&goal)?;
    }
    for (topic_id, partition, path) in nameless {
        tracing::warn!(
            path = %path.display(),
            %topic_id,
            "partition.metadata is lost or unreadable; written again, for the metadata knows the name"
        );
        directory::create(disk, &path, topic_id)?;
        known.insert((topic_id, partition), path);
    }
    if stray.is_empty() {
        return Ok((known, unfinished));
    }
    let mut taken = directory::names_in(disk, log_dir)?;
    for (path, topic, partition, topic_id) in stray {
        let name = directory::stray_name(&topic, partition, topic_id);
        let goal = log_dir.join(directory::take_free_name(&mut taken, &name));
        tracing::warn!(
            from = %path.display(),
            to = %goal.display(),
            "set aside: the metadata knows no replica here of this partition and topic id"
        );
        disk.rename(&path, &goal)?;
    }
    disk.sync_dir(log_dir)?;
    Ok((known, unfinished))
}

fn scan(disk: &dyn Disk, log_dir: &Path) -> anyhow::Result<Vec<FoundDirectory>> {
    let entries = disk
        .list(log_dir)
        .with_context(|| format!("list {}", log_dir.display()))?;
    let mut found = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.is_dir) {
        let path = log_dir.join(&entry.name);
        let kind = directory::kind_of(&entry.name);
        let is_partition = matches!(kind, DirectoryKind::Partition { .. });
        let is_future = matches!(kind, DirectoryKind::Future { .. });
        let topic_id = if is_partition || is_future || kind == DirectoryKind::Stray {
            directory::read_topic_id(disk, &path)?
        } else {
            None
        };
        let has_data = is_partition && topic_id.is_none() && directory::has_records(disk, &path);
        found.push(FoundDirectory {
            path,
            name: entry.name,
            topic_id,
            has_data,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::Offset;
    use odradek_storage::SimDisk;
    use odradek_storage::disk::OpenMode;

    use super::*;
    use crate::metadata::records::MetadataRecord;
    use crate::partitions::fixture::{topic_id, topic_records};

    const LOG_DIR: &str = "d";

    /// Topic 1 was deleted and made again as topic 2; topic 3 is there; of topic 4 nobody knows.
    fn image() -> MetadataImage {
        let mut records = topic_records("orders", 1, 1);
        records.push(MetadataRecord::RemoveTopic(topic_id(1)));
        records.extend(topic_records("orders", 2, 1));
        records.extend(topic_records("kept", 3, 1));
        let mut image = MetadataImage::default();
        image.apply(&records, Offset::new(9)).expect("applies");
        image
    }

    fn put(disk: &SimDisk, name: &str, topic: u8) {
        let dir = Path::new(LOG_DIR).join(name);
        directory::create(disk, &dir, topic_id(topic)).expect("made");
        let log = disk
            .open(&dir.join("00000000000000000000.log"), OpenMode::Create)
            .expect("made");
        log.write_at(&[topic], 0).expect("written");
        log.sync_data().expect("synced");
        disk.sync_dir(&dir).expect("synced");
    }

    /// A log directory as a broker leaves it that dies while topic 1 is being deleted.
    fn disk() -> SimDisk {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new(LOG_DIR)).expect("made");
        put(&disk, "orders-0", 1);
        put(&disk, "kept-0", 3);
        put(&disk, "gone-0", 4);
        put(&disk, "orders-1.01010101010101010101010101010101-stray", 1);
        disk.sync_dir(Path::new(LOG_DIR)).expect("synced");
        disk.sync_dir(Path::new("")).expect("synced");
        disk
    }

    /// The topic whose data stands in each directory.
    fn found(disk: &SimDisk) -> Vec<(String, Option<u8>)> {
        let entries = disk.list(Path::new(LOG_DIR)).expect("listed");
        let read = |name: &str| {
            let log = Path::new(LOG_DIR)
                .join(name)
                .join("00000000000000000000.log");
            disk.read_file(&log, 10).ok()?.first().copied()
        };
        entries
            .into_iter()
            .map(|entry| (entry.name.clone(), read(&entry.name)))
            .collect()
    }

    /// Whatever step a start dies at while it removes what a deletion has left: the next one ends
    /// the removal, takes nothing else away, and takes nothing for the topic made again.
    #[test]
    fn what_a_deletion_has_left_goes_and_nothing_else_does_whatever_step_a_start_dies_at() {
        let (image, node) = (image(), NodeId::new(1));
        let whole = disk();
        let before = whole.steps();
        tidy(&whole, Path::new(LOG_DIR), &image, node).expect("tidied");
        let steps = whole.steps() - before;
        assert!(steps >= 5, "{steps}");
        for step in 1..=steps {
            for seed in 0..20 {
                let disk = disk();
                disk.stop_at(before + step);
                let _ = tidy(&disk, Path::new(LOG_DIR), &image, node);
                disk.power_cut(seed);
                let (known, _) = tidy(&disk, Path::new(LOG_DIR), &image, node).expect("tidied");
                let what = format!("step {step}, seed {seed}");
                assert_eq!(
                    found(&disk),
                    [
                        (
                            directory::stray_name("gone", PartitionIndex::new(0), topic_id(4)),
                            Some(4)
                        ),
                        ("kept-0".to_owned(), Some(3)),
                    ],
                    "{what}"
                );
                let known: Vec<_> = known.into_keys().map(|(id, _)| id).collect();
                assert_eq!(known, [topic_id(3)], "{what}");
            }
        }
    }

    #[test]
    fn a_start_that_finds_all_in_its_place_waits_for_no_sync() {
        let (image, node, disk) = (image(), NodeId::new(1), disk());
        tidy(&disk, Path::new(LOG_DIR), &image, node).expect("tidied");
        let before = disk.syncs();
        let (known, _) = tidy(&disk, Path::new(LOG_DIR), &image, node).expect("tidied");
        assert_eq!((known.len(), disk.syncs() - before), (1, 0));
    }
}
